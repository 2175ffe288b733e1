"""The hosts that a command works on: those that its options and the project select."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from orchestrator.inventory import Host, Inventory
    from orchestrator.nodes.cluster import Cluster
    from orchestrator.record import Project
    from orchestrator.transport import Trust


@dataclass(frozen=True, slots=True)
class Selection:
    """The hosts of a command and the inventory that they came from; ``remembered`` is what a later
    command names it by.
    ``is_default``: nothing named the inventory."""

    project: Project
    inventory: Inventory
    hosts: tuple[Host, ...]
    source: str
    remembered: str
    notes: tuple[str, ...] = ()
    is_default: bool = False

    @property
    def devices(self) -> dict[str, str]:
        """By host the devices that options have chosen, where these are not the inventory's."""
        known = {host.name: host.vars.get("cuda_visible_devices") for host in self.inventory.hosts}
        now = {host.name: host.vars.get("cuda_visible_devices") for host in self.hosts}
        return {name: str(value) for name, value in now.items() if value != known[name]}

    def trust(self, accept_new: bool) -> Trust:
        """Return how this project verifies host keys."""
        from orchestrator.transport import Trust

        return Trust(store=self.project.known_hosts, accept_new=accept_new)

    def cluster(self, accept_new: bool, hosts: Sequence[Host] = ()) -> Cluster:
        """Return connections, not opened yet, to the selected hosts or to some of the inventory's."""
        from orchestrator.errors import ConfigError
        from orchestrator.nodes.cluster import Cluster

        if self.is_default and self.project.is_outside_its_lab(os.environ):
            hint = (
                "repeat the command inside: orch lab exec -- orch …; or name machines with --hosts"
            )
            message = f"expected hosts, because this project has a lab, got {self.source}, which nothing names"
            raise ConfigError(message, where="--hosts", hint=hint)
        return Cluster(hosts or self.hosts, self.trust(accept_new), self.inventory.redaction())


def select(
    project: Project,
    hosts: str,
    exclude: str = "",
    bench_id: str = "",
    *,
    devices: Sequence[str] = (),
    source_of: str = "",
    say: Callable[[str], None],
) -> Selection:
    """Return the hosts selected by the options and the project, and say which inventory was chosen.

    ``hosts`` is a file, an expression over the project's inventory, a list of addresses that are
    not in an inventory, ``slurm`` or ``srun`` for the hosts of a job, which the bench
    ``bench_id`` may have submitted, or ``pods:LABEL=VALUE``. ``source_of`` says where ``hosts``
    come from if no option named them.
    """
    from orchestrator.engines.listing import engine_of, write_hosts
    from orchestrator.errors import ConfigError
    from orchestrator.inventory import open_inventory
    from orchestrator.inventory.devices import chosen as with_chosen
    from orchestrator.inventory.devices import split_exclude
    from orchestrator.record.project import DEFAULT
    from orchestrator.record.submission import submission
    from orchestrator.report.text import one_line

    def file_of(named: str, bench: str = "") -> tuple[str, str]:
        return write_hosts(project, named, bench, say=say) or (named, "")

    remembered, why = project.inventory_source(hosts, os.environ)
    why = source_of or why
    source, expression = file_of(remembered, bench_id if submission(project, bench_id) else "")
    if hosts and not engine_of(remembered) and not _is_file(hosts):
        default, default_why = project.inventory_source("", os.environ)
        file, _ = file_of(default)
        if Path(file).exists():
            known = open_inventory(file)
            if _selects(known, hosts):
                remembered, why, source, expression = default, default_why, file, hosts
            else:
                say(_not_listed(known, hosts))
    if why != "--hosts" and _is_file(source) and not Path(source).exists():
        hint = "name an inventory or hosts with --hosts, or create this file"
        if project.is_outside_its_lab(os.environ):
            hint = f"{hint}; commands reach the lab of this project through it: orch lab exec -- orch …"
        raise ConfigError("expected a file, found none", where=f"{source} ({why})", hint=hint)
    inventory = open_inventory(source)
    excluded, devices_out = split_exclude(exclude)
    chosen = inventory.select(expression, excluded)
    if not chosen:
        raise ConfigError(
            "no host is left",
            where=f"--exclude {exclude}",
            hint=f"the inventory {source} has no other hosts",
        )
    count = f"{len(chosen)} of {len(inventory.hosts)} hosts"
    say(f"inventory: {source} ({why}), {count}")
    for note in inventory.notes:
        say(f"inventory: {one_line(note)}")
    variables = {item for host in chosen for item in host.env.items()}
    public = [item for item in variables if item[0] not in inventory.secrets]
    note_variables("inventory: env", public, say)
    with_devices = tuple(with_chosen(inventory, chosen, devices, devices_out))
    selection = Selection(
        project, inventory, with_devices, source, remembered, is_default=why == DEFAULT
    )
    for name, listed in selection.devices.items():
        say(f"devices: {name}: {listed}")
    return selection


def without_suspects(
    selection: Selection, keep: Collection[str] = (), *, say: Callable[[str], None]
) -> Selection:
    """Return the selection without hosts that are suspect or out; each is named with its reason,
    and in its notes.

    ``keep`` are hosts that stay although they are suspect. Raises ConfigError if none is left.
    """
    from orchestrator.errors import ConfigError
    from orchestrator.record.node_states import GOOD, SUSPECT, node_states
    from orchestrator.report.text import one_line

    known = node_states(selection.project.nodes)
    left_out = {
        host.name: state
        for host in selection.hosts
        if (state := known.get(host.name))
        and state.is_of(host.name, host.address)
        and state.state != GOOD
        and not (state.state == SUSPECT and host.name in keep)
    }
    if not left_out:
        return selection
    notes = [
        f"left out: {name} is {state.state} since {state.since}: {state.reason} ({state.evidence or 'orch nodes'})"
        for name, state in left_out.items()
    ]
    for note in notes:
        say(one_line(note))
    hosts = tuple(host for host in selection.hosts if host.name not in left_out)
    if not hosts:
        hint = "orch accept quick --with-suspects tests suspect nodes again; orch nodes --good takes any back"
        raise ConfigError(
            "expected at least one good host, all are suspect or out", where="orch nodes", hint=hint
        )
    return replace(selection, hosts=hosts, notes=(*selection.notes, *notes))


def note_variables(
    where: str, variables: Collection[tuple[str, str]], say: Callable[[str], None]
) -> None:
    """Name variables whose values look as if they were meant to be expanded on the node, and are
    not, and those that are almost variables of a library.
    """
    if not variables:
        return
    import re

    from orchestrator.feature import providers
    from orchestrator.inventory import takes_references

    for module in providers("variables"):
        for name, meant in module.misspelt_variables({name for name, _ in variables}).items():
            say(f"{where} {name} is not read by NCCL; did you mean {meant}?")
    names = {
        name
        for name, value in variables
        if not takes_references(name) and re.search(r"\$\{?[A-Za-z_]", value)
    }
    if names:
        text = "is passed as written, with its $; only variables whose names end in PATH are expanded on the node"
        say(f"{where} {', '.join(sorted(names))} {text}")


def _not_listed(inventory: Inventory, hosts: str) -> str:
    """Return the note for a list of addresses that an inventory does not have. Raises ConfigError
    for one that is the name of a group.
    """
    from orchestrator.errors import ConfigError, nearest
    from orchestrator.inventory import expand

    words = expand(hosts)
    for word in words:
        if word in inventory.groups:
            message = f"expected hosts, got {word}, a group of {inventory.source}"
            raise ConfigError(message, where=f"--hosts {hosts}", hint=f"write @{word}")
    alike = nearest(words[0], [host.name for host in inventory.hosts])
    return (
        f"inventory: {inventory.source} does not list {hosts}, so its settings do not apply{alike}"
    )


def _selects(inventory: Inventory, hosts: str) -> bool:
    """Return True if ``hosts`` is an expression over an inventory, False if it is a list of
    addresses: none of its names is in there. Raises ConfigError if some are.
    """
    from orchestrator.errors import ConfigError
    from orchestrator.inventory import expand

    try:
        inventory.select(hosts)
    except ConfigError:
        names = {name for host in inventory.hosts for name in (host.name, host.address)}
        has_group = any(word.strip().startswith("@") for word in hosts.split(","))
        if has_group or names & set(expand(hosts)):
            raise
        return False
    return True


def _is_file(text: str) -> bool:
    from orchestrator.inventory import is_path

    return is_path(text) or Path(text).exists()
