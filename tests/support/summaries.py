"""Summaries and results for tests of printed output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.errors import RunError
from orchestrator.logs.metrics import Metric
from orchestrator.plan import MEASURES
from orchestrator.plan.spec import RunSpec
from orchestrator.results.entries import Row
from orchestrator.results.numbers.throughput import Throughput
from orchestrator.results.run import RunResult
from orchestrator.results.summary import Summary, summarize
from orchestrator.results.values import Key, Value

SPEC = RunSpec("pytorch", "resnet50", 1, 1, "cuda", 128, "fp16", "synthetic", 120, 20, 1800.0, {})
SEEN = {
    "devices": {"NVIDIA H200": 8},
    "framework": "torch",
    "framework_version": "2.13.0",
    "nccl": "2.27.3",
}


def runs(shape: str, speeds: list[float], **changes: Any) -> list[RunResult]:
    nodes, gpus = (int(number) for number in shape[:-1].split("n"))
    spec = replace(SPEC, nodes=nodes, gpus=gpus, **changes.pop("spec", {}))
    return [
        replace(
            RunResult(
                f"{shape}-{i}",
                i,
                spec,
                False,
                "finished",
                Throughput(speed, 1, 1 / speed, 21, 120),
                observed=SEEN,
            ),
            **changes,
        )
        for i, speed in enumerate(speeds, start=1)
    ]


def measured(
    shape: str,
    metrics: Sequence[Metric],
    *repeats: Mapping[str, float | Mapping[Any, float]],
    **changes: Any,
) -> list[RunResult]:
    """Return a run for each of ``repeats`` of a program that does not train: its numbers by metric,
    or by metric and key.
    """
    values = [
        tuple(
            Value(metric.name, _key(key), number)
            for metric in metrics
            for key, number in _by_key(repeat, metric.name)
        )
        for repeat in repeats
    ]
    spec = {
        "framework": "probe",
        "model": "disk",
        "batch_size": 1,
        "loader": "none",
        **changes.pop("spec", {}),
    }
    of_kind = {"throughput": None, "measure": MEASURES["readings"], "metrics": tuple(metrics)}
    made = runs(shape, [1.0] * len(repeats), spec=spec, **of_kind, **changes)
    return [replace(run, metric_values=of_run) for run, of_run in zip(made, values, strict=True)]


def _by_key(
    repeat: Mapping[str, float | Mapping[Any, float]], name: str
) -> list[tuple[Any, float]]:
    numbers = repeat.get(name, {})
    return list(numbers.items()) if isinstance(numbers, Mapping) else [((), numbers)]


def _key(key: Any) -> Key:
    return key if isinstance(key, tuple) else (key,)


def example() -> Summary:
    bad = RunError("rank 5 ended with SIGKILL", kind="rank_failed", host="node2")
    return summarize(
        [
            *runs("1n1g", [353.62, 354.44, 354.02]),
            *runs("1n8g", [2277.07, 2311.41, 2144.24]),
            *runs("4n8g", [1.0], throughput=None, state="failed", error=bad),
        ]
    )


EVIL = {
    "escapes": "\x1b]0;title\x07\x1b[2J\x1b[31m\x9b1m",
    "bidi": "\u202egnp.exe",
    "rich markup": "[bold red]markup[/] [link=http://x]y[/link]",
    "html": "<script>alert(1)</script>",
    "formula": '=HYPERLINK("http://x")',
    "plus": "+1",
    "minus": "-1",
    "at": "@SUM(A1)",
    "tab": "\t=1",
    "space": " =1",
    "table": "a|b\n| c\r\n# d",
    "markdown": "[x](http://evil) ![i](javascript:1) `c` **b** https://evil www.evil.com @all #1 ~~s~~ $x$",
    "half a pair": "\ud83d half \x00 nul",
    "no characters": "\ufffe \uffff",
    "long": "x" * 5000,
    "wide": "日本語" * 50,
}
evil = pytest.mark.parametrize("text", EVIL.values(), ids=EVIL.keys())


def with_text(text: str) -> Summary:
    """Put ``text`` everywhere where something from a node can stand."""
    error = RunError(text, kind="rank_failed", host="node1", hint=text)
    seen = {"devices": [text], "framework": text, "framework_version": text, "cuda": text}
    facts = {"node1": {"kernel": text}, "node2": {"kernel": "6.1", "gpus": [{"driver": text}]}}
    good = runs(
        "1n1g",
        [1.0, 2.0],
        observed=seen,
        facts=facts,
        qualifications=(text,),
        spec={"options": {"k": text}},
    )
    bad = runs(
        "1n2g",
        [1.0],
        throughput=None,
        state="failed",
        error=error,
        spec={"options": {"k": "other"}},
    )
    return summarize([*good, *bad, RunResult("r", 0, None, False, "damaged", error=error)])


def rows(summary: Summary) -> dict[str, Row]:
    """Return the rows of a summary in which each shape has one, by shape."""
    return {row.shape: row for row in summary.rows}
