"""The condition of a node over the window of its runs, against the other nodes: load by others,
state of its devices.

A node that computes longer than the others may be slow itself, or others may use its processors:
the two are told apart. All figures cover exactly the steps of the window and are medians over the
runs; the others' figures are medians over them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from orchestrator.results.numbers.throughput import WORTH, median
from orchestrator.results.telemetry.doubts import busiest
from orchestrator.results.telemetry.utilization import NodeUse, RunUse

_TAKEN = 0.05
"""Share of its processors, or of periods, that others have to take from a node beyond what they
take from the other nodes.
"""
_Value = Callable[[NodeUse], float | None]


@dataclass(frozen=True, slots=True)
class Conditions:
    """The condition of a node against the others.

    ``by_others``: foreign use of processors or GPUs on this node only. ``of_devices``: respects in
    which its devices are worse, such as slower clocks. ``figures``: clocks, temperature and power.
    Empty without samples; ``is_sampled``: whether the node and another one were sampled.
    """

    by_others: tuple[str, ...] = ()
    of_devices: tuple[str, ...] = ()
    figures: tuple[str, ...] = ()
    is_sampled: bool = False


def conditions_against_others(host: str, uses: Sequence[RunUse | None]) -> Conditions:
    """Return the condition of a node in runs that sampled it and another node."""
    pairs = []
    for use in filter(None, uses):
        own, others = _own_and_others(host, use)
        if own and others:
            pairs.append((own, others))
    if not pairs:
        return Conditions()
    processors = pairs[0][0].processors
    by_others = [
        *_describe_processors(
            pairs,
            lambda node: node.foreign_cores,
            processors,
            "processes outside the run",
            busiest(uses, [host]),
        ),
        *_describe_processors(
            pairs, lambda node: node.stolen_cores, processors, "other machines on its hypervisor"
        ),
        *_throttling(pairs),
        *_strangers(pairs),
    ]
    return Conditions(
        tuple(by_others), tuple(_of_devices(pairs)), tuple(_figures(pairs)), is_sampled=True
    )


_Pairs = Sequence[tuple[NodeUse, Sequence[NodeUse]]]


def _own_and_others(host: str, use: RunUse) -> tuple[NodeUse | None, list[NodeUse]]:
    own = next((node for node in use.nodes if node.host == host), None)
    return own, [node for node in use.nodes if node.host != host]


def _against(pairs: _Pairs, value: _Value) -> tuple[float, float | None] | None:
    """Return a node's figure and the others', which may be None; None if the node's is unknown."""
    own = [figure for node, _ in pairs if (figure := value(node)) is not None]
    others = [figure for _, rest in pairs for node in rest if (figure := value(node)) is not None]
    if not own:
        return None
    return (median(own), median(others) if others else None)


def _describe_processors(
    pairs: _Pairs, value: _Value, processors: int, who: str, most: str = ""
) -> list[str]:
    cores = _against(pairs, value)
    if not cores or processors < 1 or cores[0] - (cores[1] or 0.0) < _TAKEN * processors:
        return []
    return [
        f"{who} used {cores[0]:.1f} of its {processors} processors{most}{_beside(cores[1], '{:.1f}')}"
    ]


def _throttling(pairs: _Pairs) -> list[str]:
    share = _against(pairs, lambda node: node.held)
    if not share or share[0] - (share[1] or 0.0) < _TAKEN:
        return []
    return [
        f"its CPU limit (cpu.max) throttled it in {share[0]:.0%} of all periods{_beside(share[1], '{:.0%}')}"
    ]


def _strangers(pairs: _Pairs) -> list[str]:
    """Return the names of processes that are not of the run on its GPUs, without those that the
    others' GPUs have too.
    """
    own = _processes(node for node, _ in pairs)
    others = _processes(node for _, rest in pairs for node in rest)
    return [f"{name} also used one of its GPUs" for name in own if name not in others][:4]


def _processes(nodes: Iterable[NodeUse]) -> list[str]:
    events = [event for node in nodes for event in node.events]
    names = (event.name or "a process" for event in events if event.kind == "process")
    return list(dict.fromkeys(names))


def _of_devices(pairs: _Pairs) -> list[str]:
    """Return the respects in which a node's GPUs and links are worse than the others'."""
    texts = []
    clock = _against(pairs, _clock)
    if clock and clock[1] and clock[0] < (1 - WORTH) * clock[1]:
        texts.append(f"its clocks are {1 - clock[0] / clock[1]:.1%} lower")
    own = _most_errors(node for node, _ in pairs)
    others = _most_errors(node for _, rest in pairs for node in rest)
    return texts + [
        f"errors of {name} ({count})" for name, count in own.items() if name not in others
    ]


def _most_errors(nodes: Iterable[NodeUse]) -> dict[str, int]:
    """Return the errors of the run that had most of them, by kind."""
    most: dict[str, int] = {}
    for node in nodes:
        for name, count in _errors(node).items():
            most[name] = max(count, most.get(name, 0))
    return most


def _errors(node: NodeUse) -> dict[str, int]:
    of_gpus: dict[str, int] = {}
    for gpu in node.gpus:
        for kind, count in gpu.errors.items():
            of_gpus[f"a GPU's {kind}"] = of_gpus.get(f"a GPU's {kind}", 0) + count
    return of_gpus | {f"link {name}": count for name, count in node.link_errors.items()}


def _figures(pairs: _Pairs) -> list[str]:
    """Return clocks, temperature and power of its GPUs, and its processors' power, beside the
    others'.
    """
    values: tuple[tuple[_Value, str], ...] = (
        (_clock, "{:.0f} MHz"),
        (_hottest, "{:.0f} °C"),
        (lambda node: node.power_w, "{:.0f} W"),
    )
    own, others = [], []
    for value, words in values:
        figures = _against(pairs, value)
        if figures:
            own.append(words.format(figures[0]))
            if figures[1] is not None:
                others.append(words.format(figures[1]))
    texts = []
    if own:
        beside = f" (others: {', '.join(others)})" if others else ""
        texts.append(f"its GPUs run at {', '.join(own)}{beside}")
    packages = _against(pairs, lambda node: node.packages_w)
    if packages:
        texts.append(f"its processors draw {packages[0]:.0f} W{_beside(packages[1], '{:.0f} W')}")
    return texts


def _clock(node: NodeUse) -> float | None:
    """Return the clock of its slowest GPU, which the others of a node wait for."""
    return min((gpu.sm_mhz for gpu in node.gpus if gpu.sm_mhz is not None), default=None)


def _hottest(node: NodeUse) -> float | None:
    return max((gpu.celsius for gpu in node.gpus if gpu.celsius is not None), default=None)


def _beside(figure: float | None, form: str) -> str:
    if figure is None:
        return ""
    return f" (others: {form.format(figure)})"
