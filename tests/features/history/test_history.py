"""The history of a project: every cell of every bench, from run directories as collection leaves
them.
"""

from __future__ import annotations

import io
import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as Xml

import pytest
from rich.console import Console

from orchestrator.analysis.compare import compare
from orchestrator.analysis.past_cells import PastCell
from orchestrator.features.accept.certificate import certificate_of
from orchestrator.features.accept.past import past_acceptances
from orchestrator.features.accept.record import acceptances
from orchestrator.features.history import report
from orchestrator.features.history.history import chosen, history
from orchestrator.features.history.trend_chart import svg
from orchestrator.record.rundir import BenchDir
from orchestrator.results.read import read_run
from orchestrator.results.summary import summarize
from tests.results.test_measures import made_bench
from tests.support import commands
from tests.support.acceptances import acceptance
from tests.support.benches import bench
from tests.support.run_folders import build

SPEED = 64
"""Samples of a step in these benches; at one step a second that is samples/s."""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Two benches of one cell, a month apart; the later one is half as fast, and has the lower
    name.
    """
    bench(tmp_path / "runs", "a", "2026-10-02T08:00:00Z", [1.0, 1.01, 0.99])
    bench(tmp_path / "runs", "b", "2026-09-01T08:00:00Z", [0.5, 0.5, 0.5])
    return tmp_path


def orch(project: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return commands.orch(
        project.parent,
        "history",
        *words,
        environment={"ORCH_PROJECT": str(project), "COLUMNS": "150"},
    )


def read(project: Path) -> tuple[PastCell, ...]:
    return history(project / "runs", project / ".orch-cache.json").cells


def test_cells_come_oldest_first_with_the_numbers_that_their_summary_has(project: Path) -> None:
    old, new = read(project)
    assert [(cell.created, cell.bench_id, cell.shape, cell.n) for cell in (old, new)] == [
        ("2026-09-01T08:00:00Z", "b", "2n2g", 3),
        ("2026-10-02T08:00:00Z", "a", "2n2g", 3),
    ]
    assert (old.value, new.value) == (
        pytest.approx(SPEED / 0.5, rel=1e-3),
        pytest.approx(SPEED / 1.0, rel=1e-3),
    )
    (row,) = summarize([read_run(run) for run in BenchDir.open(project / "runs" / "a").runs()]).rows
    assert (new.interval, new.qualifications, new.hardware) == (
        row.interval,
        row.qualifications,
        row.hardware,
    )
    assert old.spec == new.spec


def test_acceptances_of_the_same_hosts_are_listed_over_time_and_damage_hides_no_other(
    project: Path,
) -> None:
    acceptance(project / "runs", {}, nodes=3)
    acceptance(project / "runs", {0: [500.0] * 5}, nodes=3, name="a2-small")
    acceptance(project / "runs", {}, nodes=4, name="a3-small")
    cache = project / "acceptances.json"
    made, damaged = past_acceptances(project / "runs", cache)
    assert [(past.acceptance_id, len(past.hosts)) for past in made] == [
        ("a1-small", 3),
        ("a2-small", 3),
        ("a3-small", 4),
    ]
    assert [[name for name, _ in past.failed] for past in made] == [
        [],
        ["node1"],
        [],
    ] and damaged == {}
    certificates = [certificate_of(folder) for folder in acceptances(project / "runs")]
    assert {past.acceptance_id: past.verdict for past in made} == {
        c.acceptance_id: c.verdict for c in certificates
    }
    content = cache.read_text()
    assert past_acceptances(project / "runs", cache)[0] == made and cache.read_text() == content
    printed = io.StringIO()
    report.render_acceptances(made, Console(file=printed, width=120))
    assert (
        printed.getvalue().count("acceptances of node[1-3]") == 1
        and "acceptances of node[1-4]" in printed.getvalue()
    )
    (project / "runs" / "a2-small" / "acceptance.json").write_text("{}")
    made, damaged = past_acceptances(project / "runs", cache)
    assert [past.acceptance_id for past in made] == [
        "a1-small",
        "a3-small",
    ] and "expected" in damaged["a2-small"]
    done = orch(project, "--json")
    assert (
        done.returncode == 4
        and len(json.loads(done.stdout)["acceptances"]) == 2
        and "a2-small" in done.stderr
    )


def test_a_borrowed_baseline_is_listed_where_it_was_measured_only(project: Path) -> None:
    record = {"borrowed": {"c-1": "a", "c-2": "a"}}
    bench(project / "runs", "c", "2026-11-01T08:00:00Z", [1.0, 1.0], **record)
    assert [cell.bench_id for cell in read(project)] == ["b", "a"]


def test_what_was_kept_is_what_is_read_anew_and_any_change_of_a_file_is_seen(project: Path) -> None:
    cache, first = project / ".orch-cache.json", read(project)
    assert read(project) == first and cache.stat().st_mode & 0o077 == 0
    cache.unlink()
    assert read(project) == first

    shutil.rmtree(project / "runs" / "a" / "a-3")
    assert [cell.n for cell in read(project)] == [3, 2]
    log = project / "runs" / "b" / "b-1" / "logs" / "node1" / "rank-0.out"
    log.write_bytes(log.read_bytes().replace(b"step=7", b"step=9", 1))
    whole = history(project / "runs", cache)
    assert [(cell.n, cell.failed) for cell in whole.cells] == [(2, 1), (2, 0)] and list(
        whole.damaged
    ) == ["b-1"]
    shutil.rmtree(project / "runs" / "b")
    assert [cell.bench_id for cell in read(project)] == ["a"]


@pytest.mark.parametrize(
    "content", [b"", b"[]", b'{"schema": 1, "orch": "0.1.0", "benches": {}}', b"\x00" * 100]
)
def test_a_cache_that_is_none_is_made_anew(project: Path, content: bytes) -> None:
    first = read(project)
    (project / ".orch-cache.json").write_bytes(content)
    assert read(project) == first


def test_a_cache_with_a_changed_number_is_not_believed(project: Path) -> None:
    first, cache = read(project), project / ".orch-cache.json"
    text = cache.read_text()
    assert text.count('"value": 12') == 1
    cache.write_text(text.replace('"value": 12', '"value": 13'))
    assert read(project) == first


def test_a_project_that_cannot_be_written_is_listed_all_the_same(project: Path) -> None:
    assert history(project / "runs", project / "no" / "such" / "cache.json").cells == read(project)


def test_a_damaged_bench_is_named_with_its_reason_and_the_others_are_listed(project: Path) -> None:
    broken = bench(project / "runs", "c", "2026-11-01T08:00:00Z", [1.0])
    (broken.path / "bench.json").write_bytes((broken.path / "bench.json").read_bytes()[:40])
    (project / "runs" / "d").mkdir()
    manifest = project / "runs" / "a" / "a-2" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"repeat": 2', '"repeat": 3'))
    done = orch(project, "--json")
    document = json.loads(done.stdout)
    assert done.returncode == 4 and "bench.json" in done.stderr and "seal" in done.stderr
    assert sorted(document["damaged"]) == ["a-2", "c"]
    assert [(cell["bench_id"], cell["n"]) for cell in document["cells"]] == [("b", 3), ("a", 2)]
    assert (project / ".orch" / "history.json").is_file()
    table = orch(project)
    assert table.stdout.splitlines()[1].split()[4] == "samples/s"
    assert table.returncode == 4 and "2026-10-02  a" in table.stdout and "128.00" in table.stdout


def test_filters_leave_what_was_asked_for(project: Path) -> None:
    cells = read(project)
    assert chosen(cells, since="2026-10-01") == cells[1:]
    assert chosen(cells, model="resnet50", dtype="fp16", shape="2n2g") == cells
    assert (
        chosen(cells, shape="1n1g")
        == chosen(cells, dtype="fp32")
        == chosen(cells, model="vgg16")
        == ()
    )
    assert (
        json.loads(orch(project, "--since", "2026-10-02", "--json").stdout)["cells"][0]["bench_id"]
        == "a"
    )
    none = orch(project, "--since", "1d", "--shape", "4n8g")
    assert (none.returncode, none.stdout, none.stderr) == (
        0,
        "",
        "no bench matches these options\n",
    )
    by_shape = [
        json.loads(orch(project, "--shape", shape, "--json").stdout)
        for shape in ("2n2g", "2x2", "2n1g")
    ]
    assert [len(found["cells"]) for found in by_shape] == [2, 2, 0]
    assert orch(project / "nowhere").stderr == "no benches\n"


@pytest.mark.parametrize(
    "words",
    [
        ("--since", "yesterday"), ("--since", "2026-13-01"), ("--since", "-1d"), ("--plot", "a.png"),
        ("--shape", "9x"), ("--shape", "1n1g,2n2g"), ("--shape", ","), ("--metric", "foo"),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_refused(project: Path, words: tuple[str, str]) -> None:
    done = orch(project, *words)
    assert (
        done.returncode == 2
        and done.stderr.startswith(f"orch: {words[0]}: expected ")
        and not done.stdout
    )
    if words[0] == "--metric":
        assert "the metrics of these benches are samples_per_s" in done.stderr


def test_the_trend_has_one_line_for_a_spec_however_many_benches_ran_it(project: Path) -> None:
    bench(project / "runs", "c", "2026-11-01T08:00:00Z", [0.7])
    done = orch(project, "--plot", str(project / "trend.svg"))
    assert done.returncode == 0 and done.stderr.endswith("trend.svg\n"), done
    drawn = (project / "trend.svg").read_text()
    texts = [
        element.text for element in Xml.fromstring(drawn).iter("{http://www.w3.org/2000/svg}text")
    ]
    assert texts.count("2n2g pytorch resnet50 fp16 b16 synthetic") == 1
    assert "samples/s, with 95 % interval" in texts
    assert svg(read(project)) == drawn.encode()


def test_speeds_of_different_scales_have_axes_of_their_own(project: Path) -> None:
    cell = read(project)[0]
    speeds = {"a": 0.39, "b": 15000.0, "c": 14000.0, "d": 0.5}
    cells = [
        replace(cell, spec=name, series=name, value=speed, interval=None)
        for name, speed in speeds.items()
    ]
    drawn = Xml.fromstring(svg(cells))
    name = "samples/s, with 95 % interval"
    assert [element.text for element in drawn.iter("{http://www.w3.org/2000/svg}text")].count(
        name
    ) == 2
    alone = Xml.fromstring(svg(cells[1:3]))
    assert [element.text for element in alone.iter("{http://www.w3.org/2000/svg}text")].count(
        name
    ) == 1


def test_metrics_of_other_units_have_axes_of_their_own_and_a_table_with_their_unit(
    project: Path,
) -> None:
    speed = read(project)[0]
    power = replace(
        speed,
        spec="{}",
        series=f"{speed.series} power",
        metric="power",
        unit="W",
        primary=False,
        value=600.0,
    )
    drawn = Xml.fromstring(svg([speed, replace(power, interval=None)]))
    texts = [element.text for element in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert {"samples/s, with 95 % interval", "W, with 95 % interval"} <= set(texts)
    console = Console(file=io.StringIO(), width=150, color_system=None)
    report.render([speed, power], console)
    assert isinstance(console.file, io.StringIO)
    assert (
        f"{power.series}, W\n" in console.file.getvalue()
        and f"{speed.series}\n" in console.file.getvalue()
    )


def test_without_a_name_only_primary_metrics_are_chosen(project: Path) -> None:
    speed = read(project)[0]
    power = replace(speed, metric="power", unit="W", primary=False)
    both = [speed, power]
    assert chosen(both) == (speed,) and chosen(both, metric="power") == (power,)
    assert chosen(both, metric="all") == (speed, power) and chosen(both, metric="latency") == ()


def test_nothing_of_a_node_steers_a_terminal_or_a_browser(project: Path) -> None:
    hostile = {
        "bench_id": "\x1b[2Jb",
        "series": "_se$r^ies\x1b]0;x\x07 <script>alert(1)</script>",
        "hardware": "\x1b[31mH200\u202e",
    }
    cells = [replace(read(project)[0], **hostile)]
    console = Console(file=io.StringIO(), width=200, color_system=None)
    report.render(cells, console)
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    assert "\x1b" not in shown and "\u202e" not in shown and "\\x1b[31mH200" in shown
    drawn = Xml.fromstring(svg(cells))
    assert not list(drawn.iter("{http://www.w3.org/2000/svg}script"))
    assert any(
        "<script>" in (element.text or "")
        for element in drawn.iter("{http://www.w3.org/2000/svg}text")
    )


@pytest.mark.parametrize("width", [60, 80, 100, 150])
def test_no_line_of_the_table_is_wider_than_the_terminal_and_the_median_stays(
    project: Path, width: int
) -> None:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    report.render(read(project), console)
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert all(len(line) <= width for line in lines) and any("128.00" in line for line in lines)


def test_where_the_counted_notes_can_be_read_is_said_below_the_table(project: Path) -> None:
    said = "orch summarize BENCH and orch history --json show them"
    for cells in (read(project), tuple(replace(cell, qualifications=()) for cell in read(project))):
        console = Console(file=io.StringIO(), width=150, color_system=None)
        report.render(cells, console)
        assert isinstance(console.file, io.StringIO)
        assert (said in console.file.getvalue()) == any(cell.qualifications for cell in cells)


def test_a_log_that_no_pattern_matches_is_no_damage(tmp_path: Path) -> None:
    folder = BenchDir.create(
        tmp_path / "runs", {"bench_id": "b1", "created": "2026-11-23T00:00:00Z", "runs": ["r1"]}
    )
    build(
        folder,
        "r1",
        lambda planned, logs: planned["framework"]["log"].update(
            patterns=["^stop=(?P<step>[0-9]+) (?P<loss>.)"]
        ),
    )

    whole = history(tmp_path / "runs", tmp_path / "history.json")

    assert whole.damaged == {}
    assert [(cell.bench_id, cell.value, cell.n, cell.failed) for cell in whole.cells] == [
        ("b1", None, 0, 1)
    ]


def test_equal_specs_are_in_one_table_whatever_their_benches_varied(project: Path) -> None:
    old, new = read(project)
    new = replace(new, series=f"{old.series} mb=25")
    other = replace(new, bench_id="c", series=f"{old.series} mb=50", spec="{}")
    console = Console(file=io.StringIO(), width=150, color_system=None)
    report.render([old, new, other], console)
    assert isinstance(console.file, io.StringIO)
    lines = [line.split() for line in console.file.getvalue().splitlines() if line.strip()]
    assert lines[0][-1] == "mb=25" and [line[1] for line in lines[2:4]] == ["b", "a"]
    assert lines[4][-1] == "mb=50" and lines[6][1] == "c"


def test_numbers_of_one_metric_in_another_unit_are_in_a_table_of_their_own(tmp_path: Path) -> None:
    in_seconds, in_ms = (
        made_bench(tmp_path, name, [["0.125", "20.5"]] * 3) for name in ("b1", "b2")
    )
    for run in in_ms.runs():
        log = json.loads((run.path / "manifest.json").read_text())["framework"]["log"]
        metric = {**log["metrics"][0], "unit": "ms", "factor": 1000.0}
        run.update_manifest(
            reread={
                "digest": "f" * 64,
                "at": "2026-01-01T00:00:00Z",
                "log": {**log, "metrics": [metric]},
            }
        )
    cells = history(tmp_path / "runs", tmp_path / "cache.json").cells
    assert [(cell.bench_id, cell.unit) for cell in cells] == [("b1", "s")] * 2 + [("b2", "ms")] * 2
    assert len({cell.spec for cell in cells}) == 4
    console = Console(file=io.StringIO(), width=200)
    report.render(cells, console)
    titles = [line for line in console.file.getvalue().splitlines() if line.startswith("pinger")]
    assert titles == [
        f"pinger ping fp16 time_s to={to}, {unit}" for to in (0, 1) for unit in ("ms", "s")
    ]
    (comparison, damaged) = compare(in_seconds, in_ms)
    assert not damaged and {pair.verdict for pair in comparison.pairs} == {"other metric"}
    (first,) = [each for each in comparison.distinctions if each.name == "metric.time_s"]
    assert first.before == "s, lower is better, group time_s"
    assert first.after == "ms, lower is better, group time_s, factor 1000"


def test_keys_of_a_metric_are_in_the_order_of_their_values_as_in_the_table_of_a_bench(
    project: Path,
) -> None:
    cell, _ = read(project)
    cells = [
        replace(
            cell,
            series=f"sizes {mode} rate size={size}",
            metric="rate",
            unit="GB/s",
            spec=json.dumps({**json.loads(cell.spec), "mode": mode, "key": {"size": size}}),
        )
        for mode in ("n=10", "n=9")
        for size in ("1 MiB", "64K", "900", "1")
    ]
    console = Console(file=io.StringIO(), width=150)
    report.render(cells, console)
    assert isinstance(console.file, io.StringIO)
    titles = [line for line in console.file.getvalue().splitlines() if line.startswith("sizes")]
    sizes = ("1", "900", "64K", "1 MiB")
    assert titles == [
        f"sizes {mode} rate size={size}, GB/s" for mode in ("n=9", "n=10") for size in sizes
    ]


def test_history_shows_labels(tmp_path: Path) -> None:
    for day, label in enumerate(("nightly", "new driver", "nightly"), start=1):
        when = f"2026-01-0{day}T00:00:00Z"
        bench(tmp_path / "runs", f"l{day}", when, [1.0, 1.0, 1.0], label=label)
    assert "l2 new driver" in orch(tmp_path).stdout
    cells = json.loads(orch(tmp_path, "--json").stdout)["cells"]
    assert [(cell["bench_id"], cell["label"]) for cell in cells] == [
        ("l1", "nightly"),
        ("l2", "new driver"),
        ("l3", "nightly"),
    ]


def test_history_lists_each_key_with_its_unit(tmp_path: Path) -> None:
    made_bench(tmp_path, "b1", [["0.125", "20.5"], ["0.25", "21.5"], []])
    done = orch(tmp_path)
    assert "pinger ping fp16 time_s to=1, s" in done.stdout and "20.99" in done.stdout, done
    cells = json.loads(orch(tmp_path, "--json").stdout)["cells"]
    assert [(cell["metric"], cell["unit"], cell["n"]) for cell in cells] == [("time_s", "s", 2)] * 2
