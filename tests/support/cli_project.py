"""A project folder with an inventory, and `orch` run in it."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.support import commands


@dataclass(frozen=True, slots=True)
class Project:
    """A directory with an inventory whose hosts do not exist."""

    path: Path

    def orch(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        done = commands.orch(self.path, *words, environment=environment)
        assert "Traceback" not in done.stderr + done.stdout, done.stderr
        return done

    def refused(self, *words: str, code: int = 2) -> str:
        """Return the messages of a command that is refused: nothing on stdout, the inventory's line
        aside.
        """
        done = self.orch(*words)
        assert (done.returncode, done.stdout) == (code, ""), done
        lines = [line for line in done.stderr.splitlines() if not line.startswith("inventory: ")]
        assert not list(self.path.glob("runs/*"))
        return "\n".join(lines)
