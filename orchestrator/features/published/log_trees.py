"""Published rules applied to logs: to trees of logs that orch did not write, and to the logs of
orch's own runs.

A tree has no manifest, so case, batch size and type come from file names, in the documented form
``<anything>/<nodes>n<gpus>g/<model>_b<batch size>_<dtype>_<id>.log``; files with other names are
listed and left out. The order of the files does not affect any number.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from orchestrator.errors import ConfigError, DataError
from orchestrator.features.published.declared_speedups import apply_divisors
from orchestrator.features.published.folders import (
    TABLES,
    open_published,
    rule_names,  # noqa: F401  # handed on: this module is the feature's `LogRules`
)
from orchestrator.features.published.notes import (
    COPY_LEFT_OUT,
    MISNAMED,
    NAMES_OF_FILES,
    OTHER_RUN_COUNTS,
    RULE_USED,
    RUN_ID_TWICE,
)
from orchestrator.features.published.rules import Rule, rule_of
from orchestrator.features.published.run_size import Case
from orchestrator.features.published.tables import BASELINE
from orchestrator.logs import is_named
from orchestrator.notes import Note
from orchestrator.plan import Framework, RunSpec
from orchestrator.plan.baselines import as_baseline
from orchestrator.plan.folders import open_framework
from orchestrator.plural import plural
from orchestrator.record import BenchDir, RunDir
from orchestrator.record.manifest import read_manifest
from orchestrator.record.state_file import read_bytes
from orchestrator.results import RunResult, Throughput
from orchestrator.results.foreign_log import by_grammar, check_by_grammar, grammar_note
from orchestrator.results.summary import Summary, summarize

_MAX_LOG_BYTES = 1 << 30
_NAMED = 5
_CASE = re.compile(r"([1-9][0-9]{0,4})n([1-9][0-9]{0,4})g", re.ASCII)
_LOG = re.compile(
    r"(?P<model>[A-Za-z0-9._+-]+)_b(?P<batch>[1-9][0-9]{0,6})_(?P<dtype>[A-Za-z0-9]+)_(?P<id>[0-9]{1,9})\.log"
)


@dataclass(frozen=True, slots=True)
class _Log:
    """One log of a tree, with the facts of its name; ``folder`` is the path above the folder of the
    case.
    """

    path: Path
    name: str
    folder: str
    model: str
    dtype: str
    case: Case
    run_id: int


def summary_of_tree(
    root: Path, framework: Framework, images: int | None = None, name: str = ""
) -> Summary:
    """Return the scaling table of a log tree by the framework's published rule, or by its log
    grammar if it has no rule.

    ``name`` is another rule of the framework; empty: the one that its folder names. ``images`` is
    the size of the data set: None as in the published runs, 0 to skip the check of the epoch
    length. Raise ConfigError if the tree has no such log, or the framework measures no speed.
    """
    rule = rule_of(framework, name) if framework.published or name else None
    if rule is None and not (framework.measure.has_samples or framework.log.metrics):
        raise ConfigError(
            f"{framework.name} measures {framework.measure.noun}, not the speed of training",
            where="--framework",
        )
    if images is None:
        folder = Path(framework.folder)
        images = open_published(framework.name, folder).images if (folder / TABLES).exists() else 0
    if not root.is_dir():
        raise ConfigError("expected a folder of logs", where=str(root))
    logs, misnamed = _tree(root, images)
    if not logs:
        raise ConfigError(
            "expected logs such as 4n8g/rn50_b128_fp32_1.log, found none",
            where=str(root),
            hint=f"it has {len(misnamed)} .log files with other names" if misnamed else "",
        )
    results, copies = _results(logs, framework, rule)
    summary = apply_divisors(
        summarize(results, of_medians=True), _divisors([framework] if rule else [])
    )
    notes = [NAMES_OF_FILES()]
    notes += [
        _rule_note(framework, rule) if rule else grammar_note(framework),
        *copies,
        *_misnamed_note(misnamed),
    ]
    notes += _run_counts(framework, summary) if rule else []
    # The command that measures a baseline applies to orch's own runs only.
    notes += [note.plain for note in summary.notes]
    return replace(summary, notes=tuple(notes))


def by_rule(
    bench: BenchDir, results: Sequence[RunResult], bases: Sequence[Path] = (), name: str = ""
) -> Summary:
    """Return the scaling table of a bench by the published rules of its frameworks, or by the one
    of a ``name``.

    A run without a number by orch's own rule gets none.
    """
    used = sorted({run.spec.framework for run in results if run.spec})
    by_name = {framework: open_framework(framework, bases).framework for framework in used}
    rules = {framework: rule_of(opened, name) for framework, opened in by_name.items()}
    summary = summarize(
        [
            _by_rule(bench.run(run.run_id), run, rules[run.spec.framework]) if run.spec else run
            for run in results
        ],
        of_medians=True,
    )
    summary = apply_divisors(summary, _divisors(by_name.values()))
    notes = [_rule_note(opened, rules[framework]) for framework, opened in by_name.items()]
    return replace(summary, notes=(*notes, *summary.notes))


def _by_rule(run: RunDir, result: RunResult, rule: Rule) -> RunResult:
    """Return a good run with the speed that the rule reads from the log of its first node."""
    spec = result.spec
    if spec is None or result.error or result.throughput is None:
        return result
    try:
        log = b"".join(_first_node_logs(run))
    except OSError as error:
        damage = DataError(
            f"cannot be read: {error.strerror}", kind="result_invalid", where=str(error.filename)
        )
        return replace(result, state="failed", error=damage, throughput=None)
    return _with_speed(result, spec, rule, log)


def _first_node_logs(run: RunDir) -> Iterable[bytes]:
    manifest = read_manifest(run)
    folder = run.path / "logs" / manifest.slots[0].host
    patterns = manifest.grammar.files
    paths = [path for path in folder.iterdir() if is_named(path.name, patterns)]
    return (
        read_bytes(path, _MAX_LOG_BYTES)
        for path in sorted(paths, key=lambda path: _natural(path.name))
    )


def _natural(name: str) -> list[tuple[int, str]]:
    """Return a sort key that puts rank-2 before rank-10."""
    return [
        (int(part), "") if part.isdigit() else (-1, part) for part in re.split("([0-9]+)", name)
    ]


def _with_speed(
    result: RunResult,
    spec: RunSpec,
    rule: Rule,
    log: bytes,
    framework: Framework | None = None,
    images: int = 0,
) -> RunResult:
    """Return a result with the speed that a rule reads; with a folder, the log has to pass the
    checks of its grammar too.
    """
    notes: tuple[Note, ...] = ()
    try:
        if framework:
            remarks = check_by_grammar(log, framework, spec, (rule.first, rule.last))
            notes = tuple(remark.about(result.run_id) for remark in remarks)
        speed = rule.speed(log, Case(spec.nodes, spec.gpus, spec.batch_size, images))
    except DataError as error:
        error.run_id = result.run_id
        return replace(result, state="failed", error=error, throughput=None)
    samples = (rule.last - rule.first + 1) * spec.global_batch
    throughput = Throughput(
        speed.samples_per_s, samples, samples / speed.samples_per_s, rule.first, rule.last
    )
    qualifications = tuple(dict.fromkeys((*result.qualifications, *notes, *speed.warnings)))
    # Step statistics belong to the run's own window, not to the rule's.
    return replace(
        result,
        state="finished",
        throughput=throughput,
        qualifications=qualifications,
        step_times=None,
        unsteady=(),
    )


def _tree(root: Path, images: int) -> tuple[list[_Log], list[str]]:
    """Return the logs below ``root`` in order of name, and the paths of .log files whose names have
    another form.
    """
    logs, misnamed = [], []
    for folder, folders, names in os.walk(root):
        folders.sort()
        for name in sorted(name for name in names if name.endswith(".log")):
            path = Path(folder) / name
            case, parts = _CASE.fullmatch(path.parent.name), _LOG.fullmatch(name)
            if not case or not parts:
                misnamed.append(path.relative_to(root).as_posix())
                continue
            size = Case(int(case[1]), int(case[2]), int(parts["batch"]), images)
            above = path.parent.parent
            base = above.relative_to(root).as_posix() if above.is_relative_to(root) else "."
            relative = path.relative_to(root).as_posix()
            logs.append(
                _Log(path, relative, base, parts["model"], parts["dtype"], size, int(parts["id"]))
            )
    return logs, misnamed


def _results(
    logs: Sequence[_Log], framework: Framework, rule: Rule | None
) -> tuple[list[RunResult], list[Note]]:
    """Return one result per log, and a note for each log that is a byte-for-byte copy of another:
    it is not a second run.
    """
    uses = Counter((log.folder, log.model, log.dtype, log.case, log.run_id) for log in logs)
    first: dict[str, str] = {}
    results, notes = [], []
    for log in logs:
        spec = _spec(log, framework, *((rule.first - 1, rule.last) if rule else (0, 0)))
        result = RunResult(log.name, log.run_id, spec, False, "failed")
        try:
            data = read_bytes(log.path, _MAX_LOG_BYTES)
        except OSError as error:
            why = "expected a file, got a symbolic link"
            if not log.path.is_symlink():
                why = f"cannot be read: {error.strerror}"
            results.append(replace(result, error=DataError(why, kind="result_invalid")))
            continue
        original = first.setdefault(hashlib.sha256(data).hexdigest(), log.name)
        if original != log.name:
            notes.append(COPY_LEFT_OUT(name=log.name, original=original))
            continue
        if uses[log.folder, log.model, log.dtype, log.case, log.run_id] > 1:
            result = replace(result, qualifications=(RUN_ID_TWICE(name=log.name, run=log.run_id),))
        results.append(
            _with_speed(result, spec, rule, data, framework, log.case.images)
            if rule
            else by_grammar(result, spec, framework, data)
        )
    return results if rule else _as_repeats(_with_baselines(results)), notes


def _with_baselines(results: Sequence[RunResult]) -> list[RunResult]:
    """Return the results, in which the shapes of one copy of a model that several ranks compute are
    known as baselines.
    """
    return [
        replace(run, spec=as_baseline(run.spec))
        if run.spec and run.spec.world_size == run.spec.step.model_ranks
        else run
        for run in results
    ]


def _as_repeats(results: Sequence[RunResult]) -> list[RunResult]:
    """Return the results, in which a log without a number has the window that most others of its
    case have: it is a failed repeat of theirs, and no configuration of its own."""
    windows: dict[tuple[Any, ...], Counter[str]] = {}
    specs = {}
    for run in results:
        if run.spec and not run.error:
            windows.setdefault(_case(run.spec), Counter())[repr(run.spec)] += 1
            specs[repr(run.spec)] = run.spec
    repeats = []
    for run in results:
        if (
            run.spec
            and run.error
            and (counts := windows.get(_case(run.spec)))
            and repr(run.spec) not in counts
        ):
            run = replace(run, spec=specs[max(counts, key=counts.__getitem__)])
        repeats.append(run)
    return repeats


def _case(spec: RunSpec) -> tuple[Any, ...]:
    return spec.options["folder"], spec.model, spec.dtype, spec.batch_size, spec.nodes, spec.gpus


def _spec(log: _Log, framework: Framework, warmup_steps: int, steps: int) -> RunSpec:
    return RunSpec(
        framework=framework.name,
        model=log.model,
        nodes=log.case.nodes,
        gpus=log.case.gpus,
        device="cuda",
        batch_size=log.case.batch_size,
        dtype=log.dtype,
        loader="unstated" if framework.measure.has_samples else framework.loaders[0],
        steps=steps,
        warmup_steps=warmup_steps,
        timeout_s=0.0,
        options={"folder": log.folder},
    )


def _divisors(opened: Iterable[Framework]) -> dict[str, str]:
    return {framework.name: framework.published["divisor"] for framework in opened}


def _rule_note(framework: Framework, rule: Rule) -> Note:
    published, divisor = framework.published, framework.published["divisor"].replace("/", " over ")
    return RULE_USED(
        name=rule.name,
        title=rule.title,
        statistic=published["statistic"],
        runs=plural(published["runs"], "run"),
        divisor=divisor,
        baseline=BASELINE,
    )


def _misnamed_note(names: Sequence[str]) -> list[Note]:
    if not names:
        return []
    rest = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return [MISNAMED(names=", ".join(names[:_NAMED]) + rest)]


def _run_counts(framework: Framework, summary: Summary) -> list[Note]:
    published_runs = framework.published["runs"]
    odd = [f"{row.shape} has {row.n}" for row in summary.rows if row.n != published_runs]
    if not odd:
        return []
    return [OTHER_RUN_COUNTS(runs=plural(published_runs, "run"), counts=", ".join(odd))]
