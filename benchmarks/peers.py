"""Contenders of fanout.py that are programs of a few lines; each is what a careful engineer would
write with that library.

    python benchmarks/peers.py cold|fabric|push-orch|push-tar|pull-orch|pull-openssh|pull-paramiko [--stamp] [FOLDER] LAB N

The pull contenders print the seconds from the first request to the last byte on disk, over open
connections.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import paramiko

LOG = ".orch-node/nodes/{name}/runs/pulled/logs/node.out"


def each(names: Iterable[str], call: Callable[[str], Any]) -> None:
    """Call ``call`` for all names at once, in one thread each. Ends the program if any failed."""
    failed: list[str] = []

    def work(name: str) -> None:
        try:
            call(name)
        except Exception as error:
            failed.append(f"{name}: {error!r}")

    threads = [threading.Thread(target=work, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        sys.exit("; ".join(failed[:3]))


class Hosts:
    """The hosts of a lab and how to connect to them: its known-hosts file and key are read once."""

    def __init__(self, lab: Path, count: int) -> None:
        self.lab = lab
        self.names = [f"node{number}" for number in range(1, count + 1)]
        self.known = paramiko.HostKeys(str(lab / "known_hosts"))
        self.key = paramiko.Ed25519Key(filename=str(lab / "id_ed25519"))
        lines = (lab / "ssh_config").read_text().splitlines()
        self.address = {
            line.split()[1]: line.split()[2] for line in lines if line.startswith("Host node")
        }

    def transport(self, name: str) -> paramiko.Transport:
        """Return a paramiko connection, tuned: no unnecessary name look-up, the fast key exchange,
        no Nagle delay.
        """
        sock = socket.create_connection((self.address[name], 22), timeout=60)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        line = paramiko.Transport(sock)
        options = line.get_security_options()
        options.kex = ("curve25519-sha256@libssh.org",)
        options.ciphers = ("aes128-gcm@openssh.com", "aes128-ctr")
        options.key_types = ("ssh-ed25519",)
        line.start_client(timeout=60)
        if not self.known.check(name, line.get_remote_server_key()):
            raise SystemExit(f"{name}: another host key")
        line.auth_publickey("root", self.key)
        return line

    def ssh(self, *words: str) -> list[str]:
        """Return OpenSSH's command line."""
        return ["ssh", "-F", str(self.lab / "ssh_config"), *words]


def cold(hosts: Hosts, asked: argparse.Namespace) -> None:
    """Tuned paramiko: connect, run `true`, disconnect."""

    def visit(name: str) -> None:
        line = hosts.transport(name)
        channel = line.open_session()
        channel.exec_command("true")
        if channel.recv_exit_status():
            raise RuntimeError("true is not true")
        line.close()

    each(hosts.names, visit)


def fabric(hosts: Hosts, asked: argparse.Namespace) -> None:
    """Fabric's ThreadingGroup, used as in its manual."""
    import fabric

    settings = fabric.Config(
        overrides={"run": {"hide": True, "in_stream": False}, "load_ssh_configs": False}
    )
    group = fabric.ThreadingGroup(
        *(hosts.address[name] for name in hosts.names),
        user="root",
        config=settings,
        connect_kwargs={
            "key_filename": str(hosts.lab / "id_ed25519"),
            "look_for_keys": False,
            "allow_agent": False,
        },
    )
    for connection in group:
        connection.client.load_host_keys(str(hosts.lab / "known_hosts"))
        connection.client.set_missing_host_key_policy(paramiko.RejectPolicy())
    results = group.run("bash -c 'echo $EPOCHREALTIME'" if asked.stamp else "true")
    for result in results.values():
        print(result.stdout, end="")
    group.close()


def push_orch(hosts: Hosts, asked: argparse.Namespace) -> None:
    """orch: the files as one transfer per node, verified there by digest."""
    from orchestrator.nodes.fanout import each_or_raise
    from orchestrator.nodes.node import Upload

    files = [
        Upload(f"payload/pushed/{path.name}", path.read_bytes())
        for path in sorted(asked.folder.iterdir())
    ]
    with opened(hosts) as cluster:
        each_or_raise(cluster.nodes, lambda name: cluster.nodes[name].put(files, timeout_s=60))


def push_tar(hosts: Hosts, asked: argparse.Namespace) -> None:
    """Send tar's output through one ssh per node, all at once."""
    archive = subprocess.run(
        ["tar", "-C", str(asked.folder), "-c", "."], stdout=subprocess.PIPE, check=True
    ).stdout

    def send(name: str) -> None:
        command = "rm -rf pushed && mkdir pushed && tar -x -C pushed"
        subprocess.run(hosts.ssh(name, command), input=archive, check=True)

    each(hosts.names, send)


def pull_orch(hosts: Hosts, asked: argparse.Namespace) -> None:
    """orch: as in a bench, which first asks the node what the run has left."""
    from orchestrator.nodes.collect import collect_host
    from orchestrator.nodes.fanout import each_or_raise
    from orchestrator.record.rundir import RunDir

    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    from tests.support.run_folders import manifest

    with opened(hosts) as cluster:
        run = RunDir(asked.folder / "pulled")
        run.write_manifest(manifest("pulled"))
        each_or_raise(
            cluster.nodes, lambda name: cluster.nodes[name].ask("left", run="pulled", timeout_s=30)
        )
        began = time.monotonic()
        each_or_raise(cluster.nodes, lambda name: collect_host(cluster.nodes[name], run))
        print(time.monotonic() - began)


def pull_openssh(hosts: Hosts, asked: argparse.Namespace) -> None:
    """OpenSSH with its fastest cipher, over a persistent connection."""
    kept = [
        "-o",
        "ControlMaster=auto",
        "-o",
        "ControlPersist=60",
        "-o",
        f"ControlPath={asked.folder}/%h",
    ]
    kept += ["-c", "aes128-gcm@openssh.com"]
    each(hosts.names, lambda name: subprocess.run(hosts.ssh(*kept, name, "true"), check=True))

    def pull(name: str) -> None:
        with (asked.folder / f"{name}.log").open("wb") as file:
            subprocess.run(
                hosts.ssh(*kept, name, f"cat {LOG.format(name=name)}"), stdout=file, check=True
            )

    began = time.monotonic()
    each(hosts.names, pull)
    print(time.monotonic() - began)
    each(
        hosts.names,
        lambda name: subprocess.run(hosts.ssh(*kept, "-q", "-O", "exit", name), check=True),
    )


def pull_paramiko(hosts: Hosts, asked: argparse.Namespace) -> None:
    """Paramiko with its defaults: SSHClient and its SFTP."""
    clients = {}

    def connect(name: str) -> None:
        client = clients[name] = paramiko.SSHClient()
        client.load_host_keys(str(hosts.lab / "known_hosts"))
        client.connect(
            name and hosts.address[name],
            username="root",
            pkey=hosts.key,
            look_for_keys=False,
            allow_agent=False,
        )

    each(hosts.names, connect)
    began = time.monotonic()
    each(
        hosts.names,
        lambda name: (
            clients[name].open_sftp().get(LOG.format(name=name), str(asked.folder / f"{name}.log"))
        ),
    )
    print(time.monotonic() - began)
    for client in clients.values():
        client.close()


def opened(hosts: Hosts) -> Any:
    """Return orch's open connections to the hosts."""
    from orchestrator.inventory.read import open_inventory
    from orchestrator.nodes.cluster import Cluster
    from orchestrator.transport import Trust

    inventory = open_inventory(os.environ["ORCH_HOSTS"])
    chosen = [host for host in inventory.hosts if host.name in set(hosts.names)]
    return Cluster(chosen, Trust(hosts.lab / "unused_known_hosts"), inventory.redaction()).open()


CONTENDERS = {
    "cold": cold,
    "fabric": fabric,
    "push-orch": push_orch,
    "push-tar": push_tar,
    "pull-orch": pull_orch,
    "pull-openssh": pull_openssh,
    "pull-paramiko": pull_paramiko,
}


def main() -> None:
    """Run one contender."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("contender", choices=CONTENDERS)
    parser.add_argument(
        "--stamp",
        action="store_true",
        help="print the instant of the start instead of running true",
    )
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("lab", type=Path)
    parser.add_argument("count", type=int)
    asked = parser.parse_args()
    contender = partial(CONTENDERS[asked.contender], Hosts(asked.lab, asked.count), asked)
    if asked.contender.endswith("-orch"):
        from orchestrator.cli.process import at_once

        at_once(contender)  # as `orch` starts and exits
    contender()


if __name__ == "__main__":
    main()
