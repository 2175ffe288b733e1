"""A real podman with a store of its own, and an image made of this machine's own files: no registry
is asked.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support import judge

IMAGE = "localhost/orch/test:1"
PROGRAMS = ("bash", "sh", "env", "sleep", "cat", "mkdir", "ln", "setsid", "python3")
LIMITS = {"nofile": 20000, "nproc": 4096}
"""Given explicitly: podman's own defaults need a capability that root lacks in some containers."""


def script(folder: Path) -> Path:
    """Return podman as a program: its store is below ``folder``, one for each host name, and its
    runtime is runc, which knows every kind of control groups. While a file ``broken`` is there, it
    fails as an engine does whose daemon is gone."""
    path = folder / "podman"
    run = run_root(folder)
    path.write_text(
        "#!/bin/bash\n"
        f"if [ -e {folder}/broken ]; then echo 'cannot connect to the engine' >&2; exit 125; fi\n"
        f"store={folder}/$(uname -n)\n"
        f"exec /usr/bin/podman --root $store/root --runroot {run} --tmpdir {run}/tmp --runtime runc \\\n"
        '  --storage-driver vfs --cgroup-manager cgroupfs --events-backend none "$@"\n'
    )
    path.chmod(0o755)
    return path


def run_root(folder: Path) -> Path:
    """Return where podman has its state of this boot: a path of at most 50 characters, or it
    refuses.
    """
    return Path("/tmp", f"orch-podman-{hashlib.sha256(str(folder).encode()).hexdigest()[:12]}")


def remove_run_root(folder: Path) -> None:
    """Remove that state, in which podman's process that cleans up after the last container may
    still write.
    """

    def removed() -> bool:
        shutil.rmtree(run_root(folder), ignore_errors=True)
        return not run_root(folder).exists()

    judge.wait_for(removed, 10, f"{run_root(folder)} cannot be removed")


def image(folder: Path) -> Path:
    """Return an archive with a shell, a few programs and an interpreter, copied from this machine;
    skips a test where podman cannot be had."""
    if reason := obstacle():
        pytest.skip(reason)
    return archive(folder)


def obstacle() -> str:
    """Return why podman cannot be had here; nothing where it can."""
    if not all(shutil.which(name, path="/usr/bin") for name in (*PROGRAMS, "podman", "runc")):
        return (
            "needs podman, runc and an interpreter in /usr/bin (make test installs them, as root)"
        )
    return (
        "needs root: without it podman maps users, which not every machine allows"
        if os.geteuid()
        else ""
    )


def archive(folder: Path) -> Path:
    """Return an archive with a shell, a few programs and an interpreter, copied from this machine,
    that an engine imports.
    """
    root = folder / "image"
    for name in ("usr/bin", "usr/lib", "usr/lib64", "tmp", "etc", "proc", "sys", "dev"):
        (root / name).mkdir(parents=True)
    for name in ("bin", "lib", "lib64"):
        (root / name).symlink_to(f"usr/{name}")
    for name in PROGRAMS:
        _copied(Path("/usr/bin", name), root)
    (library,) = (
        path
        for path in Path("/usr/lib").glob("python3.[0-9]*")
        if path.name == Path("/usr/bin/python3").resolve().name
    )
    left_out = shutil.ignore_patterns(
        "test", "dist-packages", "__pycache__", "config-*", "idlelib", "lib2to3", "ensurepip"
    )
    shutil.copytree(library, root / library.relative_to("/"), ignore=left_out, symlinks=True)
    for path in library.glob("lib-dynload/*.so"):
        _copied(path, root)
    path = folder / "image.tar"
    subprocess.run(["tar", "-C", root, "-cf", path, "."], check=True)
    shutil.rmtree(root)
    return path


def _copied(path: Path, root: Path) -> None:
    """Copy a file to its place below ``root``, with the shared libraries that it needs."""
    needs = subprocess.run(
        ["ldd", path], capture_output=True, text=True, check=False
    ).stdout.split()
    for needed in [path, *(Path(word) for word in needs if word.startswith("/"))]:
        target = root / needed.parent.resolve().relative_to("/") / needed.name
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            shutil.copy2(needed.resolve(), target)
