"""The page of a bench that was really run, as a browser sees it: whole, inert, offline, in light
and dark and on paper.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from matplotlib.image import imread

from orchestrator.lab import Lab
from orchestrator.record.rundir import BenchDir
from tests.e2e.rig import ORCH, SMALL, Controller, outer_environment
from tests.support.judge import LIMIT_S

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
HOSTILE = '</style></pre></svg><script>document.title="x"</script><img src="//example.com"> $\\frac$ \x1b[2J \u202egnp & <b>\'"'


@pytest.fixture(scope="module")
def bench(shared_lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bench of three cells, the largest of which fails, far from the lab and from every project."""
    made = Controller(shared_lab, tmp_path_factory.mktemp("project"))
    words = [
        "--set",
        "compute_ms=5",
        "--set",
        "fail_at_step=6",
        "--set",
        "fail_rank=3",
        "--set",
        "fail_mode=oom-print",
    ]
    done = made.orch(
        "bench",
        *SMALL[:5],
        *words,
        "--shape",
        "1n1g,2n1g,4n1g",
        "--repeats",
        "3",
        "--keep-going",
        "--steps",
        "8",
        "--warmup-steps",
        "2",
    )
    assert done.code == 1, done
    copy = tmp_path_factory.mktemp("laptop") / "copied"
    shutil.copytree(made.bench, copy)
    shutil.rmtree(made.bench)
    return copy


def summarize(bench: Path, *words: str, **environment: str) -> str:
    """Run the command where there is no network, with the bench mounted read-only."""
    script = 'mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" && shift && exec "$@"'
    done = subprocess.run(
        ["unshare", "--net", "--mount", "sh", "-c", script, "-", str(bench), *ORCH, "summarize", str(bench), *words],
        cwd=bench.parent, env=outer_environment(bench.parent) | environment, capture_output=True, text=True, timeout=LIMIT_S,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0 and not done.stderr, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def page(bench: Path) -> str:
    return summarize(bench, "--format", "html", "--against", "published")


@pytest.fixture(scope="module")
def tree(page: str) -> ET.Element:
    return ET.fromstring(page)


def words_of(element: ET.Element) -> str:
    return re.sub(r"\s+", " ", "".join(element.itertext()))


def test_the_page_is_well_formed_and_nothing_in_it_runs_or_is_fetched(
    page: str, tree: ET.Element
) -> None:
    assert page.startswith("<!DOCTYPE html>") and "http:" not in page and "https:" not in page
    elements = list(tree.iter())
    assert {element.tag for element in elements} & {
        "script",
        "link",
        "img",
        "image",
        "iframe",
        "object",
        "foreignObject",
    } == set()
    attributes = [(name, value) for element in elements for name, value in element.attrib.items()]
    assert not [
        name
        for name, _ in attributes
        if name.startswith("on") or name in ("src", "style", "srcset", "action")
    ]
    assert all(value.startswith("#") for name, value in attributes if name == "href")
    assert not re.search(r"url\((?!#)|@import|expression\(", page)
    policy = next(
        element for element in elements if element.get("http-equiv") == "Content-Security-Policy"
    )
    assert (policy.get("content") or "").startswith("default-src 'none'; style-src 'sha256-")


def test_every_id_is_there_once_and_every_reference_finds_one(tree: ET.Element) -> None:
    ids = [element.get("id") for element in tree.iter() if element.get("id")]
    assert len(ids) == len(set(ids))
    values = [value for element in tree.iter() for value in element.attrib.values()]
    wanted = {found for value in values for found in re.findall(r"^#(.+)|url\(#(.+?)\)", value)}
    assert {one or other for one, other in wanted} <= set(ids)


def test_the_same_evidence_gives_the_same_bytes(bench: Path, page: str) -> None:
    assert (
        summarize(
            bench, "--format", "html", "--against", "published", PYTHONHASHSEED="7", TZ="Asia/Tokyo"
        )
        == page
    )


def test_numbers_qualifications_and_failures_are_those_of_the_table(
    bench: Path, page: str, tree: ET.Element
) -> None:
    found = json.loads(summarize(bench, "--json"))
    (table,) = (one for one in tree.iter("table") if "ms/step" in words_of(one))
    names = [words_of(cell).strip() for cell in next(table.iter("tr"))]
    cells = {
        words_of(row[0]): [words_of(cell) for cell in row]
        for row in table.iter("tr")
        if row[0].tag == "td"
    }
    assert [row["shape"] for row in found["rows"]] == ["1n1g", "2n1g", "4n1g"] == list(cells)
    for row in found["rows"]:
        speed = row["median"]
        assert cells[row["shape"]][names.index("median")].strip() == (
            "–" if speed is None else f"{speed:.2f}"
        )
        (card,) = (one for one in tree.iter("article") if words_of(one[0]) == row["shape"])
        for text in (*row["qualifications"], *row["failures"]):
            assert text in words_of(card) and text in words_of(tree)
    assert cells["4n1g"][1] == "0 (3 failed)"
    assert all(": the GPU had no memory left; " in text for text in found["rows"][2]["failures"])
    (failed,) = (one for one in tree.iter("section") if one.get("id") == "failed")
    assert all(run_id in words_of(failed) for run_id in found["rows"][2]["run_ids"])
    assert "CUDA out of memory" in words_of(failed) and "node4" in words_of(failed)
    assert "SIMULATED" in words_of(tree)


def test_every_cell_has_its_pictures_and_every_picture_a_name(tree: ET.Element) -> None:
    named = [
        [svg.get("aria-label", "") for svg in card.iter("svg")] for card in tree.iter("article")
    ]
    # On a busy machine these runs last long enough to be sampled, and have one picture more.
    pictures = [[name for name in names if not name.startswith("Use of ")] for names in named]
    whole = [
        "Speed of 3 repeats in execution order",
        "Speed over time in 3 runs",
        "Phases of 3 runs",
    ]
    assert [
        [name[: len(start)] for name, start in zip(names, whole, strict=True)]
        for names in pictures[:2]
    ] == [whole, whole]
    assert len(pictures[2]) == 2  # nothing was measured, so there is no tempo
    text = words_of(tree)
    for wanted in (
        "NODE_RANK=0",
        "+export WORLD_SIZE=4",
        "--fail-mode oom-print",
        "runner python",
        "master",
        "--shape 1n1g,2n1g,4n1g",
    ):
        assert wanted in text


class Tags(HTMLParser):
    """Counts the elements of a document."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)


def browse(page: Path, *words: str) -> bytes:
    """Open a page in a browser without a network; return what it prints."""
    if BROWSER is None:
        pytest.skip("no Chromium here")
    home = page.parent / "browser"
    flags = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        f"--user-data-dir={home}",
        "--virtual-time-budget=3000",
    ]
    argv = ["unshare", "--net", BROWSER, *flags, *words, page.as_uri()]
    done = subprocess.run(
        argv,
        capture_output=True,
        timeout=LIMIT_S,
        check=True,
        env=os.environ | {"HOME": str(page.parent)},
    )
    assert b"Refused" not in done.stderr and b"Content Security" not in done.stderr, done.stderr
    return done.stdout


@pytest.fixture
def file(tmp_path: Path, page: str) -> Iterator[Path]:
    path = tmp_path / "report.html"
    path.write_text(page)
    yield path


def test_a_browser_draws_it_in_light_and_in_dark(file: Path) -> None:
    shots = []
    for scheme in ("0", "1"):
        target = file.parent / f"{scheme}.png"
        browse(
            file,
            f"--blink-settings=preferredColorScheme={scheme}",
            "--window-size=1240,2000",
            f"--screenshot={target}",
        )
        shots.append(imread(target)[..., :3])
    dark, light = shots
    assert dark.shape == light.shape == (2000, 1240, 3)
    assert light[5, 5].min() > 0.95 and dark[5, 5].max() < 0.15
    assert all(
        0.02 < float((abs(shot - shot[5, 5]).max(axis=2) > 0.1).mean()) < 0.5 for shot in shots
    )
    # In a chart, text and lines are as bright as the page is dark: they follow its variables.
    assert dark.max() > 0.85 and light.min() < 0.2


def test_a_narrow_window_needs_no_scrolling_to_the_side(file: Path) -> None:
    # Headless Chromium lays out at 500 pixels and more; what sticks out would be cut off, and its
    # column would not be paper.
    target = file.parent / "narrow.png"
    browse(
        file,
        "--blink-settings=preferredColorScheme=1",
        "--window-size=500,6000",
        f"--screenshot={target}",
    )
    edge = imread(target)[:, -6:, :3]
    assert float(edge.min()) > 0.95


def test_it_prints(file: Path) -> None:
    target = file.parent / "report.pdf"
    browse(file, "--no-pdf-header-footer", f"--print-to-pdf={target}")
    data = target.read_bytes()
    assert data.startswith(b"%PDF") and len(re.findall(rb"/Type\s*/Page\b", data)) >= 3


def spoil_manifest(manifest: dict[str, Any]) -> None:
    manifest["facts"]["node1"] |= {"cpu": HOSTILE, HOSTILE: HOSTILE}
    manifest["origins"] = {}
    manifest["spec"]["options"]["fail_mode"] = HOSTILE


def hostile_copy(bench: Path, target: Path) -> Path:
    """Copy a bench, with markup in every text that a node, a log or a bench file may hold; all its
    digests are true.
    """
    shutil.copytree(bench, target)
    made = BenchDir(target)
    words, gone = ("orch", HOSTILE), {"gone": HOSTILE}
    made.change(
        lambda old: replace(
            old, bench_id=HOSTILE, created=HOSTILE, orch=HOSTILE, argv=words, superseded=gone
        )
    )
    for run in made.runs():
        manifest = run.manifest_content()
        spoil_manifest(manifest)
        if manifest["outcome"]["error"]:
            manifest["outcome"]["error"] |= {"message": HOSTILE, "hint": HOSTILE}
        run.write_manifest(manifest)
        log, record = run.log_path("node1", "rank-0.out"), run.exit_content("node1") or {}
        data = (
            log.read_text()
            .replace('"framework_version": "1"', f'"framework_version": {json.dumps(HOSTILE)}')
            .encode()
        )
        run.write_log("node1", "rank-0.out", data)
        record["files"]["rank-0.out"] = {
            "bytes": len(data),
            "sha256": hashlib.sha256(data).hexdigest(),
        }
        run.write_log("node1", "exit.json", json.dumps(record).encode())
        run.write_rendered("node1", "launch.sh", HOSTILE.encode())
    return target


def test_text_of_nodes_logs_and_files_never_becomes_markup(
    bench: Path, tmp_path: Path, page: str
) -> None:
    hostile = summarize(hostile_copy(bench, tmp_path / "hostile"), "--format", "html")
    tree = ET.fromstring(hostile)
    shown = HOSTILE.replace("\x1b", "\\x1b").replace("\u202e", "\\u202e")
    sections = {section.get("id"): words_of(section) for section in tree.iter("section")}
    for name in ("failed", "s1", "notes", "environment", "files", "commands"):
        assert "<script>document.title=" in sections[name], name
    assert shown in sections["environment"] and shown in words_of(tree[0]) + words_of(tree[1][0])
    assert "\x1b" not in hostile and "\u202e" not in hostile
    assert {element.tag for element in tree.iter()} <= {
        element.tag for element in ET.fromstring(page).iter()
    }

    path = tmp_path / "report.html"
    path.write_text(hostile)
    seen = browse(path, "--dump-dom").decode()
    assert set(Tags(seen).tags) & {"script", "img", "b"} == set()
    assert seen.count("&lt;script&gt;") >= 12


def test_open_writes_the_page_into_the_bench_and_shows_it(bench: Path, tmp_path: Path) -> None:
    copy = tmp_path / "bench"
    shutil.copytree(bench, copy)
    browser = tmp_path / "browser.sh"
    browser.write_text(f'#!/bin/sh\nprintf %s "$1" >{tmp_path}/shown\n')
    browser.chmod(0o755)

    def opened(**environment: str) -> subprocess.CompletedProcess[str]:
        variables = outer_environment(tmp_path) | environment
        argv = [*ORCH, "summarize", str(copy), "--open"]
        return subprocess.run(
            argv, env=variables, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )

    done = opened(BROWSER=f"{browser} %s")
    path = copy / "report.html"
    assert (done.returncode, done.stdout) == (0, f"{path}\n"), done.stderr
    assert (
        tmp_path / "shown"
    ).read_text() == path.as_uri() and path.stat().st_mode & 0o777 == 0o600
    assert path.read_text() == summarize(copy, "--format", "html")
    bare = opened(PATH="/nonexistent", BROWSER="", DISPLAY="", WAYLAND_DISPLAY="")
    assert (bare.returncode, bare.stdout) == (
        0,
        f"{path}\n",
    ) and "no browser on this machine" in bare.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--format", "html", "--rule", "dlperf"), "with its own window"),
        (("--open", "--format", "csv"), "expected table or html with --open, got csv"),
        (("--open", "--json"), "expected table or html with --open, got json"),
    ],
)
def test_what_a_page_cannot_show_is_refused(bench: Path, words: tuple[str, ...], said: str) -> None:
    done = subprocess.run(
        [*ORCH, "summarize", str(bench), *words], env=outer_environment(bench.parent), capture_output=True, text=True,
        timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "") and said in done.stderr
