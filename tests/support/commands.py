"""Commands of `orch`, each in a process of its own, forked from one that has loaded the command
line already.

Status, streams, environment and folder are the same as for a started program; only the start of the
interpreter and its imports, most of half a second, are left out. Tests that are about these start
the program itself.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from tests.support.fork_server import ForkServer
from tests.support.judge import LIMIT_S

REPOSITORY = Path(__file__).parents[2]
# A network namespace without any interface that is up: whatever would contact somebody fails at
# once, and shows.
ALONE = ("unshare", "--net") if os.geteuid() == 0 else ()
SERVER = """
import gc, json, os, sys, time
from orchestrator.cli.process import run
import orchestrator.cli.bench, orchestrator.cli.controller, orchestrator.cli.compare, orchestrator.cli.summarize
import orchestrator.plan.bench, orchestrator.plan.schema, orchestrator.inventory.read, orchestrator.plan.folders
import orchestrator.plan.render, orchestrator.results.bench, orchestrator.results.summary, orchestrator.yamlfile
import jinja2, orchestrator.cli.dry_run, orchestrator.cli.main, orchestrator.inventory.formats, orchestrator.inventory.schema
import orchestrator.plan.declaration, orchestrator.record.node_states
from orchestrator.feature import features
features()
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
        self._scratch = tempfile.TemporaryDirectory(prefix="orch-commands-")
        self._server = ForkServer(
            [*ALONE, sys.executable, "-c", SERVER],
            inherited_environment() | {"PYTHONPATH": str(REPOSITORY)},
        )

    def run(
        self,
        words: Sequence[str],
        folder: Path,
        environment: Mapping[str, str],
        *,
        timeout_s: float = LIMIT_S,
    ) -> tuple[subprocess.CompletedProcess[str], float]:
        """Run one command to its end; return how it ended, and after how many seconds."""
        out, err = (Path(self._scratch.name) / name for name in ("out", "err"))
        order = {"words": list(words), "folder": str(folder), "environment": dict(environment)}
        try:
            code, seconds = self._server.ask({**order, "out": str(out), "err": str(err)}, timeout_s)
        except TimeoutError:
            server.cache_clear()
            raise subprocess.TimeoutExpired(
                list(words), timeout_s, out.read_bytes(), err.read_bytes()
            ) from None
        texts = (path.read_text(errors="replace") for path in (out, err))
        return subprocess.CompletedProcess(list(words), code, *texts), seconds

    def close(self) -> None:
        """End the process, and a command that it waits for."""
        self._server.close()
        self._scratch.cleanup()


def inherited_environment() -> dict[str, str]:
    """Return the environment of the tests without what a developer has set for `orch` and ssh."""
    return {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("ORCH_", "SSH_", "PYTEST_", "XDG_"))
    }


@cache
def server() -> Commands:
    """Return the server of this test process, which ends with it."""
    made = Commands()
    atexit.register(made.close)
    return made


def orch(
    folder: Path, *words: str, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder, in the environment of the tests, without what a developer has set
    for `orch` and ssh.
    """
    plain = {"HOME": str(folder), "PYTHONPATH": str(REPOSITORY), "COLUMNS": "120", "NO_COLOR": "1"}
    return server().run(words, folder, inherited_environment() | plain | dict(environment or {}))[0]
