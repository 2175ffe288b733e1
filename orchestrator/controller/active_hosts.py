"""The hosts that the runs of a bench are on: connected, looked at before the first run, and
replaced by spares once lost.

A host may be lost at any time: before the first run of a controller, in a run, between two. Each is
one call of `ActiveHosts.replace_lost`, so a resumed bench continues like an uninterrupted one.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from orchestrator.checks.interfaces import with_interface, with_interfaces
from orchestrator.controller.busy import wait_until_free
from orchestrator.controller.events import Checked, Decided
from orchestrator.controller.fitness import Look, kinds_of, look_at
from orchestrator.controller.spares import find_lost_hosts, is_on, may_move, replacements
from orchestrator.controller.stage import Stage
from orchestrator.errors import Faults, OrchError
from orchestrator.inventory import Host, fold
from orchestrator.plan import RunSpec
from orchestrator.plan.bench import PlannedRun
from orchestrator.record import BenchDir
from orchestrator.record.bench_record import BenchRecord
from orchestrator.record.journal import Event

Again = Callable[[PlannedRun, Callable[[RunSpec], bool]], int | None]
"""Plans new attempts of all finished runs of the specs that meet a condition, and of the run that
is named if it is over and of these. Returns their number; None if there is no time for them, or
such a bench does not do it."""


@dataclass(slots=True)
class ActiveHosts:
    """``spares`` take the places of hosts that are lost, if ``again`` plans new attempts of the
    runs that were made with these. ``facts`` of hosts by framework are those that the command has
    captured already, and then those that preflight captures.
    """

    bench: BenchDir
    hosts: Sequence[Host]
    stage: Stage
    facts: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    spares: Sequence[Host] = ()
    again: Again | None = None
    _has_looked: bool = False
    _against: dict[str, str] = field(default_factory=dict)  # by spare, why it is not fit

    def ready(self, run: PlannedRun, needed: Sequence[PlannedRun]) -> None:
        """Connect to all hosts before a run, and look at them before the first one; spares take the
        places of those that are lost. ``needed`` holds a run of every kind that may follow.

        Raises Faults of all that is wrong with hosts, RunError node_busy for those that another run
        holds.
        """
        while not self.stage.interrupt.signal and (
            errors := self.connect() or self._preflight(needed)
        ):
            if not self.replace_lost(run, errors, needed) and not self.stage.interrupt.signal:
                raise Faults(errors)

    def connect(self) -> list[OrchError]:
        """Connect to all hosts, and return the errors of those that do not answer. Spares that do
        not are none any more.

        Without spares it raises Faults of these errors.
        """
        if not self.spares:
            self.stage.cluster.open()
            return []
        errors = self.stage.cluster.open_what_answers()
        self._against |= {
            spare.name: errors[spare.name].message for spare in self.spares if spare.name in errors
        }
        self._keep([spare for spare in self.spares if spare.name not in errors])
        return [errors[host.name] for host in self.hosts if host.name in errors]

    def may_replace(self, lost: Iterable[str], run: PlannedRun) -> bool:
        """Return True if there are spares for hosts that are lost, as far as is known before a look
        at these.
        """
        cells = [*self.bench.record().cells, run.spec]
        return may_move(cells, self.hosts, lost := list(lost)) and bool(
            replacements(cells, self.hosts, lost, self.spares)
        )

    def replace_lost(
        self, run: PlannedRun, errors: Sequence[OrchError], needed: Sequence[PlannedRun]
    ) -> bool:
        """Let spares take the places of the hosts that these errors show to be lost, in a run or
        before it.

        All finished runs of a cell that was on such a host are made again, with ``run`` if it is
        over: no cell has repeats on different hosts. Returns False if that cannot be, and says so
        where the bench has spares.
        """
        record = self.bench.record()
        lost = find_lost_hosts(self.hosts, errors)
        if not (lost and record.spares and self.again) or self.stage.interrupt.signal:
            return False
        cells = [*record.cells, run.spec]
        if not may_move(cells, self.hosts, lost):
            return self._say_not_replaced(lost, "some runs require these hosts by name")
        if run.run_id not in (record.plan or {}):
            return self._say_not_replaced(
                lost, "it is an extra run with a trace, which no table includes"
            )
        left = [host for host in self.hosts if host.name not in lost]
        reachable = [spare for spare in self.spares if spare.name in self.stage.cluster.nodes]
        looks = [
            look_at(
                self.stage.cluster, kind, [*left, *reachable], self.facts.get(kind.framework.name)
            )
            for kind in kinds_of([*needed, run], self.hosts)
        ]
        against = {}
        for spare in reachable:
            against[spare.name] = [error for look in looks for error in look.against(spare.name)]
        self._against |= {name: faults[0].message for name, faults in against.items() if faults}
        fit = [spare for spare in reachable if not against[spare.name]]
        places = replacements(cells, self.hosts, list(lost), fit)
        if not places:
            return self._say_not_replaced(lost, self._too_few(lost, fit))
        count = self.again(run, partial(is_on, hosts=self.hosts, names=lost))
        if count is None:
            return self._say_not_replaced(
                lost, "--budget leaves no time to repeat the runs of its configurations"
            )
        when = "" if run.run_id in self.bench.record().superseded else "before "
        self._take(
            places,
            {name: f"{error.message} ({when}{run.run_id})" for name, error in lost.items()},
            looks,
            count,
        )
        return True

    def of(self, run: PlannedRun) -> list[Host]:
        """Return the hosts; for a run of several nodes with the interface that was found where the
        inventory names none.
        """
        facts = self.facts[run.spec.framework]
        return [
            with_interface(host, facts[host.name]) if run.spec.nodes > 1 else host
            for host in self.hosts
        ]

    def _preflight(self, needed: Sequence[PlannedRun]) -> list[OrchError]:
        """Capture facts once per framework; return what keeps nodes from the runs. Raises Faults if
        another run holds some.
        """
        if self._has_looked:
            return []
        wait_until_free(self.stage, [host.name for host in self.hosts])
        for kind in kinds_of(needed, self.hosts):
            look = look_at(
                self.stage.cluster, kind, self.hosts, self.facts.get(kind.framework.name)
            )
            self.facts[look.framework] = look.facts
            if not find_lost_hosts(self.hosts, look.errors):
                self.stage.observe(Checked(look.checks))
            if look.errors:
                return look.errors
        self.stage.journal(Event.PREFLIGHT, hosts=[host.name for host in self.hosts])
        self._has_looked = True
        return []

    def _take(
        self,
        places: Mapping[str, Host],
        reasons: Mapping[str, str],
        looks: Sequence[Look],
        count: int,
    ) -> None:
        """Go on with other hosts, and record it."""
        runs = "; 1 run of its configurations is repeated" if count == 1 else ""
        runs = f"; {count} runs of its configurations are repeated" if count > 1 else runs
        for lost, spare in places.items():
            note = f"{spare.name} in place of {lost}: {reasons[lost]}{runs}"
            self.bench.change(
                partial(BenchRecord.with_spare, lost=lost, spare=spare.name, note=note)
            )
            self.stage.journal(Event.REPLACED, host=lost, by=spare.name, reason=reasons[lost])
            self.stage.observe(Decided([note]))
        self.hosts = [places.get(host.name, host) for host in self.hosts]
        for look in looks:
            known = {
                host.name: look.facts[host.name] for host in self.hosts if host.name in look.facts
            }
            self.facts[look.framework] = with_interfaces(self.hosts, known)
        self._keep([spare for spare in self.spares if spare not in places.values()])

    def _keep(self, spares: Sequence[Host]) -> None:
        self.spares = list(spares)
        self.stage.cluster.keep([*self.hosts, *self.spares])

    def _too_few(self, lost: Mapping[str, OrchError], fit: Sequence[Host]) -> str:
        names = [spare.name for spare in fit]
        if len(fit) >= len(lost):
            return f"{fold(names)} {'is' if len(fit) == 1 else 'are'} of another device type, or too small for a configuration"
        needed = "1 is needed" if len(lost) == 1 else f"{len(lost)} are needed"
        count = "none is"
        if fit:
            count = f"{len(fit)} {'is' if len(fit) == 1 else 'are'} fit ({fold(names)})"
        unfit = [
            f"{name} is not: {why}" for name, why in self._against.items() if name not in names
        ]
        return "; ".join([f"{needed}, {count if fit or unfit else 'none is left'}", *unfit])

    def _say_not_replaced(self, lost: Mapping[str, OrchError], why: str) -> bool:
        """Say why no spare takes the place of a host."""
        resume = (
            f"to continue once that has changed: orch resume {shlex.quote(self.bench.path.name)}"
        )
        text = f"no spare takes the place of {fold(lost)}: {why}; {resume}"
        self.stage.observe(Decided([text]))
        for error in lost.values():
            error.hint = f"{error.hint}\n{text}" if error.hint else text
        return False
