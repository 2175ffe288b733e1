"""An acceptance suite as data: its stages in order, what each measures, its bars, its estimated
time, and what depends on it.

A stage inspects the nodes (``checks``) or is a bench, whose choices are written as in a run file
(`orchestrator.plan.run_file`). The values ``$ranks`` and ``$nodes`` in them stand for the ranks per
node and the number of nodes. `references_of` reads the figures that a type of device is known to
reach."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from orchestrator.errors import ConfigError, Faults, nearest, raise_all
from orchestrator.plan.option_values import seconds, share, shortest
from orchestrator.plan.run_file import run_file_of

if TYPE_CHECKING:
    from orchestrator.yamlfile import Document

_OF_STAGE = {
    "name", "title", "checks", "bench", "framework", "choices", "run", "per_node", "needs", "least", "optional", "bars", "cpu",
}  # fmt: skip
_ON_CPU = {"bench", "framework", "choices", "run", "per_node", "bars"}
_OF_BAR = {"metric", "at", "peers", "earlier"}
_OF_FIGURE = {
    *("framework", "model", "metric", "at"),
    *("value", "tolerance", "source", "seen", "devices"),
}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,59}")
_Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Bar:
    """The bar for the values of one metric, where ``at`` holds.

    ``peers`` and ``earlier`` are the shares by which a node or device may be worse than its peers,
    and than itself in the last accepted run; None: not compared. Reference figures of the metric
    are judged as well.
    """

    metric: str
    at: Mapping[str, str]
    peers: float | None
    earlier: float | None

    @property
    def words(self) -> str:
        """Its metric and place as text."""
        return " ".join([self.metric, *(f"{name}={value}" for name, value in self.at.items())])


@dataclass(frozen=True, slots=True)
class SuiteStage:
    """One stage. ``checks`` is ``all``, or names of checks, for a stage that inspects; otherwise
    ``bench`` is the model that is measured. ``paths`` has the path in the suite of each of its
    keys. A run takes about ``run_s`` seconds and ``per_node_s`` more for each node; 0: unknown.
    ``needs`` names stages without whose result this one is pointless. It needs ``least_nodes``
    nodes of ``least_ranks`` ranks. ``optional``: a node that lacks the program is not tested, and
    not refused."""

    name: str
    title: str
    checks: tuple[str, ...]
    bench: str
    framework: str
    paths: Mapping[str, _Path]
    run_s: float
    per_node_s: float
    needs: tuple[str, ...]
    least_nodes: int
    least_ranks: int
    optional: bool
    bars: tuple[Bar, ...]

    def estimate_s(self, runs: int, nodes: int) -> float:
        """Return the seconds that so many runs on so many nodes take."""
        return runs * (self.run_s + self.per_node_s * nodes)


@dataclass(frozen=True, slots=True)
class Suite:
    """A suite for one type of device, ``cuda`` or ``cpu``. ``criteria``: the name of public ones
    that its certificate answers.
    """

    name: str
    title: str
    stages: tuple[SuiteStage, ...]
    criteria: str = ""


@dataclass(frozen=True, slots=True)
class Reference:
    """A reference figure for devices of a type (a pattern of their name).

    It has the value of a metric where ``at`` holds, in its unit, the share by which it may be
    missed, and the source. ``seen``: the least and the largest value of ``devices`` measured ones.
    """

    device: str
    framework: str
    model: str
    metric: str
    at: Mapping[str, str]
    value: float
    tolerance: float
    source: str
    seen: tuple[float, float] | None = None
    devices: int = 0


def suite_of(document: Document, name: str, device: str) -> Suite:
    """Return the suite in a document for a type of device. Raises ConfigError, or Faults with all
    of them, with file and line."""
    reader = _Reader(document)
    content = reader.mapping(document.value, (), {"title", "criteria", "stages"})
    title = reader.text(content, "title", (), name)
    criteria = reader.text(content, "criteria", (), "")
    entries = content.get("stages")
    stages = []
    if not isinstance(entries, list) or not entries:
        reader.fault(("stages",), f"expected a list of stages, got {entries!r}")
    else:
        stages = [
            reader.stage(entry, ("stages", index), device) for index, entry in enumerate(entries)
        ]
        of_others = _Reader(
            document
        )  # a rehearsal reports faults for the other type of devices too
        for index, entry in enumerate(entries):
            of_others.stage(entry, ("stages", index), "cuda" if device == "cpu" else "cpu")
        known = {(fault.where, fault.message) for fault in reader.faults}
        reader.faults += [
            fault for fault in of_others.faults if (fault.where, fault.message) not in known
        ]
    seen: list[str] = []
    for index, stage in enumerate(stages):
        if stage.name in seen:
            reader.fault(
                ("stages", index, "name"), f"expected a unique name, got {stage.name} again"
            )
        for needed in stage.needs:
            if needed not in seen:
                hint = f"the stages before it: {', '.join(seen) or 'none'}{nearest(needed, seen)}"
                reader.fault(
                    ("stages", index, "needs"),
                    f"expected stages that come before it, got {needed}",
                    hint,
                )
        seen.append(stage.name)
    raise_all(reader.faults)
    return Suite(name, title, tuple(stages), criteria)


def choices_of(document: Document, stage: SuiteStage, nodes: int, ranks: int) -> Document:
    """Return the choices of a stage as a run file of their own, with ``$nodes`` and ``$ranks``
    replaced by numbers.
    """
    if path := stage.paths.get("choices"):
        return _choices_at(document, path, nodes, ranks)
    return replace(document, value={}, lines={})


def fit_stages(
    stages: Sequence[tuple[SuiteStage, float]],
    budget_s: float | None,
    impossible: Mapping[str, str] = MappingProxyType({}),
) -> tuple[list[SuiteStage], dict[str, str]]:
    """Return the stages that fit a budget, in order, and why each other one is left out. ``stages``
    are given with their estimated seconds; ``impossible`` are others, with the reasons.

    A stage that does not fit is left out, and so is what needs it; a shorter one after it may still
    fit."""
    kept = []
    left_out = dict(impossible)
    spent = 0.0
    for stage, estimate_s in stages:
        missing = [name for name in stage.needs if name in left_out]
        if missing:
            left_out[stage.name] = f"needs {missing[0]}, which is left out"
        elif budget_s is not None and spent + estimate_s > budget_s:
            left = max(0.0, budget_s - spent)
            left_out[stage.name] = (
                f"takes about {shortest(round(estimate_s))}, {shortest(round(left))} of the budget is left"
            )
        else:
            kept.append(stage)
            spent += estimate_s
    return kept, left_out


def references_of(document: Document) -> tuple[Reference, ...]:
    """Return the figures of one file of reference data. Raises ConfigError, or Faults with all of
    them.
    """
    reader = _Reader(document)
    content = reader.mapping(document.value, (), {"device", "source", "figures"})
    device, source = reader.text(content, "device", ()), reader.text(content, "source", ())
    figures = content.get("figures")
    read = []
    for index, figure in enumerate(figures if isinstance(figures, list) else ()):
        path = ("figures", index)
        entry = reader.mapping(figure, path, _OF_FIGURE)
        value: Any = entry.get("value")
        if type(value) not in (int, float) or not 0 < value < math.inf:
            reader.fault((*path, "value"), f"expected a number above 0, got {value!r}")
            continue
        texts = {key: reader.text(entry, key, path) for key in ("framework", "metric")}
        at = reader.values(entry.get("at", {}), (*path, "at"))
        of_it = str(entry.get("source", source))
        tolerance = reader.percentage(entry, "tolerance", path) or 0.0
        model = str(entry.get("model", ""))
        read.append(
            Reference(
                device,
                texts["framework"],
                model,
                texts["metric"],
                at,
                float(value),
                tolerance,
                of_it,
                *reader.seen(entry, path, value),
            )
        )
    if not isinstance(figures, list):
        reader.fault(("figures",), f"expected a list of figures, got {figures!r}")
    raise_all(reader.faults)
    return tuple(read)


def _choices_at(document: Document, path: _Path, nodes: int, ranks: int) -> Document:
    part = document.part(path)
    return replace(part, value=_fill(part.value, {"$nodes": nodes, "$ranks": ranks}))


def _fill(value: Any, numbers: Mapping[str, int]) -> Any:
    if isinstance(value, dict):
        return {key: _fill(part, numbers) for key, part in value.items()}
    if isinstance(value, list):
        return [_fill(part, numbers) for part in value]
    if isinstance(value, str):
        return numbers.get(value, value)
    return value


@dataclass(slots=True)
class _Reader:
    document: Document
    faults: list[ConfigError] = field(default_factory=list)

    def fault(self, path: _Path, message: str, hint: str = "") -> None:
        self.faults.append(ConfigError(message, where=self.document.where(path), hint=hint))

    def mapping(self, value: Any, path: _Path, keys: set[str]) -> Mapping[str, Any]:
        if not isinstance(value, dict):
            self.fault(path, f"expected a mapping, got {value!r}")
            return {}
        for key in value:
            if key not in keys:
                hint = f"valid keys: {', '.join(sorted(keys))}{nearest(key, sorted(keys))}"
                self.fault((*path, key), f"unknown key {key}", hint)
        return value

    def text(
        self, content: Mapping[str, Any], key: str, path: _Path, default: str | None = None
    ) -> str:
        value = content.get(key, default)
        if not isinstance(value, str) or (default is None and not value):
            self.fault((*path, key), f"expected text, got {value!r}")
            return ""
        return value

    def texts(self, value: Any, path: _Path) -> tuple[str, ...]:
        if not isinstance(value, list) or not all(isinstance(part, str) for part in value):
            self.fault(path, f"expected a list of names, got {value!r}")
            return ()
        return tuple(value)

    def boolean(self, content: Mapping[str, Any], key: str, path: _Path) -> bool:
        value: Any = content.get(key, False)
        if type(value) is not bool:
            self.fault((*path, key), f"expected true or false, got {value!r}")
        return value is True

    def whole(self, content: Mapping[str, Any], key: str, path: _Path) -> int:
        value: Any = content.get(key, 1)
        if type(value) is not int or value < 1:
            self.fault((*path, key), f"expected a whole number ≥ 1, got {value!r}")
            return 1
        return value

    def seconds(self, content: Mapping[str, Any], key: str, path: _Path) -> float:
        value: Any = content.get(key, 0)
        try:
            return seconds(str(value), key, least=0)
        except ConfigError as error:
            self.fault((*path, key), error.message)
            return 0.0

    def percentage(self, content: Mapping[str, Any], key: str, path: _Path) -> float | None:
        if key not in content:
            return None
        try:
            return share(str(content[key]), key)
        except ConfigError as error:
            self.fault((*path, key), error.message)
            return None

    def seen(
        self, content: Mapping[str, Any], path: _Path, value: float
    ) -> tuple[tuple[float, float] | None, int]:
        """Return the range of the values behind a figure, and of how many devices they are."""
        if not {"seen", "devices"} & set(content):
            return None, 0
        match content.get("seen"), content.get("devices"):
            case ([int() | float() as low, int() | float() as high], int() as devices) if (
                0 < low <= value <= high < math.inf and devices > 1
            ):
                return (float(low), float(high)), devices
        expected = "expected seen: [LEAST, LARGEST] around the value, and devices: N above 1"
        got = f"seen {content.get('seen')!r}, devices {content.get('devices')!r}"
        self.fault((*path, "seen"), f"{expected}, got {got}")
        return None, 0

    def values(self, value: Any, path: _Path) -> dict[str, str]:
        if not isinstance(value, dict) or not all(
            isinstance(part, str | int | float) for part in value.values()
        ):
            self.fault(path, f"expected a mapping of names to values, got {value!r}")
            return {}
        return {key: str(part) for key, part in value.items()}

    def stage(self, value: Any, path: _Path, device: str) -> SuiteStage:
        content = self.mapping(value, path, _OF_STAGE)
        on_cpu = self.mapping(content.get("cpu", {}), (*path, "cpu"), _ON_CPU) if content else {}
        chosen = {**content, **on_cpu} if device == "cpu" else content
        paths = {
            key: (*path, "cpu", key) if chosen is not content and key in on_cpu else (*path, key)
            for key in chosen
        }
        names = self._checks(content, chosen, path, paths)
        if "choices" in chosen:
            self._check_choices(paths["choices"])
        least = self.mapping(content.get("least", {}), (*path, "least"), {"nodes", "ranks"})
        bars = chosen.get("bars", [])
        if not isinstance(bars, list):
            self.fault(paths["bars"], f"expected a list of bars, got {bars!r}")
            bars = []
        name = self.text(content, "name", path)
        if name and not _NAME.fullmatch(name):
            message = (
                f"expected a name of at most 60 letters, digits, '.', '_' and '-', got {name!r}"
            )
            self.fault((*path, "name"), message, "say the rest under title:")
        return SuiteStage(
            name,
            self.text(content, "title", path, name),
            names,
            self.text(chosen, "bench", path, ""),
            self.text(chosen, "framework", path, ""),
            paths,
            self.seconds(chosen, "run", path),
            self.seconds(chosen, "per_node", path),
            self.texts(content.get("needs", []), (*path, "needs")),
            self.whole(least, "nodes", (*path, "least")),
            self.whole(least, "ranks", (*path, "least")),
            self.boolean(content, "optional", path),
            tuple(self.bar(bar, (*paths["bars"], index)) for index, bar in enumerate(bars)),
        )

    def _checks(
        self,
        content: Mapping[str, Any],
        chosen: Mapping[str, Any],
        path: _Path,
        paths: Mapping[str, _Path],
    ) -> tuple[str, ...]:
        """Return the checks of a stage; none if it is a bench."""
        if ("checks" in content) == ("bench" in content):
            self.fault(
                path,
                f"expected either checks or bench, got {'both' if 'bench' in content else 'neither'}",
            )
            return ()
        if "bench" in content:
            return ()
        checks = content["checks"]
        if checks == []:
            self.fault((*path, "checks"), "expected all, or a list of names of checks, got []")
        if not content.get("framework"):
            self.fault(path, "expected a framework, whose interpreter the checks start")
        for key in (key for key in ("bench", "choices", "bars", "optional") if key in chosen):
            self.fault(
                paths[key], f"expected no {key} beside checks, which are judged by what they find"
            )
        if checks == "all":
            return ("all",)
        return self.texts(checks, (*path, "checks"))

    def bar(self, value: Any, path: _Path) -> Bar:
        content = self.mapping(value, path, _OF_BAR)
        at = self.values(content.get("at", {}), (*path, "at"))
        shares = {key: self.percentage(content, key, path) for key in ("peers", "earlier")}
        return Bar(self.text(content, "metric", path), at, shares["peers"], shares["earlier"])

    def _check_choices(self, path: _Path) -> None:
        try:
            run_file_of(_choices_at(self.document, path, 1, 1))
        except (ConfigError, Faults) as error:
            self.faults += [fault for fault in error.errors if isinstance(fault, ConfigError)]
