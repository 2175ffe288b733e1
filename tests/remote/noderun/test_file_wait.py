"""A supervisor whose file system does not answer or has failed: it says so, and does all that needs
no file.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.faults.stalled import frozen_folder
from tests.support import judge
from tests.support.judge import LIMIT_S
from tests.support.machine import DEAF, NEEDS_ROOT, RUN, Line, Machine, bearing, rank, supervisors

pytestmark = NEEDS_ROOT
UNTIL_GATE = (
    "import os, time; print(1, flush=True); "
    '[time.sleep(0.05) for _ in iter(lambda: os.path.exists("{gate}"), True)]'
)
SCRIPT = f"#!/bin/bash\n. ./env.sh\n{rank(DEAF)}\n"


def waiting(line: Line) -> dict[str, Any]:
    """Return the first answer to a beat that names what the supervisor waits for."""
    told: dict[str, Any] = {}

    def named() -> bool:
        line.order("beat", n=1)
        told.update(line.wait_for("beat"))
        return "waits_for" in told

    judge.wait_for(named, LIMIT_S, "it does not wait")
    return told


def test_beats_are_answered_and_a_run_goes_on_while_its_files_cannot_be_read(
    machine: Machine,
) -> None:
    line = machine.start(RUN, f"#!/bin/bash\n. ./env.sh\n{rank(UNTIL_GATE.format(gate='gate'))}\n")
    machine.wait_for_log(RUN, "rank-0.out", b"1\n")
    where = ["findmnt", "-nro", "TARGET,FSTYPE,SOURCE", "-T", str(machine.folder(RUN))]
    mounts = subprocess.check_output(where, text=True).splitlines()
    place, kind, source = mounts[-1].split()  # a place may be mounted over
    with frozen_folder(machine.folder(RUN) / "ranks"):
        told = waiting(line)
        assert (told["state"], told["waits_for"]) == ("running", f"{place} ({kind} from {source})")
        assert told["waits_s"] > 0.5 and bearing(RUN)
    (machine.folder(RUN) / "gate").write_bytes(b"")
    ended = line.wait_for("ended")
    assert (ended["record"]["state"], ended["record"]["reason"]) == ("finished", "")
    assert (machine.folder(RUN) / "supervisor.err").read_bytes() == b""


@pytest.mark.parametrize("why", ["an order", "its lease", "its silence"])
def test_a_run_is_ended_while_its_files_cannot_be_read(machine: Machine, why: str) -> None:
    limits = {"its lease": {"lease_s": 3.0}, "its silence": {"stall_s": 3.0}}.get(why, {})
    line = machine.start(RUN, SCRIPT, **limits)
    machine.wait_for_log(RUN, "rank-0.out", b"1\n")
    with frozen_folder(machine.folder(RUN) / "ranks"):
        if why != "its lease":
            waiting(line)
        if why == "an order":
            line.order("stop", reason="enough")
        reason = line.wait_for("stopping")["reason"]
        judge.wait_for(lambda: not bearing(RUN), LIMIT_S, "its ranks live")
        assert not (machine.folder(RUN) / "exit.json").exists()
    record = line.wait_for("ended")["record"]
    assert (record["state"], record["reason"]) == ("stopped", reason)
    expected = {"an order": "enough", "its lease": "lease_expired: no controller"}
    assert expected.get(why, "run_timeout: /") in reason, reason
    if why == "its silence":
        assert reason.endswith(" has not answered for 3 s")


@pytest.mark.parametrize("its_rank", ["lives", "ends"])
def test_a_run_is_stopped_when_its_disk_has_failed(
    its_rank: str, machine: Machine, tmp_path: Path
) -> None:
    """Without that its logs would be lost, which only the end of the run would show. A rank that
    ends then is no cause, though its wrapper cannot write its record and fails.
    """
    image = tmp_path / "image"
    with image.open("wb") as file:
        file.truncate(16 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", image], check=True)
    machine.root.mkdir(mode=0o700)
    mount = ["mount", "-o", "loop,errors=remount-ro", str(image), str(machine.root)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this computer has no loop devices")
    try:
        machine.root.chmod(0o700)
        gate = tmp_path / "gate"
        program = DEAF if its_rank == "lives" else UNTIL_GATE.format(gate=gate)
        line = machine.start(RUN, f"#!/bin/bash\n. ./env.sh\n{rank(program)}\n")
        machine.wait_for_log(RUN, "rank-0.out", b"1\n")
        find = ["findmnt", "-nro", "SOURCE", str(machine.root)]
        device = subprocess.check_output(find, text=True).strip().rpartition("/")[2]
        Path(f"/sys/fs/ext4/{device}/trigger_fs_error").write_text("test")
        gate.write_bytes(b"")
        assert line.wait_for("stopping")["reason"] == (
            f"node_unfit: {machine.folder(RUN)}: Read-only file system; what is written there is lost"
        )
        judge.wait_for(lambda: not bearing(RUN), LIMIT_S, "its rank lives")
        judge.wait_for(lambda: not supervisors(machine.folder(RUN)), LIMIT_S, "it lives")
    finally:
        subprocess.run(["umount", "-l", str(machine.root)], check=True)
