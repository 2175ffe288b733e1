"""What is shown of a failed run's logs: the last words, however long they are."""

from __future__ import annotations

import json
import re
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.controller.root_cause import with_cause
from orchestrator.errors import RunError, restore_error
from orchestrator.plan.bench import plan_run
from orchestrator.record.manifest import manifest_of
from orchestrator.record.rundir import RunDir
from tests.faults.hangs import World
from tests.support.fake_bench import FakeBench
from tests.support.judge import LIMIT_S


def test_of_a_line_that_is_very_long_both_ends_are_shown(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "r1")
    log = run.log_path("node2", "rank-3.err")
    log.write_text("a first line\n" * 9000 + f"ValueError: {'x' * 6000} at the end\n")
    error = with_cause(
        RunError("rank 3 ended with exit code 1", kind="rank_failed", host="node2"), (), run, {}
    )
    assert error is not None and error.hint is not None
    head, *lines = error.hint.splitlines()
    assert (
        head == "last lines of rank-3.err on node2:"
        and len(lines) == 10
        and lines[0] == "  a first line"
    )
    assert (
        lines[-1].startswith("  ValueError: xxx")
        and lines[-1].endswith("x at the end")
        and len(lines[-1]) < 520
    )


ENDED = {
    "schema": 1,
    "run_id": "r1",
    "node_rank": 0,
    "state": "failed",
    "code": 1,
    "signal": None,
    "files": {},
}


def failed(run: RunDir, said: dict[str, tuple[int, str, str | None, int | None]]) -> RunError:
    """Write down what came home of a run; return the failure of its first rank. ``said``: by host a
    rank, what it wrote on its standard error, and the signal or exit code that ended it."""
    for host, (rank, text, signal, code) in said.items():
        run.log_path(host, f"rank-{rank}.err").write_text(text)
        entry = {"rank": rank, "signal": signal, "code": code}
        run.log_path(host, "exit.json").write_text(
            json.dumps(ENDED | {"ranks": [entry], "oom_kills": 0})
        )
    return RunError(
        "rank 0 ended with exit code 1",
        kind="rank_failed",
        host="node1",
        run_id="r1",
        phase="watch",
    )


COMPLAINT = (
    "RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.11.0.3]:39114\n"
)
MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"


def test_a_rank_that_was_stopped_after_it_had_said_what_it_was_dying_of_is_the_cause(
    tmp_path: Path,
) -> None:
    run = RunDir(tmp_path / "r1")
    said = {
        "node1": (0, COMPLAINT, None, 1),
        "node2": (1, MEMORY, "SIGTERM", None),
        "node3": (2, COMPLAINT, "SIGTERM", None),
    }
    error = with_cause(failed(run, said), (), run, dict.fromkeys(said, {}))
    assert error is not None and (error.host, error.run_id, error.kind) == (
        "node2",
        "r1",
        "rank_failed",
    )
    assert error.message == "rank 1 was already failing when the run was stopped"
    assert error.hint is not None and error.hint.startswith("the GPU had no memory left;")
    assert (
        error.cause == error.hint.splitlines()[0]
        and restore_error(error.as_dict(), "r1").cause == error.cause
    )


TIMEOUT = "RuntimeError: Timed out waiting 60000ms for recv operation to complete\n"


@pytest.mark.parametrize(
    ("text", "signal", "code"),
    [
        pytest.param(MEMORY, "SIGTERM", None, id="a cause, and it hung while it ended"),
        pytest.param(MEMORY, None, 1, id="a cause"),
        pytest.param(
            "Traceback (most recent call last):\nKeyError: 3\n", None, 1, id="an exception"
        ),
    ],
)
def test_a_rank_that_waited_for_another_is_not_named_before_it(
    tmp_path: Path, text: str, signal: str | None, code: int | None
) -> None:
    run = RunDir(tmp_path / "r1")
    said = {"node1": (0, TIMEOUT, None, 1), "node2": (1, text, signal, code)}
    first = failed(run, said)
    rival = RunError("rank 1 ended with exit code 1", kind="rank_failed", host="node2")
    rivals = [rival] if code else []
    error = with_cause(first, rivals, run, dict.fromkeys(said, {}))
    assert error is not None and error.host == "node2"

    run.log_path("node2", "rank-1.err").write_text(TIMEOUT)
    error = with_cause(failed(run, {"node1": said["node1"]}), rivals, run, {})
    assert error is not None and error.host == "node1"


@pytest.mark.parametrize(
    "waits",
    [
        "DistBackendError: [1] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value"
        " store by key '0', but store->get('0') got error: Socket Timeout",
        "DistBackendError: NCCL error in: x.cpp:1275, internal error\nncclInternalError: Internal check failed.\n"
        "Last error:\nSocket recv failed while polling for opId=0x55a5",
        "F0502 00:00:30.1 77 rendezvous.cc:95] Termination timeout for `initialize clique` of 40 seconds exceeded.",
    ],
)
def test_what_waited_for_a_rank_or_lost_it_is_not_named_before_it(
    tmp_path: Path, waits: str
) -> None:
    run = RunDir(tmp_path / "r1")
    said = {"node1": (0, waits, None, 1), "node2": (1, "TypeError: 3 heads\n", None, 1)}
    rival = RunError("rank 1 ended with exit code 1", kind="rank_failed", host="node2")
    error = with_cause(failed(run, said), [rival], run, dict.fromkeys(said, {}))
    assert error is not None
    assert (error.host, error.cause) == ("node2", "last output: TypeError: 3 heads")


BOX = "-" * 74
ABORT = f"{BOX}\nMPI_ABORT was invoked on rank 0 in communicator MPI_COMM_WORLD\nwith errorcode 1.\n{BOX}\n"
TORCHRUN = """E0801 13:23:20.0 3297 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: 1)
Traceback (most recent call last):
  File "/opt/venv/bin/torchrun", line 8, in <module>
    sys.exit(main())
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  exitcode  : 1 (pid: 4412)
============================================================
"""
SAID = "step 1 loss 2.3\nERROR: the data set has 3 classes, the model 1000\n"
WARNING = "libibverbs: Warning: no userspace device-specific driver found for uverbs0\n"


@pytest.mark.parametrize(
    ("stem", "err", "out", "cause"),
    [
        ("node", ABORT, SAID, "ERROR: the data set has 3 classes, the model 1000"),
        ("node", TORCHRUN, SAID, "ERROR: the data set has 3 classes, the model 1000"),
        ("rank-0", WARNING, SAID, "ERROR: the data set has 3 classes, the model 1000"),
        ("rank-0", "own.py: no data\n", SAID, "own.py: no data"),
        ("rank-0", f"{COMPLAINT}{WARNING}", SAID, COMPLAINT.strip()),
        ("rank-0", WARNING, "step 1 loss 2.3\n", ""),
    ],
    ids=["mpirun's", "torchrun's", "a warning", "its own word", "a consequence", "usual output"],
)
def test_the_standard_output_has_the_cause_where_the_standard_error_has_no_word_of_the_program(
    tmp_path: Path, stem: str, err: str, out: str, cause: str
) -> None:
    run = RunDir(tmp_path / "r1")
    run.log_path("node1", f"{stem}.err").write_text(err)
    run.log_path("node1", f"{stem}.out").write_text(out)
    who = "rank 0" if stem == "rank-0" else "its launch script"
    first = RunError(f"{who} ended with exit code 1", kind="rank_failed", host="node1")
    error = with_cause(first, (), run, {"node1": {}})
    assert error is not None and error.cause == (f"last output: {cause}" if cause else "")


PARAGRAPHS = f"""{BOX}
The component that was asked for was not found or
could not be opened.

  Host:  node1

This means that it is not installed.
{BOX}
"""


def test_of_a_message_in_paragraphs_the_first_is_the_cause(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "r1")
    error = with_cause(failed(run, {"node1": (0, PARAGRAPHS, None, 1)}), (), run, {"node1": {}})
    sentence = "The component that was asked for was not found or could not be opened."
    assert error is not None and error.cause == f"last output: {sentence}"
    assert error.hint is not None
    shown = error.hint.splitlines()
    assert shown[0] == "last lines of rank-0.err on node1:" and len(shown) == 7
    assert all(map(str.strip, shown))


def test_of_ranks_whose_calls_do_not_fit_the_one_that_ended_is_not_blamed(tmp_path: Path) -> None:
    """gloo ends the rank that gets more than it asked for."""
    run = RunDir(tmp_path / "r1")
    what = "what():  [enforce fail at gloo/transport/tcp/pair.cc:456] op.preamble.length <= op.nbytes. 36 vs 32\n"
    said = {"node1": (0, what, "SIGABRT", None), "node2": (1, COMPLAINT, None, 1)}
    error = with_cause(failed(run, said), (), run, dict.fromkeys(said, {}))
    assert error is not None and (error.host, error.kind) == ("", "rank_failed")
    words = "ranks called different collective operations, or with different sizes"
    unknown = "which rank is wrong is not known, and node1: rank 0 ended with exit code 1"
    assert error.message == f"{words}; {unknown}"
    assert error.hint is not None and error.hint.startswith("look at what the ranks do differently")
    assert "last lines of rank-0.err on node1:" in error.hint
    alone = failed(run, said)
    alone.others_agree = "ranks 1, 2 called all-reduce 9 of sizes [[8]]"
    told = with_cause(alone, (), run, dict.fromkeys(said, {}))
    assert told is not None and (told.host, told.kind) == ("node1", "rank_failed")
    assert told.message == (
        "rank 0 ended with exit code 1: it called another collective, or another size, than the "
        "others; ranks 1, 2 called all-reduce 9 of sizes [[8]]"
    )
    assert (told.cause, told.hint) == (error.cause, error.hint)


def test_each_log_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, read, opened = RunDir(tmp_path / "r1"), list[str](), Path.open
    said = {
        "node1": (0, COMPLAINT, None, 1),
        "node2": (1, MEMORY, "SIGTERM", None),
        "node3": (2, COMPLAINT, None, 1),
    }
    error = failed(run, said)
    rival = RunError("rank 2 ended with exit code 1", kind="rank_failed", host="node3")

    def noted(path: Path, mode: str = "r") -> Any:
        read.append(path.parent.name)
        return opened(path, mode)

    monkeypatch.setattr(Path, "open", noted)
    found = with_cause(error, (rival,), run, dict.fromkeys(said, {}))
    assert found is not None and found.host == "node2" and read == ["node1", "node3", "node2"]
    read.clear()
    found = with_cause(error, (), run, {})
    assert (
        found is error
        and read == ["node1"]
        and "last lines of rank-0.err on node1:" in (found.hint or "")
    )


@pytest.mark.parametrize(
    "said",
    [
        {"node1": (0, COMPLAINT, None, 1), "node2": (1, "step 3\n", "SIGTERM", None)},
        {"node1": (0, COMPLAINT, None, 1), "node2": (1, COMPLAINT, "SIGTERM", None)},
        {"node1": (0, MEMORY, None, 1), "node2": (1, MEMORY, "SIGTERM", None)},
    ],
    ids=["it printed nothing of it", "it complained too", "the first one has a cause of its own"],
)
def test_a_rank_that_was_stopped_is_no_cause_where(
    tmp_path: Path, said: dict[str, tuple[int, str, str | None, int | None]]
) -> None:
    run = RunDir(tmp_path / "r1")
    error = with_cause(failed(run, said), (), run, dict.fromkeys(said, {}))
    assert error is not None and (error.host, error.message) == (
        "node1",
        "rank 0 ended with exit code 1",
    )


@pytest.mark.parametrize(
    "record",
    [
        "[1]",
        '{"ranks": 3}',
        '{"ranks": [[], {"signal": "SIGTERM"}, {"rank": "x", "signal": "SIGTERM"}]}',
    ],
)
def test_an_exit_record_that_makes_no_sense_hides_no_failure(tmp_path: Path, record: str) -> None:
    run = RunDir(tmp_path / "r1")
    said = {"node1": (0, COMPLAINT, None, 1), "node2": (1, MEMORY, "SIGTERM", None)}
    error = failed(run, said)
    run.log_path("node2", "exit.json").write_text(record)
    found = with_cause(error, (), run, dict.fromkeys(said, {}))
    assert found is error


@pytest.mark.parametrize(
    ("text", "message", "cause"),
    [
        (
            "own.py: expected 4, got \x1b[1m7\n",
            "rank 0 ended with exit code 1",
            "last output: own.py: expected 4, got 7",
        ),
        (
            MEMORY,
            "rank 0 ended with exit code 1",
            "the GPU had no memory left; lower --batch-size, or ",
        ),
        (COMPLAINT, "rank 0 ended with exit code 1", "last output: RuntimeError: [gloo/"),
        ("own.py: going on\n", "rank 0 ended with SIGKILL", ""),
        ("Fatal Python error: Aborted\nExtension modules: one\n", "rank 0 ended with SIGABRT", ""),
        ("  what():  no such key\n", "rank 0 ended with SIGABRT", "last output: no such key"),
    ],
    ids=[
        "no known cause",
        "a known one",
        "only that of another process",
        "it did not end by itself",
        "an abort",
        "an abort by C++",
    ],
)
def test_without_a_known_cause_the_ranks_own_sentence_stands_for_it(
    tmp_path: Path, text: str, message: str, cause: str
) -> None:
    run = RunDir(tmp_path / "r1")
    first = failed(run, {"node1": (0, text, None, 1)})
    error = with_cause(RunError(message, kind="rank_failed", host=first.host), (), run, {})
    assert error is not None and error.cause.startswith(cause) and bool(error.cause) == bool(cause)
    limit = with_cause(
        RunError(
            "longer than 60 s: rank 0 ended with exit code 1", kind="run_timeout", host="node1"
        ),
        (),
        run,
        {},
    )
    assert limit is not None and not limit.cause.startswith("last output")


def test_a_step_is_no_sentence_and_that_of_a_setup_line_is(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "r1")
    run.log_path("node1", "rank-0.out").write_text("step 1 0.02 s/step\n")
    error = with_cause(
        RunError("rank 0 ended with exit code 7", kind="rank_failed", host="node1"), (), run, {}
    )
    assert error is not None and error.cause == "" and "step 1" in error.hint
    run.log_path("node1", "setup.out").write_text("setup: line 1 (false) ended with exit code 1\n")
    error = with_cause(
        RunError("its launch script ended with exit code 1", kind="rank_failed", host="node1"),
        (),
        run,
        {},
    )
    assert (
        error is not None
        and error.cause == "last output: setup: line 1 (false) ended with exit code 1"
    )


def test_what_nccl_warns_of_on_standard_output_explains_what_the_program_says(
    tmp_path: Path,
) -> None:
    run = RunDir(tmp_path / "r1")
    lost = "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.\n"
    first = failed(run, {"node1": (0, lost, None, 1)})
    warning = "n1:7:9 [1] transport/net_ib.cc:94 NCCL WARN NET/IB : mlx5_2:1 Got async event : port error\n"
    run.log_path("node1", "rank-0.out").write_text(f"orch step=3\n{warning}")
    error = with_cause(first, (), run, {"node1": {}})
    assert error is not None and error.cause.startswith("an InfiniBand or RoCE port went down;")
    assert "mlx5_2:1 Got async event" in (error.hint or "")


def test_a_program_that_was_ended_from_outside_had_started(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "r1")
    failed(run, {"node1": (0, "cat: /sys/class/x: No such file or directory\n", "SIGKILL", None)})
    error = with_cause(
        RunError("rank 0 ended with SIGKILL", kind="rank_failed", host="node1"), (), run, {}
    )
    assert error is not None and error.cause == ""


# --- a rank that leaves early with exit code 0

GONE = (
    "RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.11.0.3]:39114\n"
)


def left(
    directory: Path,
    *,
    step: int,
    errors: dict[str, str],
    codes: dict[str, int],
    ends_s: dict[str, float],
    nodes: int = 2,
) -> RunDir:
    """Write down a run of the ranks 0 on a and 1 on b, of 6 steps, that came to a step."""
    rig = FakeBench(directory, spares=("c",))
    run = RunDir(directory / "r1")
    hosts = (*rig.hosts, *rig.spares)
    spec = replace(rig.spec, nodes=nodes)
    plan = plan_run(rig.folder, spec, hosts, run_id="r1", repeat=1, port=20000)
    run.write_manifest(manifest_of(plan, rig.folder, "bench-1", {}))
    lines = [
        f"orch step={number} t={9 + number}.5 step_time_s=1.0 samples=256 loss=nan\n"
        for number in range(step + 1)
        if step
    ]
    for rank, host in enumerate(("a", "b")):
        run.log_path(host, f"rank-{rank}.err").write_text(errors.get(host, ""))
        run.log_path(host, f"rank-{rank}.out").write_text("" if rank else "".join(lines))
        files = {f"rank-{rank}.{end}": {"bytes": 0, "sha256": ""} for end in ("out", "err")}
        entry = {
            "rank": rank,
            "code": codes[host],
            "signal": None,
            "ended_mono_s": 1000 * rank + ends_s[host],
        }
        times = {"started_mono_s": 1000 * rank, "stopped_mono_s": 1000 * rank + 50.0}
        run.log_path(host, "exit.json").write_text(
            json.dumps(ENDED | times | {"ranks": [entry], "files": files})
        )
    return run


LEFT = {
    "step": 3,
    "errors": {"a": GONE},
    "codes": {"a": 1, "b": 0},
    "ends_s": {"a": 20.2, "b": 20.1},
}


def with_its_cause(run: RunDir, host: str = "a", rank: int = 0) -> RunError:
    error = RunError(
        f"rank {rank} ended with exit code 1",
        kind="rank_failed",
        host=host,
        run_id="r1",
        phase="watch",
    )
    found = with_cause(error, (), run, {"a": {}, "b": {}})
    assert isinstance(found, RunError)
    return found


def test_a_rank_that_left_early_with_exit_code_0_is_the_cause_and_not_the_one_that_lost_it(
    tmp_path: Path,
) -> None:
    error = with_its_cause(left(tmp_path, **LEFT))
    assert (error.host, error.kind, error.run_id) == ("b", "rank_failed", "r1")
    assert (
        error.message
        == "rank 1 ended with exit code 0 after step 3 of 6, and the others waited for it"
    )
    assert (
        error.hint is not None and "Connection closed by peer [10.11.0.3 (b)]:39114" in error.hint
    )
    assert "a: rank 0 ended with exit code 1;" in error.hint


def test_what_the_launcher_of_a_rank_that_left_early_says_is_not_its_own(tmp_path: Path) -> None:
    run = left(tmp_path, **LEFT)
    run.log_path("b", "node.err").write_text(GONE)
    assert with_its_cause(run).host == "b"


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"step": 6}, id="all steps were done"),
        pytest.param({"errors": {"a": MEMORY}}, id="the other has a cause of its own"),
        pytest.param(
            {"errors": {"a": "own.py: no such layer\n"}}, id="the other says something else"
        ),
        pytest.param({"errors": {"a": GONE, "b": GONE}}, id="it lost another one itself"),
        pytest.param({"codes": {"a": 1, "b": 3}}, id="it failed"),
        pytest.param({"ends_s": {"a": 20.0, "b": 21.5}}, id="it ended after the failure"),
    ],
)
def test_a_rank_with_exit_code_0_is_no_cause_where(tmp_path: Path, change: dict[str, Any]) -> None:
    error = with_its_cause(left(tmp_path, **(LEFT | change)))
    assert (error.host, error.message) == ("a", "rank 0 ended with exit code 1")


def test_a_rank_that_left_before_the_first_step_is_the_cause(tmp_path: Path) -> None:
    error = with_its_cause(left(tmp_path, **(LEFT | {"step": 0})))
    assert (
        error.message
        == "rank 1 ended with exit code 0 before its first step, and the others waited for it"
    )


# --- a rank that closed its connections and still ran when the run was stopped

STUCK = LEFT | {"ends_s": {"a": 20.0, "b": 60.0}}


def test_of_two_nodes_that_lost_each_other_none_is_named(tmp_path: Path) -> None:
    error = with_its_cause(left(tmp_path, **STUCK))
    assert error.host == ""
    assert error.message == (
        "a lost the connections to b, where rank 1 still ran when the run was stopped; "
        "which rank is the cause is not known"
    )
    assert error.hint is not None and "peer [10.11.0.3 (b)]:39114" in error.hint


@pytest.mark.parametrize("host", ["a", "c"])
def test_a_node_that_all_others_lost_is_named(tmp_path: Path, host: str) -> None:
    run = left(tmp_path, nodes=3, **STUCK)
    record = json.loads(run.log_path("a", "exit.json").read_text())
    record["ranks"][0]["rank"] = 2
    run.log_path("c", "exit.json").write_text(json.dumps(record))
    run.log_path("c", "rank-2.err").write_text(GONE.replace("10.11.0.3", "b"))
    error = with_its_cause(run, host, 0 if host == "a" else 2)
    assert (error.host, error.message) == (
        "b",
        "rank 1 still ran when the run was stopped, and a,c had lost the connections to it",
    )


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"errors": {"a": GONE, "b": GONE}}, id="it lost another one itself"),
        pytest.param({"errors": {"a": MEMORY}}, id="the other has a cause of its own"),
        pytest.param({"errors": {"a": GONE.replace("10.11.0.3", "10.11.0.9")}}, id="of no node"),
        pytest.param({"ends_s": {"a": 20.0, "b": 30.0}, "codes": {"a": 1, "b": 3}}, id="it failed"),
    ],
)
def test_a_rank_that_was_stopped_is_not_named_where(tmp_path: Path, change: dict[str, Any]) -> None:
    error = with_its_cause(left(tmp_path, **(STUCK | change)))
    assert (error.host, error.message) == ("a", "rank 0 ended with exit code 1")


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_the_rank_that_leaves_real_nodes_early_is_named(tmp_path: Path, rank: int) -> None:
    """Supervisors, wrappers and ranks are real; what they leave is read as it would be after a run."""
    world = World(tmp_path / "nodes", 3, "")
    world.trainer += f" --fail-at-step 5 --fail-rank {rank} --fail-mode exit0"
    names = [machine.name for machine in world.machines]
    try:
        world.begin()
        deadline = time.monotonic() + LIMIT_S
        while len(world.ended) < 3 and time.monotonic() < deadline:
            world.turn()
        assert len(world.ended) == 3, world.failures
        run = RunDir(tmp_path / "r1")
        rig = FakeBench(tmp_path, spares=("c",))
        hosts = [
            replace(host, name=name)
            for host, name in zip((*rig.hosts, *rig.spares), names, strict=True)
        ]
        spec = replace(rig.spec, nodes=3, steps=3000)
        plan = plan_run(rig.folder, spec, hosts, run_id="r1", repeat=1, port=20000)
        run.write_manifest(manifest_of(plan, rig.folder, "bench-1", {}))
        for place, name in enumerate(names):
            for log in (world.folder(place) / "logs").iterdir():
                shutil.copy(log, run.log_path(name, log.name))
            shutil.copy(world.folder(place) / "exit.json", run.log_path(name, "exit.json"))
    finally:
        world.close()
    failed = sorted(world.failures, key=lambda failure: failure[1]["ended_mono_s"])
    errors = [
        RunError(
            f"rank {event['rank']} ended with exit code {event['code']}",
            kind="rank_failed",
            host=names[event["rank"]],
        )
        for _, event in failed
    ]
    error = with_cause(errors[0], errors[1:], run, dict.fromkeys(names, {}))
    assert error is not None and error.host == names[rank] != errors[0].host
    assert re.match(
        rf"rank {rank} ended with exit code 0 after step \d of 3000, and the others", error.message
    )
