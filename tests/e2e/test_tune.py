"""`orch tune` in a lab: what matters is found and confirmed, what fails is survived, and a tune
that is cut short goes on.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from orchestrator.inventory.read import open_inventory
from tests.e2e.rig import REPOSITORY, Controller
from tests.support import faults, judge

WORDS = (
    "resnet50",
    "-f",
    "tunable",
    "--shape",
    "2n1g",
    "--set",
    "gradient_mb=0.1",
    "--steps",
    "7",
    "--warmup-steps",
    "2",
)
QUIETLY = ("--stop-grace", "0.5", "--seed", "7")
SPACE = """
tunes:
  - {env: [COMPUTE_MS, FAIL_AT_STEP], default: 60 and 0, values: [[30, 0], [10, 0], [90, 0], [10, 2]]}
  - {env: [NCCL_SOCKET_NTHREADS], networks: [Socket], values: [4]}
  - {option: peer_timeout_s, numerics: true, values: [7.0]}
"""
"""Time of a step is in the environment of the hosts; 10 ms is best. One value ends a run, two knobs
must not be turned.
"""
BEST = {"COMPUTE_MS": "10", "FAIL_AT_STEP": "0"}
BUDGET_S = 90 * judge.patience
"""Enough for runs of four seconds; where they take one, the tune is over before."""


@pytest.fixture
def templates(tmp_path: Path) -> Path:
    """The simulated accelerator, with something to turn."""
    return folder(tmp_path / "templates", SPACE)


def folder(root: Path, space: str) -> Path:
    made = root / "tunable"
    shutil.copytree(REPOSITORY / "templates" / "simulated", made)
    script = made / "launch.sh.j2"
    text = script.read_text()
    for option, name, default in (
        ("compute_ms", "COMPUTE_MS", "60"),
        ("fail_at_step", "FAIL_AT_STEP", "0"),
    ):
        assert f"{{{{ options.{option} }}}}" in text
        text = text.replace(f"{{{{ options.{option} }}}}", f"${{{name}:-{default}}}")
    script.write_text(text)
    with (made / "framework.yaml").open("a") as stream:
        stream.write(space)
    return root


def record_of(controller: Controller) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((controller.bench / "bench.json").read_text())
    return value


def env_of(run: Path) -> str:
    return (run / "rendered" / "node2" / "env.sh").read_text()


def test_what_matters_is_found_confirmed_and_applied_in_one_step(
    controller: Controller, templates: Path
) -> None:
    options = (
        "--templates",
        str(templates),
        *QUIETLY,
        "--budget",
        f"{BUDGET_S:g}s",
        "-o",
        "found/fast.yaml",
    )
    done = controller.orch("tune", *WORDS, *options, "--json", timeout_s=150)
    assert done.code == 0, done
    found = done.json
    assert (found["verdict"], found["env"], found["options"]) == ("faster", BEST, {})
    # 60 ms a step against 10 ms, and what the all-reduce takes in both
    assert 2.0 < found["gain"]["ratio"] < 6.0 and found["gain"]["pairs"] >= 5
    assert (
        found["gain"]["interval"]["low"]
        <= found["gain"]["ratio"]
        <= found["gain"]["interval"]["high"]
    )
    tried = {one["settings"]: one for one in found["tried"]}
    assert (
        "rank_failed" not in done.err
        and "exit code 3" in tried["COMPUTE_MS=10 FAIL_AT_STEP=2"]["failure"]
    )
    assert not any(word in settings for settings in tried for word in ("NCCL", "peer_timeout_s"))

    events = controller.events()
    assert events[-1]["event"] == "over" and events[-1]["at"] - events[0]["at"] < BUDGET_S + 5
    record, bench = record_of(controller), controller.bench
    confirmed = [
        run
        for run, entry in record["plan"].items()
        if entry.get("rung") == len(record["tune"]["rungs"]) - 1
    ]
    assert found["evidence"] == confirmed and len(confirmed) == 2 * found["gain"]["pairs"]
    fast = [run for run in confirmed if "export COMPUTE_MS=10\n" in env_of(bench / run)]
    assert len(fast) == found["gain"]["pairs"]
    spec = json.loads((bench / fast[0] / "manifest.json").read_text())["spec"]
    assert (spec["env"], spec["timeout_s"]) == (BEST, 60), (
        "a candidate may take a minute, or four times as long as the pilot"
    )
    pairs = [record["plan"][run]["repeat"] for run in confirmed]
    assert all(pairs.count(repeat) == 2 for repeat in pairs), "a pair is one block"

    written = open_inventory(str(controller.project / "found" / "fast.yaml"))
    before = open_inventory(record["inventory"])
    assert [host.name for host in written.hosts if host.env.get("COMPUTE_MS") == "10"] == [
        "node1",
        "node2",
    ]
    assert [(host.name, host.address, host.vars) for host in written.hosts] == [
        (h.name, h.address, h.vars) for h in before.hosts
    ]
    assert bench.name in (controller.project / "found" / "fast.yaml").read_text()

    shown = controller.orch("attach", bench.name)
    assert shown.code == 0 and "to use it: orch bench resnet50 --shape 2n1g" in shown.out, shown
    assert "--set gradient_mb=0.1 --hosts found/fast.yaml" in shown.out
    command = shown.out.partition("to use it: orch ")[2].split()
    again = controller.orch(*command, "--no-baseline", "--repeats", "1", "--json")
    assert again.code == 0 and "export COMPUTE_MS=10\n" in env_of(controller.runs[0]), again
    assert again.json["rows"][0]["median"] == pytest.approx(found["median_speed"], rel=0.5)
    taken = controller.orch("tune", *WORDS, *options)
    assert taken.code == 2 and "existing files are not overwritten" in taken.err


def test_where_all_else_is_slower_the_default_stays_and_nothing_is_written(
    controller: Controller, tmp_path: Path
) -> None:
    slower = folder(tmp_path / "slower", "tunes: [{env: [COMPUTE_MS], values: [90, 150]}]")
    done = controller.orch(
        "tune",
        *WORDS,
        "--templates",
        str(slower),
        *QUIETLY,
        "--budget",
        f"{BUDGET_S:g}s",
        timeout_s=150,
    )
    assert done.code == 0, done
    assert "no candidate was faster than the default: the default was the fastest" in done.out
    assert "to use it" not in done.out and not list(controller.bench.glob("tuned*.yaml"))
    assert len(controller.runs) <= 1 + 3 * 4, "nothing is left to confirm"


def test_a_tune_that_is_cut_short_leaves_nothing_behind_and_goes_on_where_it_was(
    controller: Controller, tmp_path: Path
) -> None:
    # one candidate: how it is found among others is another test
    faster = folder(
        tmp_path / "faster",
        "tunes: [{env: [COMPUTE_MS, FAIL_AT_STEP], default: 60 and 0, values: [[10, 0]]}]",
    )
    process = controller.start(
        "tune", *WORDS, "--templates", str(faster), *QUIETLY, "--budget", f"{BUDGET_S:g}s"
    )
    judge.wait_for(
        lambda: len(list(controller.project.glob("runs/*/*/manifest.json"))) >= 3,
        30,
        "no rung was begun",
    )
    os.kill(process.pid, signal.SIGINT)
    done = controller.end(process, 20)
    assert (
        done.code == 130
        and "the tune is not finished" in done.out
        and "to continue: orch resume" in done.out
    ), done
    assert judge.ours(controller.lab) == []
    finished = {run: (run / "manifest.json").read_bytes() for run in controller.runs}
    finished = {run: text for run, text in finished.items() if b'"state": "finished"' in text}
    rungs = record_of(controller)["tune"]["rungs"]

    done = controller.orch("resume", "--json", timeout_s=150)
    assert done.code == 0 and (done.json["verdict"], done.json["env"]) == ("faster", BEST), done
    assert finished and all(
        (run / "manifest.json").read_bytes() == text for run, text in finished.items()
    )
    assert record_of(controller)["tune"]["rungs"][: len(rungs)] == rungs
    again = controller.orch("resume", "--json")
    assert (again.code, again.out) == (0, done.out)


def test_a_budget_in_which_nothing_can_be_confirmed_is_refused_after_one_run(
    controller: Controller, templates: Path
) -> None:
    done = controller.orch(
        "tune", *WORDS, "--templates", str(templates), *QUIETLY, "--budget", "4s"
    )
    advice = r"the budget is too small to try and confirm a candidate\. start a new orch tune with --budget \d+m"
    assert done.code == 1 and re.search(advice, done.err), done
    assert len(controller.runs) == 1
    # What goes on with it has its budget, so nothing says that this would help, and it ends in the
    # same way.
    resumed = controller.orch("resume")
    for said in (done, resumed):
        assert (
            "no result: no time was left to try a candidate" in said.out
            and "orch resume" not in said.out
        ), said
        assert said.code == 1 and "or fewer --steps" in said.err, said
    assert len(controller.runs) == 1


def test_a_tune_that_is_refused_before_its_first_run_says_why_and_how_to_go_on(
    controller: Controller, templates: Path
) -> None:
    words = (*WORDS, "--templates", str(templates), "--budget", f"{BUDGET_S:g}s")
    faults.sshd_stop(controller.lab, "node2")
    try:
        done = controller.orch("tune", *words)
    finally:
        faults.sshd_start(controller.lab, "node2")
    assert done.code == 3 and "orch: node2: " in done.err and "Traceback" not in done.err, done
    assert (
        f"to continue: orch resume {controller.bench.name}\n" in done.out and not controller.runs
    ), done


def test_a_tune_whose_first_run_failed_names_what_repeats_it(
    controller: Controller, templates: Path
) -> None:
    script = templates / "tunable" / "launch.sh.j2"
    script.write_text(script.read_text().replace("${FAIL_AT_STEP:-0}", "3"))
    done = controller.orch(
        "tune", *WORDS, "--templates", str(templates), *QUIETLY, "--budget", f"{BUDGET_S:g}s"
    )
    assert (
        done.code == 1
        and f"to continue: orch resume {controller.bench.name} --retry-failed\n" in done.out
    ), done
    assert controller.orch("resume", "--retry-failed").code == 1 and len(controller.runs) == 2
