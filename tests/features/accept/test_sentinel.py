"""The node test as a file of its own, run as a node would run it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from noderun.evidence import add_look, score_limit
from orchestrator.errors import ConfigError
from orchestrator.features.accept.sentinel import node_test_source, write_node_test


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sentinel") / "orch-node-test"
    write_node_test(path, [])
    return path


def call(program: Path, state: Path, *options: str) -> subprocess.CompletedProcess[str]:
    argv = [str(program), "--state", str(state), "--python", sys.executable, *options]
    return subprocess.run(argv, capture_output=True, text=True, check=False)


def evidence(state: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((state / "evidence.json").read_text())
    return value


@pytest.fixture
def slow_node(program: Path, tmp_path: Path) -> Path:
    """The state of a node whose device was slow in many looks until now."""
    done = call(program, tmp_path, "--show")
    assert done.returncode == 0, done
    device = next(iter(json.loads(call(program, tmp_path, "--show", "--json").stdout)["present"]))
    now, known = time.time(), {device: {"name": "cpu", "metrics": {}}}
    for number in range(60):
        value = 1.0 if number < 40 else 0.8
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
    done = call(program, tmp_path, "--seconds", "0.5", "--json")
    told = json.loads(done.stdout)
    assert (done.returncode, told["verdict"]) == (0, "good"), done
    (result,) = told["measured"].values()
    assert set(result["values"]) == {"gemm", "memory"} and min(result["values"].values()) > 0
    assert not list(tmp_path.glob("orch-node-test-*")), "programs were left"
    again = call(program, tmp_path)
    assert again.returncode == 0 and "not measured: measured" in again.stdout, again
    assert [known["looks"] for known in evidence(tmp_path)["devices"].values()] == [1]


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


def test_a_hook_runs_once_and_again_only_if_it_failed(program: Path, slow_node: Path) -> None:
    told = slow_node / "told"
    hook = f'echo "$ORCH_NODE $ORCH_REASON" >> {told}; test -e {slow_node}/up'
    for number in (1, 2):
        assert call(program, slow_node, "--on-fail", hook).returncode == 5
        assert len(told.read_text().splitlines()) == number
    (slow_node / "up").touch()
    for _ in range(2):
        call(program, slow_node, "--on-fail", hook)
    lines = told.read_text().splitlines()
    assert len(lines) == 3 and lines[0].startswith(f"{os.uname().nodename} gemm 25.0% slower")


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
    done = call(program, slow_node, "--gpus", "8")
    assert done.returncode == 5 and "GPU-1 (serial S2, cpu): was here on" in done.stdout
    assert "expected 8 GPUs, found 0" in done.stdout


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
