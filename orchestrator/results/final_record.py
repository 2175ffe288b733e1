"""The last line of a program: the facts of the run as JSON, which must agree with the plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from orchestrator.documents import short
from orchestrator.logs.notes import CLOSING_LINE_UNREAD
from orchestrator.logs.parse import Parsed
from orchestrator.notes import Note
from orchestrator.plan import RunSpec
from orchestrator.record.evidence import invalid
from orchestrator.record.manifest import Manifest
from orchestrator.results.log_checks import is_same_value
from orchestrator.results.notes import OUTPUT_DTYPE, PROGRAM_REMARK

_AGREE = ("world_size", "steps", "dtype", "batch_size", "global_batch", "model")
_OUTPUT_TYPES = {"fp32": "float32", "tf32": "float32", "fp16": "float16", "bf16": "bfloat16"}


def closing_of(planned: Manifest, sampled: Sequence[Parsed], host: str) -> Mapping[str, Any]:
    """Return the values of the closing line, empty for a program without one. ``host`` is the node
    whose log has it.

    Raises DataError if it is missing or belongs to another run.
    """
    if not planned.grammar.closing:
        return {}
    closing = next((log.closing for log in sampled if log.closing is not None), None)
    if closing is None:
        reasons = [
            note
            for log in sampled
            for note in log.warnings
            if note.code == CLOSING_LINE_UNREAD.code
        ]
        raise invalid(
            "expected the program's closing line, the log has none", host, hint="; ".join(reasons)
        )
    try:
        spec = as_trained(planned.spec, closing)
    except ValueError as error:
        raise invalid(
            f"expected {error}, the program reports {short(closing.get('batch_size'))}", host
        ) from None
    expected = spec.as_dict() | {"world_size": spec.world_size, "global_batch": spec.global_batch}
    for key in _AGREE:
        if key in closing and not is_same_value(expected[key], closing[key]):
            raise invalid(
                f"expected {key} {expected[key]!r} as planned, the program reports {short(closing[key])}",
                host,
            )
    ranks = closing.get("ranks")
    if ranks is not None and ranks != list(range(planned.spec.world_size)):
        raise invalid(
            f"expected ranks 0-{planned.spec.world_size - 1} in the closing line, got {short(ranks)}",
            host,
        )
    return closing


def as_trained(spec: RunSpec, closing: Mapping[str, Any]) -> RunSpec:
    """Return the spec that a run of ``spec`` trained, with the batch size that its program found.

    ``closing`` are the values of its closing line. Raises ValueError, naming the expected value, if
    the program was to find a batch size and the line has none.
    """
    most = spec.step.batch_size_up_to
    if not most:
        return spec
    batch_size = closing.get("batch_size")
    if type(batch_size) is not int or not 1 <= batch_size <= most:
        raise ValueError(f"a batch size from 1 to {most}")
    return replace(spec, batch_size=batch_size)


def remarks(observed: Mapping[str, Any]) -> list[Note]:
    """Return the program's own notes on its numbers: ``remarks`` of its last line."""
    remarks = observed.get("remarks")
    if not isinstance(remarks, list):
        return []
    return [PROGRAM_REMARK(text=text[:300]) for text in remarks if isinstance(text, str)]


def arithmetic(dtype: str, output_dtype: Any) -> list[Note]:
    """Return a qualification if the program reports another type of its model's output than the
    run's dtype implies.
    """
    expected = _OUTPUT_TYPES.get(dtype)
    if None in (expected, output_dtype) or output_dtype == expected:
        return []
    return [OUTPUT_DTYPE(dtype=dtype, output=short(output_dtype))]
