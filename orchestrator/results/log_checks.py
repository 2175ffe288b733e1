"""The checks that every log passes, whoever collected it: a run's, one that is read again, one of
others, or a sample.

`verify_statements` judges what a log says of itself and of its run, `read_window` its steps.
Nothing is checked by one command alone: commands differ in what they know of the run, such as its
size or the clock of its node.

>>> from orchestrator.logs import DTYPES, LogGrammar
>>> from orchestrator.logs.parse import parse
>>> log = parse(b"Batch size: 128 global\\n", LogGrammar((), facts=("^Batch size: (?P<global_batch>[0-9]+) global",)))
>>> verify_statements(log, {"global_batch": 256})  # doctest: +ELLIPSIS
Traceback (most recent call last):
orchestrator.errors.DataError: expected global_batch 256, the log says 128: 'Batch size: 128 global'...
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.errors import DataError
from orchestrator.logs import DTYPES, StepSample
from orchestrator.logs.parse import Parsed
from orchestrator.notes import Note
from orchestrator.plan import RunSpec
from orchestrator.plan.measures import SAMPLES_PER_S, TOKENS_PER_S
from orchestrator.plural import plural
from orchestrator.results.numbers.clock import (
    Clock,
    Sizes,
    verify_clock,
    verify_means,
    verify_no_jump,
)
from orchestrator.results.numbers.cumulative import cumulative_note
from orchestrator.results.numbers.notes import AGAINST_ITSELF
from orchestrator.results.numbers.resolution import resolution_of_speed
from orchestrator.results.numbers.rounding import format_number
from orchestrator.results.numbers.sampled import pauses_once
from orchestrator.results.numbers.steadiness import unsteady
from orchestrator.results.numbers.steady_start import SteadyStart, steady_start
from orchestrator.results.numbers.tempo import StepTimes, Tempo, all_stretches, tempo
from orchestrator.results.numbers.throughput import (
    Stretch,
    Terms,
    Throughput,
    disagreement,
    throughput,
    window_of,
)
from orchestrator.results.numbers.training import verify_training

_NAMED = 3
_SEVERAL_RUNS = "it holds lines of several runs"
_FALSE = ("false", "no", "none", "off", "0")
_TIMES = ("timestamp", "elapsed_s", "step_time_s", "steps_per_s")


@dataclass(frozen=True, slots=True)
class StepReading:
    """The steps of a run from its log, with ``notes`` about them.

    ``times`` are the seconds of a step, by lines of the window; other fields are the same as in
    `RunResult`, and ``digest`` is one of its ``digests``.
    """

    throughput: Throughput
    resolution: float
    window: Sequence[Stretch]
    times: Sequence[float]
    notes: tuple[Note, ...]
    unsteady: tuple[Note, ...]
    steady: SteadyStart | None
    tempo: Tempo | None

    @property
    def step_times(self) -> StepTimes:
        """The summary of the step times."""
        return StepTimes.of(self.times)

    @property
    def digest(self) -> str:
        """SHA-256 of the step times, to the microsecond."""
        return digest(f"{seconds:.6f}" for seconds in self.times)

    def fields(self) -> dict[str, Any]:
        """Return the fields of a result that follow from steps alone."""
        names = ("throughput", "resolution", "unsteady", "steady", "tempo", "step_times")
        return {name: getattr(self, name) for name in names}


def digest(texts: Iterable[str]) -> str:
    """Return the SHA-256 of lines."""
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


def sizes_of(spec: RunSpec) -> dict[str, Any]:
    """Return the facts of a run that a log may state, by name: its size, its dtype, and its options.

    A program may call tf32 fp32, and train with fp8 on top of another dtype.
    """
    sizes = {
        "nodes": spec.nodes,
        "gpus": spec.gpus,
        "world_size": spec.world_size,
        "batch_size": spec.batch_size,
        "global_batch": spec.global_batch,
        "tokens_per_step": spec.global_batch * spec.items,
        "steps": spec.steps,
        "model": spec.model,
    }
    if spec.dtype in DTYPES:
        sizes |= {"dtype": spec.dtype, **{name: name == spec.dtype for name in DTYPES}}
    return {**spec.options, **sizes}


def verify_statements(log: Parsed, sizes: Mapping[str, Any]) -> None:
    """Check the statements of a log about itself and its run. ``sizes`` are the known ones of
    `sizes_of`.

    Raises DataError (result_invalid) if the program says that its results are wrong or does not say
    that they are right, if a row contradicts itself or has no header, or if the log is from a run
    of another size, or from several runs.
    """
    # A list of ranks shows best that several programs ran, whose other statements are each about
    # one.
    _verify_ranks(log.listed, sizes.get("world_size"))
    _verify_hosts(log.places, sizes)
    others = [
        (name, f"expected {name} {sizes[name]}, the log says {value}: {line!r}")
        for name, values in log.facts.items()
        for value, line in values.items()
        if name in sizes and not is_same(sizes[name], value)
    ]
    if others:
        hint = next(filter(None, (_of_size(name) for name, _ in others)), "")
        raise _refusal("; ".join(words for _, words in others[:_NAMED]), hint)
    for name, values in log.facts.items():
        if len(values) > 1:
            said = " and ".join(map(str, values))
            raise _refusal(f"expected one {name}, the log says {said}", _SEVERAL_RUNS)
    known = {name: value for name, values in log.facts.items() for value in values}
    known = {"world_size": len(log.listed), **known, **sizes}
    void = [*log.void]
    for row, alternatives in log.open_rows:
        reason = row.with_known(known).contradiction(alternatives)
        if reason:
            void.append(reason)
    if void:
        more = len(void) - _NAMED
        reasons = [*void[:_NAMED], *([f"{plural(more, 'more such line')}"] if more > 0 else [])]
        raise _refusal(f"expected correct results: {'; '.join(reasons)}")


def read_window(
    samples: Sequence[StepSample],
    terms: Terms,
    printed: Mapping[str, float],
    *,
    simulated: bool = False,
    clock: tuple[Clock, Sizes] | None = None,
    sized: bool = True,
    sampled: bool = False,
    items: int = 1,
) -> StepReading:
    """Return the window as the steps of a log describe it.

    ``printed`` is the resolution of values by name. ``clock`` holds the readings of the node's
    clock, if known, for a run of a size. A simulated program neither trains nor keeps that clock.
    Rates in samples are compared with times if the run is ``sized``: its global batch is known.
    ``sampled``: a step time covers the printed step alone, as the grammar says. A sample counts as
    ``items`` tokens.

    Raises DataError like `throughput`, `verify_training` and `verify_clock`, and log_unmatched for
    steps beyond the plan.
    """
    _verify_end(samples, terms)
    samples, notes = pauses_once(samples, terms) if sampled else (samples, [])
    measured = throughput(samples, terms)
    window = window_of(samples, terms)
    resolution = resolution_of_speed(samples, terms, measured, printed)
    verify_no_jump(window)
    verify_means(samples, window)
    if not simulated:
        notes += verify_training(samples, terms)
        resolution_s = measured.seconds * resolution / measured.samples_per_s
        notes += verify_clock(samples, measured, window, *clock, resolution_s) if clock else []
    if other := disagreement(samples, terms, sized=sized):
        name, speed = other
        unit = (TOKENS_PER_S if items > 1 else SAMPLES_PER_S).unit if sized else "steps/s"
        by_time = format_number(measured.samples_per_s * items)
        notes.append(
            AGAINST_ITSELF(
                speed=format_number(speed * items), unit=unit, name=name, by_time=by_time
            )
        )
    notes += cumulative_note(samples, terms)
    has_times = any(getattr(samples[-1], name) is not None for name in _TIMES)
    return StepReading(
        throughput=measured,
        resolution=resolution,
        window=window,
        times=[line.seconds / line.steps for line in window],
        notes=tuple(notes),
        unsteady=unsteady(window, in_seconds=sized or has_times),
        steady=steady_start(all_stretches(samples, terms)),
        tempo=tempo(samples, terms),
    )


def _verify_end(samples: Sequence[StepSample], terms: Terms) -> None:
    """Check that a log has no steps beyond the planned ones: it then counts something else than
    steps.
    """
    last = max((sample.step for sample in samples), default=0)
    if last <= terms.steps:
        return
    times, rest = divmod(last, terms.steps)
    parts = ""
    if not rest:
        parts = f"{times} numbers are one step, such as micro-batches, write micro_batches: {times}"
    parts = parts or "several numbers are one step, such as micro-batches, write micro_batches:"
    raise DataError(
        f"expected steps up to {terms.steps} as planned, the log goes to step {last}",
        kind="log_unmatched",
        hint=f"if {parts} under log:; if each number is a step, plan as many as the program makes: --steps",
    )


def _verify_ranks(listed: Mapping[int, int], world_size: int | None) -> None:
    """Check a list of ranks: each of the run once."""
    if not listed:
        return
    ranks = range(world_size or max(listed) + 1)
    several = [rank for rank in sorted(listed) if listed[rank] > 1]
    missing = [rank for rank in ranks if rank not in listed]
    beyond = [rank for rank in sorted(listed) if rank not in ranks]
    if not (several or missing or beyond):
        return
    words = [f"{listed[rank]} of rank {rank}" for rank in several[:_NAMED]]
    words += [f"none of rank {rank}" for rank in missing[:_NAMED]] + [
        f"one of rank {rank}" for rank in beyond[:_NAMED]
    ]
    expected = f"expected a line of each of {plural(len(ranks), 'rank')} in the list of ranks"
    got = f"{expected}, got {', '.join(words)}"
    # Programs that do not find each other are together as many as the run has ranks. If its size is
    # unknown, programs of one rank look like runs of one.
    are_apart = sum(listed.values()) == world_size or len(ranks) == 1 and not world_size
    if several and not are_apart:
        raise _refusal(got, _SEVERAL_RUNS)
    programs = f": {max(listed.values())} programs that did not find each other" if several else ""
    raise _refusal(f"{got}{programs}", "was the program built with MPI, and started by it?")


def _verify_hosts(places: Mapping[tuple[str, str], int], sizes: Mapping[str, Any]) -> None:
    """Check that a list of ranks has each host's ranks, if its hosts and devices are told apart."""
    if not places or max(places.values()) > 1 or not {"nodes", "gpus"} <= sizes.keys():
        return
    counts = Counter(host for host, _ in places)
    if len(counts) == sizes["nodes"] and set(counts.values()) == {sizes["gpus"]}:
        return
    got = ", ".join(f"{count} on {host}" for host, count in list(counts.items())[:_NAMED])
    more = f" and {len(counts) - _NAMED} more hosts" if len(counts) > _NAMED else ""
    expected = f"{plural(sizes['nodes'], 'host')} of {plural(sizes['gpus'], 'rank')}"
    raise _refusal(f"expected {expected} in the list of ranks, got {got}{more}")


def is_same(expected: Any, said: Any) -> bool:
    """Return whether a log says of a fact what is expected. What is expected to be true or false
    may be a word that a program leaves out where it is false.

    >>> is_same(True, "Bidirectional"), is_same(False, "false"), is_same("resnet50", "ResNet50"), is_same(8, 4)
    (True, True, True, False)
    >>> is_same("float32", "float"), is_same("fp32", "half")
    (True, False)
    """
    if isinstance(expected, bool):
        return expected == (str(said).casefold() not in _FALSE)
    # Two programs of one folder may write a model's name in other letters.
    return bool(expected == said or _plain_word(expected) == _plain_word(said))


def is_same_value(expected: Any, said: Any) -> bool:
    """Return whether a closing line says what is expected, where the text of a number is none.

    >>> is_same_value("fp32", "float"), is_same_value(8, 8), is_same_value(8, "8")
    (True, True, False)
    """
    are_words = isinstance(expected, str) and isinstance(said, str)
    return bool(expected == said or are_words and is_same(expected, said))


def _plain_word(value: Any) -> str:
    """Return a word in small letters, the name of a dtype as `orch` has it."""
    word = str(value).casefold()
    return next((dtype for dtype, names in DTYPES.items() if word in names), word)


def _of_size(name: str) -> str:
    if name not in ("world_size", "global_batch", "nodes", "gpus"):
        return ""
    return "did each rank run on its own?"


def _refusal(message: str, hint: str = "") -> DataError:
    return DataError(message, kind="result_invalid", hint=hint, phase="summarize")
