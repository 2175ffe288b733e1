"""`orch compare` and `orch gate` on run directories: what they print, and how they end."""

from __future__ import annotations

import json
import math
import random
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from orchestrator.analysis.compare import Comparison
from orchestrator.cli.compare import no_pair_error
from orchestrator.record.rundir import BenchDir
from tests.support.cli_project import Project
from tests.support.run_folders import build

SCATTER = (0.997, 1.002, 1.0, 0.999, 1.003)
Made = Callable[..., BenchDir]
Change = Callable[[dict[str, Any]], Any]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


@pytest.fixture
def made(project: Project) -> Made:
    """Make a bench of one cell: its name, the seconds of a step, by which factors they differ from
    repeat to repeat, and what is changed in its plan.
    """

    def make(
        name: str,
        seconds: float,
        repeats: int = 5,
        change: Change = lambda plan: None,
        scatter: Sequence[float] = SCATTER,
    ) -> BenchDir:
        names = [f"{name}.{n}" for n in range(1, repeats + 1)]
        record = {"bench_id": name, "runs": names, "argv": ["orch", "bench"], "created": name}
        bench = BenchDir.create(project.path / "runs", record)

        def planned(plan: dict[str, Any], logs: Any) -> None:
            plan["bench_id"] = name
            change(plan)

        for repeat, (run, noise) in enumerate(zip(names, cycle(scatter), strict=False), start=1):
            build(bench, run, planned, repeat=repeat, seconds=seconds * noise)
            bench.run(run).write_rendered(
                "node1", "launch.sh", f"run {run} --master-port 29500\n".encode()
            )
        return bench

    return make


def options(**values: Any) -> Change:
    return lambda plan: plan["spec"].update(options=values)


def test_two_benches_alike_do_not_differ_and_a_copy_is_no_comparison(
    project: Project, made: Made
) -> None:
    one = made("a", 0.5)
    made("b", 0.5005)
    done = project.orch("compare", "a", "b")
    assert (done.returncode, done.stderr) == (0, "")
    assert (
        "no difference" in done.stdout
        and "no recorded difference other than the numbers" in done.stdout
    )
    shutil.copytree(one.path, project.path / "copy")
    copy = project.orch("compare", "a", "copy", "--json")
    (pair,) = json.loads(copy.stdout)["pairs"]
    assert (pair["verdict"], pair["ratio"], pair["p"]) == ("same runs", 1.0, None)


def test_an_option_that_costs_a_tenth_is_found_and_named_first(
    project: Project, made: Made
) -> None:
    made("a", 0.5, change=options(compile=True))
    made(
        "b",
        0.55,
        change=lambda plan: (
            options(compile=False)(plan),
            plan["facts"]["node2"].update(kernel="6.8"),
        ),
    )
    done = project.orch("compare", "a", "b", "--json")
    found = json.loads(done.stdout)
    assert (done.returncode, found["schema"], found["before"], found["after"]) == (0, 5, "a", "b")
    (pair,) = found["pairs"]
    assert (pair["case"], pair["verdict"], pair["differing"]) == (
        "2n2g",
        "slower",
        ["options.compile"],
    )
    assert (
        pair["ratio"] == pytest.approx(0.5 / 0.55)
        and pair["interval"]["low"] < 0.5 / 0.55 < pair["interval"]["high"]
    )
    assert pair["ratio"] == pytest.approx(pair["after"]["typical"] / pair["before"]["typical"])
    assert pair["permutation_p"] == pytest.approx(2 / 252)
    assert [(each["name"], each["before"], each["after"]) for each in found["distinctions"]] == [
        ("options.compile", "true", "false"),
        ("node.kernel", "6.1", "6.1, 6.8"),
    ]
    assert found["files"] == []  # the run's name, its only difference, is none
    shown = project.orch("compare", "a", "b").stdout.splitlines()
    assert (
        shown[2].split()[:5] == ["2n2g", "127.97", "5", "116.34", "5"]
        and shown[2].split()[-1] == "slower"
    )
    assert (
        shown[-3]
        == "2n2g slower, -9.1%, -9.4% to -8.8%: possible causes, the likeliest first; none is proven"
    )
    assert shown[-2:] == [
        " 1 options.compile: true → false",
        " 2 node.kernel: 6.1 → 6.1, 6.8 (found by preflight)",
    ]
    (cell,) = found["suspects"]
    assert [(one["name"], one["kind"]) for one in cell["suspects"]] == [
        ("options.compile", "choice"),
        ("node.kernel", "fact"),
    ]


def test_load_by_others_is_named_as_a_difference(project: Project, made: Made) -> None:
    made("a", 0.5)
    busy = made("b", 0.6)
    for run in busy.runs():
        path = run.path / "logs" / "node2" / "exit.json"
        load = {"count": 8, "busy_s": 400.0, "own_s": 80.0, "switches": [1, 2]}
        path.write_text(
            json.dumps(json.loads(path.read_text()) | {"meter": {"growth": [], "processors": load}})
        )
    for words in (("compare", "a", "b"), ("gate", "b", "--baseline", "a")):
        shown = project.orch(*words).stdout
        assert (
            "load: nothing → other processes used 50% of the processors of node2, in 5 of 5 runs"
            in shown
        ), shown


def test_a_drift_of_both_benches_hides_no_regression(project: Project, made: Made) -> None:
    drifting = [noise * (1 + 0.025 * (place - 2)) for place, noise in enumerate(SCATTER)]
    benches = {"a": 0.5, "b": 0.5 / 0.952}
    for name, seconds in benches.items():
        made(name, seconds, scatter=drifting)
    done = project.orch("gate", "b", "--baseline", "a", "--json")
    (pair,) = json.loads(done.stdout)["pairs"]
    assert done.returncode == 5 and pair["verdict"] == "slower", done.stderr
    assert pair["interval"]["low"] < 0.952 < pair["interval"]["high"]
    summaries = [json.loads(project.orch("summarize", name, "--json").stdout) for name in benches]
    speeds = [summary["rows"][0]["value"] for summary in summaries]
    assert [pair["before"]["typical"], pair["after"]["typical"]] == pytest.approx(speeds)
    assert pair["before"]["drift"] == pytest.approx(summaries[0]["drifts"]["samples_per_s"])
    shown = project.orch("compare", "a", "b").stdout
    assert (
        "a: its runs became 9." in shown
        and "% slower during the bench, which is taken out" in shown
    ), shown


def test_cells_of_one_bench_are_compared_by_an_option(project: Project, made: Made) -> None:
    made("a", 0.5, 10, lambda plan: plan["spec"].update(options={"compile": plan["repeat"] > 5}))
    done = project.orch("compare", "a", "--by", "compile=true,false", "--json")
    found = json.loads(done.stdout)
    assert (done.returncode, found["before"], found["after"]) == (
        0,
        "a compile=true",
        "a compile=false",
    )
    assert [
        (each["n"], each["run_ids"][0])
        for each in (found["pairs"][0]["before"], found["pairs"][0]["after"])
    ] == [
        (5, "a.6"),
        (5, "a.1"),
    ]
    assert found["pairs"][0]["verdict"] == "no difference" and found["pairs"][0][
        "ratio"
    ] == pytest.approx(1, abs=0.005)
    assert [each["name"] for each in found["distinctions"]] == ["options.compile"]


def test_a_label_is_no_difference_and_a_long_one_is_indented(project: Project, made: Made) -> None:
    sides = [
        made("a", 0.5, change=options(path="/data/" * 20)),
        made("b", 0.5, change=options(path="/scratch/" * 20)),
    ]
    for label, bench in zip((["--label", "a"], ["--label=b"]), sides, strict=True):
        bench.change(lambda record, label=label: replace(record, argv=(*record.argv, *label)))
    shown = project.orch("compare", "a", "b", COLUMNS="80").stdout
    first, *further = shown.partition(" 1 options.path:")[2].splitlines()
    assert further and all(re.match(r"   \S", line) for line in further), shown
    assert all(len(line) <= 80 for line in further) and "command" not in shown, shown


def test_nothing_is_said_of_what_differs_where_no_cell_is_in_both(
    project: Project, made: Made
) -> None:
    made("a", 0.5)
    made("b", 0.5, repeats=0)
    for words in (("a", "b"), ("a", "b", "--by", "dtype=fp16,bf16")):
        done = project.orch("compare", *words)
        assert (
            "no configuration is in both benches" in done.stdout
            and "differences" not in done.stdout
        )
        assert done.returncode == 2 and "expected configurations that correspond, a" in done.stderr
        assert "has 2n2g; b" in done.stderr and "has none. " in done.stderr


def test_a_comparison_by_size_says_where_sizes_are_compared() -> None:
    comparison = Comparison("a nodes=1", "a nodes=2", 0.02, (), ("1n2g",), ("2n2g",), (), ())
    (error,) = no_pair_error(comparison, ["nodes=1,2"])
    assert (error.exit_code, error.where) == (
        2,
        "--by nodes=1,2",
    ) and "orch summarize shows speedup" in error.hint


def test_lines_of_rendered_files_that_differ_are_shown_harmless(
    project: Project, made: Made
) -> None:
    made("a", 0.5)
    bench = made("b", 0.5)
    bench.run("b.1").write_rendered("node1", "launch.sh", b"run b.1 --master-port 29500 \x1b[2J\n")
    shown = project.orch("compare", "a", "b").stdout
    assert (
        "-run <run> --master-port <port +0>\n+run <run> --master-port <port +0> \\x1b[2J\n" in shown
    )


def test_a_gate_lets_pass_what_is_not_slower_than_allowed(project: Project, made: Made) -> None:
    made("a", 0.5)
    made("b", 0.51)
    done = project.orch("gate", "--baseline", "a", "--max-regression", "3%")
    assert (
        done.returncode == 0
        and done.stderr == "no configuration is more than 3% slower than in a\n"
    )
    made("c", 0.515)
    close = project.orch("gate", "--baseline", "a", "c")
    message = "c: 2n2g: expected at most 3% slower, got -2.9%, -3.3% to -2.6%: a larger regression is not ruled out"
    assert close.returncode == 6 and message in close.stderr, close.stderr
    passed = project.orch("gate", "--baseline", "a", "c", "--undecided", "pass")
    assert passed.returncode == 0 and f"{message}. the change is so close" in passed.stderr
    assert passed.stderr.endswith(
        "no configuration is significantly more than 3% slower than in a\n"
    )
    strict = project.orch("gate", "--baseline", "a", "b", "--max-regression", "1%")
    assert strict.returncode == 5 and "-2.0%" in strict.stdout


def test_a_gate_says_how_many_repeats_would_settle_it_and_they_do(
    project: Project, made: Made
) -> None:
    noise = random.Random(28)
    scattered = {name: [math.exp(noise.gauss(0, 0.02)) for _ in range(40)] for name in ("a", "b")}

    def run(repeats: int) -> Any:
        for name, scatter in scattered.items():
            shutil.rmtree(project.path / "runs" / name, ignore_errors=True)
            made(name, 0.5, repeats, scatter=scatter)
        return project.orch("gate", "--baseline", "a", "b", "--max-regression", "3%")

    few = run(5)
    assert few.returncode == 6, few
    needed = int(
        re.search(r"if it is as measured, (\d+) repeats in each bench settle it", few.stderr)[1]
    )  # type: ignore[index]
    assert 5 < needed <= 40 and run(needed).returncode in (0, 5)


def test_a_plan_says_what_can_be_found_and_how_many_repeats_it_takes(
    project: Project, made: Made
) -> None:
    made("a", 0.5)
    made("b", 0.6)
    (alone,) = json.loads(project.orch("gate", "a", "--plan", "3%", "--json").stdout)[
        "configurations"
    ]
    assert (alone["case"], alone["repeats"], alone["freedom"]) == ("2n2g", 5, 4)
    assert alone["scatter"] == pytest.approx(0.0024, abs=0.0002)
    assert alone["needed"] <= 5 and alone["least"] < 0.03 < alone["least_failing"] < 0.05
    (both,) = json.loads(
        project.orch("gate", "b", "--plan", "3%", "--baseline", "a", "--json").stdout
    )["configurations"]
    assert (
        both["freedom"] == pytest.approx(8) and both["least"] < alone["least"]
    )  # the scatter is known better
    shown = project.orch("gate", "a", "--plan", "3%")
    assert (
        shown.returncode == 0
        and "n for 3%" in shown.stdout
        and "find 3% in nine of ten" in shown.stdout
    )
    made("c", 0.5, repeats=1)
    assert "shows no scatter" in project.orch("gate", "c", "--plan", "3%").stdout


def test_a_baseline_that_one_bench_lends_to_the_other_is_no_doubt_of_a_gate(
    project: Project, made: Made
) -> None:
    lent = made("lent", 0.5)
    for name, seconds in (("a", 0.5), ("b", 0.5005)):
        bench = made(name, seconds, change=options(compile=True))
        for run in lent.runs():
            shutil.copytree(run.path, bench.path / run.run_id)
        bench.change(lambda record: replace(record, runs=(*record.runs, *lent.record().runs)))
    done = project.orch("gate", "--baseline", "a", "b")
    assert done.returncode == 0 and "same runs" in done.stdout, done
    shutil.copytree(lent.path, project.path / "copy")
    copied = project.orch("gate", "--baseline", "copy", "lent")
    assert copied.returncode == 6 and "same runs" in copied.stderr


def test_a_gate_ends_with_5_on_a_regression_larger_than_allowed(
    project: Project, made: Made
) -> None:
    made("a", 0.5)
    made("b", 0.55, change=lambda plan: plan["framework"].update(digest="01"))
    done = project.orch("gate", "--baseline", "a", "b")
    assert done.returncode == 5
    assert done.stderr.startswith(
        "orch: b: 2n2g: expected at most 3% slower than a, got -9.1%, -9.4% to -8.8%"
    )
    assert " 1 template.pytorch: 00 → 01" in done.stdout
    assert project.orch("gate", "--baseline", "b", "a").returncode == 0


@pytest.mark.parametrize(
    ("repeats", "change", "said"),
    [
        (
            2,
            lambda plan: None,
            "2n2g: no verdict: too few repeats, 5 and 2; a verdict needs 4 or more of each",
        ),
        (5, options(compile=False), "2n2g: no verdict: its spec differs in options.compile"),
        (
            5,
            lambda plan: plan["framework"].update(simulated=True),
            "2n2g: no verdict: its spec differs in simulated",
        ),
        (5, lambda plan: plan["spec"].update(batch_size=8), "expected batch_size 8 as planned"),
        (
            5,
            lambda plan: plan["outcome"].update(state="failed"),
            "2n2g: no verdict: 5 of its runs failed",
        ),
    ],
    ids=["few", "option", "simulated", "damaged", "failed"],
)
def test_a_gate_that_cannot_decide_ends_with_6_and_with_4_only_for_damage(
    project: Project, made: Made, repeats: int, change: Change, said: str
) -> None:
    made("a", 0.5)
    made("b", 0.55, repeats, change)
    done = project.orch("gate", "--baseline", "a", "b")
    assert done.returncode == (6 if "no verdict" in said else 4) and said in done.stderr, done


def test_every_reason_why_there_is_no_verdict_is_given_by_compare_and_by_gate(
    project: Project, made: Made
) -> None:
    made("a", 0.5)

    def fail_one(plan: dict[str, Any]) -> None:
        options(compile=False)(plan)
        plan["outcome"].update(state="failed" if plan["repeat"] == 3 else "finished")

    made("b", 0.55, 3, fail_one)
    why = (
        "2n2g: no verdict: its spec differs in options.compile; 1 of its runs failed; "
        "too few repeats, 5 and 2; a verdict needs 4 or more of each"
    )
    compared = project.orch("compare", "a", "b").stdout
    assert why in " ".join(compared.split()), compared
    gated = project.orch("gate", "--baseline", "a", "b")
    assert why in gated.stderr and why in " ".join(gated.stdout.split()), gated


def test_a_bench_is_no_baseline_of_itself(project: Project, made: Made) -> None:
    made("a", 0.5)
    for name in ("a", "runs/a"):
        done = project.orch("gate", "--baseline", name, "a")
        assert (done.returncode, done.stdout) == (2, "")
        assert (
            done.stderr
            == f"orch: --baseline {name}: expected a bench other than the one under test\n"
        )


def test_a_gate_judges_every_cell_of_the_bench_or_says_which_it_cannot(
    project: Project, made: Made
) -> None:
    one = made("a", 0.5)
    other = made("b", 0.5)
    made("c", 0.5, change=lambda plan: plan["spec"].update(steps=24))
    for run in other.runs():
        shutil.rmtree(run.path)
    done = project.orch("gate", "--baseline", "a", "b")
    assert (done.returncode, done.stderr) == (6, "orch: b: no verdict: it has no runs\n")
    log = one.path / "a.2" / "logs" / "node1" / "rank-0.out"
    log.write_bytes(log.read_bytes().replace(b"t=901", b"t=801"))
    damaged = project.orch("gate", "--baseline", "a", "c")
    assert damaged.returncode == 4 and "SHA-256" in damaged.stderr
    for words in (("compare", "a", "c"), ("summarize", "a")):
        said = project.orch(*words).stderr
        assert "runs/a/a.2: rank-0.out: expected the SHA-256" in said, said
        assert "`orch collect` fetches the log again" in said, said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("gate", "b"), "--baseline: expected a bench's name, label or directory, got none"),
        (("gate", "--baseline", "nix"), "no bench 'nix'"),
        (
            ("gate", "b", "--baseline", "b", "--undecided", "maybe"),
            "--undecided: expected fail or pass, got 'maybe'",
        ),
        (("gate", "b", "--plan", "3"), "--plan: expected a percentage"),
        (
            ("gate", "--baseline", "b", "--max-regression", "0.03"),
            "--max-regression: expected a percentage",
        ),
        (
            ("gate", "--baseline", "b", "--max-regression", "nan%"),
            "--max-regression: expected a percentage",
        ),
        (("compare", "b", "nix"), "no bench 'nix'"),
        (("compare", "b"), "B: expected a second bench, got none"),
        (("compare", "b", "--by", "dtype=fp16"), "--by: expected a field and two values"),
        (
            ("compare", "b", "--by", "foo=1,2"),
            "--by: b: expected a field of its cells, got 'foo'. they have simulated, framework,",
        ),
        (
            ("compare", "b", "--by", "shape=1n1g,2n1g"),
            "--by: b: expected a field of its cells, got 'shape'",
        ),
        (("compare", "b", "--by", "dtyp=fp32,fp16"), "did you mean 'dtype'?"),
        (
            ("compare", "b", "--by", "dtype=fp32,fp16"),
            "--by: b: expected a value of dtype that its cells have, got 'fp32'. they have fp16",
        ),
        (
            ("compare", "b", "b", "--by", "nodes=4,2"),
            "--by: b: expected a value of nodes that its cells have, got '4'. they have 2",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused(
    project: Project, made: Made, words: tuple[str, ...], said: str
) -> None:
    made("b", 0.5, repeats=1)
    done = project.orch(*words)
    assert (done.returncode, done.stdout) == (2, "") and said in done.stderr


def test_a_bench_that_cannot_be_read_is_named(project: Project, made: Made) -> None:
    made("a", 0.5, repeats=1)
    made("b", 0.5, repeats=1)
    (project.path / "runs" / "b" / "bench.json").write_text("{")
    done = project.orch("compare", "a", "b")
    assert (done.returncode, done.stdout) == (4, "") and "runs/b/bench.json" in done.stderr


def test_a_plan_takes_each_configuration_from_the_benches_that_have_it(
    project: Project, made: Made
) -> None:
    noisy = [1 + 10 * (noise - 1) for noise in SCATTER]
    made("a", 0.5)
    made("b", 0.6, change=lambda plan: plan["spec"].update(env={"FOO": "1"}), scatter=noisy)

    def plan(*words: str) -> list[tuple[Any, ...]]:
        found = json.loads(project.orch("gate", *words, "--plan", "3%", "--json").stdout)
        return [
            (each["case"], each["benches"], round(each["scatter"], 3), each["freedom"])
            for each in found["configurations"]
        ]

    of_a = ("2n2g", ["a"], 0.002, 4)
    assert plan("--baseline", "a") == plan("a") == [of_a]
    assert plan("b", "--baseline", "a") == [
        ("2n2g FOO=(not set)", ["a"], 0.002, 4),
        ("2n2g FOO=1", ["b"], 0.024, 4),
    ]
    assert project.orch("gate", "a", "--plan", "3%").stdout.startswith("scatter of a\n")
    both = project.orch("gate", "b", "--plan", "3%", "--baseline", "a").stdout
    assert "2n2g FOO=1, of b" in both, both
