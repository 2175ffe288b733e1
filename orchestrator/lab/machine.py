"""A namespace lab node's view of the machine's files, as a list of mounts; this module mounts
nothing.

The file system is the machine's own, except for the folders where programs keep state (home,
temporary and runtime folders), which are private to the node. Files below these that a node needs
(an interpreter, the lab's own files) are bound back in. The controller's project directory and the
files of other nodes are hidden, as on a cluster without a shared disk.
"""

from __future__ import annotations

import json
import os
import pwd
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestrator.errors import ConfigError
from orchestrator.lab import slurm
from orchestrator.lab.programs import run
from orchestrator.lab.state import Lab, LabNode

HOME = "/root"
PRIVATE = ("/dev/shm", "/home", HOME, "/run", "/tmp", "/var/tmp")
_CGROUPS = "/sys/fs/cgroup"
_OVERRIDDEN = ("passwd", "shadow", "hosts", "hostname", "resolv.conf")
_TMPFS = {"/tmp": "mode=1777", "/dev/shm": "mode=1777", "/home": "mode=755", "/run": "mode=755"}


def mounts(lab: Lab, node: LabNode, shares: Iterable[Path]) -> list[dict[str, Any]]:
    """Return the mounts of a node, in order; `nodeinit.do_mounts` executes them.

    Raises ConfigError for a share that would expose a whole private folder.
    """
    directory = str(lab.directory)
    steps = [_tmpfs(path, options) for path, options in _TMPFS.items() if Path(path).is_dir()]
    steps += [_bind(node.home, HOME), _bind(node.folder / "var_tmp", "/var/tmp")]
    around, others = _around(lab.directory, _outermost(shares))
    steps += [_bind(path, path, make=True) for path in around if _hidden(path)]
    steps += [_bind(lab.directory, directory, make=True)] if _hidden(directory) else []
    steps += [_tmpfs(f"{directory}/nodes", "mode=755"), _bind(node.folder, node.folder, make=True)]
    steps += [_tmpfs(str(lab.work), "mode=755")]
    steps += [_tmpfs(str(slurm.private_folder(lab)), "mode=755")] if lab.slurm else []
    steps += [
        _bind(path, path, make=True)
        for path in others
        if _hidden(path) or _is_below(path, directory)
    ]
    steps += [
        _bind(node.folder / "etc" / name, f"/etc/{name}")
        for name in _OVERRIDDEN
        if Path("/etc", name).exists()
    ]
    return [
        *steps,
        {
            "type": "devpts",
            "source": "",
            "target": "/dev/pts",
            "options": "newinstance,ptmxmode=0666,mode=0620,gid=5",
        },
        {"type": "proc", "source": "", "target": "/proc", "options": ""},
        {"type": "sysfs", "source": "", "target": "/sys", "options": ""},
        *([_bind(_CGROUPS, _CGROUPS)] if Path(_CGROUPS).is_dir() else []),
    ]


def _tmpfs(target: str, options: str) -> dict[str, Any]:
    return {"type": "tmpfs", "source": "", "target": target, "options": options}


def _bind(source: Path | str, target: Path | str, *, make: bool = False) -> dict[str, Any]:
    return {"type": "bind", "source": str(source), "target": str(target), "make": make}


def _is_below(path: Path | str, folder: str) -> bool:
    return str(path).startswith(f"{folder}/")


def _hidden(path: Path | str) -> bool:
    """Return True if a path is below a folder that is private to the node. Raises ConfigError for
    such a folder itself.
    """
    if str(path) in PRIVATE:
        raise ConfigError(
            f"expected a folder below {path}, got {path} itself, which is private to each node",
            kind="unsafe_path",
        )
    return any(_is_below(path, folder) for folder in PRIVATE)


def _outermost(paths: Iterable[Path]) -> list[Path]:
    """Return the paths that are not inside another one of them."""
    kept: list[Path] = []
    for path in sorted(set(paths)):
        if not any(map(path.is_relative_to, kept)):
            kept.append(path)
    return kept


def _around(directory: Path, paths: Iterable[Path]) -> tuple[list[Path], list[Path]]:
    """Split paths into those that contain the directory, whose mounts would cover mounts inside it,
    and all others.
    """
    around: list[Path] = []
    others: list[Path] = []
    for path in paths:
        (around if directory.is_relative_to(path) else others).append(path)
    return around, others


def interpreter_folders(python: str) -> list[Path]:
    """Return the folders that an interpreter needs: its prefixes, and the folders of the links that
    lead to it.
    """
    script = "import sys; print(*{sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix}, sep='\\n')"
    prefixes = [Path(line) for line in run([python, "-c", script]).splitlines()]
    link, links = Path(python).absolute(), []
    while link.is_symlink():
        link = Path(os.path.normpath(link.parent / link.readlink()))
        links.append(link.parent)
    return [path for path in [*prefixes, *links, Path(python).absolute().parent] if path.is_dir()]


def write_etc(lab: Lab, node: LabNode, addresses: Mapping[str, str]) -> None:
    """Write the node's own files for /etc. Root can log in regardless of the machine's settings;
    there is no name server.
    """
    folder = node.folder / "etc"
    folder.mkdir()
    (node.folder / "var_tmp").mkdir()
    (node.folder / "var_tmp").chmod(0o1777)
    hosts = "".join(f"{address} {name}\n" for name, address in addresses.items())
    contents = {
        "passwd": _passwd(pwd.getpwall()),
        "shadow": "root:*:20000:0:99999:7:::\n",
        "hosts": f"127.0.0.1 localhost\n::1 localhost\n{hosts}",
        "hostname": f"{node.name}\n",
        "resolv.conf": "",
    }
    for name, text in contents.items():
        (folder / name).write_text(text, encoding="utf-8")
        (folder / name).chmod(0o600 if name == "shadow" else 0o644)


def _passwd(entries: Sequence[pwd.struct_passwd]) -> str:
    """Return a passwd file with the machine's users, root with its home in `HOME`, and sshd's
    unprivileged user.
    """
    others = [entry for entry in entries if entry.pw_uid != 0 and entry.pw_name != "sshd"]
    lines = [
        f"{e.pw_name}:x:{e.pw_uid}:{e.pw_gid}:{e.pw_gecos}:{e.pw_dir}:{e.pw_shell}" for e in others
    ]
    used = {entry.pw_uid for entry in others}
    sshd_uid = next(uid for uid in range(102, 65000) if uid not in used)
    return "\n".join(
        [
            f"root:x:0:0:root:{HOME}:/bin/bash",
            f"sshd:x:{sshd_uid}:65534::/run/sshd:/usr/sbin/nologin",
            *lines,
            "",
        ]
    )


def plan_text(nodes: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the file that the holder reads: the complete plan of each node, as JSON."""
    return json.dumps(nodes, indent=1)
