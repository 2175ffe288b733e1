"""``python -m orchestrator`` is `orch`."""

from orchestrator.cli.main import run

if __name__ == "__main__":
    run()
