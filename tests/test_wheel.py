"""A wheel of the tree, installed somewhere else, does the whole job from a directory that has
nothing of ours.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator import __version__
from orchestrator import lab as labs
from orchestrator.lab import Lab
from tests.support import judge
from tests.support.judge import LIMIT_S

REPOSITORY = Path(__file__).parents[1]


def run(argv: list[str], folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("ORCH_", "SSH_", "PYTHON"))
    }
    variables = kept | {"HOME": str(folder), "NO_COLOR": "1", "COLUMNS": "160"} | environment
    return subprocess.run(
        argv,
        cwd=folder,
        env=variables,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build in a copy of what the Containerfile builds from, so that nothing is written into the
    tree.
    """
    source = tmp_path_factory.mktemp("source")
    for name in re.findall(r"(?m)^!(\S+)$", (REPOSITORY / ".dockerignore").read_text()):
        if (REPOSITORY / name).is_dir():
            shutil.copytree(
                REPOSITORY / name, source / name, ignore=shutil.ignore_patterns("__pycache__")
            )
        else:
            shutil.copy(REPOSITORY / name, source / name)
    target = tmp_path_factory.mktemp("wheel")
    pip = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
        "-w",
        str(target),
        str(source),
    ]
    done = run(pip, target)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = target.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def program(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel in it; the libraries it needs are those of this one. Returns
    its ``orch``.
    """
    folder = tmp_path_factory.mktemp("installed") / "venv"
    done = run([sys.executable, "-m", "venv", "--without-pip", str(folder)], folder.parent)
    assert done.returncode == 0, done.stderr
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python")]
    done = run([*pip, "install", "--no-deps", "--no-index", str(wheel)], folder.parent)
    assert done.returncode == 0, done.stdout + done.stderr
    # The libraries are lent by name, not by folder: an editable install of the tree lies among them
    # and must not be found.
    ours = next((folder / "lib").glob("python3*")) / "site-packages"
    for entry in Path(sysconfig.get_paths()["purelib"]).iterdir():
        if "orch" in entry.name.split("-")[0].lower() and "torch" not in entry.name:
            continue
        if not (ours / entry.name).exists() and entry.suffix != ".pth":
            (ours / entry.name).symlink_to(entry)
    return folder / "bin" / "orch"


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    yield labs.up(tmp_path / "lab", nodes=2, gpus_per_node=0, slots=1, say=lambda _: None)
    labs.down(tmp_path / "lab")


def test_the_wheel_holds_every_template_and_everything_that_travels_to_nodes(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    remote = REPOSITORY / "remote"
    wanted = {f"orchestrator/remote/{path.relative_to(remote)}" for path in remote.rglob("*.py")}
    for top in ("templates", "suites", "orchestrator"):
        for path in (REPOSITORY / top).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                relative = path.relative_to(REPOSITORY)
                wanted.add(f"orchestrator/{relative}" if top != "orchestrator" else str(relative))
    assert wanted - names == set()
    assert not [
        name
        for name in names
        if name.startswith(("tests/", "templates/", "suites/", "remote/")) or "__pycache__" in name
    ]


def test_the_installed_program_is_not_the_tree(program: Path, tmp_path: Path) -> None:
    python = str(program.parent / "python")
    done = run([python, "-c", "import orchestrator; print(orchestrator.__file__)"], tmp_path)
    assert done.stdout.startswith(str(program.parent.parent)), done
    done = run([str(program), "--version"], tmp_path)
    assert (done.returncode, done.stdout) == (0, f"orch {__version__}\n"), done


def test_the_installed_program_renders_from_any_directory(program: Path, tmp_path: Path) -> None:
    done = run(
        [
            str(program),
            "bench",
            "resnet50",
            "-H",
            "10.11.0.[2-5]",
            "--gpus",
            "8",
            "--dtype",
            "fp16",
            "--dry-run",
        ],
        tmp_path,
    )
    assert (
        done.returncode == 0 and "--node_rank 3" in done.stdout and "--dtype fp16" in done.stdout
    ), done
    assert list(tmp_path.iterdir()) == []


def test_the_installed_program_does_the_whole_job_in_a_lab(
    program: Path, lab: Lab, tmp_path: Path
) -> None:
    work = tmp_path / "elsewhere"
    work.mkdir()

    def orch(*words: str) -> subprocess.CompletedProcess[str]:
        return run(labs.argv_inside(lab, [str(program), *words]), work, **labs.environment(lab))

    assert orch("deploy", "-f", "simulated").returncode == 0
    small = (
        "--set",
        "gradient_mb=0.1",
        "--set",
        "compute_ms=10",
        "--steps",
        "5",
        "--warmup-steps",
        "1",
        "--repeats",
        "1",
    )
    bench = orch("bench", "resnet50", "-f", "simulated", "--nodes", "2", *small)
    assert bench.returncode == 0 and "2n1g" in bench.stdout, bench
    assert orch("collect").returncode == 0
    summary = orch("summarize")
    first, _, table = summary.stdout.partition("\n")
    assert summary.returncode == 0 and first.startswith("bench ") and table == bench.stdout
    page = orch("summarize", "--format", "html")
    assert (
        page.returncode == 0
        and page.stdout.count("<svg ") >= 5
        and page.stdout.endswith("</html>\n")
    ), page.stderr
    assert judge.ours(lab) == []
