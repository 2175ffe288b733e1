"""Every error that `orch` reports, and the exit status of each.

    OrchError
    ├── ConfigError      2   nothing was contacted
    ├── TransportError   3   a host could not be reached or authenticated
    ├── DataError        4   logs, results or saved state are damaged or incomplete
    ├── Regression       5   a comparison found a slowdown
    └── RunError         1   a run failed or was stopped, or a node is unfit for it
        └── Interrupted  130 a signal stopped the run (129 and 143 likewise)

A message reads *where: what was expected, what came. hint.* in lower case. The same facts are attributes, for ``--json``
and for tests. `Faults` holds several errors that were found together, so that users fix a file or a cluster once, not ten
times.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class OrchError(Exception):
    """An error with a place, a kind and a remedy. Any code may raise it; only the command line prints it."""

    exit_code = 1

    def __init__(
        self,
        message: str,
        *,
        kind: str,
        where: str = "",
        hint: str = "",
        host: str = "",
        run_id: str = "",
        phase: str = "",
    ) -> None:
        super().__init__(message)
        self.message = message
        self.kind = kind
        self.where = where
        self.hint = hint
        self.host = host
        self.run_id = run_id
        self.phase = phase

    def __str__(self) -> str:
        """Return one line for people, without the host: callers fold the hosts that report the same error."""
        text = f"{self.where}: {self.message}" if self.where else self.message
        return f"{text}. {self.hint}" if self.hint else text

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle all fields: by default, Python would call the constructor with the message alone."""
        return _revived, (type(self), self.args, vars(self))

    def as_dict(self) -> dict[str, str]:
        """Return the machine-readable form, as printed by ``--json``: the fields that are not empty."""
        fields = ("kind", "message", "where", "host", "run_id", "phase", "hint")
        return {name: getattr(self, name) for name in fields if getattr(self, name)}


def _revived(kind: type[OrchError], args: tuple[Any, ...], fields: dict[str, Any]) -> OrchError:
    error = kind.__new__(kind, *args)
    vars(error).update(fields)
    return error


class ConfigError(OrchError):
    """Bad input: kinds config_invalid, template_error, unsafe_path. Raised before any host is contacted."""

    exit_code = 2

    def __init__(self, message: str, *, kind: str = "config_invalid", **context: str) -> None:
        super().__init__(message, kind=kind, **context)


class TransportError(OrchError):
    """A host could not be reached or authenticated; the kind is one of ``kinds``."""

    exit_code = 3
    kinds = frozenset({
        "host_unreachable", "host_key_unknown", "host_key_changed", "host_key_revoked", "algorithm_refused", "auth_failed",
        "transfer_corrupt", "node_lost", "node_rebooted",
    })  # fmt: skip


class DataError(OrchError):
    """Logs, results or saved state are damaged or incomplete: one of ``kinds``, or storage_full on the controller."""

    exit_code = 4
    kinds = frozenset({"result_invalid", "state_damaged", "plan_changed"})


class Regression(OrchError):
    """Kind regression: a comparison found a slowdown."""

    exit_code = 5


class RunError(OrchError):
    """Kinds node_unfit, node_busy, port_busy, start_timeout, storage_full (on a node), rank_failed, run_timeout,
    lease_expired, output_limit, run_in_use, budget_over."""

    exit_code = 1


class Interrupted(RunError):
    """A signal interrupted `orch`, and the run was stopped and collected. ``exit_code`` is 128 + the signal number."""

    def __init__(self, signal_number: int, message: str, **context: str) -> None:
        super().__init__(message, kind="interrupted", **context)
        self.exit_code = 128 + signal_number


class Faults(OrchError):
    """Several errors, reported together; the exit status is that of the first."""

    def __init__(self, errors: Sequence[OrchError]) -> None:
        first = errors[0]
        super().__init__(str(first), kind=first.kind, hint="")
        self.errors = tuple(errors)
        self.exit_code = first.exit_code

    def __str__(self) -> str:
        return "\n".join(f"{e.host}: {e}" if e.host else str(e) for e in self.errors)


def recorded_error(value: Any, run_id: str) -> OrchError:
    """Return the error that a controller recorded, with its original class; storage_full of a run refers to the node."""
    names = ("message", "kind", "where", "hint", "host", "phase")
    fields = {name: str(value[name]) for name in names if name in value} if isinstance(value, dict) else {}
    message, kind = fields.pop("message", "no cause was recorded"), fields.pop("kind", "rank_failed")
    if kind in TransportError.kinds:
        return TransportError(message, kind=kind, run_id=run_id, **fields)
    if kind in DataError.kinds:
        return DataError(message, kind=kind, run_id=run_id, **fields)
    return RunError(message, kind=kind, run_id=run_id, **fields)
