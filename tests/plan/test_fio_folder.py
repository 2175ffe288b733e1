"""The folder for fio: what is read in its JSON, and what a run of it leaves behind, with the real
fio where it is installed.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import ConfigError
from orchestrator.inventory.hosts import Host
from orchestrator.logs.parse import parse
from orchestrator.plan.bench import plan_run
from orchestrator.plan.render import Plan
from orchestrator.plan.spec import resolve
from orchestrator.procs import cmdline, end_all, snapshot
from tests.support.judge import LIMIT_S
from tests.support.rendering import opened

ROOT = Path(__file__).resolve().parents[2]
READER = ROOT / "templates" / "fio" / "fio_reading.py"
RESULT = Path(__file__).parents[1] / "data" / "programs" / "fio.json"
"""What fio 3.33 wrote in the run whose log is sample.log."""
needs_fio = pytest.mark.skipif(not shutil.which("fio"), reason="no fio here")


def read(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    file = folder / "fio.json"
    file.write_text(text, encoding="utf-8")
    argv = [sys.executable, "-I", "-S", str(READER), str(file)]
    return subprocess.run(argv, capture_output=True, text=True, timeout=LIMIT_S, check=False)


def planned(model: str = "randread", **sets: str) -> Plan:
    folder = opened("fio")
    variables = {"python": sys.executable, "runner_python": sys.executable}
    own = {key: sets.pop(key) for key in ("fio_directory",) if key in sets}
    steps = {"nodes": 1, "gpus": 2, "steps": int(sets.pop("steps", "2")), "warmup_steps": 1}
    choices = steps | {f"options.{name}": text for name, text in sets.items()}
    spec = resolve(folder.framework, model, device="cpu", choices=choices)
    host = Host("node1", "10.11.0.2", slots=2, vars=variables | own)
    return plan_run(folder, spec, [host], run_id="b1.001", repeat=1, port=20000)


def staged(plan: Plan, folder: Path) -> Path:
    """Return the run's directory, with its files and the payload where the launch script looks for
    it.
    """
    run = folder / "nodes" / "node1" / "runs" / "b1.001"
    (run / "logs").mkdir(parents=True)
    for file in plan.nodes[0].files:
        (run / file.path).write_text(file.content)
    script = (run / "launch.sh").read_text()
    payload = next(word for word in script.split() if word.endswith("/fio_reading.py"))
    (run / payload).resolve().parent.mkdir(parents=True)
    shutil.copy(READER, (run / payload).resolve())
    return run


def test_the_json_of_a_run_gives_the_lines_of_its_log(tmp_path: Path) -> None:
    done = read(RESULT.read_text(), tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    log = (ROOT / "templates" / "fio" / "sample.log").read_text()
    assert len(done.stdout.splitlines()) == 3 and log.endswith(done.stdout)
    # Older versions write their notes into the same file.
    assert (
        read(
            "fio: this platform does not support process shared mutexes\n" + RESULT.read_text(),
            tmp_path,
        ).stdout
        == done.stdout
    )


def changed(**values: Any) -> str:
    """Return the JSON of the run with other values in its job."""
    result = json.loads(RESULT.read_text())
    result["jobs"][0].update(values)
    return json.dumps(result)


NOTHING: dict[str, Any] = {"total_ios": 0}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("fio: failed to open the file\n", "expected the JSON of fio, got none"),
        (changed(error=28), "expected a job without error, got errno 28"),
        (changed(read=NOTHING, write=NOTHING), "expected accesses after the warm-up, got none"),
        (
            changed(read={"total_ios": 7, "bw": 12}),
            "expected the JSON of fio 3, got one without 'clat_ns'",
        ),
        (
            '{"fio version": "fio-3.33", "jobs": []}',
            "expected one job, got 0; fio needs group_reporting",
        ),
        ('{"fio version": ', "fio.json: "),
    ],
    ids=["no JSON", "an error", "no access", "another version", "no job", "cut"],
)
def test_a_file_without_a_result_is_named_and_gives_no_line(
    text: str, words: str, tmp_path: Path
) -> None:
    done = read(text, tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert words in done.stderr and "fio.json" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        ({"read_percent": "100"}, "expected 1 to 99"),
        ({"directory": "scratch"}, "expected a path that begins with /, got scratch"),
    ],
)
def test_what_fio_cannot_do_is_refused_while_planning(sets: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        planned("randrw", **sets)
    assert caught.value.kind != "template_error"


@pytest.mark.parametrize(
    ("sets", "directory"),
    [
        ({}, "files=./fio-b1.001-node1"),
        ({"fio_directory": "/data/a b"}, "files='/data/a b'/fio-b1.001-node1"),
        ({"fio_directory": "/data", "directory": "/scratch"}, "files=/scratch/fio-b1.001-node1"),
    ],
)
def test_files_are_where_the_option_says_or_the_host(sets: dict[str, str], directory: str) -> None:
    script = next(
        file.content
        for file in planned("randwrite", **sets).nodes[0].files
        if file.path == "launch.sh"
    )
    assert f"\n{directory}\n" in script


@needs_fio
@pytest.mark.parametrize(
    ("model", "directions"), [("randrw", {"read", "write"}), ("write", {"write"})]
)
def test_a_run_measures_each_direction_and_removes_its_files(
    model: str, directions: set[str], tmp_path: Path
) -> None:
    odd = tmp_path / "a:b $(touch pwned) 'c"
    odd.mkdir()
    run = staged(
        planned(model, size="4m", ioengine="psync", direct="false", directory=str(odd)), tmp_path
    )
    done = subprocess.run(
        ["/bin/bash", "launch.sh"],
        cwd=run,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    found = {
        line["direction"]: line
        for line in parse(done.stdout.encode(), opened("fio").framework.log).readings
    }
    assert found.keys() == directions
    job = json.loads((run / "logs" / "fio.json").read_text())["jobs"][0]
    for direction, line in found.items():
        assert float(line["bytes_per_s"]) == job[direction]["bw_bytes"] > 0
        assert float(line["lat_mean_us"]) == pytest.approx(
            job[direction]["clat_ns"]["mean"] / 1000, abs=0.001
        )
    assert list(odd.iterdir()) == [] and not list(tmp_path.rglob("pwned"))


@needs_fio
def test_a_run_that_is_stopped_removes_its_files(tmp_path: Path) -> None:
    run = staged(
        planned(
            size="4m",
            ioengine="psync",
            direct="false",
            directory=str(tmp_path / "files"),
            steps="60",
        ),
        tmp_path,
    )
    files = tmp_path / "files"
    with subprocess.Popen(
        ["/bin/bash", "launch.sh"], cwd=run, stdout=subprocess.DEVNULL, start_new_session=True
    ) as launch:
        try:
            deadline = time.monotonic() + LIMIT_S
            while len(list(files.rglob("randread.*"))) < 2 and time.monotonic() < deadline:
                time.sleep(0.05)
            assert len(list(files.rglob("randread.*"))) == 2
            os.killpg(launch.pid, signal.SIGTERM)
            assert launch.wait(LIMIT_S) != 0
        finally:  # fio may miss the signal in its first moment, and its workers have own sessions
            with suppress(ProcessLookupError):
                os.killpg(launch.pid, signal.SIGKILL)
            end_all(lambda: {one: stat for one, stat in snapshot().items() if _is_of(one, files)})
    assert list(files.iterdir()) == []


def _is_of(pid: int, folder: Path) -> bool:
    """Return True for a process whose command names a folder, as a supervisor would end it."""
    return os.fsencode(folder) in cmdline(pid)
