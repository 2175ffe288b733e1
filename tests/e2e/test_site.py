"""The site and the live pages in a real browser: found, sorted, compared, read without a script,
followed, and ended.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from matplotlib.image import imread

from orchestrator import lab as labs
from orchestrator.features.site.build import build
from orchestrator.record import BenchDir, Project
from tests.e2e.rig import LONG, Controller
from tests.support import judge
from tests.support.benches import bench
from tests.support.browser import Browser, browser
from tests.support.run_folders import build as build_run

SHOWN = "[...document.querySelectorAll('#benches tbody tr')]"
SHOWN += ".filter((row) => row.offsetParent).map((row) => row.cells[1].innerText)"
TOO_WIDE = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
OVERVIEWS = ("index", "trends", "compare", "nodes", "acceptances")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site of three benches, one with a hostile label."""
    root = tmp_path_factory.mktemp("project")
    bench(
        root / "runs",
        "one",
        "2026-10-01T08:00:00Z",
        [1.0] * 5,
        label="<script>document.title='x'</script>",
    )
    bench(root / "runs", "two", "2026-10-02T08:00:00Z", [0.7] * 5)
    bench(root / "runs", "three", "2026-10-03T08:00:00Z", [0.5], label="nightly")
    build(Project(root), root / "www")
    return root / "www"


@pytest.fixture(scope="module")
def page(site: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("home")) as opened:
        yield opened


def open_page(page: Browser, site: Path, name: str) -> None:
    page.open((site / name).as_uri())
    assert page.complaints == [] and page.eval("document.title").endswith("· orch")


def test_the_list_is_searched_and_sorted(page: Browser, site: Path) -> None:
    page.window(1240, 900)
    open_page(page, site, "index.html")
    assert page.eval(SHOWN) == ["three", "two", "one"]
    page.eval("document.getElementById('search').focus()")
    page.type("2026-10 night")
    assert (
        page.eval(SHOWN) == ["three"]
        and page.eval("document.querySelector('output').textContent") == "1 of 3"
    )
    page.eval("document.getElementById('search').select()")
    page.type("<script>")
    assert page.eval(SHOWN) == ["one"]
    open_page(page, site, "index.html")
    for order in (["one", "three", "two"], ["two", "three", "one"]):
        page.eval("document.querySelectorAll('#benches th button')[1].focus()")
        page.press("Enter", 13)
        assert page.eval(SHOWN) == order
    assert (
        page.eval("document.querySelectorAll('#benches thead th')[1].getAttribute('aria-sort')")
        == "descending"
    )


def test_two_benches_that_measured_the_same_lead_to_their_page(page: Browser, site: Path) -> None:
    open_page(page, site, "compare.html")
    choose = "document.getElementById('first').value = '{}'; document.getElementById('second').value = '{}'; "
    press = "document.querySelector('form button').click()"
    page.eval(choose.format(1, 1) + press)
    assert page.eval("document.querySelector('output').textContent") == "choose two benches"
    page.eval(
        choose.format(1, 0) + f"setTimeout(() => {press})"
    )  # the page that answers may not be gone before it has
    page.wait_for(
        "location.pathname.endsWith('compare/two.html') && document.readyState === 'complete'"
    )
    assert (
        page.eval("location.hash") == "#one"
        and page.eval("document.querySelector(':target h2').innerText") == "After one"
    )
    assert (
        "faster" in page.eval("document.querySelector('table').innerText") and page.complaints == []
    )


def test_any_two_other_benches_are_shown_side_by_side_with_the_command_that_judges_them(
    page: Browser, tmp_path: Path
) -> None:
    bench(tmp_path / "runs", "old", "2026-10-01T08:00:00Z", [1.0] * 4)
    other = BenchDir.create(
        tmp_path / "runs",
        {"bench_id": "new", "created": "2026-10-02T08:00:00Z", "runs": ["n1", "n2"]},
    )

    def as_other_model(planned: dict[str, Any], logs: list[dict[str, str]]) -> None:
        planned["spec"] |= {"model": "vgg16", "options": {"x": "</script><img src=//e.com>"}}
        for files in logs:
            files |= {
                name: text.replace('"model": "resnet50"', '"model": "vgg16"')
                for name, text in files.items()
            }

    for run_id in ("n1", "n2"):
        build_run(other, run_id, as_other_model, seconds=0.5)
    build(Project(tmp_path), tmp_path / "www")
    assert not list((tmp_path / "www" / "compare").iterdir())  # no page compares them
    page.window(1240, 900)
    open_page(page, tmp_path / "www", "compare.html")
    assert page.eval("document.querySelector('#pair').offsetParent === null")
    page.eval("document.querySelector('form button').click()")
    page.wait_for("document.querySelector('#pair').offsetParent !== null")
    assert page.eval("document.activeElement.innerText") == "old and new"
    assert page.eval("document.querySelector('#pair code').innerText") == "orch compare old new"
    rows = page.eval(
        "[...document.querySelectorAll('#pair tbody tr')].map((row) => [...row.cells].map((cell) => cell.innerText))"
    )
    ((configuration, metric, first, _, n, second, _, n_second, change, differing),) = rows
    assert (configuration, metric, n, n_second) == (
        "pytorch resnet50 2n2g",
        "samples_per_s, samples/s",
        "4",
        "2",
    )
    assert (first, second, change) == ("64.00", "128.00", "+100.0%")
    assert (
        "model: resnet50 → vgg16" in differing
        and "x: (not set) → </script><img src=//e.com>" in differing
    )
    assert page.eval("document.querySelectorAll('#pair img').length") == 0 and not page.eval(
        TOO_WIDE
    )
    page.window(380, 800)
    assert not page.eval(TOO_WIDE) and page.complaints == []


def test_everything_can_be_read_without_a_script(page: Browser, site: Path) -> None:
    page.scripts(are_allowed=False)
    try:
        for name in OVERVIEWS:
            open_page(page, site, f"{name}.html")
            assert (
                page.eval(
                    "[...document.querySelectorAll('form')].filter((form) => form.offsetParent).length"
                )
                == 0
            )
        open_page(page, site, "compare.html")
        assert (
            page.eval("document.querySelector('td a').getAttribute('href')") == "compare/three.html"
        )
        assert page.eval("document.querySelector('#pair').offsetParent === null")
        assert "orch compare A B" in page.eval("document.querySelector('main').innerText")
    finally:
        page.scripts(are_allowed=True)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_page_needs_scrolling_to_the_side_in_a_narrow_window(
    page: Browser, site: Path, tmp_path: Path, scheme: str
) -> None:
    page.window(375, 800, scheme)
    for name in (*OVERVIEWS, "benches/one", "compare/two"):
        open_page(page, site, f"{name}.html")
        assert not page.eval(TOO_WIDE), name
    open_page(page, site, "index.html")
    page.shot(tmp_path / "shot.png")
    corner = imread(tmp_path / "shot.png")[2, 2, :3]
    assert corner.min() > 0.95 if scheme == "light" else corner.max() < 0.15


def test_pages_have_headings_landmarks_and_names_for_a_reader_of_the_screen(
    page: Browser, site: Path
) -> None:
    page.window(1240, 900)
    for name in (*OVERVIEWS, "compare/two"):
        open_page(page, site, f"{name}.html")
        levels = page.eval(
            "[...document.querySelectorAll('h1,h2,h3,h4')].map((heading) => Number(heading.tagName[1]))"
        )
        assert levels[0] == 1 and levels.count(1) == 1
        assert all(
            later - earlier <= 1 for earlier, later in zip(levels, levels[1:], strict=False)
        ), (name, levels)
        assert page.eval("document.querySelectorAll('main, header').length") == 2
        assert page.eval(
            "[...document.querySelectorAll('nav, svg, [role=region]')].every((e) => e.getAttribute('aria-label'))"
        )
        assert page.eval(
            "[...document.querySelectorAll('input, select')].every((e) => e.labels.length)"
        )
        assert page.eval("[...document.querySelectorAll('th')].every((e) => e.scope)")
        page.eval("document.activeElement.blur()")
        page.press("Tab", 9)
        assert page.eval("document.activeElement.className") == "skip", name


def processes_of(project: Path) -> list[str]:
    """Return the command lines of all processes that were started for a project."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"HOME={project}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return found


def test_a_detached_bench_is_followed_live_and_ctrl_c_leaves_no_process(
    controller: Controller, tmp_path: Path
) -> None:
    controller.forks = False  # its processes are known by their environment
    begun = controller.orch(
        "bench", *LONG, "--nodes", "2", "--gpus", "1", "--label", "<b>live</b>", "--detach"
    )
    assert begun.code == 0, begun
    controller.wait_for_step(2)
    opener = tmp_path / "browser.sh"
    opener.write_text(
        f'#!/bin/sh\ncp "${{1#file://}}" {tmp_path}/opened; printf %s "$1" >{tmp_path}/shown\n'
    )
    opener.chmod(0o755)
    controller.environment["BROWSER"] = f"{opener} %s"
    serving = controller.start("serve", "--open")
    assert serving.stdout
    address = serving.stdout.readline().strip()
    assert re.fullmatch(r"http://127\.0\.0\.1:[0-9]+/[\w-]{32}/", address)
    judge.wait_for((tmp_path / "shown").exists, 10, "no browser was started")
    door = Path((tmp_path / "shown").read_text().removeprefix("file://"))
    # The list of processes shows the words of a browser to all users: the token is in a file of
    # this user.
    assert address.split("/")[3] not in str(door) and address in (tmp_path / "opened").read_text()
    assert door.stat().st_mode & 0o777 == 0o600
    (tmp_path / "home").mkdir()
    with browser(tmp_path / "home", labs.argv_inside(controller.lab, [])) as page:
        page.window(1240, 900)
        page.open(address)
        page.wait_for("document.querySelector('h2').innerText === '<b>live</b>'")
        page.eval("document.querySelector('h2 a').click()")
        page.wait_for("location.pathname.includes('/live/') && document.readyState === 'complete'")
        step = "Number((/.*step=(\\d+) /s.exec(document.querySelector('#log pre').innerText) ?? [0, 0])[1])"
        page.wait_for(f"{step} > 2")
        first = page.eval(step)
        page.wait_for(f"{step} > {first + 5}")  # by itself
        page.wait_for("document.querySelectorAll('#nodes polyline').length >= 2")
        assert "in progress" in page.eval("document.querySelector('main').innerText")
        page.eval(
            "[...document.querySelectorAll('.logs a')].find((link) => link.innerText === 'rank-1.out').click()"
        )
        page.wait_for("document.querySelector('#log pre')?.innerText.includes('rank=1 ')")
        assert page.complaints == []
        page.open(f"{address}site/index.html")
        page.wait_for(
            "document.querySelector('h1')?.innerText === 'Benches'"
        )  # when it is made, by itself
        assert (
            page.eval("[...document.querySelectorAll('nav a')].map((link) => link.innerText)")[0]
            == "Live"
        )
        page.open(address.replace("127.0.0.1", "localhost")[:-2] + "/")
        assert "needs the token" in page.eval("document.body.innerText")
        serving.send_signal(signal.SIGINT)
        done = controller.end(serving, 15)
    assert done.code == 0 and "Traceback" not in done.err and not door.exists(), done
    assert controller.orch("cancel", controller.bench.name).code == 0
    judge.wait_for(
        lambda: not processes_of(controller.project),
        10,
        lambda: "\n".join(processes_of(controller.project)),
    )
    assert os.listdir(controller.project / ".orch" / "site").count("index.html") == 1
