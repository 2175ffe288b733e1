"""What a project remembers between commands: the inventory of the last deploy, the host keys it accepted, where runs lie.

A project is the current directory, or the one that ``ORCH_PROJECT`` names.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import ConfigError
from orchestrator.files import PROJECT_HINT, make_folder, write_atomic

__all__ = ["Project", "keep", "owner"]

_DEFAULT = "inventory/cluster.yaml"


@dataclass(frozen=True, slots=True)
class Project:
    """The files of a project: ``runs/``, and ``.orch/`` for what the tool itself remembers."""

    root: Path

    @classmethod
    def here(cls, environment: Mapping[str, str]) -> Project:
        """Return the project of the current directory, or of ``ORCH_PROJECT``."""
        return cls(Path(environment.get("ORCH_PROJECT") or ".").expanduser().absolute())

    @property
    def runs(self) -> Path:
        """Where benches lie."""
        return self.root / "runs"

    @property
    def known_hosts(self) -> Path:
        """The project's own known-hosts file; the user's is read and never written."""
        return self.root / ".orch" / "known_hosts"

    @property
    def deployed(self) -> Path:
        """What deploys have left on each node and found there; deletable."""
        return self.root / ".orch" / "deployed.json"

    @property
    def history(self) -> Path:
        """What was last read of each bench; deletable."""
        return self.root / ".orch" / "history.json"

    @property
    def lab(self) -> Path:
        """Where the lab of this project lives."""
        return self.root / ".orch" / "lab"

    def inventory_source(self, given: str, environment: Mapping[str, str]) -> tuple[str, str]:
        """Return (inventory, why this one): the option, ``ORCH_HOSTS``, the last deploy, the default file."""
        if given:
            return given, "--hosts"
        if environment.get("ORCH_HOSTS"):
            return environment["ORCH_HOSTS"], "ORCH_HOSTS"
        remembered = self._remembered()
        if remembered:
            return remembered, "the last deploy"
        return str(self.root / _DEFAULT) if not (Path.cwd() / _DEFAULT).exists() else _DEFAULT, "the default"

    def remember(self, inventory: str) -> None:
        """Keep the inventory of a deploy for the commands that follow."""
        path = Path(inventory)
        source = str(path.absolute()) if path.exists() else inventory
        keep(self.root / ".orch" / "project.json", {"schema": 1, "inventory": source})

    def prepare(self) -> None:
        """Make the folder of what is remembered. Raises ConfigError where nothing could be, before a host is contacted."""
        folder = self.root / ".orch"
        make_folder(folder, PROJECT_HINT)
        if not os.access(folder, os.W_OK):
            raise ConfigError("expected a folder that can be written", kind="unsafe_path", where=str(folder), hint=PROJECT_HINT)

    def _remembered(self) -> str:
        try:
            value = json.loads((self.root / ".orch" / "project.json").read_text(encoding="utf-8"))
            return str(value["inventory"])
        except (OSError, ValueError, KeyError, TypeError):
            # A lost memory costs one option on the command line; it is no reason to refuse work.
            return ""


def keep(path: Path, value: Mapping[str, object]) -> None:
    """Write what a project remembers. Raises ConfigError where it cannot be written."""
    make_folder(path.parent, PROJECT_HINT)
    write_atomic(path, json.dumps(value).encode(), hint=PROJECT_HINT)


def owner() -> dict[str, object]:
    """Return who holds a node during a run, for those who find it busy."""
    import getpass
    import socket
    import time

    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return {"user": getpass.getuser(), "controller": socket.gethostname(), "process": os.getpid(), "since": since}
