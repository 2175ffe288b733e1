"""Errors of a failed log-in, from ssh's standard error at log level DEBUG1 (``-v``)."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from orchestrator.errors import TransportError
from orchestrator.files import who_may_replace
from orchestrator.transport.ssh.config import MAX_STARTUPS, Endpoint

LATE = "its sshd log says why; check LoginGraceTime, MaxAuthTries and AllowUsers"
_ACCEPT = "compare it with ssh-keyscan run from a place you trust, then accept it with orch deploy --accept-new"
_WITHOUT = "orch deploy --accept-new would trust the key without a certificate"
_ATTACK = "this may be an attack; if the host was reinstalled, check the new key on its console and remove that line"
_NO_TERMINAL = (
    "run orch at a terminal, or log in with ssh itself before, with a ControlPath in its "
    "configuration (docs/cluster.md)"
)
_STEP = re.compile(
    r"Connecting to|Executing proxy command|Connection established|Remote protocol version|kex: (algorithm|host key algorithm)|"
    r"Server host (key|certificate)|Host .* is known and matches|Found (key|CA key) in|Authenticating to|"
    r"Authentications that can continue|Next authentication method|Offering|Server accepts key|Trying private key|"
    r"read_passphrase: requested to askpass|No more authentication methods|Entering interactive session"
)
_NOT_FORWARDED = "Stdio forwarding request failed"
_OFFERED = re.compile(r"^debug1: Server host key: (\S+) (SHA256:\S+)", re.MULTILINE)
_CERTIFICATE = re.compile(
    r"^debug1: Server host certificate: (\S+ SHA256:[^\s,]+),.* CA (\S+ SHA256:\S+) valid ",
    re.MULTILINE,
)


def own_words(log: str) -> list[str]:
    """Return the lines that ssh prints without ``-v`` too."""
    return [
        line.strip()
        for line in log.splitlines()
        if line.strip() and not re.match(r"debug\d: |OpenSSH_", line)
    ]


def step_of(line: str) -> str:
    """Return a line's message on a step of the log-in, empty for any other line."""
    words = line.strip().removeprefix("debug1: ")
    return words if words != line.strip() and _STEP.match(words) else ""


def fingerprint(log: str) -> str:
    """Return the fingerprint of the server's host key, empty if the log does not tell it.

    If ssh connects to a jump host itself, the jump host's lines are in the same log, before the
    server's.
    """
    offered = _OFFERED.findall(log)
    return offered[-1][1] if offered else ""


def failure(
    endpoint: Endpoint, log: str, *, unanswered: str = "", gateway_log: str = ""
) -> TransportError:
    """Return the error that a log says, with what to do.

    ``unanswered`` is a question of the server that had no answer. ``gateway_log`` is the log of the
    jump host's master.
    """
    if unanswered:
        text = f"the host asks for {unanswered.rstrip(': ')!r}, and there is no answer"
        return endpoint.error(
            "auth_failed", text, _why_unused(endpoint.control_path) or _NO_TERMINAL
        )
    lines = own_words(log)
    words = "\n".join(lines)
    if _NOT_FORWARDED in words:
        return endpoint.error("host_unreachable", *_why_not_forwarded(endpoint, gateway_log))
    for pattern, make in _FAILURES:
        match = re.search(pattern, words, re.MULTILINE | re.IGNORECASE)
        if match:
            kind, message, hint = make(match, log)
            return endpoint.error(kind, message.replace("{user}", endpoint.user), hint)
    return endpoint.error("host_unreachable", lines[-1] if lines else "ssh ended without a message")


def _why_unused(path: str) -> str:
    """Return why the user's own connection was not used; empty if there is none."""
    if not path or not os.path.lexists(path):
        return ""
    if reason := who_may_replace(Path(path), is_private=True):
        return f"the connection at {path} is not used, because {reason}: set ControlPath to a folder that only you may write to"
    return f"the connection at {path} does not answer: end it (ssh -O exit, or remove the file) and log in with ssh again"


_Words = tuple[str, str, str]
_Make = Callable[[re.Match[str], str], _Words]


def _say(kind: str, message: str, hint: str = "") -> _Make:
    return lambda match, log: (kind, match.expand(message), hint)


def _unknown(match: re.Match[str], log: str) -> _Words:
    log = log[
        max(log.rfind("debug1: Server host "), 0) :
    ]  # a jump host that ssh connects to itself has its lines before
    if certificate := _CERTIFICATE.search(log):
        return "host_key_unknown", *_not_vouched_for(certificate[1], certificate[2], log)
    offered = _OFFERED.search(log)
    key = f": {offered[1]} {offered[2]}" if offered else ""
    return "host_key_unknown", f"the host key is not known{key}", _ACCEPT


def _not_vouched_for(key: str, authority: str, log: str) -> tuple[str, str]:
    """Return why a host certificate does not hold, and what to do; the plain key, which ssh tries
    then, is not known either.
    """
    invalid = re.search(r"^(?:error: )?(Certificate (?:invalid|is not)[^\r\n]*)", log, re.MULTILINE)
    place = re.search(r"^debug1: Found CA key in ([^\r\n]+:\d+)", log, re.MULTILINE)
    if invalid:
        known = f" ({place[1]})" if place else ""
        hint = f"have its authority{known} sign the host key again, for this name and with a current validity; {_WITHOUT}"
        return f"the host key is not known: {key} ({invalid[1]})", hint
    why = (
        f"its certificate is signed by {authority}, which no known-hosts file trusts for this host"
    )
    hint = f"have your site's authority sign the host key, or check this one and add it as @cert-authority; {_WITHOUT}"
    return f"the host key is not known: {key} ({why})", hint


def _say_key_changed(match: re.Match[str], log: str) -> _Words:
    offered = _OFFERED.findall(log)
    place = re.search(r"^Offending (\S+) key in (\S+)", log, re.MULTILINE)
    known = "a known-hosts file has another key"
    if place:
        known = f"{place[2]} has another {place[1]} key"
    return (
        "host_key_changed",
        f"the host key changed: {known}, the host offers {' '.join(offered[-1]) if offered else '?'}",
        _ATTACK,
    )


def _say_refused(match: re.Match[str], log: str) -> _Words:
    tried = re.findall(r"^debug1: Offering public key: (\S+) \S+ (SHA256:\S+)", log, re.MULTILINE)
    keys = ""
    if tried:
        keys = f"; offered keys: {', '.join(' '.join(key) for key in dict.fromkeys(tried))}"
    hint = (
        "orch check --only reach -v shows each step; is it the right user, key and password? A user whose login shell does not"
        " exist there is refused in the same way: the host's sshd log says which"
    )
    if "gssapi" in match[1] and "publickey" not in match[1]:
        hint = "get a ticket with kinit (klist shows it); does your ssh configuration set GSSAPIAuthentication yes for it?"
    return (
        "auth_failed",
        f"the host refused user {{user}}; it accepts {match[1].replace(',', ', ')}{keys}",
        hint,
    )


_FAILURES: Sequence[tuple[str, _Make]] = (
    (
        r"marked as revoked|REVOKED HOST KEY",
        _say("host_key_revoked", "the host key is marked revoked", "do not use this host"),
    ),
    (r"REMOTE HOST IDENTIFICATION HAS CHANGED", _say_key_changed),
    (r"Host key verification failed|No \S+ host (?:key|certificate) is known", _unknown),
    (
        r"no matching ([a-z ]+) found\. Their offer: (.*)",
        _say(
            "algorithm_refused",
            r"no \1 in common: the host offers \2",
            "update or reconfigure the host's sshd",
        ),
    ),
    (r"Permission denied \(([^)]*)\)", _say_refused),
    (
        r"Too many authentication failures",
        _say(
            "auth_failed",
            "the host closed the connection after too many attempts of user {user}",
            "see MaxAuthTries in its sshd_config; offer a single key, with ssh.key in the inventory",
        ),
    ),
    (
        r"Could not resolve hostname (\S+): (.*)",
        _say(
            "host_unreachable",
            r"the name \1 does not resolve (\2)",
            "check the address in the inventory, or HostName in the ssh configuration",
        ),
    ),
    (
        r"connect to (?:host|address) \S+ port (\d+): Connection refused",
        _say(
            "host_unreachable",
            r"connection refused on port \1",
            "is sshd running, and on this port?",
        ),
    ),
    (
        r"connect to (?:host|address) \S+ port (\d+): Connection timed out",
        _say(
            "host_unreachable",
            r"no answer on port \1 in time",
            "is it switched on, and does a firewall let port and address through?",
        ),
    ),
    (
        r"connect to (?:host|address) \S+ port (\d+): (.*)",
        _say("host_unreachable", r"port \1: \2", "is it switched on, and on this network?"),
    ),
    (
        r"timed out during banner exchange",
        _say(
            "host_unreachable",
            "connected, but no SSH banner came in time",
            "is the host, or its sshd, overloaded or frozen?",
        ),
    ),
    (
        r"kex_exchange_identification: (.*)|Connection (?:closed|reset) by \S+ port \d+|banner line contains invalid",
        lambda match, log: _say_closed(match, log),
    ),
    (
        r"Bad owner or permissions on (\S+)",
        _say("auth_failed", r"\1 can be changed by others", "check its owner, then chmod 600 it"),
    ),
)


def _say_closed(match: re.Match[str], log: str) -> _Words:
    if re.search(
        r"^debug1: Next authentication method|^debug1: Authentications that can continue",
        log,
        re.MULTILINE,
    ):
        return (
            "auth_failed",
            "the host closed the connection during the authentication of user {user}",
            LATE,
        )
    return (
        "host_unreachable",
        f"the host closed the connection before the log-in ({match[1] or match[0]})",
        MAX_STARTUPS,
    )


def lacks_reason(endpoint: Endpoint, log: str, gateway_log: str) -> bool:
    """Return whether a jump host did not forward a connection, and the log of its master does not
    say why, or not yet.
    """
    return _NOT_FORWARDED in log and not _refusal(endpoint, gateway_log)


def _refusal(endpoint: Endpoint, log: str) -> str:
    """Return the last message of a jump host's master on a connection that was not forwarded; empty
    without one.
    """
    target = re.escape(f"for {endpoint.address} port {endpoint.port},")
    said = re.findall(
        rf"channel (\d+): open failed: ([^\r\n]*)\r?\ndebug1: channel \1: free: direct-tcpip: .*{target}",
        log,
    )
    return str(said[-1][1]).strip() if said else ""


def _why_not_forwarded(endpoint: Endpoint, log: str) -> tuple[str, str]:
    """Return why a jump host did not forward a connection, as its master says, and what to do."""
    via = endpoint.via.label if endpoint.via else "the jump host"
    reason = _refusal(endpoint, log)
    if not reason:
        return f"{via} did not forward a connection to port {endpoint.port}", ""
    if "prohibited" in reason:
        return (
            f"{via} refuses to forward connections to port {endpoint.port}",
            "see AllowTcpForwarding in its sshd_config",
        )
    return f"{via} cannot reach it on port {endpoint.port} ({reason})", ""
