"""Links in README.md, CHANGELOG.md and docs/: each leads to a file that exists, and to a heading that the file has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
PAGES = sorted([REPOSITORY / "README.md", REPOSITORY / "CHANGELOG.md", *(REPOSITORY / "docs").rglob("*.md")])
LINK = re.compile(r"\]\(([^()\s]+)\)")
CODE = re.compile(r"(?ms)^ *```.*?^ *```$|``[^\n]*?``|`[^`\n]*`")


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them: small letters, no punctuation, dashes for spaces."""
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
    assert "slurm" in anchors(REPOSITORY / "docs" / "slurm.md") and "slurms" not in anchors(REPOSITORY / "docs" / "slurm.md")
    assert LINK.findall("see [a](b.md#c), `[no](code.md)`") == ["b.md#c", "code.md"]
    assert LINK.findall(CODE.sub("", "see [a](b.md#c), `[no](code.md)`")) == ["b.md#c"]
