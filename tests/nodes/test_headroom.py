"""Limits of the process are found before a host is contacted, raised where they may be, and named
with what is needed.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.errors import ConfigError
from orchestrator.nodes.headroom import disk_room
from tests.support.judge import LIMIT_S

CODE = """
import json, resource, sys
from orchestrator.errors import ConfigError
from orchestrator.nodes.headroom import make_room
soft, hard, hosts, by_program = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
try:
    make_room(hosts, by_program)
    said = ""
except ConfigError as error:
    said = str(error)
print(json.dumps([said, *resource.getrlimit(resource.RLIMIT_NOFILE)]))
"""


NEED, REMEDY = (
    "limits: reaching 16 hosts needs up to 160 open files, but this process may open only",
    "ulimit -n 160, or use fewer hosts at a time",
)


@pytest.mark.parametrize(
    ("soft", "hard", "hosts", "by_program", "said", "after"),
    [
        (256, 256, 4, 0, "", 256),
        (64, 1024, 4, 0, "", 64),
        (40, 1024, 4, 0, "", 64),
        (32, 1024, 100, 0, "", 832),
        (32, 2048, 100, 50, "", 1132),
        (64, 64, 16, 0, f"{NEED} 64. {REMEDY}", 64),
        (40, 100, 16, 0, f"{NEED} 100. {REMEDY}", 100),
    ],
)  # fmt: skip
def test_the_limit_of_open_files_is_raised_or_named(
    soft: int, hard: int, hosts: int, by_program: int, said: str, after: int
) -> None:
    argv = [sys.executable, "-c", CODE, *map(str, (soft, hard, hosts, by_program))]
    done = subprocess.run(
        argv,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    assert json.loads(done.stdout) == [said, after, hard]


def test_a_disk_without_room_for_the_plan_is_named_with_what_is_needed(tmp_path: Path) -> None:
    disk_room(tmp_path / "not" / "yet" / "there", runs=1, hosts=1)
    with pytest.raises(
        ConfigError,
        match=r"the plan of 1000000 runs on up to 1000 hosts needs 62500001 MiB, but only \d+ MiB are free",
    ):
        disk_room(tmp_path, runs=1_000_000, hosts=1000)
