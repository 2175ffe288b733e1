"""What the node runner reports of its machine: the kernel's words, the driver's, and those of other
programs.
"""

from __future__ import annotations

import hashlib
import os
import pwd
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from noderun import vendor_tools
from noderun.files import root_directory
from noderun.installed import in_environment, program_digest
from noderun.network import infiniband_ports
from orchestrator import procs
from orchestrator.checks.facts import infiniband_gbit, ports_of, unpack_facts
from orchestrator.inventory import Host
from orchestrator.plan.environment import env_file
from tests.support import judge
from tests.support.judge import LIMIT_S
from tests.support.machine import (
    NEEDS_ROOT,
    Machine,
)


@pytest.mark.parametrize(
    ("ports", "gbit"),
    [
        (
            [
                ("4: ACTIVE", "100 Gb/sec (4X EDR)"),
                ("4: ACTIVE", "400 Gb/sec (4X NDR)"),
                ("1: DOWN", "10 Gb/sec (4X SDR)"),
            ],
            500.0,
        ),
        ([("4: ACTIVE", "2.5 Gb/sec (1X SDR)")], 2.5),
        ([("1: DOWN", "100 Gb/sec (4X EDR)")], None),
        ([("4: ACTIVE", "100 Gb/sec (4X EDR)"), ("4: ACTIVE", "")], None),
        ([], None),
    ],
)
def test_the_rates_of_active_ports_are_added_up(
    tmp_path: Path, ports: list[tuple[str, str]], gbit: float | None
) -> None:
    for number, (state, rate) in enumerate(ports):
        folder = tmp_path / f"mlx5_{number}" / "ports" / "1"
        folder.mkdir(parents=True)
        (folder / "state").write_text(f"{state}\n")
        (folder / "rate").write_text(f"{rate}\n")
    assert infiniband_gbit(ports_of(infiniband_ports(str(tmp_path)))) == gbit


def test_gids_that_are_set_are_told_with_their_type_and_unset_ones_are_not(tmp_path: Path) -> None:
    base = tmp_path / "mlx5_bond_0"
    gids = {
        "0": "fe80:0000:0000:0000:0a00:27ff:fe00:0001",
        "2": "fe80" + ":0000" * 7,
        "10": "0000:" * 5 + "ffff:0a0b:0002",
    }
    for index, gid in {**gids, "3": ":".join(["0000"] * 8)}.items():
        for name, text in (
            ("gids", gid),
            ("gid_attrs/types", "RoCE v2"),
            ("gid_attrs/ndevs", "bond0"),
        ):
            (base / "ports/1" / name).mkdir(parents=True, exist_ok=True)
            (base / "ports/1" / name / index).write_text(f"{text}\n")
    (base / "device/net/bond0").mkdir(parents=True)
    (base / "fw_ver").write_text("28.39.1002\n")
    (port,) = infiniband_ports(str(tmp_path))
    assert port["gids"] == [
        [0, gids["0"], "RoCE v2", "bond0"],
        [10, gids["10"], "RoCE v2", "bond0"],
    ]
    assert (port["device"], port["port"], port["firmware"], port["interfaces"]) == (
        "mlx5_bond_0",
        "1",
        "28.39.1002",
        ["bond0"],
    )


def test_partition_keys_that_are_set_are_told_by_their_index(tmp_path: Path) -> None:
    folder = tmp_path / "mlx5_0/ports/1/pkeys"
    folder.mkdir(parents=True)
    for index, key in {0: "0xffff", 1: "0x0000", 10: "0x8001", 2: "0x7fff"}.items():
        (folder / str(index)).write_text(f"{key}\n")
    told = infiniband_ports(str(tmp_path))
    assert told[0]["pkeys"] == [[0, "0xffff"], [2, "0x7fff"], [10, "0x8001"]]
    assert ports_of(told)[0]["pkeys"] == {"0": "0xffff", "2": "0x7fff", "10": "0x8001"}


def asked_for_facts(machine: Machine, **more: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the facts of this machine, and what others told it."""
    request = {
        "python": [sys.executable],
        "probe": "print('{}')",
        "probe_timeout_s": 20,
        "environment": "",
        "ports": [],
        "capture": "c1",
    }
    answer = machine.ask("facts", **request | more)
    return answer["facts"], unpack_facts(answer["told"])


def test_the_way_to_an_address_and_the_limits_are_the_kernels_own(machine: Machine) -> None:
    facts, told = asked_for_facts(machine, peers=["127.0.0.1"])
    assert (facts["route"]["interface"], facts["route"]["local"], facts["route"]["mtu"]) == (
        "lo",
        True,
        int(Path("/sys/class/net/lo/mtu").read_text()),
    )
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    assert facts["limits"]["core"] == [None if value < 0 else value for value in (soft, hard)]
    assert facts["shm_bytes"] == os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize
    assert told["smi"] is None or told["smi"]["code"] is not None
    assert facts["hostname_addresses"] == [
        entry[4][0] for entry in socket.getaddrinfo(facts["hostname"], None, type=1)
    ]


def test_a_name_that_does_not_resolve_has_no_route(machine: Machine) -> None:
    facts, _ = asked_for_facts(machine, peers=["no-such-host.invalid", "127.0.0.1"])
    assert facts["route"] is None and facts["routes"]["127.0.0.1"] == "lo"
    assert facts["unresolved"] == ["no-such-host.invalid"]
    assert "route" not in asked_for_facts(machine)[0]


def with_program(tmp_path: Path, name: str, text: str) -> Machine:
    """Return a machine with a program on its PATH."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / name).write_text(text)
    (tmp_path / "bin" / name).chmod(0o755)
    wrapper = tmp_path / "python"
    wrapper.write_text(f'#!/bin/sh\nPATH={tmp_path}/bin:$PATH exec {sys.executable} "$@"\n')
    wrapper.chmod(0o755)
    return Machine(tmp_path / "work", str(wrapper))


def test_nvidia_smi_is_told_whole_with_the_owners_of_its_processes(tmp_path: Path) -> None:
    rest = f"<pid>{os.getpid()}</pid><pid>0</pid></nvidia_smi_log>"
    clocks = (
        f"<supported_clocks>{'<x>1 MHz</x>' * 30000}</supported_clocks>"  # more than a pipe holds
    )
    (tmp_path / "answer").write_text(f"<nvidia_smi_log>{clocks}{rest}")
    machine = with_program(
        tmp_path,
        "nvidia-smi",
        f'#!/bin/sh\n[ "$1" = -q ] && exec cat {tmp_path}/answer\necho "$@"; exit 3\n',
    )
    told = asked_for_facts(machine)[1]
    assert told["smi"] == {"code": 0, "text": f"<nvidia_smi_log>{rest}"}
    assert told["owners"] == {str(os.getpid()): pwd.getpwuid(os.getuid()).pw_name}
    assert told["topology"] == {"code": 3, "text": "topo -m\n"}
    machine.close()


def test_amds_programs_are_told_with_the_owners_of_their_processes(tmp_path: Path) -> None:
    answer = f'[{{"gpu": 0, "process_list": [{{"process_info": {{"name": "x", "pid": {os.getpid()}}}}}]}}]'
    machine = with_program(
        tmp_path, "amd-smi", f"#!/bin/sh\n[ $1 = process ] && echo '{answer}' || echo \"$@\"\n"
    )
    told = asked_for_facts(machine)[1]
    assert (told["smi"] is None) == (shutil.which("nvidia-smi") is None)
    assert told["amd_static"] == {"code": 0, "text": "static --json\n"}
    assert told["owners"] == {str(os.getpid()): pwd.getpwuid(os.getuid()).pw_name}
    assert "rocm" not in told
    machine.close()


def test_rocm_smi_is_asked_where_there_is_no_amd_smi(tmp_path: Path) -> None:
    machine = with_program(
        tmp_path,
        "rocm-smi",
        f'#!/bin/sh\necho \'{{"system": {{"PID{os.getpid()}": "x, 1, 0"}}}}\'\n',
    )
    told = asked_for_facts(machine)[1]
    assert (told["amd_static"], told["rocm"]["code"]) == (None, 0)
    assert told["owners"] == {str(os.getpid()): pwd.getpwuid(os.getuid()).pw_name}
    machine.close()


def test_an_nvidia_smi_that_hangs_is_left_behind_after_ten_seconds(tmp_path: Path) -> None:
    machine = with_program(tmp_path, "nvidia-smi", "#!/bin/sh\ntrap '' TERM\nexec sleep 1000\n")
    began = time.monotonic()
    told = asked_for_facts(machine)[1]
    assert told["smi"] == {"code": None, "text": ""} and time.monotonic() - began >= 10
    machine.close()


@pytest.mark.parametrize(
    ("records", "lines"),
    [
        (
            ["6,1,1000000,-;eth0: up", "3,2,2500000,-;NVRM: Xid (PCI:0000:3b:00): 79, x"],
            ["NVRM: Xid (PCI:0000:3b:00): 79, x"],
        ),
        ([f"3,{n},1000000,-;NVRM: {n}" for n in range(50)], [f"NVRM: {n}" for n in range(10, 50)]),
    ],
)
def test_the_last_lines_of_the_driver_are_told_with_their_age(
    monkeypatch: pytest.MonkeyPatch, records: list[str], lines: list[str]
) -> None:
    # A record is read whole by each read of the device; a socket that keeps boundaries does the
    # same.
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for record in records:
        ours.send(f"{record}\n SUBSYSTEM=pci\n".encode())
    ours.close()
    monkeypatch.setattr(
        vendor_tools,
        "os",
        SimpleNamespace(**{**vars(os), "open": lambda path, flags: os.dup(theirs.fileno())}),
    )
    before = time.monotonic()
    found = vendor_tools.kernel_log("NVRM: ")
    assert [text for _, text in found["lines"]] == lines and found["total"] == sum(
        "NVRM: " in one for one in records
    )
    said = int(records[-1].split(",")[2]) / 1e6
    assert before - 0.1 <= found["lines"][0][0] + said <= time.monotonic() + 0.1
    theirs.close()


def test_a_kernel_log_that_is_closed_to_us_says_why(tmp_path: Path) -> None:
    assert vendor_tools.kernel_log("NVRM: ", str(tmp_path / "none")) == {
        "closed": "No such file or directory"
    }


@pytest.mark.parametrize("spares", [True, False])
def test_what_setup_lines_leave_in_the_background_is_not_waited_for(
    tmp_path: Path, spares: bool
) -> None:
    """It keeps the outputs open; a question about the interpreter ends it, an engine's stays."""
    setup = f"sleep 600 & echo $! >{tmp_path}/left\n"
    text = b"x" * 300_000
    code, out, err = in_environment(setup, ["/bin/cat"], 50, text, spares=spares)
    assert (code, out, err) == (0, text.decode(), "")
    pid = int((tmp_path / "left").read_text())
    if spares:
        assert pid in procs.snapshot()
        os.kill(pid, signal.SIGKILL)
    judge.wait_for(lambda: pid not in procs.snapshot(), 50, "it is left")


def test_setup_lines_that_print_without_end_reach_their_time_limit() -> None:
    with pytest.raises(TimeoutError):
        in_environment("yes\n", ["/bin/true"], 1)


def test_what_a_program_started_ends_with_it_and_its_output_has_a_limit(tmp_path: Path) -> None:
    """As a script of a site around nvidia-smi, which waits for a driver that does not answer."""
    hangs = f"echo half; sleep 600 & echo $! >{tmp_path}/child.new; mv {tmp_path}/child.new {tmp_path}/child; wait"
    leaves = f"sleep 600 & echo $! >{tmp_path}/left; echo all"
    started = {
        name: vendor_tools.begin(["/bin/sh", "-c", text], str(tmp_path))
        for name, text in (("hangs", hangs), ("leaves", leaves), ("endless", "exec yes"))
    }
    judge.wait_for((tmp_path / "child").exists, 60, "it does not start")
    endless = vendor_tools.collect_output(started["endless"], 100)
    assert endless["code"] == -signal.SIGXFSZ and set(endless["text"]) == {"y", "\n"}
    assert vendor_tools.collect_output(started["leaves"], 100) == {"code": 0, "text": "all\n"}
    assert vendor_tools.collect_output(started["hangs"], 0) == {"code": None, "text": "half\n"}
    assert started["hangs"][0].wait() == -signal.SIGKILL
    for name in ("child", "left"):
        pid = int((tmp_path / name).read_text())
        judge.wait_for(lambda pid=pid: pid not in procs.snapshot(), 50, f"{name} is left")
    assert list(tmp_path.glob(".told*")) == []


def test_a_home_that_is_not_there_is_refused_and_not_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "none"))
    with pytest.raises(
        Exception, match=rf"{tmp_path}/none does not exist; create it, or set vars.workdir"
    ):
        root_directory("~/.orch-node")
    assert list(tmp_path.iterdir()) == []


def test_programs_are_compared_by_what_their_python_files_hold(tmp_path: Path) -> None:
    digest = program_digest
    for copy in ("a", "b"):
        (tmp_path / copy / "pkg").mkdir(parents=True)
        for name, text in (
            ("main.py", "import pkg"),
            ("pkg/__init__.py", ""),
            ("pkg/x.py", "1"),
            ("notes.txt", copy),
        ):
            (tmp_path / copy / name).write_text(text)
    os.mkfifo(tmp_path / "b" / "pipe.py")
    (tmp_path / "b" / "loop").symlink_to(tmp_path / "b")
    whole = digest(str(tmp_path / "a"))
    assert whole == digest(str(tmp_path / "b")) and len(whole) == 64
    (tmp_path / "b" / "pkg" / "x.py").write_text("2")
    assert digest(str(tmp_path / "b")) != whole
    assert digest(str(tmp_path / "a" / "main.py")) == hashlib.sha256(b"import pkg").hexdigest()
    assert digest(str(tmp_path / "none")) is None


@NEEDS_ROOT
@pytest.mark.skipif(
    not Path("/usr/bin/python3").exists(), reason="needs an interpreter that everybody may start"
)
def test_a_program_that_cannot_be_read_is_told_with_its_path_among_the_facts(
    open_home: Path,
) -> None:
    node = Machine(open_home / "work", python="/usr/bin/python3", user=65534)
    program = open_home / "program"
    program.mkdir()
    (program / "main.py").write_text("1")
    (program / "other.py").touch(mode=0o000)
    facts, _ = asked_for_facts(node, programs=[str(program)])
    assert facts["programs"] == {str(program): {"error": f"{program}/other.py: Permission denied"}}
    node.close()


@NEEDS_ROOT
def test_a_work_directory_that_cannot_be_written_is_told_among_the_facts(machine: Machine) -> None:
    machine.root.mkdir(mode=0o700)
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "ro,mode=0700", "tmpfs", str(machine.root)],
        check=True,
        timeout=LIMIT_S,
    )
    try:
        facts, told = asked_for_facts(machine)
        assert (facts["workdir"], facts["disk_error"]) == (
            str(machine.root),
            "Read-only file system",
        )
        assert "kernel_log" in told
    finally:
        subprocess.run(["umount", "-l", str(machine.root)], check=True, timeout=LIMIT_S)


@NEEDS_ROOT
@pytest.mark.parametrize(
    ("mode", "owner", "words"),
    [
        (0o755, 0, ""),
        (0o1777, 0, ""),
        (0o777, 0, "others may write to {folder} (mode 0777)"),
        (0o775, 0, "others may write to {folder} (mode 0775)"),
        (0o755, 65534, "{folder} belongs to nobody"),
    ],
)
def test_a_work_directory_that_another_user_may_rename_is_told_among_the_facts(
    tmp_path: Path, mode: int, owner: int, words: str
) -> None:
    folder = tmp_path / "scratch"
    (folder / "inner").mkdir(parents=True)
    os.chown(folder, owner, 65534)
    folder.chmod(mode)
    node = Machine(folder / "inner" / "work")
    facts, _ = asked_for_facts(node)
    assert facts["workdir_open"] == words.format(folder=folder)
    node.close()


@NEEDS_ROOT
def test_a_link_on_the_way_to_a_work_directory_that_another_user_may_rename_is_told(
    tmp_path: Path,
) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "open" / "link").symlink_to("../own")
    (tmp_path / "way").symlink_to("open/link")
    node = Machine(tmp_path / "way" / "work")
    facts, _ = asked_for_facts(node)
    assert facts["workdir_open"] == f"others may write to {tmp_path}/open (mode 0777)"
    node.close()


def test_the_interpreter_is_asked_in_the_environment_of_a_run(
    machine: Machine, tmp_path: Path
) -> None:
    python = tmp_path / "bin/python"
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    probe = "import json, os, shutil; print('noise'); print(json.dumps([shutil.which('python'), os.environ['B']]))"

    def framework(*setup: str) -> Any:
        host = Host(
            "n", "10.0.0.1", env={"PATH": f"{python.parent}:$PATH"}, vars={"setup": list(setup)}
        )
        environment = "set -eu\n" + env_file(None, host, {})
        return asked_for_facts(machine, python=["python"], probe=probe, environment=environment)[0][
            "framework"
        ]

    assert framework("read line || true", "export B=$UNSET") == [str(python), ""]
    # Nothing can be read, least of all the shell text itself.
    assert framework("read line") == {"error": "setup: line 1 (read line) ended with exit code 1"}
    (error,) = framework("module load cuda").values()
    assert error.endswith(" ended with exit code 127; before it: module: command not found"), error


@pytest.mark.parametrize(
    ("python", "said"),
    [
        ("/no/such/python", "No such file or directory"),
        ("no-such-python", "not found"),
        ("/etc/passwd", "Permission denied"),
    ],
)
def test_an_interpreter_that_does_not_start_is_named_once(
    machine: Machine, python: str, said: str
) -> None:
    error = asked_for_facts(machine, python=[python])[0]["framework"]["error"]
    assert error.startswith(f"{python}: ") and error.endswith(said) and error.count(python) == 1


def test_a_probe_that_does_not_end_is_killed_with_its_children(
    machine: Machine, tmp_path: Path
) -> None:
    child = tmp_path / "child"
    setup = f"sleep 300 & echo $! > {child}\nwait\n"
    facts, _ = asked_for_facts(machine, environment=setup, probe_timeout_s=0.5)
    assert facts["framework"]["error"].endswith("did not answer within 0.5 s")
    judge.wait_for(
        lambda: not Path(f"/proc/{child.read_text().strip()}").exists(), 5, "the child lives"
    )
