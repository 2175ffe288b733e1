"""Connections by ``kubectl exec``: `KubectlConnector`.

kubectl exits with the status of the command, and with the same numbers when it fails itself. So a
shell in the pod runs the command and writes its status behind everything else on standard error:
without that mark, the connection broke.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Sequence
from functools import partial

from orchestrator.engines.kubernetes import client
from orchestrator.engines.kubernetes.client import Namespace
from orchestrator.engines.kubernetes.pods import deletion, obstacle
from orchestrator.errors import ConfigError, RunError, TransportError
from orchestrator.inventory import Host
from orchestrator.transport.program import Outcome, ProgramChannel, ProgramTransport
from orchestrator.transport.program.channel import shell_ending, signal_name
from orchestrator.transport.streams import OUTPUT_LIMIT_BYTES, STDERR_TAIL_BYTES, Inbox

# The shell's own messages, such as "Killed", are no output of the command, which therefore has a
# shell of its own to redirect it.
_SCRIPT = """exec 3>&2 2>/dev/null; (exec "$@") 2>&3 3>&-; s=$?; printf '%s%s\\n' "$0" "$s" >&3; exit "$s\""""
_MARK_BYTES = 4096


class KubectlConnector:
    """Connections into pods. What kubectl and its user can do is asked once for each namespace."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_checked = False
        self._namespaces: dict[tuple[str, str], Namespace] = {}
        self._permitted: set[Namespace] = set()

    def prepare(self, host: Host) -> Callable[[], ProgramTransport]:
        """Find kubectl and the namespace of a host. Raises ConfigError if there is none."""
        names = str(host.vars.get("pod_namespace") or ""), str(host.vars.get("kube_context") or "")
        with self._lock:
            if not self._is_checked:
                client.check_version()
                self._is_checked = True
            if names not in self._namespaces:
                try:
                    self._namespaces[names] = Namespace.of(*names)
                except RunError as error:
                    raise ConfigError(error.message, where=f"host {host.name}") from error
        return partial(self._connect, host, self._namespaces[names])

    def connect(self, host: Host) -> ProgramTransport:
        """Return the way into a pod. Raises TransportError if it does not run, ConfigError if its
        user may run no commands in it.
        """
        return self.prepare(host)()

    def close(self) -> None:
        """Free nothing: connections share no process."""

    def _connect(self, host: Host, namespace: Namespace) -> ProgramTransport:
        pod, container = str(host.vars.get("pod") or host.name), host.vars.get("pod_container", "")
        try:
            with self._lock:
                if namespace not in self._permitted:
                    namespace.check_right("create", "pods", "exec")
                    self._permitted.add(namespace)
            found = namespace.get(f"pods/{pod}")
        except RunError as error:
            message = f"Kubernetes does not answer: {error.message}"
            raise TransportError(message, kind="host_unreachable", host=host.name) from error
        why = obstacle(found, container) if found else deletion(namespace, pod)
        if found is None or why:
            is_waiting = found is not None and found["status"].get("phase") == "Pending"
            kind = "host_unreachable" if is_waiting else "host_gone"
            message = f"pod {pod} in namespace {namespace.name} {why}"
            hint = f"kubectl --namespace={namespace.name} describe pod {pod}"
            raise TransportError(message, kind=kind, host=host.name, hint=hint)
        start = partial(_start, host, namespace, pod, container)
        return ProgramTransport(host, start, found["spec"].get("nodeName", ""))


def _start(
    host: Host, namespace: Namespace, pod: str, container: str, argv: Sequence[str], take_all: bool
) -> ProgramChannel:
    mark = f"orch-{secrets.token_hex(8)}:"
    words = _Words(mark, OUTPUT_LIMIT_BYTES if take_all else STDERR_TAIL_BYTES + _MARK_BYTES)
    chosen = [f"--container={container}"] if container else []
    command = ["exec", "--stdin", pod, *chosen, "--", "sh", "-c", _SCRIPT, mark, *argv]

    def outcome(code: int, _: bytes) -> Outcome:
        if (status := words.status) is not None:
            return shell_ending(status)
        text = words.tail(STDERR_TAIL_BYTES).decode("utf-8", "replace")
        what = client.own_words(text) or f"kubectl ended with status {code}"
        if code < 0:
            what = f"kubectl was ended by {signal_name(-code)}"
        return TransportError(f"the connection broke: {what}", kind="node_lost")

    return ProgramChannel(host, namespace.argv(*command), outcome, take_all=take_all, stderr=words)


class _Words(Inbox):
    """Standard error; what follows the mark is the status of the command, and kubectl's own."""

    def __init__(self, mark: str, keep: int) -> None:
        super().__init__(keep)
        self._mark = mark.encode()

    @property
    def status(self) -> int | None:
        """The exit status of the command; None if it has not been reported."""
        _, mark, rest = super().tail(_MARK_BYTES).rpartition(self._mark)
        digits = rest.split(b"\n")[0]
        return int(digits) if mark and digits.isdigit() else None

    @property
    def command_is_over(self) -> bool:
        """Whether its status has been reported."""
        return self.status is not None

    def tail(self, size: int) -> bytes:
        """Return the last bytes that the command has written."""
        data = super().tail(size + _MARK_BYTES)
        before, mark, _ = data.rpartition(self._mark)
        return (before if mark else data)[-size:]
