"""Options of a bench, one row each: where each may stand besides the command line, and what it takes there.

The run file with its JSON Schema, the files of defaults with theirs, the commands to which defaults apply, and the least value
of each count all come from `OPTIONS`. A row is named as its option, with ``_`` for ``-``; the order is that in messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

__all__ = ["OPTIONS", "BenchOption", "DefaultKey", "InRunFile"]


@dataclass(frozen=True, slots=True)
class InRunFile:
    """How an option stands in a run file.

    ``place`` says how often: ``list`` takes one value or several, ``run`` one value, also in an entry of ``include``, ``bench``
    one value for all configurations. ``expected`` describes ``types`` in a message. ``key`` is the key, if it is not the name.
    """

    place: Literal["list", "run", "bench"]
    types: tuple[type, ...]
    expected: str
    key: str = ""


@dataclass(frozen=True, slots=True)
class DefaultKey:
    """How an option stands in a file of defaults.

    ``kind`` is a kind of value in `orchestrator.record.defaults`, ``limit`` the field of `Limits` that it sets. ``commands``
    says whose command line takes it: ``all`` that have the option, those that start ``runs``, or none, where other code does.
    """

    kind: str
    description: str
    limit: str = ""
    commands: Literal["", "all", "runs"] = ""


@dataclass(frozen=True, slots=True)
class BenchOption:
    """An option, and where it may stand; ``least`` is the smallest value of one that is a count in a spec."""

    run_file: InRunFile | None = None
    default: DefaultKey | None = None
    least: int | None = None


def _listed(*types: type, expected: str) -> InRunFile:
    return InRunFile("list", types, expected)


_WHOLE = "a whole number"
OPTIONS: Mapping[str, BenchOption] = {
    "framework": BenchOption(_listed(str, expected="text")),
    "dtype": BenchOption(_listed(str, expected="text")),
    "batch_size": BenchOption(_listed(int, expected=_WHOLE), least=1),
    "loader": BenchOption(_listed(str, expected="text")),
    "cpu_binding": BenchOption(_listed(str, expected="none, numa or cores")),
    "options": BenchOption(_listed(str, int, float, bool, expected="a text, a number, true or false")),
    "env": BenchOption(_listed(str, int, expected="a text or a whole number")),
    "hosts": BenchOption(default=DefaultKey("text", "inventory file, from the folder of this file on, or hosts")),
    "exclude": BenchOption(default=DefaultKey("text", "hosts to leave out", commands="all")),
    "accept_new": BenchOption(default=DefaultKey("flag", "store host keys that are seen for the first time", commands="all")),
    "templates": BenchOption(default=DefaultKey("folders", "more framework folders, from the folder of this file on")),
    "nodes": BenchOption(_listed(int, expected=_WHOLE), DefaultKey("numbers", "numbers of nodes of a bench"), least=1),
    "gpus": BenchOption(_listed(int, expected=_WHOLE), least=1),
    "shape": BenchOption(_listed(str, expected="a shape such as 4n8g")),
    "steps": BenchOption(InRunFile("run", (int,), _WHOLE), least=1),
    "warmup_steps": BenchOption(InRunFile("run", (int,), _WHOLE), least=0),
    "container": BenchOption(InRunFile("bench", (str,), "ENGINE:IMAGE, or none")),
    "ladder": BenchOption(InRunFile("bench", (bool,), "true or false")),
    "repeats": BenchOption(InRunFile("bench", (int,), _WHOLE), DefaultKey("count", "runs of each configuration")),
    "label": BenchOption(InRunFile("bench", (str,), "text")),
    "expect": BenchOption(InRunFile("bench", (str, list), "a bound such as busbw >= 350, or a list of them")),
    "until_ci": BenchOption(
        default=DefaultKey("percentage", "add repeats until every 95 % interval is within this share", commands="runs")
    ),
    "max_repeats": BenchOption(default=DefaultKey("count", "upper limit of repeats with until_ci", commands="runs")),
    "order": BenchOption(default=DefaultKey("order", "the order of runs", commands="runs")),
    "budget": BenchOption(default=DefaultKey("duration", "total time of a bench or tune", commands="runs")),
    "timeout": BenchOption(
        InRunFile("run", (int, float), "seconds above 0", "timeout_s"),
        DefaultKey("duration", "time after which a run is stopped"),
    ),
    "global_batch": BenchOption(InRunFile("run", (int,), _WHOLE), least=1),
    "lease": BenchOption(
        default=DefaultKey(
            "duration", "time that a node continues a run without contact to the controller", "lease_s", commands="runs"
        )
    ),
    "stop_grace": BenchOption(default=DefaultKey("duration", "time between SIGTERM and SIGKILL", "grace_s", commands="runs")),
    "first_line_timeout": BenchOption(
        default=DefaultKey("duration", "most time until the first line of a log", "first_line_s", commands="runs")
    ),
    "stall_timeout": BenchOption(
        default=DefaultKey("duration", "most time between two lines of a log", "stall_s", commands="runs")
    ),
    "output_limit": BenchOption(default=DefaultKey("count", "most MiB of logs of a run on one node", commands="runs")),
    "wait": BenchOption(default=DefaultKey("flag", "wait for nodes that other runs hold", commands="runs")),
    "wait_limit": BenchOption(default=DefaultKey("duration", "longest wait, with wait", commands="runs")),
    "keep_going": BenchOption(
        default=DefaultKey("flag", "also start runs that would fail as an earlier one did", commands="runs")
    ),
    "strict": BenchOption(default=DefaultKey("flag", "refuse a bench if a configuration is impossible", commands="runs")),
}
