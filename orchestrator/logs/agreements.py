"""Agreements: whether the numbers of a row of a log follow from each other, as its rate from its time.

>>> from orchestrator.logs.grammar import Agreement
>>> rate = Agreement("busbw", ("algbw", "world_size-1"), ("world_size",), factor=2)
>>> row = Row({"algbw": "50.00", "busbw": "50.00"}, "'50.00 50.00'")
>>> row.verdicts([rate])
[None]
>>> row.with_known({"world_size": 4}).contradiction([rate])
"busbw is 50, but algbw and world_size-1 and world_size give 75, in '50.00 50.00'; see log.agreements for busbw"
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from orchestrator.logs.grammar import SIZES, Agreement, groups_of
from orchestrator.logs.numbers import PLAIN, NumberForm, resolution_of_clock
from orchestrator.logs.text import clock

_MOST_ROWS = 1 << 12
"""Rows of a log that an agreement of all rows together looks at."""
_FEWEST = 3
"""Of fewer rows, the middle one says nothing."""
_LATE_S = 0.25
"""A line may be printed so long after the moment that it is about."""
_DAY_S = 86400.0


@dataclass(frozen=True, slots=True)
class Ratio:
    """A value of a row over the one that follows from others; ``low`` and ``high``: what it may be
    with other digits than the printed ones."""

    value: float
    computed: float
    low: float
    high: float

    @property
    def ratio(self) -> float:
        """The quotient of both as they are printed."""
        return self.value / self.computed

    def contradicts(self, agreement: Agreement, usual: float = 1.0) -> bool:
        """Return whether it differs from the ``usual`` one by more than the agreement allows."""
        is_more = agreement.at != "least" and self.low > usual * agreement.within
        is_less = agreement.at != "most" and self.high < usual / agreement.within
        return is_more or is_less


@dataclass(frozen=True, slots=True)
class Row:
    """The numbers of a row as they are printed, by group, and its line as messages show it."""

    said: Mapping[str, str]
    shown: str
    form: NumberForm = PLAIN

    def with_known(self, known: Mapping[str, object]) -> Row:
        """Return the row with known facts of its run or log added; its own numbers take precedence."""
        return replace(
            self, said={**{key: str(value) for key, value in known.items()}, **self.said}
        )

    def verdicts(self, alternatives: Sequence[Agreement]) -> list[str | None]:
        """Return for each agreement how the row contradicts it, an empty text if it does not; None
        if one of its numbers is not known, or the model it is about.
        """
        return [self._verdict(agreement) for agreement in alternatives]

    def contradiction(self, alternatives: Sequence[Agreement]) -> str:
        """Return why the row holds for none of the agreements of one value, an empty text if it
        does for one, or if none can be tried.
        """
        return contradiction_in(self.verdicts(alternatives))

    def ratio(self, agreement: Agreement) -> Ratio | None:
        """Return the ratio of an agreement's value and what follows; None if it cannot be tried."""
        if agreement.models and self.said.get("model") not in agreement.models:
            return None
        names = (agreement.value, *agreement.of, *agreement.over)
        numbers = [self._number(name) for name in names]
        are_known = all(0 < number < math.inf for _, number, _ in numbers)
        # A difference of less than its digits can tell only bounds a value from above.
        if not (are_known and all(low > 0 for low, _, _ in numbers[1:])):
            return None
        (low, number, high), *ranges = numbers
        factors, divisors = ranges[: len(agreement.of)], ranges[len(agreement.of) :]
        products = []
        for place in range(3):
            product = math.prod(factor[place] for factor in factors)
            product /= math.prod(divisor[2 - place] for divisor in divisors)
            products.append(agreement.factor * product)
        least, computed, most = products
        return Ratio(number, computed, low / most, high / least)

    def contradict(self, agreement: Agreement, ratio: Ratio, usual: float = 1.0) -> str:
        """Return in words that a value is not what follows, times what is ``usual``."""
        said_by = " and ".join((*agreement.of, *agreement.over))
        give = "give" if len(agreement.of + agreement.over) > 1 else "gives"
        at = f" at {agreement.at}" if agreement.at else ""
        as_usual = {"alike": " as in other rows", "most": " here and in most rows"}
        contradicts = (
            f"{agreement.value} is {ratio.value:g}, but {said_by} {give}{at}"
            f" {ratio.computed * usual:.4g}{as_usual.get(agreement.rows, '')}"
        )
        return f"{contradicts}, in {self.shown}; see log.agreements for {agreement.value}"

    def _verdict(self, agreement: Agreement) -> str | None:
        ratio = self.ratio(agreement)
        if ratio is None:
            return None
        return self.contradict(agreement, ratio) if ratio.contradicts(agreement) else ""

    def _number(self, name: str) -> tuple[float, float, float]:
        """Return a number, or the difference of two, between what it may be at least and at most;
        nan if it is not known. Each printed number may be off by one unit of its last digit.
        """
        first, *others = [self._read_number(part) for part in name.split("-")]
        number, off = first
        if not others:
            off = 0.0 if name in SIZES else off
            return number / (1 + off / number) if number else 0.0, number, number + off
        number -= math.fsum(other for other, _ in others)
        # Counts are not rounded.
        off = math.fsum(resolution for _, resolution in (first, *others) if resolution < 1)
        if ":" in self.said.get(name.split("-")[0], ""):
            off = max(off, _LATE_S)
        return max(0.0, number - off), number, number + off

    def _read_number(self, name: str) -> tuple[float, float]:
        text = name if name.isdecimal() else self.said.get(name, "")
        if ":" in text:
            day, of_day = clock(text) or (0, math.nan)
            # Of a clock of whole seconds two units are one of the difference.
            return (day or 0) * _DAY_S + of_day, resolution_of_clock(text) * 0.5
        number = self.form.number(text)
        if number is None:
            return (math.nan, 0.0)
        return (number, self.form.resolution(text))


class Trend:
    """The rows of an agreement that only all of them together can judge."""

    def __init__(self, agreement: Agreement) -> None:
        self.agreement = agreement
        self.rows: list[tuple[Ratio, Row]] = []

    def add(self, row: Row) -> None:
        """Take a row into account."""
        ratio = self.agreement.models == () and row.ratio(self.agreement)
        if ratio and len(self.rows) < _MOST_ROWS:
            self.rows.append((ratio, row))

    def contradictions(self) -> Iterator[str]:
        """Yield why a row contradicts the others, or the middle one itself."""
        if len(self.rows) < _FEWEST:
            return
        by_ratio = sorted(self.rows, key=lambda of_row: of_row[0].ratio)
        middle, usual = by_ratio[len(by_ratio) // 2], 1.0
        judged = [middle]
        if self.agreement.rows == "alike":
            judged, usual = self.rows, middle[0].ratio
        for ratio, row in judged:
            if ratio.contradicts(self.agreement, usual):
                yield row.contradict(self.agreement, ratio, usual)


class RowsAbove:
    """What the terms of agreements need of the rows above, for each rank that prints.

    >>> above = RowsAbove(["mean(rate)", "before(rate)"])
    >>> above.read(None, "row", {"rate": "1.0"}, {}), above.read(None, "row", {"rate": "2.3"}, {})
    ({'mean(rate)': '1.0'}, {'mean(rate)': '1.6', 'before(rate)': '1.0'})
    """

    def __init__(self, parts: Sequence[str], form: NumberForm = PLAIN) -> None:
        self.parts = {part: groups_of(part) for part in parts if "(" in part}
        self.form = form
        self.rows: dict[tuple[int | None, object], Mapping[str, str]] = {}
        self.means: dict[tuple[int | None, str], _Mean] = {}
        self.distinct: dict[str, set[str]] = {}

    def read(
        self, tag: int | None, kind: object, said: Mapping[str, str], given: Mapping[str, str]
    ) -> dict[str, str]:
        """Take a row of the rank ``tag`` and of a ``kind`` into account, which stands where others
        have ``given`` numbers; return the parts of terms.
        """
        found = {}
        before = self.rows.get((tag, kind), {})
        for part, groups in self.parts.items():
            texts = [said[group] for group in groups if group in said]
            if part.startswith("before("):
                text = before.get(groups[0], "")
            elif part.startswith("mean("):
                mean = self.means.setdefault((tag, part), _Mean())
                mean.add(texts, self.form)
                text = mean.text
            else:
                values = self.distinct.setdefault(part, set())
                values.update(texts[: _MOST_ROWS - len(values)])
                text = str(len(values) or "")
            if text:
                found[part] = text
        if self.parts:
            self.rows[tag, kind] = {**given, **said}
        return found

    def forget(self, tag: int | None, part: str) -> None:
        """Begin a mean anew: its rows have been summed up."""
        self.means.pop((tag, part), None)


class _Mean:
    """The mean of numbers, with as many digits as the one that was printed with the fewest."""

    def __init__(self) -> None:
        self.total, self.count, self.resolution = 0.0, 0, 0.0

    def add(self, texts: Sequence[str], form: NumberForm) -> None:
        for text in texts:
            number = form.number(text)
            self.total += math.nan if number is None else number
            self.count += 1
            self.resolution = max(self.resolution, form.resolution(text))

    @property
    def text(self) -> str:
        if not self.count or not math.isfinite(self.total):
            return ""
        mean, exponent = self.total / self.count, math.floor(math.log10(self.resolution or 1.0))
        if exponent > 0:
            return f"{mean / 10**exponent:.0f}e{exponent}"
        return f"{mean:.{-exponent}f}"


def contradiction_in(verdicts: Sequence[str | None]) -> str:
    """Return the first contradiction among verdicts of one value, an empty text if one holds or
    none could be tried.
    """
    tried = [verdict for verdict in verdicts if verdict is not None]
    return "" if not tried or "" in tried else tried[0]
