"""`orch accept` in a lab of four nodes: one that is slow for real is named, a killed controller is
gone on with, and the sealed certificate is verified and refused after a change."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from orchestrator import lab as labs
from tests.e2e.rig import Controller
from tests.support import faults, hashing, judge

SUITE = """\
title: hashing
stages:
  - {name: checks, checks: all, framework: hashing, run: 5s}
  - name: hashing
    bench: hashing
    choices: {repeats: 5, options: {cpu_time: true}}
    run: 60s
    needs: [checks]
    bars: [{metric: rate, peers: 30%, earlier: 50%}]
  - {name: links, bench: pairs, run: 20s, needs: [checks], least: {nodes: 99}}
  - {name: again, bench: hashing, choices: {repeats: 2, options: {seconds: 0.5, cpu_time: true}}, run: 3s, needs: [hashing]}
"""


@pytest.fixture
def project(controller: Controller) -> Controller:
    hashing.write(controller.project)
    (controller.project / "suites").mkdir()
    (controller.project / "suites" / "small.yaml").write_text(SUITE)
    return controller


def folder_of(controller: Controller) -> Path:
    (record,) = controller.project.glob("runs/*/acceptance.json")
    return record.parent


def test_a_slow_node_is_named_alone_and_its_certificate_is_sealed_and_signed(
    project: Controller,
) -> None:
    plan = project.orch("accept", "small", "--dry-run", "--budget", "310s")
    assert plan.code == 0 and "left out: links: needs 99 nodes, 4 left" in plan.out, plan
    assert "left out: again: takes about 6s, 5s of the budget is left" in plan.out and not list(
        project.project.glob("runs/*")
    )
    key = project.project / "key"
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)],
        check=True,
        stdin=subprocess.DEVNULL,
    )

    text = Path(labs.environment(project.lab)["ORCH_HOSTS"]).read_text()
    planted = project.project / "planted.yaml"
    planted.write_text(text.replace("  node2:\n", "  node2:\n    vars: {slower: 3}\n"))
    words = ("--hosts", str(planted), "--budget", "310s", "--json", "--sign", str(key))
    done = project.orch("accept", "small", *words, timeout_s=200)
    assert done.code == 5 and "accept: stage again fits the budget after all" in done.err, done
    verdicts = {node["host"]: node["verdict"] for node in done.json["nodes"]}
    assert verdicts.pop("node2") == "fail" and "fail" not in verdicts.values(), done
    (bar,) = [bar for bar in done.json["judged"] if bar["kind"] == "peers"]
    assert [finding["subject"] for finding in bar["findings"] if finding["verdict"] == "fail"] == [
        "node2"
    ]
    assert set(done.json["not_tested"]) == {
        "links",
        "against the last acceptance",
        "reference figures of devices of unknown name",
    }

    folder, archive = folder_of(project), Path(done.json["archive"])
    assert "node2  suspect" in project.orch("nodes").out
    page = (folder / "certificate.html").read_text()
    assert "node2" in page and "slower than its peers" in page and "needs 99 nodes" in page
    allowed = project.project / "allowed"
    allowed.write_text(f"ops@example.org {key.with_suffix('.pub').read_text()}")
    verified = project.orch("verify", str(archive), "--signers", str(allowed))
    assert (
        verified.code == 0
        and "node2 fail" in verified.out
        and "signed by ops@example.org" in verified.out
    ), verified
    changed = project.project / "changed.tar"
    data = bytearray(archive.read_bytes())
    place = data.index(b"hashed rate=") + len("hashed rate=")
    data[place] = ord("9") if data[place] != ord("9") else ord("8")
    changed.write_bytes(data)
    shutil.copy(f"{archive}.sig", f"{changed}.sig")
    refused = project.orch("verify", str(changed), "--signers", str(allowed))
    assert refused.code == 4 and "expected SHA-256" in refused.err, refused


def test_a_killed_acceptance_goes_on_and_an_unfit_node_is_left_out(project: Controller) -> None:
    text = Path(labs.environment(project.lab)["ORCH_HOSTS"]).read_text()
    (project.project / "planted.yaml").write_text(
        text.replace("  node4:\n", '  node4:\n    expect: {kernel: "1.0*"}\n')
    )
    process = project.start("accept", "small", "--hosts", "planted.yaml")

    def has_started_the_second_bench() -> bool:
        journals = [path.read_text() for path in project.project.glob("runs/*/*/events.jsonl")]
        return len(journals) == 2 and all('"started"' in text for text in journals)

    judge.wait_for(has_started_the_second_bench, 120, "the second bench was not started")
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()

    done = project.orch("resume", "--json", timeout_s=200)
    assert done.code == 5, done
    verdicts = {node["host"]: node["verdict"] for node in done.json["nodes"]}
    assert verdicts.pop("node4") == "fail" and "fail" not in verdicts.values(), done
    (bar,) = [bar for bar in done.json["judged"] if bar["kind"] == "checks"]
    assert "expected kernel 1.0*" in bar["findings"][0]["text"]
    stages = {stage["name"]: stage for stage in done.json["stages"]}
    assert (
        stages["hashing"]["hosts"] == ["node1", "node2", "node3"]
        and stages["again"]["measured"] == 2
    )
    record = json.loads((folder_of(project) / "acceptance.json").read_text())
    assert len(record["attempts"]) == 2 and "left out of what follows" not in done.err
    assert project.orch("verify", done.json["archive"]).code == 0


def test_a_gate_leaves_an_unfit_node_out_of_the_bench_after_it(project: Controller) -> None:
    (project.project / "suites" / "fit.yaml").write_text(
        "stages: [{name: checks, checks: [expect], framework: hashing, run: 5s}]"
    )
    text = Path(labs.environment(project.lab)["ORCH_HOSTS"]).read_text()
    (project.project / "planted.yaml").write_text(
        text.replace("  node4:\n", '  node4:\n    expect: {kernel: "1.0*"}\n')
    )
    done = project.orch(
        "bench",
        "hashing",
        "--repeats",
        "1",
        "--gate",
        "fit",
        "--hosts",
        "planted.yaml",
        timeout_s=120,
    )
    assert done.code == 0 and "node4 is suspect from now on" in done.err, done
    assert project.manifest()["spec"]["nodes"] == 3 and "left out: node4 is suspect" in done.out
    # Without the bar that it failed, the verdict of the suspect is open: it stays if it is asked
    # for, and not otherwise.
    again = project.orch(
        "bench", "hashing", "--repeats", "1", "--gate", "fit", "--with-suspects", timeout_s=120
    )
    assert again.code == 0 and "undecided" in again.err and "suspect" not in again.err, again
    assert (
        project.manifest()["spec"]["nodes"] == 4 and "node4  suspect" in project.orch("nodes").out
    )
    failed = project.orch(
        "bench",
        "hashing",
        "--repeats",
        "1",
        "--gate",
        "fit",
        "--with-suspects",
        "--hosts",
        "planted.yaml",
        timeout_s=120,
    )
    assert failed.code == 0 and project.manifest()["spec"]["nodes"] == 3, failed


def test_a_cable_that_loses_its_link_for_a_moment_fails_its_node(project: Controller) -> None:
    stage = "stages: [{name: hashing, bench: hashing, choices: {repeats: 1, options: {seconds: 2}}, run: 5s}]"
    (project.project / "suites" / "flap.yaml").write_text(stage)
    process = project.start("accept", "flap", "--json")
    started = list[Path]()

    def is_started() -> bool:
        started[:] = [
            path
            for path in project.project.glob("runs/*/*/events.jsonl")
            if '"started"' in path.read_text()
        ]
        return bool(started)

    judge.wait_for(is_started, 60, "nothing was started")
    faults.link(project.lab, "node3", up=False)
    faults.link(project.lab, "node3", up=True)
    done = project.end(process, 60)
    assert done.code == 5, done
    assert {node["host"]: node["verdict"] for node in done.json["nodes"]}["node3"] == "fail"
    (bar,) = [bar for bar in done.json["judged"] if bar["kind"] == "lost links"]
    assert [finding["text"] for finding in bar["findings"]] == [
        "eth0 lost its link once during its runs"
    ]
    (stage,) = done.json["stages"]
    assert "eth0 of node3 lost its link once" in stage["notes"]


def test_a_node_that_a_failed_run_names_fails_if_the_stage_succeeds_without_it_and_one_that_became_unfit(
    project: Controller,
) -> None:
    interpreter = project.lab.node("node4").home / "interpreter"
    interpreter.symlink_to(project.lab.python)
    leaving = "{removes: /root/interpreter, runner_python: /root/interpreter}"
    text = Path(labs.environment(project.lab)["ORCH_HOSTS"]).read_text()
    text = text.replace("  node3:\n", "  node3:\n    vars: {broken: true}\n")
    (project.project / "planted.yaml").write_text(
        text.replace("  node4:\n", f"  node4:\n    vars: {leaving}\n")
    )
    done = project.orch("accept", "small", "--hosts", "planted.yaml", "--json", timeout_s=200)
    assert done.code == 5 and "node3 is left out of the remaining stages" in done.err, done
    verdicts = {node["host"]: node["verdict"] for node in done.json["nodes"]}
    assert [verdicts.pop(name) for name in ("node3", "node4")] == [
        "fail",
        "fail",
    ] and "fail" not in verdicts.values(), done
    (stage,) = [stage for stage in done.json["stages"] if stage["name"] == "hashing"]
    assert (stage["hosts"], stage["measured"]) == (["node1", "node2"], 5)
    assert (
        len(list(folder_of(project).glob("*/bench.json"))) == 4
    )  # hashing, without node3, without node4 too, and again
