"""Nodes that are not as one would like them: shells, start-up files, interpreters, bytes, paths,
clocks.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from orchestrator.plan.framework import run_path
from tests.e2e.rig import Controller
from tests.faults.rows.common import QUICK, running
from tests.faults.rows.network import CHATTER, serving, stopping
from tests.faults.suite import Trial, row
from tests.support import faults, judge

DAY_S = 86400.0


def inventory(controller: Controller, changes: Mapping[str, Mapping[str, Any]]) -> str:
    """Write the lab's inventory with changed hosts; return its path."""
    text = controller.lab.inventory.read_text()
    for name, change in changes.items():
        lines = "".join(f"    {key}: {json.dumps(value)}\n" for key, value in change.items())
        text = text.replace(f"  {name}:\n", f"  {name}:\n{lines}")
    path = controller.project / "changed.yaml"
    path.write_text(text)
    return str(path)


# ------------------------------------------------------------------ E1: accounts


@contextmanager
def account(
    controller: Controller, node: str, name: str, shell: str, home: str = "/root"
) -> Iterator[None]:
    """Have one more login of the superuser on a node, with a shell and a home of its own."""
    passwd = controller.lab.node(node).folder / "etc" / "passwd"
    before = passwd.read_text()
    # In place, since the node sees this very file.
    passwd.write_text(f"{before}{name}:x:0:0:{name}:{home}:{shell}\n")
    try:
        yield
    finally:
        passwd.write_text(before)


@row("E1", "login shells csh and dash; no login at all; no home", trials=5)
def login_shells(trial: Trial) -> None:
    controller = trial.controller
    shells = [path for path in map(shutil.which, ("csh", "dash", "tcsh", "zsh", "fish")) if path]
    with ExitStack() as accounts:
        chosen = {}
        for node, shell in zip(trial.random.sample(trial.nodes, 4), shells, strict=False):
            name = Path(shell).name
            accounts.enter_context(account(controller, node, name, shell))
            chosen[node] = {"ssh": {"user": name}}
        done = controller.orch(
            "bench", *QUICK, "--nodes", "4", "--gpus", "1", "--hosts", inventory(controller, chosen)
        )
        assert done.code == 0, done
        trial.keep()
    other = trial.rival("refused")
    nologin, homeless = trial.random.sample(trial.nodes, 2)
    shut = shutil.which("nologin", path="/usr/sbin:/sbin") or "/usr/sbin/nologin"
    with (
        account(other, nologin, "shut", shut),
        account(other, homeless, "homeless", "/bin/sh", home="/no/such/home"),
    ):
        changed = inventory(
            other, {nologin: {"ssh": {"user": "shut"}}, homeless: {"ssh": {"user": "homeless"}}}
        )
        done = other.orch("bench", *QUICK, "--nodes", "4", "--gpus", "1", "--hosts", changed)
    said = {
        line.split(": ")[1]: line for line in done.err.splitlines() if line.startswith("orch: ")
    }
    assert done.code == 1 and sorted(said) == sorted({nologin, homeless}), done
    assert "shut" in said[nologin] and "shell" in said[nologin] and "chsh" in said[nologin], said
    assert "/no/such/home" in said[homeless] and "workdir" in said[homeless], said
    assert judge.ours(trial.lab) == []


# ------------------------------------------------------------------ E2: start-up files

_TEXT = 'echo welcome; echo \'ORCH 0123456789abcdef\'; echo \'{"error": {"kind": "node_busy"}}\'; echo noise >&2\n'
_BYTES = "printf '\\000\\001\\377\\376%s\\033[2J\\r\\n' \"$(head -c 200000 /dev/urandom)\"\n"
_READS = "read -t 2 line; read -t 2 line\n"
_SLOW = "sleep 3\n"


@row("E2", "start-up files that print, read, or take their time", limit_s=300, trials=8)
def noisy_login(trial: Trial) -> None:
    controller = trial.controller
    quiet = _facts(controller)
    noises = [_TEXT, _BYTES, _READS, *([_SLOW] if trial.full else [])]
    files = {node: trial.lab.node(node).home / ".bashrc" for node in trial.nodes}
    try:
        for path, noise in zip(files.values(), trial.random.sample(noises * 2, 4), strict=True):
            path.write_text(noise)
        noisy = _facts(controller)
        assert noisy == quiet
        done = controller.orch("bench", *QUICK, "--nodes", "4", "--gpus", "1", timeout_s=200)
    finally:
        for path in files.values():
            path.unlink(missing_ok=True)
    assert done.code == 0, done
    trial.keep()
    (row_,) = controller.orch("summarize", "--json").json["rows"]
    assert (row_["n"], row_["failed"]) == (1, 0), row_


def _facts(controller: Controller) -> dict[str, dict[str, Any]]:
    """Return what nodes say of themselves, without what differs from one moment to the next."""
    done = controller.orch("check", "-f", "simulated", "--json", timeout_s=120)
    assert done.code == 0, done
    passing = (
        "time",
        "login_s",
        "workdir_first",
        "disk_free_bytes",
        "disk_free_inodes",
        "memory_free_bytes",
        "load",
    )
    return {
        host: {key: value for key, value in values.items() if key not in passing}
        for host, values in done.json["facts"].items()
    }


# ------------------------------------------------------------------ E3: interpreters


@row("E3", "interpreters that are missing, or lack the framework", trials=5)
def missing_interpreters(trial: Trial) -> None:
    controller = trial.controller
    nothing, bare, runner = trial.random.sample(trial.nodes, 3)
    changes = {
        nothing: {"vars": {"python": "/opt/none/bin/python"}},
        bare: {"vars": {"python": "/bin/false"}},
        runner: {"vars": {"runner_python": "/opt/none/bin/runner"}},
    }
    done = controller.orch(
        "bench", *QUICK, "--nodes", "4", "--gpus", "1", "--hosts", inventory(controller, changes)
    )
    said = {
        line.split(": ")[1]: line for line in done.err.splitlines() if line.startswith("orch: ")
    }
    assert done.code == 1 and sorted(said) == sorted(changes), done
    expected = {nothing: ("/opt/none/bin/python", "vars.python"), bare: ("/bin/false", "vars.python"),
                runner: ("/opt/none/bin/runner", "vars.runner_python")}  # fmt: skip
    assert all(word in done.err for words in expected.values() for word in words), done
    assert all(expected[name][0] in line for name, line in said.items()), said
    assert judge.ours(trial.lab) == [] and not list(controller.project.glob("runs/*/*/logs"))


# ------------------------------------------------------------------ E4: bytes


@row("E4", "output of every byte there is, split characters, no end of line", trials=5)
def every_byte(trial: Trial) -> None:
    controller = trial.controller
    words = ("--set", f"random_mb={20 if trial.full else 1}")
    done = controller.orch("bench", *CHATTER, "--nodes", "4", "--gpus", "1", *words)
    assert done.code == 0 and "\x1b" not in done.out + done.err, done
    trial.keep()
    for rank, name in enumerate(trial.nodes):
        assert (
            bytes(range(256)) * 2
            in (controller.runs[-1] / "logs" / name / f"rank-{rank}.out").read_bytes()
        )
    for rank, stream in ((0, "out"), (1, "out"), (2, "err")):
        into = ("/bin/sh", "-c", '"$@" >shown', "sh", *controller.program)
        words = ("logs", "--raw", "--rank", str(rank), *(["--err"] if stream == "err" else []))
        done = controller.end(controller.start(*words, program=into), 30)
        assert done.code == 0 and "Traceback" not in done.err, done
        log = controller.runs[-1] / "logs" / trial.nodes[rank] / f"rank-{rank}.{stream}"
        assert judge.sha256(controller.project / "shown") == judge.sha256(log)
    for command in ("summarize", "collect"):
        done = controller.orch(command)
        assert done.code == 0 and "Traceback" not in done.err and "\x1b" not in done.out, (
            command,
            done,
        )


# ------------------------------------------------------------------ E5: paths and values

_ODD = (
    "plain",
    "two words",
    'don\'t "quote" `this`',
    "$(touch /root/planted) ${HOME} $HOME",
    "; touch /root/planted #",
    "& | > < * ? [a-z] ~ ! {1..3}",
    "line one\nline two\n",
    "tab\tand\rreturn",
    "grün 東京 \U0001f680 e\u0301",
    "-n --help",
    "",
    "back\\slash \\n \\\\",
    "{{ 7 * 7 }} {% raw %} {# x #}",
    "%s %d %%",
    "x" * 4096,
)


@row("E5", "odd paths and values, in the work directory, options and variables", trials=15)
def odd_values(trial: Trial) -> None:
    """They arrive as they were, or are refused before anything is contacted, naming file and line."""
    controller = trial.controller
    words, variable = trial.random.choice(_ODD), trial.random.choice(_ODD)
    folder = trial.random.choice(
        [word for word in _ODD if "\n" not in word and "/" not in word and word][:-1]
    )
    workdir = f"/root/odd/{folder}"
    home = {name: trial.lab.node(name).home for name in trial.nodes}
    changed = inventory(
        controller, {"node2": {"vars": {"workdir": workdir}, "env": {"ODD": variable}}}
    )
    trial.notes.append(f"{folder[:20]!r} {words[:20]!r} {variable[:20]!r}")
    options = ("--nodes", "2", "--gpus", "1", "--set", f"words={words}", "--hosts", changed)
    try:
        done = controller.orch("bench", *CHATTER, *options)
        assert not any((path / "planted").exists() for path in home.values()), (
            "a value became a command"
        )
        if done.code == 2:
            where = "changed.yaml:" if _ought_to_be_refused(folder) else "--set words: "
            assert where in done.err and "expected" in done.err, done
            assert folder.isprintable() is False or not list(
                controller.project.glob("runs/*/*/manifest.json")
            ), done
            assert _ought_to_be_refused(folder) or "\r" in words, done
            return
        assert done.code == 0, done
        said = json.loads(
            (controller.runs[-1] / "logs" / "node2" / "rank-1.out").read_bytes().splitlines()[1]
        )
        assert said == [
            f"{workdir}/{run_path('node2', controller.runs[-1].name)}",
            words,
            variable,
        ], said
    finally:
        shutil.rmtree(home["node2"] / "odd", ignore_errors=True)
    assert judge.ours(trial.lab) == []


def _ought_to_be_refused(folder: str) -> bool:
    return not folder.isprintable()


# ------------------------------------------------------------------ E6: clocks

_CLOCK_C = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

/* Seconds by which this machine's wall clock is wrong, as the file says at this moment. */
static long off(void) {
    char text[32] = {0};
    int file = open("/root/clock-is-off", O_RDONLY | O_CLOEXEC);
    if (file < 0) return 0;
    if (read(file, text, sizeof text - 1) < 0) text[0] = 0;
    close(file);
    return atol(text);
}

int clock_gettime(clockid_t which, struct timespec *now) {
    int code = syscall(SYS_clock_gettime, which, now);
    if (!code && (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE)) now->tv_sec += off();
    return code;
}

time_t time(time_t *where) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (where) *where = now.tv_sec;
    return now.tv_sec;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}
"""


@contextmanager
def wrong_clock(controller: Controller, node: str, library: Path, off_s: int) -> Iterator[None]:
    """Have a node whose programs see a wall clock that is wrong by so many seconds."""
    home = controller.lab.node(node).home
    shutil.copy(library, home / "clock.so")
    step_clock(controller, node, off_s)
    try:
        with serving(controller, node, 'SetEnv "LD_PRELOAD=/root/clock.so"'):
            yield
    finally:
        (home / "clock-is-off").unlink()
        with suppress(FileNotFoundError):
            (home / "clock.so").unlink()


def step_clock(controller: Controller, node: str, off_s: int) -> None:
    """Set how wrong a node's wall clock is, from now on."""
    whole = controller.lab.node(node).home / "clock-is-off"
    part = whole.with_suffix(".part")
    part.write_text(f"{off_s}\n")
    part.replace(whole)


@row(
    "E6",
    "clocks a day apart that step in mid-run",
    limit_s=180,
    skip=lambda: "" if shutil.which("gcc") else "no gcc",
)
def wrong_clocks(trial: Trial) -> None:
    """Wall clocks by a preloaded library, monotonic ones by the kernel's time namespaces."""
    controller = trial.controller
    library = trial.scratch / "clock.so"
    source = trial.scratch / "clock.c"
    source.write_text(_CLOCK_C)
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-O1", "-o", str(library), str(source)],
        check=True,
        timeout=judge.LIMIT_S,
    )
    ahead, behind = trial.random.sample(trial.nodes, 2)
    aheads = {name: trial.random.uniform(1.0, 300.0) * DAY_S for name in trial.nodes}
    try:
        for name in trial.nodes:
            faults.kill(trial.lab, name)
            faults.boot(trial.lab, name, ahead_s=aheads[name])
        with (
            wrong_clock(controller, ahead, library, 86400),
            wrong_clock(controller, behind, library, -86400),
        ):
            began = time.monotonic()
            process = running(controller, "--steps", "50", "--lease", "5")
            step_clock(controller, ahead, -86400)
            step_clock(controller, behind, 86400)
            done = controller.end(process, 40)
            took_s = time.monotonic() - began
    finally:
        for name in trial.nodes:
            faults.kill(trial.lab, name)
            faults.boot(trial.lab, name)
    assert done.code == 0 and not stopping(controller), done
    manifest = controller.manifest()
    for name, expected in ((ahead, 86400), (behind, -86400)):
        assert abs(manifest["facts"][name]["time"] - time.time() - expected) < 300, (
            "the clock was not wrong"
        )
    start = manifest["start"]
    offsets = {name: host["offset_s"] for name, host in start["hosts"].items()}
    assert all(abs(offsets[name] - aheads[name]) < 0.5 for name in trial.nodes), (offsets, aheads)
    assert start["skew_s"] >= 0, start
    assert judge.in_time(start["skew_s"], 1.0) and judge.in_time(start["bound_s"], 0.5), start
    trial.keep()
    (row_,) = controller.orch("summarize", "--json").json["rows"]
    # 128 samples a step and rank, at least 100 ms each; never more than the whole bench took.
    assert 4 * 128 / (took_s / 50) < row_["median"] < 4 * 128 / 0.1, (row_, took_s)
    stamps = [event["time"] for event in controller.events() if "time" in event]
    assert stamps == sorted(stamps)
    record = controller.exit_record(ahead)
    assert 4.5 < record["ended_mono_s"] - record["started_mono_s"] < took_s, record
