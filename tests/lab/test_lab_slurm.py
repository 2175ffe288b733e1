"""The lab's Slurm: real jobs on real nodes, whose processes end with their step, and nothing left
when the lab is down.
"""

from __future__ import annotations

import glob
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from orchestrator import lab as labs
from orchestrator.errors import ConfigError
from orchestrator.lab import programs
from orchestrator.lab.slurm import require
from tests.lab.test_lab_leftovers import _nothing_is_left
from tests.support import faults
from tests.support.faultlab import MakeLab, Ssh
from tests.support.judge import LIMIT_S

needs_slurm = pytest.mark.skipif(
    os.geteuid() != 0 or not all(map(shutil.which, ("slurmctld", "slurmd", "srun", "munged"))),
    reason="needs root and the packages slurmctld, slurmd, slurm-client and munge",
)


def _inside(lab: labs.Lab, *argv: str) -> str:
    command = labs.argv_inside(lab, argv)
    variables = {**os.environ, **labs.environment(lab)}
    return subprocess.run(
        command, env=variables, capture_output=True, text=True, timeout=LIMIT_S, check=True
    ).stdout


def _until_idle(lab: labs.Lab, limit_s: float = 40.0) -> None:
    deadline = time.monotonic() + limit_s
    while set(states := _inside(lab, "sinfo", "-hNo", "%T").split()) != {"idle"}:
        assert time.monotonic() < deadline, states
        time.sleep(0.2)


@needs_slurm
def test_jobs_run_on_the_nodes_end_with_their_step_and_with_the_lab(
    make_lab: MakeLab, ssh: Ssh
) -> None:
    said: list[str] = []
    lab = make_lab(nodes=2, slots=2, slurm=True, say=said.append)
    assert said[-1].endswith("and Slurm")

    assert sorted(_inside(lab, "srun", "-N2", "hostname").split()) == ["node1", "node2"]
    assert ssh(lab, "node1", "srun -N2 -w node[1-2] hostname | sort").stdout.split() == [
        b"node1",
        b"node2",
    ]
    assert "CPUTot=2" in _inside(lab, "scontrol", "show", "node", "node2")

    if Path("/sys/fs/cgroup/freezer/release_agent").exists():
        _inside(lab, "srun", "-N1", "-wnode2", "sh", "-c", "setsid sleep 987 & sleep 0.2")
        assert ssh(lab, "node2", "pgrep -fx 'sleep 987'").stdout == b""

    faults.crash(lab, "node2")
    faults.boot(lab, "node2")
    _until_idle(lab)
    assert _inside(lab, "srun", "-N1", "-wnode2", "hostname").split() == ["node2"]

    # A job that runs when the lab ends.
    _inside(lab, "sbatch", "-N2", "--output=/dev/null", "--wrap", "srun -N2 sleep 988")
    labs.down(lab.directory)
    _nothing_is_left(lab)
    assert not [
        group
        for group in glob.glob("/sys/fs/cgroup/freezer/slurm_node*/uid_0/job_*")
        if _is_of(lab, group)
    ]


def _is_of(lab: labs.Lab, group: str) -> bool:
    return int(group.rpartition("_")[2]) // 1000 == int(lab.marker, 16) % 60_000


def test_a_lab_that_cannot_have_slurm_is_refused_before_anything_starts(
    make_lab: MakeLab, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(
        ConfigError, match="expected a lab of namespaces for Slurm, got one of asyncssh"
    ):
        make_lab(kind="asyncssh", slurm=True)
    monkeypatch.setattr(programs, "_SYSTEM_FOLDERS", ())
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        ConfigError, match="not installed: munged, slurmctld, slurmd, srun"
    ) as caught:
        require("namespaces", tmp_path)
    assert (
        caught.value.hint
        == "apt-get install --no-install-recommends munge slurm-client slurmctld slurmd"
    )
    assert list(tmp_path.iterdir()) == []
