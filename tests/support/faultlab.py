"""Helpers of fault tests: lines into a lab's nodes through OpenSSH's own client, independent of the
tool's transport.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from orchestrator import lab as labs
from orchestrator.lab import Lab
from tests.support import faults, judge
from tests.support.judge import LIMIT_S, Proc

Answer = subprocess.CompletedProcess[bytes]
MakeLab = Callable[..., Lab]
Ssh = Callable[..., Answer]
AsUser = Callable[..., "subprocess.CompletedProcess[str]"]


def ssh(
    lab: Lab, node: str, command: str, data: bytes = b"", *, timeout_s: float = LIMIT_S
) -> Answer:
    """Run a command on a node as a user would, from the controller's side."""
    argv = labs.argv_inside(lab, ["ssh", "-F", str(lab.ssh_config), node, command])
    return subprocess.run(argv, input=data, capture_output=True, timeout=timeout_s, check=False)


def answers(lab: Lab, node: str, *, timeout_s: float = 1.0) -> bool:
    """Claim that a node's SSH server lets us in, each step of it within ``timeout_s``."""
    options = ["-F", str(lab.ssh_config), "-o", f"ConnectTimeout={timeout_s:g}"]
    argv = labs.argv_inside(lab, ["timeout", f"{8 + timeout_s:g}", "ssh", *options, node, "true"])
    return subprocess.run(argv, capture_output=True, timeout=LIMIT_S, check=False).returncode == 0


def held_line(lab: Lab, node: str) -> subprocess.Popen[bytes]:
    """Open an ssh session whose command sleeps, and return it once that runs; end it with `let_go`."""
    argv = labs.argv_inside(
        lab, ["ssh", "-F", str(lab.ssh_config), node, "echo on; exec sleep 1000"]
    )
    process = subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdout and process.stdout.readline() == b"on\n"
    return process


def let_go(process: subprocess.Popen[bytes]) -> None:
    """Kill the client of a held line."""
    process.kill()
    process.communicate()


def mend(lab: Lab) -> list[Proc]:
    """Make every node of a lab answer again with nothing of ours on it; return the processes that
    were left, and ended.
    """
    faults.heal(lab)
    for node in lab.nodes:
        if node.pid:
            faults.thaw(lab, node.name)
            faults.link(lab, node.name, up=True)
        else:
            faults.boot(lab, node.name)
    rest = judge.ours(lab)
    for name in {process.node for process in rest}:
        faults.kill(lab, name)
        faults.boot(lab, name)
    return rest


@contextmanager
def shared_folder(lab: Lab, name: str) -> Iterator[Path]:
    """Have a folder that all nodes of a lab see under one path, as on NFS."""
    folder = lab.directory / name
    folder.mkdir(mode=0o700)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@contextmanager
def few_inodes(lab: Lab, node: str, folder: str) -> Iterator[None]:
    """Have a file system below a folder of a node that holds the launch script of a run and nothing
    that is written later.
    """
    labs_on = labs.argv_on(
        lab,
        node,
        [
            "sh",
            "-ec",
            f"mkdir -p -m 700 {folder}; mount -t tmpfs -o nr_inodes=5,mode=0700 none {folder}",
        ],
    )
    subprocess.run(labs_on, check=True)
    try:
        yield
    finally:
        subprocess.run(labs.argv_on(lab, node, ["sh", "-c", f"umount -l {folder}"]), check=True)


@contextmanager
def listener(lab: Lab, node: str, port: int) -> Iterator[None]:
    """Have a server on a node that takes connections and says nothing; it is not ours."""
    code = f"import socket, sys; s = socket.create_server(('0.0.0.0', {port})); print('on', flush=True); sys.stdin.read()"
    argv = labs.argv_on(lab, node, [sys.executable, "-c", code])
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout and process.stdout.readline() == b"on\n"
        yield


def four_nodes(directory: Path) -> Lab:
    """Start the lab that tests of the whole job share: four nodes in namespaces, each of two CPU
    slots.
    """
    return labs.up(
        directory, nodes=4, gpus_per_node=0, slots=2, kind="namespaces", say=lambda _: None
    )
