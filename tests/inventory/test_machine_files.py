"""Hosts as an expression and as machine files of schedulers: what they mean, and why one is
refused.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import Faults
from orchestrator.inventory.hosts import SshSettings
from orchestrator.inventory.hostset import expand
from orchestrator.inventory.machine_files import from_expression
from orchestrator.inventory.read import open_inventory
from tests.support.inventories import faults_of, read


@pytest.mark.parametrize(
    ("expression", "hosts"),
    [
        ("10.11.0.[2-3]", "10.11.0.2 10.11.0.3"),
        ("10.11.0.2-3", "10.11.0.2 10.11.0.3"),
        ("b,a,b", "b a"),
        ("node1,node[1-2]", "node1 node2"),
        ("fd00::1", "fd00--1"),
        ("localhost", "localhost"),
    ],
)
def test_an_expression_is_an_inventory_without_counts(expression: str, hosts: str) -> None:
    inventory = from_expression(expression)
    assert [host.name for host in inventory.hosts] == hosts.split()
    assert {(host.gpus, host.ssh) for host in inventory.hosts} == {(None, SshSettings())}
    assert inventory.source == expression


def test_hosts_may_be_written_with_their_user() -> None:
    inventory = from_expression("me@node[1-2],you@n9")
    assert [(host.name, host.ssh.user) for host in inventory.hosts] == [
        ("node1", "me"),
        ("node2", "me"),
        ("n9", "you"),
    ]
    hosts = read("me@node1 slots=8\nnode2\n").hosts
    assert [(host.name, host.ssh.user, host.gpus) for host in hosts] == [
        ("node1", "me", 8),
        ("node2", None, None),
    ]


def test_a_machine_file_with_a_line_for_each_slot_names_each_host_once() -> None:
    hosts = read("node1\nnode1\nnode2\nnode2\n").hosts  # as PBS writes it
    assert [(host.name, host.slots, host.gpus) for host in hosts] == [
        ("node1", 2, None),
        ("node2", 2, None),
    ]


def test_a_number_after_the_colon_is_a_port_where_it_cannot_be_slots() -> None:
    text = "me@gpu[01-02]:2222, root@[fd00::1]:22, c:4022, d:8, ann@e"
    for hosts in (from_expression(text).hosts, read(text.replace(", ", "\n") + "\n").hosts):
        assert [(host.name, host.address, host.ssh.user, host.ssh.port, host.gpus) for host in hosts] == [
            ("gpu01", "gpu01", "me", 2222, None), ("gpu02", "gpu02", "me", 2222, None),
            ("fd00--1", "fd00::1", "root", 22, None), ("c", "c", None, 4022, None), ("d", "d", None, None, 8),
            ("e", "e", "ann", None, None),
        ]  # fmt: skip


def test_ports_of_one_address_are_machines_with_names_of_their_own() -> None:
    hosts = from_expression("root@10.0.0.1:2201,root@10.0.0.1:2202,root@10.0.0.2:2201").hosts
    assert [(host.name, host.address, host.ssh.port) for host in hosts] == [
        ("10.0.0.1-2201", "10.0.0.1", 2201), ("10.0.0.1-2202", "10.0.0.1", 2202), ("10.0.0.2", "10.0.0.2", 2201),
    ]  # fmt: skip


def test_a_port_that_would_read_as_the_end_of_a_range_of_addresses_is_called_a_port() -> None:
    hosts = from_expression("root@10.0.0.1:22,root@10.0.0.1:2201,root@n1:22,root@n1:23").hosts
    assert [(host.name, host.address, host.ssh.port) for host in hosts] == [
        ("10.0.0.1-port22", "10.0.0.1", 22), ("10.0.0.1-2201", "10.0.0.1", 2201), ("n1-22", "n1", 22), ("n1-23", "n1", 23),
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["root@:22", "root@[]:22", "root@"])
def test_a_user_without_a_host_is_refused(text: str) -> None:
    with pytest.raises(Faults, match="expected a host, got an empty text"):
        from_expression(text)


@pytest.mark.parametrize(
    "text",
    [
        "n1\nn1\nn2\n",  # $PBS_NODEFILE and $LSB_DJOB_HOSTFILE
        "n1 2 n2 1\n",  # $LSB_MCPU_HOSTS
        "n1 n1 n2",  # $LSB_HOSTS
    ],
)
def test_machine_files_of_schedulers_count_slots_and_leave_gpus_to_be_asked(
    text: str, tmp_path: Path
) -> None:
    path = tmp_path / "1234.server"
    path.write_text(text)
    inventories = [open_inventory(str(path))] if "\n" in text else []
    for inventory in [*inventories, *([open_inventory(text.strip())] if " " in text else [])]:
        assert [(host.name, host.slots, host.gpus) for host in inventory.hosts] == [
            ("n1", 2, None),
            ("n2", 1, None),
        ]


def test_spaces_around_the_equals_sign_of_slots_are_read() -> None:
    assert [
        (host.name, host.gpus) for host in read("n1 slots = 4 max_slots=8\nn2 slots= 2\n").hosts
    ] == [("n1", 4), ("n2", 2)]


def test_an_expression_may_count_gpus_as_horovod_does() -> None:
    inventory = from_expression("a:8,gpu[1-2]:4,c")
    assert [(host.name, host.gpus) for host in inventory.hosts] == [
        ("a", 8),
        ("gpu1", 4),
        ("gpu2", 4),
        ("c", None),
    ]


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("@lab", "a group and no inventory that holds it"),
        ("me@", "expected a host, got an empty text"),
        ("node1:22", "a number after the colon counts slots"),
        ("node1:0", "slots as a whole number from 1 to 1024"),
        ("[fd00::1]", "without brackets"),
        ("node[1-", "paired brackets"),
        ("a b,c", "without spaces"),
        ("me@a:0", "expected a port from 1 to 65535, got 0"),
        ("me@a:70000", "expected a port from 1 to 65535, got 70000"),
        ("-oProxyCommand=x", "letters, digits"),
        ("../x", "letters, digits"),
        ("SLURM", "got a word for those of a job. did you mean slurm, in small letters?"),
        ("pod:app=x", "got labels of pods. did you mean pods:app=x?"),
        ("", "empty text"),
        ("a,,b", "each side of a comma"),
    ],
)
def test_a_bad_expression_makes_no_inventory(expression: str, message: str) -> None:
    (fault,) = faults_of(lambda: from_expression(expression))
    assert message in fault
    assert fault.startswith(f"--hosts {expression!r}: ")


@given(st.integers(1, 99), st.integers(0, 99))
def test_a_list_is_the_expression_that_it_folds_to(first: int, more: int) -> None:
    names = expand(f"gpu[{first}-{first + more}]")
    listed = read("\n".join(names) + "\n")
    assert (
        [host.name for host in listed.hosts]
        == names
        == [host.name for host in from_expression(",".join(names)).hosts]
    )


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("rank 0=nodea slot=0:0-3\nrank 1=+n1 slot=1\n", "a rankfile of Open MPI"),
        ("# ranks\nrank 0 = nodea slot=0:0-3  # first\n", "a rankfile of Open MPI"),
        (
            "node1 8 all.q@node1 UNDEFINED\nnode2 8 all.q@node2 <NULL>\n",
            "$PE_HOSTFILE of Grid Engine",
        ),
        ("host1 0,1,2,3\nhost2 4,5,6,7\n", "$LSB_AFFINITY_HOSTFILE of LSF"),
        (
            "NodeName=n1 Arch=x86_64 CoresPerSocket=32\n   CPUAlloc=0 CPUTot=64\n",
            "records of Slurm",
        ),
        (
            "NodeName=n[1-4] Gres=gpu:8 State=UNKNOWN\nPartitionName=gpu Nodes=ALL\n",
            "records of Slurm",
        ),
        ("(node1:ncpus=8:ngpus=2)+(node2:ncpus=8:ngpus=2)\n", "exec_vnode of PBS"),
        ("node1/0+node1/1+node2/0\n", "exec_host of PBS"),
        ("node1 rack=3,gpus=8,compute\nnode2 all\n", "a genders file"),
        ("# nodes\nGresTypes=gpu\nNodeName=n[1-4] NodeAddr=10.0.0.[1-4]\n", "records of Slurm"),
        (
            "Include ~/.ssh/more\nHost *\n  ServerAliveInterval 30\n  Port=22\n",
            "an ssh configuration",
        ),
        ("PARTITION AVAIL NODES STATE NODELIST\ngpu* up 2 idle n[1-2]\n", "a table"),
        ("n1 1 gpu* idle\nn2 1 gpu* drain\n", "a table"),
        ("n1:8 ib0\nn2:8 ib0\n", "a table"),
        ("10.0.0.8/30\n", "a network"),
        ('["n1", "n2"]\n', "a list in JSON"),
        ('[\n  {"name": "n1", "ip": "10.0.0.1"}\n]\n', "a list in JSON"),
        ("node[1-4] compute,gpu\n", "a genders file"),
        ("10.0.0.1 node1 node1.site\n10.0.0.2 node2\n", "addresses with names"),
        ("Host node1\n  HostName 10.0.0.1\n  User me\n", "an ssh configuration"),
        ("node1,10.0.0.1,8\nnode2,10.0.0.2,8\n", "a table"),
        ("name,address,gpus\nnode1,10.0.0.1,8\n", "a table"),
        ("node1,10.0.0.1\nnode2,10.0.0.2\n", "a table"),
        ("NODELIST NODES PARTITION STATE\nn1 1 gpu idle\n", "a table"),
        ("local 0\nnode1 1 /home/me/a.out\n", "a procgroup of MPICH"),
    ],
)
def test_a_file_of_another_tool_is_refused_by_its_name(text: str, name: str) -> None:
    (fault,) = faults_of(lambda: read(text, "hosts.txt"))
    assert fault.startswith(f"hosts.txt: expected a list of hosts, got {name}") and ". " in fault


def test_groups_of_clustershell_with_groups_in_them_are_named() -> None:
    (fault,) = faults_of(lambda: read("# local.cfg\nnodes: node[1-4]\nall: @nodes\n", "local.cfg"))
    assert fault.startswith("local.cfg: expected hosts, got groups of ClusterShell. pass what")


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("a slot=8\nb slot=8\n", "got slot=. did you mean slots=8?"),
        ("a cpus=8\n", "got cpus=. did you mean slots=8?"),
        ("node1 np=8\n", "got np=. did you mean slots=8?"),
        (
            "node1:8 binding=map=0,2\nnode2:8 binding=map=0,2\n",
            "got binding=. orch places and binds ranks itself",
        ),
        ("node1:4 user=bob\n", "got user=. write the user before the host: bob@node1"),
        ("node1:4 ifname=eth1\n", "got ifname=. leave ifname= out"),
        ("node1:4 ifhn=node1-ib\n", "got ifhn=. leave ifhn= out; vars.interface"),
        ("a slot=8\nb Slots=8\n", "did you mean slots=8?"),
        ("a SLOTS=8\n", "got SLOTS=. did you mean slots=8?"),
        ("a solts=8\n", "got solts=. did you mean slots=8?"),
        ("a slots=8 max-slot=16\n", "got max-slot=. did you mean max-slots=16?"),
        ("a slots=8 slots=4\n", "expected one value of slots, got 8 and 4"),
        ("a slots=8 max_slots=4\n", "expected max_slots=8 or more, got 4"),
        (
            "node1:8:mlx5_0\n",
            "got 'node1:…'. a number of slots stands after a colon, and nothing else",
        ),
        ("node1:hunter2\n", "expected a host name, or host:slots, got 'node1:…'"),
        ("node1*4\n", "expected a host name"),
        ("^node1\n", "expected a host name"),
        ("8/node1\n", "expected a host"),
    ],
)
def test_a_setting_that_is_not_understood_is_not_lost(text: str, hint: str) -> None:
    assert all(hint in fault or "got binding" in fault for fault in faults_of(lambda: read(text)))


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("node1:8\nnode2:8\n", [("node1", 8, None), ("node2", 8, None)]),
        ("worker-1 slots=4\nworker-2 slots=4\n", [("worker-1", 4, None), ("worker-2", 4, None)]),
        ("gpu[01-02]\n", [("gpu01", None, None), ("gpu02", None, None)]),
        ("a slots=8 max-slots=16\n", [("a", 8, None)]),
    ],
)
def test_what_is_understood_is_read_as_before(
    text: str, hosts: list[tuple[str, int | None, int | None]]
) -> None:
    assert [(host.name, host.gpus, host.ssh.port) for host in read(text).hosts] == hosts
