"""Nodes that lie: in what they print, in what they call files, in how much they send, in how they
say it went.
"""

from __future__ import annotations

import csv
import fcntl
import hashlib
import io
import json
import os
import pty
import re
import select
import shutil
import stat
import struct
import subprocess
import termios
import threading
import time
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from orchestrator import lab as labs
from tests.e2e.rig import Controller, outer_environment
from tests.faults.rows.setup import messages, on_node, refused
from tests.faults.rows.workload import workload
from tests.faults.suite import Trial, row
from tests.support import judge

STEERING = r"""
EVIL = ("\x1b]0;owned\x07", "\x1b[2J\x1b[H", "\x1b]52;c;b3duZWQ=\x07", "\x1b[31;1mred", "\x9b2J", "\x1bc", "\r overwritten",
        "\u202egnp.exe", "\x07", "\x08\x08\x08", "\x1bP1$r\x1b\\", "\x1b]8;;http://evil.example\x1b\\click\x1b]8;;\x1b\\",
        "\x00", "\x7f")
DEVICE = "gpu \x1b]0;owned\x07 \x1b[2J"
def step(number):
    for text in EVIL:
        print(text, flush=True)
        sys.stderr.write(text + "\n")
def end():
    print("".join(EVIL))
    sys.stderr.write("last words " + "".join(EVIL) + "\n")
    if RANK == 1:
        sys.exit(3)
"""
# What we ourselves send to a terminal: colours, erasing and moving up within our own block of
# lines, hiding the cursor.
OURS = re.compile(rb"\x1b\[(?:[0-9;]{0,12}m|2K|1A|\?25[lh])|\r")


def at_terminal(controller: Controller, *words: str, timeout_s: float = 60.0) -> tuple[int, bytes]:
    """Run a command with a terminal of its own for input, output and errors; return its status and
    all that it sent there.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 120, 0, 0))
    variables = (
        outer_environment(controller.project)
        | dict(labs.environment(controller.lab))
        | {"TERM": "xterm-256color"}
    )
    variables.pop("NO_COLOR")
    argv = labs.argv_inside(controller.lab, [*controller.program, *words])
    streams = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
    process = subprocess.Popen(
        argv, cwd=controller.project, env=variables, text=True, start_new_session=True, **streams
    )
    controller.started.append(process)
    os.close(theirs)
    seen, deadline = b"", time.monotonic() + timeout_s
    try:
        while time.monotonic() < deadline:
            if select.select([ours], [], [], 0.2)[0]:
                seen += os.read(ours, 65536)
            elif process.poll() is not None:
                break
    except OSError:
        pass  # the other end is closed
    finally:
        os.close(ours)
    return process.wait(judge.LIMIT_S), seen


@row("H1", "escape codes in logs, names and errors, at a terminal")
def escape_codes(trial: Trial) -> None:
    controller = trial.controller
    words = workload(controller, STEERING)
    code, seen = at_terminal(controller, *words, "--nodes", "2")
    assert code == 1, seen[-2000:]
    sent = [seen]
    for command in (("logs",), ("logs", "--rank", "1", "--err"), ("summarize",), ("status",)):
        code, seen = at_terminal(controller, *command)
        assert code == 0, (command, seen[-2000:])
        sent.append(seen)
    assert b"owned" in b"".join(sent) and b"gnp.exe" in b"".join(sent), (
        "nothing hostile was shown at all"
    )
    for seen in sent:
        rest = OURS.sub(b"", seen)
        steering = re.findall(
            rb"[\x00-\x08\x0b-\x1f\x7f]|\xc2[\x80-\x9f]|\xe2\x80[\xaa-\xae]", rest
        )
        assert not steering, (
            f"{steering[:5]} in {rest[max(0, rest.find(steering[0]) - 80) :][:200]!r}"
        )
    trial.keep(*trial.nodes[:2])
    raw = (controller.runs[-1] / "logs" / trial.nodes[1] / "rank-1.err").read_bytes()
    assert b"\x1b]0;owned\x07" in raw and b"\x00" in raw, "the raw log was altered"


MARKUP = r"""
NASTY = ["<script>alert(1)</script>", "=HYPERLINK(\"http://evil.example\",\"x\")", "+1+1", "@SUM(A1)", "-2+3", "| a | b |",
         "[x](javascript:1)", "![x](http://evil.example/x.png)", "**bold**", "`code`", "<img src=x onerror=alert(1)>",
         "[red]rich[/red]", "{{ 7*7 }}", "http://evil.example"]
DEVICE = "<script>alert(2)</script> =cmd|' /C calc'!A0"
DONE.update(devices={text: 1 for text in NASTY}, framework_version=NASTY[0], cuda=NASTY[1], nccl=NASTY[2], python=NASTY[3])
def end():
    for text in NASTY:
        sys.stderr.write(text + "\n")
"""
HOSTILE_FACTS = {
    "cpu": '=HYPERLINK("http://evil.example") <script>alert(3)</script>',
    "kernel": "@SUM(1)[bold]x[/bold]",
    "gpus": [
        {
            "name": "=1+1 <b onmouseover=alert(4)>",
            "driver": "| x |",
            "index": "0",
            "used_mib": "0",
            "utilization": "0",
        }
    ],
}


class _Tags(HTMLParser):
    """Collects elements and event attributes of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        self.elements += [name for name, _ in attrs if name.startswith("on")]


@row("H2", "markup and formulas in logs, metrics and facts")
def markup(trial: Trial) -> None:
    controller = trial.controller
    words = workload(controller, MARKUP)
    done = controller.orch(*words, "--nodes", "2")
    assert done.code == 0, done
    path = controller.runs[-1] / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest.pop("seal", None)
    for facts in manifest["facts"].values():
        facts.update(HOSTILE_FACTS)
    path.write_text(json.dumps(manifest))
    outputs = {
        form: controller.orch("summarize", "--format", form)
        for form in ("csv", "markdown", "json", "table")
    }
    assert all(done.code == 0 for done in outputs.values()), outputs
    rows = list(csv.reader(io.StringIO(outputs["csv"].out)))
    assert len(rows) == 2 and len(rows[0]) == len(rows[1]), rows
    for cell in rows[1]:
        assert not cell.lstrip().startswith(("=", "+", "-", "@", "\t", "\r")) or re.fullmatch(
            r"[-+]?[0-9.]+", cell
        ), cell
    assert "alert" in "".join(rows[1]), "nothing hostile came as far as the table"
    page = _Tags()
    page.feed(outputs["markdown"].out)
    assert not page.elements, f"elements in Markdown: {page.elements}"
    for mark in (r"(?<!\\)\]\(", r"(?<!\\)\*\*bold", r"(?<!\\)`code", "http://evil", "\n\\| a"):
        assert not re.search(mark, outputs["markdown"].out), mark
    assert json.loads(outputs["json"].out)["rows"], outputs["json"]
    assert "[red]rich[/red]" in outputs["table"].out + outputs["csv"].out, "markup was obeyed"


LINKS = r"""
import socket as sockets, stat
def start():
    os.chdir("logs")
    os.symlink("/etc/passwd", "passwd.out")
    os.symlink("loop.b", "loop.a"); os.symlink("loop.a", "loop.b")
    os.symlink("/", "root.out")
    os.mkfifo("fifo.out")
    sockets.socket(sockets.AF_UNIX).bind("socket.out")
    os.mknod("device.out", 0o600 | stat.S_IFCHR, os.makedev(1, 5))
    os.mkdir("folder.out"); open("folder.out/inner", "w").write("x")
    for name in ("-rf", ".hidden", "a b", "x" * 200, "new\nline", "\x1b[2J", "\xe9"):
        open(name, "w").write("odd")
    os.chdir("..")
"""
ODD = (
    "passwd.out",
    "loop.a",
    "loop.b",
    "root.out",
    "fifo.out",
    "socket.out",
    "device.out",
    "folder.out",
)


@row("H3", "links, pipes, sockets and devices among results; a planted work directory", limit_s=150)
def links_and_devices(trial: Trial) -> None:
    controller, node = trial.controller, trial.random.choice(trial.nodes)
    words = workload(controller, LINKS)
    began = time.monotonic()
    done = controller.orch(*words, "--nodes", "4")
    assert done.code == 0 and judge.in_time(time.monotonic() - began, 30), done
    for name in trial.nodes:
        here = sorted(path.name for path in (controller.runs[-1] / "logs" / name).iterdir())
        rank = trial.nodes.index(name)
        here = [
            name for name in here if name != "telemetry.jsonl"
        ]  # of a run that lasted long enough
        assert here == sorted(
            ["exit.json", "node.err", "node.out", f"rank-{rank}.err", f"rank-{rank}.out"]
        ), here
        assert all(
            stat.S_ISREG(path.lstat().st_mode)
            for path in (controller.runs[-1] / "logs" / name).iterdir()
        )
    said = done.err + (controller.bench / "events.jsonl").read_text()
    missing = [name for name in ODD if name not in said]
    assert not missing, f"left out without a word: {missing}"
    _planted(trial, node)


PLANTED = {
    "a link": "mkdir -m 700 ~/elsewhere && ln -s ~/elsewhere ~/.orch-node",
    "of another user": "mkdir -m 700 ~/.orch-node && chown 12345 ~/.orch-node",
    "open to all": "mkdir ~/.orch-node && chmod 0777 ~/.orch-node",
    "open to the group": "mkdir ~/.orch-node && chmod 0770 ~/.orch-node",
    "a file": "touch ~/.orch-node",
    "a pipe": "mkfifo ~/.orch-node",
    "a loop": "ln -s .orch-node ~/.orch-node",
}


def _planted(trial: Trial, node: str) -> None:
    home = "chmod -R u+rwx ~/.orch-node ~/elsewhere 2>/dev/null; rm -rf ~/.orch-node ~/elsewhere"
    try:
        for case in PLANTED if trial.full else trial.random.sample(list(PLANTED), 2):
            on_node(trial.lab, node, f"{home}; {PLANTED[case]}")
            text = refused(trial.controller, "deploy", "-f", "simulated", code=1, within_s=10)
            start = f"orch: {node}: work directory /root/.orch-node: "
            assert text.startswith(start) and "vars.workdir" in text, f"{case}: {text}"
            there = on_node(trial.lab, node, "ls -A ~/elsewhere; ls -A ~/.orch-node/", check=False)
            assert there == "", f"{case}: {there}"
    finally:
        on_node(trial.lab, node, home)


def record_change(**fields: Any) -> Any:
    """Return a change of an exit record that sets these fields."""

    def change(path: Path) -> bytes:
        return json.dumps(json.loads(path.read_bytes()) | fields).encode()

    return change


def written(data: bytes) -> Any:
    """Return a change that puts these bytes in place of a file."""
    return lambda path: data


EXITS = {
    "empty": written(b""),
    "no JSON": written(b"<html>"),
    "a list": written(b"[]"),
    "deep": written(b"[" * 100_000),
    "deep objects": written(b'{"a":' * 100_000),
    "a key twice": lambda path: path.read_bytes().replace(b'"code": 0', b'"code": 1, "code": 0', 1),
    "not a number": lambda path: path.read_bytes().replace(b'"code": 0', b'"code": NaN', 1),
    "a huge number": lambda path: path.read_bytes().replace(b'"code": 0', b'"code": 1e999', 1),
    "a long number": lambda path: path.read_bytes().replace(
        b'"code": 0', b'"code": ' + b"9" * 10_000, 1
    ),
    "NUL bytes": written(b"\0" * 1000),
    "not UTF-8": written(b'{"schema": "\xff\xfe"}'),
    "100 MB": written(b'{"schema": 1, "a": "' + b"x" * 100_000_000 + b'"}'),
    "another run": record_change(run_id="20200101-000000-dead.001"),
    "another node": record_change(node_rank=3),
    "code as text": record_change(code="0"),
    "code as truth": record_change(code=False),
    "state unknown": record_change(state="brilliant"),
    "state a list": record_change(state=["finished"]),
    "files a list": record_change(files=[]),
    "files of numbers": record_change(files={"rank-0.out": 5}),
    "a file outside": record_change(files={"../../../etc/passwd": {"bytes": 1, "sha256": "0"}}),
    "sizes as text": record_change(files={"rank-0.out": {"bytes": "1", "sha256": "0"}}),
    "ranks a number": record_change(ranks=7),
    "ranks of words": record_change(ranks=["0"]),
    "a rank that failed": record_change(ranks=[{"rank": 0, "code": 9, "signal": None}]),
    "schema text": record_change(schema="1"),
    "newer": record_change(schema=99),
}


@row("H4", "malformed result files", trials=5, limit_s=300)
def malformed(trial: Trial) -> None:
    controller = trial.controller
    words = workload(controller, "")
    done = controller.orch(*words[:-4], "--repeats", "2", "--stop-grace", "0.5", "--nodes", "2")
    assert done.code == 0 and len(controller.runs) == 2, done
    sick, sound = controller.runs
    good = controller.orch("summarize", "--json").json["rows"]
    assert [(entry["n"], entry["failed"]) for entry in good] == [(2, 0)], good
    path = sick / "logs" / "node1" / "exit.json"
    before = path.read_bytes()
    for case in EXITS if trial.full else trial.random.sample(list(EXITS), 6):
        path.write_bytes(EXITS[case](path))
        _judge_malformed(controller, case, "exit.json")
        path.write_bytes(before)
    for case, data in _logs(sick / "logs" / "node1" / "rank-0.out", trial.full).items():
        log = sick / "logs" / "node1" / "rank-0.out"
        whole = log.read_bytes()
        log.write_bytes(data)
        record = json.loads(before)
        record["files"]["rank-0.out"] = {
            "bytes": len(data),
            "sha256": hashlib.sha256(data).hexdigest(),
        }
        path.write_text(json.dumps(record))
        _judge_malformed(controller, case, "node1")
        log.write_bytes(whole)
        path.write_bytes(before)
    _judge_collect(controller, sick, sound)
    assert controller.orch("summarize", "--json").json["rows"] == good


def _judge_collect(controller: Controller, sick: Path, sound: Path) -> None:
    """What is damaged here keeps nothing else from coming home, and is replaced where the node has
    it whole.
    """
    record, manifest, log = (
        sick / "logs" / "node1" / "exit.json",
        sick / "manifest.json",
        sound / "logs" / "node2" / "rank-1.out",
    )
    before, text = record.read_bytes(), manifest.read_bytes()
    for damaged, code, said in ((record, 0, ""), (manifest, 4, "manifest.json: expected JSON")):
        damaged.write_bytes(b"<html>")
        kept = log.read_bytes()
        log.unlink()
        done = controller.orch("collect")
        assert done.code == code and said in done.err, done
        assert log.read_bytes() == kept and record.read_bytes() == before, done
        manifest.write_bytes(text)


def _logs(path: Path, full: bool) -> dict[str, bytes]:
    """Return logs that the node vouches for, and that are no log of the run all the same."""
    data = path.read_bytes()
    closing = data[data.index(b"orch done ") :]
    cases = {
        "an empty log": b"",
        "no last step": b"".join(
            line for line in data.splitlines(True) if not line.startswith(b"orch step=4 ")
        ),
        "no closing line": data.replace(closing, b""),
        "another world": data.replace(b'"world_size": 2', b'"world_size": 3'),
        "another rank": data.replace(b"orch rank=0 ", b"orch rank=1 "),
        "a rank twice": data
        + next(line for line in data.splitlines(True) if line.startswith(b"orch rank=")),
        "ends in a deep value": data.replace(closing, b"orch done " + b'{"a":' * 20_000 + b"\n"),
        "samples that are no number": data.replace(b"samples=8", b"samples=1e999"),
        "another batch": data.replace(b"samples=8", b"samples=9"),
        "time that goes back": re.sub(rb"step=3 t=[0-9.]+", b"step=3 t=0.000001", data),
    }
    return cases if full else dict(list(cases.items())[:4])


def _judge_malformed(controller: Controller, case: str, place: str) -> None:
    """The damaged run is reported with its place and has no number; the other one counts."""
    began = time.monotonic()
    done = controller.orch("summarize", "--json")
    assert judge.in_time(time.monotonic() - began, 30), (
        f"{case}: took {time.monotonic() - began:.1f} s"
    )
    assert "Traceback" not in done.err and done.out, f"{case}: {done}"
    rows = done.json["rows"]
    assert [(entry["n"], entry["failed"]) for entry in rows] == [(1, 1)], f"{case}: {rows}"
    failures = " ".join(text for entry in rows for text in entry["failures"])
    assert place in failures, f"{case}: {failures}"
    assert len(failures) < 2000, f"{case}: {len(failures)} characters of failures"


FLOOD = r"""
def start():
    if RANK == 1:
        block = ("flood " * 10_000 + "\n") * 16
        while True:
            sys.stdout.write(block)
            sys.stderr.write(block)
"""
CROWD = r"""
def start():
    if RANK == 1:
        for number in range(COUNT):
            open(f"logs/crowd-{number}.out", "w").close()
"""
GIANT = r"""
def start():
    if RANK == 1:
        with open("logs/giant.out", "w") as file:
            file.truncate(8 << 40)
"""


class Memory(threading.Thread):
    """Samples how much memory a process has resident, from outside."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.pid, self.peak_bytes, self.over = pid, 0, threading.Event()

    def run(self) -> None:
        """Sample until told to stop, or until the process is gone."""
        while not self.over.wait(0.02):
            try:
                pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
            except (OSError, IndexError):
                return
            self.peak_bytes = max(self.peak_bytes, pages * 4096)


@row("H5", "a flood of output, of files, and one giant file", trials=5, limit_s=300)
def flood(trial: Trial) -> None:
    controller = trial.controller
    count = 100_000 if trial.full else 5_000
    for case, code in (
        ("flood", FLOOD),
        ("crowd", CROWD.replace("COUNT", str(count))),
        ("giant", GIANT),
    ):
        words = workload(controller, code, name=case)
        process = controller.start(
            *words, "--nodes", "2", "--set", "pause_ms=200", "--steps", "20", "--output-limit", "64"
        )
        memory = Memory(process.pid)
        memory.start()
        done = controller.end(process, 200)
        memory.over.set()
        assert memory.peak_bytes < 200 << 20, f"{case}: {memory.peak_bytes >> 20} MiB resident"
        assert done.code == 1 and re.search(
            "node2: more than [0-9]+ (bytes of logs|log files)", messages(done)
        ), done
        size = sum(
            path.stat().st_blocks * 512 for path in controller.bench.rglob("*") if path.is_file()
        )
        assert size < 1 << 30, f"{case}: {size >> 20} MiB on the controller's disk"
        here = controller.runs[-1] / "logs" / "node1" / "rank-0.out"
        assert here.is_file() and judge.sha256(here) == judge.sha256(
            controller.node_run("node1") / "logs" / "rank-0.out"
        ), case
        assert judge.ours(trial.lab) == [], f"{case}: {judge.ours(trial.lab)}"
        for node in ("node1", "node2"):
            shutil.rmtree(controller.node_run(node))
        shutil.rmtree(controller.bench)


def long_log(byte_count: int) -> str:
    """Return code of a workload whose first rank writes so many bytes of text that compress badly,
    before its steps.
    """
    return f"""
def start():
    left = {byte_count} if RANK == 0 else 0
    while left > 0:
        text = os.urandom(1 << 15).hex() + chr(10)
        sys.stdout.write(text[-left:])
        left -= len(text)
"""


@row("H7", "a good run whose log nearly reaches the output limit", limit_s=180)
def nearly_too_long(trial: Trial) -> None:
    controller, limit = (
        trial.controller,
        trial.random.choice((1, 9, 24, 100) if trial.full else (9,)),
    )
    share = trial.random.uniform(0.5, 0.97)
    words = workload(controller, long_log(int(share * (limit << 20))))
    done = controller.orch(*words, "--nodes", "2", "--output-limit", str(limit))
    assert done.code == 0, f"{share:.0%} of {limit} MiB: {messages(done)}"
    controller.assert_all_bytes_are_home("node1", "node2")
    rows = controller.orch("summarize", "--json").json["rows"]
    assert [entry["n"] for entry in rows] == [1], rows
    again = controller.orch("collect")
    assert again.code == 0 and "1 of 1 runs were already complete" in again.out, again


LIE = r"""
class Quiet:
    def __init__(self, stream):
        self.stream = stream
    def write(self, text):
        if "orch step=4 " not in text:
            self.stream.write(text)
    def flush(self):
        self.stream.flush()
sys.stdout = Quiet(sys.stdout)
"""


@row("H6", "a node that says all went well, and a log that says otherwise")
def lying(trial: Trial) -> None:
    controller = trial.controller
    words = workload(controller, LIE)
    done = controller.orch(*words, "--nodes", "2")
    rows = controller.orch("summarize", "--json").json["rows"]
    assert [(entry["n"], entry["median"]) for entry in rows] == [(0, None)], rows
    assert done.code == 4 and "node1" in messages(done), done
    honest = controller.orch(*workload(controller, "", name="honest"), "--nodes", "2")
    assert honest.code == 0, honest
    log = controller.runs[-1] / "logs" / "node1" / "rank-0.out"
    data = bytearray(log.read_bytes())
    data[trial.random.randrange(len(data))] ^= 1
    log.write_bytes(bytes(data))
    summary = controller.orch("summarize", "--json")
    rows = summary.json["rows"]
    assert [(entry["n"], entry["median"]) for entry in rows] == [(0, None)], rows
    assert "SHA-256" in rows[0]["failures"][0] and summary.code == 4, summary
