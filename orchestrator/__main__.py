"""``python -m orchestrator`` is `orch`."""

from orchestrator.cli.process import run

if __name__ == "__main__":
    run()
