"""Which ranks the others wait for, from the parts of all of them."""

from __future__ import annotations

import math
import random
import re
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.record.telemetry import Event
from orchestrator.results.rank_parts import RankParts
from orchestrator.results.run import Lowered, RunResult
from orchestrator.results.slow_ranks import compare_ranks
from orchestrator.results.telemetry.utilization import GpuUse, NodeUse, RunUse
from tests.support.summaries import runs

BLOCKS = 16


def repeats(
    hosts: list[str],
    slow: dict[int, float],
    count: int = 3,
    starved: dict[int, float] | None = None,
    noise: float = 0.003,
    working: dict[int, float] | None = None,
) -> list[RunResult]:
    """Runs of 0.3 s a step, in which ranks compute 0.1 s, those of ``slow`` longer by that
    fraction; with ``working``, in 0.09 s of processor time, those of ``working`` in more by that
    fraction."""
    chance = random.Random(3)

    def parts(rank: int) -> RankParts:
        computing = [
            0.1 * (1 + slow.get(rank, 0.0)) * (1 + chance.gauss(0, noise)) for _ in range(BLOCKS)
        ]
        waiting = [
            (starved or {}).get(rank, 0.001) * (1 + chance.gauss(0, noise)) for _ in range(BLOCKS)
        ]
        worked = [
            0.09 * (1 + (working or {}).get(rank, 0.0)) * (1 + chance.gauss(0, 0.003))
            for _ in range(BLOCKS)
        ]
        return RankParts(
            rank,
            hosts[rank],
            (0.3,) * BLOCKS,
            tuple(waiting),
            tuple(computing),
            () if working is None else tuple(worked),
        )

    made = runs("4n1g", [100.0] * count)
    return [replace(run, rank_parts=tuple(map(parts, range(len(hosts))))) for run in made]


FOUR = ["node1", "node2", "node3", "node4"]
PAIRS = ["node1", "node1", "node2", "node2", "node3", "node3"]


def test_equal_ranks_have_their_parts_and_no_sentence() -> None:
    found = compare_ranks(repeats(FOUR, {}))
    assert found.words == () and [times.rank for times in found.times] == [0, 1, 2, 3]
    assert all(times.excess and abs(times.excess.value) < 0.01 for times in found.times)


def test_the_slow_rank_is_named_with_its_node_and_not_those_that_wait_for_it() -> None:
    (words,) = compare_ranks(repeats(FOUR, {2: 0.12})).words
    assert words.startswith("rank 2 on node3 takes 1") and words.endswith(
        "longer to compute than the other ranks, which wait for it"
    )


def test_of_two_slow_ranks_the_others_wait_for_the_slower() -> None:
    first, second = compare_ranks(repeats([*FOUR, "node5"], {1: 0.05, 3: 0.2})).words
    assert first.startswith("rank 3 on node4") and first.endswith("which wait for it")
    assert second.startswith("rank 1 on node2") and second.endswith("than the other ranks")


def test_a_node_stands_for_its_ranks_if_all_of_them_are_slow() -> None:
    (words,) = compare_ranks(repeats(PAIRS, {2: 0.1, 3: 0.11})).words
    assert words.startswith("every rank of node2 takes 10")


def test_one_slow_rank_of_a_node_is_not_the_node() -> None:
    (words,) = compare_ranks(repeats(PAIRS, {3: 0.1})).words
    assert words.startswith("rank 3 on node2 takes")


def test_of_two_nodes_the_slower_is_named() -> None:
    (words,) = compare_ranks(repeats(PAIRS[:4], {2: 0.1, 3: 0.1})).words
    assert words.startswith("every rank of node2 takes")


def test_less_than_what_matters_is_not_named_however_certain() -> None:
    assert compare_ranks(repeats(FOUR, {2: 0.015}, noise=0.0001)).words == ()


def test_a_rank_that_waits_for_input_is_told_from_one_that_computes() -> None:
    (words,) = compare_ranks(repeats(FOUR, {}, starved={1: 0.03})).words
    assert (
        words.startswith("rank 1 on node2 waits for its input 9.")
        and "of a step longer than the other ranks" in words
    )


def test_where_the_clock_tells_nothing_the_processor_time_tells_who_has_more_to_compute() -> None:
    made = repeats(FOUR, {2: 0.2}, noise=0.25, working={2: 0.2})
    (slow,) = compare_ranks(made).slow
    assert (slow.rank, slow.part, slow.cause) == (2, "processor", "")
    assert slow.words.startswith(
        "rank 2 on node3 takes 19.9% (19.7% to 20.1%) "
    ) and slow.words.endswith("more processor time to compute than the other ranks")
    times = compare_ranks(made).times[2]
    assert (
        times.compute_cpu_s == pytest.approx(0.108, rel=0.01)
        and times.excess
        and times.excess.low < 0
    )


def test_equal_processor_times_name_nobody_on_a_busy_machine() -> None:
    assert compare_ranks(repeats(FOUR, {}, noise=0.25, working={})).slow == ()


def test_a_rank_that_computes_longer_is_named_once_with_its_processor_time() -> None:
    (words,) = compare_ranks(repeats(FOUR, {2: 0.2}, working={2: 0.2})).words
    assert words.endswith(
        "which wait for it; its processor time is 19.9% (19.7% to 20.1%) above that of the others"
    )
    (words,) = compare_ranks(repeats(FOUR, {2: 0.2}, working={})).words
    (share,) = re.findall(
        r"its processor time is (-?[\d.]+)% \(.*%\) above that of the others$", words
    )
    assert abs(float(share)) < 0.5


def test_a_node_whose_ranks_all_have_more_to_compute_is_named_once() -> None:
    (words,) = compare_ranks(repeats(PAIRS, {}, noise=0.25, working={2: 0.1, 3: 0.11})).words
    assert words.startswith("every rank of node2 takes 10.") and "more processor time" in words
    (words,) = compare_ranks(repeats(PAIRS, {2: 0.1, 3: 0.1}, working={2: 0.1, 3: 0.01})).words
    assert words.startswith("every rank of node2 takes 10") and "longer to compute" in words


def waiting(made: list[RunResult], shares: list[dict[int, float | None]]) -> list[RunResult]:
    """The runs, each with the share of steps in which the GPUs of ranks wait for their programs."""
    return [
        replace(
            run,
            rank_parts=tuple(
                replace(part, gpu_waits=of_run.get(part.rank, 0.0)) for part in run.rank_parts
            ),
        )
        for run, of_run in zip(made, shares, strict=True)
    ]


def test_ranks_whose_gpus_wait_for_their_programs_are_not_compared_by_how_long_they_compute() -> (
    None
):
    made = waiting(repeats(FOUR, {2: 0.43}, starved={1: 0.03}), [{2: 0.96, 3: 0.5}] * 3)
    note, of_input = compare_ranks(made).words
    assert note == (
        "the GPU of rank 2 on node3 waits for its program (the CPU side) in 96% of the steps, "
        "so ranks are not compared by compute time"
    )
    assert of_input.startswith("rank 1 on node2 waits for its input 9.")
    times = compare_ranks(made).times
    assert [own.excess for own in times] == [None] * 4 and all(
        own.input_excess and own.compute_s for own in times
    )
    assert [own.gpu_waits for own in times] == pytest.approx([0.0, 0.0, 0.96, 0.5])


def test_one_repeat_in_which_a_gpu_waits_is_enough_and_a_few_steps_are_not() -> None:
    (note,) = compare_ranks(waiting(repeats(FOUR, {2: 0.2}), [{0: 0.9}, {}, {}])).words
    assert note.startswith(
        "the GPU of rank 0 on node1 waits for its program (the CPU side) in 30% of the steps"
    )
    few = compare_ranks(waiting(repeats(FOUR, {2: 0.2}), [dict.fromkeys(range(4), 0.09)] * 3))
    assert not few.note and few.words[0].startswith("rank 2 on node3 takes")


def test_ranks_of_programs_that_do_not_tell_whether_gpus_wait_are_compared_as_before() -> None:
    compared_ranks = compare_ranks(repeats(FOUR, {2: 0.2}))
    assert [slow.rank for slow in compared_ranks.slow] == [2] and not compared_ranks.note
    assert [own.gpu_waits for own in compared_ranks.times] == [None] * 4


def test_what_is_known_of_the_node_stands_beside_it() -> None:
    lowered = {
        "sw_thermal_slowdown": {"node3": Lowered(0.4, 0.5, 0.3), "node1": Lowered(0.1, 0.1, 0.1)}
    }
    made = [
        replace(run, slowed=lowered, loaded={"node3": 0.4, "node2": 0.9})
        for run in repeats(FOUR, {2: 0.12})
    ]
    (words,) = compare_ranks(made).words
    assert (
        "; clocks lowered by temperature: for 30% of the run" in words
        and "40% of the processors of node3" in words
    )
    assert "node1" not in words and "90%" not in words


def sampled(run: RunResult, slow: str, **changes: Any) -> RunResult:
    """The run with samples of four nodes that are alike but for one of them."""
    gpu = GpuUse("NVIDIA H200", "GPU-0", False, 640.0, True, 99.0, 1755.0, 1980.0, 64.0, None)
    node = NodeUse(
        "", 10, 8, (gpu,), 0.5, 0.1, None, (), None, None, {}, (), None, stolen_cores=0.0
    )
    of_gpu = {name: value for name, value in changes.items() if hasattr(gpu, name)}
    other = replace(
        node,
        **{name: value for name, value in changes.items() if name not in of_gpu},
        gpus=(replace(gpu, **of_gpu),),
    )
    return replace(
        run,
        use=RunUse(
            10.0, tuple(replace(other if host == slow else node, host=host) for host in FOUR)
        ),
    )


@pytest.mark.parametrize(
    ("changes", "cause", "words"),
    [
        (
            {"sm_mhz": 1410.0, "celsius": 83.0, "power_w": 520.0},
            "device",
            "its own devices are slower: its clocks are 19.7% lower; "
            "its GPUs run at 1410 MHz, 83 °C, 520 W (others: 1755 MHz, 64 °C, 640 W)",
        ),
        (
            {"errors": {"memory, corrected": 12}, "link_errors": {"eth0": 3}},
            "device",
            "its own devices are slower: errors of a GPU's memory, corrected (12); errors of link eth0 (3); "
            "its GPUs run at 1755 MHz, 64 °C, 640 W (others: 1755 MHz, 64 °C, 640 W)",
        ),
        (
            {
                "foreign_cores": 2.0,
                "events": (Event(5.0, "busy", name="python", user="bob", cores=1.9),),
                "sm_mhz": 1500.0,
            },
            "others",
            "others take resources from it: processes outside the run used 2.0 of its 8 processors, most of it by python of "
            "bob (others: 0.1); its clocks are 14.5% lower; "
            "its GPUs run at 1500 MHz, 64 °C, 640 W (others: 1755 MHz, 64 °C, 640 W)",
        ),
        (
            {"stolen_cores": 1.0},
            "others",
            "others take resources from it: other machines on its hypervisor used 1.0 of its 8 processors (others: 0.0); "
            "its GPUs run at 1755 MHz, 64 °C, 640 W (others: 1755 MHz, 64 °C, 640 W)",
        ),
        (
            {"held": 0.83},
            "others",
            "others take resources from it: its CPU limit (cpu.max) throttled it in 83% of all periods; "
            "its GPUs run at 1755 MHz, 64 °C, 640 W (others: 1755 MHz, 64 °C, 640 W)",
        ),
        (
            {"foreign_cores": 0.4},
            "unknown",
            "no sampled value explains it: its GPUs run at 1755 MHz, 64 °C, 640 W (others: 1755 MHz, 64 °C, 640 W)",
        ),
    ],
)
def test_what_others_take_from_a_node_is_told_from_what_its_devices_do(
    changes: Any, cause: str, words: str
) -> None:
    (slow,) = compare_ranks(
        [sampled(run, "node3", **changes) for run in repeats(FOUR, {2: 0.12})]
    ).slow
    assert (slow.rank, slow.host, slow.part, slow.cause) == (2, "node3", "compute", cause)
    assert slow.words.partition("which wait for it; ")[2] == words


def test_of_the_errors_of_several_runs_those_of_the_worst_run_are_told() -> None:
    counts = (2, 12, 1)
    made = [
        sampled(run, "node3", link_errors={"eth0": count})
        for run, count in zip(repeats(FOUR, {2: 0.12}), counts, strict=True)
    ]
    assert "errors of link eth0 (12);" in compare_ranks(made).slow[0].words


def test_what_all_nodes_have_alike_slows_none_of_them() -> None:
    alike = [sampled(run, "node3") for run in repeats(FOUR, {2: 0.12})]
    (use,) = {run.use.seconds: run.use for run in alike if run.use}.values()
    busy = replace(
        use, nodes=tuple(replace(node, foreign_cores=4.0, held=0.5) for node in use.nodes)
    )
    (slow,) = compare_ranks([replace(run, use=busy) for run in alike]).slow
    assert slow.cause == "unknown" and "processors" not in slow.words
    monitor = Event(5.0, "process", gpu=0, pid=9, name="monitor", user="root")
    watched = replace(use, nodes=tuple(replace(node, events=(monitor,)) for node in use.nodes))
    assert compare_ranks([replace(run, use=watched) for run in alike]).slow[0].cause == "unknown"
    alone = replace(
        use,
        nodes=tuple(
            replace(node, events=(monitor,) * (node.host == "node3")) for node in use.nodes
        ),
    )
    (slow,) = compare_ranks([replace(run, use=alone) for run in alike]).slow
    assert slow.cause == "others" and "monitor also used one of its GPUs" in slow.words


def test_clocks_that_are_lowered_on_all_nodes_alike_are_no_cause() -> None:
    alike = {"sw_power_cap": {host: Lowered(0.9, 0.9, 0.9) for host in FOUR}}
    made = [sampled(replace(run, slowed=alike), "node3") for run in repeats(FOUR, {2: 0.12})]
    (slow,) = compare_ranks(made).slow
    assert slow.cause == "unknown" and "clocks lowered by the power limit" in slow.words
    alone = {"sw_power_cap": {"node3": Lowered(0.9, 0.9, 0.9)}}
    (slow,) = compare_ranks([replace(run, slowed=alone) for run in made]).slow
    assert slow.cause == "device"
    (slow,) = compare_ranks([replace(run, loaded=dict.fromkeys(FOUR, 0.8)) for run in made]).slow
    assert slow.cause == "unknown"


def test_of_a_node_that_was_not_sampled_nothing_is_said() -> None:
    (slow,) = compare_ranks(repeats(FOUR, {2: 0.12})).slow
    assert slow.cause == "" and slow.words.endswith("which wait for it")


def test_runs_on_other_nodes_than_the_last_are_not_pooled_with_it() -> None:
    moved = repeats(list(reversed(FOUR)), {2: 0.5}, count=1)
    assert compare_ranks([*moved, *repeats(FOUR, {})]).words == ()


def test_a_single_repeat_says_which_slow_ranks_it_would_not_have_shown() -> None:
    found = compare_ranks(repeats(FOUR, {2: 0.03}, count=1))
    assert not found.slow and found.words == (found.note,)
    said = re.fullmatch(
        r"one repeat: a rank that takes less than ([\d.]+)% longer to compute than the others would not be named",
        found.note,
    )
    assert said and 4 < float(said[1]) < 8
    assert (
        compare_ranks(repeats(FOUR, {2: 0.01 * float(said[1]) + 0.01}, count=1)).slow[0].rank == 2
    )
    assert not compare_ranks(repeats(FOUR, {}, count=3)).note


def test_times_that_are_absurdly_far_apart_still_give_numbers() -> None:
    (run,) = repeats(FOUR, {}, count=1)
    tiny = replace(run.rank_parts[0], compute_s=(5e-324, 1e14) * 8)
    (first, *_) = compare_ranks([replace(run, rank_parts=(tiny, *run.rank_parts[1:]))]).times
    assert first.excess and math.isfinite(first.excess.high) and first.excess.low >= -1


def test_one_slow_rank_of_many_is_named_alone() -> None:
    hosts = [f"node{rank // 8}" for rank in range(64)]
    (words,) = compare_ranks(repeats(hosts, {43: 0.1})).words
    assert words.startswith("rank 43 on node5 takes")


def test_a_single_rank_is_compared_with_nobody() -> None:
    assert compare_ranks(repeats(["node1"], {})).times == ()
