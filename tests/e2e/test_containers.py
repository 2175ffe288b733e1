"""The whole job in containers of a real podman, on nodes of a lab: each has its own network,
process numbers and store.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from orchestrator import lab as labs
from tests.e2e.rig import GRACE_S, LONG, QUICK, SMALL, Controller
from tests.support import faults, judge, podman
from tests.support.faultlab import shared_folder

NODES = ("node1", "node2")
SPARE = "node3"


@pytest.fixture
def engine(controller: Controller, tmp_path: Path) -> Iterator[Path]:
    """podman on three nodes, and an inventory that starts runs in its image."""
    with shared_folder(controller.lab, "podman") as folder:
        program = podman.script(folder)
        archive = podman.image(folder)
        for node in (*NODES, SPARE):
            argv = labs.argv_on(
                controller.lab, node, [str(program), "import", str(archive), podman.IMAGE]
            )
            done = subprocess.run(argv, capture_output=True, text=True, check=False)
            if done.returncode:
                pytest.skip(
                    f"podman does not work in a node of a lab here: {done.stderr.strip()[-200:]}"
                )
            limits = ", ".join(f"{name}: {value}" for name, value in podman.LIMITS.items())
        container = (
            f"{{engine: podman, program: {program}, image: '{podman.IMAGE}', limits: {{{limits}}}}}"
        )
        text = controller.lab.inventory.read_text()
        assert text.count("\ndefaults:\n") == 1
        text = text.replace("\ndefaults:\n", f"\ndefaults:\n  container: {container}\n")
        (tmp_path / "containers.yaml").write_text(text)
        yield program


def containers(controller: Controller, engine: Path, nodes: Sequence[str] = NODES) -> list[str]:
    """Ask the engine of each node, past the tool, which containers it has."""
    names = []
    for node in nodes:
        argv = labs.argv_on(
            controller.lab, node, [str(engine), "ps", "--all", "--format", "{{.Names}}"]
        )
        names += subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()
    return names


def test_a_bench_runs_in_containers_and_ends_there_without_its_controller(
    controller: Controller, engine: Path
) -> None:
    hosts = ("-H", str(controller.project / "containers.yaml"), "-x", "node[3-4]")
    check = controller.orch(
        "check", "-f", "simulated", *hosts, "--only", "container,framework,limits"
    )
    assert (
        check.code == 0 and "a container of podman" in check.out and "nofile 20000" in check.out
    ), check

    bench = controller.orch("bench", *QUICK, *hosts, "--nodes", "2")
    assert bench.code == 0, bench
    for node in NODES:
        record = controller.exit_record(node)
        assert (
            record["state"] == "finished"
            and "label" in record["container"]["by"]
            and record["container"]["left"] == []
        )
        payload = controller.lab.node(node).home / ".orch-node" / "payload"
        written = [path for path in payload.rglob("*") if path.lstat().st_mode & 0o077]
        assert not written, "the engine's umask was not replaced"
    facts = controller.manifest()["facts"]
    assert {facts[node]["container"]["digest"] for node in NODES} == {
        facts["node1"]["container"]["digest"]
    }
    controller.assert_all_bytes_are_home(*NODES)

    missing = controller.orch(
        "bench", *QUICK, *hosts, "--nodes", "1", "--container", "podman:localhost/no/such:1"
    )
    assert missing.code == 1 and "no/such" in missing.err and not judge.ours(controller.lab), (
        missing
    )
    outside = controller.orch("bench", *QUICK, *hosts, "--nodes", "1", "--container", "none")
    assert outside.code == 0 and "container" not in controller.exit_record("node1"), outside

    process = controller.start("bench", *LONG, *hosts, "--nodes", "2", "--lease", "2")
    judge.wait_for(
        lambda: len(list(controller.project.glob("runs/*/*/manifest.json"))) == 3,
        30,
        "no run was planned",
    )
    controller.wait_for_step(3)
    assert len(containers(controller, engine)) == 2
    inside = b"".join(
        Path(f"/proc/{running.pid}/environ").read_bytes() for running in judge.ours(controller.lab)
    ).split(b"\0")
    for node in NODES:
        assert f"TORCHINDUCTOR_CACHE_DIR=/root/.orch-node/nodes/{node}/inductor".encode() in inside
    process.kill()
    process.wait()
    within_s = 2.0 + GRACE_S + 10.0
    judge.wait_for(
        lambda: not judge.ours(controller.lab), within_s, "processes are left after the lease"
    )
    assert containers(controller, engine) == []
    collected = controller.orch("collect")
    assert "not verified" not in collected.err, collected
    assert {controller.exit_record(node)["container"]["left"] == [] for node in NODES} == {True}


def test_a_spare_with_the_same_image_takes_the_place_of_a_node_that_dies(
    controller: Controller, engine: Path
) -> None:
    words = (
        "--set",
        "compute_ms=50",
        "--steps",
        "40",
        "--nodes",
        "2",
        "--spares",
        "1",
        "--repeats",
        "2",
    )
    hosts = ("-H", str(controller.project / "containers.yaml"), "-x", "node4")
    process = controller.start("bench", *SMALL, *words, *hosts)
    controller.wait_for_starts(2)
    faults.crash(controller.lab, "node2")
    done = controller.end(process, 60)
    assert done.code == 0 and "node3 in place of node2: " in done.err, done
    manifest = controller.manifest()
    assert [slot["host"] for slot in manifest["placement"]["slots"]] == ["node1", SPARE]
    assert {facts["container"]["digest"] for facts in manifest["facts"].values()} == {
        manifest["facts"][SPARE]["container"]["digest"]
    }
    assert containers(controller, engine, ("node1", SPARE)) == []
    # Nobody has seen the end of what ran on the dead node: as long as its engine is there, cancel
    # removes and proves it.
    faults.boot(controller.lab, "node2")
    cancel = controller.orch("cancel", *hosts)
    assert cancel.code == 0, cancel
    assert containers(controller, engine, ("node2",)) == []
