"""A lab as text: its one-line description for people, and its inventory for `orch`."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Mapping

from orchestrator.errors import ConfigError
from orchestrator.lab.identity import login_user
from orchestrator.lab.machine import PRIVATE
from orchestrator.lab.programs import find
from orchestrator.lab.state import Lab

_GPU_SETTINGS = ("NCCL_", "TORCH_NCCL_", "TORCH_SYMM_MEM_", "NVSHMEM_")


def gpus_for_each(nodes: int, per_node: int | None) -> int:
    """Return how many of this machine's GPUs each node gets; 0 means that nodes are measured on
    their CPU.

    ``per_node`` None distributes all GPUs evenly. Raises ConfigError if the machine has too few.
    """
    if per_node == 0:
        return 0
    present = _gpus()
    if per_node is None:
        return present // nodes
    if per_node < 0 or present < nodes * per_node:
        raise ConfigError(
            f"lab gpus per node: expected {nodes} x {per_node} GPUs, this machine has {present}",
            hint="lower the number of nodes, or use CPU slots with 0",
        )
    return per_node


def _gpus() -> int:
    try:
        program = find("nvidia-smi")
    except ConfigError:
        return 0
    listed = subprocess.run(
        [program, "-L"], capture_output=True, text=True, timeout=60, check=False
    )
    if listed.returncode != 0:
        return 0
    return len(re.findall(r"^GPU \d+:", listed.stdout, re.MULTILINE))


def gpu_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that control communication between this machine's GPUs, such as
    NCCL_NVLS_ENABLE=0.

    They apply to the nodes as well, but sshd does not pass them on.
    """
    return {
        name: value for name, value in sorted(environment.items()) if name.startswith(_GPU_SETTINGS)
    }


def describe(lab: Lab, gpus: int, slots: int) -> str:
    """Return one line that describes a lab that is up."""
    isolation = {
        "namespaces": "in separate network namespaces with sshd, no route out",
        "loopback": "on this machine's loopback with sshd as this user; they share files and ports",
        "machines": "machines of qemu, with sshd and soft RoCE, no route out",
        "asyncssh": "on this machine's loopback with a Python SSH server, not OpenSSH; they share files and ports",
    }
    ends = " to ".join(dict.fromkeys((lab.nodes[0].address, lab.nodes[-1].address)))
    devices = _count(gpus, "GPU") if gpus else _count(slots, "CPU slot")
    extras = (", and Slurm" if lab.slurm else "") + (", and pods" if lab.pods else "")
    return f"{_count(len(lab.nodes), 'node')} of {devices}, {ends} port {lab.nodes[0].port}, {isolation[lab.kind]}{extras}"


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}s" if count > 1 else f"{count} {noun}"


def inventory_text(
    lab: Lab, *, gpus: int, slots: int, settings: Mapping[str, str], workdir: str = ""
) -> str:
    """Return the lab's inventory in the project's YAML. Every value is written as JSON, which YAML
    contains.

    ``settings``: variables of nodes that have GPUs; ``workdir``: orch's folder on nodes, if it is
    not in their homes.
    """
    interface = "eth0" if lab.in_namespaces else "lo"
    ssh = {
        "user": login_user(lab),
        "port": lab.nodes[0].port,
        "key": str(lab.directory / "id_ed25519"),
        "known_hosts": str(lab.directory / "known_hosts"),
        "config": str(lab.ssh_config),
    }
    variables = {
        "interface": interface,
        "python": shlex.quote(lab.python),
        "runner_python": shlex.quote(lab.python),
    }
    if workdir:
        variables["workdir"] = workdir
    if lab.in_namespaces:
        variables["lab_private"] = " ".join(PRIVATE)
    return "".join(
        [
            "# Written by `orch lab up`, removed by `orch lab down`.\n",
            "schema: 1\n",
            "defaults:\n",
            f"  gpus: {gpus}\n  slots: {slots}\n",
            *_block("ssh", ssh),
            *_block("vars", variables),
            "hosts:\n",
            *(_host(lab, index, gpus, interface, settings) for index in range(len(lab.nodes))),
        ]
    )


def _block(name: str, values: Mapping[str, object]) -> list[str]:
    return [f"  {name}:\n", *(f"    {key}: {json.dumps(value)}\n" for key, value in values.items())]


def _host(lab: Lab, index: int, gpus: int, interface: str, settings: Mapping[str, str]) -> str:
    """Return a host's lines. NCCL treats nodes that share a kernel as one host unless each has its
    own NCCL_HOSTID.
    """
    node = lab.nodes[index]
    text = f"  {node.name}:\n    address: {node.address}\n"
    if gpus:
        devices = ",".join(map(str, range(index * gpus, (index + 1) * gpus)))
        text += f"    env: {json.dumps({**settings, 'NCCL_HOSTID': node.name, 'NCCL_SOCKET_IFNAME': interface})}\n"
        text += f"    vars: {json.dumps({'cuda_visible_devices': devices})}\n"
    return text
