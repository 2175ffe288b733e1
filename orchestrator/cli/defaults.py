"""Defaults of options in files of the user and of the project, and the line that names the ones
that count.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from typing import TYPE_CHECKING, Any, NoReturn

import typer
import typer.core

from orchestrator.cli.conversion import FewConversions
from orchestrator.errors import OrchError

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping

    from orchestrator.record.defaults import Default

_RUNNING = ("accept", "bench", "tune", "bisect", "resume")
# For other options the last value counts, so words after an alias override its own.
_ONCE = {"exclude", "hosts", "file"}
_TIME = r"[0-9.]+[smhd][0-9.smhd]*"


class Command(FewConversions, typer.core.TyperCommand):
    """A command whose options fall back to defaults in files, and which says on stderr which of
    them it uses.
    """

    def make_context(
        self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any
    ) -> Any:
        """Return the context of the command, in which the defaults are known. Raises ConfigError
        for a file with a fault.
        """
        args = _with_limit(args)
        if not {"-h", "--help"} & set(args) and not extra.get("resilient_parsing"):
            extra["default_map"] = self._values(_here())
        return super().make_context(info_name, args, parent, **extra)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words of the command. Raises ConfigError for machines or a file that are chosen
        twice.
        """
        if not ctx.resilient_parsing:
            try:
                order = self.make_parser(ctx).parse_args(list(args))[2]
            except Exception as error:
                # The class depends on the version of typer; only the error of an unknown option has
                # possibilities.
                if hasattr(error, "possibilities") and any(
                    _key(param) == "set" for param in self.params
                ):
                    of_framework = f"--set {str(error.option_name).lstrip('-').replace('-', '_')}=…"  # type: ignore[attr-defined]
                    error.possibilities = [*(error.possibilities or ()), of_framework]
                raise
            for key, count in Counter(map(_key, order)).items():
                if count > 1 and key in _ONCE:
                    _refuse_again(key)
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            # Where typer checks numbers with pydantic, its message lacks the number.
            if hasattr(error, "message") and (faults := getattr(error.__cause__, "errors", None)):
                error.message += f", got {str(faults()[0]['input'])!r}"
            raise

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options under the headings of their rows, if they have some; others come first."""
        if not any(getattr(param, "rich_help_panel", None) for param in self.params):
            super().format_options(ctx, formatter)
            return
        from orchestrator.options import GROUPS

        groups: dict[str, list[tuple[str, str]]] = {name: [] for name in ("Arguments", *GROUPS)}
        for param in self.get_params(ctx):
            if record := param.get_help_record(ctx):
                of_all = GROUPS[-1] if param.name == "help" else GROUPS[0]
                name = getattr(param, "rich_help_panel", None) or of_all
                if param.param_type_name == "argument":
                    name = "Arguments"
                groups.setdefault(name, []).append(record)
        for name, records in groups.items():
            if records:
                with formatter.section(name):
                    formatter.write_dl(records)

    def invoke(self, ctx: Any) -> Any:
        """Print the defaults that apply, and run the command. If it can do without hosts that
        cannot be reached, their errors say how.
        """
        defaults = _here() if ctx.default_map else {}
        sources = {
            _key(param): ctx.get_parameter_source(param.name) for param in self.params if param.name
        }
        for key, name in {_key(param): param.name for param in self.params}.items():
            # Left empty by an unset variable, as in --hosts "$PBS_NODEFILE": the user does not mean
            # the default.
            if (
                key
                and (source := sources[key])
                and source.name == "COMMANDLINE"
                and ctx.params.get(name) == ""
            ):
                _refuse_empty(key)
        taken = {
            key: defaults[key]
            for key, source in sources.items()
            if key in defaults and source and source.name == "DEFAULT_MAP"
        }
        if (
            "wait_limit" in taken and not ctx.params["wait"]
        ):  # how long to wait is not yet that one waits
            del taken["wait_limit"]
            ctx.params["wait_limit"] = ""
        _say(taken)
        try:
            return super().invoke(ctx)
        except OrchError as error:
            if ctx.params.get("skip_unreachable") is False:
                _offer_to_skip(error)
            raise

    def _values(self, defaults: Mapping[str, Default]) -> dict[str, Any]:
        from orchestrator.record.defaults import option_values

        of_commands = ("all", "runs") if self.name in _RUNNING else ("all",)
        values = option_values(defaults, of_commands)
        names = {_key(param): str(param.name) for param in self.params}
        return {names[key]: value for key, value in values.items() if key in names}


def _offer_to_skip(error: OrchError) -> None:
    for single in error.errors:
        if single.kind == "host_unreachable" and not single.is_of_all:
            single.hint = f"{single.hint} to go on without it: --skip-unreachable".lstrip()


def _with_limit(args: list[str]) -> list[str]:
    """Return the words with ``--wait 30m`` and ``--wait=30m`` as ``--wait --wait-limit 30m``: the
    time may be left out.
    """
    words: list[str] = []
    for word in args:
        name, equals, limit = word.partition("=")
        if name == "--wait" and equals:
            words += ["--wait", "--wait-limit", limit]
        elif words[-1:] == ["--wait"] and re.fullmatch(_TIME, word):
            words += ["--wait-limit", word]
        else:
            words.append(word)
    return words


def _refuse_empty(key: str) -> NoReturn:
    from orchestrator.errors import ConfigError

    hint = "is the shell variable that should supply it set? omit the option to use its default"
    raise ConfigError(
        "expected a value, got an empty text", where=f"--{key.replace('_', '-')}", hint=hint
    )


def _refuse_again(key: str) -> NoReturn:
    from orchestrator.errors import ConfigError

    hint = "" if key == "file" else "write several machines as one word, separated by commas"
    raise ConfigError("expected the option once, got it again", where=f"--{key}", hint=hint)


def _key(param: Any) -> str:
    """Return the key of an option: its long name, with ``_`` for ``-``."""
    return next((name[2:].replace("-", "_") for name in param.opts if name.startswith("--")), "")


def _here() -> dict[str, Default]:
    from orchestrator.record import Project

    return Project.here(os.environ).defaults(os.environ)


def choices() -> dict[str, tuple[Any, str, str]]:
    """Return the defaults that a run file may have too, as `orchestrator.record.defaults.choices`.
    Raises ConfigError.
    """
    from orchestrator.record.defaults import choices as of_files

    return of_files(_here())


def say_choices(used: Container[str]) -> None:
    """Print on stderr which of the defaults that a run file may have too are used, by its names."""
    from orchestrator.record.defaults import CHOICES

    defaults = _here()
    _say({key: defaults[key] for key, name in CHOICES.items() if name in used})


def _say(used: Mapping[str, Default]) -> None:
    by_origin: dict[str, list[str]] = {}
    for key, default in used.items():
        by_origin.setdefault(default.origin, []).append(
            f"{key}={_format_value(key, default.value)}"
        )
    for origin, words in by_origin.items():
        typer.echo(f"defaults: {', '.join(words)} ({origin})", err=True)


def _format_value(key: str, value: Any) -> str:
    from orchestrator.plan.option_values import shortest
    from orchestrator.record.defaults import KEYS

    if KEYS[key].kind == "duration":
        return shortest(value)
    listed: Iterable[Any] = value if isinstance(value, tuple) else (value,)
    return ",".join(str(item).lower() if isinstance(item, bool) else str(item) for item in listed)
