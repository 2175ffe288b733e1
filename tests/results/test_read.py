"""From run directories as collection leaves them to results: whole ones measure, every flaw is an error of that run alone."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import DataError, RunError, TransportError
from orchestrator.record.rundir import BenchDir
from orchestrator.results.bench import notes_of, read_bench, store
from orchestrator.results.hardware import slowed_in
from orchestrator.results.read import read_run
from orchestrator.results.run import RunResult
from orchestrator.results.summary import summarize
from tests.support.run_folders import (
    BATCH,
    GPUS,
    LOG,
    STEPS,
    WORLD,
    Before,
    build,
    closing,
    exit_record,
    lasting,
    logs_of,
    rank_line,
    step_lines,
)

Flaw = dict[str, Any]


@pytest.fixture
def bench(tmp_path: Path) -> BenchDir:
    return BenchDir.create(tmp_path / "runs", {"bench_id": "b1", "created": "2025-01-01", "runs": ["r1", "r2", "r3"]})


def test_a_bench_that_ended_before_its_first_run_says_why_once_for_all_hosts(bench: BenchDir) -> None:
    errors = [{"kind": "node_unfit", "message": "no torch", "hint": "install it", "host": host} for host in ("n1", "n2")]
    bench.event("begun")
    bench.event("over", code=1, errors=[*errors, {"kind": "interrupted", "message": "stopped by a signal"}])
    assert notes_of(bench) == ["nothing was run: n[1-2]: no torch. install it", "nothing was run: stopped by a signal"]
    build(bench, "r1")
    assert notes_of(bench) == []


def test_borrowed_runs_are_among_the_notes(tmp_path: Path) -> None:
    content = {"bench_id": "b2", "created": "2025-01-01", "runs": ["r1", "r2", "r3"], "borrowed": {"r1": "b1", "r2": "b1"}}
    assert notes_of(BenchDir.create(tmp_path / "runs", content)) == ["runs borrowed from b1 as a baseline: 2"]


def test_a_whole_run_has_its_speed(bench: BenchDir) -> None:
    result = read_run(build(bench, "r1"))
    assert result.error is None and result.state == "finished"
    assert result.throughput is not None
    assert result.throughput.samples_per_s == pytest.approx(BATCH * WORLD / 0.5)
    assert (result.throughput.samples, result.throughput.first_step, result.throughput.last_step) == (640, 3, 12)
    assert result.step_times and result.step_times.variation == pytest.approx(0, abs=1e-9)
    assert result.observed["framework_version"] == "2.13.0"
    assert (result.repeat, result.simulated, result.qualifications) == (1, False, ())
    assert result.spec is not None and result.spec.origins == {"steps": "command line"}


def test_what_nccl_chose_on_all_nodes_is_kept_shown_and_doubted(bench: BenchDir) -> None:
    """Both nodes have active InfiniBand, and NCCL took sockets: the log of each of them is read."""
    spoken = "NCCL INFO NET/Socket : Using [0]eth0:10.11.0.2<0>\nNCCL INFO Using network Socket\n"
    paths = ["Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM", "Channel 00/0 : 3[1] -> 0[0] [send] via NET/Socket/0"]

    def with_nccl(planned: dict[str, Any], logs: list[dict[str, str]]) -> None:
        planned["framework"]["log"] = {**LOG, "nccl_files": ["nccl-*.log"]}
        planned["facts"] = {f"node{n}": {"kernel": "6.1", "infiniband_gbit": 200} for n in (1, 2)}
        for node, path in enumerate(paths):
            logs[node][f"nccl-node{node + 1}-7.log"] = f"{spoken}NCCL INFO {path}\n"

    run = build(bench, "r1", with_nccl)
    result = read_run(run)
    store(run, result)
    kept = json.loads((run.path / "results" / "throughput.json").read_text())["transport"]
    assert (kept["paths"], kept["gdrdma"]) == ({"NET/Socket": 1, "P2P/CUMEM": 1}, False)
    (row,) = summarize([result]).rows
    assert "NET/Socket on eth0 · P2P/CUMEM" in row.hardware
    told = "NCCL uses NET/Socket on eth0 between nodes, not InfiniBand, although node[1-2] have active ports"
    assert told in row.qualifications


@pytest.mark.parametrize(
    ("step_time_s", "told"),
    [
        (0.24, ["the log disagrees with itself: 266.67 samples/s by its step times, 128.00 by the elapsed time"]),
        (0.6, ["the log disagrees with itself: 106.67 samples/s by its step times, 128.00 by the elapsed time"]),
        (0.49, []),
    ],
)
def test_step_times_that_do_not_make_up_the_time_that_passed_are_told(
    bench: BenchDir, step_time_s: float, told: list[str]
) -> None:
    def between_steps(_planned: dict[str, Any], logs: list[dict[str, str]]) -> None:
        logs[0]["rank-0.out"] = logs[0]["rank-0.out"].replace("step_time_s=0.500000", f"step_time_s={step_time_s:.6f}")

    result = read_run(build(bench, "r1", between_steps))
    assert result.throughput and result.throughput.samples_per_s == pytest.approx(128)
    assert list(result.qualifications) == told


@pytest.mark.parametrize(
    ("slowed_us", "told"),
    [
        ({"sw_power_cap": 5_000_000},
         ["clocks lowered by the power limit: for 83% of the run, 80% to 100% of the measured window on node[1-2]"]),
        ({"sw_power_cap": 6_000_000},
         ["clocks lowered by the power limit: for 100% of the run, 100% of the measured window on node[1-2]"]),
        ({"sw_thermal_slowdown": 249_000, "hw_thermal_slowdown": 251_000},
         ["clocks lowered by temperature, by half or more: for 4% of the run, at most 5% of the measured window on node[1-2]"]),
        ({"sw_power_cap": "3000000", "sync_boost": True, "\x1b[31m": 3_000_000}, []),
        ([3_000_000], []),
        ({}, []),
    ],
)  # fmt: skip
def test_clocks_that_were_lowered_for_a_twentieth_of_the_window_are_told(
    bench: BenchDir, slowed_us: Any, told: list[str]
) -> None:
    """The window is 5 s of the 6 s of a rank."""

    def slow(records: list[dict[str, Any]]) -> None:
        for record in records:
            record["ranks"][0] |= {"slowed_us": slowed_us, "started_mono_s": 2.0, "ended_mono_s": 8.0}

    result = read_run(build(bench, "r1", after=slow))
    assert result.throughput and slowed_in([result]) == told
    store(bench.run("r1"), result)
    assert json.loads((bench.path / "r1/results/throughput.json").read_text())["qualifications"] == told


def test_lowered_clocks_of_several_runs_are_one_note(bench: BenchDir) -> None:
    """The power limit took 0.54, 1.5 and 1.62 s of 6 s on node 1, and at last all on node 2; a window has 5 s of them."""

    def slow(*slowed_us: int) -> Callable[[list[dict[str, Any]]], None]:
        def change(records: list[dict[str, Any]]) -> None:
            for record, time_us in zip(records, slowed_us, strict=True):
                told = {"sw_power_cap": time_us}
                record["ranks"][0] |= {"slowed_us": told, "started_mono_s": 2.0, "ended_mono_s": 8.0}

        return change

    lost = [(540_000, 0), (0, 0), (1_500_000, 0), (1_620_000, 6_000_000)]
    runs = [
        build(bench, f"r{n}", after=slow(*times), repeat=n, seconds=0.5 + n / 1000) for n, times in enumerate(lost, start=1)
    ]
    (row,) = summarize([read_run(run) for run in runs]).rows
    assert row.qualifications == (
        "clocks lowered by the power limit: for 9% to 100% of the run, at most 100% of the measured window on node[1-2], "
        "in 3 of 4 runs",
    )
    (row,) = summarize([read_run(run) for run in runs[1:3]]).rows
    assert (
        row.qualifications[-1]
        == "clocks lowered by the power limit: for 25% of the run, 11% to 30% of the measured window on node1, in 1 of 2 runs"
    )


def test_halving_the_speed_of_steps_halves_the_result(bench: BenchDir) -> None:
    fast, slow = read_run(build(bench, "r1")), read_run(build(bench, "r2", after=lasting(13.0), seconds=1.0))
    assert fast.throughput and slow.throughput
    assert slow.throughput.samples_per_s == pytest.approx(fast.throughput.samples_per_s / 2)


@pytest.mark.parametrize("env", [{"NCCL_ALGO": 1}, "NCCL_ALGO", None])
def test_variables_of_the_experiment_are_read_and_have_to_be_text(bench: BenchDir, env: Any) -> None:
    read = read_run(build(bench, "r1", before=lambda planned, _: planned["spec"].update(env={"NCCL_ALGO": "Tree"})))
    assert read.throughput and read.spec and read.spec.env == {"NCCL_ALGO": "Tree"}
    forged = read_run(build(bench, "r2", before=lambda planned, _: planned["spec"].update(env=env)))
    assert forged.state == "damaged" and isinstance(forged.error, DataError)


def test_one_bad_run_never_prevents_the_others(bench: BenchDir) -> None:
    build(bench, "r1")
    build(bench, "r2", repeat=2)
    build(bench, "r3", repeat=3)
    (bench.path / "r2" / "manifest.json").write_text('{"schema": 1, "spec":')
    (bench.path / "r3" / "logs" / "node2" / "rank-3.out").write_text("gone")
    results = read_bench(bench)
    assert [(r.run_id, r.state, r.throughput is not None) for r in results] == [
        ("r1", "finished", True),
        ("r2", "damaged", False),
        ("r3", "failed", False),
    ]
    summary = summarize(results)
    assert [(row.n, row.failed) for row in summary.rows] == [(1, 1)]
    assert "run r2 is in no row" in " ".join(summary.notes)


def test_what_is_derived_is_kept_and_can_be_made_again(bench: BenchDir) -> None:
    build(bench, "r1")
    build(bench, "r2", lambda _planned, logs: logs[0].update({"rank-0.out": rank_line(0)}))
    read_bench(bench)
    path = bench.path / "r1" / "results" / "throughput.json"
    first = path.read_bytes()
    assert json.loads(first)["throughput"]["samples"] == 640
    assert json.loads((bench.path / "r2" / "results" / "throughput.json").read_bytes())["error"]["kind"] == "log_unmatched"
    path.unlink()
    read_bench(bench)
    assert path.read_bytes() == first


def test_a_copy_that_cannot_be_written_is_read_all_the_same(bench: BenchDir, tmp_path: Path) -> None:
    run = build(bench, "r1")
    (run.path / "results").symlink_to(tmp_path)
    assert read_bench(bench)[0].throughput
    assert not (tmp_path / "throughput.json").exists()


# ------------------------------------------------------------------ flaws


def in_log(old: str, new: str, *, count: int = 1, node: int = 0, name: str = "rank-0.out") -> Flaw:
    def before(_planned: dict[str, Any], logs: list[dict[str, str]]) -> None:
        assert old in logs[node][name]
        logs[node][name] = logs[node][name].replace(old, new, count)

    return {"before": before}


def in_record(node: int = 0, **changes: Any) -> Flaw:
    return {"after": lambda records: records[node].update(changes)}


def in_file_entry(name: str, entry: Any) -> Flaw:
    return {"after": lambda records: records[0]["files"].update({name: entry})}


@pytest.mark.parametrize(
    ("flaw", "host", "text"),
    [
        # the log says less or other than planned
        (
            in_log(step_lines().splitlines()[-1] + "\n", ""),
            "node1",
            "found 9, the last for step 11; the first missing is step 12",
        ),
        (in_log("orch step=5 ", "orch stop=5 "), "node1", "found 9, the last for step 12; the first missing is step 5"),
        (in_log("t=905.500000", "t=904.000000"), "node1", "expected a time above 0 s up to step 11"),
        (
            in_log(f"samples={BATCH * WORLD} ", f"samples={BATCH} ", count=99),
            "node1",
            "expected 640 samples in the window, the log counts 160",
        ),
        (
            in_log("orch done {", "orch done ["),
            "node1",
            "expected the program's closing line, found none; log.closing comes nearest",
        ),
        (
            in_log('"world_size"', '"world_size": 1, "world_size"'),
            "node1",
            "has none. closing line: expected JSON, got the key",
        ),
        (in_log('"nccl": null', '"nccl": NaN'), "node1", "got the number NaN"),
        (in_log('"steps": 12', '"steps": 120'), "node1", "expected steps 12 as planned, the program reports 120"),
        (in_log('"fp16"', '"fp32"'), "node1", "expected dtype 'fp16' as planned, the program reports 'fp32'"),
        (in_log('"global_batch": 64', '"global_batch": 16'), "node1", "expected global_batch 64 as planned"),
        (in_log('"world_size": 4', '"world_size": 1'), "node1", "expected world_size 4 as planned"),
        (in_log('"ranks": [0, 1, 2, 3]', '"ranks": [0, 1, 2]'), "node1", "expected ranks 0-3 in the closing line"),
        # ranks
        (in_log("orch rank=3", "rank=3", node=1, name="rank-3.out"), "node2", "1 are missing, first rank 3"),
        (in_log("rank=3", "rank=2", node=1, name="rank-3.out"), "node2", "expected one rank line of rank 2, got another"),
        (
            in_log("rank=3", "rank=1", node=1, name="rank-3.out"),
            "node2",
            "expected rank lines of 2-3 on this node, got one of rank 1",
        ),
        (in_log("rank=3", "rank=9", node=1, name="rank-3.out"), "node2", "got one of rank 9"),
        (in_log("world_size=4", "world_size=8", node=1, name="rank-2.out"), "node2", "expected world size 4, rank 2 logged 8"),
        # exit records that lie or are damaged
        (in_record(run_id="another"), "node1", "expected run_id 'r1', got 'another'"),
        (in_record(node_rank=1), "node1", "expected node_rank 0, got 1"),
        (in_record(schema=2), "node1", "expected schema 1, got 2"),
        (in_record(code=3), "node1", "expected state 'finished' with code 0"),
        (in_record(code="0"), "node1", "expected state 'finished' with code 0"),
        (in_record(signal="SIGKILL"), "node1", "signal 'SIGKILL'"),
        (in_record(state=["finished"]), "node1", "expected state 'finished'"),
        (
            in_record(ranks=[{"rank": 1, "code": None, "signal": "SIGSEGV"}]),
            "node1",
            "rank 1 ended with 'SIGSEGV' in a run recorded as",
        ),
        (in_record(ranks="none"), "node1", "ranks: expected a list"),
        (in_record(files=[]), "node1", "files: expected an object"),
        (in_record(files={}), "node1", "expected a log like rank-0.out, the exit record lists none"),
        (in_file_entry("rank-0.out", {"bytes": 5, "sha256": "0"}), "node1", "expected 5 bytes as on the node"),
        (in_file_entry("rank-0.out", "x"), "node1", "files.rank-0.out: expected bytes and sha256"),
        (in_file_entry("../../manifest.json", {"bytes": 1, "sha256": "0"}), "node1", "expected a name of letters"),
        (in_file_entry("rank-9.out", {"bytes": 1, "sha256": "0"}), "node1", "expected the log, it is not collected"),
    ],
)
def test_a_flaw_is_an_error_of_the_run_and_no_number(bench: BenchDir, flaw: Flaw, host: str, text: str) -> None:
    result = read_run(build(bench, "r1", **flaw))
    assert result.throughput is None and result.state == "failed"
    kind = "log_unmatched" if "found none" in text else "result_invalid"
    assert isinstance(result.error, DataError) and result.error.kind == kind
    assert text in str(result.error)
    assert result.error.host == host and result.error.run_id == "r1"
    assert summarize([result]).rows[0].median is None


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"null",
        b'{"code": NaN}',
        b'{"code": 1e999}',
        b'{"code": 0, "code": 0}',
        b"[" * 100_000,
        b" " * (17 << 20),
        b"\x00",
    ],
    ids=["empty", "cut", "null", "nan", "infinite", "twice", "deep", "huge", "nul"],
)
def test_a_malformed_exit_record_is_an_error_of_the_run(bench: BenchDir, content: bytes) -> None:
    run = build(bench, "r1")
    run.write_log("node2", "exit.json", content)
    result = read_run(run)
    assert isinstance(result.error, DataError) and result.error.kind == "result_invalid"
    assert result.error.host == "node2" and "exit.json" in str(result.error)


def _giant(path: Path) -> None:
    path.touch()
    os.truncate(path, (1 << 30) + 1)


def _swap(path: Path, make: Callable[[Path], Any]) -> None:
    path.unlink()
    make(path)


@pytest.mark.parametrize(
    "make",
    [lambda p: p.symlink_to("/dev/zero"), os.mkfifo, lambda p: p.mkdir(), _giant],
    ids=["link", "fifo", "folder", "sparse giant"],
)
def test_a_log_that_is_no_plain_file_is_never_read(bench: BenchDir, make: Callable[[Path], Any]) -> None:
    run = build(bench, "r1")
    _swap(run.log_path("node1", "rank-0.out"), make)
    result = read_run(run)
    assert isinstance(result.error, DataError) and "rank-0.out" in str(result.error)


def test_a_log_changed_after_collection_has_no_number(bench: BenchDir) -> None:
    run = build(bench, "r1")
    path = run.log_path("node1", "rank-0.out")
    path.write_bytes(path.read_bytes().replace(b"t=906.0", b"t=905.9"))
    assert "expected the SHA-256" in str(read_run(run).error)


def test_a_log_cut_anywhere_has_no_number(bench: BenchDir) -> None:
    """Even where the exit record is made to agree with the cut log."""
    whole = logs_of(0)["rank-0.out"]
    run = build(bench, "r1")
    for cut in range(0, len(whole), 13):
        data = {name: text.encode() for name, text in logs_of(0).items()} | {"rank-0.out": whole[:cut].encode()}
        run.write_log("node1", "rank-0.out", data["rank-0.out"])
        run.write_log("node1", "exit.json", json.dumps(exit_record("r1", 0, data)).encode())
        assert read_run(run).throughput is None


# ------------------------------------------------------------------ states


def outcome(value: Any) -> Before:
    return lambda planned, _logs: planned.update(outcome=value)


def test_a_run_without_a_recorded_outcome_is_judged_by_its_evidence(bench: BenchDir) -> None:
    assert read_run(build(bench, "r1", outcome(None))).state == "finished"
    run = build(bench, "r2", outcome(None))
    run.log_path("node2", "exit.json").unlink()
    result = read_run(run)
    assert result.state == "incomplete" and result.throughput is None
    assert result.error and result.error.host == "node2" and "orch collect" in str(result.error)


@pytest.mark.parametrize(
    ("kind", "branch"),
    [("node_lost", TransportError), ("rank_failed", RunError), ("result_invalid", DataError), ("odd", RunError)],
)
def test_a_recorded_failure_keeps_its_first_cause_and_has_no_number(bench: BenchDir, kind: str, branch: type) -> None:
    error = {"kind": kind, "message": "no beat for 3.5 s", "host": "node2", "phase": "watch"}
    result = read_run(build(bench, "r1", outcome({"state": "lost", "error": error})))
    assert (result.state, result.throughput) == ("lost", None)
    assert result.error and type(result.error) is branch
    assert result.error.as_dict() == error | {"run_id": "r1"}


def test_the_node_that_failed_is_named_before_those_stopped_because_of_it(bench: BenchDir) -> None:
    def after(records: list[dict[str, Any]]) -> None:
        records[0].update(state="stopped", code=None, signal="SIGTERM", reason="told to stop")
        records[1].update(state="failed", code=1, reason="rank_failed: rank 3 ended with SIGKILL")

    result = read_run(build(bench, "r1", outcome(None), after))
    assert isinstance(result.error, RunError)
    assert (result.state, result.error.host) == ("failed", "node2")
    assert "rank 3 ended with SIGKILL" in str(result.error)


def test_a_run_called_finished_whose_node_failed_has_no_number(bench: BenchDir) -> None:
    result = read_run(build(bench, "r1", **in_record(1, state="failed", code=1, reason="x")))
    assert (result.state, result.throughput) == ("failed", None)


@pytest.mark.parametrize("state", ["failed", "interrupted"])
def test_a_recorded_failure_without_a_cause_says_so(bench: BenchDir, state: str) -> None:
    result = read_run(build(bench, "r1", outcome({"state": state, "error": None})))
    assert result.state == state and "no cause was recorded" in str(result.error)


@pytest.mark.parametrize("key", ["spec", "framework", "placement"])
@pytest.mark.parametrize("value", [None, 3, "x", [], {}, {"log": {"files": 1, "patterns": 2}}, {"slots": [{}]}, {"slots": []}])
def test_a_manifest_of_wrong_types_is_damaged_state(bench: BenchDir, key: str, value: Any) -> None:
    result = read_run(build(bench, "r1", lambda planned, _logs: planned.update({key: value})))
    assert (result.state, result.spec) == ("damaged", None)
    assert result.error and result.error.kind == "state_damaged"
    store(bench.run("r1"), result)


@pytest.mark.parametrize(
    "change",
    [
        lambda p: p["spec"].update(steps="120"),
        lambda p: p["spec"].update(nodes=4),
        lambda p: p["spec"].update(loader=1),
        lambda p: p["spec"].update(timeout_s="600"),
        lambda p: p["origins"].update(steps=None),
        lambda p: p["placement"]["slots"][1].update(nproc=10**30),
        lambda p: p["placement"]["slots"][1].update(first_rank=0),
        lambda p: p["placement"]["slots"][1].update(host="../.."),
        lambda p: p.update(facts=[1]),
        lambda p: p.update(outcome="finished"),
        lambda p: p["framework"]["log"].update(patterns=[1]),
    ],
)
def test_a_manifest_that_contradicts_itself_is_damaged_state(bench: BenchDir, change: Callable[[dict[str, Any]], Any]) -> None:
    result = read_run(build(bench, "r1", lambda planned, _logs: change(planned)))
    assert result.state == "damaged" and result.throughput is None


@pytest.mark.parametrize(
    ("clean", "doubts"),
    [
        ({"node1": {"checked": True, "left": []}, "node2": {"checked": True, "left": [{"pid": 7}]}}, 1),
        ({"node1": {"checked": True, "left": []}}, 0),
        (None, 0),
        ([1], 0),
    ],
)
def test_processes_that_were_left_qualify_the_number(bench: BenchDir, clean: Any, doubts: int) -> None:
    result = read_run(build(bench, "r1", outcome({"state": "finished", "error": None, "clean": clean})))
    assert result.throughput
    assert result.qualifications == ("processes of the run were left on node2 and had to be ended",) * doubts


# ------------------------------------------------------------------ other grammars


def grammar(**changes: Any) -> Before:
    return lambda planned, _logs: planned["framework"]["log"].update(changes)


def test_a_program_that_does_not_name_its_ranks_is_qualified(bench: BenchDir) -> None:
    result = read_run(build(bench, "r1", grammar(rank="", closing="")))
    assert result.throughput
    assert result.qualifications == ("rank count not verified (the log has no rank lines: log.rank)",)


def test_a_grammar_whose_files_are_not_there_is_an_error(bench: BenchDir) -> None:
    result = read_run(build(bench, "r1", grammar(files=["worker.*"])))
    assert "expected a log like worker.*, the exit record lists node.err, node.out, rank-0.err" in str(result.error)
    assert result.error and result.error.kind == "log_unmatched" and "orch summarize --reread" in result.error.hint


def test_rates_of_single_processes_count_for_all_ranks_of_all_nodes(bench: BenchDir) -> None:
    def before(planned: dict[str, Any], logs: list[dict[str, str]]) -> None:
        pattern = r"step (?P<step>[0-9]+): (?P<samples_per_s>[0-9.]+) images/s"
        grammar(files=["rank-*.out"], patterns=[pattern], nodes="every", scope="process", closing="")(planned, logs)
        for files in logs:
            for name in [name for name in files if name.startswith("rank-") and name.endswith(".out")]:
                rank = int(name[5:-4])
                files[name] = rank_line(rank) + "".join(f"step {s}: {100 + rank} images/s\n" for s in range(1, STEPS + 1))

    result = read_run(build(bench, "r1", before))
    assert result.throughput
    assert result.throughput.samples_per_s == pytest.approx(WORLD * WORLD / sum(1 / (100 + rank) for rank in range(WORLD)))


def test_lines_of_the_last_node_are_read_where_the_last_rank_prints(bench: BenchDir) -> None:
    """As Megatron does: the last rank is in the last pipeline stage."""

    def before(planned: dict[str, Any], logs: list[dict[str, str]]) -> None:
        pattern = r"iteration +(?P<step>[0-9]+)/ +[0-9]+ .* \(ms\): (?P<step_time_s>[0-9.]+)"
        units = {"step_time_s": "ms"}
        grammar(files=["rank-*.out"], patterns=[pattern], nodes="last", units=units, closing="")(planned, logs)
        for files in logs:
            for name in [name for name in files if name.startswith("rank-") and name.endswith(".out")]:
                rank = int(name[5:-4])
                each = " iteration {}/ {} | elapsed time per iteration (ms): 100.5\n"
                lines = [each.format(step, STEPS) for step in range(1, STEPS + 1)]
                files[name] = rank_line(rank) + ("".join(lines) if rank == WORLD - 1 else "")

    result = read_run(build(bench, "r1", before))
    assert result.throughput and result.error is None
    assert result.throughput.samples_per_s == pytest.approx(WORLD * BATCH / 0.1005)
    assert result.resolution == pytest.approx(result.throughput.samples_per_s * 0.1 / 100.5)


def test_a_restart_inside_the_log_qualifies_the_number(bench: BenchDir) -> None:
    def before(_planned: dict[str, Any], logs: list[dict[str, str]]) -> None:
        logs[0]["rank-0.out"] = rank_line(0) + step_lines(0.1, last=5) + step_lines() + closing()

    result = read_run(build(bench, "r1", before))
    assert result.throughput and result.throughput.samples_per_s == pytest.approx(128)
    assert result.qualifications == ("the step goes back once: the last attempt that reaches step 12 was used",)


@pytest.mark.parametrize(
    ("grown", "said"),
    [
        (
            0.10,
            "the last fifth of the window is 7.9% slower per step than the first; that is 3.8% of the window; "
            "the machine slows down",
        ),
        (
            -0.10,
            "the last fifth of the window is 8.1% faster per step than the first; that is 4.2% of the window; "
            "more --warmup-steps may be needed",
        ),
        (0.0, ""),
    ],
)
def test_a_window_in_which_steps_drift_qualifies_the_number_and_stays(bench: BenchDir, grown: float, said: str) -> None:
    warmup, steps = 2, 102

    def before(planned: dict[str, Any], logs: list[dict[str, str]]) -> None:
        planned["spec"] |= {"steps": steps, "warmup_steps": warmup}
        end, lines = 900.0, [step_lines(last=0)]
        for step in range(1, steps + 1):
            seconds = 0.5 * (1 + grown * (step - warmup) / (steps - warmup))
            end += seconds
            lines.append(f"orch step={step} t={end:.6f} step_time_s={seconds:.6f} samples={BATCH * WORLD} loss=6.9\n")
        logs[0]["rank-0.out"] = rank_line(0) + "".join(lines) + closing(steps=steps)

    result = read_run(build(bench, "r1", before, lasting(60.0)))
    assert result.throughput and (result.throughput.first_step, result.throughput.last_step) == (warmup + 1, steps)
    assert result.unsteady == ((said,) if said else ())
    assert [text for text in summarize([result]).rows[0].qualifications if "steady" in text] == (
        [f"not steady: {said}"] if said else []
    )
    (again,) = read_bench(bench)
    stored = json.loads((bench.run("r1").path / "results" / "throughput.json").read_text())
    assert again.place == 0 and again.step_times and stored["step_times"]["p50_s"] == again.step_times.p50_s
    assert stored["qualifications"] == ([f"not steady: {said}"] if said else [])


@pytest.mark.parametrize("where", ["manifest", "closing"])
def test_simulated_is_said_if_either_the_folder_or_the_program_says_it(bench: BenchDir, where: str) -> None:
    def before(planned: dict[str, Any], logs: list[dict[str, str]]) -> None:
        if where == "manifest":
            planned["framework"]["simulated"] = True
        else:
            logs[0]["rank-0.out"] = rank_line(0) + step_lines() + closing(simulated=True)

    result = read_run(build(bench, "r1", before))
    assert result.throughput and result.simulated
    assert summarize([result]).rows[0].simulated


def test_what_always_qualifies_a_program_on_a_device_stands_beside_its_numbers(bench: BenchDir) -> None:
    def before(planned: dict[str, Any], logs: list[dict[str, str]]) -> None:
        device = planned["spec"]["device"]
        planned["framework"]["caveats"] = {device: "nothing is averaged", "other": "not this one"}

    assert read_run(build(bench, "r1", before)).qualifications == ("nothing is averaged",)


@pytest.mark.parametrize(
    ("dtype", "found", "said"),
    [
        ("fp16", "float32", ("dtype fp16 requested, the model's output was 'float32'",)),
        ("fp16", "float16", ()),
        ("tf32", "float32", ()),
        ("fp32", "bfloat16", ("dtype fp32 requested, the model's output was 'bfloat16'",)),
        ("fp16", None, ()),
    ],
)
def test_a_run_that_computed_in_another_type_than_asked_is_qualified(
    bench: BenchDir, dtype: str, found: str | None, said: tuple[str, ...]
) -> None:
    def before(planned: dict[str, Any], logs: list[dict[str, str]]) -> None:
        planned["spec"]["dtype"] = dtype
        logs[0]["rank-0.out"] = rank_line(0) + step_lines() + closing(dtype=dtype, output_dtype=found)

    result = read_run(build(bench, "r1", before))
    assert result.throughput and result.qualifications == said


def test_a_pattern_that_cannot_be_used_is_an_error_of_the_run(bench: BenchDir) -> None:
    result = read_run(build(bench, "r1", grammar(patterns=["(a+)+(?P<step>[0-9]+)"])))
    assert isinstance(result, RunResult) and result.error and result.error.kind == "state_damaged"


@pytest.mark.parametrize(
    ("round_trips", "said"),
    [
        ({"node1": 0.001, "node2": 0.2}, ["node2 answered slowly: 200 ms, the others 1.0 ms"]),
        ({"node1": 0.001, "node2": 0.02}, []),
        ({"node1": 0.15, "node2": 0.2}, []),
        ({"node1": 0.2}, []),
    ],
)
def test_a_node_that_answers_far_more_slowly_than_the_others_qualifies_the_number(
    tmp_path: Path, round_trips: dict[str, float], said: list[str]
) -> None:
    answers = {host: {"longest_silence_s": 0.6, "round_trip_s": took, "silent": False} for host, took in round_trips.items()}
    bench = BenchDir.create(tmp_path / "runs", {"bench_id": "b1", "created": "2025-01-01", "runs": ["r1"]})
    run = build(bench, "r1", lambda planned, logs: planned["outcome"].update(answers=answers))
    result = read_run(run)
    assert result.error is None and [text for text in result.qualifications if "slowly" in text] == said


def every_rank_speaks(planned: dict[str, Any], logs: list[dict[str, str]]) -> None:
    """Let each rank log its own steps, the third rank a little slower than the others."""
    planned["framework"] = deepcopy(planned["framework"])
    planned["framework"]["log"] |= {"files": ["rank-*.out"], "nodes": "every", "scope": "process", "closing": ""}
    for node, files in enumerate(logs):
        for rank in range(node * GPUS, (node + 1) * GPUS):
            own = step_lines(0.5 if rank != 2 else 0.52).replace(f"samples={BATCH * WORLD}", f"samples={BATCH}")
            files[f"rank-{rank}.out"] = rank_line(rank) + own


def test_logs_of_all_ranks_are_heard_as_one_in_one_process_or_several(bench: BenchDir, monkeypatch: pytest.MonkeyPatch) -> None:
    run = build(bench, "b1.0", every_rank_speaks)
    alone = read_run(run)
    monkeypatch.setattr("orchestrator.results.node_logs._WORTH_BYTES", 0)
    together = read_run(run)
    assert alone.error is None and together == alone
    assert alone.throughput and alone.throughput.samples_per_s == pytest.approx(BATCH * WORLD / 0.505)


def test_what_another_process_finds_damaged_is_told_as_it_is_here(bench: BenchDir, monkeypatch: pytest.MonkeyPatch) -> None:
    run = build(bench, "b1.0", every_rank_speaks)
    log = run.log_path("node2", "rank-3.out")
    log.write_bytes(log.read_bytes()[:-1] + b"!")
    alone = read_run(run)
    monkeypatch.setattr("orchestrator.results.node_logs._WORTH_BYTES", 0)
    together = read_run(run)
    assert alone.error and together.error and together.error.as_dict() == alone.error.as_dict()
    assert alone.error.host == "node2" and "SHA-256" in alone.error.message


def metered(busy_s: float = 0.0, sent_bytes: int = 10**12, growth: Any = (), switches: Any = None) -> Any:
    """Return what makes nodes of eight processors report the use of processors and networks in a run of 100 s."""

    def report(records: list[dict[str, Any]]) -> None:
        for node, record in enumerate(records):
            load = {"count": 8, "busy_s": 400.0 + busy_s, "own_s": 400.0, "switches": (switches or [[1, 2], [8, 9]])[node]}
            record |= {"started_mono_s": 890.0, "ended_mono_s": 990.0}
            record["meter"] = {"processors": load, "sent_bytes": sent_bytes, "growth": list(growth) if node == 0 else []}

    return report


def test_processors_that_others_used_qualify_the_number(bench: BenchDir) -> None:
    result = read_run(build(bench, "r1", after=metered(busy_s=160.0)))
    assert result.loaded == {"node1": 0.2, "node2": 0.2}
    (row,) = summarize([result]).rows
    assert "other processes used 20% of the processors of node[1-2]" in row.qualifications
    assert read_run(build(bench, "r2", after=metered(busy_s=70.0))).loaded == {}
    simulated = read_run(
        build(bench, "r3", lambda planned, _: planned["framework"].update(simulated=True), metered(busy_s=160.0))
    )
    assert not any("other processes" in note for note in summarize([simulated]).rows[0].qualifications)


def test_nodes_of_one_machine_do_not_count_each_other_as_load(bench: BenchDir) -> None:
    assert read_run(build(bench, "r1", after=metered(busy_s=400.0, switches=[[1, 9], [2, 8]]))).loaded == {}


def test_nodes_that_send_nothing_may_train_alone(bench: BenchDir) -> None:
    """A hundredth of the gradients of ResNet-50 in 16 bits is half a megabyte, in twelve steps 6.1 MB."""
    told = "node[1-2] sent 166667 bytes per step or less for gradients of 51.1 MB in 16 bits: each node may train alone"
    result = read_run(build(bench, "r1", after=metered(sent_bytes=2_000_000)))
    assert [note.partition(", or")[0] for note in result.qualifications] == [told]
    assert read_run(build(bench, "r2", after=metered(sent_bytes=7_000_000))).qualifications == ()


def test_a_log_is_compared_with_the_clock_of_its_node(bench: BenchDir) -> None:
    """Steps of 5 s by the log, whose lines came twice a second."""
    text = logs_of(0, 5.0)["rank-0.out"].encode()
    ends = [text.index(b"\n", text.index(f"step={step} ".encode())) + 1 for step in range(1, STEPS + 1)]
    growth = [[900.0 + 0.5 * step, {"rank-0.out": end}] for step, end in enumerate(ends, start=1)]
    result = read_run(build(bench, "r1", seconds=5.0, after=metered(growth=growth)))
    assert result.error and "got 45.0 s for steps 3…11, whose lines came within 4.5 s" in result.error.message
    agreeing = [[900.0 + 5.0 * step, {"rank-0.out": end}] for step, end in enumerate(ends, start=1)]
    assert read_run(build(bench, "r2", seconds=5.0, after=metered(growth=agreeing))).qualifications == ()


@pytest.mark.parametrize("meter", [None, [], {"growth": 5}, {"growth": [[1.0]]}, {"growth": [], "processors": {"count": "x"}}])
def test_an_invalid_meter_is_none(bench: BenchDir, meter: Any) -> None:
    result = read_run(build(bench, "r1", after=lambda records: [record.update(meter=meter) for record in records]))
    assert result.error is None and result.qualifications == () and result.loaded == {}
