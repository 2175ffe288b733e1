"""Run `ansible-inventory`, and take from what it prints the variables that orch may keep.

Whole files of ``group_vars`` and ``host_vars`` may come out of a vault, in plain text. Besides the
variables that orch uses, it therefore keeps only those that the inventory itself names.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Container
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
_ASSIGNED = re.compile(r"""([A-Za-z_]\w*)["']?\s*[=:]""")
"""A name before a value, in an inventory in INI or YAML."""


def is_installed() -> bool:
    """Return True if `ansible-inventory` is on the PATH."""
    return shutil.which(_PROGRAM) is not None


def list_inventory(path: Path, text: str) -> Any:
    """Return the groups, and under ``_meta`` the variables of each host, that Ansible reads from a
    file or directory.

    ``text`` is what stands in it. Raises ConfigError if Ansible fails, takes too long or prints too
    much.
    """
    words = [_PROGRAM, "-i", str(path.absolute()), "--list"]
    where = " ".join(words)
    done = _run(words, {**os.environ, **_SETTINGS}, where)
    if done.returncode:
        reason = " ".join(done.stderr.decode("utf-8", "replace").split())[-_MOST_REASON:]
        hint = "" if reason else "it printed no reason; run it by hand to find out"
        if "vault" in reason:
            hint = "name a file with the vault's password in ANSIBLE_VAULT_PASSWORD_FILE"
        message = f"expected exit status 0, got {done.returncode}{reason and f': {reason}'}"
        raise ConfigError(message, where=where, hint=hint)
    document = parse_json(done.stdout, where, "it prints JSON on standard output")
    meta: Any = document.get("_meta") if isinstance(document, dict) else None
    of_hosts = meta.get("hostvars") if isinstance(meta, dict) else None
    if isinstance(of_hosts, dict):
        written = set(_ASSIGNED.findall(text))
        meta["hostvars"] = {host: _kept(values, written) for host, values in of_hosts.items()}
    return document


def _kept(variables: Any, written: Container[str]) -> Any:
    if not isinstance(variables, dict):
        return variables
    return {
        name: value for name, value in variables.items() if name in written or USED.fullmatch(name)
    }


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
