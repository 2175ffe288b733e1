"""The node runner on its own, spoken to as ssh would: what it refuses, what it starts, and that nothing outlives it."""

from __future__ import annotations

import hashlib
import io
import json
import os
import pwd
import re
import resource
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from noderun import groups, told
from noderun.files import root_directory
from noderun.installed import program_digest
from noderun.network import infiniband_ports
from orchestrator.library import rank_source, runner_source
from orchestrator.node import _BOOT, _LEADER
from orchestrator.nodefacts import infiniband_gbit, ports_of, unpacked
from tests import judge

BOOT = "import sys;exec(sys.stdin.buffer.read(int(sys.argv[1])))"
NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="mounting and giving files away need root")
pytestmark = pytest.mark.timeout(60)


def _old_interpreters() -> list[str]:
    """Return an interpreter of each version from 3.6 on that this machine has, this one included."""
    folders = [Path(entry) for entry in os.environ.get("PATH", "").split(os.pathsep)]
    folders += sorted((Path.home() / ".pyenv" / "versions").glob("3.*/bin"))
    found: dict[tuple[int, int], str] = {}
    for folder in folders:
        for path in sorted(folder.glob("python3.*")) if folder.is_dir() else []:
            match = re.fullmatch(r"python3\.(\d+)", path.name)
            if match and int(match[1]) >= 6 and os.access(path, os.X_OK):
                probe = [str(path), "-I", "-S", "-c", "import sys; print(*sys.version_info[:2])"]
                done = subprocess.run(probe, capture_output=True, text=True, timeout=20, check=False)
                if done.returncode == 0:
                    major, minor = map(int, done.stdout.split())
                    found.setdefault((major, minor), str(path))
    found.setdefault(sys.version_info[:2], sys.executable)
    return [path for _, path in sorted(found.items())]


@dataclass(slots=True)
class Line:
    """One call of the runner through a pair of pipes: events come out, orders go in."""

    process: subprocess.Popen[bytes]
    buffer: bytearray = field(default_factory=bytearray)

    def send(self, data: bytes) -> None:
        assert self.process.stdin
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def order(self, do: str, **fields: Any) -> None:
        self.send(json.dumps({**fields, "do": do}).encode() + b"\n")

    def read_line(self, within_s: float = 10.0) -> dict[str, Any]:
        while b"\n" not in self.buffer:
            self.more(within_s)
        line, _, rest = bytes(self.buffer).partition(b"\n")
        self.buffer[:] = rest
        value: dict[str, Any] = json.loads(line)
        return value

    def read(self, count: int) -> bytes:
        while len(self.buffer) < count:
            self.more(10.0)
        data = bytes(self.buffer[:count])
        del self.buffer[:count]
        return data

    def more(self, within_s: float) -> None:
        assert self.process.stdout
        ready = select.select([self.process.stdout], [], [], within_s)[0]
        assert ready, f"nothing within {within_s:g} s, so far {bytes(self.buffer)!r}"
        data = os.read(self.process.stdout.fileno(), 65536)
        assert data, f"the line ended, after {bytes(self.buffer)!r}"
        self.buffer += data

    def wait_for(self, event: str, within_s: float = 10.0) -> dict[str, Any]:
        """Return the next event of that name; others are passed over."""
        deadline = time.monotonic() + within_s
        while True:
            found = self.read_line(max(0.1, deadline - time.monotonic()))
            if found.get("event") == event or (event == "error" and "error" in found):
                return found

    def close(self) -> None:
        for stream in (self.process.stdin, self.process.stdout):
            assert stream
            try:
                stream.close()
            except BrokenPipeError:
                continue
        self.process.wait(10)


def children_of(process: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


@dataclass(slots=True)
class Machine:
    """A work directory and the runner over it: a node without the network. ``mark`` tells it from others of this machine,
    its own work directory if not given; ``user`` is who logs in."""

    root: Path
    python: str = sys.executable
    mark: str = ""
    user: int | None = None
    lines: list[Line] = field(default_factory=list)
    runs: list[str] = field(default_factory=list)

    def call(self, op: str, **request: Any) -> Line:
        """Start one operation; the answer's mark is taken off."""
        source = runner_source()
        argv = [self.python, "-I", "-S", "-u", "-c", BOOT, str(len(source))]
        process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            env={"PATH": os.environ["PATH"], "ORCH_LAB_NODE": self.mark or str(self.root)},
            user=self.user,
        )
        line = Line(process)
        self.lines.append(line)
        header = {"root": str(self.root), **request, "op": op, "nonce": "n0nce"}
        line.send(source + json.dumps(header).encode() + b"\n")
        assert line.read(len(b"ORCH n0nce\n")) == b"ORCH n0nce\n"
        return line

    def ask(self, op: str, **request: Any) -> dict[str, Any]:
        """Return the one line that answers an operation."""
        line = self.call(op, **request)
        answer = line.read_line(30.0)
        line.close()
        return answer

    def put(self, *files: tuple[str, bytes, int]) -> dict[str, Any]:
        """Send files as (path, content, mode); return the last answer."""
        listing = [
            {"path": path, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest(), "mode": mode}
            for path, content, mode in files
        ]
        line = self.call("put", files=listing)
        answer = line.read_line()
        if "missing" in answer:
            try:
                for index in answer["missing"]:
                    line.send(files[index][1])
            except BrokenPipeError:
                pass
            answer = line.read_line()
        line.close()
        return answer

    def stage(self, run: str, script: str) -> dict[str, str]:
        """Put the wrapper of ranks and a launch script in place; return the digests of the run's files."""
        if run not in self.runs:
            self.runs.append(run)
        answer = self.put(
            ("payload/x/rank_wrapper.py", rank_source(), 0o600),
            (f"runs/{run}/launch.sh", script.encode(), 0o700),
        )
        assert answer == {"done": True}, answer
        return {"launch.sh": hashlib.sha256(script.encode()).hexdigest()}

    def keeper(self, run: str, *, start: bool = True) -> Line:
        line = self.call("line", run=run, start=start, wait_s=5, stay=True)
        assert line.read_line()["event"] == "hello"
        return line

    def arm(self, line: Line, run: str, files: dict[str, str], **changes: Any) -> None:
        order = {
            "run_id": run, "node_rank": 0, "argv": ["/bin/bash", "launch.sh"], "files": files, "ports": [], "lease_s": 20,
            "limit_s": 60, "variables": "export SECRET=1\n", "grace_s": 0.5,
            "output_limit_bytes": 1 << 30, "owner": {"user": "me", "run_id": run},
        }  # fmt: skip
        line.order("arm", **(order | changes))

    def start(self, run: str, script: str, **changes: Any) -> Line:
        """Stage, arm and start a run; return the line to its keeper."""
        files = self.stage(run, script)
        line = self.keeper(run)
        self.arm(line, run, files, **changes)
        line.wait_for("armed")
        line.order("go", at=None)
        line.wait_for("started")
        return line

    def close(self) -> None:
        """End every line, and find nothing of any run left."""
        for line in self.lines:
            line.process.kill()
            for stream in (line.process.stdin, line.process.stdout, line.process.stderr):
                assert stream
                try:
                    stream.close()
                except BrokenPipeError:
                    continue
            line.process.wait(10)
        deadline = time.monotonic() + 3
        while (left := self.left()) and time.monotonic() < deadline:
            time.sleep(0.05)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        assert not left, "processes of the test's runs were left"

    def left(self) -> list[int]:
        return [pid for run in self.runs for pid in (*bearing(run), *keepers(self.folder(run)))]

    def folder(self, run: str) -> Path:
        return self.root / "runs" / run

    def wait_for_log(self, run: str, name: str, content: bytes) -> None:
        """Wait until a log holds exactly this."""
        path = self.folder(run) / "logs" / name
        judge.wait_for(lambda: path.exists() and path.read_bytes() == content, 5, f"{path} does not come")

    def record(self, run: str) -> dict[str, Any]:
        value: dict[str, Any] = json.loads((self.folder(run) / "exit.json").read_text())
        return value


def bearing(run: str) -> list[int]:
    """Return the processes whose environment names the run, by our own look into /proc; defunct ones have none."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if f"ORCH_RUN_ID={run}\0".encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def keepers(folder: Path) -> list[int]:
    """Return the keepers of a run directory."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                at = str((entry / "cwd").readlink()).removesuffix(" (deleted)")
                if (entry / "comm").read_text() == "orch-keeper\n" and at == str(folder.resolve()):
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path / "work")
    yield made
    made.close()


@pytest.fixture
def open_home() -> Iterator[Path]:
    """A folder of the user nobody, who cannot come to those that pytest makes."""
    path = Path(tempfile.mkdtemp(dir="/tmp"))
    os.chown(path, 65534, 65534)
    yield path
    shutil.rmtree(path)


RUN = f"run-{os.getpid()}"
SLEEP = "#!/bin/bash\nexec sleep 1000\n"


def rank(code: str, number: int = 0) -> str:
    """Return the lines of a launch script that start Python code as a rank."""
    wrapper = f"{sys.executable} -I -S ../../payload/x/rank_wrapper.py --"
    return f"RANK={number} LOCAL_RANK={number} {wrapper} {sys.executable} -c '{code}'"


COUNTS = """#!/bin/bash
# Two GPUs, whose counters of five reasons grow while the run goes on.
[ "$3" = --id=0,1 ] || exit 6
if [ -e asked ]; then printf '900, 0, 70, 0, 0\\n5000, 0, 60, 0, 0\\n'; exit; fi
touch asked
printf '100, 0, 50, 0, 0\\n200, 0, 60, 0, 0\\n'
"""
OLD = """#!/bin/bash
echo 'Field "clocks_event_reasons_counters.sw_power_cap" is not a valid field to query.'; exit 2
"""


@pytest.mark.parametrize(
    ("ports", "gbit"),
    [
        (
            [("4: ACTIVE", "100 Gb/sec (4X EDR)"), ("4: ACTIVE", "400 Gb/sec (4X NDR)"), ("1: DOWN", "10 Gb/sec (4X SDR)")],
            500.0,
        ),
        ([("4: ACTIVE", "2.5 Gb/sec (1X SDR)")], 2.5),
        ([("1: DOWN", "100 Gb/sec (4X EDR)")], None),
        ([("4: ACTIVE", "100 Gb/sec (4X EDR)"), ("4: ACTIVE", "")], None),
        ([], None),
    ],
)
def test_the_rates_of_active_ports_are_added_up(tmp_path: Path, ports: list[tuple[str, str]], gbit: float | None) -> None:
    for number, (state, rate) in enumerate(ports):
        folder = tmp_path / f"mlx5_{number}" / "ports" / "1"
        folder.mkdir(parents=True)
        (folder / "state").write_text(f"{state}\n")
        (folder / "rate").write_text(f"{rate}\n")
    assert infiniband_gbit(ports_of(infiniband_ports(str(tmp_path)))) == gbit


def test_gids_that_are_set_are_told_with_their_type_and_unset_ones_are_not(tmp_path: Path) -> None:
    base = tmp_path / "mlx5_bond_0"
    gids = {"0": "fe80:0000:0000:0000:0a00:27ff:fe00:0001", "2": "fe80" + ":0000" * 7, "10": "0000:" * 5 + "ffff:0a0b:0002"}
    for index, gid in {**gids, "3": ":".join(["0000"] * 8)}.items():
        for name, text in (("gids", gid), ("gid_attrs/types", "RoCE v2"), ("gid_attrs/ndevs", "bond0")):
            (base / "ports/1" / name).mkdir(parents=True, exist_ok=True)
            (base / "ports/1" / name / index).write_text(f"{text}\n")
    (base / "device/net/bond0").mkdir(parents=True)
    (base / "fw_ver").write_text("28.39.1002\n")
    (port,) = infiniband_ports(str(tmp_path))
    assert port["gids"] == [[0, gids["0"], "RoCE v2", "bond0"], [10, gids["10"], "RoCE v2", "bond0"]]
    assert (port["device"], port["port"], port["firmware"], port["interfaces"]) == ("mlx5_bond_0", "1", "28.39.1002", ["bond0"])


def asked_for_facts(machine: Machine, **more: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the facts of this machine, and what others told it."""
    request = {"python": sys.executable, "probe": "print('{}')", "probe_timeout_s": 20, "ports": []}
    answer = machine.ask("facts", **request, **more)
    return answer["facts"], unpacked(answer["told"])


def test_the_way_to_an_address_and_the_limits_are_the_kernels_own(machine: Machine) -> None:
    facts, told = asked_for_facts(machine, peer="127.0.0.1")
    assert (facts["route"]["interface"], facts["route"]["local"], facts["route"]["mtu"]) == (
        "lo",
        True,
        int(Path("/sys/class/net/lo/mtu").read_text()),
    )
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    assert facts["limits"]["memlock"] == [None if value < 0 else value for value in (soft, hard)]
    assert facts["shm_bytes"] == os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize
    assert told["smi"] is None or told["smi"]["code"] is not None
    assert facts["hostname_addresses"] == [entry[4][0] for entry in socket.getaddrinfo(facts["hostname"], None, type=1)]


def test_a_name_that_does_not_resolve_has_no_route(machine: Machine) -> None:
    assert asked_for_facts(machine, peer="no-such-host.invalid")[0]["route"] is None
    assert "route" not in asked_for_facts(machine)[0]


def with_nvidia_smi(tmp_path: Path, text: str) -> Machine:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "nvidia-smi").write_text(text)
    (tmp_path / "bin" / "nvidia-smi").chmod(0o755)
    wrapper = tmp_path / "python"
    wrapper.write_text(f'#!/bin/sh\nPATH={tmp_path}/bin:$PATH exec {sys.executable} "$@"\n')
    wrapper.chmod(0o755)
    return Machine(tmp_path / "work", str(wrapper))


def test_nvidia_smi_is_told_whole_with_the_owners_of_its_processes(tmp_path: Path) -> None:
    rest = f"<pid>{os.getpid()}</pid><pid>0</pid></nvidia_smi_log>"
    clocks = f"<supported_clocks>{'<x>1 MHz</x>' * 30000}</supported_clocks>"  # more than a pipe holds
    (tmp_path / "answer").write_text(f"<nvidia_smi_log>{clocks}{rest}")
    machine = with_nvidia_smi(tmp_path, f'#!/bin/sh\n[ "$1" = -q ] && exec cat {tmp_path}/answer\necho "$@"; exit 3\n')
    told = asked_for_facts(machine)[1]
    assert told["smi"] == {"code": 0, "text": f"<nvidia_smi_log>{rest}"}
    assert told["owners"] == {str(os.getpid()): pwd.getpwuid(os.getuid()).pw_name}
    assert told["topology"] == {"code": 3, "text": "topo -m\n"}
    machine.close()


def test_an_nvidia_smi_that_hangs_is_left_behind_after_ten_seconds(tmp_path: Path) -> None:
    machine = with_nvidia_smi(tmp_path, "#!/bin/sh\ntrap '' TERM\nexec sleep 1000\n")
    began = time.monotonic()
    told = asked_for_facts(machine)[1]
    assert told["smi"] == {"code": None, "text": ""} and 10 <= time.monotonic() - began < 14
    machine.close()


@pytest.mark.parametrize(
    ("records", "lines"),
    [
        (["6,1,1000000,-;eth0: up", "3,2,2500000,-;NVRM: Xid (PCI:0000:3b:00): 79, x"], ["NVRM: Xid (PCI:0000:3b:00): 79, x"]),
        ([f"3,{n},1000000,-;NVRM: {n}" for n in range(50)], [f"NVRM: {n}" for n in range(10, 50)]),
    ],
)
def test_the_last_lines_of_the_driver_are_told_with_their_age(
    monkeypatch: pytest.MonkeyPatch, records: list[str], lines: list[str]
) -> None:
    # A record is read whole by each read of the device; a socket that keeps boundaries does the same.
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for record in records:
        ours.send(f"{record}\n SUBSYSTEM=pci\n".encode())
    ours.close()
    monkeypatch.setattr(told, "os", SimpleNamespace(**{**vars(os), "open": lambda path, flags: os.dup(theirs.fileno())}))
    found = told.kernel_log("NVRM: ")
    assert [text for _, text in found["lines"]] == lines and found["total"] == sum("NVRM: " in one for one in records)
    assert found["lines"][0][0] == pytest.approx(time.monotonic() - int(records[-1].split(",")[2]) / 1e6, abs=1)
    theirs.close()


def test_a_kernel_log_that_is_closed_to_us_says_why(tmp_path: Path) -> None:
    assert told.kernel_log("NVRM: ", str(tmp_path / "none")) == {"closed": "No such file or directory"}


@pytest.mark.parametrize(
    ("answer", "slowed"),
    [(COUNTS, {"sw_power_cap": 4800, "sw_thermal_slowdown": 20}), (OLD, {}), ("#!/bin/bash\necho '[N/A], 0, 0, 0, 0'\n", {})],
    ids=["counts", "an older driver", "no counters"],
)
def test_a_good_rank_tells_how_long_clocks_were_lowered(
    machine: Machine, tmp_path: Path, answer: str, slowed: dict[str, int]
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "nvidia-smi").write_text(answer)
    (tmp_path / "bin" / "nvidia-smi").chmod(0o755)
    gpus = f"export PATH={tmp_path}/bin:$PATH CUDA_VISIBLE_DEVICES=0,1\n"
    line = machine.start(RUN, gpus + rank("import time; time.sleep(0.5)") + " & " + rank("pass", 1) + "; wait\n")
    first, second = line.wait_for("ended")["record"]["ranks"]
    assert first["slowed_us"] == slowed and "slowed_us" not in second
    line.order("bye")
    line.close()


def test_a_rank_that_failed_is_told_before_anybody_asks_for_clocks(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "nvidia-smi").write_text("#!/bin/bash\nexec sleep 1000\n")
    (tmp_path / "bin" / "nvidia-smi").chmod(0o755)
    line = machine.start(RUN, f"export PATH={tmp_path}/bin:$PATH\n" + rank("raise SystemExit(3)"))
    record = line.wait_for("ended", 4)["record"]
    assert (record["state"], record["ranks"][0]["code"], "slowed_us" in record["ranks"][0]) == ("failed", 3, False)
    line.order("bye")
    line.close()


# ------------------------------------------------------------------ every Python


@pytest.mark.parametrize("python", _old_interpreters(), ids=lambda path: Path(path).name + "@" + Path(path).parent.parent.name)
def test_the_runner_works_under_every_python_of_this_machine(python: str, tmp_path: Path) -> None:
    machine = Machine(tmp_path / "work", python)
    assert machine.put(("a/b.txt", b"text", 0o640)) == {"done": True}
    facts = machine.ask(
        "facts", python=python, probe="import json; print(json.dumps({'x': 1}))", probe_timeout_s=20, ports=[], interface="lo",
        data_dir=str(tmp_path),
    )["facts"]  # fmt: skip
    asked = [python, "-c", "import platform; print(platform.python_version())"]
    expected = subprocess.run(asked, capture_output=True, text=True, timeout=20, check=True)
    assert facts["runner_python"] == expected.stdout.strip() and facts["framework"] == {"x": 1}
    assert facts["interface"]["mtu"] > 0 and facts["data_dir"] is True and facts["cores"] >= 1
    assert facts["boot_id"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    line = machine.start(f"{RUN}-py", rank("print(1)"))
    assert line.wait_for("ended")["record"]["state"] == "finished"
    line.order("bye")
    line.close()
    assert b"".join(one.process.stderr.read() for one in machine.lines if one.process.stderr) == b""
    machine.close()


# ------------------------------------------------------------------ files


def test_files_arrive_whole_with_their_mode_and_are_not_sent_twice(machine: Machine) -> None:
    files = (("payload/a/x.py", b"\0\xff\r\n" * 1000, 0o700), ("runs/r/env.sh", b"", 0o600))
    assert machine.put(*files) == {"done": True}
    assert (machine.root / "payload/a/x.py").read_bytes() == files[0][1]
    assert [oct((machine.root / path).stat().st_mode & 0o7777) for path, _, _ in files] == ["0o700", "0o600"]
    assert oct(machine.root.stat().st_mode & 0o777) == oct((machine.root / "runs/r").stat().st_mode & 0o777) == "0o700"
    before = (machine.root / "payload/a/x.py").stat().st_ino
    listing = [{"path": p, "bytes": len(c), "sha256": hashlib.sha256(c).hexdigest(), "mode": m} for p, c, m in files]
    assert machine.ask("put", files=listing)["missing"] == []
    assert (machine.root / "payload/a/x.py").stat().st_ino == before


def test_a_transfer_that_breaks_off_leaves_no_file_and_no_rest(machine: Machine) -> None:
    listing = [{"path": "payload/x", "bytes": 1000, "sha256": "0" * 64, "mode": 0o600}]
    line = machine.call("put", files=listing)
    line.read_line()
    line.send(b"half")
    assert line.process.stdin
    line.process.stdin.close()
    assert line.read_line()["error"]["kind"] == "transfer_corrupt"
    assert list((machine.root / "payload").iterdir()) == []


def test_bytes_that_are_not_what_was_announced_are_refused(machine: Machine) -> None:
    listing = [{"path": "payload/x", "bytes": 4, "sha256": "0" * 64, "mode": 0o600}]
    line = machine.call("put", files=listing)
    line.read_line()
    line.send(b"abcd")
    error = line.read_line()["error"]
    assert error["kind"] == "transfer_corrupt" and "0" * 64 in error["message"]
    assert list((machine.root / "payload").iterdir()) == []


@pytest.mark.parametrize(
    "path",
    [
        "../x",
        "a/../../x",
        "/etc/x",
        "a//b",
        "",
        ".",
        "..",
        "a/.hidden",
        "-rf",
        "a/-b",
        "a b",
        "a\nb",
        "a\x00b",
        "ü",
        "a/",
        "x" * 200,
    ],
)
def test_names_that_leave_the_work_directory_or_hide_in_it_are_refused(machine: Machine, path: str) -> None:
    answer = machine.put((path, b"x", 0o600))
    assert answer["error"]["kind"] == "unsafe_path"
    assert not (machine.root.parent / "x").exists()


def test_a_link_in_the_place_of_a_file_is_replaced_and_never_followed(machine: Machine, tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("mine")
    machine.put(("payload/y", b"", 0o600))
    (machine.root / "payload" / "x").symlink_to(target)
    assert machine.put(("payload/x", b"new", 0o600)) == {"done": True}
    assert target.read_text() == "mine" and not (machine.root / "payload/x").is_symlink()


def _link(root: Path) -> None:
    (root.parent / "elsewhere").mkdir()
    root.symlink_to(root.parent / "elsewhere")


def _file(root: Path) -> None:
    root.write_text("")


def _writable(root: Path) -> None:
    root.mkdir()
    root.chmod(0o777)


def _foreign(root: Path) -> None:
    root.mkdir(mode=0o700)
    os.chown(root, 12345, 12345)


@pytest.mark.parametrize("plant", [_link, _file, _writable, pytest.param(_foreign, marks=NEEDS_ROOT)])
def test_a_work_directory_that_somebody_else_prepared_is_refused(machine: Machine, plant: Callable[[Path], None]) -> None:
    plant(machine.root)
    answer = machine.put(("x", b"x", 0o600))
    assert answer["error"]["kind"] == "node_unfit" and str(machine.root) in answer["error"]["message"]


@NEEDS_ROOT
def test_a_full_disk_is_said_with_path_and_numbers_and_leaves_nothing(machine: Machine) -> None:
    machine.root.mkdir(mode=0o700)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,mode=0700", "tmpfs", str(machine.root)], check=True, timeout=10)
    try:
        error = machine.put(("payload/big", os.urandom(2 << 20), 0o600))["error"]
        assert error["kind"] == "storage_full"
        assert f"{machine.root}/payload/big" in error["message"]
        assert re.search(r"needed 2097152 bytes, free \d+", error["message"])
        assert list((machine.root / "payload").iterdir()) == []
    finally:
        subprocess.run(["umount", "-l", str(machine.root)], check=True, timeout=10)


@NEEDS_ROOT
@pytest.mark.parametrize("variables", ["export A=1\n", f"export A={'x' * 300_000}\n"])
def test_a_disk_without_room_for_a_run_is_said_with_its_directory_and_numbers(machine: Machine, variables: str) -> None:
    machine.root.mkdir(mode=0o700)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200k,mode=0700", "tmpfs", str(machine.root)], check=True, timeout=10)
    try:
        files = machine.stage(RUN, SLEEP)
        line = machine.keeper(RUN)
        machine.arm(line, RUN, files, variables=variables)
        error = line.wait_for("error")
        assert error["kind"] == "storage_full"
        needed = (1 << 18) + len(variables)
        found = re.fullmatch(
            rf"{machine.folder(RUN)}: No space left on device; needed {needed} bytes, free (\d+)", error["message"]
        )
        assert found and int(found[1]) < needed
    finally:
        subprocess.run(["umount", "-l", str(machine.root)], check=True, timeout=10)


# ------------------------------------------------------------------ the life of a run


def test_a_good_run_from_arm_to_bye(machine: Machine) -> None:
    code = 'import os; print("out"); os.write(2, bytes(range(256)))'
    line = machine.start(RUN, "#!/bin/bash\nset -e\necho node\n. ./env.sh\n" + rank(code))
    events = [line.wait_for("rank"), line.wait_for("ended")]
    assert (events[0]["rank"], events[0]["code"], events[0]["signal"]) == (0, 0, None)
    record = machine.record(RUN)
    assert events[1]["record"] == record
    assert (record["state"], record["code"], record["signal"], record["reason"]) == ("finished", 0, None, "")
    assert record["started_mono_s"] <= record["ranks"][0]["started_mono_s"] <= record["ended_mono_s"]
    logs = {path.name: path.read_bytes() for path in (machine.folder(RUN) / "logs").iterdir()}
    assert logs == {"node.out": b"node\n", "node.err": b"", "rank-0.out": b"out\n", "rank-0.err": bytes(range(256))}
    assert record["files"] == {
        name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data in logs.items()
    }
    assert not (machine.folder(RUN) / "env.sh").exists(), "the variables are gone after the run"
    line.order("bye")
    judge.wait_for(lambda: not keepers(machine.folder(RUN)), 2, "the keeper stays")
    assert (machine.folder(RUN) / "keeper.err").read_bytes() == b""


@pytest.mark.parametrize("after", ["another run", "a stop"])
def test_variables_are_there_only_with_a_keeper_or_until_the_next_one_if_it_was_killed(machine: Machine, after: str) -> None:
    variables, other = machine.folder(RUN) / "env.sh", f"{RUN}b"
    files = machine.stage(RUN, SLEEP)
    line = machine.keeper(RUN)
    assert not variables.exists()
    machine.arm(line, RUN, files)
    keeper = line.wait_for("armed")["pid"]
    assert variables.read_text() == "export SECRET=1\n"
    os.kill(keeper, signal.SIGKILL)
    judge.wait_for(lambda: not keepers(machine.folder(RUN)), 3, "it is not killed")
    assert variables.exists()
    if after == "a stop":
        machine.ask("stop", run=other, grace_s=0.2, reason="x")
    else:
        machine.start(other, rank("print(1)")).wait_for("ended")
    assert not variables.exists()


def test_every_file_and_folder_of_a_run_is_private(machine: Machine) -> None:
    machine.start(RUN, rank("print(1)")).wait_for("ended")
    assert [path for path in machine.root.rglob("*") if path.lstat().st_mode & 0o077] == []


def test_the_start_is_at_the_agreed_instant(machine: Machine) -> None:
    files = machine.stage(RUN, "#!/bin/bash\ntrue\n")
    line = machine.keeper(RUN)
    machine.arm(line, RUN, files)
    line.wait_for("armed")
    at = time.monotonic() + 0.5
    line.order("go", at=at)
    assert at <= line.wait_for("started")["mono"] < at + 0.2
    line.wait_for("ended")


def test_what_waits_at_the_gate_goes_before_others_and_the_launch_script_as_usual(machine: Machine) -> None:
    if subprocess.run(["chrt", "--fifo", "1", "true"], stderr=subprocess.DEVNULL, check=False).returncode:
        pytest.skip("this user may not go before others")
    files = machine.stage(RUN, "#!/bin/bash\ncat /proc/self/stat\n")
    line = machine.keeper(RUN)
    machine.arm(line, RUN, files)
    (waiting,) = children_of(line.wait_for("armed")["pid"])
    judge.wait_for(lambda: os.sched_getscheduler(waiting) == os.SCHED_FIFO, 3, "it waits as everybody does")
    line.order("go", at=None)
    line.wait_for("ended")
    said = (machine.folder(RUN) / "logs" / "node.out").read_text()
    assert said.rpartition(")")[2].split()[38] == str(os.SCHED_OTHER)


@pytest.mark.parametrize("stop_first", [False, True])
def test_a_line_that_closes_before_the_go_word_starts_nothing(machine: Machine, stop_first: bool) -> None:
    files = machine.stage(RUN, "#!/bin/bash\ntouch started\n")
    line = machine.keeper(RUN)
    machine.arm(line, RUN, files)
    line.wait_for("armed")
    if stop_first:
        line.order("stop", reason="never mind")
    line.close()
    judge.wait_for(lambda: not keepers(machine.folder(RUN)), 3, "the keeper stays")
    assert not (machine.folder(RUN) / "started").exists() and not (machine.folder(RUN) / "exit.json").exists()


def test_what_waits_at_the_gate_goes_with_a_keeper_that_is_killed(machine: Machine) -> None:
    files = machine.stage(RUN, "#!/bin/bash\ntouch started\n")
    line = machine.keeper(RUN)
    machine.arm(line, RUN, files)
    keeper = line.wait_for("armed")["pid"]
    waiting = children_of(keeper)
    assert len(waiting) == 1 and not list((machine.folder(RUN) / "logs").iterdir())
    os.kill(keeper, signal.SIGKILL)
    judge.wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in waiting), 3, "it stays at the gate")
    assert not (machine.folder(RUN) / "started").exists()


def test_what_is_killed_at_the_gate_is_a_launch_that_failed(machine: Machine) -> None:
    files = machine.stage(RUN, SLEEP)
    line = machine.keeper(RUN)
    machine.arm(line, RUN, files)
    keeper = line.wait_for("armed")["pid"]
    for pid in children_of(keeper):
        os.kill(pid, signal.SIGKILL)
    judge.wait_for(lambda: not children_of(keeper), 3, "nobody collects it")
    line.order("go", at=None)
    assert line.wait_for("stopping")["reason"] == "rank_failed: its launch script ended with SIGKILL"
    record = line.wait_for("ended")["record"]
    assert record["state"] == "failed" and record["signal"] == "SIGKILL" and record["started_mono_s"] is None, record


def test_an_altered_file_is_not_executed(machine: Machine) -> None:
    files = machine.stage(RUN, SLEEP)
    (machine.folder(RUN) / "launch.sh").write_text(SLEEP.replace("1000", "1001"))
    line = machine.keeper(RUN)
    machine.arm(line, RUN, files)
    error = line.wait_for("error")
    assert error["kind"] == "transfer_corrupt" and "launch.sh" in error["message"]
    judge.wait_for(lambda: not keepers(machine.folder(RUN)), 3, "the keeper stays")


def test_a_run_that_has_ended_is_not_started_again(machine: Machine) -> None:
    script = rank('print("once")')
    machine.start(RUN, script).order("bye")
    judge.wait_for(lambda: (machine.folder(RUN) / "exit.json").exists(), 5, "it does not end")
    judge.wait_for(lambda: not keepers(machine.folder(RUN)), 5, "the keeper stays")
    line = machine.keeper(RUN)
    machine.arm(line, RUN, machine.stage(RUN, script))
    error = line.wait_for("error")
    assert error["kind"] == "node_unfit" and "ended here before" in error["message"]
    assert (machine.folder(RUN) / "logs" / "rank-0.out").read_bytes() == b"once\n"


def test_a_port_that_is_taken_is_refused_when_armed(machine: Machine) -> None:
    files = machine.stage(RUN, SLEEP)
    with socket.create_server(("127.0.0.1", 0)) as server:
        line = machine.keeper(RUN)
        machine.arm(line, RUN, files, ports=[server.getsockname()[1]])
        error = line.wait_for("error")
        assert (error["kind"], error["port"]) == ("port_busy", server.getsockname()[1])
    line.close()


def test_beats_are_answered_with_the_clock_and_the_log_from_an_offset(machine: Machine) -> None:
    line = machine.start(RUN, "#!/bin/bash\necho abcdef\nexec sleep 1000\n")
    machine.wait_for_log(RUN, "node.out", b"abcdef\n")
    before = time.monotonic()
    line.order("beat", n=7, tail={"file": "node.out", "offset": 2})
    beat = line.wait_for("beat")
    assert (beat["n"], beat["state"], beat["data"], beat["offset"]) == (7, "running", "Y2RlZgo=", 2)
    assert before <= beat["mono"] <= time.monotonic()
    line.order("stop", reason="enough: said the test")
    record = line.wait_for("ended")["record"]
    assert (record["state"], record["signal"], record["reason"]) == ("stopped", "SIGTERM", "enough: said the test")


def test_a_run_that_nobody_renews_ends_by_its_lease_and_says_so(machine: Machine) -> None:
    line = machine.start(RUN, SLEEP, lease_s=1.0)
    begin = time.monotonic()
    line.close()
    judge.wait_for(lambda: not bearing(RUN), 3.0, "it outlived its lease")
    assert time.monotonic() - begin > 0.8
    judge.wait_for(lambda: (machine.folder(RUN) / "exit.json").exists(), 2, "no record")
    assert machine.record(RUN)["reason"] == "lease_expired: nobody renewed the run for 1 s"
    assert machine.record(RUN)["state"] == "stopped"


def test_beats_renew_the_lease_on_a_second_line_as_well(machine: Machine) -> None:
    line = machine.start(RUN, "#!/bin/bash\nsleep 2.5\n", lease_s=1.0)
    line.close()
    line = machine.keeper(RUN, start=False)
    event = {"event": "beat"}
    while event["event"] == "beat":
        line.order("beat", n=1)
        event = line.read_line()
        time.sleep(0.1)
    assert machine.record(RUN)["state"] == "finished"


def test_a_run_ends_at_its_time_limit(machine: Machine) -> None:
    line = machine.start(RUN, SLEEP, limit_s=0.5)
    assert line.wait_for("stopping")["reason"] == "run_timeout: longer than 0.5 s"
    assert line.wait_for("ended")["record"]["state"] == "stopped"


LIMITS = {"first_line_s": 1.5, "stall_s": 1.5, "progress": ["rank-*.out"]}


@pytest.mark.parametrize(
    ("script", "limits", "reason"),
    [
        ("echo node\nexec sleep 1000", LIMITS, "no line within 1.5 s of the start"),
        (rank("import time; print(1, flush=True); time.sleep(1000)"), LIMITS, "no new line for 1.5 s"),
        (rank("import time; time.sleep(1000)"), {**LIMITS, "first_line_s": 0, "limit_s": 3.0}, "longer than 3 s"),
        ("exec sleep 1000", {**LIMITS, "progress": [], "limit_s": 3.0}, "longer than 3 s"),
    ],
    ids=["silent", "stalls", "switched-off", "holds-no-samples"],
)
def test_a_log_that_does_not_begin_or_no_longer_grows_ends_the_run(
    machine: Machine, script: str, limits: dict[str, Any], reason: str
) -> None:
    line = machine.start(RUN, f"#!/bin/bash\n{script}\n", **limits)
    assert line.wait_for("stopping")["reason"] == f"run_timeout: {reason}"
    assert line.wait_for("ended")["record"]["state"] == "stopped"


def test_a_log_that_grows_slowly_is_no_stall(machine: Machine) -> None:
    code = "import time\nfor number in range(5):\n    print(number, flush=True)\n    time.sleep(0.7)"
    line = machine.start(RUN, f"#!/bin/bash\n{rank(code)}\n", **LIMITS)
    record = line.wait_for("ended", 20)["record"]
    assert (record["state"], record["reason"]) == ("finished", ""), record


def test_after_a_goodbye_the_runner_of_the_line_answers_more_requests(machine: Machine) -> None:
    line = machine.start(RUN, "exit 0\n")
    line.wait_for("ended")
    line.order("bye")
    line.wait_for("closed", 2)
    judge.wait_for(lambda: not keepers(machine.folder(RUN)), 2, "the keeper stays")
    line.send(json.dumps({"root": str(machine.root), "op": "left", "nonce": "again", "run": RUN}).encode() + b"\n")
    assert line.read(len(b"ORCH again\n")) == b"ORCH again\n"
    assert line.read_line()["left"] == []
    assert line.process.wait(5) == 0


def test_where_a_keeper_is_gone_without_a_goodbye_the_line_ends(machine: Machine) -> None:
    line = machine.start(RUN, SLEEP)
    os.kill(keepers(machine.folder(RUN))[0], signal.SIGKILL)
    assert line.process.wait(5) == 0
    assert line.process.stdout and not line.process.stdout.read(), "no word that requests may follow"
    assert machine.ask("stop", run=RUN, grace_s=0.5, reason="test")["left"] == []


def test_beats_that_waited_in_a_frozen_node_renew_nothing(machine: Machine) -> None:
    line = machine.start(RUN, SLEEP, lease_s=1.0)
    (keeper,) = keepers(machine.folder(RUN))
    os.kill(keeper, signal.SIGSTOP)
    line.order("beat", n=1)
    time.sleep(1.3)
    line.order("beat", n=2)
    os.kill(keeper, signal.SIGCONT)
    assert line.wait_for("ended")["record"]["reason"] == "lease_expired: nobody renewed the run for 1 s"


def test_every_answer_about_a_run_says_which_boot_it_is_of(machine: Machine) -> None:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    files = machine.stage(RUN, SLEEP)
    refused = machine.call("line", run=RUN, start=False, wait_s=5).read_line()["error"]
    line = machine.call("line", run=RUN, start=True, wait_s=5)
    hello = line.read_line()
    machine.arm(line, RUN, files)
    armed = line.wait_for("armed")
    line.close()
    _, head = fetched(machine, {})
    assert [one["boot_id"] for one in (refused, hello, armed, head)] == [boot] * 4


def test_a_home_that_is_not_there_is_refused_and_not_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "none"))
    with pytest.raises(Exception, match=rf"there is no {tmp_path}/none; make it, or set vars.workdir"):
        root_directory("~/.orch-node")
    assert list(tmp_path.iterdir()) == []


def test_a_group_that_is_removed_while_it_is_read_has_no_members(monkeypatch: pytest.MonkeyPatch) -> None:
    read = os.pread
    group = groups.make_group(f"orch-test-{os.getpid()}")
    if not group:
        pytest.skip("no control groups may be made here")

    def removed_first(*asked: int) -> bytes:
        os.rmdir(group)
        return read(*asked)

    monkeypatch.setattr(os, "pread", removed_first)
    assert groups.members(group) == {} and not os.path.exists(group)


V1 = "tmpfs /cg tmpfs rw 0 0\ncgroup /cg/cpu cgroup rw,cpu 0 0\ncgroup /cg/memory cgroup rw,memory 0 0\n"
V2 = "proc /proc proc rw 0 0\ncgroup2 /cg cgroup2 rw,nsdelegate 0 0\n"
VMSTAT = "nr_free_pages 9\noom_kill 7\n"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (
            {"cgroup": "4:memory:/job\n0::/\n", "mounts": V1, "/cg/memory/job/memory.oom_control": "under_oom 0\noom_kill 2\n"},
            2,
        ),
        ({"cgroup": "0::/user/session\n", "mounts": V2, "/cg/user/session/memory.events": "low 0\noom 4\noom_kill 3\n"}, 3),
        ({"cgroup": "0::/\n", "mounts": V2, "/proc/vmstat": VMSTAT}, 7),
        ({"cgroup": "4:memory:/job\n", "mounts": V1, "/cg/memory/job/memory.oom_control": "old\n", "/proc/vmstat": VMSTAT}, 7),
        ({"cgroup": "", "mounts": ""}, 0),
    ],
    ids=["v1", "unified", "root-group", "old-kernel", "nothing"],
)
def test_kills_for_memory_are_read_where_the_kernel_counts_them(
    monkeypatch: pytest.MonkeyPatch, files: dict[str, str], expected: int
) -> None:
    there = {path if path.startswith("/") else f"/proc/self/{path}": text for path, text in files.items()}

    def fake_open(path: str) -> io.StringIO:
        if path not in there:
            raise FileNotFoundError(path)
        return io.StringIO(there[path])

    monkeypatch.setattr(groups, "open", fake_open, raising=False)
    assert groups.oom_kills() == expected


def test_programs_are_compared_by_what_their_python_files_hold(tmp_path: Path) -> None:
    digest = program_digest
    for copy in ("a", "b"):
        (tmp_path / copy / "pkg").mkdir(parents=True)
        for name, text in (("main.py", "import pkg"), ("pkg/__init__.py", ""), ("pkg/x.py", "1"), ("notes.txt", copy)):
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
@pytest.mark.skipif(not Path("/usr/bin/python3").exists(), reason="needs an interpreter that everybody may start")
def test_a_program_that_cannot_be_read_is_told_with_its_path_among_the_facts(open_home: Path) -> None:
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
    subprocess.run(["mount", "-t", "tmpfs", "-o", "ro,mode=0700", "tmpfs", str(machine.root)], check=True, timeout=10)
    try:
        facts, told = asked_for_facts(machine)
        assert (facts["workdir"], facts["disk_error"]) == (str(machine.root), "Read-only file system")
        assert "kernel_log" in told
    finally:
        subprocess.run(["umount", "-l", str(machine.root)], check=True, timeout=10)


def test_whatever_the_system_refuses_is_told_with_path_and_cause(machine: Machine) -> None:
    (machine.root / "runs").mkdir(parents=True)
    machine.root.chmod(0o700)
    (machine.root / "runs" / "r1").touch()
    error = machine.ask("line", run="r1", start=False)["error"]
    message = f"the node's system: {machine.root}/runs/r1: Not a directory"
    assert (error["kind"], error["message"]) == ("node_unfit", message)


@pytest.mark.parametrize("silent", ["with the program", "with a file", "with taking a log"])
def test_no_process_waits_for_a_controller_that_has_vanished(tmp_path: Path, silent: str) -> None:
    """Standard input and output stay open, as they do where a server hears nothing of the other end's death."""
    source = runner_source().replace(b"IDLE_S = 60", b"IDLE_S = 1")
    boot = _BOOT.replace("alarm(60)", "alarm(1)")
    assert b"IDLE_S = 1" in source and "alarm(1)" in boot
    logs = tmp_path / "runs" / RUN / "logs"
    logs.mkdir(parents=True)
    (logs / "rank-0.out").write_bytes(os.urandom(1 << 22))
    file = {"path": "x", "bytes": 1000, "sha256": "0" * 64, "mode": 0o600}
    requests: dict[str, dict[str, Any]] = {
        "with the program": {"op": "left"},
        "with a file": {"op": "put", "files": [file]},
        "with taking a log": {"op": "get", "run": RUN, "have": {}, "max_files": 10, "max_bytes": 1 << 30},
    }
    header = json.dumps({"root": str(tmp_path), "nonce": "n", **requests[silent]}).encode() + b"\n"
    sent = _LEADER + source + header + b"half"
    argv = [sys.executable, "-I", "-S", "-u", "-c", boot, str(len(source))]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin and process.stdout
    with process:
        process.stdin.write(sent[: len(source) // 2] if silent == "with the program" else sent)
        process.stdin.flush()
        assert process.wait(10) == -signal.SIGALRM


def test_a_flood_of_output_is_stopped(machine: Machine) -> None:
    line = machine.start(RUN, "#!/bin/bash\nexec yes\n", output_limit_bytes=1 << 20)
    assert line.wait_for("stopping")["reason"] == "output_limit: more than 1048576 bytes of logs"
    record = line.wait_for("ended", 20)["record"]
    written = (machine.folder(RUN) / "logs/node.out").read_bytes()
    kept = written[: 4 << 20]
    assert record["files"]["node.out"] == {"bytes": len(kept), "sha256": hashlib.sha256(kept).hexdigest()}


def test_a_crowd_of_files_is_stopped_and_displaces_no_log_of_a_rank(machine: Machine) -> None:
    crowd = 'for n in {1..4200}; do : > "logs/crowd-$n"; done; echo said; exec sleep 60\n'
    line = machine.start(RUN, f"#!/bin/bash\n{crowd}")
    assert line.wait_for("stopping", 20)["reason"] == "output_limit: more than 4096 files among the logs"
    files = line.wait_for("ended", 20)["record"]["files"]
    assert len(files) == 4096 and files["node.out"]["bytes"] == 5 and "node.err" in files
    got = machine.call("get", run=RUN, have={}, max_bytes=1 << 30, max_files=4096)
    assert got.read_line()["name"] == "node.out"


def test_a_sparse_giant_holds_nothing_up(machine: Machine) -> None:
    line = machine.start(RUN, "#!/bin/bash\ntruncate -s 4T logs/giant; exec sleep 60\n", output_limit_bytes=1 << 20)
    assert line.wait_for("ended", 20)["record"]["files"]["giant"]["bytes"] == 4 << 20
    got = machine.call("get", run=RUN, have={}, max_bytes=1 << 30, max_files=4096)
    received = 0
    while "done" not in (piece := got.read_line()):
        got.read(piece["bytes"])
        received += piece["raw"]
    assert received == 4 << 20


def test_what_is_no_log_is_named_and_not_sent(machine: Machine) -> None:
    script = "#!/bin/bash\ncd logs; ln -s /etc/passwd link; mkfifo pipe; mkdir folder; : > -dash; : > '.hidden'; echo said\n"
    record = machine.start(RUN, script).wait_for("ended")["record"]
    assert sorted(record["files"]) == ["node.err", "node.out"]
    got = machine.call("get", run=RUN, have={}, max_bytes=1 << 30, max_files=4096)
    while "done" not in (piece := got.read_line()):
        got.read(piece["bytes"])
    assert piece["odd"] == ["-dash", ".hidden", "folder", "link", "pipe"] and sorted(piece["sizes"]) == ["node.err", "node.out"]


@pytest.mark.parametrize(
    ("code", "how", "expected"),
    [
        ("import sys; sys.exit(3)", "exit code 3", (3, None)),
        ("import os; os.kill(os.getpid(), 9)", "SIGKILL", (None, "SIGKILL")),
        ("import os; os.abort()", "SIGABRT", (None, "SIGABRT")),
        ("import os, signal; os.kill(os.getpid(), signal.SIGRTMIN + 3)", "signal 37", (None, "signal 37")),
    ],
)
def test_a_rank_that_ends_badly_is_told_at_once_and_stops_the_node(
    machine: Machine, code: str, how: str, expected: tuple[int | None, str | None]
) -> None:
    waiting = "until [ -e ranks/0.json ]; do sleep 0.01; done\n"
    script = "#!/bin/bash\n" + rank("import time; time.sleep(1000)", 0) + " &\n" + waiting + rank(code, 1) + " &\nwait\n"
    line = machine.start(RUN, script)
    event = line.wait_for("rank")
    assert (event["rank"], event["code"], event["signal"]) == (1, *expected)
    record = line.wait_for("ended", 5)["record"]
    assert (record["state"], record["reason"]) == ("failed", f"rank_failed: rank 1 ended with {how}")
    assert [(r["rank"], r["signal"]) for r in record["ranks"]] == [(0, "SIGTERM"), (1, expected[1])]
    assert bearing(RUN) == []


def test_a_program_that_does_not_exist_is_an_error_of_its_rank(machine: Machine) -> None:
    line = machine.start(RUN, rank("").replace(f"{sys.executable} -c ''", "/no/such/program"))
    assert line.wait_for("rank")["code"] == 127
    line.wait_for("ended")
    assert (machine.folder(RUN) / "logs/rank-0.err").read_text() == "/no/such/program: No such file or directory\n"


DEAF = "import signal, time; signal.signal(15, signal.SIG_IGN); print(1, flush=True); time.sleep(1000)"


def test_a_deaf_workload_is_killed_after_the_grace(machine: Machine) -> None:
    line = machine.start(RUN, "#!/bin/bash\n" + rank(DEAF))
    machine.wait_for_log(RUN, "rank-0.out", b"1\n")
    begin = time.monotonic()
    line.order("stop", reason="now")
    record = line.wait_for("ended", 5)["record"]
    assert 0.5 <= time.monotonic() - begin < 1.5
    assert record["ranks"][0]["signal"] == "SIGKILL" and bearing(RUN) == []


ESCAPED = """\
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.closerange(0, 3)
        open("escaped", "w").write(str(os.getpid()))
        time.sleep(1000)
    os._exit(0)
os.wait()
while not os.path.exists("escaped"): time.sleep(0.01)
"""


@pytest.mark.parametrize("marked", [True, False], ids=["with-its-marker", "without-its-marker"])
def test_what_a_workload_leaves_behind_as_a_daemon_is_ended_with_it(machine: Machine, marked: bool) -> None:
    code = (
        ESCAPED
        if marked
        else "import os; os.environ.pop('ORCH_RUN_ID'); os.execv('" + sys.executable + "', ['x', 'escape.py'])"
    )
    machine.put((f"runs/{RUN}/escape.py", ESCAPED.encode(), 0o600))
    machine.put((f"runs/{RUN}/first.py", code.encode(), 0o600))
    line = machine.start(RUN, f"#!/bin/bash\nexec {sys.executable} first.py\n")
    record = line.wait_for("ended", 5)["record"]
    assert record["state"] == "finished"
    escaped = int((machine.folder(RUN) / "escaped").read_text())
    judge.wait_for(lambda: not Path(f"/proc/{escaped}").exists(), 1.0, "the daemon lives on")


def test_the_group_of_a_leader_that_died_is_emptied(machine: Machine) -> None:
    line = machine.start(RUN, "#!/bin/bash\nsleep 1000 & sleep 1000 &\nkill -9 $$\n")
    record = line.wait_for("ended", 5)["record"]
    assert (record["state"], record["signal"]) == ("failed", "SIGKILL") and bearing(RUN) == []


def test_a_process_of_the_same_name_that_is_not_ours_is_left_alone(machine: Machine) -> None:
    others = [
        subprocess.Popen(["sleep", "1000"]),
        subprocess.Popen(["sleep", "1000"], env={"ORCH_RUN_ID": f"{RUN}-another", "PATH": os.environ["PATH"]}),
    ]
    try:
        line = machine.start(RUN, SLEEP)
        line.order("stop", reason="now")
        line.wait_for("ended")
        assert machine.ask("stop", run=RUN, grace_s=0.2, reason="now") == {"stopped": [], "left": []}
        assert [other.poll() for other in others] == [None, None]
    finally:
        for other in others:
            other.kill()
            other.wait()


# ------------------------------------------------------------------ locks


def test_a_second_run_is_refused_naming_the_owner_and_the_lock_dies_with_its_keeper(machine: Machine) -> None:
    first = machine.start(f"{RUN}-a", SLEEP, owner={"user": "alice", "controller": "desk", "run_id": f"{RUN}-a"})
    files = machine.stage(f"{RUN}-b", SLEEP)
    second = machine.keeper(f"{RUN}-b")
    machine.arm(second, f"{RUN}-b", files)
    error = second.wait_for("error")
    owner = json.loads(error["owner"])
    assert error["kind"] == "node_busy" and (owner["user"], owner["run_id"]) == ("alice", f"{RUN}-a")
    assert json.loads(machine.ask("status")["owner"])["user"] == "alice"
    judge.wait_for(lambda: not keepers(machine.folder(f"{RUN}-b")), 3, "the refused keeper stays")

    (keeper,) = keepers(machine.folder(f"{RUN}-a"))
    os.kill(keeper, signal.SIGKILL)
    third = machine.keeper(f"{RUN}-b")
    machine.arm(third, f"{RUN}-b", files)
    third.wait_for("armed")
    third.close()
    # What the killed keeper left running is ended by its marker.
    assert len(bearing(f"{RUN}-a")) == 1
    assert machine.ask("stop", run=f"{RUN}-a", grace_s=0.2, reason="now") == {"stopped": [f"{RUN}-a"], "left": []}
    assert bearing(f"{RUN}-a") == []
    first.close()


@pytest.mark.skipif(not os.access("/sys/fs/cgroup/pids/cgroup.procs", os.W_OK), reason="no control group may be made here")
@pytest.mark.parametrize("way", ["another run", "stop", "drop"])
def test_the_control_group_of_a_run_that_died_with_its_keeper_does_not_stay(machine: Machine, way: str) -> None:
    line = machine.start(f"{RUN}-a", SLEEP)
    group = Path((machine.folder(f"{RUN}-a") / "group").read_text())
    (keeper,) = keepers(machine.folder(f"{RUN}-a"))
    os.kill(keeper, signal.SIGKILL)
    line.close()
    if way == "another run":
        machine.stage(f"{RUN}-b", SLEEP)
        machine.keeper(f"{RUN}-b").close()
        assert group.is_dir(), "a group with a process in it is not ours to remove"
    for pid in bearing(f"{RUN}-a"):
        os.kill(pid, signal.SIGKILL)
    judge.wait_for(lambda: not bearing(f"{RUN}-a"), 3, "the run does not die")
    assert group.is_dir()
    if way == "another run":
        last = machine.start(f"{RUN}-c", SLEEP)
        last.order("stop", reason="now")
        last.wait_for("ended")
    elif way == "stop":
        assert machine.ask("stop", run=f"{RUN}-a", grace_s=0.2, reason="now") == {"stopped": [], "left": []}
    else:
        assert machine.ask("drop", run=f"{RUN}-a", finished=False) == {"dropped": True}
    assert not group.exists()


def test_of_two_runs_that_each_hold_one_of_two_nodes_the_earlier_one_gets_both(tmp_path: Path, machine: Machine) -> None:
    one, other = machine, Machine(tmp_path / "other")
    early, late = f"{RUN}-1", f"{RUN}-2"
    held = {}
    for run, node in ((early, one), (late, other)):
        files = node.stage(run, SLEEP)
        held[run] = node.keeper(run)
        node.arm(held[run], run, files)
        held[run].wait_for("armed")
    wanted = {}
    for run, node in ((early, other), (late, one)):
        files = node.stage(run, SLEEP)
        wanted[run] = node.keeper(run)
        node.arm(wanted[run], run, files)
    assert wanted[late].wait_for("error")["kind"] == "node_busy"
    for line in (held[late], wanted[late]):  # as a controller does that was refused
        line.close()
    wanted[early].wait_for("armed", 5)
    for line in (held[early], wanted[early]):
        line.close()
    other.close()


def armed_beside(first: Machine, second: Machine, run: str = f"{RUN}-b") -> tuple[Line, dict[str, Any]]:
    """Start a run on the first, want another on the second; return the line of the one and what becomes of the other."""
    begun = first.start(f"{RUN}-a", SLEEP, owner={"user": "alice", "controller": "desk", "run_id": f"{RUN}-a"})
    files = second.stage(run, SLEEP)
    line = second.keeper(run)
    second.arm(line, run, files)
    return begun, line.wait_for("error")


def stop(line: Line) -> None:
    line.order("stop", reason="now")
    line.wait_for("ended")


def test_one_run_has_a_node_whatever_the_work_directory(tmp_path: Path, machine: Machine) -> None:
    other = Machine(tmp_path / "other", mark=str(machine.root))
    _, error = armed_beside(machine, other)
    owner = json.loads(error["owner"])
    assert error["kind"] == "node_busy" and (owner["user"], owner["run_id"]) == ("alice", f"{RUN}-a")
    assert json.loads(other.ask("status")["owner"]) == owner
    (keeper,) = keepers(machine.folder(f"{RUN}-a"))
    os.kill(keeper, signal.SIGKILL)
    judge.wait_for(lambda: other.ask("status")["owner"] is None, 3, "the node stays held")
    stop(other.start(f"{RUN}-c", SLEEP))
    for pid in bearing(f"{RUN}-a"):
        os.kill(pid, signal.SIGKILL)
    other.close()


@NEEDS_ROOT
@pytest.mark.skipif(not Path("/usr/bin/python3").exists(), reason="needs an interpreter that everybody may start")
def test_one_run_has_a_node_whatever_the_user(machine: Machine, open_home: Path) -> None:
    other = Machine(open_home / "work", python="/usr/bin/python3", mark=str(machine.root), user=65534)
    line, error = armed_beside(machine, other)
    assert error["kind"] == "node_busy" and json.loads(error["owner"])["run_id"] == f"{RUN}-a"
    assert json.loads(other.ask("status")["owner"])["user"] == "alice"
    (keeper,) = keepers(machine.folder(f"{RUN}-a"))
    os.kill(keeper, signal.SIGSTOP)
    try:
        assert other.ask("status")["owner"] == f"process {keeper} of root, which does not answer"
    finally:
        os.kill(keeper, signal.SIGCONT)
    stop(line)
    other.close()


def test_one_machine_is_not_two_nodes_of_a_run(tmp_path: Path, machine: Machine) -> None:
    other = Machine(tmp_path / "other", mark=str(machine.root))
    line, error = armed_beside(machine, other, f"{RUN}-a")
    assert (error["kind"], error["message"].split(":")[0]) == ("node_unfit", "another node of this run is this machine")
    stop(line)
    other.close()


def test_stop_ends_every_run_and_says_which(machine: Machine) -> None:
    line = machine.start(RUN, "#!/bin/bash\n" + rank(DEAF))
    machine.wait_for_log(RUN, "rank-0.out", b"1\n")
    status = machine.ask("status")
    assert status["runs"][RUN] == len(bearing(RUN)) >= 2
    assert machine.ask("left", run=RUN)["keeper"] is True
    answer = machine.ask("stop", run=RUN, grace_s=0.5, reason="cancelled")
    assert answer == {"stopped": [RUN], "left": []}
    assert (machine.record(RUN)["state"], machine.record(RUN)["reason"]) == ("stopped", "cancelled")
    status = machine.ask("status")
    assert RUN not in status["runs"] and status["owner"] is None
    assert machine.ask("left", run=RUN) == {"left": [], "keeper": False}
    line.close()


# ------------------------------------------------------------------ logs


def fetched(machine: Machine, have: dict[str, int], **limits: int) -> tuple[dict[str, bytes], dict[str, Any]]:
    return read_logs(machine.call("get", run=RUN, have=have, **({"max_bytes": 1 << 30, "max_files": 100} | limits)), have)


def read_logs(line: Line, have: dict[str, int]) -> tuple[dict[str, bytes], dict[str, Any]]:
    found: dict[str, bytes] = {}
    while not (head := line.read_line()).get("done"):
        data = line.read(head["bytes"])
        data = zlib.decompress(data, -15) if head["packed"] else data
        assert head["offset"] == have.get(head["name"], 0) + len(found.get(head["name"], b""))
        found[head["name"]] = found.get(head["name"], b"") + data
    head["record"] = line.read(head["bytes"])
    line.close()
    return found, head


def test_logs_come_from_the_offsets_asked_for_and_the_record_comes_last(machine: Machine) -> None:
    machine.start(RUN, "#!/bin/bash\nhead -c 700000 /dev/zero | tr '\\0' x\n" + rank("print(123)")).wait_for("ended")
    found, head = fetched(machine, {})
    assert {name: len(data) for name, data in found.items()} == {"node.out": 700000, "rank-0.out": 4}
    assert head["sizes"] == {"node.out": 700000, "node.err": 0, "rank-0.out": 4, "rank-0.err": 0}
    assert json.loads(head["record"]) == machine.record(RUN)
    found, _ = fetched(machine, {"node.out": 699990, "rank-0.out": 4})
    assert found == {"node.out": b"x" * 10}
    found, head = fetched(machine, {}, max_bytes=5, max_files=3)
    assert found["node.out"] == b"xxxxx" and head["left_out"] == 1


def with_log(machine: Machine, content: bytes) -> Path:
    path = machine.root / "runs" / RUN / "logs" / "node.out"
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(("mib_s", "compresses"), [(0.1, True), (0.0, False)])
def test_a_log_is_compressed_where_the_line_is_slow_and_only_there(machine: Machine, mib_s: float, compresses: bool) -> None:
    line = b"step=1 samples=256 step_time_s=0.123456 loss=6.9078\n"
    with_log(machine, line * ((24 << 20) // len(line)) if mib_s else os.urandom(24 << 20))
    reader = machine.call("get", run=RUN, have={}, max_bytes=1 << 30, max_files=9)
    ways = []
    while not (head := reader.read_line()).get("done"):
        ways.append(head["packed"])
        # A line is slow all the time, not between two pieces.
        for offset in range(0, head["bytes"], 1 << 14):
            some = len(reader.read(min(1 << 14, head["bytes"] - offset)))
            time.sleep(mib_s * some / (1 << 20))
    assert ways.count(compresses) >= 0.75 * len(ways), ways


def test_a_log_goes_out_as_well_where_the_kernel_does_not_hand_it_over(machine: Machine, tmp_path: Path) -> None:
    content = os.urandom(3 << 20)
    with_log(machine, content)
    source = runner_source()
    argv = [machine.python, "-I", "-S", "-u", "-c", BOOT, str(len(source))]
    request = {"root": str(machine.root), "op": "get", "nonce": "n0nce", "run": RUN, "have": {}}
    header = json.dumps({**request, "max_bytes": 1 << 30, "max_files": 9}).encode() + b"\n"
    with (tmp_path / "said").open("ab") as appended:  # sendfile(2) refuses a file that is open for appending
        subprocess.run(argv, input=source + header, stdout=appended, timeout=30, check=True)
    line = Line(subprocess.Popen(["tail", "-n", "+2", tmp_path / "said"], stdin=subprocess.PIPE, stdout=subprocess.PIPE))
    assert read_logs(line, {})[0] == {"node.out": content}


def test_a_log_that_is_cut_off_while_it_is_sent_is_never_filled_up(machine: Machine) -> None:
    content = os.urandom(8 << 20)
    path = with_log(machine, content)
    line = machine.call("get", run=RUN, have={}, max_bytes=1 << 30, max_files=9)
    head = line.read_line()
    line.read(head["bytes"])
    head = line.read_line()  # of a piece that is longer than what a pipe holds
    os.truncate(path, head["offset"])
    process = line.process
    assert process.stdout and process.stderr and not head["packed"]
    sent = bytes(line.buffer) + process.stdout.read()
    assert len(sent) < head["bytes"] and process.wait(10) == 1
    assert process.stderr.read() == b"a log became shorter while it was sent\n"


def test_links_pipes_and_odd_names_among_the_logs_are_neither_opened_nor_named(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    line = machine.start(RUN, SLEEP)
    logs = machine.folder(RUN) / "logs"
    (logs / "rank-7.out").symlink_to(tmp_path / "secret")
    os.mkfifo(logs / "rank-8.out")
    (logs / "-rf").write_text("x")
    (logs / "a b").write_text("x")
    (logs / "folder").mkdir()
    line.order("stop", reason="now")
    record = line.wait_for("ended")["record"]
    found, head = fetched(machine, {})
    assert set(record["files"]) == set(head["sizes"]) == {"node.out", "node.err"} and found == {}


def test_a_run_that_is_not_there_is_said_to_be_absent(machine: Machine) -> None:
    machine.put(("x", b"", 0o600))
    assert machine.ask("get", run="nothing", have={}, max_bytes=1, max_files=1) == {"absent": True}
    assert machine.ask("get", run="../x", have={}, max_bytes=1, max_files=1)["error"]["kind"] == "unsafe_path"


def test_a_log_is_followed_until_the_run_ends(machine: Machine) -> None:
    line = machine.start(RUN, "#!/bin/bash\nfor i in 1 2 3; do echo $i; sleep 0.2; done\n")
    tail = machine.call("tail", run=RUN, file="node.out", offset=0, follow=True)
    line.wait_for("ended")
    line.order("bye")
    text = b""
    while not (head := tail.read_line()).get("done"):
        text += tail.read(head["bytes"])
    assert text == b"1\n2\n3\n" and head["offset"] == 6


def test_no_keeper_is_an_answer_and_no_wait(machine: Machine) -> None:
    machine.stage(RUN, SLEEP)
    line = machine.call("line", run=RUN, start=False, wait_s=5)
    assert line.read_line(1.0)["error"]["kind"] == "node_lost"


@pytest.mark.parametrize("accepts", [False, True])
def test_a_keeper_that_leaves_before_its_first_word_is_no_keeper(machine: Machine, accepts: bool) -> None:
    machine.stage(RUN, SLEEP)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as door:
        door.bind(str(machine.folder(RUN) / "keeper.sock"))
        door.listen(4)
        line = machine.call("line", run=RUN, start=False, wait_s=5)
        assert select.select([door], [], [], 5)[0], "nobody comes"
        if accepts:
            door.accept()[0].close()
    error = line.read_line(3.0)["error"]
    assert error["kind"] == "node_lost" and error["boot_id"]


def test_a_work_directory_with_a_long_path_works(tmp_path: Path) -> None:
    machine = Machine(tmp_path / ("d" * 120) / "work")
    machine.root.parent.mkdir()
    line = machine.start(RUN, rank("print(1)"))
    assert line.wait_for("ended")["record"]["state"] == "finished"
    machine.close()
