"""The wrapper of a rank: how a rank ended is told at once, and what its GPUs said of their clocks."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.judge import LIMIT_S
from tests.support.machine import (
    NEEDS_ROOT,
    RUN,
    Machine,
    bearing,
    rank,
)

sys.path.insert(0, str(Path(__file__).parents[3] / "remote"))
ranks = importlib.import_module("noderun.ranks")


COUNTS = """#!/bin/bash
# Two GPUs, whose counters of five reasons grow while the run goes on.
[ "$3" = --id=0,1 ] || exit 6
if [ -e asked ]; then printf '900, 0, 70, 0, 0\\n5000, 0, 60, 0, 0\\n'; exit; fi
touch asked
printf '100, 0, 50, 0, 0\\n200, 0, 60, 0, 0\\n'
"""
OLD = """#!/bin/bash
echo 'Field "clocks_event_reasons_counters.sw_power_cap" is not a valid field to query.'; exit 2
"""


@pytest.mark.parametrize(
    ("answer", "slowed"),
    [
        (COUNTS, {"sw_power_cap": 4800, "sw_thermal_slowdown": 20}),
        (OLD, {}),
        ("#!/bin/bash\necho '[N/A], 0, 0, 0, 0'\n", {}),
    ],
    ids=["counts", "an older driver", "no counters"],
)
def test_a_good_rank_tells_how_long_clocks_were_lowered(
    machine: Machine, tmp_path: Path, answer: str, slowed: dict[str, int]
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "nvidia-smi").write_text(answer)
    (tmp_path / "bin" / "nvidia-smi").chmod(0o755)
    gpus = f"export PATH={tmp_path}/bin:$PATH CUDA_VISIBLE_DEVICES=0,1\n"
    line = machine.start(
        RUN, gpus + rank("import time; time.sleep(0.5)") + " & " + rank("pass", 1) + "; wait\n"
    )
    first, second = line.wait_for("ended")["record"]["ranks"]
    assert first["slowed_us"] == slowed and "slowed_us" not in second
    line.order("bye")
    line.close()


def test_a_rank_that_failed_is_told_before_anybody_asks_for_clocks(
    machine: Machine, tmp_path: Path
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "nvidia-smi").write_text("#!/bin/bash\nexec sleep 1000\n")
    (tmp_path / "bin" / "nvidia-smi").chmod(0o755)
    line = machine.start(RUN, f"export PATH={tmp_path}/bin:$PATH\n" + rank("raise SystemExit(3)"))
    record = line.wait_for("ended")["record"]
    assert (record["state"], record["ranks"][0]["code"], "slowed_us" in record["ranks"][0]) == (
        "failed",
        3,
        False,
    )
    line.order("bye")
    line.close()


@pytest.mark.parametrize(
    ("code", "how", "expected"),
    [
        ("import sys; sys.exit(3)", "exit code 3", (3, None)),
        ("import os; os.kill(os.getpid(), 9)", "SIGKILL", (None, "SIGKILL")),
        ("import os; os.abort()", "SIGABRT", (None, "SIGABRT")),
        (
            "import os, signal; os.kill(os.getpid(), signal.SIGRTMIN + 3)",
            "signal 37",
            (None, "signal 37"),
        ),
    ],
)
def test_a_rank_that_ends_badly_is_told_at_once_and_stops_the_node(
    machine: Machine, code: str, how: str, expected: tuple[int | None, str | None]
) -> None:
    waiting = "until [ -e ranks/0.json ]; do sleep 0.01; done\n"
    script = (
        "#!/bin/bash\n"
        + rank("import time; time.sleep(1000)", 0)
        + " &\n"
        + waiting
        + rank(code, 1)
        + " &\nwait\n"
    )
    line = machine.start(RUN, script)
    event = line.wait_for("rank")
    assert (event["rank"], event["code"], event["signal"]) == (1, *expected)
    record = line.wait_for("ended")["record"]
    assert (record["state"], record["reason"]) == (
        "failed",
        f"rank_failed: rank 1 ended with {how}",
    )
    assert [(r["rank"], r["signal"]) for r in record["ranks"]] == [(0, "SIGTERM"), (1, expected[1])]
    assert bearing(RUN) == []


@NEEDS_ROOT
def test_a_node_without_inodes_says_so_and_records_how_its_rank_ended(machine: Machine) -> None:
    machine.root.mkdir(mode=0o700)
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "nr_inodes=60,mode=0700", "tmpfs", str(machine.root)],
        check=True,
        timeout=LIMIT_S,
    )
    try:
        code = (
            "import itertools, time\n"
            "try:\n"
            '    for number in itertools.count(): open(str(number), "w").close()\n'
            "except OSError: time.sleep(3)\n"
        )
        line = machine.start(RUN, rank(code))
        words = "storage_full: No space left on device for .*; needed 8 inodes, free 0"
        assert re.fullmatch(words, line.wait_for("stopping")["reason"])
        record = line.wait_for("ended")["record"]
        assert re.fullmatch(words, record["reason"]) and record["state"] == "stopped"
        assert [(entry["signal"], entry.get("note")) for entry in record["ranks"]] == [
            ("SIGTERM", None)
        ]
        line.order("bye")
        line.close()
    finally:
        subprocess.run(["umount", "-l", str(machine.root)], check=True, timeout=LIMIT_S)


@NEEDS_ROOT
def test_a_rank_that_fails_on_a_full_disk_is_told_with_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(tmp_path)], check=True)
    monkeypatch.chdir(tmp_path)
    try:
        Path("ranks").mkdir()
        wrapper = {"wrapper": 1, "ticks": 0, "rank": 0, "local_rank": 0, "ended_mono_s": 1.0}
        Path("ranks/0.json").write_text(json.dumps({**wrapper, "code": 1, "signal": None}))
        with pytest.raises(OSError), open("filler", "wb") as filler:
            filler.write(bytes(1 << 20))
        (record,) = ranks.Ranks().read(None)
        assert record["note"].startswith(f"No space left on device for {tmp_path}; needed ")
        assert ranks.describe_end(record).startswith("exit code 1, No space left on device for ")
    finally:
        monkeypatch.undo()
        subprocess.run(["umount", "-l", str(tmp_path)], check=True)


@pytest.mark.parametrize("setting", ["unset LOCAL_RANK", "export RANK=first"])
def test_a_wrapper_without_its_numbers_says_which_are_expected(
    machine: Machine, setting: str
) -> None:
    line = machine.start(
        RUN,
        f"export RANK=0 LOCAL_RANK=0; {setting}\n"
        + rank("pass").replace("RANK=0 LOCAL_RANK=0 ", ""),
    )
    line.wait_for("ended")
    text = (machine.folder(RUN) / "logs/node.err").read_text()
    assert (
        text.startswith("rank_wrapper.py: expected whole numbers as RANK and LOCAL_RANK")
        and "Traceback" not in text
    )


def test_a_program_that_does_not_exist_is_an_error_of_its_rank(machine: Machine) -> None:
    line = machine.start(RUN, rank("").replace(f"{sys.executable} -c ''", "/no/such/program"))
    assert line.wait_for("rank")["code"] == 127
    line.wait_for("ended")
    assert (
        machine.folder(RUN) / "logs/rank-0.err"
    ).read_text() == "/no/such/program: No such file or directory\n"
