"""Failures that every further run would repeat, so that a bench does not make these runs.

A log in which the log grammar finds nothing, and a program that does not start on the first node,
which all configurations of a framework use, concern all of them, unless one of them has a number.
Two runs of a configuration that end in the same way concern that configuration. A lost node, a
timeout, and what another process did are no property of the program.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from orchestrator.controller.root_cause import find_failure, may_pass
from orchestrator.errors import DataError, OrchError
from orchestrator.logs import is_named
from orchestrator.logs.failures import LAST_OUTPUT
from orchestrator.logs.parse import parse
from orchestrator.plan import RunSpec
from orchestrator.plan.bench import PlannedRun
from orchestrator.record import RunDir
from orchestrator.record.evidence import first_bytes
from orchestrator.record.manifest import read_manifest
from orchestrator.record.node_record import exit_record
from orchestrator.results import RunResult

_REPEATED = 2
_READ_BYTES = 1 << 20
_OF_THE_PROGRAM = ("rank_failed", "output_limit", "result_invalid", "log_unmatched")
_OF_A_VALUE = re.compile(r"error: argument \S+: |Test CUDA failure ")
"""How argparse begins to refuse the value of an argument, and nccl-tests to name an error of CUDA,
both with exit code 2: another configuration may not have that value or that GPU.
"""
_USAGE_CODES = {2, 126, 127}
"""Wrong arguments, a file that cannot be executed, and a command that was not found, as shells and
argument parsers exit.
"""


@dataclass(frozen=True, slots=True)
class DeterministicFailure:
    """A failure that further runs would repeat, shown by the run ``run_id``.

    It affects all runs of ``framework`` or, if ``spec`` is set, only this configuration. ``reason``
    says why, in words. ``is_crash``: the run itself failed, and not only its log.
    """

    run_id: str
    framework: str
    spec: RunSpec | None
    reason: str
    is_crash: bool

    def concerns(self, spec: RunSpec) -> bool:
        """Return whether runs of this spec would fail in the same way."""
        if self.spec is None:
            return spec.framework == self.framework
        return spec == self.spec


def deterministic_failure(
    run: PlannedRun, directory: RunDir, made: Sequence[RunResult], known: Sequence[RunResult]
) -> DeterministicFailure | None:
    """Return the deterministic failure that a run has shown, None if it has shown none.

    ``made`` are the results of the runs made since the command was given, in order, with ``run``'s
    own last. ``known`` are the results of all runs of the bench.
    """
    result = made[-1]
    if (
        result.error is None
        or result.is_good
        or result.state != "failed"
        or result.error.kind not in _OF_THE_PROGRAM
    ):
        return None
    is_crash = result.error.kind in ("rank_failed", "output_limit")
    has_number = any(
        other.is_good and other.spec and other.spec.framework == run.spec.framework
        for other in known
    )
    scope = run.spec if has_number else None
    if result.error.kind == "log_unmatched":
        return DeterministicFailure(
            run.run_id,
            run.spec.framework,
            scope,
            "their logs would give no number either",
            is_crash,
        )
    if _fails_at_start(directory, result.error):
        return DeterministicFailure(
            run.run_id, run.spec.framework, scope, "their programs would not start either", is_crash
        )
    alike = [other for other in made if other.spec and other.spec.is_run_of(run.spec)]
    endings = [
        _ending(other.error) for other in alike[-_REPEATED:] if other.error and not other.is_good
    ]
    if (
        len(endings) == _REPEATED
        and len(set(endings)) == 1
        and not any(other.is_good for other in alike)
        and not may_pass(result.error, directory)
    ):
        reason = f"the last {_REPEATED} runs of this configuration failed in the same way"
        return DeterministicFailure(run.run_id, run.spec.framework, run.spec, reason, is_crash)
    return None


def _ending(error: OrchError) -> tuple[str, str, str]:
    """Return an error's key, equal for runs that failed for the same cause: without host, rank and
    numbers.
    """
    message = (
        error.message
        if "exit code" in error.message
        else re.sub(r"[0-9][0-9.]*", "#", error.message)
    )
    said = "" if error.cause.startswith(LAST_OUTPUT) else error.cause
    cause = re.sub(r"[0-9][0-9.]*", "#", said)
    return error.kind, re.sub(r"\brank [0-9]+", "rank #", message), cause


def _fails_at_start(run: RunDir, error: OrchError) -> bool:
    """Return whether a program failed before its first step on the first node of its run, with an
    exit code that belongs to its start, or because of a cause that does. A line that is not part of
    what ended the program is not enough: other runs may get past it."""
    with suppress(DataError, OSError):
        planned = read_manifest(run)
        first = planned.slots[0].host
        record = exit_record(run, first)
        if error.kind != "rank_failed" or error.host != first or record is None:
            return False
        codes: set[int | None] = {rank.code for rank in record.ranks if rank.code}
        codes = codes or {record.code}
        failure = find_failure(error, run)
        is_of_start = failure is not None and failure.is_of_start
        if codes & _USAGE_CODES:
            if (failure and not is_of_start) or _OF_A_VALUE.search(error.cause):
                return False
        elif not is_of_start or not failure or not failure.is_end:
            return False
        names = [name for name in record.files if is_named(name, planned.grammar.files)]
        return not any(
            parse(first_bytes(run, first, name, _READ_BYTES), planned.grammar).samples
            for name in names
        )
    return False
