"""The result of a tune: as lines for people, and as the two files that apply it, host variables and
options.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from orchestrator.features.search.halving import Tuned
from orchestrator.features.search.halving.answer import FASTER, Tried
from orchestrator.inventory import fold
from orchestrator.plural import plural
from orchestrator.report.text import one_line

__all__ = ["answer", "inventory_file", "options_file", "rungs"]


def answer(tuned: Tuned) -> str:
    """Return the answer in one sentence."""
    gain = tuned.gain
    measured = ""
    if gain and tuned.median_speed and tuned.default_speed:
        ends = f"95 % {gain.interval.low:.3f} to {gain.interval.high:.3f}, {plural(gain.pairs, 'pair')} of runs"
        speeds = f"medians {tuned.median_speed:.1f} against {tuned.default_speed:.1f} {tuned.unit}"
        before, after = tuned.global_batches
        work = (
            f"; a step computes a global batch of {after} instead of {before}"
            if after != before
            else ""
        )
        measured = f"{gain.ratio:.3f} times the speed of the default ({ends}; {speeds}{work}): {tuned.best}"
    return one_line(
        {
            "faster": measured,
            "default": f"no candidate was faster than the default: {measured or tuned.why}",
            "unconfirmed": (
                f"no result, because the confirmation has too few pairs of runs: {measured or tuned.why}"
                if tuned.tried
                else f"no result: {tuned.why}"
            ),
            "unfinished": "the tune is not finished",
        }[tuned.verdict]
    )


def rungs(tuned: Tuned) -> list[str]:
    """Return a line for each round, followed by a line for each of its candidates, the fastest
    first.
    """
    lines = []
    for number in dict.fromkeys(tried.rung for tried in tuned.tried):
        rows = [tried for tried in tuned.tried if tried.rung == number]
        kind = "confirmation" if rows[0].confirms else f"round {number}"
        lines.append(f"{kind}, {plural(rows[0].steps, 'step')}:")
        lines += [_line(row) for row in sorted(rows, key=_order)]
    return lines


def _order(tried: Tried) -> float:
    return -(1.0 if tried.of_default is None and tried.speeds else tried.of_default or 0.0)


def _line(tried: Tried) -> str:
    speeds = " ".join(f"{speed:.1f}" for speed in tried.speeds) or "–"
    of_default = "" if tried.of_default is None else f"  {tried.of_default:.3f}"
    failed = (
        f"  {tried.failed} failed: {tried.failure}"
        if tried.failed
        else f"  {tried.failure}"
        if tried.failure
        else ""
    )
    return one_line(f"  {tried.settings}: {speeds}{of_default}{failed}")


def inventory_file(tuned: Tuned, base: str) -> str:
    """Return an inventory that sets the variables on top of ``base``, a path relative to the new
    file; empty for no base.
    """
    lines = [*_evidence(tuned), "schema: 1"]
    lines += [f"base: {json.dumps(base, ensure_ascii=False)}"] if base else []
    lines += ["hosts:", f"  {json.dumps(fold(tuned.hosts))}:", "    env:"]
    lines += [
        f"      {name}: {json.dumps(value, ensure_ascii=False)}"
        for name, value in tuned.env.items()
    ]
    return "\n".join(lines) + "\n"


def options_file(tuned: Tuned) -> str:
    """Return the run file for ``--file`` that sets the options, and the batch size if it is another
    one.
    """
    lines = [
        f"  {name}: {json.dumps(value, ensure_ascii=False)}"
        for name, value in tuned.options.items()
    ]
    sizes = [f"batch_size: {tuned.batch_size}"] if tuned.batch_size else []
    return "\n".join([*_evidence(tuned), *sizes, *(["options:", *lines] if lines else [])]) + "\n"


def _evidence(tuned: Tuned) -> Sequence[str]:
    """Return comment lines: for what spec and hosts the result holds, and where its evidence is."""
    spec = tuned.spec
    words = [
        spec["framework"],
        spec["model"],
        spec["dtype"],
        f"b{spec['batch_size']}",
        f"{spec['nodes']}n{spec['gpus']}g",
    ]
    versions = ", ".join(f"{name} {version}" for name, version in tuned.versions.items())
    texts = [
        f"Written by orch tune, {tuned.created}, for {' '.join(words)} on {fold(tuned.hosts)}.",
        *([answer(tuned)] if tuned.verdict == FASTER else []),
        f"Network: {', '.join(tuned.networks) or 'not reported by NCCL'}. {versions}",
        f"Evidence: bench {tuned.bench_id}, runs {', '.join(tuned.evidence)}.",
    ]
    return [f"# {one_line(text).strip()}" for text in texts]
