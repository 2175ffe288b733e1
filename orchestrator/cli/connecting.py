"""What commands that connect to hosts have in common: how host keys are verified, and what is told of log-ins on stderr."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from orchestrator.inventory import Redaction
    from orchestrator.record import Project
    from orchestrator.transport import Trust

__all__ = ["Debug", "print_reports", "trust_of"]

_LOGGER = "orchestrator.transport"
_options = {"debug": False}


def _set_debug(is_set: bool) -> bool:
    _options["debug"] = is_set
    return is_set


Debug = Annotated[
    bool, typer.Option("--debug", "-v", callback=_set_debug, is_eager=True, help="Print each step of every login on stderr.")
]


def trust_of(project: Project, redaction: Redaction, accept_new: bool = False) -> Trust:
    """Return how this project verifies host keys. From now on, what the transports report is printed, without secrets."""
    from orchestrator.transport import Trust

    print_reports(redaction)
    return Trust(store=project.known_hosts, accept_new=accept_new)


def print_reports(redaction: Redaction) -> None:
    """Print what the transports report from now on, without secrets."""
    import logging

    from orchestrator.report.text import one_line

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            typer.echo(f"orch: {one_line(redaction.text(record.getMessage()))}", err=True)

    logger = logging.getLogger(_LOGGER)
    logger.handlers[:] = [Handler()]
    logger.setLevel(logging.DEBUG if _options["debug"] else logging.WARNING)
    logger.propagate = False
