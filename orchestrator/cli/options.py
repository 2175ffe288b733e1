"""Options that several commands share, and the hosts that they select."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli import complete

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from orchestrator.inventory import Host, Inventory
    from orchestrator.nodes.cluster import Cluster
    from orchestrator.plan.folders import FrameworkFolder
    from orchestrator.record import BenchDir, Project
    from orchestrator.record.benchfile import BenchRecord
    from orchestrator.transport import Trust


def duration(option: str, least: float | None = None, most: float | None = None) -> Callable[[Any], float]:
    """Return the parser of an option that takes a duration, in seconds: ``30m``, ``90s``, ``1h30m``, or seconds alone.

    It raises ConfigError for anything else, and for a duration outside ``least`` to ``most``. A default is a number.
    """

    def parse(value: Any) -> float:
        from orchestrator.plan.words import MOST_S, seconds

        return seconds(value, option, least=least, most=most or MOST_S) if isinstance(value, str) else float(value)

    return parse


Hosts = Annotated[
    str,
    typer.Option(
        "--hosts",
        "-H",
        metavar="FILE|HOSTS",
        autocompletion=complete.hosts,
        help="Inventory file, hosts such as gpu[01-04],@group, or slurm.",
    ),
]
Exclude = Annotated[
    str,
    typer.Option(
        "--exclude", "-x", metavar="HOSTS", autocompletion=complete.hosts, help="Hosts to leave out, and devices: node2:gpu3."
    ),
]
AcceptNew = Annotated[bool, typer.Option("--accept-new", help="Accept and store host keys that are seen for the first time.")]
Bench = Annotated[
    str,
    typer.Argument(
        metavar="[BENCH]", autocompletion=complete.benches, help="Name, label or directory of a bench. Default: the latest."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")]
Templates = Annotated[
    list[Path] | None,
    typer.Option(
        "--templates",
        metavar="DIR",
        help="Directory with more framework folders; repeatable. Always looked at: ORCH_TEMPLATES, templates/ of the project.",
    ),
]

# Options of commands that run something. The commands set the defaults.
Budget = Annotated[str, typer.Option("--budget", metavar="TIME", help="Total time: 90s, 30m, 1h30m.")]
Container = Annotated[
    str, typer.Option("--container", metavar="ENGINE:IMAGE", help="Start launch scripts in this image; none: on the hosts.")
]
WarmupSteps = Annotated[int | None, typer.Option("--warmup-steps", min=0, help="Steps that are not measured.")]
Timeout = Annotated[
    float | None,
    typer.Option("--timeout", parser=duration("--timeout"), metavar="TIME", help="Time after which a run is stopped."),
]
Lease = Annotated[
    float,
    typer.Option(
        "--lease",
        parser=duration("--lease", 2, 86400),
        metavar="TIME",
        show_default="60s",
        help="Time that a node continues a run without contact to the controller.",
    ),
]
StopGrace = Annotated[
    float,
    typer.Option(
        "--stop-grace",
        parser=duration("--stop-grace", 0, 600),
        metavar="TIME",
        show_default="5s",
        help="Time between SIGTERM and SIGKILL.",
    ),
]
FirstLineTimeout = Annotated[
    float,
    typer.Option(
        "--first-line-timeout",
        parser=duration("--first-line-timeout", 1),
        metavar="TIME",
        show_default="10m",
        help="Most time until the first line of a log.",
    ),
]
StallTimeout = Annotated[
    float,
    typer.Option(
        "--stall-timeout",
        parser=duration("--stall-timeout", 1),
        metavar="TIME",
        show_default="10m",
        help="Most time between two lines of a log; a proven hang ends a run earlier.",
    ),
]
Telemetry = Annotated[
    bool, typer.Option("--telemetry/--no-telemetry", help="Sample power, clocks, load and errors of the nodes once a second.")
]
Wait = Annotated[bool, typer.Option("--wait", help="Wait for nodes that other runs hold; --wait 30m: at most that long.")]
WaitLimit = Annotated[str, typer.Option("--wait-limit", metavar="2h", help="Longest wait, with --wait. Default: no limit.")]
KeepGoing = Annotated[bool, typer.Option("--keep-going", help="Also start runs that would fail as an earlier one did.")]
Sign = Annotated[Path | None, typer.Option("--sign", metavar="KEY", help="Sign the seal with this key of ssh.")]
Detach = Annotated[bool, typer.Option("--detach", help="Run in the background; orch attach shows the progress.")]


ChangedSecrets = Annotated[
    bool, typer.Option("--changed-secrets", help="Although secrets have other values now: the former ones are not hidden.")
]


def known_secrets(record: BenchRecord, hosts: Sequence[Host], remedy: str) -> None:
    """Raise ConfigError if secrets have changed since a bench was planned: former values could not be hidden in its logs."""
    from orchestrator.errors import ConfigError

    if changed := record.planned_with.changed_secrets(hosts) if record.planned_with else []:
        message = f"expected the secrets that the bench was planned with, got other values of {', '.join(changed)}"
        hint = f"the former values cannot be recognised in logs: put them back until the logs are collected, or {remedy}"
        raise ConfigError(message, where=record.inventory, hint=hint)


def waiting_s(wait: bool, limit: str) -> float:
    """Return the most seconds to wait for held nodes: 0 without ``--wait``."""
    from orchestrator.plan.words import MOST_S, seconds

    if limit:
        return seconds(limit, "--wait-limit")
    return MOST_S if wait else 0.0


def template_bases(templates: Sequence[Path] | None) -> tuple[Path, ...]:
    """Return the folders of framework folders besides orch's own, for every command; the first takes precedence."""
    from orchestrator.record import Project

    return Project.here(os.environ).template_folders(templates or (), os.environ)


def open_frameworks(names: Sequence[str], bases: Sequence[Path]) -> list[FrameworkFolder]:
    """Return framework folders by name, and print on stderr which of them hide another one of the same name."""
    from orchestrator.plan.folders import hidden, open_framework

    folders = [open_framework(name, bases) for name in names]
    behind = hidden(bases)
    for folder in folders:
        if paths := behind.get(folder.framework.name):
            typer.echo(f"framework: {folder.framework.folder} hides {', '.join(map(str, paths))}", err=True)
    return folders


@dataclass(frozen=True, slots=True)
class Selection:
    """The hosts of a command and the inventory that they came from; ``remembered`` is what a later command names it by."""

    project: Project
    inventory: Inventory
    hosts: tuple[Host, ...]
    source: str
    remembered: str
    notes: tuple[str, ...] = ()

    @property
    def devices(self) -> dict[str, str]:
        """By host the devices that options have chosen, where these are not the inventory's."""
        known = {host.name: host.vars.get("cuda_visible_devices") for host in self.inventory.hosts}
        now = {host.name: host.vars.get("cuda_visible_devices") for host in self.hosts}
        return {name: str(value) for name, value in now.items() if value != known[name]}

    def trust(self, accept_new: bool) -> Trust:
        """Return how this project verifies host keys."""
        from orchestrator.cli.connecting import trust_of

        return trust_of(self.project, self.inventory.redaction(), accept_new)

    def cluster(self, accept_new: bool, hosts: Sequence[Host] = ()) -> Cluster:
        """Return connections, not opened yet, to the selected hosts or to some of the inventory's."""
        from orchestrator.nodes.cluster import Cluster

        return Cluster(hosts or self.hosts, self.trust(accept_new), self.inventory.redaction())


def select(hosts: str, exclude: str = "", bench_id: str = "", *, devices: Sequence[str] = (), source_of: str = "") -> Selection:
    """Return the hosts selected by the options and the project, and print on stderr which inventory was chosen.

    ``hosts`` is a file, an expression over the project's inventory, a list of addresses that are not in an inventory, or
    ``slurm`` or ``srun`` for the hosts of a job, which the bench ``bench_id`` may have submitted. ``source_of`` says where
    ``hosts`` come from if no option named them.
    """
    from orchestrator.cli.allocation import allocated
    from orchestrator.errors import ConfigError
    from orchestrator.inventory import expand, open_inventory
    from orchestrator.inventory.allocation import job_in
    from orchestrator.inventory.devices import chosen as with_chosen
    from orchestrator.inventory.devices import split_exclude
    from orchestrator.record import Project
    from orchestrator.record.submission import submission
    from orchestrator.report.text import one_line

    project = Project.here(os.environ)
    source, why = project.inventory_source(hosts, os.environ)
    why = source_of or why
    remembered, expression = source, ""
    if job_in(source):
        source, expression = allocated(project, source, bench_id if submission(project, bench_id) else "")
    elif hosts and not _is_file(hosts):
        default, default_why = named, _ = project.inventory_source("", os.environ)
        if job_in(default):
            default, _ = allocated(project, default)
        if Path(default).exists():
            inventory = open_inventory(default)
            try:
                inventory.select(hosts)
                source, why, expression = default, default_why, hosts
                remembered = named
            except ConfigError:
                # An expression with some names of the inventory is a mistake; only without any is it a list of addresses.
                names = {name for host in inventory.hosts for name in (host.name, host.address)}
                if any(word.strip().startswith("@") for word in hosts.split(",")) or names & set(expand(hosts)):
                    raise
    if why != "--hosts" and _is_file(source) and not Path(source).exists():
        hint = "name a file or hosts with --hosts, or write this inventory"
        raise ConfigError("expected a file, there is none", where=f"{source} ({why})", hint=hint)
    inventory = open_inventory(source)
    excluded, devices_out = split_exclude(exclude)
    chosen = inventory.select(expression, excluded)
    if not chosen:
        raise ConfigError("no host is left", where=f"--exclude {exclude}", hint=f"the inventory {source} has no other hosts")
    count = f"{len(chosen)} of {len(inventory.hosts)} hosts"
    typer.echo(f"inventory: {source} ({why}), {count}", err=True)
    for note in inventory.notes:
        typer.echo(f"inventory: {one_line(note)}", err=True)
    shown = {item for host in chosen for item in host.env.items() if item[0] not in inventory.secrets}
    note_references("inventory: env", shown)
    with_devices = tuple(with_chosen(inventory, chosen, devices, devices_out))
    selection = Selection(project, inventory, with_devices, source, remembered)
    for name, listed in selection.devices.items():
        typer.echo(f"devices: {name}: {listed}", err=True)
    return selection


def note_references(where: str, variables: Iterable[tuple[str, str]]) -> None:
    """Name variables whose values look as if they were meant to be expanded on the node, and are not."""
    import re

    from orchestrator.inventory import takes_references

    names = {name for name, value in variables if not takes_references(name) and re.search(r"\$\{?[A-Za-z_]", value)}
    if names:
        text = "is passed as written, with its $; only variables whose names end in PATH are expanded on the node"
        typer.echo(f"{where} {', '.join(sorted(names))} {text}", err=True)


def _is_file(text: str) -> bool:
    return "/" in text or Path(text).exists()


def new_bench_id() -> str:
    """Return the name of a bench that is planned now: the time, and four random characters for benches of the same second."""
    import secrets
    import time

    return f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"


def new_seed() -> int:
    """Return a random seed of 32 bits."""
    import secrets

    return int.from_bytes(secrets.token_bytes(4), "big")


def print_json(value: Any) -> None:
    """Print one JSON value on standard output."""
    import json

    typer.echo(json.dumps(value, indent=2, sort_keys=True, allow_nan=False))


def find_bench(name: str) -> BenchDir:
    """Return the bench with this name, directory or label, the last one of an acceptance, or the latest of the project. Raise
    ConfigError if there is none."""
    from orchestrator.cli.acceptances import stage_of
    from orchestrator.errors import ConfigError
    from orchestrator.record import BenchDir, Project, latest

    stage = stage_of(name)
    if stage or name:
        return BenchDir.open(stage or bench_path(name))
    runs = Project.here(os.environ).runs
    newest = latest(runs)
    if newest is None:
        raise ConfigError("no bench yet", where=str(runs), hint="to create one: orch bench resnet50")
    return BenchDir.open(newest)


def bench_path(name: str) -> Path:
    """Return the folder of the bench with this name, directory or label. Raise ConfigError if there is none, or several.

    A directory comes first, then a name, then a label that only one bench of the project has.
    """
    from orchestrator.errors import ConfigError
    from orchestrator.record import Project
    from orchestrator.record.rundir import benches

    runs = Project.here(os.environ).runs
    folders = [path for path in (Path(name), runs / name) if _is_folder(path)]
    if any(_is_folder(path / "bench.json", file=True) for path in folders):
        return next(path for path in folders if _is_folder(path / "bench.json", file=True))
    labelled = [bench.path for bench in benches(runs) if bench.record().label == name]
    if len(labelled) > 1:
        names = ", ".join(path.name for path in labelled)
        raise ConfigError(f"{len(labelled)} benches have the label {name!r}", where=str(runs), hint=f"name one of {names}")
    if not (labelled or folders):
        listed = "orch status lists the benches; the path of a bench directory also works"
        hint = "unpack an archive with tar -xf, and use its directory" if name.endswith(".tar") else listed
        raise ConfigError(f"no bench {name!r}", where=str(runs), hint=hint)
    return (labelled or folders)[0]


def _is_folder(path: Path, *, file: bool = False) -> bool:
    try:
        return path.is_file() if file else path.is_dir()
    except (OSError, ValueError):  # a name too long, or with a NUL
        return False
