"""Labs for tests: made in the test's own folder under /tmp, and taken down whatever happens."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from orchestrator import lab as labs
from orchestrator.lab import Lab
from tests.support import faultlab
from tests.support.faultlab import AsUser, MakeLab, Ssh
from tests.support.judge import LIMIT_S

REPOSITORY = Path(__file__).parents[2]
USER_ID = 1000


@pytest.fixture
def make_lab(tmp_path: Path) -> Iterator[MakeLab]:
    """Return a function that brings a lab up; each call makes another one."""
    made: list[Path] = []

    def make(**wishes: Any) -> Lab:
        made.append(tmp_path / f"lab{len(made)}")
        return labs.up(
            made[-1], **{"nodes": 2, "gpus_per_node": 0, "say": lambda _: None, **wishes}
        )

    yield make
    for directory in made:
        labs.down(directory)


@pytest.fixture
def ssh() -> Ssh:
    """Return a function that runs a command on a node as a user would."""
    return faultlab.ssh


@pytest.fixture
def user_folder() -> Iterator[Path]:
    """Return a folder that an ordinary user owns, outside pytest's own, which only their owner may
    enter.
    """
    with tempfile.TemporaryDirectory(prefix="orch-test-", dir="/tmp") as name:
        folder = Path(name)
        if os.geteuid() == 0:
            os.chown(folder, USER_ID, USER_ID)
        yield folder
        labs.down(folder / "lab")


@pytest.fixture
def as_user(user_folder: Path) -> AsUser:
    """Return a function that runs Python code as an ordinary user, with the folder as its only
    argument.
    """

    def run(code: str, *, hidden: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-c", code, str(user_folder)]
        variables = {
            "PATH": os.environ["PATH"],
            "HOME": str(user_folder),
            "PYTHONPATH": str(REPOSITORY),
            "SHELL": "/bin/bash",
        }
        if os.geteuid() == 0:
            argv = _unprivileged(argv, hidden)
        return subprocess.run(
            argv,
            env=variables,
            cwd="/",
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )

    return run


def _unprivileged(argv: Sequence[str], hidden: Sequence[str]) -> list[str]:
    """Drop root in a mount namespace in which the interpreter and the repository can be reached by
    everybody.

    A root home is 0700, and continuous integration often keeps both there. ``hidden`` programs look
    as if not installed.
    """
    needed = {Path(sys.prefix), Path(sys.base_prefix), REPOSITORY}
    closed = {ancestor for path in needed for ancestor in _closed(path)}
    lines = ["set -e", "stage=$(mktemp -d)", 'mount -t tmpfs tmpfs "$stage"']
    for number, path in enumerate(sorted(needed)):
        lines += [f'mkdir "$stage/{number}"', f'mount --rbind "{path}" "$stage/{number}"']
    lines += [f'mount -t tmpfs -o mode=755 tmpfs "{path}"' for path in sorted(closed)]
    for number, path in enumerate(sorted(needed)):
        if any(path.is_relative_to(ancestor) for ancestor in closed):
            lines += [f'mkdir -p "{path}"', f'mount --rbind "$stage/{number}" "{path}"']
    lines += [f"echo 'tester:x:{USER_ID}:{USER_ID}::/:/bin/bash' > \"$stage/passwd\""]
    lines += [
        f"grep -v ':x:{USER_ID}:' /etc/passwd >> \"$stage/passwd\"",
        'mount --bind "$stage/passwd" /etc/passwd',
    ]
    lines += [f'mount --bind /dev/null "{program}"' for program in hidden if Path(program).exists()]
    lines += ['umount -l "$stage"; rmdir "$stage"']
    lines += [f'exec setpriv --reuid {USER_ID} --regid {USER_ID} --clear-groups -- "$@"']
    return ["unshare", "--mount", "--", "bash", "-c", "\n".join(lines), "bash", *argv]


def _closed(path: Path) -> list[Path]:
    """Return the outermost folder above ``path`` that others may not enter."""
    return [ancestor for ancestor in reversed(path.parents) if not ancestor.stat().st_mode & 0o001][
        :1
    ]
