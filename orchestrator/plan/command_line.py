"""A training command as somebody types it, taken apart: what orch sets itself is left out, the rest
is kept.

>>> taken = training_command("torchrun --nproc_per_node 8 train.py --epochs 1 --batch-size 64", {"train.py"}.__contains__)
>>> taken.launcher, taken.script, taken.arguments
('torchrun', 'train.py', ('--epochs', '1', '--batch-size', '64'))
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace

from orchestrator.devices.vendor import device_variables
from orchestrator.errors import ConfigError
from orchestrator.inventory.reserved import PLACED

_WHERE = "--from-command"
_SCRIPT = "or put the command into a script and name that; single quotes pass a word to the program unchanged"
_PYTHON = re.compile(r"(?:.*/)?python[0-9.]*")
_TORCHRUN_VALUES = {
    "nnodes", "nproc_per_node", "node_rank", "master_addr", "master_port", "rdzv_backend", "rdzv_endpoint", "rdzv_id",
    "rdzv_conf", "max_restarts", "monitor_interval", "start_method", "role", "log_dir", "r", "redirects", "t", "tee",
    "local_ranks_filter", "local_addr", "logs_specs",
}  # fmt: skip
_TORCHRUN_FLAGS = {"standalone", "use_env", "run_path", "m", "module", "no_python"}
_LAUNCHERS = ("mpirun", "mpiexec", "srun", "horovodrun", "deepspeed", "accelerate", "ssh", "sbatch")
_PARTS = re.compile(
    r"""\\.|'[^']*'|(?P<double>"(?:\\.|[^"\\])*")|(?P<operator>2>&1|&&|\|\||>>|\$\(|[|&;<>()`])|\$(?=[\w{?@#!$-])|\*""",
    re.DOTALL,
)
_IN_DOUBLE = re.compile(r"\\.|(?P<operator>\$\(|`)|\$(?=[\w{?@*#!$-])", re.DOTALL)
_MARKS = {"$": "\ue000", "*": "\ue001"}
"""What stands for a character that a shell would replace, until it is known whether its word is
kept.
"""
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class TrainingCommand:
    """A training command, taken apart.

    ``launcher`` is torchrun, python or program. One of ``script``, ``module`` and ``program`` is
    set; a script is a payload if ``is_here``. ``flags`` go to the interpreter, ``shell`` runs a
    program that is a shell script, and ``env`` holds the variables set in front of the command.
    ``inputs`` are the arguments, or the parts after their ``=``, that name a file here.
    ``left_out`` is what orch sets in each run by itself.
    """

    launcher: str
    script: str = ""
    module: str = ""
    program: str = ""
    is_here: bool = False
    flags: tuple[str, ...] = ()
    shell: str = ""
    arguments: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    inputs: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


def training_command(text: str, is_file: Callable[[str], bool]) -> TrainingCommand:
    """Take a command apart. ``is_file`` tells whether a name is a file here.

    Raises ConfigError for a command that is none, needs a shell, or starts through a launcher that
    cannot be translated.
    """
    command = _verify_unmarked(_take_apart(_PARTS.sub(_mark, text), is_file))
    values = [
        value if equals else word
        for word in command.arguments
        for _, equals, value in [word.partition("=")]
    ]
    # An absolute path is one of every node.
    inputs = [
        value
        for value in values
        if value and not value.startswith(("/", "~", "-")) and is_file(value)
    ]
    return replace(command, inputs=tuple(dict.fromkeys(inputs)))


def _take_apart(text: str, is_file: Callable[[str], bool]) -> TrainingCommand:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"expected a command, got {str(error).lower()}", where=_WHERE) from None
    env: list[tuple[str, str]] = []
    left_out = []
    while words and (match := _ASSIGNMENT.fullmatch(words[0])):
        if match[1] in PLACED or match[1] in device_variables():
            left_out.append(words[0])
        else:
            env.append((match[1], match[2]))
        words = words[1:]
    if not words:
        raise ConfigError("expected a command such as 'torchrun train.py', got none", where=_WHERE)
    name = words[0].rsplit("/", 1)[-1]
    if name in _LAUNCHERS:
        hint = "give the command that each rank runs, such as 'python train.py'; orch starts the ranks and sets their variables"
        raise ConfigError(
            f"expected a command without a launcher of its own, got {name}", where=_WHERE, hint=hint
        )
    flags = []
    rest = words[1:]
    if name == "torchrun":
        launcher = "torchrun"
    elif _PYTHON.fullmatch(words[0]):
        launcher = "python"
    else:
        launcher = "program"
    if launcher == "python":
        if words[0] not in ("python", "python3"):
            left_out.append(words[0])
        while rest and rest[0].startswith("-") and rest[0] not in ("-m", "-c", "-"):
            flags.append(rest.pop(0))
        if rest[:1] == ["-m"] and rest[1:2] in (
            ["torch.distributed.run"],
            ["torch.distributed.launch"],
        ):
            launcher, rest = "torchrun", rest[2:]
    is_module = False
    if launcher == "torchrun":
        rest, dropped, is_module, has_python = _without_torchrun(rest)
        left_out += dropped
        launcher = "torchrun" if has_python else "program"
        if not has_python:
            words = rest
            rest = rest[1:]
    if launcher == "program":
        if not words:
            raise ConfigError("expected a program, got none", where=_WHERE)
        shell = name if name in ("bash", "sh") and rest and is_file(rest[0]) else ""
        if shell:
            words, rest = rest, rest[1:]
        here = is_file(words[0])
        if not here and "/" in words[0] and not words[0].startswith(("/", "~")):
            raise _no_file(words[0])
        return TrainingCommand(
            "program",
            program=words[0],
            is_here=here,
            shell=shell,
            arguments=tuple(rest),
            env=tuple(env),
            left_out=tuple(left_out),
        )
    if launcher == "python" and rest[:1] == ["-m"]:
        is_module, rest = True, rest[1:]
    if not rest or (rest[0].startswith("-") and not is_module):
        raise ConfigError(
            f"expected a script, got {rest[0] if rest else 'none'}",
            where=_WHERE,
            hint="such as: torchrun train.py",
        )
    common = {
        "flags": tuple(flags),
        "arguments": tuple(rest[1:]),
        "env": tuple(env),
        "left_out": tuple(left_out),
    }
    if is_module:
        return TrainingCommand(launcher, module=rest[0], **common)  # type: ignore[arg-type]
    here = is_file(rest[0])
    if not here and not rest[0].startswith(("/", "~")):
        raise _no_file(rest[0])
    return TrainingCommand(launcher, script=rest[0], is_here=here, **common)  # type: ignore[arg-type]


def _mark(part: re.Match[str]) -> str:
    """Return a part of a command with `_MARKS` for a variable outside single quotes, and for a
    ``*`` outside all quotes. Raises ConfigError for what only a shell can do."""
    if part["operator"]:
        raise ConfigError(
            f"expected one command, got {part['operator']!r}",
            where=_WHERE,
            hint=_SCRIPT.removeprefix("or "),
        )
    if part.re is _PARTS and part["double"]:
        return _IN_DOUBLE.sub(_mark, part["double"])
    if part.re is _IN_DOUBLE and part[0] in ("\\$", "\\`"):  # as a shell does, and shlex does not
        return part[0][1]
    return _MARKS.get(part[0], part[0])


def _unmark(word: str) -> str:
    for character, mark in _MARKS.items():
        word = word.replace(mark, character)
    return word


def _verify_unmarked(command: TrainingCommand) -> TrainingCommand:
    """Return a command without marks. Raises ConfigError if one is in a word that the program gets."""
    kept = (
        command.script,
        command.module,
        command.program,
        *command.flags,
        *command.arguments,
        *dict(command.env).values(),
    )
    for word in kept:
        if _unmark(word) != word:
            hint = (
                f"write the value, {_SCRIPT}"
                if _MARKS["$"] in word
                else _SCRIPT.removeprefix("or ")
            )
            raise ConfigError(
                f"expected a word without shell syntax, got {_unmark(word)!r}",
                where=_WHERE,
                hint=hint,
            )
    return replace(command, left_out=tuple(map(_unmark, command.left_out)))


def _no_file(name: str) -> ConfigError:
    hint = "run this command in the folder of the file, or give its absolute path on every node"
    return ConfigError(f"expected a file, found no {name} here", where=_WHERE, hint=hint)


def _without_torchrun(words: list[str]) -> tuple[list[str], list[str], bool, bool]:
    """Return the words after torchrun's own options, those options, whether a module follows, and
    whether Python runs it.
    """
    dropped = []
    is_module, has_python = False, True
    while words and words[0].startswith("-"):
        name, equals, _ = words[0].lstrip("-").partition("=")
        key = name.replace("-", "_")
        if key in ("m", "module"):
            is_module, words = True, words[1:]
        elif key == "no_python":
            has_python, words = False, words[1:]
        elif key in _TORCHRUN_VALUES and not equals:
            dropped.append(" ".join(words[:2]))
            words = words[2:]
        elif key in _TORCHRUN_VALUES | _TORCHRUN_FLAGS:
            dropped.append(words[0])
            words = words[1:]
        else:
            hint = "the options of torchrun come before the script, those of the script after it"
            raise ConfigError(
                f"expected an option of torchrun, got {words[0]}", where=_WHERE, hint=hint
            )
    return words, dropped, is_module, has_python
