"""`orch serve` and `orch site` where something is missing: matplotlib, or a browser that reaches
it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from typer.testing import CliRunner

from orchestrator.cli.main import program
from orchestrator.errors import ConfigError
from tests.support import judge
from tests.support.benches import bench
from tests.support.judge import LIMIT_S

REPOSITORY = Path(__file__).parents[3]


def serving(project: Path, **variables: str) -> subprocess.Popen[str]:
    outer = {name: value for name, value in os.environ.items() if name != "ORCH_LAB"}
    environment = outer | {"ORCH_PROJECT": str(project), "PYTHONPATH": str(REPOSITORY)} | variables
    argv = [sys.executable, "-m", "orchestrator", "serve", "--no-nodes"]
    return subprocess.Popen(
        argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def said(process: subprocess.Popen[str]) -> str:
    """Return what it says until it serves, and end it."""
    assert process.stderr
    lines = []
    for line in process.stderr:
        lines.append(line)
        if "Ctrl-C ends it" in line:
            break
    process.kill()
    process.communicate()
    return "".join(lines)


def test_without_matplotlib_live_pages_are_served_and_the_site_says_what_it_needs(
    tmp_path: Path,
) -> None:
    bench(tmp_path / "runs", "one", "2026-10-01T08:00:00Z", [1.0, 1.0])
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['matplotlib'] = None\n")
    process = serving(tmp_path, PYTHONPATH=os.pathsep.join([str(tmp_path), str(REPOSITORY)]))
    assert process.stdout
    address = process.stdout.readline().strip()

    def page(path: str) -> str:
        try:
            with urllib.request.urlopen(address + path, timeout=LIMIT_S) as answer:
                return str(answer.read().decode())
        except urllib.error.HTTPError as error:
            return error.read().decode()

    needed = "pip install &#39;orch-bench[plots]&#39;"
    assert "one" in page("") and "one" in page("live/one")
    judge.wait_for(
        lambda: needed in page("site/index.html"), 30, "the site does not say what it needs"
    )
    needs = "serve: only live pages, no site: charts of the pages: expected matplotlib, but it is not installed"
    assert needs in said(process)


def test_a_build_of_the_site_ends_with_a_server_that_is_killed(tmp_path: Path) -> None:
    stop = "import os, signal, sys\nif 'site' in sys.argv: open(os.environ['PID_FILE'], 'w').write(str(os.getpid()))\n"
    hold = "import threading\nif 'site' in sys.argv: threading.Thread(target=threading.Event().wait).start()\n"
    (tmp_path / "sitecustomize.py").write_text(stop + hold)
    pid_file = tmp_path / "pid"
    path = os.pathsep.join([str(tmp_path), str(REPOSITORY)])
    process = serving(tmp_path, PYTHONPATH=path, PID_FILE=str(pid_file))
    judge.wait_for(
        lambda: pid_file.exists() and pid_file.read_text(),
        LIMIT_S,
        "no build of the site was started",
    )
    builder = Path("/proc", pid_file.read_text())
    process.kill()
    process.communicate()
    judge.wait_for(
        lambda: not builder.exists(), LIMIT_S, "the build of the site goes on without its server"
    )


def test_in_a_lab_it_says_who_reaches_the_address(tmp_path: Path) -> None:
    assert "serve: in a lab of namespaces, only programs inside reach the address; " in said(
        serving(tmp_path, ORCH_LAB="x")
    )
    assert "in a lab" not in said(serving(tmp_path))


def test_a_folder_that_is_no_site_is_named_before_what_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.extras.find_spec", lambda name: None)
    monkeypatch.setenv("ORCH_PROJECT", str(tmp_path))
    (tmp_path / "mine.txt").write_text("x")
    for folder, message in (
        (tmp_path, "expected an empty folder or a site"),
        (tmp_path / "www", "expected matplotlib"),
    ):
        done = CliRunner().invoke(program(), ["site", str(folder)])
        assert isinstance(done.exception, ConfigError) and message in str(done.exception)
