"""Rates that approach a value as means since the start do.

Unless the grammar says so, each of them is wrongly read as the rate of its own steps.

>>> log = [StepSample(step, samples_per_s=64 * step / (4 + 0.5 * step)) for step in range(1, 101)]
>>> cumulative_note(log, Terms(warmup_steps=20, steps=100, global_batch=64))[0].partition(":")[0]
'the rates look like means since the start'
"""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.logs import StepSample
from orchestrator.notes import Note
from orchestrator.results.numbers.notes import RATES_SINCE_START
from orchestrator.results.numbers.throughput import WORTH, Terms, median

_BLOCKS = 5
_FEWEST = 20
_ALIKE = 0.25
"""Steps that differ by less than this share of the drift of the rates are alike."""


def cumulative_note(samples: Sequence[StepSample], terms: Terms) -> list[Note]:
    """Return a note if the rates of a window drift as means since the start drift while all steps
    take equally long. Other times in a log contradict such rates anyway; without rates, or with
    fewer than 20 lines, there is no note."""
    lines = [
        sample
        for sample in samples
        if terms.warmup_steps <= sample.step <= terms.steps and sample.step > 0
    ]
    rates = [sample.steps_per_s or sample.samples_per_s or sample.tokens_per_s for sample in lines]
    if terms.cumulative or len(lines) < _FEWEST or not all(rate and rate > 0 for rate in rates):
        return []
    # Any unit: only ratios matter.
    times = [1 / rate for rate in rates if rate]
    edges = [(len(lines) - 1) * block // _BLOCKS for block in range(_BLOCKS + 1)]
    at_edges = [times[edge] for edge in edges]
    falls = all(later < earlier for earlier, later in zip(at_edges, at_edges[1:], strict=False))
    rises = all(later > earlier for earlier, later in zip(at_edges, at_edges[1:], strict=False))
    drift = max(at_edges) / min(at_edges) - 1
    if not (falls or rises) or drift < WORTH:
        return []
    totals = [lines[edge].step * times[edge] for edge in edges]
    counts = [lines[edge].step for edge in edges]
    blocks = [
        (total - before) / (count - first)
        for before, total, first, count in zip(totals, totals[1:], counts, counts[1:], strict=False)
    ]
    if min(blocks) <= 0 or (max(blocks) - min(blocks)) / median(blocks) > _ALIKE * drift:
        return []
    of_window = (totals[-1] - totals[0]) / (counts[-1] - counts[0])
    faster = median(times) / of_window - 1
    return [RATES_SINCE_START(apart=abs(faster), faster="faster" if faster > 0 else "slower")]
