"""A comparison of two benches, for a terminal and as JSON. Control characters in texts of nodes and
files are escaped here.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from rich.console import Console
from rich.table import Table
from rich.text import Text

from orchestrator.analysis.compare import Comparison
from orchestrator.analysis.compare.causes import FileDifference
from orchestrator.analysis.compare.cells import (
    OTHER_MODEL,
    UNDECIDED,
    CellPair,
    Side,
    doubt,
)
from orchestrator.analysis.compare.detectable import Detectable
from orchestrator.analysis.compare.suspects import CellSuspects
from orchestrator.grouping import group_pairs
from orchestrator.report.cells import NOTHING, number, repeats, share
from orchestrator.report.text import one_line
from orchestrator.results import Interval
from orchestrator.results.entries import SPEED
from orchestrator.results.numbers.power import MOST_REPEATS
from orchestrator.results.numbers.throughput import WORTH

SCHEMA = 5
"""1: first version. 2: metrics, each pair with its unit. 3: typical values, of which the change is
the ratio. 4: suspects. 5: drift of each side, of which typical values are free; the scatter of
runs."""
COLUMNS = ("case", "before", "n", "after", "n", "change", "change 95%", "p", "verdict")
_STYLE = {"slower": "bold red", "faster": "bold green"}


def as_json(comparison: Comparison) -> str:
    """Return one JSON document, ASCII only: numbers unrounded, ratios after over before, null where
    a number does not exist.
    """
    return json.dumps({"schema": SCHEMA, **asdict(comparison)}, indent=2, allow_nan=False) + "\n"


def render(comparison: Comparison, console: Console, labels: tuple[str, str] = ("", "")) -> None:
    """Print the configurations, then their differences, the likeliest cause first, then the lines
    of files. ``labels`` are those of the two benches.
    """
    sides = [
        f"{name} ({label})" if label else name
        for name, label in zip((comparison.before, comparison.after), labels, strict=True)
    ]
    console.print(Text(one_line(f"before {sides[0]} · after {sides[1]}"), style="bold"))
    for metric in dict.fromkeys(pair.metric for pair in comparison.pairs):
        pairs = tuple(pair for pair in comparison.pairs if pair.metric == metric)
        if metric != SPEED:
            console.print(Text(one_line(f"{metric}, {pairs[0].unit}, {pairs[0].better} is better")))
        console.print(_draw_table(pairs))
    if not comparison.pairs:
        console.print(Text("no configuration is in both benches"))
    for note in notes(comparison):
        console.print(Text(one_line(note), style="dim"))
    if not comparison.distinctions and not comparison.files:
        if comparison.pairs:
            console.print(Text("\nno recorded difference other than the numbers"))
        return
    shown = {suspect.name for cell in comparison.suspects for suspect in cell.suspects}
    for cell in comparison.suspects:
        _print_suspects(cell, comparison, console)
    others = [difference for difference in comparison.distinctions if difference.name not in shown]
    if others:
        console.print()
        title = "other differences" if shown else "differences"
        console.print(Text(f"{title}, the likeliest cause first", style="bold"))
    for place, difference in enumerate(others, start=1):
        _print_item(place, f"{difference.name}: {difference.before} → {difference.after}", console)
    for file in comparison.files:
        _print_file(file, console)


def _print_suspects(cell: CellSuspects, comparison: Comparison, console: Console) -> None:
    """Print possible causes of a slower or faster cell, with the evidence for each."""
    pair = next(
        pair for pair in comparison.pairs if (pair.case, pair.metric) == (cell.case, cell.metric)
    )
    metric = "" if pair.metric == SPEED else f" {pair.metric}"
    title = f"{cell.case}{metric} {pair.verdict}, {change(pair)}: possible causes, the likeliest first; none is proven"
    console.print()
    console.print(Text(one_line(title), style="bold"))
    if not cell.suspects:
        console.print(Text("no recorded difference other than the numbers"))
    for place, suspect in enumerate(cell.suspects, start=1):
        share = "" if suspect.share is None else f"{suspect.share:.0%} of the change: "
        evidence = f" ({share}{suspect.evidence})" if suspect.evidence else ""
        text = f"{suspect.name}: {suspect.before} → {suspect.after}{evidence}"
        _print_item(place, text, console)


def _print_item(place: int, text: str, console: Console) -> None:
    """Print an item of a list; its further lines stand below the first word."""
    lines = Text(one_line(text)).wrap(console, max(console.width - 3, 20))
    console.print(Text(f"{place:2} ") + Text("\n   ").join(lines))


def change(pair: CellPair) -> str:
    """Return the change of the value and its interval: ``-9.0%, -9.6% to -8.4%``."""
    return f"{_percent(pair.ratio)}, {_range(pair.interval)}"


def _draw_table(pairs: tuple[CellPair, ...]) -> Table:
    drawn = Table(box=None, pad_edge=False, header_style="bold")
    first, *middle, last = COLUMNS
    drawn.add_column(first, overflow="fold")
    for title in middle:
        drawn.add_column(title, justify="right", no_wrap=True)
    drawn.add_column(last)
    for pair in pairs:
        case, *numbers, verdict = row(pair)
        drawn.add_row(Text(one_line(case)), *numbers, Text(verdict, style=_STYLE.get(verdict, "")))
    return drawn


def row(pair: CellPair) -> tuple[str, ...]:
    """Return a text for each of `COLUMNS`."""
    numbers = (
        _percent(pair.ratio),
        _range(pair.interval),
        NOTHING if pair.p is None else f"{pair.p:.3f}",
    )
    return (pair.case, *_side(pair.before), *_side(pair.after), *numbers, pair.verdict)


def notes(comparison: Comparison) -> list[str]:
    """Return notes for a reader of the pairs: why there is no verdict, and configurations of one
    bench only.
    """
    texts = []
    if any(pair.verdict == OTHER_MODEL for pair in comparison.pairs):
        texts.append("the two benches measured different models, so no change is faster or slower")
    undecided = [(doubt(pair), pair) for pair in comparison.pairs if pair.verdict in UNDECIDED]
    reasons = ((why, pair.case) for why, pair in undecided if why != pair.verdict)
    for why, cases in group_pairs(reasons).items():
        texts.append(f"{', '.join(dict.fromkeys(cases))}: no verdict: {why}")
    texts += drift_notes(comparison)
    only_in_one = (
        (comparison.before, comparison.only_before),
        (comparison.after, comparison.only_after),
    )
    return texts + [f"only in {name}: {'; '.join(cases)}" for name, cases in only_in_one if cases]


def detectable_json(found: Sequence[Detectable], change: float, margin: float) -> str:
    """Return the detectable changes of benches as one JSON document.

    They are shares of 1, null where a number does not exist.
    """
    content = {
        "schema": 1,
        "change": change,
        "max_regression": margin,
        "configurations": [asdict(each) for each in found],
    }
    return json.dumps(content, indent=2, allow_nan=False) + "\n"


def render_detectable(
    found: Sequence[Detectable], change: float, margin: float, console: Console
) -> None:
    """Print the changes that each configuration's repeats can show, and how many repeats a change
    takes.
    """
    benches = dict.fromkeys(each.benches for each in found)
    if len(benches) == 1:
        console.print(Text(one_line(f"scatter of {' and '.join(*benches)}"), style="bold"))
    drawn = Table(box=None, pad_edge=False, header_style="bold")
    drawn.add_column("case", overflow="fold")
    asked, allowed = _format_share(change), _format_share(margin)
    for title in ("n", "scatter", "found from", f"n for {asked}", "n to pass", "fails from"):
        drawn.add_column(title, justify="right")
    for each in found:
        name = each.case if each.metric == SPEED else f"{each.case} {each.metric}"
        if len(benches) > 1:
            name += f", of {' and '.join(each.benches)}"
        numbers = (
            str(each.repeats),
            share(each.scatter),
            share(each.least),
            _repeats(each.needed, each),
            _repeats(each.to_pass, each),
            share(each.least_failing),
        )
        drawn.add_row(Text(one_line(name)), *numbers)
    console.print(drawn)
    notes = [
        "scatter: the standard deviation of a run, without drift",
        "found from: the smallest change that n repeats in each of two benches find in nine of ten comparisons",
        f"n for {asked}: the repeats of each bench that find {asked} in nine of ten",
        f"n to pass: the repeats with which nine of ten unchanged configurations pass --max-regression {allowed}",
        f"fails from: the smallest regression that n repeats fail in nine of ten with --max-regression {allowed}",
    ]
    if any(each.freedom for each in found):
        least = min(each.freedom for each in found if each.freedom)
        notes.append(
            f"all allow for the uncertainty of a scatter that few runs show: {least:.0f} degrees of freedom or more"
        )
    if any(each.scatter is None for each in found):
        notes.append(
            "a configuration with fewer than two good repeats shows no scatter: run two or more"
        )
    for note in notes:
        console.print(Text(note, style="dim"))


def _format_share(share: float) -> str:
    return f"{share * 100:.4g}%"


def _repeats(needed: int | None, each: Detectable) -> str:
    if each.scatter is None:
        return NOTHING
    if needed is None:
        return f"over {MOST_REPEATS}"
    return str(needed)


def drift_notes(comparison: Comparison) -> list[str]:
    """Return a sentence for each drift that the typical values are without, where it is large
    enough to be noticed.
    """
    texts: dict[str, None] = {}
    for pair in comparison.pairs:
        what = "its runs" if pair.metric == SPEED else pair.metric
        for name, side in ((comparison.before, pair.before), (comparison.after, pair.after)):
            if abs(side.drift) >= WORTH:
                words = "became" if pair.metric == SPEED else "changed by"
                amount = f"{abs(side.drift):.1%} {'faster' if side.drift > 0 else 'slower'}"
                change = amount if pair.metric == SPEED else f"{side.drift:+.1%}"
                texts[f"{name}: {what} {words} {change} during the bench, which is taken out"] = (
                    None
                )
    return list(texts)


def _print_file(file: FileDifference, console: Console) -> None:
    ranks = ", ".join(map(str, file.node_ranks))
    console.print(
        Text(one_line(f"{file.path} of {'; '.join(file.cases)}, node_rank {ranks}"), style="bold")
    )
    for line in file.lines:
        # Not wrapped: the rest of a line may begin with a '-' or '+' of its own.
        text = Text(one_line(line), style="red" if line.startswith("-") else "green")
        console.print(text, soft_wrap=True)


def _side(side: Side) -> tuple[str, str]:
    return number(side.typical), repeats(side.n, side.failed)


def _percent(ratio: float | None) -> str:
    return NOTHING if ratio is None else f"{ratio - 1:+.1%}"


def _range(interval: Interval | None) -> str:
    if interval is None:
        return NOTHING
    return f"{_percent(interval.low)} to {_percent(interval.high)}"
