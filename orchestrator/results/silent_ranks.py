"""Verify that all ranks that log their own steps logged the whole window of a run.

A synchronous run has the speed of all its ranks, so ranks that stopped logging are not left out.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from orchestrator.errors import DataError
from orchestrator.logs import LogGrammar, RankAggregate
from orchestrator.plan.placement import Slot
from orchestrator.record.evidence import invalid
from orchestrator.results.numbers.throughput import Terms


def verify_ranks_logged(
    aggregate: RankAggregate,
    grammar: LogGrammar,
    terms: Terms,
    slots: Sequence[Slot],
    files: Mapping[str, int],
) -> None:
    """Check that a run's logs hold the window from every rank that prints, or from every node if
    each line is about a node.

    ``aggregate`` names its logs "host/name", ``slots`` are all nodes of the run, and ``files`` is
    the number of logs that may hold steps, by host, of the nodes whose logs are read. Either all
    ranks print, or one of each node that is read: any other number is an error. Raises DataError
    result_invalid.
    """
    lines = aggregate.lines()
    distinct = {
        id(steps): steps for steps in lines.values()
    }  # of thousands of ranks, nearly all have the same
    printed = {step for steps in distinct.values() for step in steps}
    window = sorted(step for step in printed if terms.warmup_steps < step <= terms.steps)
    if not window:
        return  # the error of a run without lines says more
    expected = {key: _expected_lines(steps, window, terms) for key, steps in distinct.items()}
    wrong = {}
    for key, steps in distinct.items():
        wrong[key] = [step for step in window if steps[step] != expected[key]]
    ranks: dict[str, int] = defaultdict(int)
    for log, steps in lines.items():
        ranks[log.partition("/")[0]] += expected[id(steps)]
    uneven = sorted(log for log, steps in lines.items() if wrong[id(steps)])
    if uneven:
        key = id(steps := lines[uneven[0]])
        got = {steps[step] for step in wrong[key]}
        raise _uneven(uneven[0], got, expected[key], wrong[key], window, len(uneven) - 1)
    _verify_number(ranks, grammar, slots, files)


def _expected_lines(steps: Counter[int], window: Sequence[int], terms: Terms) -> int:
    """Return how many lines a log should have for a step: as many as for most of the warm-up or of
    the window, or one.
    """
    warmup = Counter(count for step, count in steps.items() if step <= terms.warmup_steps)
    usual = 1
    for counts in (warmup, Counter(steps[step] for step in window)):
        usual = max(usual, max(counts, key=lambda lines: (counts[lines], lines), default=1))
    return usual


def _uneven(
    log: str, got: set[int], expected: int, wrong: Sequence[int], window: Sequence[int], others: int
) -> DataError:
    """Return the error of a log with ``got`` lines for the steps of ``wrong``; ``others`` logs have
    such steps too.
    """
    host, _, name = log.partition("/")
    lines = "a line" if expected == 1 else f"{expected} lines"
    counts = " or ".join(str(number or "none") for number in sorted(got))
    like = f"; {others} more log{'s have' if others > 1 else ' has'} such steps" if others else ""
    return invalid(
        f"expected {lines} for each of the {len(window)} steps from {window[0]} to {window[-1]} that ranks printed, "
        f"got {counts} for {len(wrong)} of them, first for step {wrong[0]}{like}",
        host,
        name,
        hint="a step was printed again"
        if min(got) > expected
        else "a rank stopped logging, or its lines are damaged",
    )


def _verify_number(
    ranks: Mapping[str, int], grammar: LogGrammar, slots: Sequence[Slot], files: Mapping[str, int]
) -> None:
    """Check how many ranks print, by host, against the plan."""
    per_node = grammar.scope == "node"
    read = [slot for slot in slots if slot.host in files]
    one_each = all(ranks.get(slot.host) == 1 for slot in read)
    world = sum(slot.nproc for slot in slots)
    # A launcher may send the output of all nodes to the first one.
    at_first = (len(slots), world) if len(read) == 1 else (world,)
    if one_each or (not per_node and sum(ranks.values()) in at_first):
        return
    for slot in read:
        printing = ranks.get(slot.host, 0)
        if not printing:
            hint = "if only the first node prints, write nodes: first under log:"
            raise invalid(
                "expected step lines of every node (nodes: every), got none from this one",
                slot.host,
                hint=hint,
            )
        if per_node and printing != 1:
            raise invalid(
                f"expected one line of this node for each step, got {printing}", slot.host
            )
        if not per_node and printing not in (slot.nproc, files[slot.host]):
            raise invalid(
                f"expected step lines of all {slot.nproc} ranks of this node, or of one on each node, got those of {printing}",
                slot.host,
                hint="a rank logged nothing; if only some print, name their logs in log.files, or match the lines of one rank",
            )
