"""The commands of `orch` from the program itself: a manual page for man, and a page of the site.

python docs/reference.py man > orch.1
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from typer.core import TyperGroup

from orchestrator.cli.main import MODULES, whole
from orchestrator.errors import EXIT_STATUS
from orchestrator.version import __version__

SUMMARIES = {name: summary for commands in MODULES.values() for name, summary in commands.items()}
ENVIRONMENT = {
    "ORCH_PROJECT": "The folder of the project, in place of the current directory.",
    "ORCH_HOSTS": "The inventory, or hosts, where --hosts is not given.",
    "ORCH_TEMPLATES": "Folders of framework folders, separated by colons.",
}
FILES = {
    "orch.yaml, ~/.config/orch/config.yaml": "Defaults of options, of the project and of the user.",
    "inventory/cluster.yaml": "The inventory, where nothing else names one.",
    "runs/": "The benches of the project: one folder each, with all evidence.",
    ".orch/": "What the project remembers: host keys, the last deploy, states of nodes.",
}


@dataclass(frozen=True, slots=True)
class Entry:
    """A command: its name with that of its group, how it is used, what it does, and (form, help) of
    its options.
    """

    name: str
    usage: str
    help: str
    options: tuple[tuple[str, str], ...]


def entries() -> Iterator[Entry]:
    """Yield every command in the order of the help, those of a group after it."""
    program = whole()
    context = program.make_context("orch", [], resilient_parsing=True)
    for name, command in program.commands.items():
        yield from _entries(f"orch {name}", command, context)


def _entries(name: str, command: Any, parent: Any) -> Iterator[Entry]:
    context = type(parent)(command, info_name=name.rpartition(" ")[2], parent=parent)
    records = [
        record
        for param in command.get_params(context)
        if (record := param.get_help_record(context))
    ]
    options = [record for record in records if record[0].startswith("-")]
    usage = " ".join(command.collect_usage_pieces(context))
    yield Entry(name, f"{name} {usage}", (command.help or "").strip(), tuple(options))
    if isinstance(command, TyperGroup):
        for inner, below in command.commands.items():
            yield from _entries(f"{name} {inner}", below, context)


def man(date: str) -> str:
    """Return the manual page, orch(1), in the language of man(7)."""
    lines = [
        f'.TH ORCH 1 "{date}" "orch {__version__}" "User Commands"',
        ".SH NAME",
        "orch \\- benchmark deep-learning training on clusters, over SSH, Slurm or Kubernetes",
        ".SH SYNOPSIS",
        ".B orch",
        "[\\fIoptions\\fR] \\fIcommand\\fR [\\fIarguments\\fR]",
        ".SH DESCRIPTION",
        "Starts all nodes of a training at the same instant, watches them, collects every log,",
        "and computes throughput, speedup and scaling efficiency from the logs alone.",
        ".SH COMMANDS",
        *(
            line
            for name, summary in SUMMARIES.items()
            for line in (".TP", f"\\fB{name}\\fR", _roff(summary))
        ),
    ]
    for entry in entries():
        lines += [
            f".SH {_roff(entry.name.upper())}",
            f".B {_roff(entry.usage)}",
            ".PP",
            *_paragraphs(entry.help),
        ]
        lines += [
            line
            for option, text in entry.options
            for line in (".TP", f"\\fB{_roff(option)}\\fR", _roff(text or ""))
        ]
    sections = {
        "ENVIRONMENT": ENVIRONMENT,
        "FILES": FILES,
        "EXIT STATUS": {str(code): text for code, text in EXIT_STATUS.items()},
    }
    for title, rows in sections.items():
        lines += [f".SH {title}"]
        lines += [
            line
            for term, text in rows.items()
            for line in (".TP", f"\\fB{_roff(term)}\\fR", _roff(text))
        ]
    # Characters beyond ASCII by number: which encoding a page has is not said in it.
    return (
        re.sub(r"[^\x00-\x7f]", lambda match: f"\\[u{ord(match[0]):04X}]", "\n".join(lines)) + "\n"
    )


def markdown() -> str:
    """Return the page of the site."""
    lines = [
        "# Commands",
        "",
        "Made from the program itself: `orch COMMAND --help`, or `man orch` after `make man`.",
        "",
    ]
    for entry in entries():
        lines += [f"## {entry.name}", "", entry.help, "", "```text", entry.usage, "```", ""]
        if entry.options:
            lines += ["| option | |", "|---|---|"]
            lines += [
                f"| `{_cell(option)}` | {_escaped(text or '')} |" for option, text in entry.options
            ]
            lines += [""]
    return "\n".join(lines)


def _roff(text: str) -> str:
    """Return text as man shows it: backslashes, dashes, and a dot or quote at the start of a line."""
    escaped = re.sub(r"\s+", " ", text).replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{escaped}" if escaped[:1] in (".", "'") else escaped


def _paragraphs(text: str) -> list[str]:
    return [line for paragraph in re.split(r"\n\s*\n", text) for line in (".PP", _roff(paragraph))][
        1:
    ]


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", "\\|")


def _escaped(text: str) -> str:
    return re.sub(r"([<>|*_`])", r"\\\1", re.sub(r"\s+", " ", text))


if __name__ == "__main__":
    if sys.argv[1:2] != ["man"]:
        sys.exit(f"expected man, got {sys.argv[1:]}")
    sys.stdout.write(man(*sys.argv[2:3] or [""]))
