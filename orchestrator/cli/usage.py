"""Faults of a command line as the library reads it, in the form of every error: where, what was
expected, what came, a hint.

>>> _describe_expected("Input should be greater than or equal to 1, got '0'")
"expected a number of at least 1, got '0'"
>>> _describe_expected("Value error, 'x' is not one of 'a', 'b'., got 'x'")
"expected one of 'a', 'b', got 'x'"
>>> _describe_expected("70000 is not in the range 0<=x<=65535.")
"expected a number of at most 65535, got '70000'"
"""

from __future__ import annotations

import re
from typing import Any

from orchestrator.errors import ConfigError, closest, nearest

_OF_OTHERS = {
    "--dtype": "precision mixed-precision amp fp16 bf16 tf32 half",
    "--batch-size": "bs batch batchsize micro-batch-size per-device-train-batch-size",
    "--nodes": "nnodes num-nodes",
    "--gpus": "nproc-per-node num-gpus ngpus gpus-per-node ntasks-per-node ranks np",
    "--hosts": "inventory hostfile machinefile hostlist nodelist host",
    "--steps": "iters iterations num-iters max-steps",
    "--repeats": "runs trials",
    "--container": "image docker",
    "--slurm": "partition qos account gres",
}
_INSTEAD = {f"--{name}": option for option, names in _OF_OTHERS.items() for name in names.split()}
"""Options of other programs, by the option that does it here."""
_VALUES = (
    (re.compile(r".*valid int.*"), "a whole number"),
    (re.compile(r".*valid (?:number|float).*"), "a number"),
    (re.compile(r".*valid boolean.*"), "true or false"),
    (re.compile(r".*greater than or equal to (\S+)"), r"a number of at least \1"),
    (re.compile(r".*greater than (\S+)"), r"a number above \1"),
    (re.compile(r".*less than or equal to (\S+)"), r"a number of at most \1"),
    (re.compile(r".*is not one of (.+?)\.?"), r"one of \1"),
    (re.compile(r"Input should be (.+)"), r"\1"),
)
_GOT = re.compile(r"(.*), got ('.*')", re.DOTALL)
# Before typer 0.29, which Python 3.10 does not have, the value stands first.
_GOT_FIRST = re.compile(r"'?(.*?)'? (is not .*)", re.DOTALL)
_RANGE = re.compile(
    r"is not in the range (?:(?P<from>[^<]+)<=)?x(?:>=(?P<least>.+?)|<=(?P<most>.+?))?\.?"
)
_NO_COMMAND = re.compile(r"No such command '([^']*)'.*", re.DOTALL)
_EXTRA = re.compile(r"Got unexpected extra arguments?(?:\(s\))? \((.*)\)", re.DOTALL)


def usage_error(error: Any) -> ConfigError:
    """Return the error for a fault of the words of a command, given the library's exception."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    command = error.ctx.command_path if error.ctx else ""
    listed = f"{command} -h shows what it takes" if command else ""
    place = command.removeprefix("orch").strip()
    param = getattr(error, "param", None)
    name = _name(param) if param is not None else str(getattr(error, "option_name", "") or "")
    if "MissingParameter" in kinds:
        return ConfigError("expected a value, got none", where=name, hint=listed)
    if "NoSuchOption" in kinds:
        return ConfigError(
            f"expected one of its options, got {name}",
            where=place,
            hint=_nearest(error, name) or listed,
        )
    if "BadOptionUsage" in kinds and "requires" in error.message:
        return ConfigError("expected a value, got none", where=name, hint=listed)
    if "BadParameter" in kinds:
        return ConfigError(
            _describe_expected(error.message), where=name, hint="" if param is not None else listed
        )
    if found := _NO_COMMAND.match(error.message):
        commands = error.ctx.command.commands if error.ctx else {}
        close = nearest(found[1], commands).removeprefix("; ")
        return ConfigError(
            f"expected a command, got {found[1]!r}", where=place, hint=close or listed
        )
    if found := _EXTRA.match(error.message):
        return ConfigError(f"expected no further words, got {found[1]}", where=place, hint=listed)
    return ConfigError(f"expected other words: {error.message}", where=name or place, hint=listed)


def _name(param: Any) -> str:
    """Return how people write a parameter."""
    if param.param_type_name == "argument":
        return str(param.metavar or param.name).upper()
    return str(max(param.opts, key=len))


def _nearest(error: Any, name: str) -> str:
    """Return the hint for an option that a command does not have."""
    known = {option for param in error.ctx.command.params for option in param.opts}
    if (instead := _INSTEAD.get(name.replace("_", "-"))) in known:
        return f"did you mean {instead}?"
    begun = sorted(option for option in known if len(name) > 3 and option.startswith(name))
    # Where a command has options of frameworks, the possibilities end with --set NAME=…
    of_framework = [text for text in error.possibilities or () if text[:5] + name[:2] == "--set--"]
    close = begun or [*filter(None, [closest(name, known)]), *of_framework]
    return f"did you mean {' or '.join(close)}?" if close else ""


def _describe_expected(message: str) -> str:
    """Return the expected and the actual value, from a message about a value."""
    if not _GOT.fullmatch(message) and (first := _GOT_FIRST.fullmatch(message)):
        message = f"{_limit(*first.groups())}, got {first[1]!r}"
    found = _GOT.fullmatch(message)
    said, got = (found[1], f", got {found[2]}") if found else (message, "")
    for pattern, expected in _VALUES:
        if match := pattern.fullmatch(said):
            return f"expected {match.expand(expected)}{got}"
    return f"expected another value{got}: {said}"


def _limit(value: str, said: str) -> str:
    """Return which limit of a range a value has passed, or what else was said of it."""
    if not (limits := _RANGE.fullmatch(said)):
        return said
    least, most = limits["from"] or limits["least"], limits["most"]
    if least and float(value) < float(least):
        return f"Input should be greater than or equal to {least}"
    return f"Input should be less than or equal to {most}"
