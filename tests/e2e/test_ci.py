"""What docs/ci.md and docs/api.md tell people to copy: the lines of both pipelines and the program,
run in a lab.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from orchestrator import lab as labs
from tests.e2e.rig import ORCH, REPOSITORY, Controller, outer_environment
from tests.support.judge import LIMIT_S

# In place of what takes minutes and GPUs: a suite that looks at facts alone, and a resnet50 that
# waits instead of computing.
SUITE = """\
title: facts
stages:
  - {name: checks, checks: all, framework: simulated, run: 5s}
"""
VERDICTS = (0, 5, 6)
"""Of `orch gate` and `orch accept`: benches on a busy machine may differ, and a suite of facts
alone decides nothing.
"""


def pipelines() -> dict[str, dict[str, Any]]:
    page = (REPOSITORY / "docs" / "ci.md").read_text(encoding="utf-8")
    sections = re.findall(r"^## (\w+).*?^```yaml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    return {name: yaml.safe_load(text) for name, text in sections}


def lines_of_github(pipeline: Mapping[str, Any]) -> Iterator[str]:
    for job in pipeline["jobs"].values():
        for step in job["steps"]:
            assert ("run" in step) != ("uses" in step), step
            yield from str(step.get("run", "")).splitlines()


def lines_of_gitlab(pipeline: Mapping[str, Any]) -> Iterator[str]:
    yield from pipeline["default"]["before_script"]
    for stage in pipeline["stages"]:
        assert pipeline[stage]["stage"] == stage
        yield from (*pipeline[stage]["script"], *pipeline[stage]["after_script"])


def test_the_lines_of_both_pipelines_run_in_a_lab(controller: Controller) -> None:
    github, gitlab = pipelines()["GitHub"], pipelines()["GitLab"]
    assert (
        github["env"]
        == gitlab["variables"]
        == {"ORCH_PROJECT": "/srv/orch/nightly", "ORCH_HOSTS": "inventory/cluster.yaml"}
    )
    project, checkout = controller.project / "nightly", controller.project / "checkout"
    for folder in (project / "suites", project / "templates", checkout, controller.project / "bin"):
        folder.mkdir(parents=True)
    (project / "suites" / "quick.yaml").write_text(SUITE)
    shutil.copytree(REPOSITORY / "templates" / "simulated", project / "templates" / "pytorch")
    (project / "orch.yaml").write_text("stop_grace: 0.5s\n")
    program = controller.project / "bin" / "orch"
    program.write_text(f'#!/bin/sh\nexec {shlex.join(ORCH)} "$@"\n')
    program.chmod(0o755)
    variables = outer_environment(controller.project) | dict(labs.environment(controller.lab))
    variables |= {
        "PATH": f"{program.parent}:{os.environ['PATH']}",
        "ORCH_PROJECT": str(project),
        "PYTHONPATH": str(REPOSITORY),
    }
    variables |= {
        "GITHUB_SHA": "1a2b3c",
        "CI_COMMIT_SHA": "1a2b3c",
        "GITHUB_STEP_SUMMARY": "summary.md",
    }

    def done(line: str) -> subprocess.CompletedProcess[str]:
        argv = labs.argv_inside(controller.lab, ["bash", "-ec", line])
        return subprocess.run(
            argv,
            cwd=checkout,
            env=variables,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )

    of_gitlab = [line for line in lines_of_gitlab(gitlab) if not line.startswith("test -s ")]
    same = {
        line.replace("$CI_COMMIT_SHA", "$GITHUB_SHA"): ""
        for line in (*lines_of_github(github), *of_gitlab)
    }
    # Each job installs orch for itself: another may have run elsewhere. The lab has the orch of
    # this tree in its place.
    for job in github["jobs"].values():
        assert (
            sum("pip install /srv/orch/dist" in str(step.get("run")) for step in job["steps"]) == 1
        )
    lines = [
        line
        for line in same
        if "pip install /srv/orch/dist" not in line and not line.startswith("export PATH=")
    ]
    assert sum("orch " in line for line in lines) >= 6
    short = "--set gradient_mb=0.1 --set compute_ms=5 --steps 6 --warmup-steps 1 --no-baseline --repeats 2"
    good = done(f"orch deploy && orch bench resnet50 --nodes 1,2 --label good {short}")
    assert good.returncode == 0, good.stderr
    for line in lines:
        shortened = f"{line} {short}" if line.startswith("orch bench") else line
        ended = done(shortened)
        assert ended.returncode in (
            VERDICTS if line.startswith(("orch gate", "orch accept")) else (0,)
        ), (line, ended)
    made = {path.name for path in checkout.iterdir()}
    assert made == {
        "accept.path",
        "certificate.html",
        "bench.path",
        "junit.xml",
        "summary.md",
        "bench.tar",
    }
    assert done("orch verify bench.tar").returncode == 0

    # A night whose bench is refused: each job as a whole, as a runner executes it, publishes
    # nothing of the night before.
    for name in made:
        (checkout / name).unlink()
    for stage, refuse in (("accept", "--hosts gone.yaml"), ("bench", "--nodes 99")):
        job = {part: "\n".join(gitlab[stage][part]) for part in ("script", "after_script")}
        script = job["script"].replace("--output", f"{refuse} --output")
        assert refuse in script and done(script.replace("orch deploy", "true")).returncode == 2
        assert done(job["after_script"]).returncode == 0
        assert list(checkout.iterdir()) == [], "nothing to publish"
    moved = done("orch label 1a2b3c good")
    assert (
        moved.returncode == 0
        and "(good) is now " in moved.stdout
        and moved.stdout.endswith("(good)\n")
    ), moved


def test_the_program_of_the_page_runs_a_bench_that_the_command_line_reads(
    controller: Controller,
) -> None:
    page = (REPOSITORY / "docs" / "api.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"^## Run\n\n```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert controller.orch("deploy", "-f", "simulated").code == 0
    controller.environment["PYTHONPATH"] = str(REPOSITORY)
    ended = controller.end(controller.start("-c", program, program=[sys.executable]), 60)
    assert ended.code == 0, ended.err
    rows = controller.orch("summarize", "--json").json["rows"]
    assert ended.out == "".join(
        f"{row['shape']} {row['n']} {row['value']} {row['unit']}\n" for row in rows
    )
    assert {row["nodes"] for row in rows} == {1, 2} and {row["n"] for row in rows} == {2}
    words = controller.events()[0]["argv"]
    assert words[:3] == ["orch", "bench", "resnet50"]
    assert words[words.index("compute_ms=5") - 1] == "--set"
    assert f"{2 * len(rows)}/{2 * len(rows)}" in (controller.bench / "progress.log").read_text()


def test_ctrl_c_in_a_program_stops_its_bench_and_orch_resumes_it(
    controller: Controller, tmp_path: Path
) -> None:
    program = (
        "import orchestrator, sys\n"
        "plan = orchestrator.prepare('resnet50', framework='simulated', nodes=2, baseline=False, repeats=2, steps=30,\n"
        "    warmup_steps=1, options={'compute_ms': 50, 'gradient_mb': 0.1}, limits=orchestrator.Limits(grace_s=0.5))\n"
        "def tell(event): print(type(event).__name__, flush=True)\n"
        "try: orchestrator.run(plan, observe=tell)\n"
        "except KeyboardInterrupt: sys.exit(7)\n"
    )
    assert controller.orch("deploy", "-f", "simulated").code == 0
    controller.environment["PYTHONPATH"] = str(REPOSITORY)
    process = controller.start("-c", program, program=[sys.executable])
    assert process.stdout
    assert "Started\n" in iter(process.stdout.readline, "")
    process.send_signal(2)
    ended = controller.end(process, 60)
    assert ended.code == 7, ended
    assert [event["code"] for event in controller.events() if event["event"] == "over"] == [130]
    resumed = controller.orch("resume")
    assert resumed.code == 0, resumed
    assert controller.orch("summarize", "--json").json["rows"][0]["n"] == 2
