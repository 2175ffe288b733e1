"""The job that ``orch bench --slurm`` submits, as data: options for sbatch, and the script that
holds the nodes.

The script does nothing with the nodes. It ends the job when no step has run for a while: then the
controller is gone, and all runs that it left have ended. Steps are the controller's own, so the
nodes need no file of it and no connection to it.

>>> wanted = parse_job("partition=gpu,time=1.5h,gpus-per-node=8", nodes=4)
>>> wanted.options
('--partition=gpu', '--time=90', '--gpus-per-node=8', '--nodes=4', '--ntasks-per-node=1')
>>> wanted.argv("20261124-120000-ab12")[:3]
['sbatch', '--parsable', '--job-name=orch-20261124-120000-ab12']
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from orchestrator.engines.slurm.options import (
    gpus_of_node,
    minutes,
    refuse_gpus,
    refuse_joined,
    refuse_misspelt,
)
from orchestrator.errors import ConfigError, nearest
from orchestrator.inventory import Host, expand, fold

IDLE_S = 120
"""Seconds without a step after which the script lets the nodes go."""

_GPUS = (8, 4, 2, 1, 6, 10, 16, 64)
"""GPUs that the job may have of a node where its options do not say so, the usual number first."""
_DEVICES = "cuda_visible_devices"
_OPTION = re.compile(r"[a-z][a-z0-9-]*")
_OWN = {
    "job-name": "orch finds the job by its name",
    "output": "the job writes nothing; logs are in the bench's folder",
    "error": "the job writes nothing; logs are in the bench's folder",
    "requeue": "a requeued job would hold nodes for a bench that has ended",
    "no-requeue": "orch always sets it",
    "no-kill": "orch always sets it",
    "array": "one job runs all cells of the bench",
    "wrap": "the script is orch's own",
    "parsable": "orch always sets it",
    "export": "set variables of runs with --env, or env: in the inventory",
    "wait": "orch waits for the job itself",
    "test-only": "orch bench --dry-run submits nothing",
}
_FLAGS = (
    "exclusive",
    "oversubscribe",
    "contiguous",
    "spread-job",
    "use-min-nodes",
    "reboot",
    "hold",
    "ignore-pbs",
    "overcommit",
    "stepmgr",
)
_SHORT = {
    "A": "account", "a": "array", "b": "begin", "C": "constraint", "c": "cpus-per-task", "D": "chdir", "d": "dependency",
    "e": "error", "F": "nodefile", "G": "gpus", "J": "job-name", "L": "licenses", "M": "clusters", "m": "distribution",
    "N": "nodes", "n": "ntasks", "o": "output", "p": "partition", "q": "qos", "S": "core-spec", "t": "time", "w": "nodelist",
    "x": "exclude",
}  # fmt: skip
_SHORT_FLAGS = {"H": "hold", "s": "oversubscribe", "W": "wait", "k": "no-kill", "O": "overcommit"}
"""The short options of sbatch, with and without a value."""
_COMMON = (
    "account", "constraint", "cpus-per-task", "exclude", "gpus-per-node", "gres", "mem", "nodelist", "nodes", "ntasks-per-node",
    "partition", "qos", "reservation", "switches", "time",
)  # fmt: skip
_SCRIPT = f"""#!/bin/sh
# Holds the nodes of a bench of orch for its controller, and lets them go when no step has run for {IDLE_S} s.
idle=0
while [ "$idle" -lt {IDLE_S} ]; do
    sleep 5
    idle=$((idle + 5))
    steps=$(squeue --steps --noheader --jobs="$SLURM_JOB_ID" --format=%i) || {{ idle=0; continue; }}
    if printf '%s\\n' "$steps" | grep -q '\\.[0-9][0-9]*$'; then idle=0; fi
done
"""


@dataclass(frozen=True, slots=True)
class JobWanted:
    """``options`` of sbatch as written on its command line."""

    options: tuple[str, ...]

    @property
    def script(self) -> str:
        """The batch script."""
        return _SCRIPT

    def argv(self, bench_id: str) -> list[str]:
        """Return the command that submits the job of a bench; the script goes to its standard
        input.
        """
        fixed = (
            "--no-requeue",
            "--no-kill",
            "--output=/dev/null",
            "--error=/dev/null",
            "--export=PATH,SLURM_CONF",
        )
        return ["sbatch", "--parsable", f"--job-name={job_name(bench_id)}", *fixed, *self.options]

    @property
    def hosts(self) -> tuple[Host, ...]:
        """Stand-ins for the hosts that Slurm will choose: the names of ``nodelist`` if complete,
        else ranks.

        Each has the resources that the job asks for per node; ``gpus`` is None if their number is
        not given. Raises ConfigError for an invalid number of nodes.
        """
        asked, most = self._asked, self._most
        if not most:
            raise ConfigError(
                f"expected a number of nodes, got {asked['nodes']!r}", where="--slurm"
            )
        names = self.host_names or [f"slurm-{rank}" for rank in range(most)]
        tasks = asked.get("ntasks-per-node", "")
        slots = int(tasks) if tasks.isdecimal() else 1
        return tuple(
            Host(name, name, gpus=gpus_of_node(asked), slots=slots, transport="srun")
            for name in names
        )

    @property
    def _asked(self) -> dict[str, str]:
        return _values(self.options)

    @property
    def _most(self) -> int:
        most = self._asked["nodes"].rpartition("-")[2]
        return int(most) if most.isdecimal() else 0

    @property
    def host_names(self) -> list[str]:
        """The hosts of the job by name, if ``nodelist`` lists as many as there will be; else none."""
        listed = expand(self._asked["nodelist"]) if "nodelist" in self._asked else []
        return listed if len(listed) == self._most else []

    def possible_hosts(
        self, listed: Sequence[Host], *, devices_known: bool = True
    ) -> Iterator[tuple[Host, ...]]:
        """Yield possible hosts of the job, the likeliest first.

        First they are like each kind of host in the project's inventory (``listed``), then like
        none of them. Yield nothing if the number of nodes cannot be read, as in ``nodes=1k``.

        If the options give a number of GPUs, it applies. Otherwise it may be any: a partition or a
        variable of sbatch may add GPUs to a job. It is also unknown with ``exclusive``, or without
        ``devices_known`` (see ``--devices``).
        """
        if not self._most:
            return
        stand_ins, count = self.hosts, gpus_of_node(self._asked)
        named = [host for host in listed if host.name in self.host_names]
        likes = {_kind(host): host for host in reversed(named or listed)}
        for like in (*reversed(likes.values()), None):
            numbers = [] if count is None else [count or (like.gpus if like else 0)]
            if not count or "exclusive" in self._asked or not devices_known:
                numbers += _GPUS
            for gpus in dict.fromkeys(numbers):
                yield tuple(_like(like, host, gpus, bool(count)) for host in stand_ins)

    @property
    def text(self) -> str:
        """The options as ``--slurm`` takes them."""
        return ",".join(option.removeprefix("--") for option in self.options)

    @property
    def words(self) -> str:
        """The options as sbatch takes them."""
        return shlex.join(self.options)

    @property
    def wait_s(self) -> float:
        """As long as Slurm takes: it starts a job with all of its nodes or none."""
        return math.inf

    def on(self, hosts: Sequence[str]) -> JobWanted:
        """Return the same job on these hosts, for a bench that was planned with them."""
        kept = [
            option
            for option in self.options
            if option.partition("=")[0] not in ("--nodes", "--nodelist", "--exclude")
        ]
        return JobWanted((*kept, f"--nodes={len(hosts)}", f"--nodelist={fold(hosts)}"))


def _values(options: Iterable[str]) -> dict[str, str]:
    """Return the value of each option, empty for one without."""
    pairs = (option.removeprefix("--").partition("=") for option in options)
    return {name: value for name, _, value in pairs}


def _kind(host: Host) -> tuple[object, ...]:
    """Return the properties of a host that a plan may depend on.

    Hosts of one kind may differ in the values of their variables.
    """
    return (
        host.gpus,
        host.slots,
        host.vars.get(_DEVICES),
        tuple(sorted(host.vars)),
        tuple(sorted(host.container)),
    )


def _like(like: Host | None, host: Host, gpus: int | None, of_job: bool) -> Host:
    """Return a stand-in with what the inventory says of a host ``like`` it, and so many GPUs, of
    which the job decides (``of_job``) which they are."""
    if like is None:
        return replace(host, gpus=gpus)
    dropped = _DEVICES if of_job or gpus != like.gpus else ""
    own = {name: value for name, value in like.vars.items() if name != dropped}
    return replace(
        like, name=host.name, address=host.address, transport=host.transport, gpus=gpus, vars=own
    )


def job_name(bench_id: str) -> str:
    """Return the name of a bench's job, by which it is found if its number was lost."""
    return f"orch-{bench_id}"


def parse_job(text: str, nodes: int, spares: int = 0) -> JobWanted:
    """Return the job that ``partition=gpu,time=1h,…`` asks for: sbatch's long options, with
    ``time`` also as ``90m`` or ``1h``. They may be written as for sbatch too: ``--partition=gpu
    --gres=gpu:8 -t 10``.

    ``nodes`` is the largest number of nodes of the bench, 0 if it is not given; ``spares`` are
    asked for beside them. Raises ConfigError.
    """
    options: dict[str, str] = {}
    for word in _words(text):
        name, equals, value = word.partition("=")
        name = name.removeprefix("--")
        if (
            not _OPTION.fullmatch(name)
            or (not equals and name not in _FLAGS)
            or (equals and not value)
        ):
            hint = f"they are long options of sbatch{nearest(name, (*_COMMON, *_FLAGS))}"
            raise ConfigError(
                f"expected OPTION=VALUE,…, got {word[:60]!r}", where="--slurm", hint=hint
            )
        if name in _OWN:
            raise ConfigError(f"expected no {name}: {_OWN[name]}", where="--slurm")
        if name in options:
            raise ConfigError(f"{name} is set twice", where="--slurm")
        refuse_misspelt(name)
        refuse_joined(name, value)
        if name in ("time", "time-min"):
            value = minutes(value, name)
        options[name] = f"--{name}={value}" if equals else f"--{name}"
    refuse_gpus(_values(options.values()))
    if "nodes" not in options and not nodes:
        hint = "add --nodes or --shape, or nodes=4 to --slurm"
        raise ConfigError("expected the number of nodes", where="--slurm", hint=hint)
    most = options.get("nodes", "").removeprefix("--nodes=").rpartition("-")[2]
    least = (nodes or 1) + spares
    if most.isdecimal() and int(most) < least:
        fewer = "--spares" if spares else "--nodes and --shape"
        hint = f"raise it to {least}{', leave it out' if nodes else ''}, or lower {fewer}"
        beside = f" and its {'spare' if spares == 1 else f'{spares} spares'}" if spares else ""
        raise ConfigError(
            f"expected nodes for the largest run{beside}, {least}, got nodes={most}",
            where="--slurm",
            hint=hint,
        )
    options.setdefault("nodes", f"--nodes={least}")
    if "ntasks" not in options:  # beside it, one task a node would be the most
        options.setdefault("ntasks-per-node", "--ntasks-per-node=1")
    return JobWanted(tuple(options.values()))


def _words(text: str) -> Sequence[str]:
    """Return each option as ``NAME=VALUE`` or ``NAME``. Raises ConfigError for a text of words that
    are no options.

    >>> _words("nodelist=n[1,2],n5,time=1h"), _words("-p gpu,debug --gres gpu:8 -t10 --exclusive")
    (['nodelist=n[1,2],n5', 'time=1h'], ['partition=gpu,debug', 'gres=gpu:8', 'time=10', 'exclusive'])
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    words = " ".join(
        line.removeprefix("#SBATCH ") for line in lines if not re.match(r"#(?!SBATCH )", line)
    )
    try:
        flags = shlex.split(words)
    except ValueError as error:
        raise ConfigError(
            f"expected paired quotes, got {str(error).lower()}", where="--slurm"
        ) from None
    if ":" in flags or "hetjob" in flags:
        hint = "submit a job, and run a bench, for each part: --partition or --constraint chooses its nodes"
        raise ConfigError(
            "expected a job of one part, got a heterogeneous job", where="--slurm", hint=hint
        )
    if not any(flag.startswith("-") for flag in flags):
        return _split_options(words)
    found: list[str] = []
    waiting = ""
    for flag in flags:
        short = re.fullmatch(r"-([A-Za-z])(.*)", flag)
        if waiting and not flag.startswith("-"):
            found.append(f"{waiting}={flag}")
            waiting = ""
            continue
        if waiting:
            raise ConfigError(
                f"expected a value after --{waiting}, got {flag[:60]!r}", where="--slurm"
            )
        if short and short[1] in _SHORT_FLAGS and not short[2]:
            found.append(_SHORT_FLAGS[short[1]])
        elif short and short[1] in _SHORT:
            waiting = "" if short[2] else _SHORT[short[1]]
            found += [f"{_SHORT[short[1]]}={short[2].removeprefix('=')}"] if short[2] else []
        elif (
            flag.startswith("--")
            and "=" not in flag
            and flag.removeprefix("--") not in _FLAGS + tuple(_OWN)
        ):
            waiting = flag.removeprefix("--").rstrip(",")
        elif short or not flag.startswith("--") and "=" not in flag:
            hint = (
                "write partition=gpu,gres=gpu:8,time=10, or the options of sbatch as it takes them"
            )
            raise ConfigError(
                f"expected options of sbatch, got {flag[:60]!r}", where="--slurm", hint=hint
            )
        else:
            found += _split_options(flag.rstrip(","))
    return [*found, waiting] if waiting else found


def _split_options(text: str) -> list[str]:
    """Split at the commas that begin another option: ``nodelist=n[1,2],n5,time=1h`` has two."""
    words: list[str] = []
    for part in text.split(","):
        name = part.strip().partition("=")[0].removeprefix("--")
        begins = "=" in part and _OPTION.fullmatch(name) or part.strip() in _FLAGS
        if words and not begins:
            words[-1] += f",{part.strip()}"
        else:
            words.append(part.strip().removeprefix("--"))
    for word in words:
        if re.search(r"(?:\s|;\s*)[a-z][a-z0-9-]*(=|$)", word) and not word.startswith(
            ("comment=", "chdir=")
        ):
            apart = re.sub(r"[;\s]+", ",", word)
            hint = f"separate options by commas: {apart}"
            raise ConfigError(
                f"expected OPTION=VALUE,…, got {word[:60]!r}", where="--slurm", hint=hint
            )
    return words
