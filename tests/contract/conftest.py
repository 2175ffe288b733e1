"""Fixtures for tests against real OpenSSH servers on loopback."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator.transport.ssh import Transport
from tests.contract.rig import Keys, Rig
from tests.contract.sshd import make_key
from tests.support.pods import no_pods


@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    """Key pairs for all tests of a worker."""
    directory = tmp_path_factory.mktemp("keys")
    return Keys(*(make_key(directory / name) for name in ("client", "stranger", "server")))


@pytest.fixture(autouse=True)
def _no_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)


@pytest.fixture
def transport() -> str:
    """The transport of a test: the default one, unless a module has parameters for it."""
    return "ssh"


@pytest.fixture
def rig(tmp_path: Path, keys: Keys, transport: str) -> Iterator[Rig]:
    """Servers and hosts for one test."""
    if transport == "kubectl" and no_pods():
        pytest.skip(no_pods())
    made = Rig(tmp_path, keys, transport)
    made.configure()
    yield made
    made.close()


@pytest.fixture
def line(rig: Rig) -> Transport:
    """An open line to a server of its own."""
    return rig.connect(rig.serve())


@pytest.fixture
def no_leak() -> Iterator[Callable[[], tuple[int, int]]]:
    """Count threads and open files; the test fails if there are more at its end than at its start."""

    def count() -> tuple[int, int]:
        return threading.active_count(), len(list(Path("/proc/self/fd").iterdir()))

    before = count()
    yield count
    after = count()
    assert after <= before, f"threads and files before {before}, after {after}"
