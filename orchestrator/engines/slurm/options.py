"""The options of sbatch: their names, the forms of a time, and the GPUs that they ask for.

sbatch says itself what it does not know, but only when a job is submitted: a plan is made before, and
an option that orch misses makes it a plan for other hosts. Options of a site's plug-ins, which may
have any name, are passed on.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches

from orchestrator.errors import ConfigError
from orchestrator.plan.option_values import seconds

_LONG = """account acctg-freq array batch bb bbf begin chdir cluster-constraint clusters comment constraint
    container container-id contiguous core-spec cores-per-socket cpu-freq cpus-per-gpu cpus-per-task
    deadline delay-boot dependency distribution error exclude exclusive export export-file extra
    extra-node-info get-user-env gid gpu-bind gpu-freq gpus gpus-per-node gpus-per-socket gpus-per-task
    gres gres-flags hint hold ignore-pbs input job-name kill-on-invalid-dep licenses mail-type mail-user
    mcs-label mem mem-bind mem-per-cpu mem-per-gpu mincpus network nice no-kill no-requeue nodefile
    nodelist nodes ntasks ntasks-per-core ntasks-per-gpu ntasks-per-node ntasks-per-socket open-mode
    output overcommit oversubscribe parsable partition power prefer priority profile propagate qos quiet
    reboot requeue reservation resv-ports segment signal sockets-per-node spread-job stepmgr switches
    test-only thread-spec threads-per-core time time-min tmp tres-bind tres-per-job tres-per-node
    tres-per-socket tres-per-task uid use-min-nodes verbose wait wait-all-nodes wckey wrap"""
_NAMES = frozenset(_LONG.split())
_FREE = ("comment", "chdir", "extra", "mail-user")
"""Options with any text."""
_CLOSE = 0.82
"""Below, ``container-image`` of pyxis would be a misspelt ``container-id``."""
_OF_GPUS = re.compile(r"(?:gres[/:])?gpu(?:[:=](?![0-9]+$)[^:=]+)?(?:[:=]([0-9]{1,6}))?")
_NEARLY_GPUS = re.compile(r"((?:gres[/:])?)gpus?((?:[:=].*)?)", re.IGNORECASE)
_OF_NODES = ("gpus-per-node", "gres", "tres-per-node")
_OF_TASKS = ("gpus-per-task", "tres-per-task")
_OF_OTHERS = ("gpus", "gpus-per-socket", "tres-per-job", "tres-per-socket")
_BARE = ("gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket")
"""Options whose values are GPUs without the word."""
_DURATION = re.compile(r"(?=.*[smhd])[\d.smhd]+")
_TIME = re.compile(r"\d+(?::\d+){0,2}|\d+-\d+(?::\d+){0,2}|infinite|unlimited", re.IGNORECASE)


def refuse_misspelt(name: str) -> None:
    """Raise ConfigError for a name that is almost an option of sbatch, or the beginning of one."""
    if name in _NAMES:
        return
    begun = sorted((known for known in _NAMES if known.startswith(name)), key=len)
    swapped = [known for known in _NAMES if sorted(known) == sorted(name)]
    meant = [*get_close_matches(name, sorted(_NAMES), 1, _CLOSE), *swapped, *begun]
    if meant:
        raise ConfigError(
            f"expected an option of sbatch, got {name!r}",
            where="--slurm",
            hint=f"did you mean {meant[0]!r}? write its whole name",
        )


def refuse_joined(name: str, value: str) -> None:
    """Raise ConfigError for a value with another option in it, as of ``-p gpu,time=1h``."""
    inside = [other for other in re.findall(r",\s*([a-z-]+)=", value) if other in _NAMES]
    if inside and name not in _FREE:
        hint = f"separate the options of a command line by spaces: --{inside[0]}=…"
        message = f"expected one option, got {inside[0]} in the value of {name}"
        raise ConfigError(message, where="--slurm", hint=hint)


def minutes(text: str, name: str) -> str:
    """Return a duration in whole minutes, as Slurm counts them; its own forms, such as ``2-12`` or
    ``1:30:00``, stay. Raises ConfigError for any other text.
    """
    if _DURATION.fullmatch(text):
        return str(math.ceil(seconds(text, f"--slurm {name}") / 60))
    if not _TIME.fullmatch(text):
        hint = f"as in {name}=90m, {name}=1h30m, or Slurm's own 90, 1:30:00 and 1-12"
        raise ConfigError(f"expected a time, got {text[:60]!r}", where=f"--slurm {name}", hint=hint)
    return text


def refuse_gpus(asked: Mapping[str, str]) -> None:
    """Raise ConfigError for GPUs that are asked for in two ways, or by another word than Slurm's."""
    for name in ("gres", "tres-per-node", "tres-per-task"):
        for part in parts(asked.get(name, "")):
            match = _NEARLY_GPUS.fullmatch(part)
            if match and not _OF_GPUS.fullmatch(part):
                message = f"expected gpu:N or gpu:TYPE:N, got {part[:60]!r}"
                hint = f"did you mean {name}={match[1].lower()}gpu{match[2]}?"
                raise ConfigError(message, where=f"--slurm {name}", hint=hint)
    given = [name for name in _OF_NODES if _counts(asked, [name])]
    if len(given) > 1:
        message = f"expected the GPUs of a node once, got {' and '.join(given)}"
        raise ConfigError(message, where="--slurm", hint=f"leave out {given[-1]}")


def gpus_of_node(asked: Mapping[str, str]) -> int | None:
    """Return the GPUs of a node that options of sbatch ask for, as ``8``, ``a100:8`` or
    ``gpu:a100:8(S:0-1)``; None where Slurm decides how many of a job's GPUs a node has.

    >>> [gpus_of_node({"gres": text}) for text in ("gpu", "gpu:2", "gpu:tesla:2(S:0-1)", "gres/gpu:h100:8,tmp:3", "gpu=4")]
    [1, 2, 2, 8, 4]
    >>> gpus_of_node({"gpus-per-task": "a100:2", "ntasks-per-node": "4"})
    8
    """
    if counts := _counts(asked, _OF_NODES):
        return sum(counts)
    if counts := _counts(asked, _OF_TASKS):
        tasks = asked.get("ntasks-per-node", "")
        return sum(counts) * int(tasks) if tasks.isdecimal() and "ntasks" not in asked else None
    if any(name in asked for name in _OF_OTHERS):
        return None
    return 0


def _counts(asked: Mapping[str, str], names: Iterable[str]) -> list[int]:
    """Return the numbers of GPUs, of each type one, in the values of some options."""
    texts = [
        f"gpu:{part}" if name in _BARE else part
        for name in names
        for part in parts(asked.get(name, ""))
    ]
    return [int(match[1] or 1) for match in map(_OF_GPUS.fullmatch, texts) if match]


def parts(text: str) -> list[str]:
    """Return the parts of a list of generic resources, without the sockets or devices that stand
    behind them in brackets.
    """
    return [part for part in re.sub(r"\([^()]*\)", "", text).split(",") if part]
