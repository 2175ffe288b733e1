"""Run `ansible-inventory`, and take from what it prints the variables that orch may keep.

Whole files of ``group_vars`` and ``host_vars`` may come out of a vault, in plain text. Of these
files orch therefore keeps only the variables that it uses itself; all others are those of the
inventory without these files.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from orchestrator.errors import ConfigError
from orchestrator.features.ansible.variables import USED

__all__ = ["MOST_OUTPUT", "is_installed", "list_inventory", "parse_json"]

MOST_OUTPUT = 16 << 20
_PROGRAM = "ansible-inventory"
_LIMIT_S = 60.0
_LOOK_S = 0.02
_MOST_REASON = 600
_SETTINGS = {
    "ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED": "1",
    "ANSIBLE_NOCOLOR": "1",
    "ANSIBLE_DEPRECATION_WARNINGS": "0",
    "ANSIBLE_INVENTORY_EXPORT": "0",
}
_NO_VARIABLE_FILES = {"ANSIBLE_VARS_ENABLED": ""}


def is_installed() -> bool:
    """Return True if `ansible-inventory` is on the PATH."""
    return shutil.which(_PROGRAM) is not None


def list_inventory(path: Path) -> Any:
    """Return the groups, and under ``_meta`` the variables of each host, that Ansible reads from a
    file or directory.

    Raises ConfigError if Ansible fails, takes too long or prints too much.
    """
    document = _ask(path, {})
    of_hosts = _host_variables(document)
    if any(not USED.fullmatch(name) for values in of_hosts.values() for name in values):
        own = _host_variables(_ask(path, _NO_VARIABLE_FILES))
        for host, values in of_hosts.items():
            used = {name: value for name, value in values.items() if USED.fullmatch(name)}
            others = own.get(host, {}).items()
            of_hosts[host] = {
                name: value for name, value in others if not USED.fullmatch(name)
            } | used
    return document


def _host_variables(document: Any) -> dict[str, dict[str, Any]]:
    meta = document.get("_meta") if isinstance(document, dict) else None
    variables = meta.get("hostvars") if isinstance(meta, dict) else None
    return variables if isinstance(variables, dict) else {}


def _ask(path: Path, settings: dict[str, str]) -> Any:
    words = [_PROGRAM, "-i", str(path.absolute()), "--list"]
    where = " ".join(words)
    environment = {**os.environ, **_SETTINGS, **settings}
    done = _run(words, environment, where)
    if done.returncode:
        reason = " ".join(done.stderr.decode("utf-8", "replace").split())[-_MOST_REASON:]
        hint = "" if reason else "it printed no reason; run it by hand to find out"
        if "vault" in reason:
            hint = "name a file with the vault's password in ANSIBLE_VAULT_PASSWORD_FILE"
        message = f"expected exit status 0, got {done.returncode}{reason and f': {reason}'}"
        raise ConfigError(message, where=where, hint=hint)
    return parse_json(done.stdout, where, "it prints JSON on standard output")


def _run(
    argv: list[str], environment: dict[str, str], where: str
) -> subprocess.CompletedProcess[bytes]:
    """Run a program to its end, and with it what it has started if it takes too long or prints too
    much.

    It writes to files: whatever it leaves running may keep those open, and nobody waits for that. A
    session of its own has no terminal that it could ask for a password. Raises ConfigError.
    """
    over = time.monotonic() + _LIMIT_S
    with TemporaryFile() as out, TemporaryFile() as err:
        try:
            process = subprocess.Popen(
                argv,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        except OSError as error:
            raise ConfigError(f"cannot be started: {error.strerror}", where=where) from error
        try:
            while process.poll() is None:
                if max(os.fstat(file.fileno()).st_size for file in (out, err)) > MOST_OUTPUT:
                    message = f"expected at most {MOST_OUTPUT >> 20} MiB, got more"
                    raise ConfigError(message, where=where)
                if time.monotonic() > over:
                    message = f"expected an answer within {_LIMIT_S:g} s, got none"
                    raise ConfigError(message, where=where)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_LOOK_S)
        except BaseException:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # its own session, so no other group's
            process.wait()
            raise
        texts = (os.pread(file.fileno(), MOST_OUTPUT + 1, 0) for file in (out, err))
        return subprocess.CompletedProcess(argv, process.returncode, *texts)


def parse_json(data: bytes, where: str, hint: str) -> Any:
    """Return the value of a text in JSON. Raises ConfigError for another text, and for a very large
    one.
    """
    if len(data) > MOST_OUTPUT:
        raise ConfigError(f"expected at most {MOST_OUTPUT >> 20} MiB, got more", where=where)
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        message = f"expected JSON, got {len(data)} bytes of something else"
        raise ConfigError(message, where=where, hint=hint) from None
