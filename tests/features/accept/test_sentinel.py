"""The node test as a file of its own, run as a node would run it."""

from __future__ import annotations

import fcntl
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from noderun.evidence import add_look, score_limit
from orchestrator.cli.main import whole
from orchestrator.errors import ConfigError
from orchestrator.features.accept.sentinel import (
    node_test_source,
    refuse_options,
    write_node_test,
)
from tests.support import commands
from tests.support.judge import LIMIT_S, wait_for


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sentinel") / "orch-node-test"
    write_node_test(path, [])
    return path


PATIENT = ("--busy", "1000", "--limit", str(LIMIT_S))
"""Count looks on a machine where others compute, and wait for them."""


def call(
    program: Path, state: Path, *options: str, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    argv = [str(program), "--state", str(state), "--python", sys.executable, *PATIENT, *options]
    return subprocess.run(argv, capture_output=True, text=True, check=False, env=env)


def call_alone(
    program: Path, state: Path, *options: str, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Look again until no other process, such as one of another test, computes on the same GPUs."""
    end = time.monotonic() + LIMIT_S
    while True:
        done = call(program, state, "--seconds", "0.5", "--interval", "0", *options, env=env)
        others = re.search("in use by process|began to compute in the look", done.stdout)
        if not others or time.monotonic() > end:
            return done


def gpus_of(program: Path, state: Path) -> int:
    """Return how many GPUs the machine of the tests has."""
    present = json.loads(call(program, state, "--show", "--json").stdout)["present"]
    return sum(not device.startswith("cpu-") for device in present)


def evidence(state: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((state / "evidence.json").read_text())
    return value


def live(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def slow_node(program: Path, tmp_path: Path) -> Path:
    """The state of a node whose device was slow in many looks until now."""
    return write_looks(program, tmp_path, 0.8)


def write_looks(program: Path, tmp_path: Path, last: float) -> Path:
    """Write the state of a node whose device did as much in its last 20 looks as that, and 1.0 in 40
    before.
    """
    done = call(program, tmp_path, "--show")
    assert done.returncode == 0, done
    device = next(iter(json.loads(call(program, tmp_path, "--show", "--json").stdout)["present"]))
    now, known = time.time(), {device: {"name": "cpu", "metrics": {}}}
    for number in range(60):
        value = 1.0 if number < 40 else last
        add_look(
            known,
            {device: {"gemm": value}},
            now - (60 - number) * 7200,
            0.05,
            score_limit(1, 5, 96, 1e-4),
        )
    known[device].update(first=now - 120 * 3600, last=now, looks=60, serial="S1")
    (tmp_path / "evidence.json").write_text(json.dumps({"version": 1, "devices": known}))
    return tmp_path


def test_a_look_times_the_processor_and_the_next_one_waits(program: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    done = call_alone(program, tmp_path, "--json")
    told = json.loads(done.stdout)
    assert (done.returncode, told["verdict"]) == (0, "good"), done
    ((device, result),) = told["measured"].items()
    copies = set() if device.startswith("cpu-") else {"h2d", "d2h"}
    assert (
        set(result["values"]) == {"gemm", "memory"} | copies and min(result["values"].values()) > 0
    )
    assert not list(tmp_path.glob("orch-node-test-*")), "programs were left"
    again = call(program, tmp_path)
    assert again.returncode == 0 and "not measured: last look " in again.stdout, again
    assert [known["looks"] for known in evidence(tmp_path)["devices"].values()] == [1]


def test_slurms_bare_environment_is_enough_and_its_name_of_the_node_counts(
    program: Path, tmp_path: Path
) -> None:
    found = gpus_of(program, tmp_path)
    expected = str(found + 8)
    hook = ("--gpus", expected, "--on-fail", f'echo "$HOME $ORCH_NODE $PATH" >{tmp_path}/told')
    done = call_alone(program, tmp_path, *hook, env={"SLURMD_NODENAME": "gpu7"})
    assert done.stdout == (
        f"orch-node-test gpu7: failed: node: expected {expected} GPUs, found {found}; "
        "--on-fail of node: ended with 0\n"
    ), done
    home, name, path = (tmp_path / "told").read_text().split(" ")
    assert (home, name) == ("", "gpu7") and "/usr/sbin" in path


def test_a_look_is_not_made_while_others_compute(program: Path, tmp_path: Path) -> None:
    if gpus_of(program, tmp_path):
        pytest.skip("the processor is timed where there are no GPUs")
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as other:
        done = call(program, tmp_path, "--busy", "0.1")
        other.kill()
    assert done.returncode == 0 and "not measured: others use " in done.stdout, done
    assert (evidence(tmp_path)["devices"], evidence(tmp_path)["faults"]) == ({}, {})


def test_one_look_at_a_time(program: Path, tmp_path: Path) -> None:
    with (tmp_path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = call(program, tmp_path)
    assert (done.returncode, done.stdout.split(": ", 1)[1]) == (
        0, "not measured: another look at this node is in progress\n",
    )  # fmt: skip


def test_a_fault_stands_until_a_look_without_it_and_a_killed_look_leaves_nothing(
    program: Path, tmp_path: Path
) -> None:
    silent, told, pid = (tmp_path / name for name in ("silent", "told", "pid"))
    silent.write_text(f"#!/bin/sh\necho $$ >{pid}.part\nmv {pid}.part {pid}\nexec sleep 10000\n")
    silent.chmod(0o755)
    argv = [str(program), "--state", str(tmp_path), "--python", str(silent), *PATIENT]
    end = time.monotonic() + LIMIT_S
    while not pid.exists() and time.monotonic() < end:  # others may compute on the same GPUs
        with subprocess.Popen(argv) as killed:
            wait_for(lambda: pid.exists() or killed.poll() is not None, LIMIT_S, "it waits")
            killed.kill()
    wait_for(lambda: not live(int(pid.read_text())), LIMIT_S, "it outlives the test")
    assert list(tmp_path.glob("orch-node-test-*"))
    hook = ("--on-fail", f"echo $ORCH_REASON >>{told}")
    done = call_alone(program, tmp_path, "--python", str(silent), "--limit", "0.5", *hook)
    assert done.returncode == 5 and "no answer, on " in done.stdout, done
    assert not list(tmp_path.glob("orch-node-test-*"))
    again = call(program, tmp_path, *hook)
    assert again.returncode == 5 and "no answer, on " in again.stdout, again
    assert told.read_text().startswith("no answer, on ") and told.read_text().count("\n") == 1
    pytest.importorskip("torch")
    mended = call_alone(program, tmp_path, *hook)
    assert mended.returncode == 0 and evidence(tmp_path)["acted"] == {}, mended


def test_a_device_as_fast_as_its_past_is_good(program: Path, tmp_path: Path) -> None:
    state = write_looks(program, tmp_path, 0.99)
    (known,) = evidence(state)["devices"].values()
    assert known["metrics"]["gemm"]["scores"]["past"]["slower"] == []
    done = call(program, state, "--show")
    assert (done.returncode, done.stdout.split(": ", 1)[1]) == (0, "good\n"), done


def test_a_device_that_was_slow_fails_with_its_serial_until_it_is_forgotten(
    program: Path, slow_node: Path
) -> None:
    done = call(program, slow_node)
    assert (
        done.returncode == 5
        and "(serial S1, cpu): gemm 25.0% slower than its past in 20 of 20 looks" in done.stdout
    )
    assert call(program, slow_node, "--forget", "all").returncode == 0
    assert evidence(slow_node)["devices"] == {}


def test_a_hook_is_shown_runs_once_and_again_only_if_it_failed(
    program: Path, slow_node: Path
) -> None:
    told = slow_node / "told"
    hook = f'echo "$ORCH_NODE $ORCH_REASON" >> {told}; echo heard; test -e {slow_node}/up'
    shown = call(program, slow_node, "--show", "--on-fail", hook)
    assert shown.returncode == 5 and "would run: env ORCH_NODE=" in shown.stdout
    assert not told.exists()
    for number in (1, 2):
        done = call(program, slow_node, "--on-fail", hook)
        assert done.returncode == 5 and done.stdout.endswith(": ended with 1\n"), done
        assert done.stderr == "heard\n"
        assert len(told.read_text().splitlines()) == number
    (slow_node / "up").touch()
    for _ in range(2):
        call(program, slow_node, "--on-fail", hook)
    lines = told.read_text().splitlines()
    assert len(lines) == 3 and lines[0].startswith(f"{os.uname().nodename} gemm 25.0% slower")


def test_a_hook_sees_the_verdict_with_its_evidence(program: Path, slow_node: Path) -> None:
    hook = f'env | grep ^ORCH_ >{slow_node}/told; cp "$ORCH_EVIDENCE" {slow_node}/copy; exit 3'
    told = json.loads(call(program, slow_node, "--json", "--on-fail", hook).stdout)
    (device,) = told["failed"]
    assert told["hooks"] == {device: "ended with 3"}
    seen = dict(line.split("=", 1) for line in (slow_node / "told").read_text().splitlines())
    assert (seen["ORCH_DEVICE"], seen["ORCH_SERIAL"], seen["ORCH_VERDICT"]) == (
        device, "S1", "failed",
    )  # fmt: skip
    assert seen["ORCH_REASON"] == told["failed"][device]
    copy = json.loads((slow_node / "copy").read_text())
    assert copy["devices"][device]["metrics"]["gemm"]["scores"]["past"]["named"] is True


def test_every_option_of_a_suite_is_refused_with_what_to_do_instead(tmp_path: Path) -> None:
    refused = {
        param.opts[0]
        for param in whole().commands["accept"].params
        if param.param_type_name == "option"
    } - {"--output", "--templates", "--help"}
    assert {"--hosts", "--sign", "--dry-run", "--json", "--wait", "--budget"} <= refused
    for option in refused:
        with pytest.raises(ConfigError, match="expected a suite to run, got sentinel") as error:
            refuse_options([option[2:].replace("-", "_")])
        assert error.value.where == option and error.value.hint
    done = commands.orch(tmp_path, "accept", "sentinel", "--hosts", "node1")
    assert done.returncode == 2 and "copy the file to each node" in done.stderr
    assert not list(tmp_path.iterdir())


def test_it_prints_what_its_page_tells_to_copy(tmp_path: Path) -> None:
    done = commands.orch(tmp_path, "accept", "sentinel", "--output", str(tmp_path / "node-test"))
    assert done.returncode == 0 and os.access(tmp_path / "node-test", os.X_OK), done
    page = (commands.REPOSITORY / "docs" / "sentinel.md").read_text()
    blocks = [re.search(rf"```{kind}\n([^`]+)```", page) for kind in ("sh", "crontab")]
    told = [line.strip() for block in blocks if block for line in block[1].splitlines()]
    assert len(told) == 9
    assert set(told) - {line.strip() for line in done.stdout.splitlines()} == {
        "# /etc/cron.d/orch-node-test"
    }


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"version": 1, "devices": {"a": {}}}', '{"version": "1"}', "\udcff"]
)
def test_evidence_that_cannot_be_read_is_put_aside(
    program: Path, tmp_path: Path, text: str
) -> None:
    (tmp_path / "evidence.json").write_text(text, errors="surrogateescape")
    done = call(program, tmp_path, "--show")
    assert done.returncode == 0 and "Traceback" not in done.stderr
    assert evidence(tmp_path)["devices"] == {}
    assert len(list(tmp_path.glob("evidence.json.unreadable-*"))) == bool(text)


def test_evidence_of_a_later_version_is_left(program: Path, tmp_path: Path) -> None:
    (tmp_path / "evidence.json").write_text('{"version": 2, "devices": {}}')
    done = call(program, tmp_path, "--show")
    assert done.returncode == 2 and "later version: expected 1, got 2" in done.stderr
    assert evidence(tmp_path)["version"] == 2


def test_a_missing_gpu_and_a_missing_device_fail(program: Path, slow_node: Path) -> None:
    state = evidence(slow_node)
    state["devices"]["GPU-1"] = {**next(iter(state["devices"].values())), "serial": "S2"}
    (slow_node / "evidence.json").write_text(json.dumps(state))
    found = gpus_of(program, slow_node)
    done = call(program, slow_node, "--gpus", str(found + 8))
    assert done.returncode == 5 and "GPU-1 (serial S2, cpu): was here on" in done.stdout
    assert f"expected {found + 8} GPUs, found {found}" in done.stdout


def test_a_python_without_torch_is_told(program: Path, tmp_path: Path) -> None:
    done = call(program, tmp_path, "--python", "/usr/bin/python3")
    if done.returncode == 0:
        pytest.skip("this computer's own Python has PyTorch")
    assert done.returncode == 2 and "No module named 'torch'" in done.stderr


def test_another_file_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "orch-node-test"
    path.write_text("mine")
    with pytest.raises(ConfigError, match="expected no file, or an earlier orch-node-test"):
        write_node_test(path, [])


def test_references_of_gpus_are_in_the_file() -> None:
    source = node_test_source([])
    assert '["NVIDIA H200", "gemm", 668.76, 0.08]' in source
    compile(source, "orch-node-test", "exec")
