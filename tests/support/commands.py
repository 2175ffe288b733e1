"""Commands of `orch`, each in a process of its own, forked from one that has loaded the command line already.

Status, streams, environment and folder are those of a program that was started; only the start of the interpreter and its
imports, most of half a second, are left out. Tests that are about these start the program itself.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
# A network namespace without any interface that is up: whatever would contact somebody fails at once, and shows.
ALONE = ("unshare", "--net") if os.geteuid() == 0 else ()
SERVER = """
import gc, json, os, sys, time
from orchestrator.cli.process import run
import orchestrator.cli.bench, orchestrator.cli.controller, orchestrator.cli.compare, orchestrator.cli.summarize
import orchestrator.plan.bench, orchestrator.plan.schema, orchestrator.inventory.read, orchestrator.plan.folders
import orchestrator.plan.render, orchestrator.results.bench, orchestrator.results.summary, orchestrator.yamlfile
gc.freeze()
for line in sys.stdin:
    order = json.loads(line)
    began = time.monotonic()
    pid = os.fork()
    if pid == 0:
        try:
            for name, number in (("out", 1), ("err", 2)):
                os.dup2(os.open(order[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.chdir(order["folder"])
            os.environ.clear()
            os.environ.update(order["environment"])
            time.tzset()
            sys.argv = ["orch", *order["words"]]
            run()
        except BaseException:
            sys.excepthook(*sys.exc_info())
            sys.stderr.flush()
            os._exit(1)
    status = os.waitpid(pid, 0)[1]
    print(json.dumps([os.waitstatus_to_exitcode(status), time.monotonic() - began]), flush=True)
"""


class Commands:
    """A process that starts commands, one after the other, where nobody can be contacted."""

    def __init__(self) -> None:
        self.scratch = tempfile.TemporaryDirectory(prefix="orch-commands-")
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("ORCH_", "SSH_", "PYTEST_"))}
        self.process = subprocess.Popen(
            [*ALONE, sys.executable, "-c", SERVER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=kept | {"PYTHONPATH": str(REPOSITORY)},
        )

    def run(
        self, words: Sequence[str], folder: Path, environment: Mapping[str, str], *, timeout_s: float = 60.0
    ) -> tuple[subprocess.CompletedProcess[str], float]:
        """Run one command to its end; return how it ended, and after how many seconds."""
        out, err = (Path(self.scratch.name) / name for name in ("out", "err"))
        order = {
            "words": list(words),
            "folder": str(folder),
            "environment": dict(environment),
            "out": str(out),
            "err": str(err),
        }
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        if not select.select([self.process.stdout], [], [], timeout_s)[0]:
            self.close()
            server.cache_clear()
            raise subprocess.TimeoutExpired(list(words), timeout_s, out.read_bytes(), err.read_bytes())
        answer = self.process.stdout.readline()
        assert answer, f"the process that starts commands has ended with {self.process.wait(10)}"
        code, seconds = json.loads(answer)
        texts = (path.read_text(errors="replace") for path in (out, err))
        return subprocess.CompletedProcess(list(words), code, *texts), seconds

    def close(self) -> None:
        """End the process, and a command that it waits for."""
        assert self.process.stdin and self.process.stdout
        for pid in Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split():
            os.kill(int(pid), 9)
        self.process.kill()
        self.process.wait(10)
        self.process.stdin.close()
        self.process.stdout.close()
        self.scratch.cleanup()


@cache
def server() -> Commands:
    """The one of this process; it ends with it."""
    made = Commands()
    atexit.register(made.close)
    return made


def orch(folder: Path, *words: str, environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder, in the environment of the tests, without what a developer has set for `orch` and ssh."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("ORCH_", "SSH_", "PYTEST_"))}
    plain = {"HOME": str(folder), "PYTHONPATH": str(REPOSITORY), "COLUMNS": "120", "NO_COLOR": "1"}
    return server().run(words, folder, kept | plain | dict(environment or {}))[0]
