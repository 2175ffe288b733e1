"""What the nodes of a run say of their processors, networks and clocks while it lasted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.record.rundir import BenchDir
from orchestrator.results.read import read_run
from orchestrator.results.summary import summarize
from tests.support.run_folders import STEPS, build, logs_of


def metered(
    busy_s: float = 0.0, sent_bytes: int = 10**12, growth: Any = (), switches: Any = None
) -> Any:
    """Return what makes nodes of eight processors report the use of processors and networks in a
    run of 100 s.
    """

    def report(records: list[dict[str, Any]]) -> None:
        for node, record in enumerate(records):
            load = {
                "count": 8,
                "busy_s": 400.0 + busy_s,
                "own_s": 400.0,
                "switches": (switches or [[1, 2], [8, 9]])[node],
            }
            record |= {"started_mono_s": 890.0, "ended_mono_s": 990.0}
            record["meter"] = {
                "processors": load,
                "sent_bytes": sent_bytes,
                "growth": list(growth) if node == 0 else [],
            }

    return report


def test_processors_that_others_used_qualify_the_number(bench: BenchDir) -> None:
    result = read_run(build(bench, "r1", after=metered(busy_s=160.0)))
    assert result.loaded == {"node1": 0.2, "node2": 0.2}
    (row,) = summarize([result]).rows
    assert "other processes used 20% of the processors of node[1-2]" in row.qualifications
    assert read_run(build(bench, "r2", after=metered(busy_s=70.0))).loaded == {}
    simulated = read_run(
        build(
            bench,
            "r3",
            lambda planned, _: planned["framework"].update(simulated=True),
            metered(busy_s=160.0),
        )
    )
    assert not any(
        "other processes" in note for note in summarize([simulated]).rows[0].qualifications
    )


def test_nodes_of_one_machine_do_not_count_each_other_as_load(bench: BenchDir) -> None:
    assert (
        read_run(build(bench, "r1", after=metered(busy_s=400.0, switches=[[1, 9], [2, 8]]))).loaded
        == {}
    )


def test_nodes_that_send_nothing_may_train_alone(bench: BenchDir) -> None:
    """A hundredth of the gradients of ResNet-50 in 16 bits is half a megabyte, in twelve steps 6.1
    MB.
    """
    told = "node[1-2] sent at most 166667 bytes per step for gradients of 51.1 MB in 16 bits: each node may train alone"
    result = read_run(build(bench, "r1", after=metered(sent_bytes=2_000_000)))
    assert [note.partition(", or")[0] for note in result.qualifications] == [told]
    assert read_run(build(bench, "r2", after=metered(sent_bytes=7_000_000))).qualifications == ()
    more = read_run(build(bench, "r3", after=metered(sent_bytes=2_400_000)))
    (row,) = summarize([result, replace(more, repeat=2)]).rows
    (both,) = [note for note in row.qualifications if note.code == "sent_little"]
    assert both.startswith("node[1-2] sent at most 166667 to 200000 bytes per step for gradients")


def test_a_log_is_compared_with_the_clock_of_its_node(bench: BenchDir) -> None:
    """Steps of 5 s by the log, whose lines came twice a second."""
    text = logs_of(0, 5.0)["rank-0.out"].encode()
    ends = [
        text.index(b"\n", text.index(f"step={step} ".encode())) + 1 for step in range(1, STEPS + 1)
    ]
    growth = [[900.0 + 0.5 * step, {"rank-0.out": end}] for step, end in enumerate(ends, start=1)]
    result = read_run(build(bench, "r1", seconds=5.0, after=metered(growth=growth)))
    assert (
        result.error
        and "got 45.0 s for steps 3…11, whose lines arrived within 4.5 s" in result.error.message
    )
    agreeing = [[900.0 + 5.0 * step, {"rank-0.out": end}] for step, end in enumerate(ends, start=1)]
    assert (
        read_run(build(bench, "r2", seconds=5.0, after=metered(growth=agreeing))).qualifications
        == ()
    )


@pytest.mark.parametrize(
    "meter",
    [None, [], {"growth": 5}, {"growth": [[1.0]]}, {"growth": [], "processors": {"count": "x"}}],
)
def test_an_invalid_meter_is_none(bench: BenchDir, meter: Any) -> None:
    result = read_run(
        build(bench, "r1", after=lambda records: [record.update(meter=meter) for record in records])
    )
    assert result.error is None and result.qualifications == () and result.loaded == {}
