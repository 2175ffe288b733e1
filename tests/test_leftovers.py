"""Mounts that a killed run of the tests left."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.leftovers import unmount_leftovers


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_only_mounts_of_runs_that_have_ended_are_unmounted(tmp_path: Path) -> None:
    with subprocess.Popen(["true"]) as ended:
        pass
    runs = tmp_path / "pytest-of-root"
    places = [
        runs / name / "some test"
        for name in ("pytest-0", "garbage-1", "garbage-1/some test/inner", "pytest-2")
    ]
    for place in places:
        place.mkdir(parents=True)
        subprocess.run(["mount", "-t", "tmpfs", "none", str(place)], check=True)
    (runs / "pytest-0" / ".lock").write_text(str(ended.pid))
    (runs / "pytest-2" / ".lock").write_text(str(os.getpid()))
    unmount_leftovers(tmp_path)
    mounted = [place.is_mount() for place in places]
    subprocess.run(["umount", str(places[-1])], check=True)
    assert mounted == [False, False, False, True]
