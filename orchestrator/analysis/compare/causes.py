"""Differences between two benches other than their speed, the likeliest cause first.

>>> distinctions([], {"orch": "0.1.0", "payload.train.py": "aa"}, {"orch": "0.2.0", "payload.train.py": "ab"})
(Distinction(name='payload.train.py', before='aa', after='ab'), Distinction(name='orch', before='0.1.0', after='0.2.0'))
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import unified_diff
from fnmatch import fnmatchcase
from typing import Any, Protocol, TypeVar

from orchestrator.analysis.compare.cells import spec_fields
from orchestrator.checks.differences import differences
from orchestrator.inventory import fold
from orchestrator.plan.containers import container_name
from orchestrator.plan.framework import payload_digest
from orchestrator.plan.option_values import as_written
from orchestrator.record.manifest import Manifest
from orchestrator.results import Cell
from orchestrator.results.hardware import load_notes

RANKING = (
    # Different work: the measurement, then what a step computes, moves or waits for.
    "metric.*", "simulated", "framework", "model", "device", "options.*", "env.*", "dtype", "batch_size", "loader",
    "nodes", "gpus", "cpu_binding", "program.cpu_binding",
    # Different code.
    "payload.*", "template.*", "program.output_dtype",
    # Different machines or networks: these change speeds by factors, versions by percents.
    "program.devices", "node.gpus.name", "node.number of gpus", "node.cpu", "node.cores", "program.networks", "program.backend",
    # What else ran there.
    "load",
    # Different libraries, from those with the kernels to those with the training loop.
    "program.framework_version", "node.framework.*", "program.nccl", "program.cudnn", "program.cuda", "node.programs.*",
    # Below the libraries: the driver with its limits of power and clocks, then the operating
    # system.
    "node.gpus.driver", "node.gpus.*", "node.interface.*", "node.data*", "node.kernel", "node.machine", "node.memory_bytes",
    # Which of several equal machines, and how many steps: neither matters if machines are equal and
    # windows long enough.
    "hosts", "steps", "warmup_steps", "program.python", "node.*",
    # The programs that start and watch a run take no part in its steps.
    "node_runner", "orch", "inventory", "timeout_s", "command",
)  # fmt: skip
"""Patterns of names in order of likely effect; the first match counts."""
_NAMES = {"interface.name", "runner_python", "user"}
"""Facts of a node that say what something is called there, or what watches a run: no step is
faster by them. The type, speed and MTU of an interface are facts of their own.
"""
_OBSERVED = (
    "devices",
    "networks",
    "backend",
    "framework_version",
    "nccl",
    "cudnn",
    "cuda",
    "python",
    "output_dtype",
    "cpu_binding",
)
_OF_ORCH = ("networks", "cpu_binding")
"""Those that orch itself finds in each run, if there is anything to find."""
_NOTHING = "nothing"


class _Named(Protocol):
    @property
    def name(self) -> str: ...


_NamedT = TypeVar("_NamedT", bound=_Named)


@dataclass(frozen=True, slots=True)
class Distinction:
    """One difference between two benches, as text; all values, separated by commas, if the cells of
    one bench have several.
    """

    name: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class FileDifference:
    """Lines of a rendered file that differ, as ``-before`` and ``+after``, and the cases and node
    ranks that have them.
    """

    path: str
    cases: tuple[str, ...]
    node_ranks: tuple[int, ...]
    lines: tuple[str, ...]


def distinctions(
    pairs: Sequence[tuple[Cell, Cell]], before: Mapping[str, str], after: Mapping[str, str]
) -> tuple[Distinction, ...]:
    """Return the differences within the pairs, and between all later facts about the benches, the
    likeliest cause first.
    """
    values_by_name: dict[str, tuple[dict[str, None], dict[str, None]]] = {}
    for earlier, later in pairs:
        _note(values_by_name, spec_fields(earlier), spec_fields(later))
    _note(values_by_name, before, after)
    measured = [pair for pair in pairs if pair[0].good and pair[1].good]
    for pair in measured:
        reports = [_program_reports(cell) for cell in pair]
        known = [name for name in reports[0] if name in reports[1]]
        _note(values_by_name, *({name: side[name] for name in known} for side in reports))
    _note(values_by_name, *_facts(measured))
    ordered = sorted(values_by_name, key=_weight)
    found = []
    for name in ordered:
        first, second = values_by_name[name]
        found.append(Distinction(name, ", ".join(first), ", ".join(second)))
    return tuple(found)


def neutral(text: str, manifest: Manifest) -> str:
    """Return a rendered file of a run with placeholders for values that differ by run or host, or
    are compared elsewhere.
    """
    names = {
        manifest.run_id: "<run>",
        manifest.bench_id: "<bench>",
        payload_digest(manifest.payload): "<payload>",
    }
    for slot in manifest.slots:
        names |= {
            slot.address: f"<address {slot.node_rank}>",
            slot.host: f"<host {slot.node_rank}>",
        }
        names[container_name(manifest.run_id, slot.node_rank)] = f"<container {slot.node_rank}>"
    port = manifest.placement.master_port
    names |= {
        str(port + offset): f"<port +{offset}>"
        for offset in range(manifest.placement.world_size + 1)
    }
    words = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
    return re.sub(rf"(?<![\w.-])(?:{words})(?!\w)", lambda match: names[match[0]], text)


def file_differences(
    before: Mapping[tuple[str, int, str], str], after: Mapping[tuple[str, int, str], str]
) -> tuple[FileDifference, ...]:
    """Return the differences of files by (case, node_rank, path); equal differences at several
    places are merged.
    """
    places_by_change: dict[tuple[str, tuple[str, ...]], list[tuple[str, int]]] = {}
    for place in {**before, **after}:
        case, node_rank, path = place
        lines = _changed_lines(before.get(place, ""), after.get(place, ""))
        if lines:
            places_by_change.setdefault((path, lines), []).append((case, node_rank))
    found = []
    for (path, lines), places in places_by_change.items():
        cases = dict.fromkeys(case for case, _ in places)
        node_ranks = sorted({node_rank for _, node_rank in places})
        found.append(FileDifference(path, tuple(cases), tuple(node_ranks), lines))
    return tuple(found)


def _changed_lines(before: str, after: str) -> tuple[str, ...]:
    lines = list(unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm=""))[2:]
    return tuple(line for line in lines if not line.startswith("@@"))


def _note(
    values_by_name: dict[str, tuple[dict[str, None], dict[str, None]]],
    before: Mapping[str, Any],
    after: Mapping[str, Any],
) -> None:
    """Add each name with different values to ``values_by_name``."""
    for name in {**before, **after}:
        earlier, later = before.get(name, _NOTHING), after.get(name, _NOTHING)
        if earlier != later:
            values = values_by_name.setdefault(name, ({}, {}))
            values[0][as_written(earlier)] = values[1][as_written(later)] = None


def by_weight(differences: Iterable[_NamedT]) -> list[_NamedT]:
    """Return whatever has the ``name`` of a difference in the order of `RANKING`."""
    return sorted(differences, key=lambda difference: _weight(difference.name))


def _weight(name: str) -> tuple[int, str]:
    return next(
        (place for place, pattern in enumerate(RANKING) if fnmatchcase(name, pattern)), len(RANKING)
    ), name


def _program_reports(cell: Cell) -> dict[str, str]:
    """Return the reports of a cell's programs about themselves, several values joined, and the
    observed load by others. What an earlier program did not report is not known, and not nothing.
    """
    observed = {"load": "; ".join(load_notes(cell.good)) or _NOTHING}
    for name in _OBSERVED:
        told = [run.observed for run in cell.good if name in run.observed or name in _OF_ORCH]
        if told:
            observed[f"program.{name}"] = _join(
                str(values.get(name) or _NOTHING) for values in told
            )
    return observed


def _facts(pairs: Sequence[tuple[Cell, Cell]]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the facts of one bench's nodes that differ from the other's, and the hosts if they are
    not the same. What no node of a side told is not known.
    """
    sides = [_hosts(before for before, _ in pairs), _hosts(after for _, after in pairs)]
    by_side: tuple[dict[str, str], dict[str, str]] = ({}, {})
    if all(sides) and sides[0].keys() != sides[1].keys():
        for facts_of_side, hosts in zip(by_side, sides, strict=True):
            facts_of_side["hosts"] = fold(hosts)
    told = [{name for facts in hosts.values() for name in facts} for hosts in sides]
    labelled: dict[str, Mapping[str, Any]] = {}
    for side, hosts in enumerate(sides):
        labelled |= {f"{side} {host}": facts for host, facts in hosts.items()}
    for difference in differences(labelled):
        fact = difference.fact.removeprefix("number of ").partition(".")[0]
        if difference.fact in _NAMES or not all(fact in names for names in told):
            continue
        values = {host: value for value, hosts in difference.deviating for host in hosts}
        for side, (facts_of_side, hosts) in enumerate(zip(by_side, sides, strict=True)):
            facts_of_side[f"node.{difference.fact}"] = _join(
                values.get(f"{side} {host}", difference.expected) for host in hosts
            )
    return by_side


def _hosts(cells: Iterable[Cell]) -> dict[str, Mapping[str, Any]]:
    return {host: facts for cell in cells for run in cell.good for host, facts in run.facts.items()}


def _join(values: Iterable[str]) -> str:
    return ", ".join(sorted(set(values)))
