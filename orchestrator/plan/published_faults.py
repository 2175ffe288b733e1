"""Consistency of a published rule in a ``framework.yaml``: names, patterns, groups, and the window."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from orchestrator.errors import ConfigError, nearest
from orchestrator.inventory.values import KeyPath
from orchestrator.logs.patterns import compile_pattern
from orchestrator.plan.published_schema import (
    CLOCKS,
    LINE_GROUPS,
    RATES,
    SIZE_GROUPS,
    PublishedEntry,
    RuleEntry,
)
from orchestrator.plural import join_words

Fault = tuple[KeyPath, str, str]


def find_published_faults(entry: PublishedEntry) -> Iterator[Fault]:
    """Yield every fault of ``published:`` as the path of its key, what was expected and what came,
    and a hint.
    """
    if entry.rule not in entry.rules:
        names = ", ".join(entry.rules)
        hint = nearest(entry.rule, entry.rules).lstrip("; ")
        yield ("published", "rule"), f"expected one of rules, {names}, got {entry.rule!r}", hint
    for name, rule in entry.rules.items():
        for path, message, hint in _rule(rule):
            yield ("published", "rules", name, *path), message, hint


def _rule(rule: RuleEntry) -> Iterator[Fault]:
    lines = [rule.lines] if isinstance(rule.lines, str) else rule.lines
    line_paths: list[KeyPath] = (
        [("lines",)] if isinstance(rule.lines, str) else [("lines", n) for n in range(len(lines))]
    )
    patterns: list[tuple[KeyPath, str, tuple[str, ...]]] = [
        *((path, pattern, LINE_GROUPS) for path, pattern in zip(line_paths, lines, strict=True)),
        *([(("clock",), rule.clock, ("timestamp",))] if rule.clock else []),
        *(
            (("size_lines", number), pattern, SIZE_GROUPS)
            for number, pattern in enumerate(rule.size_lines)
        ),
    ]
    groups: set[str] = set()
    usable = True
    for path, pattern, known in patterns:
        try:
            named = compile_pattern("", pattern, known).pattern.groupindex
        except ConfigError as error:
            usable = False
            yield path, error.message, error.hint
            continue
        groups |= set(named) if path[0] != "size_lines" else set()
    by = [rule.by] if isinstance(rule.by, str) else rule.by
    yield from _groups(rule, by, groups if usable else None)
    if set(by) <= {*CLOCKS, *RATES}:
        yield from _window(rule, by)
        yield from _statistic(rule, by)


def _groups(rule: RuleEntry, by: Sequence[str], groups: Collection[str] | None) -> Iterator[Fault]:
    """Yield groups that the rule needs and its patterns do not have; ``groups`` is None if a
    pattern is at fault itself.
    """
    names = (*CLOCKS, *RATES)
    for name in by:
        if name not in names:
            yield (
                ("by",),
                f"expected {join_words(names, 'or')}, got {name!r}",
                nearest(name, names).lstrip("; "),
            )
    if groups is None:
        return
    got = ", ".join(name for name in (*LINE_GROUPS, *SIZE_GROUPS) if name in groups)
    for name in by:
        if name in names and name not in groups:
            yield (
                ("by",),
                f"expected a group of lines: or clock:, got {name!r}",
                f"they have {got}{nearest(name, groups)}",
            )
    needs_step = (
        rule.window.take_lines is None
        and not rule.window.total
        or rule.window.steps_above is not None
    )
    if needs_step and "step" not in groups:
        yield (
            ("lines",),
            f"expected a pattern with the group step, got {got}",
            "write (?P<step>[0-9]+) for the number",
        )
    for name in rule.units:
        if name not in groups:
            yield (
                ("units", str(name)),
                f"expected a group of lines: or clock:, got {name!r}",
                f"they have {got}",
            )
    if "first_step" in groups and rule.window.every is None:
        yield (
            ("window", "every"),
            "expected the number of steps per line, with which the group first_step is compared, got nothing",
            "",
        )


def _window(rule: RuleEntry, by: Sequence[str]) -> Iterator[Fault]:
    window = rule.window
    start = window.after if window.after is not None else window.first
    kinds = [
        kind
        for kind, is_set in (("take_lines", window.take_lines is not None), ("total", window.total))
        if is_set
    ]
    if len(kinds) == 2:
        yield (
            ("window",),
            "expected take_lines: or total:, got both",
            "a window is defined in one way only",
        )
        return
    if kinds == ["take_lines"]:
        extra = [
            key for key in ("after", "first", "last", "every") if getattr(window, key) is not None
        ]
        if extra:
            hint = "take_lines: counts lines whatever their steps; leave this key out, or skip early steps with steps_above:"
            yield ("window", extra[0]), "expected no step with take_lines:, got one", hint
    else:
        for key in ("skip_lines", "steps_above"):
            if getattr(window, key) is not None:
                yield (
                    ("window", key),
                    "expected take_lines: beside it, got none",
                    "write how many lines count: take_lines: 100",
                )
        if start is None or window.last is None:
            if start is not None:
                missing = "last:"
            elif window.total:
                missing = "first:"
            else:
                missing = "after: or first:"
            hint = "such as {after: 20, last: 120}"
            if window.total:
                hint = "such as {total: true, first: 1, last: 100}"
            yield ("window",), f"expected {missing} in the window, got none", hint
        elif window.after is not None and window.first is not None:
            hint = "after: 20 begins at the line of step 20, first: 20 counts step 20 itself"
            yield ("window", "first"), "expected after: or first:, got both", hint
        elif window.last <= start and not (window.first is not None and window.last == start):
            yield ("window", "last"), f"expected a step after {start}, got {window.last}", ""
        elif window.every and (window.last - start) % window.every:
            hint = f"the lines are at {start}, {start + window.every} and so on"
            yield (
                ("window", "last"),
                f"expected {start} plus a multiple of every:, {window.every}, got {window.last}",
                hint,
            )
    clocks = [name for name in by if name in CLOCKS]
    if clocks and (kinds or window.first is not None and window.after is None):
        hint = f"{clocks[0]} is read at the line before the window and at its last"
        yield (
            ("window",),
            f"expected after: and last: with by: {clocks[0]}, got another window",
            hint,
        )
    if kinds == ["take_lines"] and len(by) > 1:
        yield (
            ("by",),
            f"expected one group with take_lines:, got {', '.join(by)}",
            "all lines are read in the same way",
        )
    if window.total and list(by) != ["samples_per_s"]:
        yield ("by",), f"expected samples_per_s with total: true, got {', '.join(by)}", ""


def _statistic(rule: RuleEntry, by: Sequence[str]) -> Iterator[Fault]:
    rated = [name for name in by if name in RATES]
    if rule.over != "harmonic_mean" and not rated:
        yield (
            ("over",),
            f"expected none with by: {', '.join(by)}, got {rule.over}",
            "a clock gives the time of the whole window",
        )
    if rule.line_rounding and (rule.over == "harmonic_mean" or not rated):
        hint = "only rates that over: combines by mean, median, min or max are rounded"
        yield (
            ("line_rounding",),
            "expected none where no rates of lines are combined, got one",
            hint,
        )
    if rule.scope != "global" and "samples_per_s" not in by:
        yield (
            ("scope",),
            f"expected none with by: {', '.join(by)}, got {rule.scope}",
            "it says what samples_per_s covers",
        )
    if rule.gaps == "noted" and not (set(by) & set(CLOCKS) and rule.window.every):
        yield (
            ("gaps",),
            "expected refused, got noted",
            "gaps can be noted only with a clock under by:, and with every:",
        )
