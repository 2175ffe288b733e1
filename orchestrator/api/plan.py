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
from orchestrator.api.bench import Bench, of_folder, project_of
from orchestrator.api.find import new_bench_id, new_seed
from orchestrator.api.prepare import Prepared, begun, documents, plans, prepared
from orchestrator.api.progress import Progress, write
from orchestrator.api.selection import Selection, select, without_suspects
from orchestrator.errors import ConfigError
from orchestrator.inventory import Redaction
from orchestrator.plan import Limits, RunSpec
from orchestrator.plan.folders import framework_for, open_framework
from orchestrator.plan.placement import taken
from orchestrator.plan.request import check_measures, request_of
from orchestrator.plan.spec import Skipped, as_written, skipped_words
from orchestrator.plan.words import MOST_S, in_seconds, quoted
from orchestrator.record.defaults import KEYS, Default, choices

if TYPE_CHECKING:
    from orchestrator.controller.events import Observer, ProgressEvent
    from orchestrator.controller.peer import Interrupt

__all__ = ["Plan", "Values", "prepare", "run"]

Values = str | int | float | Sequence[str | int | float]
"""One value, or several, each of which makes configurations of its own. A text may list several, as on the command line."""

_log = logging.getLogger("orchestrator")
_TRANSPORTS = "orchestrator.transport"
_DEFAULTS = ("until_ci", "max_repeats", "order", "budget", "strict")
"""Options of `request_of` that files of defaults may set, besides the choices that a run file may have too."""


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

        Raises KeyError for no run of this plan. A run's port is chosen when it starts; the files have one that stands for it.
        """
        by_run = {run.run_id: decided for run, decided in plans(self._prepared.plan, self._selection)}
        return {node.slot.host: {file.path: file.content for file in node.files} for node in by_run[run_id].nodes}

    def documents(self) -> list[dict[str, Any]]:
        """Return what ``orch bench --dry-run --json`` prints: for each run its manifest and the files of every node."""
        return documents(self._prepared.plan, self._selection)


def prepare(
    model: str,
    *,
    hosts: str | Path = "",
    exclude: str | None = None,
    nodes: Values = (),
    gpus: Values = (),
    shape: Values = (),
    ladder: bool = False,
    framework: Values = (),
    dtype: Values = (),
    batch_size: Values = (),
    global_batch: int | None = None,
    loader: Values = (),
    cpu_binding: Values = (),
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
    """Return the plan of a bench; contact no host and write nothing. Arguments are the options of `orch bench`.

    Those of type `Values` take one value or several, each of which makes configurations. ``options`` are those of ``--set``,
    ``file`` is a run file, ``timeout_s`` is in seconds; ``limits`` holds the options that limit a run in time and output.
    What is not given falls back to the defaults of the project and the user, as on the command line. ``project`` is its folder:
    by default ``ORCH_PROJECT`` or the current directory.

    Raises ConfigError, or Faults of it, naming the option and what it expects.
    """
    lists = {
        "nodes": nodes, "gpus": gpus, "shape": shape, "framework": framework, "dtype": dtype, "batch_size": batch_size,
        "loader": loader, "cpu_binding": cpu_binding,
    }  # fmt: skip
    texts: dict[str, Any] = {name: text for name, values in lists.items() if (text := _text(values))}
    single = {
        "steps": steps, "warmup_steps": warmup_steps, "timeout_s": timeout_s, "global_batch": global_batch,
        "container": container,
    }  # fmt: skip
    others: dict[str, Any] = {
        "repeats": repeats, "until_ci": until_ci, "max_repeats": max_repeats, "budget": budget, "order": order,
        "strict": strict, "ladder": ladder or None, "baseline": baseline and None, "baseline_shape": baseline_shape or None,
        "label": label or None, "expect": list(_listed(expect)) or None,
    }  # fmt: skip
    _check_texts(exclude=exclude, until_ci=until_ci, budget=budget, order=order, baseline_shape=baseline_shape, label=label)
    _check_counts(repeats=repeats, max_repeats=max_repeats)
    given = {name: value for name, value in others.items() if value is not None}
    sets, variables = _assignments(options or {}), _assignments(env or {})
    of_project = project_of(project)
    defaults = of_project.defaults(os.environ)
    bases = of_project.template_folders([Path(path) for path in _listed(templates)], os.environ)
    request = request_of(
        model,
        single=single,
        sets=sets,
        env=variables,
        run_file=yamlfile.load(Path(file)) if file else None,
        defaults=choices(defaults),
        **texts,
        **{**{name: _as_option(name, defaults[name]) for name in _DEFAULTS if name in defaults}, **given},
    )
    folders = [open_framework(name, bases) for name in request.framework_names(lambda: framework_for(model, bases))]
    check_measures(request, [folder.framework for folder in folders])
    left_out = exclude if exclude is not None else defaults["exclude"].value if "exclude" in defaults else ""
    selected = select(of_project, str(hosts), left_out, say=_log.info)
    selection = without_suspects(selected, say=_log.warning)
    decided = prepared(request, folders, selection, bench_id=new_bench_id(), seed=new_seed(), say=_log.warning)
    for text in skipped_words(decided.plan.skipped):
        _log.warning(text)
    named = {"hosts": str(hosts), "exclude": exclude, "file": file, "templates": templates, "set": sets, "env": variables}
    command = ("orch", "bench", model, *_words({**named, **texts, **single, **given, "strict": given.get("strict") or None}))
    keep_going, accept_new = (bool(name in defaults and defaults[name].value) for name in ("keep_going", "accept_new"))
    return Plan(command, limits or _limits(defaults), keep_going, accept_new, decided, selection, bases)


def run(
    plan: Plan,
    *,
    accept_new: bool | None = None,
    keep_going: bool | None = None,
    observe: Callable[[ProgressEvent], None] | None = None,
) -> Bench:
    """Run a plan to its end, and return its bench; runs that failed are in its ``errors``.

    Lines of progress go to the logger ``orchestrator``, events to ``observe``. In the main thread, Ctrl-C stops every node and
    collects what there is before it raises KeyboardInterrupt. Raises ConfigError if the plan has been run before.
    """
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
    """Stop the bench at the first Ctrl-C, and raise at the second; not in another thread, where no signal arrives."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def act(number: int, _: object) -> None:
        if interrupt.signal:
            raise KeyboardInterrupt
        interrupt.signal = number
        stopped.append(number)
        _log.warning("interrupted: stopping on every node, then collecting; interrupt again to leave immediately")

    before = signal.signal(signal.SIGINT, act)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _reports(redaction: Redaction) -> Iterator[None]:
    """Hand on what the transports report to the logger of this package, without the secrets of the inventory."""

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
    values = {option.limit: defaults[key].value for key, option in KEYS.items() if option.limit and key in defaults}
    if "wait" not in defaults or not defaults["wait"].value:
        values.pop("wait_s", None)
    else:
        values.setdefault("wait_s", MOST_S)
    if "output_limit" in defaults:
        values["output_bytes"] = defaults["output_limit"].value << 20
    return Limits(**values)


def _as_option(name: str, default: Default) -> Any:
    return in_seconds(default.value) if name == "budget" else default.value


def _text(values: Values) -> str:
    """Return values as a list on a command line."""
    return values if isinstance(values, str) else ",".join(map(as_written, _listed(values)))


def _assignments(values: Mapping[str, Values]) -> list[str]:
    """Return ``name=value,…`` for each option or variable. A text is one value, whatever is in it.

    >>> _assignments({"sizes": "1024,4096", "seed": [1, 2], "compile": True})
    ['sizes="1024,4096"', 'seed=1,2', 'compile=true']
    """
    return [f"{name}={','.join(quoted(as_written(value)) for value in _listed(of_name))}" for name, of_name in values.items()]


def _listed(values: Values | Path | Sequence[str | Path] | None) -> Sequence[Any]:
    """Return the values of an option that can have several; a text, a path or a number is one."""
    if values is None:
        return []
    return [values] if isinstance(values, (str, int, float, Path)) else values


def _check_texts(**texts: object) -> None:
    for name, text in texts.items():
        if text is not None and not isinstance(text, str):
            raise ConfigError(f"expected a text, got {text!r}", where=f"--{name.replace('_', '-')}")


def _check_counts(**counts: object) -> None:
    for name, count in counts.items():
        if count is not None and (type(count) is not int or count < 1):
            raise ConfigError(f"expected a whole number ≥ 1, got {count!r}", where=f"--{name.replace('_', '-')}")


def _words(options: Mapping[str, Any]) -> list[str]:
    """Return the words of a command line.

    >>> _words({"timeout_s": 90, "baseline": False, "set": ["a=1", "b=2"], "label": None})
    ['--timeout', '90', '--no-baseline', '--set', 'a=1', '--set', 'b=2']
    """
    words = []
    for name, value in options.items():
        option = name.removesuffix("_s").replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{option}" if value else f"--no-{option}")
        else:
            listed = value if isinstance(value, (list, tuple)) else [value]
            words += [word for item in listed if item not in (None, "") for word in (f"--{option}", str(item))]
    return words
