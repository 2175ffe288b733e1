"""Verification of host keys and reports of log-ins on stderr, for commands that connect to hosts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from orchestrator.inventory import Redaction
    from orchestrator.record import Project
    from orchestrator.transport import Trust

_LOGGER = "orchestrator.transport"
_options = {"debug": False}


def set_debug(is_set: bool) -> bool:
    """Remember whether each step of a login is printed."""
    _options["debug"] = is_set
    return is_set


def trust_of(project: Project, redaction: Redaction, accept_new: bool = False) -> Trust:
    """Return how this project verifies host keys. From now on, what the transports report is
    printed, without secrets.
    """
    from orchestrator.transport import Trust

    print_reports(redaction)
    return Trust(store=project.known_hosts, accept_new=accept_new)


def print_reports(redaction: Redaction) -> None:
    """Print the reports of transports from now on, without secrets."""
    import logging

    from orchestrator.report.text import one_line

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            typer.echo(f"orch: {one_line(redaction.text(record.getMessage()))}", err=True)

    logger = logging.getLogger(_LOGGER)
    logger.handlers[:] = [Handler()]
    logger.setLevel(logging.DEBUG if _options["debug"] else logging.WARNING)
    logger.propagate = False
