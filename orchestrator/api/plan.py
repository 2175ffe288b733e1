"""Plan a bench from Python and run it, by the planner and the controller of the command line."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from orchestrator import yamlfile
from orchestrator.api.arguments import argument_error, command_words, read_options
from orchestrator.api.bench import Bench, of_folder, project_of
from orchestrator.api.find import new_bench_id, new_seed
from orchestrator.api.prepare import (
    Prepared,
    begin_bench,
    plan_documents,
    prepare_bench,
    render_plans,
)
from orchestrator.api.progress import Progress, write
from orchestrator.api.selection import Selection, select, without_suspects
from orchestrator.errors import ConfigError, nearest
from orchestrator.inventory import Redaction
from orchestrator.options import select_plan_options
from orchestrator.plan import Limits, RunSpec
from orchestrator.plan.folders import framework_for, open_framework
from orchestrator.plan.placement import used_hosts
from orchestrator.plan.planning import check_measures
from orchestrator.plan.request import request_of
from orchestrator.plan.spec import Skipped, skipped_words
from orchestrator.record.defaults import choices, option_values

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from orchestrator.api.options import Options
    from orchestrator.controller.events import Observer, ProgressEvent
    from orchestrator.controller.peer import Interrupt


_log = logging.getLogger("orchestrator")
_TRANSPORTS = "orchestrator.transport"


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
        return tuple(
            host.name for host in used_hosts(self._prepared.plan.cells, self._selection.hosts)
        )

    @property
    def configurations(self) -> tuple[RunSpec, ...]:
        """The specs to measure, each once, with the baselines that no earlier bench of the project
        lends.
        """
        return self._prepared.plan.cells

    @property
    def runs(self) -> tuple[str, ...]:
        """The ids of its runs, in the order in which they are made."""
        return tuple(run.run_id for run in self._prepared.plan.list_runs())

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
            run.run_id: decided
            for run, decided in render_plans(self._prepared.plan, self._selection)
        }
        if run_id not in self.runs:
            raise ConfigError(
                f"no run {run_id!r:.200} in this plan{nearest(str(run_id), self.runs)}",
                where="run_id",
            )
        files = {}
        for node in by_run[run_id].nodes:
            files[node.slot.host] = {file.path: file.content for file in node.files}
        return files

    def documents(self) -> list[dict[str, Any]]:
        """Return the output of ``orch bench --dry-run --json``: each run's manifest and the files
        of every node.
        """
        return plan_documents(self._prepared.plan, self._selection)


def prepare(
    model: str,
    *,
    limits: Limits | None = None,
    project: str | Path | None = None,
    **options: Unpack[Options],
) -> Plan:
    """Return the plan of a bench; contact no host and write nothing.

    ``options`` are the options of `orch bench`, as `Options` lists them; None means not given. An
    option that is not given falls back to the defaults of the project and the user, as on the
    command line. ``limits`` holds the options that limit a run in time and output. ``project`` is a
    folder: by default ``ORCH_PROJECT`` or the current directory.

    Raises ConfigError, or Faults with several, naming the option and the expected value; TypeError
    for an unknown option.
    """
    given = read_options(options)
    if not isinstance(model, str):
        raise argument_error("a text", model, "model")
    if not isinstance(limits, Limits | None):
        raise argument_error("orchestrator.Limits", limits, "limits")
    of_project = project_of(project)
    defaults = of_project.defaults(os.environ)
    usual = option_values(defaults)
    if not usual.get("wait"):
        usual.pop("wait_limit", None)
    chosen = {**usual, **given}
    more_templates = [Path(path) for path in given.get("templates", ())]
    bases = of_project.template_folders(more_templates, os.environ)
    request = request_of(
        model,
        run_file=yamlfile.load(Path(given["file"])) if "file" in given else None,
        defaults=choices(defaults),
        **select_plan_options(chosen),
    )
    folders = [
        open_framework(name, bases)
        for name in request.framework_names(lambda: framework_for(model, bases))
    ]
    check_measures(request, [folder.framework for folder in folders])
    selected = select(of_project, given.get("hosts", ""), chosen.get("exclude", ""), say=_log.info)
    selection = without_suspects(selected, say=_log.warning)
    decided = prepare_bench(
        request, folders, selection, bench_id=new_bench_id(), seed=new_seed(), say=_log.warning
    )
    for text in skipped_words(decided.plan.skipped):
        _log.warning(text)
    return Plan(
        ("orch", "bench", model, *command_words(given)),
        limits or Limits.of_options(usual),
        bool(usual.get("keep_going")),
        bool(usual.get("accept_new")),
        decided,
        selection,
        bases,
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
        raise argument_error("a plan of orchestrator.prepare", plan, "plan")
    if observe is not None and not callable(observe):
        raise argument_error("a function of an event", observe, "observe")
    selection, decided = plan._selection, plan._prepared
    controller = begin_bench(
        decided.plan,
        decided.borrowed,
        selection,
        used_hosts(decided.plan.cells, selection.hosts),
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

        with _stop_at_signal(interrupt, stopped), _reports(selection.inventory.redaction()):
            yield take

    errors, _ = controller.conduct(show)
    if stopped:
        raise KeyboardInterrupt
    return of_folder(controller.bench, tuple(errors))


@contextmanager
def _stop_at_signal(interrupt: Interrupt, stopped: list[int]) -> Iterator[None]:
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
