"""The transport openssh for all tests here, and a place of their own for its masters."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.openssh.connecting import left
from tests.support.judge import wait_for


@pytest.fixture
def transport() -> str:
    """The transport of every host here."""
    return "openssh"


@pytest.fixture(autouse=True)
def _sockets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Folders of masters in a place of the test's own, in which nothing may be left."""
    place = Path(f"/tmp/kx-{os.getpid()}-{len(str(tmp_path))}")
    place.mkdir(exist_ok=True)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(place))
    yield place
    wait_for(lambda: not left(place), 5, "masters or their folders are left")
    place.rmdir()
