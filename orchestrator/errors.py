"""Every error that `orch` reports, and the exit status of each; `EXIT_STATUS` says what a status
means.

    OrchError
    ├── ConfigError      2
    ├── TransportError   3
    ├── DataError        4
    ├── Regression       5
    ├── Undecided        6
    └── RunError         1
        └── Interrupted  130 a signal stopped the run (129 and 143 likewise)

Any of them may hold text of others: of an ssh server, a node, a file. Message and place are
therefore always one line, so that no such text begins a line that looks like orch's own; a hint may
have several, and `orch` indents all but the first.

A message reads *where: what was expected, what came. hint.* in lower case. The same facts are
attributes, for ``--json`` and for tests. `Faults` holds several errors that were found together, so
that users fix a file or a cluster once, not ten times.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_CLOSE = 0.65
"""The least share of letters, in order, that a suggestion has in common with a word."""

EXIT_STATUS: Mapping[int, str] = {
    0: "success",
    1: "a run failed or reached its time limit, or a node is unfit or in use",
    2: "bad input, no host contacted",
    3: "a host could not be reached or trusted, or orch check found a fault",
    4: "damaged files, or logs that do not give the planned numbers",
    5: "orch gate found a regression, a bound is not met, or orch accept found a fault",
    6: "orch gate, a bound or orch accept could not be decided",
}
"""The exit statuses of `orch`: one meaning each, for all commands. A signal N that interrupted it
gives 128 + N.
"""


class OrchError(Exception):
    """An error with a place, a kind and a remedy. Any code may raise it; only the command line
    prints it.

    ``cause`` is why a program failed, as its logs show it, in one line: a known cause, or what the
    program said last; empty if they show neither. ``is_of_all``: no host answered.
    """

    exit_code = 1
    is_of_all = False

    def __init__(
        self,
        message: str,
        *,
        kind: str,
        where: str = "",
        hint: str = "",
        cause: str = "",
        host: str = "",
        run_id: str = "",
        phase: str = "",
    ) -> None:
        self.message = _one_line(message)
        super().__init__(self.message)
        self.kind = kind
        self.where = _one_line(where)
        self.hint = hint
        self.cause = cause
        self.host = host
        self.run_id = run_id
        self.phase = phase

    def __str__(self) -> str:
        """Return one line for people, without the host: callers fold the hosts that report the same
        error.
        """
        text = f"{self.where}: {self.message}" if self.where else self.message
        return f"{text}. {self.hint}" if self.hint else text

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle all fields: by default, Python would call the constructor with the message alone."""
        return _revive, (type(self), self.args, vars(self))

    @property
    def errors(self) -> tuple[OrchError, ...]:
        """The single errors in it: itself, or each error of a `Faults`."""
        return (self,)

    def as_dict(self) -> dict[str, str]:
        """Return the machine-readable form, as printed by ``--json``: the fields that are not
        empty.
        """
        fields = ("kind", "message", "where", "host", "run_id", "phase", "cause", "hint")
        return {name: getattr(self, name) for name in fields if getattr(self, name)}


def _one_line(text: str) -> str:
    return text.replace("\n", "\\n")


def _revive(kind: type[OrchError], args: tuple[Any, ...], fields: dict[str, Any]) -> OrchError:
    error = kind.__new__(kind, *args)
    vars(error).update(fields)
    return error


class ConfigError(OrchError):
    """Bad input: kinds config_invalid, template_error, unsafe_path. Raised before any host is
    contacted.
    """

    exit_code = 2

    def __init__(self, message: str, *, kind: str = "config_invalid", **context: str) -> None:
        super().__init__(message, kind=kind, **context)


class TransportError(OrchError):
    """A host could not be reached or authenticated; the kind is one of ``kinds``."""

    exit_code = 3
    kinds = frozenset({
        "host_unreachable", "host_gone", "host_key_unknown", "host_key_changed", "host_key_revoked", "algorithm_refused",
        "auth_failed", "transfer_corrupt", "node_lost", "node_rebooted",
    })  # fmt: skip

    @property
    def is_final(self) -> bool:
        """Whether the host must not be contacted again, or is gone, as a pod that was deleted."""
        return self.is_of_identity or self.kind == "host_gone"

    @property
    def is_of_identity(self) -> bool:
        """Return whether another machine may have answered in place of the host.

        Such a host must not be contacted again.
        """
        return self.kind in ("host_key_unknown", "host_key_changed", "host_key_revoked")


class DataError(OrchError):
    """Logs, results or saved state are damaged, incomplete or cannot be written.

    The kind is one of ``kinds``, or storage_full on the controller. log_unmatched: the logs are
    intact, but the log grammar finds no line in them, or no line of the window.
    """

    exit_code = 4
    kinds = frozenset(
        {"result_invalid", "log_unmatched", "state_damaged", "plan_changed", "storage_failed"}
    )


class Regression(OrchError):
    """Kinds regression, expectation_not_met: a comparison found a slowdown, or a metric is beyond
    its bound.
    """

    exit_code = 5


class Undecided(OrchError):
    """Kinds no_verdict, expectation_not_certain: a comparison or a bound has too little evidence
    for an answer.
    """

    exit_code = 6


class RunError(OrchError):
    """Kinds node_unfit, node_busy, port_busy, start_timeout, storage_full (on a node), rank_failed,
    not_verified, evidence_lost, run_timeout, lease_expired, output_limit, run_in_use, budget_over.

    ``others_agree`` is set for a rank that failed: the last call of all other ranks, if it is the
    same.
    """

    exit_code = 1
    others_agree = ""


class Interrupted(RunError):
    """A signal interrupted `orch`, and the run was stopped and collected. ``exit_code`` is 128 +
    the signal number.
    """

    def __init__(self, signal_number: int, message: str, **context: str) -> None:
        super().__init__(message, kind="interrupted", **context)
        self.exit_code = 128 + signal_number


class Faults(OrchError):
    """Several errors, reported together; exit status and host come from the first."""

    errors: tuple[OrchError, ...] = ()

    def __init__(self, errors: Sequence[OrchError]) -> None:
        first = errors[0]
        super().__init__(str(first), kind=first.kind, host=first.host)
        self.errors = tuple(errors)
        self.exit_code = first.exit_code

    def __str__(self) -> str:
        return "\n".join(f"{e.host}: {e}" if e.host else str(e) for e in self.errors)


def raise_all(errors: Sequence[OrchError]) -> None:
    """Raise these errors, if there are any: one by itself, several as Faults."""
    if errors:
        raise errors[0] if len(errors) == 1 else Faults(errors)


def format_exception(error: BaseException) -> str:
    """Return the report of an unexpected exception, in lines: its type and where it was raised,
    with those that it followed.

    Values are left out, which Python's own report shows in messages: one of them may be a secret.
    """
    before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    frames = [
        f'  File "{frame.filename}", line {frame.lineno}, in {frame.name}\n    {frame.line}\n'
        for frame in traceback.extract_tb(error.__traceback__)
    ]
    earlier = f"{format_exception(before)}and then\n" if before else ""
    return f"{earlier}{''.join(frames)}{type(error).__module__}.{type(error).__qualname__} (its message may hold secrets)\n"


def restore_error(value: Any, run_id: str) -> OrchError:
    """Return the error that a controller recorded, with its original class; storage_full of a run
    refers to the node.
    """
    names = ("message", "kind", "where", "hint", "cause", "host", "phase")
    fields = {}
    if isinstance(value, dict):
        fields = {name: str(value[name]) for name in names if name in value}
    message, kind = (
        fields.pop("message", "no cause was recorded"),
        fields.pop("kind", "rank_failed"),
    )
    if kind in TransportError.kinds:
        return TransportError(message, kind=kind, run_id=run_id, **fields)
    if kind in DataError.kinds:
        return DataError(message, kind=kind, run_id=run_id, **fields)
    return RunError(message, kind=kind, run_id=run_id, **fields)


def nearest(word: str, choices: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for the choice closest to ``word``, empty if none is close."""
    found = closest(word, choices)
    return f"; did you mean {found!r}?" if found else ""


def closest(word: str, choices: Iterable[str]) -> str:
    """Return the choice closest to a misspelt word, empty if none is close.

    >>> closest("--opne", ["--json", "--open"]), closest("--last", ["--plot"]), closest("mean", ["mean/max"])
    ('--open', '', 'mean/max')
    """
    from difflib import get_close_matches

    word = str(word)
    # Dashes are alike in all options, so that short ones would be close to any other.
    by_letters = {
        choice.lower().lstrip("-"): choice for choice in map(str, choices) if choice != word
    }
    letters = word.lower().lstrip("-")
    begun = [name for name in by_letters if name.startswith(letters) or letters.startswith(name)]
    matches = get_close_matches(letters, by_letters, 1, _CLOSE) or get_close_matches(
        letters, begun, 1
    )
    return by_letters[matches[0]] if matches else ""
