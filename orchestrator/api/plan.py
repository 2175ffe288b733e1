"""Plan a bench from Python and run it, by the planner and the controller of the command line."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from orchestrator import yamlfile
from orchestrator.api.arguments import (
    Values,
    assigned,
    check_counts,
    check_numbers,
    check_texts,
    command_words,
    expected,
    listed,
    option_text,
)
from orchestrator.api.bench import Bench, of_folder, project_of
from orchestrator.api.find import new_bench_id, new_seed
from orchestrator.api.prepare import Prepared, begun, documents, plans, prepared
from orchestrator.api.progress import Progress, write
from orchestrator.api.selection import Selection, select, without_suspects
from orchestrator.errors import ConfigError
from orchestrator.inventory import Redaction, nearest
from orchestrator.plan import Limits, RunSpec
from orchestrator.plan.folders import framework_for, open_framework
from orchestrator.plan.placement import taken
from orchestrator.plan.request import check_measures, request_of
from orchestrator.plan.spec import Skipped, skipped_words
from orchestrator.plan.words import MOST_S, in_seconds
from orchestrator.record.defaults import KEYS, Default, choices

if TYPE_CHECKING:
    from orchestrator.controller.events import Observer, ProgressEvent
    from orchestrator.controller.peer import Interrupt

__all__ = ["Plan", "Values", "prepare", "run"]

_log = logging.getLogger("orchestrator")
_TRANSPORTS = "orchestrator.transport"
_DEFAULTS = ("until_ci", "max_repeats", "order", "budget", "strict")
"""Options of `request_of` that files of defaults may set, besides the choices that a run file may
have too.
"""


@dataclass(frozen=True, slots=True)
class Plan:
    """A bench that is decided and not begun: nothing has contacted a host, nothing is written.

    ``command`` is the `orch bench` that plans the same, apart from ``limits``.
    """

    command: tuple[str, ...]
    limits: Limits
    keep_going: bool
    accept_new: bool
    _prepared: Prepared = field(repr=False)
    _selection: Selection = field(repr=False)
    _templates: tuple[Path, ...] = field(repr=False)

    @property
    def id(self) -> str:
        """The name of the bench."""
        return self._prepared.plan.bench_id

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts that its runs use, in order."""
        return tuple(host.name for host in taken(self._prepared.plan.cells, self._selection.hosts))

    @property
    def configurations(self) -> tuple[RunSpec, ...]:
        """What is measured, each once, with baselines that no earlier bench of the project lends."""
        return self._prepared.plan.cells

    @property
    def runs(self) -> tuple[str, ...]:
        """The ids of its runs, in the order in which they are made."""
        return tuple(run.run_id for run in self._prepared.plan.planned())

    @property
    def skipped(self) -> tuple[Skipped, ...]:
        """Configurations that were requested and are impossible, with their ``reason``."""
        return self._prepared.plan.skipped

    def files(self, run_id: str) -> dict[str, dict[str, str]]:
        """Return by host the files that a run puts on it, by path, as text without secret values.

        Raises ConfigError for no run of this plan. A run's port is chosen when it starts; one in
        the files stands for it.
        """
        by_run = {
            run.run_id: decided for run, decided in plans(self._prepared.plan, self._selection)
        }
        if run_id not in self.runs:
            raise ConfigError(
                f"no run {run_id!r:.200} in this plan{nearest(str(run_id), self.runs)}",
                where="run_id",
            )
        return {
            node.slot.host: {file.path: file.content for file in node.files}
            for node in by_run[run_id].nodes
        }

    def documents(self) -> list[dict[str, Any]]:
        """Return what ``orch bench --dry-run --json`` prints: for each run its manifest and the
        files of every node.
        """
        return documents(self._prepared.plan, self._selection)


def prepare(
    model: str,
    *,
    hosts: str | Path | Sequence[str] = "",
    exclude: str | None = None,
    nodes: Values | None = None,
    gpus: Values | None = None,
    shape: Values | None = None,
    ladder: bool = False,
    framework: Values | None = None,
    dtype: Values | None = None,
    batch_size: Values | None = None,
    global_batch: int | None = None,
    loader: Values | None = None,
    cpu_binding: Values | None = None,
    container: str | None = None,
    options: Mapping[str, Values] | None = None,
    env: Mapping[str, Values] | None = None,
    file: str | Path | None = None,
    steps: int | None = None,
    warmup_steps: int | None = None,
    timeout_s: float | None = None,
    repeats: int | None = None,
    until_ci: str | None = None,
    max_repeats: int | None = None,
    budget: str | None = None,
    order: str | None = None,
    baseline: bool = True,
    baseline_shape: str = "",
    strict: bool | None = None,
    expect: Sequence[str] = (),
    label: str = "",
    templates: Sequence[str | Path] = (),
    limits: Limits | None = None,
    project: str | Path | None = None,
) -> Plan:
    """Return the plan of a bench; contact no host and write nothing. Arguments are the options of
    `orch bench`.

    Those of type `Values` take one value or several, each of which makes configurations.
    ``options`` are those of ``--set``,
    ``file`` is a run file, ``timeout_s`` is in seconds; ``limits`` holds the options that limit a run in time and output.
    What is not given falls back to the defaults of the project and the user, as on the command
    line. ``project`` is its folder: by default ``ORCH_PROJECT`` or the current directory.

    Raises ConfigError, or Faults of it, naming the option and what it expects.
    """
    lists = {
        "nodes": nodes, "gpus": gpus, "shape": shape, "framework": framework, "dtype": dtype, "batch_size": batch_size,
        "loader": loader, "cpu_binding": cpu_binding,
    }  # fmt: skip
    texts: dict[str, Any] = {
        name: text
        for name, values in lists.items()
        if (text := option_text(values, f"--{name.replace('_', '-')}"))
    }
    selector = ",".join(map(str, listed(hosts, "--hosts")))
    bounds = listed(expect or None, "--expect")
    more_templates = list(map(str, listed(templates or None, "--templates")))
    single = {
        "steps": steps, "warmup_steps": warmup_steps, "timeout_s": timeout_s, "global_batch": global_batch,
        "container": container,
    }  # fmt: skip
    others: dict[str, Any] = {
        "repeats": repeats, "until_ci": until_ci, "max_repeats": max_repeats, "budget": budget, "order": order,
        "strict": strict, "ladder": ladder or None, "baseline": baseline and None, "baseline_shape": baseline_shape or None,
        "label": label or None, "expect": bounds or None,
    }  # fmt: skip
    check_texts(
        model=model, exclude=exclude, container=container, until_ci=until_ci, budget=budget, order=order,
        baseline_shape=baseline_shape, label=label,
    )  # fmt: skip
    check_numbers(steps=steps, warmup_steps=warmup_steps, timeout_s=timeout_s)
    check_counts(global_batch=global_batch, repeats=repeats, max_repeats=max_repeats)
    if odd := [bound for bound in bounds if not isinstance(bound, str)]:
        raise expected("texts", odd[0], "--expect")
    if not isinstance(limits, Limits | None):
        raise expected("orchestrator.Limits", limits, "limits")
    if not isinstance(file, str | Path | None):
        raise expected("the path of a run file", file, "--file")
    given = {name: value for name, value in others.items() if value is not None}
    sets, variables = assigned(options, "--set"), assigned(env, "--env")
    of_project = project_of(project)
    defaults = of_project.defaults(os.environ)
    bases = of_project.template_folders([Path(path) for path in more_templates], os.environ)
    request = request_of(
        model,
        options=sets,
        env=variables,
        run_file=yamlfile.load(Path(file)) if file else None,
        defaults=choices(defaults),
        **texts,
        **{name.removesuffix("_s"): value for name, value in single.items()},
        **{
            **{name: _as_option(name, defaults[name]) for name in _DEFAULTS if name in defaults},
            **given,
        },
    )
    folders = [
        open_framework(name, bases)
        for name in request.framework_names(lambda: framework_for(model, bases))
    ]
    check_measures(request, [folder.framework for folder in folders])
    left_out = (
        exclude
        if exclude is not None
        else defaults["exclude"].value
        if "exclude" in defaults
        else ""
    )
    selected = select(of_project, selector, left_out, say=_log.info)
    selection = without_suspects(selected, say=_log.warning)
    decided = prepared(
        request, folders, selection, bench_id=new_bench_id(), seed=new_seed(), say=_log.warning
    )
    for text in skipped_words(decided.plan.skipped):
        _log.warning(text)
    named = {
        "hosts": selector,
        "exclude": exclude,
        "file": file,
        "templates": more_templates,
        "set": sets,
        "env": variables,
    }
    command = (
        "orch",
        "bench",
        model,
        *command_words(
            {**named, **texts, **single, **given, "strict": given.get("strict") or None}
        ),
    )
    keep_going, accept_new = (
        bool(name in defaults and defaults[name].value) for name in ("keep_going", "accept_new")
    )
    return Plan(
        command, limits or _limits(defaults), keep_going, accept_new, decided, selection, bases
    )


def run(
    plan: Plan,
    *,
    accept_new: bool | None = None,
    keep_going: bool | None = None,
    observe: Callable[[ProgressEvent], None] | None = None,
) -> Bench:
    """Run a plan to its end, and return its bench; runs that failed are in its ``errors``.

    Lines of progress go to the logger ``orchestrator``, events to ``observe``. In the main thread,
    Ctrl-C stops every node and collects what there is before it raises KeyboardInterrupt. Raises
    ConfigError if the plan has been run before.
    """
    if not isinstance(plan, Plan):
        raise expected("a plan of orchestrator.prepare", plan, "plan")
    if observe is not None and not callable(observe):
        raise expected("a function of an event", observe, "observe")
    selection, decided = plan._selection, plan._prepared
    controller = begun(
        decided.plan,
        decided.borrowed,
        selection,
        taken(decided.plan.cells, selection.hosts),
        plan.limits,
        plan._templates,
        selection.project.runs,
        argv=plan.command,
        accept_new=plan.accept_new if accept_new is None else accept_new,
        keep_going=plan.keep_going if keep_going is None else keep_going,
    )
    stopped: list[int] = []

    @contextmanager
    def show(interrupt: Interrupt, log: TextIO) -> Iterator[Observer]:
        lines = Progress()

        def take(event: ProgressEvent) -> None:
            texts = lines.take(event)
            write(log, texts)
            for text in texts:
                _log.info(text)
            if observe:
                observe(event)

        with _interrupted(interrupt, stopped), _reports(selection.inventory.redaction()):
            yield take

    errors, _ = controller.conduct(show)
    if stopped:
        raise KeyboardInterrupt
    return of_folder(controller.bench, tuple(errors))


@contextmanager
def _interrupted(interrupt: Interrupt, stopped: list[int]) -> Iterator[None]:
    """Stop the bench at the first Ctrl-C, and raise at the second; not in another thread, where no
    signal arrives.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def act(number: int, _: object) -> None:
        if interrupt.signal:
            raise KeyboardInterrupt
        interrupt.signal = number
        stopped.append(number)
        _log.warning(
            "interrupted: stopping on every node, then collecting; interrupt again to leave immediately"
        )

    before = signal.signal(signal.SIGINT, act)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _reports(redaction: Redaction) -> Iterator[None]:
    """Hand on what the transports report to the logger of this package, without the secrets of the
    inventory.
    """

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            _log.log(record.levelno, redaction.text(record.getMessage()))

    logger, handler = logging.getLogger(_TRANSPORTS), Handler()
    before = logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = before


def _limits(defaults: Mapping[str, Default]) -> Limits:
    """Return the limits of a bench with the defaults that files set."""
    values = {
        option.limit: defaults[key].value
        for key, option in KEYS.items()
        if option.limit and key in defaults
    }
    if "wait" not in defaults or not defaults["wait"].value:
        values.pop("wait_s", None)
    else:
        values.setdefault("wait_s", MOST_S)
    if "output_limit" in defaults:
        values["output_bytes"] = defaults["output_limit"].value << 20
    return Limits(**values)


def _as_option(name: str, default: Default) -> Any:
    return in_seconds(default.value) if name == "budget" else default.value
