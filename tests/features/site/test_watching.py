"""The nodes of each bench are asked by themselves: what one does, or goes wrong with it, holds up
no other.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from orchestrator.features.site import watching
from orchestrator.features.site.live import Seen, Watched
from orchestrator.features.site.watching import Nodes
from orchestrator.record import BenchDir, Project
from orchestrator.record.bench_record import BenchRecord
from tests.support import judge
from tests.support.benches import bench

RUN = "run"


class Looking:
    """A project with two benches, `Nodes` that ask their hosts, and what these told."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.told: list[BaseException] = []
        self.nodes = Nodes(Project(folder), self.told.append)
        key = Ed25519PrivateKey.generate().private_bytes(
            Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()
        )
        (folder / "key").write_bytes(key)
        (folder / "key").chmod(0o600)

    def bench(self, name: str, port: int) -> Watched:
        """Return a bench of one host, node1, whose ssh server would be at a port of this machine."""
        inventory = self.folder / f"{name}.yaml"
        inventory.write_text(
            f"schema: 1\nhosts: {{node1: {{address: 127.0.0.1, gpus: 1, ssh: {{port: {port}, key: {self.folder}/key}}}}}}\n"
        )
        made = bench(
            self.folder / "runs", name, "2026-10-01T08:00:00Z", [1.0], inventory=str(inventory)
        )
        return Watched(made, RUN, {"node1": ("rank-0.out", 100)})

    def error(self, watched: Watched) -> str:
        """Return what is known to be wrong with the host of a bench by now, empty if nothing is
        known.
        """
        answers: Mapping[str, Seen] = self.nodes.look(watched)
        return answers["node1"].error if answers else ""


@pytest.fixture
def looking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Looking]:
    monkeypatch.setattr(watching, "_PERIOD_S", 0.05)
    made = Looking(tmp_path)
    yield made
    monkeypatch.setattr(watching, "_ANSWER_S", 0.1)  # the silent server need not be waited for
    made.nodes.close()


@pytest.fixture
def silent() -> Iterator[int]:
    """The port of a server that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def closed() -> int:
    """A port at which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def test_a_bench_whose_node_is_silent_does_not_hold_up_another(
    looking: Looking, silent: int, closed: int
) -> None:
    slow, quick = looking.bench("slow", silent), looking.bench("quick", closed)
    assert looking.error(slow) == ""
    judge.wait_for(
        lambda: "refused" in looking.error(quick),
        5,
        lambda: looking.error(quick) or "nothing is known of it",
    )
    assert looking.error(slow) == "" and looking.told == []


def test_an_error_that_nobody_expected_is_told_and_ends_the_watching_of_no_bench(
    looking: Looking, closed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd, good = looking.bench("odd", closed), looking.bench("good", closed)
    record = BenchDir.record

    def broken(bench: BenchDir) -> BenchRecord:
        if bench.path == odd.bench.path:
            raise ZeroDivisionError
        return record(bench)

    monkeypatch.setattr(BenchDir, "record", broken)
    judge.wait_for(lambda: "in its terminal" in looking.error(odd), 5, "nothing is said of it")
    assert isinstance(looking.told[0], ZeroDivisionError)
    judge.wait_for(
        lambda: "refused" in looking.error(good),
        5,
        lambda: looking.error(good) or "the other bench is not watched",
    )
    monkeypatch.undo()
    judge.wait_for(lambda: "refused" in looking.error(odd), 10, "it is not asked again")


def test_an_inventory_that_cannot_be_read_any_more_is_said_of_its_hosts(
    looking: Looking, closed: int
) -> None:
    watched = looking.bench("a", closed)
    Path(watched.bench.record().inventory).write_text("schema: 1\nhosts: {")
    judge.wait_for(
        lambda: "a.yaml" in looking.error(watched),
        5,
        lambda: looking.error(watched) or "nothing is known of it",
    )
    assert looking.told == []
