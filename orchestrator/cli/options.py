"""Options that several commands share, and the hosts they lead to."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from orchestrator.inventory import Host, Inventory
    from orchestrator.record import BenchDir, Project
    from orchestrator.transport.ssh import Trust

# A node's timers hold no more, and a clock counts to no infinity.
_MOST_S = 1e9


def bounded(param: typer.CallbackParam, value: float | None) -> float | None:
    """Return seconds as they were given. Raises ConfigError for infinity, for what is no number, and for aeons."""
    from orchestrator.errors import ConfigError

    if value is not None and not value <= _MOST_S:
        raise ConfigError(f"expected seconds, at most {_MOST_S:.0f}, got {value:g}", where=param.opts[0])
    return value


Hosts = Annotated[
    str, typer.Option("--hosts", "-H", metavar="FILE|HOSTS", help="Inventory file, or hosts such as gpu[01-04],@group.")
]
Exclude = Annotated[str, typer.Option("--exclude", "-x", metavar="HOSTS", help="Hosts to leave out.")]
AcceptNew = Annotated[bool, typer.Option("--accept-new", help="Store host keys that are seen for the first time.")]
Bench = Annotated[str, typer.Argument(metavar="[BENCH]", help="A bench's name or directory; the latest one if not given.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")]
Templates = Annotated[Path | None, typer.Option("--templates", metavar="DIR", help="Further framework folders.")]

# Of commands that run something. The defaults stand with the commands.
Budget = Annotated[str, typer.Option("--budget", metavar="30m", help="Time for all: 90s, 30m, 2h.")]
WarmupSteps = Annotated[int | None, typer.Option("--warmup-steps", min=0, help="Steps that are not measured.")]
Timeout = Annotated[float | None, typer.Option("--timeout", callback=bounded, help="Seconds after which a run is stopped.")]
Lease = Annotated[
    float, typer.Option("--lease", min=2, max=86400, callback=bounded, help="Seconds a node runs on without a controller.")
]
StopGrace = Annotated[
    float, typer.Option("--stop-grace", min=0, max=600, callback=bounded, help="Seconds from terminate to kill.")
]
FirstLineTimeout = Annotated[
    float, typer.Option("--first-line-timeout", min=1, callback=bounded, help="Seconds until the first line of a log.")
]
StallTimeout = Annotated[
    float, typer.Option("--stall-timeout", min=1, callback=bounded, help="Seconds without a further line.")
]
Detach = Annotated[bool, typer.Option("--detach", help="Leave it running once it has begun; orch attach shows it.")]


@dataclass(frozen=True, slots=True)
class Selection:
    """The hosts of a command and where they came from."""

    project: Project
    inventory: Inventory
    hosts: tuple[Host, ...]
    source: str

    def trust(self, accept_new: bool) -> Trust:
        """Return how host keys are judged in this project."""
        from orchestrator.transport.ssh import Trust

        return Trust(store=self.project.known_hosts, accept_new=accept_new)


def select(hosts: str, exclude: str = "") -> Selection:
    """Return the hosts that the options and the project lead to, and say on stderr which inventory was chosen.

    ``hosts`` is a file, or an expression over the project's inventory, or else addresses that no inventory knows.
    """
    from orchestrator.errors import ConfigError
    from orchestrator.inventory import expand, open_inventory
    from orchestrator.record import Project

    project = Project.here(os.environ)
    source, why = project.inventory_source(hosts, os.environ)
    expression = ""
    if hosts and not _is_file(hosts):
        usual, usual_why = project.inventory_source("", os.environ)
        if Path(usual).exists():
            inventory = open_inventory(usual)
            try:
                inventory.select(hosts)
                source, why, expression = usual, usual_why, hosts
            except ConfigError:
                # A word that the inventory half knows is a slip; only what it knows nothing of are addresses of their own.
                names = {name for host in inventory.hosts for name in (host.name, host.address)}
                if "@" in hosts or names & set(expand(hosts)):
                    raise
    inventory = open_inventory(source)
    chosen = inventory.select(expression, exclude)
    if not chosen:
        raise ConfigError("no host is left", where=f"--exclude {exclude}", hint=f"the inventory {source} has none besides")
    count = f"{len(chosen)} of {len(inventory.hosts)} hosts"
    typer.echo(f"inventory: {source} ({why}), {count}", err=True)
    return Selection(project, inventory, chosen, source)


def _is_file(text: str) -> bool:
    return "/" in text or Path(text).exists()


def new_bench_id() -> str:
    """Return the name of a bench that is planned now: its time, and four characters against two in one second."""
    import secrets
    import time

    return f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"


def new_seed() -> int:
    """Return a seed by chance."""
    import secrets

    return int.from_bytes(secrets.token_bytes(4), "big")


def print_json(value: Any) -> None:
    """Print one JSON value on standard output."""
    import json

    typer.echo(json.dumps(value, indent=2, sort_keys=True, allow_nan=False))


def find_bench(name: str) -> BenchDir:
    """Return the bench of that name or directory, or the latest of the project. Raises ConfigError."""
    from orchestrator.errors import ConfigError
    from orchestrator.record import BenchDir, Project, latest

    runs = Project.here(os.environ).runs
    if name:
        path = Path(name) if _is_folder(Path(name)) else runs / name
        if not _is_folder(path):
            listed = "orch status lists them; a directory will do as well"
            hint = "unpack an archive with tar -xf, and give its directory" if name.endswith(".tar") else listed
            raise ConfigError(f"no bench {name!r}", where=str(runs), hint=hint)
        return BenchDir.open(path)
    newest = latest(runs)
    if newest is None:
        raise ConfigError("no bench yet", where=str(runs), hint="orch bench resnet50 makes one")
    return BenchDir.open(newest)


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):  # a name too long, or with a NUL
        return False
