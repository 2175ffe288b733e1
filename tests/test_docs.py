"""Links in README.md, CHANGELOG.md, CONTRIBUTING.md and docs/: each leads to a file that exists,
and to a heading that the file has. The names in recipes. And what is made of pages: the site and
the manual page."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.cli.main import MODULES
from tests.support.judge import LIMIT_S

REPOSITORY = Path(__file__).resolve().parents[1]
TOP = [REPOSITORY / f"{name}.md" for name in ("README", "CHANGELOG", "CONTRIBUTING")]
PAGES = sorted([*TOP, *(REPOSITORY / "docs").rglob("*.md")])
LINK = re.compile(r"\]\(([^()\s]+)\)")
NAMED = re.compile(r"`(\w+)`[^`.;:]{0,20}? of\s+`([\w/]+\.py)`")
CODE = re.compile(r"(?ms)^ *```.*?^ *```$|``[^\n]*?``|`[^`\n]*`")


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them: small letters, no punctuation, dashes
    for spaces.
    """
    names: list[str] = []
    text = re.sub(r"(?ms)^ *```.*?^ *```$", "", page.read_text(encoding="utf-8"))
    for heading in re.findall(r"(?m)^#+ +(.+?) *$", text):
        name = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        same = sum(name == re.sub(r"-\d+$", "", other) for other in names)
        names.append(f"{name}-{same}" if name in names else name)
    return set(names)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_every_link_leads_somewhere(page: Path) -> None:
    dead = []
    for target in LINK.findall(CODE.sub("", page.read_text(encoding="utf-8"))):
        if target.startswith(("http://", "https://", "mailto:")):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        if not file.exists() or (anchor and file.suffix == ".md" and anchor not in anchors(file)):
            dead.append(target)
    assert dead == []


def test_a_dead_link_would_be_seen() -> None:
    assert "slurm" in anchors(REPOSITORY / "docs" / "slurm.md") and "slurms" not in anchors(
        REPOSITORY / "docs" / "slurm.md"
    )
    assert LINK.findall("see [a](b.md#c), `[no](code.md)`") == ["b.md#c", "code.md"]
    assert LINK.findall(CODE.sub("", "see [a](b.md#c), `[no](code.md)`")) == ["b.md#c"]


def test_recipes_name_files_that_exist_and_what_is_in_them() -> None:
    text = (REPOSITORY / "docs" / "develop.md").read_text(encoding="utf-8")
    sources = {
        f"/{path.relative_to(REPOSITORY)}": path.read_text(encoding="utf-8")
        for folder in ("orchestrator", "remote", "tests")
        for path in (REPOSITORY / folder).rglob("*.py")
    }

    def is_there(file: str, word: str) -> bool:
        found = [source for path, source in sources.items() if path.endswith(f"/{file}")]
        return any(re.search(rf"\b{word}\b", source) for source in found)

    named = [*NAMED.findall(text), *(("", file) for file in re.findall(r"`([\w/]+\.py)`", text))]
    assert {"_COLUMNS", "op_facts", "OPTIONS"} <= {word for word, _ in named}
    assert [f"{word} of {file}" for word, file in named if not is_there(file, word)] == []


def test_the_site_is_built_without_a_warning_and_has_every_page(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    site = tmp_path / "site"
    build = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--quiet",
        "--strict",
        "--site-dir",
        str(site),
    ]
    done = subprocess.run(
        build, cwd=REPOSITORY, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert {path.stem for path in PAGES} - {path.stem for path in TOP} <= {
        path.stem for path in site.rglob("*.html")
    }
    start = (site / "index.html").read_text(encoding="utf-8")
    assert (
        '<a href="metrics.html#language-models">' in start
        and '<a href="files/inventory/cluster.yaml">' in start
    )
    assert 'id="orch-lab-up"' in (site / "commands.html").read_text(encoding="utf-8")


def test_the_manual_page_has_every_command_and_option_and_man_reads_it(tmp_path: Path) -> None:
    page = tmp_path / "orch.1"
    make = [sys.executable, str(REPOSITORY / "docs" / "reference.py"), "man", "2026-01-01"]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    page.write_bytes(
        subprocess.run(
            make, env=environment, capture_output=True, timeout=LIMIT_S, check=True
        ).stdout
    )
    text = page.read_text(encoding="utf-8")
    names = [name for commands in MODULES.values() for name in commands]
    assert re.findall(r"^\.SH ORCH (\w+)$", text, re.MULTILINE) == [name.upper() for name in names]
    assert (
        ".SH ORCH LAB UP\n" in text
        and "\\-\\-until\\-ci 1%" in text
        and "\\fBORCH_PROJECT\\fR" in text
    )
    if not shutil.which("groff"):
        pytest.skip("needs groff, which comes with man")
    shown = subprocess.run(
        ["groff", "-man", "-Tutf8", "-ww", str(page)],
        capture_output=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert (shown.returncode, shown.stderr) == (0, b""), shown.stderr.decode()
