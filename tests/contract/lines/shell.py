"""Commands for a shell of the server, and tests for one transport alone."""

from __future__ import annotations

import pytest

of_ssh = pytest.mark.parametrize("transport", ["ssh", "openssh"], indirect=True)
of_paramiko = pytest.mark.parametrize("transport", ["ssh"], indirect=True)


def sh(script: str, *words: str) -> list[str]:
    return ["sh", "-c", script, "sh", *words]
