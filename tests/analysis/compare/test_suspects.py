"""What may have made a cell slower: measured parts first, then conditions, choices and facts, with
the evidence for each.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.analysis.compare.causes import Distinction
from orchestrator.analysis.compare.suspects import suspects
from orchestrator.results.cells import Cell, cells_of
from orchestrator.results.run import Lowered
from tests.support.cells import cell as runs_of

FAST, SLOW = [100.0, 100.4, 99.7], [80.0, 80.3, 79.8]
"""Steps of 10 ms, and of 12.5 ms, of which 100 are in the window."""
DTYPE = Distinction("dtype", "fp32", "fp16")
LOADER = Distinction("loader", "synthetic", "native")
OPTION = Distinction("options.channels_last", "true", "false")
NCCL = Distinction("env.NCCL_ALGO", "nothing", "Tree")
KERNEL = Distinction("node.kernel", "6.1", "6.8")
COMMAND = Distinction("command", "orch bench", "orch bench -b 1")


def of(speeds: list[float], result: dict[str, Any] | None = None, **spec: Any) -> Cell:
    (cell,) = cells_of(runs_of("1n1g", speeds, "", result, **spec))
    return cell


def told(solo_s: float, input_s: float = 0.0) -> dict[str, Any]:
    return {"observed": {"solo_step_s": [solo_s], "input_wait_s": [100 * input_s]}}


def names(before: Cell, after: Cell, *known: Distinction, is_slower: bool = True) -> list[str]:
    return [one.name for one in suspects(before, after, is_slower, known)]


def test_the_part_that_grew_by_the_change_comes_first_and_what_acts_on_it_before_other_choices() -> (
    None
):
    before, after = of(FAST, told(0.008, 0.001)), of(SLOW, told(0.008, 0.0035))
    found = suspects(before, after, True, [OPTION, LOADER, KERNEL, COMMAND])
    assert [one.name for one in found] == [
        "wait for input",
        "loader",
        "options.channels_last",
        "node.kernel",
        "command",
    ]
    assert [one.kind for one in found] == ["measured", "choice", "choice", "fact", "around"]
    assert found[0].share == pytest.approx(1.0, abs=0.02)
    assert found[0].evidence == "grew by 2.5 ms of the 2.5 ms that a step takes longer"
    assert found[1].evidence == "acts on wait for input" and found[2].evidence == "command line"
    bound = Distinction("cpu_binding", "nothing", "cores")
    found = suspects(before, after, True, [COMMAND, KERNEL, bound])
    assert [one.name for one in found[1:]] == ["cpu_binding", "node.kernel", "command"]
    # of computation and communication, the other choice comes first
    before, after = of(FAST, told(0.008)), of(SLOW, told(0.0105))
    assert names(before, after, NCCL, DTYPE)[0] == "computation alone"
    before, after = of(FAST, told(0.008)), of(SLOW, told(0.008))
    assert names(before, after, OPTION, NCCL) == [
        "communication and waiting",
        "env.NCCL_ALGO",
        "options.channels_last",
    ]


def test_parts_that_did_not_change_with_the_step_or_are_not_told_by_both_are_no_suspects() -> None:
    assert names(of(FAST, told(0.008)), of(SLOW), OPTION) == ["options.channels_last"]
    shrank = suspects(of(FAST, told(0.008, 0.001)), of(SLOW, told(0.0115, 0.0)), True, [])
    assert [one.name for one in shrank] == ["computation alone"], (
        "input took less, communication as long"
    )
    # twice the samples a step: twice the time is no change
    before, after = of(FAST, told(0.008)), of([41.0, 41.2, 40.9], told(0.0161), batch_size=256)
    assert names(before, after) == ["communication and waiting"]


def test_a_condition_counts_only_in_the_direction_of_the_change() -> None:
    quiet, loaded = of(FAST), of(SLOW, {"loaded": {"node1": 0.5, "node2": 0.1}})
    known = Distinction("load", "nothing", "other processes used 50% of the processors of node1")
    (load,) = suspects(quiet, loaded, True, [known])
    assert (load.kind, load.before) == ("condition", "nothing")
    assert (
        load.evidence
        == "median of the runs: 0% of the processors of the busiest node used by others, then 50%"
    )
    # a run that became faster beside more load has it as a fact, at its place
    assert [one.kind for one in suspects(quiet, loaded, False, [OPTION, known])] == [
        "choice",
        "fact",
    ]
    lowered = of(SLOW, {"slowed": {"sw_power_cap": {"node1": Lowered(0.1, 0.4, 0.3)}}})
    (clocks,) = suspects(quiet, lowered, True, [])
    assert (clocks.name, clocks.before, clocks.after) == ("lowered clocks", "0%", "40%")


def test_what_is_known_to_act_the_other_way_comes_last_of_its_kind_and_says_so() -> None:
    batch = Distinction("batch_size", "128", "256")
    found = suspects(of(FAST), of(SLOW), True, [DTYPE, batch, OPTION, KERNEL])
    assert [one.name for one in found] == [
        "options.channels_last",
        "dtype",
        "batch_size",
        "node.kernel",
    ]
    assert [bool("would rather make it faster" in one.evidence) for one in found] == [
        False,
        True,
        True,
        False,
    ]
    assert names(of(SLOW), of(FAST), DTYPE, batch, OPTION, is_slower=False) == [
        "dtype",
        "batch_size",
        "options.channels_last",
    ]
    networks = Distinction("program.networks", "NET/IB on mlx5_0", "NET/Socket on eth0")
    assert names(of(FAST), of(SLOW), KERNEL, networks) == ["node.kernel", "program.networks"], (
        "as they are ranked before"
    )
    assert names(of(SLOW), of(FAST), networks, KERNEL, is_slower=False) == [
        "node.kernel",
        "program.networks",
    ]


def test_telemetry_is_read_where_runs_have_it_and_its_absence_is_nothing() -> None:
    def gpu(clock: float, power: float | None = None) -> SimpleNamespace:
        return SimpleNamespace(sm_mhz=clock, used_percent=99.0, power_w=power, celsius=60.0)

    def measured(speeds: list[float], foreign: float, *gpus: SimpleNamespace) -> Cell:
        node = SimpleNamespace(
            gpus=gpus, foreign_cores=foreign, sent_bytes_per_s=None, link_errors={}
        )
        runs = runs_of("1n1g", speeds)
        use = SimpleNamespace(nodes=(node,))
        (cell,) = cells_of([replace(run, use=use) for run in runs])
        return cell

    # the slowest of two GPUs counts; what one run does not know is left out
    before, after = (
        measured(FAST, 0.0, gpu(1980.0, 600.0), gpu(1950.0)),
        measured(SLOW, 1.5, gpu(1980.0), gpu(1200.0)),
    )
    found = suspects(before, after, True, [])
    assert [(one.name, one.before, one.after, one.kind) for one in found] == [
        ("telemetry.gpu_clock_mhz", "1950", "1200", "condition"),
        ("telemetry.foreign_cores", "0", "1.5", "condition"),
    ]
    assert names(before, after, is_slower=False) == [], (
        "lower clocks and load by others make nothing faster"
    )
    assert names(before, of(SLOW)) == [] == names(of(FAST), after)


def test_where_nothing_is_known_to_differ_nothing_is_suspected() -> None:
    assert suspects(of(FAST), of(SLOW), True, []) == ()
