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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from orchestrator.logs.grammar import SIZES, Agreement
from orchestrator.logs.numbers import NumberForm


@dataclass(frozen=True, slots=True)
class Row:
    """The numbers of a row as they are printed, by group, and its line as messages show it."""

    said: Mapping[str, str]
    shown: str
    form: NumberForm = NumberForm()

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

    def _verdict(self, agreement: Agreement) -> str | None:
        names = (agreement.value, *agreement.of, *agreement.over)
        numbers = [self._number(name) for name in names]
        if agreement.models and self.said.get("model") not in agreement.models:
            return None
        if not all(0 < number < math.inf for number, _ in numbers):
            return None
        value, over_at = numbers[0][0], 1 + len(agreement.of)
        products = []
        for some in (numbers[1:over_at], numbers[over_at:]):
            products.append(math.prod(number for number, _ in some))
        computed = agreement.factor * products[0] / products[1]
        # Each number may be off by one unit of its last digit.
        off = math.prod(1 + resolution / number for number, resolution in numbers)
        within, ratio = agreement.within * off, value / computed
        if 1 / within <= ratio <= within:
            return ""
        said_by = " and ".join((*agreement.of, *agreement.over))
        give = "give" if len(names) > 2 else "gives"
        contradicts = f"{agreement.value} is {value:g}, but {said_by} {give} {computed:.4g}"
        return f"{contradicts}, in {self.shown}; see log.agreements for {agreement.value}"

    def _number(self, name: str) -> tuple[float, float]:
        """Return a number, or the difference of two, and its resolution; nan if it is not known."""
        first, *others = [self._read_number(part) for part in name.split("-")]
        difference = first[0] - math.fsum(number for number, _ in others)
        # Sizes of a run and differences of two numbers are counts, which nobody rounds.
        return difference, 0.0 if others or name in SIZES else first[1]

    def _read_number(self, name: str) -> tuple[float, float]:
        text = name if name.isdecimal() else self.said.get(name, "")
        number = self.form.number(text)
        if number is None:
            return (math.nan, 0.0)
        return (number, self.form.resolution(text))


def contradiction_in(verdicts: Sequence[str | None]) -> str:
    """Return the first contradiction among verdicts of one value, an empty text if one holds or
    none could be tried.
    """
    tried = [verdict for verdict in verdicts if verdict is not None]
    return "" if not tried or "" in tried else tried[0]
