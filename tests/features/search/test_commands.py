"""`orch tune` before its first run: the hosts that it goes without, its job of Slurm, and what it
refuses.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.commands import orch
from tests.support.refusing_slurm import submitted, with_refusing_slurm

TUNE = ("tune", "resnet50", "-f", "pytorch")
INVENTORY = "schema: 1\ndefaults: {gpus: 1}\nhosts:\n  'node[1-3]': {address: '127.0.0.[2-4]'}\n"


def test_a_node_that_is_out_takes_no_part(tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text(INVENTORY)
    hosts = {"ORCH_HOSTS": str(tmp_path / "cluster.yaml")}
    assert orch(tmp_path, *TUNE, "--shape", "3n1g", "--dry-run", environment=hosts).returncode == 0
    orch(tmp_path, "nodes", "node2", "--out", environment=hosts)
    done = orch(tmp_path, *TUNE, "--shape", "3n1g", "--dry-run", environment=hosts)
    assert "left out: node2" in done.stderr and done.returncode == 2, "two are too few"


def test_it_says_what_it_will_do_and_for_how_long_at_most(tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text(
        "schema: 1\nhosts: {node1: {address: 127.0.0.2, gpus: 1, ssh: {port: 1}}}\n"
    )
    done = orch(tmp_path, *TUNE, "--hosts", "cluster.yaml")
    assert (
        "plan: pytorch resnet50 1n1g fp32 b128: rounds of short runs for 20m at most" in done.stderr
    )
    assert done.returncode == 3, done


@pytest.mark.parametrize("number", ["inf", "nan", "1e300"])
def test_seconds_that_no_clock_counts_to_are_refused(tmp_path: Path, number: str) -> None:
    (tmp_path / "cluster.yaml").write_text(INVENTORY)
    hosts = {"ORCH_HOSTS": str(tmp_path / "cluster.yaml")}
    done = orch(tmp_path, *TUNE, "--dry-run", "--stall-timeout", number, environment=hosts)
    assert done.returncode == 2 and done.stderr.startswith(
        "orch: --stall-timeout: expected a time "
    ), done


def test_a_dry_run_shows_the_job_and_the_parameters(tmp_path: Path) -> None:
    done = orch(tmp_path, *TUNE, "--shape", "2n4g", "--slurm", "gpus-per-node=4", "--dry-run")
    assert (
        done.returncode == 0
        and "--nodes=2" in done.stdout.splitlines()[0]
        and "NCCL_ALGO" in done.stdout
    ), done
    assert not (tmp_path / ".orch").exists()


@pytest.mark.parametrize(
    "words", [("--budget", "soon"), ("--dtype", "fp61"), ("--set", "no_such_option=1")]
)
def test_it_is_refused_before_its_job_is_submitted(tmp_path: Path, words: tuple[str, ...]) -> None:
    project = with_refusing_slurm(tmp_path)
    tune = (*TUNE, "--shape", "2n8g", *words)
    code, errors, was_asked = submitted(
        project, *tune, "--slurm", "gpus-per-node=8", hosts="gpus.yaml"
    )
    plain = orch(project, *tune, "--hosts", "gpus.yaml", "--dry-run")
    assert (code, was_asked) == (plain.returncode, False) == (2, False)
    assert errors == [line for line in plain.stderr.splitlines() if line.startswith("orch: ")]
