"""Inputs rewritten from public reports, each with its command and the right answer, decided before
`orch` was run.

A row of a ``.yaml`` beside this file has ``file`` (in ``inputs/``), ``command`` (for a shell;
``FILE`` is the input, ``T`` an empty folder, and the current one is another), ``exit``, and regular
expressions: ``says`` has to be found in the output, in this order, and ``never`` must not be.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

HERE = Path(__file__).parent
INPUTS = HERE / "inputs"
REPOSITORY = HERE.parents[1]
CASES = [
    case
    for table in sorted(HERE.glob("*.yaml"))
    for case in yaml.safe_load(table.read_text(encoding="utf-8"))["cases"]
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['file']}")
def test_case_has_the_right_answer(case: dict[str, Any], tmp_path: Path) -> None:
    found = run_case(case, tmp_path)
    shown = f"$ {case['command']}\nexit {found.returncode}\n{found.stdout}"

    assert found.returncode == case.get("exit", 0), shown
    assert f'File "{REPOSITORY}' not in found.stdout, f"a traceback of orch itself:\n{shown}"
    place = 0
    for pattern in case.get("says", ()):
        match = re.compile(pattern).search(found.stdout, place)
        assert match, f"{pattern!r} is not in, or not behind what comes before it:\n{shown}"
        place = match.start()
    for pattern in case.get("never", ()):
        assert not re.search(pattern, found.stdout), f"{pattern!r} is in:\n{shown}"


def run_case(case: dict[str, Any], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a case's command in an empty project, as a user with this interpreter on the PATH would."""
    (project := folder / "project").mkdir()
    (scratch := folder / "scratch").mkdir()
    names = {"FILE": str(INPUTS / case["file"]), "T": str(scratch)}
    command = re.sub(r"\b(?:FILE|T)\b", lambda match: shlex.quote(names[match[0]]), case["command"])
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(REPOSITORY),
        "ORCH_PROJECT": str(project),
        "COLUMNS": "400",
    }
    return subprocess.run(
        ["bash", "-c", command],
        cwd=project,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        check=False,
    )
