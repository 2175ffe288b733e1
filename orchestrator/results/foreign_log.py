"""Logs that orch did not collect, read with the log grammar of a framework folder instead of a
published rule.

Such a log has no plan: its window begins after the folder's default warm-up, at a step that the log
prints, and ends with its last line.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from orchestrator.documents import short
from orchestrator.errors import ConfigError, DataError
from orchestrator.logs import DTYPES, LogGrammar, StepSample
from orchestrator.logs.notes import LINES_LEFT_OUT, LOG_CUT
from orchestrator.logs.parse import Parsed, parse
from orchestrator.logs.text import clean_text
from orchestrator.notes import Note
from orchestrator.plan import Framework, RunSpec
from orchestrator.plan.measures import TOKENS_PER_S
from orchestrator.plan.option_values import as_written
from orchestrator.plan.spec import default_step
from orchestrator.plural import plural
from orchestrator.results.language_model import language_values
from orchestrator.results.log_checks import (
    is_same,
    is_same_value,
    read_window,
    sizes_of,
    verify_statements,
)
from orchestrator.results.measured import expectation_of, metrics_of
from orchestrator.results.notes import (
    DTYPE_OF_NAME,
    METRICS_LEFT_OUT,
    OPTIONS_OF_LOG,
    READ_WITH_GRAMMAR,
    STEP_SIZES,
)
from orchestrator.results.numbers.clock import verify_means, verify_no_jump
from orchestrator.results.numbers.cumulative import cumulative_note
from orchestrator.results.numbers.notes import NOT_STEADY
from orchestrator.results.numbers.steadiness import unsteady
from orchestrator.results.numbers.throughput import (
    Stretch,
    Terms,
    Throughput,
    throughput,
    window_of,
)
from orchestrator.results.numbers.training import verify_training
from orchestrator.results.reported_figures import RunContext, figures, verify_tokens
from orchestrator.results.run import RunResult
from orchestrator.results.unmatched import explain_mismatch
from orchestrator.results.values import Expected, Value, values_of, verify_finite

_SHOWN_BYTES = 1 << 20
_NAMES = (
    "name the folder after the shape of the run, and the file after its model, batch size and dtype"
)


def by_grammar(result: RunResult, spec: RunSpec, framework: Framework, log: bytes) -> RunResult:
    """Return a run with the speed that the log grammar of a framework finds in a log, or with the
    error that says why not.

    ``spec`` says everything but the window, and the result's spec has that too.
    """
    grammar = framework.log.with_options(
        {name: option.default for name, option in framework.options.items()}
    )
    try:
        parsed = parse(log, grammar)
        verify_statements(parsed, _named_facts(spec, framework))
        spec, others = _with_options(spec, framework, parsed)
        result = _with_own_notes(result, *others)
        cut = _cut_notes(parsed, grammar)
        if not framework.measure.has_samples:
            _verify_whole(cut)
            return _of_metrics(result, spec, framework, parsed, log)
        if not parsed.samples:
            raise _unmatched_error(framework, parsed, result.run_id, log)
        spec = _with_report(spec, framework, parsed)
        usual = int(framework.default("warmup_steps", spec.device)[0])
        spec = _with_window(spec, framework, parsed, _warmup_steps(usual, parsed))
        counts = throughput(parsed.samples, Terms.of(spec, grammar))
        samples = _samples_of_step(counts, spec, parsed)
        counted = _with_counted_batches(spec, samples)
        is_counted, spec = counted is not spec, _with_micro_batches(counted, framework)
        terms = Terms.of(spec, grammar)
        steps = read_window(
            parsed.samples,
            terms,
            parsed.resolution,
            simulated=framework.simulated,
            sampled=grammar.sampled,
            items=spec.items,
        )
    except DataError as error:
        return _without_number(result, error, spec, framework)
    measured, resolution = steps.throughput, steps.resolution
    metrics = metrics_of(framework.measure, framework.log)
    read = replace(
        result,
        spec=spec,
        state="finished",
        measure=framework.measure,
        metrics=metrics,
        **steps.fields(),
    )
    read = replace(read, digests=(hashlib.sha256(log).hexdigest(), steps.digest))
    dtypes = framework.dtypes.get(spec.device, {})
    if dtypes and spec.dtype not in dtypes:
        unknown = DTYPE_OF_NAME(
            framework=framework.name, dtypes=", ".join(dtypes), dtype=spec.dtype
        )
        read = replace(read, qualifications=(*read.qualifications, unknown))
    read = _with_own_notes(read, *parsed.warnings, *steps.notes, *cut)
    read = _with_metrics(read, spec, grammar, parsed)
    if framework.measure.derived:
        transformer = framework.transformer(spec.model) if spec.model in framework.models else None
        is_reported = (
            bool(parsed.closing)
            or framework.step is not None
            and framework.step.tokens in parsed.facts
        )
        step = _step_note(spec, framework, is_reported, is_counted)
        if transformer is None:
            known = f"{framework.name} knows {', '.join(framework.models)}"
            step += f"; no TFLOP/s: expected a model of the folder in the name of the file, got {spec.model}, {known}"
        values = language_values(spec, transformer, measured.samples_per_s, {}, resolution)
        speed = Value(
            TOKENS_PER_S.name, (), measured.samples_per_s * spec.items, resolution * spec.items
        )
        # The device is not known, so that an MFU is not compared.
        context = RunContext.of(spec, transformer, {})
        said = figures(grammar.metrics, read.metric_values, speed, steps.times, context)
        try:
            verify_tokens(said, context, is_assumed=not is_reported)
        except DataError as error:
            return _without_number(result, error, spec, framework)
        qualifications = (*read.qualifications, STEP_SIZES(sizes=step))
        return replace(
            read,
            metric_values=(*values, *read.metric_values),
            qualifications=qualifications,
            said=said,
        )
    return read


def _without_number(
    result: RunResult, error: DataError, spec: RunSpec, framework: Framework
) -> RunResult:
    """Return a run without a number, for an error."""
    error.run_id = result.run_id
    measure = framework.measure
    metrics = metrics_of(measure, framework.log)
    return replace(result, spec=spec, error=error, measure=measure, metrics=metrics)


def check_alone(framework: Framework, parsed: Parsed) -> tuple[DataError | None, tuple[str, ...]]:
    """Return why a log of which nothing else is known has no result, None if it may have one, and
    notes about its steps.
    """
    steps = [sample.step for sample in parsed.samples]
    usual = _warmup_steps(int(framework.default("warmup_steps", "cuda")[0]), parsed)
    window = 0 if not steps or steps[-1] <= usual or framework.log.after_warmup else usual
    window = next((step for step in steps[:-1] if step >= window), window) if window else 0
    batch = _read_report(parsed).get("global_batch")
    global_batch = batch if type(batch) is int else 0
    terms = Terms(
        window, steps[-1] if steps else 0, global_batch or 1, cumulative=framework.log.cumulative
    )
    cut = _cut_notes(parsed, framework.log)
    try:
        verify_statements(parsed, {})
        if not framework.measure.has_samples:
            _verify_whole(cut)
        verify_finite(framework.log.metrics, parsed.readings, framework.log.numbers)
        verify_means(parsed.samples, _find_intervals(parsed.samples, terms))
        if steps and not framework.simulated:
            verify_training(parsed.samples, terms)
    except DataError as error:
        return error, ()
    if not steps:
        return None, ()
    try:
        read = read_window(
            parsed.samples,
            terms,
            parsed.resolution,
            simulated=framework.simulated,
            sized=global_batch > 0,
            sampled=framework.log.sampled,
        )
    except DataError as error:
        # Of a log that ends within the warm-up the window is a guess.
        return (error, ()) if steps[-1] > usual else (None, (str(error),))
    return None, (*read.notes, *read.unsteady, *cut)


def check_by_grammar(
    log: bytes, framework: Framework, spec: RunSpec, window: tuple[int, int]
) -> tuple[Note, ...]:
    """Return the remarks of a folder's grammar on a log whose speed another rule reads, over steps
    of a ``window``.

    Raises DataError for a log that has no result: `verify_statements`, `verify_no_jump`,
    `verify_means`, `verify_training`.
    """
    grammar = framework.log.with_options({})
    parsed = parse(log, grammar)
    verify_statements(parsed, _named_facts(spec, framework))
    steps = Terms(window[0] - 1, window[1], spec.global_batch, cumulative=grammar.cumulative)
    left_out = [note for note in parsed.warnings if note.code == LINES_LEFT_OUT.code]
    # A rule may read other lines, or other times of them.
    intervals = _find_intervals(parsed.samples, steps)
    verify_no_jump(intervals)
    verify_means(parsed.samples, intervals)
    uneven = [NOT_STEADY(where="", found=note) for note in unsteady(intervals)] if intervals else []
    return (
        *left_out,
        *verify_training(parsed.samples, steps),
        *cumulative_note(parsed.samples, steps),
        *uneven,
    )


def _find_intervals(samples: Sequence[StepSample], terms: Terms) -> Sequence[Stretch]:
    """Return the intervals of a window, none if the log does not have all of it."""
    with suppress(DataError):
        return window_of(samples, terms)
    return ()


def _cut_notes(parsed: Parsed, grammar: LogGrammar) -> tuple[Note, ...]:
    """Return a note on a log with results that lacks the closing line of its program, else none.
    The speed of the steps that it has is right; of other results some are missing."""
    if not grammar.closing or parsed.closing is not None or not (parsed.samples or parsed.readings):
        return ()
    return (LOG_CUT(pattern=grammar.closing),)


def _verify_whole(cut: Sequence[Note]) -> None:
    if cut:
        raise DataError(f"expected the whole log, {cut[0]}", kind="result_invalid")


def _named_facts(spec: RunSpec, framework: Framework) -> dict[str, Any]:
    """Return the facts of a run that its log's name gives, with those that the folder knows of its
    model and dtype.

    A language model's global batch depends on the micro-batches, and a model that the folder does
    not know may have another name in the log.
    """
    sizes = sizes_of(spec)
    names = ["nodes", "gpus", "world_size", "batch_size"]
    names += [] if framework.step else ["global_batch"]
    names += ["model"] if spec.model in framework.models else []
    flag = framework.dtypes.get(spec.device, {}).get(spec.dtype)
    return {
        **framework.models.get(spec.model, {}),
        **{name: sizes[name] for name in (*names, *DTYPES) if name in sizes},
        **({"dtype": flag} if flag else {}),
    }


def _with_options(
    spec: RunSpec, framework: Framework, parsed: Parsed
) -> tuple[RunSpec, tuple[Note, ...]]:
    """Return a spec with the options that a log states and that are not the folder's defaults, and
    a note on them. Options of a step have a note of their own.
    """
    of_step = framework.step.by_field.values() if framework.step else ()
    said, usual = {}, []
    for name, values in parsed.facts.items():
        if name not in framework.options or name in of_step:
            continue
        default, value = framework.options[name].default, next(iter(values))
        if not is_same(default, value):
            said[name] = not default if isinstance(default, bool) else value
            usual.append(f"{name}={as_written(default)}")
    if not said:
        return spec, ()
    words = ", ".join(f"{name}={as_written(value)}" for name, value in said.items())
    note = OPTIONS_OF_LOG(said=words, framework=framework.name, usual=", ".join(usual))
    return replace(spec, options={**spec.options, **said}), (note,)


def _read_report(parsed: Parsed) -> dict[str, Any]:
    """Return a log's report on its run, from its closing line or other lines.

    A dtype has the program's name there.
    """
    facts = {name: next(iter(values)) for name, values in parsed.facts.items() if name != "dtype"}
    return {**facts, **(parsed.closing or {})}


def _with_window(spec: RunSpec, framework: Framework, parsed: Parsed, warmup_steps: int) -> RunSpec:
    """Return a spec with the window of a log: after the warm-up, up to its last step."""
    printed = [sample.step for sample in parsed.samples]
    planned = _read_report(parsed).get("steps")
    if type(planned) is int and printed[-1] > planned:
        raise DataError(
            f"expected steps up to {planned}, as the log says, it goes to step {printed[-1]}",
            kind="result_invalid",
            hint="its numbers count something else than steps, such as micro-batches: write micro_batches: under log:",
        )
    if framework.log.after_warmup:
        return replace(spec, warmup_steps=warmup_steps, steps=printed[-1] + warmup_steps)
    if printed[-1] <= warmup_steps:
        expected = f"expected steps after the first {warmup_steps}, the warm-up"
        raise DataError(f"{expected}, the last in the log is {printed[-1]}", kind="result_invalid")
    later = [step for step in printed[:-1] if step >= warmup_steps] if warmup_steps else [0]
    return replace(spec, warmup_steps=later[0] if later else warmup_steps, steps=printed[-1])


def _samples_of_step(counts: Throughput, spec: RunSpec, parsed: Parsed) -> int:
    """Return the samples of a step as its line counts them, else as the log says before its steps."""
    samples = counts.samples // (counts.last_step - counts.first_step + 1)
    said = _read_report(parsed)
    if samples != spec.global_batch or not spec.step.tokens:
        return samples
    by_tokens = said.get("tokens_per_step")
    by_samples = (
        by_tokens // spec.step.tokens if type(by_tokens) is int else said.get("global_batch")
    )
    return by_samples if type(by_samples) is int else samples


def _with_report(spec: RunSpec, framework: Framework, parsed: Parsed) -> RunSpec:
    """Return a spec with the device and the step that the program's closing line reports.

    Without a report, these are the defaults of the folder on GPUs. Raises DataError if the log
    belongs to another run than its name says, or a copy of the model takes another number of ranks.
    """
    reported = _read_report(parsed)
    worlds = [
        ("world_size", world_size) for _, world_size in parsed.ranks if world_size is not None
    ]
    by_name = {
        "model": spec.model,
        "batch_size": spec.batch_size,
        "dtype": spec.dtype,
        "world_size": spec.world_size,
    }
    for key, value in (*worlds, *reported.items()):
        if key in by_name and not is_same_value(by_name[key], value):
            message = f"expected {key} {by_name[key]} by the name, the log reports {short(value)}"
            raise DataError(message, kind="result_invalid", hint=_NAMES)
    device = next(
        (name for name in framework.dtypes if name == reported.get("device")), spec.device
    )
    try:
        step = default_step(framework, spec.model, device, reported)
    except ConfigError as error:
        option = error.where.removeprefix("--set ")
        raise DataError(
            f"{option} in the closing line: {error.message}", kind="result_invalid"
        ) from None
    if spec.world_size % step.model_ranks:
        shared = " × ".join(framework.step.shared_by) if framework.step else ""
        raise DataError(
            f"expected a multiple of the {step.model_ranks} ranks that compute a copy of {spec.model} by the defaults of "
            f"{framework.name} ({shared}), got {spec.world_size}, those of {spec.shape}",
            kind="result_invalid",
            hint=_NAMES,
        )
    return replace(spec, device=device, step=step)


def _warmup_steps(usual: int, parsed: Parsed) -> int:
    """Return the warm-up that a program reports, else the ``usual`` one."""
    reported = _read_report(parsed).get("warmup_steps")
    return reported if type(reported) is int else usual


def _with_micro_batches(spec: RunSpec, framework: Framework) -> RunSpec:
    """Return the spec of a language model with its micro-batches among its options, where tables
    show what differs.
    """
    if framework.step is None:
        return spec
    return replace(
        spec,
        options={
            **spec.options,
            framework.step.micro_batches or "micro_batches": spec.step.micro_batches,
        },
    )


def _with_counted_batches(spec: RunSpec, samples: int) -> RunSpec:
    """Return a spec with as many micro-batches as the ``samples`` of a step are. Raises DataError
    if they are none of its batch size and ranks."""
    if samples == spec.global_batch:
        return spec
    at_once = spec.global_batch // spec.step.micro_batches
    if samples % at_once or not spec.step.tokens:
        ranks = ""
        if spec.step.model_ranks > 1:
            ranks = f" with {spec.step.model_ranks} ranks for each copy of the model"
        raise DataError(
            f"expected {spec.global_batch} samples per step, by {spec.shape} and batch size {spec.batch_size}{ranks}, "
            f"the log counts {samples}",
            kind="result_invalid",
            hint=_NAMES,
        )
    return replace(spec, step=replace(spec.step, micro_batches=samples // at_once))


def _step_note(spec: RunSpec, framework: Framework, is_reported: bool, is_counted: bool) -> str:
    """Return the note that says where the tokens, micro-batches and ranks of a copy of the model
    come from, on which every number of a language model depends."""
    tokens = plural(spec.step.tokens, "token")
    batches = plural(spec.step.micro_batches, "micro-batch", "micro-batches")
    copy = f"{plural(spec.step.model_ranks, 'rank')} for each copy of the model"
    if is_reported:
        return f"{tokens}, {batches} and {copy} as the log reports"
    if is_counted:
        return f"{tokens} and {copy} are the defaults of {framework.name}; {batches} by the samples of a step in the log"
    return f"{tokens}, {batches} and {copy} are the defaults of {framework.name}: a log of others has other speeds"


def _with_metrics(read: RunResult, spec: RunSpec, grammar: LogGrammar, parsed: Parsed) -> RunResult:
    """Return a run with the values of the metrics that its folder declares, or with a note that
    says why one log has none.
    """
    try:
        values = values_of(
            grammar.metrics, {("", read.run_id): parsed.readings}, expectation_of(spec, grammar)
        )
    except DataError as error:
        return _with_own_notes(read, METRICS_LEFT_OUT(fault=error.message))
    return replace(read, metric_values=values)


def _with_own_notes(read: RunResult, *notes: Note) -> RunResult:
    """Return a run with notes about it alone.

    They name its log, because the table has the notes of all repeats in one place.
    """
    return replace(
        read, qualifications=(*read.qualifications, *(note.about(read.run_id) for note in notes))
    )


def _of_metrics(
    result: RunResult, spec: RunSpec, framework: Framework, parsed: Parsed, log: bytes
) -> RunResult:
    """Return a run with the values of the metrics that a folder without training declares. Raises
    DataError if it has none.
    """
    metrics = framework.log.metrics
    values = values_of(
        metrics,
        {("", result.run_id): parsed.readings},
        Expected(spec.nodes, spec.world_size, form=framework.log.numbers),
    )
    read = replace(result, measure=framework.measure, metrics=metrics, spec=spec)
    if not values:
        raise _unmatched_error(framework, parsed, result.run_id, log)
    return _with_own_notes(replace(read, state="finished", metric_values=values), *parsed.warnings)


def grammar_note(framework: Framework) -> Note:
    """Return the note that says how these logs were read."""
    if not framework.measure.has_samples:
        return READ_WITH_GRAMMAR(framework=framework.name, window="")
    warmup_steps = framework.default("warmup_steps", "cuda")[0]
    reported = ", or those that a log reports," if framework.log.closing else ""
    window = f"; the window begins after {warmup_steps} steps{reported} and ends with the last line of a log"
    return READ_WITH_GRAMMAR(framework=framework.name, window=window)


def _unmatched_error(framework: Framework, parsed: Parsed, name: str, log: bytes) -> DataError:
    patterns = framework.log.by_key("patterns" if framework.log.patterns else "readings")
    text = clean_text(log[:_SHOWN_BYTES].replace(b"\r\n", b"\n").replace(b"\r", b"\n"))
    _, _, detail = explain_mismatch(patterns, [("", name, text)], parsed.misread)
    noun = "steps" if framework.log.patterns else "results"
    hint = f"correct {' or '.join(patterns)}, or name another framework" if text.strip() else ""
    return DataError(
        f"expected lines with {noun}, found 0; {detail}", kind="log_unmatched", hint=hint
    )
