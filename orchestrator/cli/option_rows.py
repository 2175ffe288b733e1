"""Options of a command line from the rows of `orchestrator.options`.

A command that shares options with `orch bench` takes them as one argument, by name, and declares
only its own:

    @takes("tune", budget="20m")
    def tune(model: Model, given: Given) -> None:
        limits = Limits.of_options(given)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from orchestrator.cli import complete, connection_log
from orchestrator.options import OPTIONS, BenchOption, long_form

Given = Mapping[str, Any]
"""The options of a command by the names of their rows."""

_TYPES: Mapping[str, Any] = {
    "text": str,
    "hosts": str,
    "texts": list[str] | None,
    "count": int | None,
    "flag": bool,
    "switch": bool,
    "duration": float | None,
    "path": Path | None,
    "paths": list[Path] | None,
}
_DEFAULTS: Mapping[str, Any] = {"text": "", "hosts": "", "flag": False, "switch": False}
_ONE_VALUE = ("tune",)
"""Commands that measure one configuration: a list of a bench is one value here."""


def duration(option: str, least: float | None = None, *, limit: str = "") -> Callable[[Any], float]:
    """Return the parser of an option that takes a duration, in seconds: ``30m``, ``90s``,
    ``1h30m``, or seconds alone.

    It raises ConfigError for anything else, and for a duration below ``least``, or beyond what the
    field ``limit`` of `Limits` may be. A default is a number.
    """

    def parse(value: Any) -> float:
        from orchestrator.plan import Limits

        if isinstance(value, str):
            return Limits.read(value, option, limit, least=least)
        return float(value)

    return parse


def option(name: str, **changes: Any) -> Any:
    """Return the option of a row for an annotation; ``changes`` are arguments of `typer.Option` in
    place of the row's.
    """
    row = OPTIONS[name]
    long = long_form(name)
    forms = [f"{long}/--no-{long[2:]}" if row.type == "switch" else long]
    if row.short:
        forms.append(row.short)
    arguments: dict[str, Any] = {"help": row.help}
    if row.metavar:
        arguments["metavar"] = row.metavar
    if row.shown:  # typer puts a text in place of a default in parentheses
        arguments["help"] += f"  [default: {row.shown}]"
    if row.type == "count":
        arguments["min"] = row.least
    if row.type == "duration":
        limit = row.default.limit if row.default else ""
        arguments["parser"] = duration(long, limit=limit)
    if row.completion:
        arguments["autocompletion"] = getattr(complete, row.completion)
    if row.callback:
        arguments |= {"callback": getattr(connection_log, row.callback), "is_eager": True}
    return typer.Option(*forms, **{**arguments, **changes})


def takes(command: str, **defaults: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options whose rows name it, but for those it declares itself, in its
    argument ``given``.

    ``defaults`` take the place of the rows' defaults.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        own = [
            parameter
            for parameter in inspect.signature(function, eval_str=True).parameters.values()
            if parameter.name != "given"
        ]
        names = {parameter.name for parameter in own}
        rows = {
            name: row
            for name, row in OPTIONS.items()
            if name not in names and (command == "bench" or command in row.others)
        }

        def run(**values: Any) -> None:
            given = {name: values.pop(name) for name in rows}
            function(**values, given=given)

        shared = [_parameter(name, row, command, defaults) for name, row in rows.items()]
        run.__name__, run.__doc__, run.__module__ = (
            function.__name__,
            function.__doc__,
            function.__module__,
        )
        run.__annotations__ = {}
        vars(run)["__signature__"] = inspect.Signature([*own, *shared])
        return run

    return decorate


def _parameter(
    name: str, row: BenchOption, command: str, defaults: Mapping[str, Any]
) -> inspect.Parameter:
    """Return an option as a parameter of a function, as typer reads it."""
    default = row.value if row.value is not None else _DEFAULTS.get(row.type)
    kind = _TYPES[row.type]
    changes: dict[str, Any] = {"rich_help_panel": row.group}
    if row.is_list and command in _ONE_VALUE and row.run_file:
        default, kind = None, row.run_file.types[0] | None
        changes["metavar"] = row.metavar.removesuffix(",…")
    if row.type == "count" and default is not None:
        kind = int
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=defaults.get(name, default),
        annotation=Annotated[kind, option(name, **changes)],
    )
