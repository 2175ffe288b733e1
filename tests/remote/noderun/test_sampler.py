"""The process that samples a node during a run: what it leaves, that it delays nothing, and that it
never outlives its supervisor."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from orchestrator.plan.payload import pack, telemetry_source
from orchestrator.record.telemetry import telemetry_of
from tests.support import judge
from tests.support.driver import stand_in
from tests.support.machine import RUN, Line, Machine, rank

REAL = {"packed": pack(telemetry_source()), "device": "cpu", "devices": "0"}
HANGS = """
import os, signal, time
def sample_run(wanted, waiting, path):
    with open(path, "w") as file:
        file.write('{"schema":1,"period_s":1.0,"processors":1,"columns":["t"]}\\n[1.0]\\n[2.0')
    signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 64))
    while True:
        time.sleep(1000)
"""
"""A sampler that never looks at its pipe, as in a driver's call that does not return."""


def samplers(machine: Machine) -> list[int]:
    """The sampling processes of the run."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                at = str((entry / "cwd").readlink())
                if (entry / "comm").read_text() == "orch-sampler\n" and at == str(
                    machine.folder(RUN).resolve()
                ):
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


UNTIL_DONE = """\
import os, time
while not os.path.exists("done"):
    time.sleep(0.02)
"""


def finish(line: Line, machine: Machine) -> Any:
    """Let a rank that runs `UNTIL_DONE` end; return the record of its run."""
    (machine.folder(RUN) / "done").touch()
    return line.wait_for("ended")["record"]


def wait_for_samples(machine: Machine, number: int = 1) -> None:
    path = machine.folder(RUN) / ".orch-samples"
    judge.wait_for(
        lambda: path.exists() and path.read_bytes().count(b"\n") > number,
        10,
        "nothing is sampled",
    )


def test_a_run_leaves_its_samples_among_its_logs_with_their_digest(machine: Machine) -> None:
    line = machine.start(RUN, rank(UNTIL_DONE), telemetry=REAL)
    wait_for_samples(machine, 3)
    record = finish(line, machine)
    data = (machine.folder(RUN) / "logs" / "telemetry.jsonl").read_bytes()
    assert record["files"]["telemetry.jsonl"] == {
        "bytes": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
    }
    samples = telemetry_of(data, "node1")
    assert (
        samples
        and record["started_mono_s"] < samples.times[0]
        and samples.times[-1] <= record["ended_mono_s"]
    )
    assert len(samples.times) >= 2 and samples.points("busy_s")[-1][1] > 0
    assert not samplers(machine) and not (machine.folder(RUN) / ".orch-samples").exists()
    if samples.cost is None:
        pytest.skip("the machine is too busy: the sampler was ended before its last line")
    assert samples.times[-1] - record["ranks"][0]["ended_mono_s"] > -1.5, (
        "the last row is of the end"
    )


def test_no_two_samples_are_of_the_same_millisecond(machine: Machine) -> None:
    """The first and the last of a run that is over at once may be; so are most here."""
    line = machine.start(RUN, rank(UNTIL_DONE), telemetry={**REAL, "period_s": 1e-5})
    wait_for_samples(machine, 12)
    finish(line, machine)
    samples = telemetry_of((machine.folder(RUN) / "logs" / "telemetry.jsonl").read_bytes(), "node1")
    assert samples and len(samples.times) > 10


def test_without_the_order_nothing_is_sampled(machine: Machine) -> None:
    record = machine.start(RUN, "#!/bin/bash\nsleep 1.2\n", telemetry=False).wait_for("ended")[
        "record"
    ]
    assert "telemetry.jsonl" not in record["files"] and record["state"] == "finished"


def test_a_sampler_that_hangs_delays_no_end_and_what_it_wrote_comes_as_whole_lines(
    machine: Machine,
) -> None:
    line = machine.start(
        RUN, rank("import time; time.sleep(100)"), telemetry={"packed": pack(HANGS.encode())}
    )
    wait_for_samples(machine)
    (sampler,) = samplers(machine)
    line.order("stop", reason="enough")
    record = line.wait_for("ended")["record"]
    assert record["reason"] == "enough"
    assert (machine.folder(RUN) / "logs" / "telemetry.jsonl").read_text().splitlines()[1] == "[1.0]"
    judge.wait_for(lambda: not Path(f"/proc/{sampler}").exists(), 3, "it stays")


def with_driver(folder: Path, *flags: str) -> dict[str, Any]:
    """The order to sample two GPUs of the stand-in for NVIDIA's library."""
    source = telemetry_source().decode()
    named = source.replace(
        'LIBRARY = "libnvidia-ml.so.1"', f'LIBRARY = "{stand_in(folder, *flags)}"'
    )
    assert named != source
    return {"packed": pack(named.encode()), "device": "cuda", "devices": "0,1"}


def test_the_gpus_of_the_run_are_sampled(machine: Machine, tmp_path: Path) -> None:
    line = machine.start(RUN, rank(UNTIL_DONE), telemetry=with_driver(tmp_path))
    wait_for_samples(machine, 3)
    finish(line, machine)
    samples = telemetry_of((machine.folder(RUN) / "logs" / "telemetry.jsonl").read_bytes(), "node1")
    assert samples and [gpu.uuid for gpu in samples.gpus] == ["GPU-1b2c", "GPU-1bff"]
    joules = [energy for _, energy in samples.points("gpu1.energy_j")]
    assert joules and joules == sorted(set(joules))  # and its power is not asked for
    assert not samples.points("gpu1.power_w")
    assert [
        (event.kind, event.gpu, event.code) for event in samples.events if event.kind == "xid"
    ] == [("xid", 1, 63)]
    assert not [
        event for event in samples.events if event.kind == "process" and event.pid == os.getpid()
    ]


def test_a_driver_that_does_not_return_delays_no_end(machine: Machine, tmp_path: Path) -> None:
    line = machine.start(
        RUN, rank("import time; time.sleep(100)"), telemetry=with_driver(tmp_path, "-DHANG")
    )
    judge.wait_for(
        lambda: (machine.folder(RUN) / ".orch-samples").exists(), 10, "it does not begin"
    )
    line.order("stop", reason="enough")
    record = line.wait_for("ended")["record"]
    assert record["reason"] == "enough"
    judge.wait_for(lambda: not samplers(machine), 3, "it stays")


def test_it_is_none_of_the_processes_of_the_run(machine: Machine) -> None:
    line = machine.start(RUN, rank(UNTIL_DONE), telemetry=REAL)
    wait_for_samples(machine)
    assert samplers(machine)
    record = finish(line, machine)
    assert record["left_over"] == [] and record["state"] == "finished"


def test_it_dies_with_a_supervisor_that_is_killed(machine: Machine) -> None:
    files = machine.stage(RUN, rank("import time; time.sleep(100)"))
    line = machine.supervisor(RUN)
    machine.arm(line, RUN, files, telemetry=REAL)
    supervisor = line.wait_for("armed")["pid"]
    judge.wait_for(lambda: len(samplers(machine)) == 1, 3, "it is not forked before the start")
    line.order("go", at=None)
    wait_for_samples(machine)
    os.kill(supervisor, signal.SIGKILL)
    judge.wait_for(lambda: not samplers(machine), 3, "it outlives its supervisor")
    machine.ask("stop", run=RUN, grace_s=0.2, reason="the test is over")


def test_one_that_waits_for_the_start_goes_with_its_supervisor(machine: Machine) -> None:
    files = machine.stage(RUN, rank("print(1)"))
    line = machine.supervisor(RUN)
    machine.arm(line, RUN, files, telemetry=REAL)
    os.kill(line.wait_for("armed")["pid"], signal.SIGKILL)
    judge.wait_for(lambda: not samplers(machine), 3, "it waits for ever")


def test_one_that_is_killed_costs_the_run_nothing(machine: Machine) -> None:
    line = machine.start(RUN, rank(UNTIL_DONE), telemetry=REAL)
    wait_for_samples(machine)
    for pid in samplers(machine):
        os.kill(pid, signal.SIGKILL)
    record = finish(line, machine)
    assert record["state"] == "finished" and "telemetry.jsonl" in record["files"]


def test_a_log_of_its_name_stays_the_programs(machine: Machine) -> None:
    code = 'import time; open("logs/telemetry.jsonl", "w").write("mine"); time.sleep(1.2)'
    record = machine.start(RUN, rank(code), telemetry=REAL).wait_for("ended")["record"]
    assert (machine.folder(RUN) / "logs" / "telemetry.jsonl").read_text() == "mine"
    assert record["files"]["telemetry.jsonl"]["bytes"] == 4


def test_samples_do_not_count_as_output(machine: Machine) -> None:
    code = UNTIL_DONE + 'print("x" * 190)'
    line = machine.start(RUN, rank(code), telemetry=REAL, output_limit_bytes=200)
    wait_for_samples(machine, 3)
    record = finish(line, machine)
    assert record["state"] == "finished" and record["reason"] == ""
    sizes = {path.name: path.stat().st_size for path in (machine.folder(RUN) / "logs").iterdir()}
    assert sizes["rank-0.out"] == 191 and sizes["telemetry.jsonl"] > 200
    assert {name: file["bytes"] for name, file in record["files"].items()} == sizes


def test_it_says_that_it_failed_and_the_run_is_as_good_as_any(machine: Machine) -> None:
    record = machine.start(
        RUN, rank("import time; time.sleep(1)"), telemetry={"packed": pack(b"1/0")}
    ).wait_for("ended")["record"]
    lines = (machine.folder(RUN) / "logs" / "telemetry.jsonl").read_text().split("\n")
    said: dict[str, Any] = json.loads(lines[1])
    assert record["state"] == "finished" and said == {"event": "failed", "why": "ZeroDivisionError"}


def test_the_start_is_no_later_for_it(machine: Machine) -> None:
    files = machine.stage(RUN, "#!/bin/bash\ntrue\n")
    line = machine.supervisor(RUN)
    machine.arm(line, RUN, files, telemetry=REAL)
    line.wait_for("armed")
    at = time.monotonic() + 0.5
    line.order("go", at=at)
    assert at <= line.wait_for("started")["mono"] < at + 0.2
    line.wait_for("ended")
