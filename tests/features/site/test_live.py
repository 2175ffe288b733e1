"""A bench as its live page shows it: from files that change, and from what nodes have answered."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.features.site.live import LOG_BYTES, SHORT_BYTES, Live, LiveBench, Seen, Watched
from orchestrator.features.site.template import fill
from orchestrator.record import BenchDir
from orchestrator.record.journal import Event
from orchestrator.record.ownership import hold
from orchestrator.results import NEVER_RUN
from tests.support.benches import bench
from tests.support.run_folders import manifest, step_lines

SAMPLES = b'{"schema":1,"period_s":1.0,"processors":8,"columns":["t","busy_s"]}\n[5.0,70.5]\n[6.0,74.5]\n[7.0,78.5]\n[8.0,80'


@pytest.fixture
def under_way(tmp_path: Path) -> BenchDir:
    """A bench of three runs: one is over, one has begun, one is to come."""
    made = bench(tmp_path, "a", "2026-10-01T08:00:00Z", [1.0])
    record = json.loads((made.path / "bench.json").read_text())
    record.pop("seal")
    (made.path / "bench.json").write_text(json.dumps(record | {"runs": ["a-1", "a-2", "a-3"]}))
    made.event(Event.BEGUN, argv=["orch", "bench"])
    for run, at in (("a-1", 1000.0), ("a-2", 1060.0)):
        made.event(Event.PLANNED, run=run, port=1, at=at)
        made.event(Event.STARTED, run=run, skew_s=0.0, bound_s=0.0, hosts=2, at=at + 5)
        if run == "a-1":
            made.event(Event.FINISHED, run=run, error=None, at=at + 30)
            made.event(Event.COLLECTED, run=run, at=at + 40)
    made.run("a-2").write_manifest(manifest("a-2", 2) | {"outcome": None})
    (made.path / "progress.log").write_bytes(b"[1/3] a-1\n\x1b[2J[2/3] a-2 \xff\n")
    return made


def page(shown: LiveBench) -> str:
    return fill("live.html.j2", here="", links=(), bench=shown, above="../", every_s=2)


def test_a_run_that_is_under_way_is_shown_by_what_its_nodes_say(under_way: BenchDir) -> None:
    asked: list[Watched] = []
    lines = step_lines(0.5, 7).encode()

    def look(watched: Watched) -> Mapping[str, Seen]:
        asked.append(watched)
        return {
            "node1": Seen(True, {"rank-0.out": len(lines)}, lines, SAMPLES),
            "node2": Seen(error="node2: unreachable"),
        }

    with hold(under_way):
        shown = Live(under_way.path.parent, look).bench("a")
    assert shown.is_held and shown.state == "in progress" and shown.run_id == "a-2"
    assert (
        shown.facts[:3] == ("1 of 3 runs measured", "1 running", "1 to come")
        and "about 80s left" in shown.facts
    )
    assert shown.run_words[0].startswith("started ") and shown.run_words[1:] == (
        "step 7 of 12",
        "128.0 samples/s in it",
    )
    first, second = shown.nodes
    assert (first.state, first.is_chosen, first.lines) == ("running", True, lines.decode())
    assert [(name, newest) for name, newest, _ in first.use] == [("busy processors", "4")]
    assert (second.state, second.error) == ("not running", "node2: unreachable")
    assert asked[0].logs == {
        "node1": ("rank-0.out", LOG_BYTES),
        "node2": ("rank-2.out", SHORT_BYTES),
    }
    text = page(shown)
    assert "\x1b" not in text and "[2J[2/3] a-2 �" in text and text.count("<polyline") == 1


def test_the_speed_of_a_language_model_under_way_counts_tokens(under_way: BenchDir) -> None:
    planned = manifest("a-2", 2) | {"outcome": None}
    planned["spec"]["step"] = {"tokens": 64}
    planned["framework"] = planned["framework"] | {"measures": "language_model"}
    under_way.run("a-2").write_manifest(planned)
    lines = step_lines(0.5, 7).encode()
    with hold(under_way):
        seen = {"node1": Seen(True, {"rank-0.out": len(lines)}, lines, SAMPLES)}
        shown = Live(under_way.path.parent, lambda _: seen).bench("a")
    assert shown.run_words[1:] == ("step 7 of 12", "8192.0 tokens/s in it")


def test_a_run_that_was_not_started_is_to_come_only_while_a_controller_runs_its_bench(
    under_way: BenchDir,
) -> None:
    with hold(under_way):
        shown = Live(under_way.path.parent, lambda _: {}).bench("a")
    last = replace(shown, runs=(*shown.runs, replace(shown.runs[1], run_id="a-3", state=NEVER_RUN)))
    assert "<td>to come</td>" in page(last) and "<td>never run</td>" in page(
        replace(last, is_held=False)
    )


def test_another_log_can_be_chosen_and_one_that_is_not_there_is_not(under_way: BenchDir) -> None:
    with hold(under_way):
        live = Live(
            under_way.path.parent,
            lambda watched: {host: Seen(True, {}, b"x" * 10) for host in watched.logs},
        )
        chosen = live.bench("a", "node2/node.err")
        assert [(node.log, node.is_chosen) for node in chosen.nodes] == [
            ("rank-0.out", False),
            ("node.err", True),
        ]
        for odd in ("node3/rank-0.out", "node2", "/", "node2/", "\0"):
            assert [node.is_chosen for node in live.bench("a", odd).nodes] == [True, False]


def test_lines_of_logs_are_text_whatever_is_in_them(under_way: BenchDir) -> None:
    evil = b'</pre><script>document.title="x"</script>\x1b]0;x\x07 \xe2\x80\xae \xff\r\nnext'
    with hold(under_way):
        shown = Live(
            under_way.path.parent,
            lambda _: {"node1": Seen(True, {"<b>": 1, "\ud800": 2}, evil, b"{nonsense\n")},
        ).bench("a")
    text = page(shown)
    assert (
        "&lt;/pre&gt;&lt;script&gt;document.title=" in text
        and "\x1b" not in text
        and "\u202e" not in text
    )
    assert text.count("<script>") == 1 and "<b>" not in text and "expected JSON" in text


def test_a_bench_that_is_over_is_shown_by_its_collected_logs_and_asks_nobody(
    under_way: BenchDir,
) -> None:
    under_way.event(Event.LOST, run="a-2", error=None)
    under_way.event(Event.OVER, code=3, errors=[])

    def look(_: Watched) -> Mapping[str, Seen]:
        raise AssertionError("a run that is over is not asked for")

    live = Live(under_way.path.parent, look)
    shown = live.bench("a")
    assert (shown.is_held, shown.state) == (False, "over, exit status 3")
    assert [node.error for node in shown.nodes] == ["nothing is collected"] * 2
    assert [run.state for run in shown.runs][:2] == ["finished", "incomplete"] and shown.runs[
        0
    ].speed == pytest.approx(64)


def test_damage_is_said_in_the_place_of_what_it_damaged(under_way: BenchDir) -> None:
    with (under_way.path / "events.jsonl").open("r+b") as journal:
        journal.seek(5)
        journal.write(b"\0\0")
    (under_way.path / "a-1" / "manifest.json").write_text("{")
    (under_way.path / "progress.log").unlink()
    shown = Live(under_way.path.parent, lambda _: {}).bench("a")
    assert (
        shown.nodes == ()
        and shown.progress == ""
        and "the journal cannot be read" in shown.notes[0]
    )
    assert shown.runs[0].error is not None and "manifest.json" in str(shown.runs[0].error)
