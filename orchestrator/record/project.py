"""The state of a project between commands: the inventory of the last deploy, accepted host keys,
the folder of runs.

A project is the current directory, or the directory in ``ORCH_PROJECT``.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import ConfigError, DataError
from orchestrator.files import PROJECT_HINT, make_folder, write_atomic
from orchestrator.record.defaults import PROJECT_FILE, Default, defaults
from orchestrator.record.state_file import read_json

DEFAULT = "the default"
"""The source of an inventory that nothing names."""
_DEFAULT = "inventory/cluster.yaml"
_TEMPLATES = "templates"
_PATH_BYTES = 4095 - len("/runs" + "/logs" + "/.0123456789abcdef.part") - 4 * 129
"""Linux allows 4095 bytes. Below a project are the names of a bench, a run, a host and a log, each
of at most 128 bytes.
"""


@dataclass(frozen=True, slots=True)
class Project:
    """The files of a project: ``runs/``, and ``.orch/`` for orch's own state."""

    root: Path

    @classmethod
    def here(cls, environment: Mapping[str, str]) -> Project:
        """Return the project of the current directory, or of ``ORCH_PROJECT``. Raises ConfigError
        if its path is too long.
        """
        project = cls(Path(environment.get("ORCH_PROJECT") or ".").expanduser().absolute())
        size = len(os.fsencode(project.root))
        if size > _PATH_BYTES:
            message = f"expected a project's path of at most {_PATH_BYTES} bytes, got {size}"
            where, hint = (
                f"{str(project.root)[:60]}…",
                "set ORCH_PROJECT to a folder with a shorter path",
            )
            raise ConfigError(message, kind="unsafe_path", where=where, hint=hint)
        return project

    @property
    def runs(self) -> Path:
        """The folder of benches."""
        return self.root / "runs"

    @property
    def known_hosts(self) -> Path:
        """The project's own known-hosts file. The user's file is only read."""
        return self.root / ".orch" / "known_hosts"

    @property
    def deployed(self) -> Path:
        """The file with the state of each node after its last deploy; may be deleted."""
        return self.root / ".orch" / "deployed.json"

    @property
    def nodes(self) -> Path:
        """The file with what the project remembers of its nodes: good, suspect, out."""
        return self.root / ".orch" / "nodes.json"

    @property
    def history(self) -> Path:
        """The cache of results read from each bench; may be deleted."""
        return self.root / ".orch" / "history.json"

    def cache(self, name: str) -> Path:
        """Return the file in which a feature keeps what it has read; it may be deleted."""
        return self.root / ".orch" / f"{name}.json"

    @property
    def lab(self) -> Path:
        """The folder of this project's lab."""
        return self.root / ".orch" / "lab"

    @property
    def templates(self) -> Path:
        """The project's own framework folders, which may be missing; relative in the current
        directory.
        """
        if self.root == Path.cwd():
            return Path(_TEMPLATES)
        return self.root / _TEMPLATES

    def defaults(self, environment: Mapping[str, str]) -> dict[str, Default]:
        """Return the defaults of options that the files of this project and of the user set, by
        key.

        Raises ConfigError or Faults of it, with file and line.
        """
        return defaults(self.root, environment)

    def template_folders(
        self, given: Sequence[Path], environment: Mapping[str, str]
    ) -> tuple[Path, ...]:
        """Return the folders of framework folders, the first takes precedence: the options,
        ``ORCH_TEMPLATES``, those that a file of defaults lists, the project's own.

        ``ORCH_TEMPLATES`` is a list of paths like ``PATH``. Raises ConfigError for one that is no
        folder.
        """
        listed = [
            Path(path).expanduser()
            for path in environment.get("ORCH_TEMPLATES", "").split(os.pathsep)
            if path
        ]
        for path in given:
            if not path.is_dir():
                raise ConfigError(
                    "expected a folder with framework folders, found no such folder",
                    where=str(path),
                )
            if (path / "framework.yaml").is_file():
                hint = f"give the folder above it: --templates {path.parent}"
                raise ConfigError(
                    "expected a folder with framework folders, got one framework",
                    where=str(path),
                    hint=hint,
                )
        for path in listed:
            if not path.is_dir():
                message = f"expected folders with framework folders, found no folder {path}"
                raise ConfigError(
                    message,
                    where="ORCH_TEMPLATES",
                    hint="write a list of paths, separated by colons",
                )
        default = self.defaults(environment).get("templates")
        kept, where = (default.value, default.where) if default else ((), "")
        for path in kept:
            if not path.is_dir():
                raise ConfigError(
                    f"expected folders with framework folders, found no folder {path}", where=where
                )
        own = [self.templates] if self.templates.is_dir() else []
        return tuple(dict.fromkeys([*given, *listed, *kept, *own]))

    def is_outside_its_lab(self, environment: Mapping[str, str]) -> bool:
        """Return True for a project with a lab, outside of it: hosts that nothing names may there
        be somebody's machines.
        """
        return (self.lab / "lab.json").exists() and not environment.get("ORCH_LAB")

    def inventory_source(self, given: str, environment: Mapping[str, str]) -> tuple[str, str]:
        """Return (inventory, its source): the option, ``ORCH_HOSTS``, ``hosts`` of the project's
        file of defaults, the last deploy, the job of Slurm that this process runs in, ``hosts`` of
        the user's file, or the default file.

        In a lab, the default file's name means the lab's inventory: the commands of a tutorial then
        work on a lab as they are, and never contact the machines of a real inventory of this name.
        """
        if (
            environment.get("ORCH_LAB")
            and environment.get("ORCH_HOSTS")
            and self._is_default(given)
        ):
            return environment["ORCH_HOSTS"], f"the lab's, in place of {given}"
        if given:
            return given, "--hosts"
        if environment.get("ORCH_HOSTS"):
            return environment["ORCH_HOSTS"], "ORCH_HOSTS"
        default = self.defaults(environment).get("hosts")
        if default and default.origin == PROJECT_FILE:
            return default.value, default.origin
        remembered = self._last_inventory()
        if remembered:
            return remembered, "the last deploy"
        if re.fullmatch(r"[0-9_]+", environment.get("SLURM_JOB_ID", "")):
            return "slurm", "SLURM_JOB_ID"
        if default:
            return default.value, default.origin
        return str(self.root / _DEFAULT) if not (
            Path.cwd() / _DEFAULT
        ).exists() else _DEFAULT, DEFAULT

    def _is_default(self, given: str) -> bool:
        return bool(given) and Path(given).absolute() in (
            self.root / _DEFAULT,
            Path(_DEFAULT).absolute(),
        )

    def remember(self, inventory: str) -> None:
        """Store the inventory of a deploy for later commands."""
        path = Path(inventory)
        source = str(path.absolute()) if path.exists() else inventory
        keep(self.root / ".orch" / "project.json", {"schema": 1, "inventory": source})

    def prepare(self) -> None:
        """Create ``.orch/`` before a host is contacted. Raises ConfigError if it cannot be written."""
        folder = self.root / ".orch"
        make_folder(folder, PROJECT_HINT, is_input=True)
        if not os.access(folder, os.W_OK):
            raise ConfigError(
                "expected a writable folder",
                kind="unsafe_path",
                where=str(folder),
                hint=PROJECT_HINT,
            )

    def _last_inventory(self) -> str:
        try:
            return str(read_json(self.root / ".orch" / "project.json")["inventory"])
        except (DataError, KeyError, TypeError):
            # Losing this file costs one option on the command line, which is no reason to fail.
            return ""


def keep(path: Path, value: Mapping[str, object]) -> None:
    """Write a state file of a project. Raises DataError if it cannot be written."""
    make_folder(path.parent, PROJECT_HINT)
    write_atomic(path, json.dumps(value).encode(), hint=PROJECT_HINT)


def owner() -> dict[str, object]:
    """Return the owner record for a node during a run; others who find it busy see it."""
    import getpass
    import socket
    import time

    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return {
        "user": getpass.getuser(),
        "controller": socket.gethostname(),
        "process": os.getpid(),
        "since": since,
    }
