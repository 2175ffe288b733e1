"""Signatures of a seal by a key of ssh: `ssh-keygen -Y sign` and `-Y verify`, in the namespace
``orch``.

The seal is signed as a line of text, so a signature can be verified without orch:

    echo SEAL | ssh-keygen -Y verify -f allowed_signers -I WHO -n orch -s certificate.tar.sig
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import struct
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

from orchestrator.errors import ConfigError, DataError

NAMESPACE = "orch"
_ARMOUR = re.compile(
    rb"-----BEGIN SSH SIGNATURE-----\s([A-Za-z0-9+/=\s]+)-----END SSH SIGNATURE-----"
)
_TIMEOUT_S = 120


def check_key(key: Path) -> None:
    """Raise ConfigError for a file that is no key of ssh."""
    if not key.is_file():
        raise ConfigError("expected an ssh key, found no such file", where=f"--sign {key}")
    with key.open("rb") as file:
        if (
            file.read(11) == b"-----BEGIN "
        ):  # ssh-keygen -l does not read every kind of these without a passphrase
            return
    done = _keygen(["-l", "-f", str(key)], b"")
    if done.returncode:
        raise ConfigError(
            f"expected an ssh key, ssh-keygen says: {_last_line(done)}", where=f"--sign {key}"
        )


def check_signers(allowed: Path | None) -> None:
    """Raise ConfigError for a file of allowed signers that does not exist."""
    if allowed and not allowed.is_file():
        raise ConfigError("expected a file of allowed signers, found none", where=str(allowed))


def sign(seal: str, key: Path) -> bytes:
    """Return the signature of a seal by a private key, or by its public half if an agent has the
    other.

    ssh-keygen asks at the terminal for a passphrase. Raises ConfigError with its words if it does
    not sign.
    """
    check_key(key)
    done = _keygen(["-Y", "sign", "-f", str(key), "-n", NAMESPACE], f"{seal}\n".encode())
    if done.returncode or not done.stdout.startswith(b"-----BEGIN SSH SIGNATURE-----"):
        hint = "a passphrase needs a terminal, or an agent: ssh-add KEY"
        raise ConfigError(
            f"ssh-keygen does not sign: {_last_line(done)}", where=f"--sign {key}", hint=hint
        )
    return done.stdout


def key_of(signature: bytes) -> str:
    """Return 16 hexadecimal digits that identify the key of a signature; empty if it is no
    signature of a seal.

    The format is defined in OpenSSH's PROTOCOL.sshsig: magic, version, public key, namespace, each
    text after its length.
    """
    armoured = _ARMOUR.fullmatch(signature.strip())
    try:
        blob = base64.b64decode(b"".join(armoured[1].split()), validate=True) if armoured else b""
        magic, version, length = struct.unpack_from(">6sII", blob)
        key = blob[14 : 14 + length]
        (length,) = struct.unpack_from(">I", blob, 14 + len(key))
    except (ValueError, struct.error):
        return ""
    namespace = blob[18 + len(key) : 18 + len(key) + length]
    if (magic, version, namespace) != (b"SSHSIG", 1, NAMESPACE.encode()):
        return ""
    return hashlib.sha256(key).hexdigest()[:16]


def is_signature(seal: str, signature: bytes) -> bool:
    """Return True for a valid signature of a seal, by any key."""
    if not key_of(signature):
        return False
    with TemporaryDirectory(prefix="orch-") as temporary:
        copy = Path(temporary) / "signature"
        copy.write_bytes(signature)
        argv = ["-Y", "check-novalidate", "-n", NAMESPACE, "-s", str(copy)]
        return _keygen(argv, f"{seal}\n".encode()).returncode == 0


def signer(seal: str, signature: Path, allowed: Path) -> str:
    """Return who signed a seal: the principal of the file of allowed signers (ssh-keygen(1)) that
    the signature is valid for.

    Raises DataError if there is none, and ConfigError for a missing file, and for one without a
    signer.
    """
    check_signers(allowed)
    if not signature.is_file():
        raise ConfigError("expected a signature, found none", where=str(signature))
    with TemporaryDirectory(prefix="orch-") as temporary:
        copy = Path(temporary) / "signature"  # ssh-keygen reads it twice; both times the same bytes
        copy.write_bytes(signature.read_bytes())
        answer = _keygen(["-Y", "find-principals", "-s", str(copy), "-f", str(allowed)], b"")
        names = answer.stdout.decode("utf-8", "backslashreplace").splitlines()
        # A principal that a line excludes is listed like the others, and would be taken for the
        # name of somebody else.
        for name in (name for name in names if not answer.returncode and name[:1] != "!"):
            argv = [
                "-Y",
                "verify",
                "-f",
                str(allowed),
                "-I",
                name,
                "-n",
                NAMESPACE,
                "-s",
                str(copy),
            ]
            verified = _keygen(argv, f"{seal}\n".encode())
            if verified.returncode == 0:
                return name
            answer = verified
    complaints = answer.stderr.decode("utf-8", "backslashreplace").splitlines()
    broken = next((line for line in complaints if line.startswith("Couldn't ")), "")
    if broken:
        raise DataError(
            f"expected a signature, ssh-keygen says: {broken[:300]}",
            kind="state_damaged",
            where=str(signature),
        )
    if not names and (odd := _no_signer(allowed, complaints)):
        raise ConfigError(f"expected lines of allowed signers, {odd}", where=str(allowed))
    message = f"expected a signature of seal {seal} by a signer in {allowed}, ssh-keygen says: {_last_line(answer)}"
    raise DataError(message, kind="state_damaged", where=str(signature))


def _no_signer(allowed: Path, complaints: list[str]) -> str:
    """Return the fault of a file of allowed signers without any; empty if it has one."""
    refused = next((line for line in complaints if line.startswith(f"{allowed}:")), "")
    if refused:
        return f"ssh-keygen says: {refused[:300]}"
    lines = map(bytes.strip, allowed.read_bytes().splitlines())
    if any(line and not line.startswith(b"#") for line in lines):
        return ""
    return "found none"


def _keygen(argv: list[str], data: bytes) -> subprocess.CompletedProcess[bytes]:
    try:
        environment = {**os.environ, "LC_ALL": "C"}
        return subprocess.run(
            ["ssh-keygen", *argv],
            input=data,
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=False,
            env=environment,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        hint = "it is part of OpenSSH, from version 8.0 on"
        raise ConfigError(
            f"ssh-keygen cannot be used: {error}", where="--sign", hint=hint
        ) from None


def _last_line(done: subprocess.CompletedProcess[bytes]) -> str:
    lines = (done.stderr or done.stdout).decode("utf-8", "backslashreplace").strip().splitlines()
    if lines:
        return lines[-1][:300]
    return f"exit status {done.returncode}"
