"""A site: every link leads somewhere, only what changed is made again, and nothing in a bench
becomes markup.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote_to_bytes

import pytest

from orchestrator.analysis.compare import compare
from orchestrator.features.site.build import Built, build
from orchestrator.files import write_atomic
from orchestrator.record import BenchDir, Project, node_states
from orchestrator.record.node_states import GOOD, OUT, NodeState
from orchestrator.report.compare import change
from tests.support.acceptances import acceptance
from tests.support.benches import bench

HOSTILE = '</style></td></script><script>document.title="x"</script><img src=//e.com onerror=a()> \x1b[2J \u202egnp & \'"'
STEADY = [1.0, 1.01, 0.99, 1.0, 1.005]
SCRIPTS = {
    "index.html": 1,
    "trends.html": 1,
    "compare.html": 2,
    "nodes.html": 1,
    "acceptances.html": 1,
}
"""Scripts of each overview: the one of all of them, and the data from which two benches are chosen.
"""


class Page(HTMLParser):
    """What a page has: its elements, ids, links and texts."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path, self.tags, self.ids, self.links, self.text = (
            path,
            list[str](),
            set[str](),
            list[str](),
            "",
        )
        self.attributes: list[tuple[str, str]] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        self.ids |= {value for name, value in attrs if name == "id" and value}
        self.links += [value for name, value in attrs if name == "href" and value]

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """Three benches of one configuration, the newest of which is slower, and an acceptance with a
    node that fails.
    """
    bench(tmp_path / "runs", "a", "2026-10-01T08:00:00Z", STEADY, label="first")
    bench(tmp_path / "runs", "b", "2026-10-02T08:00:00Z", STEADY)
    bench(tmp_path / "runs", "c", "2026-10-03T08:00:00Z", [1.3 * seconds for seconds in STEADY])
    acceptance(tmp_path / "runs", {0: [500.0] * 5}, nodes=4)
    return Project(tmp_path)


def built(project: Project) -> tuple[Path, Built]:
    site = project.root / "www"
    return site, build(project, site)


def pages_of(site: Path) -> dict[str, Page]:
    return {str(path.relative_to(site)): Page(path) for path in sorted(site.rglob("*.html"))}


def dead_links(site: Path) -> list[str]:
    """Return the links of a site that lead nowhere in it, or out of it."""
    pages, dead = pages_of(site), []
    for name, page in pages.items():
        for link in page.links:
            address, _, anchor = link.partition("#")
            target = (
                os.path.normpath(
                    os.path.join(os.path.dirname(name), os.fsdecode(unquote_to_bytes(address)))
                )
                if address
                else name
            )
            if target not in pages or (anchor and anchor not in pages[target].ids):
                dead.append(f"{name}: {link}")
    return dead


def test_every_link_of_every_page_leads_to_a_page_and_a_place_in_it(project: Project) -> None:
    site, told = built(project)
    pages = pages_of(site)
    assert dead_links(site) == [] and told.damaged == {}
    assert told.pages == told.made + len(SCRIPTS) == len(pages)
    assert {name for name in pages if "/" in name} == {
        *(f"benches/{name}.html" for name in ("a", "b", "c", "a1-small~a1-small.bench")),
        "compare/b.html", "compare/c.html", "acceptances/a1-small.html",
    }  # fmt: skip
    reached, ahead = set[str](), ["index.html"]
    while ahead:
        if (name := ahead.pop()) not in reached:
            reached.add(name)
            addresses = filter(None, (link.partition("#")[0] for link in pages[name].links))
            ahead += [
                os.path.normpath(os.path.join(os.path.dirname(name), address))
                for address in addresses
            ]
    assert reached >= set(pages)


def test_nothing_is_loaded_and_no_script_runs_but_the_one_of_the_overviews(
    project: Project,
) -> None:
    site, _ = built(project)
    for name, page in pages_of(site).items():
        assert page.tags.count("script") == (
            SCRIPTS[name] if name in SCRIPTS else int("compare/" in name)
        ), name
        assert set(page.tags) & {"img", "iframe", "object", "link", "base"} == set(), name
        assert not [
            a
            for a in page.attributes
            if a[0].startswith("on") or a[0] in ("src", "style", "action")
        ], name
        policy = dict(page.attributes).get("content", "")
        text = page.path.read_text(encoding="utf-8")
        assert (
            "default-src 'none'" in text
            and "unsafe" not in policy
            and not re.search(r"https?:|@import|url\((?!#)", text)
        ), name


def test_a_change_is_compared_with_the_bench_before_as_orch_compare_does(project: Project) -> None:
    site, _ = built(project)
    text = Page(site / "compare" / "c.html").text
    comparison, _ = compare(BenchDir.open(project.runs / "b"), BenchDir.open(project.runs / "c"))
    (pair,) = comparison.pairs
    assert (
        pair.verdict == "slower"
        and f"2n2g samples_per_s is slower, {change(pair)}: possible causes" in text
    )
    # The one before that is there too, by its numbers alone.
    assert (
        "Beside further earlier benches" in text
        and 'id="a"' in (site / "compare" / "c.html").read_text()
    )
    assert not (site / "compare" / "a.html").exists()


def test_trends_have_each_bench_with_its_interval_and_nodes_what_happened_to_them(
    project: Project,
) -> None:
    was = NodeState(OUT, "10.11.0.2", "sent back", "", "2026-10-01T08:00:00Z")
    node_states.change(project.nodes, lambda _: {"node1": was})
    passed = NodeState(GOOD, "10.11.0.2", "passed", "a1-small", "2026-11-24T09:00:00Z")
    node_states.change(project.nodes, lambda _: {"node1": passed})
    site, _ = built(project)
    trends, nodes = Page(site / "trends.html"), Page(site / "nodes.html")
    assert [trends.text.count(f"2026-10-0{day} 08:00") for day in (1, 2, 3)] == [1, 1, 1]
    assert (
        "over the time of 3 benches" in (site / "trends.html").read_text()
        and "64.00" not in trends.text.split("95%")[0]
    )
    shown = re.sub(r"\s+", " ", nodes.text)
    assert (
        "good since 2026-11-24T09:00:00Z at 10.11.0.2: passed (a1-small) out since 2026-10-01T08:00:00Z"
        in shown
    )
    assert (
        "fail 2026-11-24T08:00:00Z, a1-small: " in shown
    )  # the acceptance, of the first node's only device


def test_only_pages_whose_evidence_has_changed_are_made_again(project: Project) -> None:
    site, _ = built(project)
    before = {path: path.stat().st_ino for path in site.rglob("*/*.html")}
    _, again = built(project)
    assert (
        again.made == 0 and {path: path.stat().st_ino for path in site.rglob("*/*.html")} == before
    )

    log = project.runs / "b" / "b-2" / "logs" / "node1" / "rank-0.out"
    log.write_bytes(log.read_bytes() + b"one more line\n")
    _, changed = built(project)
    # Its own page, and the two comparisons that it is part of.
    made = {path.relative_to(site) for path, inode in before.items() if path.stat().st_ino != inode}
    assert (
        sorted(map(str, made)) == ["benches/b.html", "compare/b.html", "compare/c.html"]
        and changed.made == 3
    )
    assert list(changed.damaged) == ["b-2"] and "b-2" in Page(site / "index.html").text

    shutil.rmtree(project.runs / "b")
    built(project)
    assert (
        not (site / "benches" / "b.html").exists()
        and "After a" in Page(site / "compare" / "c.html").text
    )
    assert dead_links(site) == []


def test_pages_with_another_page_above_the_site_are_made_anew(project: Project) -> None:
    site, first = built(project)
    assert build(project, site, home="../").made == first.made
    assert all("../../" in page.links for name, page in pages_of(site).items() if "/" in name)
    built(project)
    assert dead_links(site) == []


def test_a_site_whose_state_is_damaged_is_made_anew(project: Project) -> None:
    site, first = built(project)
    index = re.sub("as of [^<]*", "", (site / "index.html").read_text())
    for content in (b"", b"[]", b'{"schema": 1}', b"\xff" * 50):
        (site / "orch-site.json").write_bytes(content)
        assert built(project)[1] == first, content
        assert re.sub("as of [^<]*", "", (site / "index.html").read_text()) == index, content


def test_what_is_damaged_is_listed_with_the_reason_and_the_rest_is_shown(project: Project) -> None:
    record = project.runs / "b" / "bench.json"
    record.write_bytes(record.read_bytes()[:40])
    (project.runs / "a1-small" / "acceptance.json").write_text("{}")
    (project.nodes.parent).mkdir()
    project.nodes.write_text("{")
    site, told = built(project)
    assert list(told.damaged) == ["nodes", "b", "a1-small"] and all(
        "expected" in why for why in told.damaged.values()
    )
    index = Page(site / "index.html")
    assert all(why in index.text for why in told.damaged.values()) and dead_links(site) == []
    assert "benches/c.html" in index.links and "benches/b.html" not in index.links
    assert "After a" in Page(site / "compare" / "c.html").text


def test_a_project_without_a_bench_says_how_to_make_one(tmp_path: Path) -> None:
    site, told = built(Project(tmp_path))
    assert (told.pages, told.made) == (5, 0) and dead_links(site) == []
    assert "no bench yet" in Page(site / "index.html").text


def test_a_single_bench_has_a_page_and_nothing_to_be_compared_with(tmp_path: Path) -> None:
    bench(tmp_path / "runs", "a", "2026-10-01T08:00:00Z", STEADY)
    site, _ = built(Project(tmp_path))
    assert dead_links(site) == [] and "none measured the same" in Page(site / "compare.html").text
    assert "Measured in one bench so far" in Page(site / "trends.html").text


def test_text_of_benches_hosts_and_folders_never_becomes_markup(project: Project) -> None:
    plain, _ = built(project)
    tags = {name: set(page.tags) for name, page in pages_of(plain).items()}
    odd = project.runs / "<script>alert(1)<?'\"&# %2e\udcff"
    (project.runs / "c").rename(odd)
    content = json.loads((odd / "bench.json").read_text())
    content |= {"label": HOSTILE, "created": HOSTILE, "bench_id": HOSTILE}
    content.pop("seal", None)
    write_atomic(odd / "bench.json", json.dumps(content).encode())
    for manifest in odd.glob("*/manifest.json"):
        value = json.loads(manifest.read_text())
        value.pop("seal", None)
        value["facts"]["node1"] |= {HOSTILE: HOSTILE}
        value["spec"]["options"] = {"x": HOSTILE}
        write_atomic(manifest, json.dumps(value).encode())
    node_states.change(
        project.nodes, lambda _: {HOSTILE: NodeState(OUT, HOSTILE, HOSTILE, HOSTILE, HOSTILE)}
    )
    site, _ = built(project)
    seen = pages_of(site)
    assert dead_links(site) == []
    for name, page in seen.items():
        assert set(page.tags) <= tags.get(name, tags["benches/c.html"] | tags["compare/c.html"]) | {
            "strong",
            "span",
        }, name
        assert (
            page.tags.count("script") <= 2 and "\x1b" not in page.text and "\u202e" not in page.text
        ), name
    assert (
        'script>document.title="x"' in seen["index.html"].text
        and 'script>document.title="x"' in seen["nodes.html"].text
    )
