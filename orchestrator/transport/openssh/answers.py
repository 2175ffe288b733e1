"""Passwords and codes for the log-ins of one command: asked for one after the other.

A password is sent to the server that it was typed for, and to another one only if Enter is pressed
at its question, which says so. A passphrase answers wherever the key is used, because ssh sends it
to nobody; a code answers once. What was typed is kept in this process's memory only. A log-in that
asks for something new holds the terminal until it is over.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import NamedTuple

from orchestrator.transport import terminal
from orchestrator.transport.openssh.command import program
from orchestrator.transport.openssh.folder import MasterFolder
from orchestrator.transport.ssh.config import Endpoint

_LIMIT_BYTES = 1 << 20
_SHOWN_CHARACTERS = 300
_TOUCHLESS_S = 2.0
"""Seconds in which a security key that needs no touch has answered, also on a busy machine."""
_OF_A_KEY = re.compile(r"\b(passphrase|PIN)\b", re.IGNORECASE)
_PASSWORD = re.compile(r"\bpassword\b(?!.*\b(one.time|otp|token|code)\b)", re.IGNORECASE)
_ASKER = re.compile(r"\(?(?P<user>[^\s()@]+)@(?P<host>[^\s()']+)(?:\)|'s)? ")
_HOST_KEY = re.compile(r"\(yes/no(/\[fingerprint\])?\)", re.IGNORECASE)


class Secret(NamedTuple):
    """The secret that an answer gives: a password of ``user`` at ``server``, or a key's passphrase,
    which ssh sends to nobody.
    """

    server: str
    user: str
    what: str


class Login:
    """One log-in at ``endpoint``, which messages call ``where``. ``may_ask``: whether the terminal
    may be used.
    """

    def __init__(self, number: int, where: str, endpoint: Endpoint, *, may_ask: bool) -> None:
        self.number = number
        self.where = where
        self.user = endpoint.user
        self.names = {endpoint.name, endpoint.address, endpoint.known_as}
        self.server = f"{endpoint.name} port {endpoint.port}"
        self.may_ask = may_ask
        self.unanswered = ""
        """The first question that had no answer: the log-in is then given up."""
        self.has_asked = False
        self.has_waited = False
        self.over = False
        self.given: dict[Secret, str] = {}
        self.holds_turn = False
        self.is_at_terminal = False
        self._asking_since: float | None = None
        self._asked_s = 0.0

    @property
    def asked_s(self) -> float:
        """Seconds that the log-in has waited for answers so far."""
        since = self._asking_since
        return self._asked_s + (time.monotonic() - since if since is not None else 0.0)

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Count the time of the block as waiting for an answer."""
        self._asking_since = time.monotonic()
        try:
            yield
        finally:
            self._asked_s, self._asking_since = self.asked_s, None


class Answers:
    """Answers the questions that ssh asks through `askpass`, in threads of its own."""

    def __init__(self, folder: MasterFolder) -> None:
        self._folder = folder
        self._logins: dict[str, Login] = {}
        self._verified: dict[Secret, tuple[str, str]] = {}
        self._turn = threading.Lock()
        self._changing = threading.Lock()
        self._is_interrupted = False
        self._path = folder.path / "ask"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(str(self._path))
        self._socket.listen(128)
        threading.Thread(target=self._accept, daemon=True, name="answers").start()

    def environment(self, login: Login) -> dict[str, str]:
        """Return the variables with which ssh asks here."""
        return {
            "SSH_ASKPASS": str(self._folder.helper),
            "SSH_ASKPASS_REQUIRE": "force",
            "DISPLAY": "orch",  # versions before 8.4 need one, and have no SSH_ASKPASS_REQUIRE
            "ORCH_ASKPASS": str(self._path),
            "ORCH_ASKPASS_LOGIN": str(login.number),
        }

    @contextmanager
    def login(self, where: str, endpoint: Endpoint, *, may_ask: bool) -> Iterator[Login]:
        """Yield a new log-in; what was typed for it is used again if the block ends without an
        error.
        """
        with self._changing:
            login = Login(len(self._logins), where, endpoint, may_ask=may_ask)
            self._logins[str(login.number)] = login
        try:
            yield login
            self._verified.update(
                {secret: (answer, login.where) for secret, answer in login.given.items()}
            )
        finally:
            with self._changing:
                login.over = True
                self._end_turn(login)

    def close(self) -> None:
        """Answer nothing more."""
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _accept(self) -> None:
        while True:
            try:
                line, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(
                target=self._converse, args=(line,), daemon=True, name="answer"
            ).start()

    def _converse(self, line: socket.socket) -> None:
        with (
            line,
            suppress(OSError),
        ):  # ssh, and with it the helper, may end before there is an answer
            data = b""
            while not data.endswith(b"\n") and len(data) < _LIMIT_BYTES:
                piece = line.recv(4096)
                if not piece:
                    return
                data += piece
            try:
                question = json.loads(data)
                login = self._logins.get(str(question["login"]))
            except (ValueError, KeyError, TypeError):
                return
            if login is None or login.over:
                return
            if (
                question["kind"] == "none"
            ):  # a key wants to be touched: ssh ends the helper when that is over
                with login.asking():
                    self._await_touch(login, str(question["prompt"]), line)
                return
            answer = None
            if question["kind"] != "confirm":
                answer = self._answer(login, str(question["prompt"]))
            line.sendall(json.dumps({"answer": answer}).encode() + b"\n")

    def _answer(self, login: Login, prompt: str) -> str | None:
        """Return the answer to a question; None if there is none. A question about a host key is
        never answered.
        """
        if _HOST_KEY.search(prompt):
            return None
        secret = _secret_of(prompt, login)
        with login.asking():
            known = self._find_verified(login, secret)
            if known is not None:
                return known
            self._take_turn(login)
            if login.over:
                return None
            if (
                known := self._find_verified(login, secret)
            ) is not None:  # another log-in has asked meanwhile
                return known
            return self._ask(login, prompt, secret)

    def _find_verified(self, login: Login, secret: Secret | None) -> str | None:
        """Return a verified answer, unless this log-in was given it before: then the server refused
        it.
        """
        if not secret or secret in login.given or secret not in self._verified:
            return None
        login.given[secret] = self._verified[secret][0]
        return login.given[secret]

    def _of_another(self, login: Login, secret: Secret | None) -> tuple[str, str]:
        """Return the last password that has let the same user in at another server, and where;
        empty texts without one.
        """
        if not secret or secret in login.given or not secret.user:
            return "", ""
        others = [known for other, known in self._verified.items() if other.user == secret.user]
        return others[-1] if others else ("", "")

    def _ask(self, login: Login, prompt: str, secret: Secret | None) -> str | None:
        question = _show(prompt)
        if not login.may_ask or self._is_interrupted:
            login.unanswered = login.unanswered or question
            return None
        earlier, place = self._of_another(login, secret)
        text = f"orch: {login.where}: {question} "
        if place:
            text += f"(Enter sends the one typed for {place}) "
        login.is_at_terminal = True
        try:
            answer = terminal.ask(text)
        except terminal.NoTerminal:
            answer = _ask_program(text)
        except (
            terminal.Interrupted
        ):  # nothing more is asked in this command, neither for this log-in nor for others
            answer, self._is_interrupted = None, True
        finally:
            with self._changing:
                login.is_at_terminal = False
                if login.over:  # the server did not wait
                    self._end_turn(login)
        login.has_asked = answer is not None
        if answer is None:
            login.unanswered = login.unanswered or question
            return None
        answer = answer or earlier
        if secret:
            login.given[secret] = answer
        return answer

    def _take_turn(self, login: Login) -> None:
        """Wait until no other log-in uses the terminal; this one then does until it is over."""
        if login.holds_turn:
            return
        login.has_waited = self._turn.locked() or login.has_waited
        self._turn.acquire()
        with self._changing:
            if login.over:
                self._turn.release()
            else:
                login.holds_turn = True

    def _end_turn(self, login: Login) -> None:
        """Let the next log-in ask, unless somebody is still typing for this one."""
        if login.holds_turn and not login.is_at_terminal:
            login.holds_turn = False
            self._turn.release()

    def _await_touch(self, login: Login, text: str, line: socket.socket) -> None:
        """Ask for a touch, and wait until ssh has its answer. Without a terminal nobody is told: a
        key that needs no touch, as it was made, answers within a moment, and any other log-in is
        given up."""
        try:
            terminal.show(f"orch: {login.where}: {_show(text)}")
        except terminal.NoTerminal:
            line.settimeout(_TOUCHLESS_S)
        try:
            line.recv(1)
        except TimeoutError:
            login.unanswered = text


def _secret_of(prompt: str, login: Login) -> Secret | None:
    """Return the secret that a question asks for, so that its answer can be used again.

    None for a code, which is used once. From OpenSSH 8.5 on, a server's questions begin with
    ``(user@host)``. Before that a server may ask as ssh itself does, for a passphrase too; the
    answer is then for this server alone.
    """
    is_marked = _marks_questions(program())
    if _OF_A_KEY.search(prompt):
        is_local = is_marked and prompt.startswith("Enter ")
        return Secret("" if is_local else login.server, "", prompt)
    if not _PASSWORD.search(prompt):
        return None
    asker = _ASKER.match(prompt)
    user = asker["user"] if asker else login.user
    # Through a ProxyCommand, ssh may ask for another server than the one of the log-in.
    is_beyond = is_marked and asker and asker["host"] not in login.names
    return Secret(asker["host"] if asker and is_beyond else login.server, user, "password")


@cache
def _marks_questions(ssh: str) -> bool:
    """Return True if this ssh begins the questions of a server with the server's name."""
    said = subprocess.run(
        [ssh, "-V"], capture_output=True, text=True, errors="replace", check=False
    )
    version = re.match(r"OpenSSH_(\d+)\.(\d+)", said.stderr + said.stdout)
    return version is not None and (int(version[1]), int(version[2])) >= (8, 5)


def _ask_program(text: str) -> str | None:
    """Return the answer of the user's own ``SSH_ASKPASS``, a window, where there is no terminal;
    None without one.
    """
    program = os.environ.get("SSH_ASKPASS")
    if not program or not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        return None
    try:
        done = subprocess.run(
            [program, text], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=False
        )
    except OSError:
        return None
    if done.returncode != 0:
        return None
    return done.stdout.decode("utf-8", "surrogateescape").rstrip("\r\n")


def _show(text: str) -> str:
    """Return a server's words on one line of a bounded length, without control characters, which a
    terminal might obey.
    """
    line = "".join(
        character if character.isprintable() else "?" for character in " ".join(text.split())
    )
    if len(line) <= _SHOWN_CHARACTERS:
        return line
    return f"{line[:_SHOWN_CHARACTERS]}…"
