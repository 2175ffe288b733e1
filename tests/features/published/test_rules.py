"""What a declared rule reads from a log: each key of a rule, on logs whose speed is known without
it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import orchestrator
from orchestrator.cli.main import program
from orchestrator.errors import ConfigError, DataError
from orchestrator.features.published.rules import Rule, rule_of
from orchestrator.features.published.run_size import Case
from orchestrator.features.published.schema import json_schema
from orchestrator.plan.folders import frameworks, read_folder
from orchestrator.plan.published_schema import PublishedEntry, RuleEntry, WindowEntry
from tests.support.own_folders import RULE, TABLES, WHOLE, folder_of

CASE = Case(nodes=2, gpus=4, batch_size=16)
"""128 samples a step."""

LINES = r"^step (?P<step>\d+)(?: of (?P<epoch_steps>\d+))?(?: in (?P<step_time_s>[\d.]+))?"
LINES += r"(?: since (?P<elapsed_s>[\d.]+))?(?: rate (?P<samples_per_s>\S+))?(?: at (?P<timestamp>\S+))?$"
STEPS = {"after": 2, "last": 6}


def rule(
    window: dict[str, Any] | None = None, by: str | list[str] = "step_time_s", **more: Any
) -> Rule:
    return Rule.parse(
        "own", {"title": "t", "lines": LINES, "window": window or STEPS, "by": by, **more}
    )


def log(lines: Iterable[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def speed(declared: Rule, text: bytes, case: Case = CASE) -> float:
    return declared.speed(text, case).samples_per_s


def refused(declared: Rule, text: bytes, case: Case = CASE) -> str:
    with pytest.raises(DataError) as caught:
        declared.speed(text, case)
    assert caught.value.kind == "result_invalid"
    return caught.value.message


TIMES = {1: 9.0, 2: 5.0, 3: 0.5, 4: 1.0, 5: 2.0, 6: 0.5, 7: 7.0}
TIMED = log(f"step {step} in {seconds}" for step, seconds in TIMES.items())


@pytest.mark.parametrize(
    ("over", "expected"),
    [
        ("harmonic_mean", 128 * 4 / 4.0),
        ("mean", (256 + 128 + 64 + 256) / 4),
        ("median", (256 + 128) / 2),
        ("min", 64.0),
        ("max", 256.0),
    ],
)
def test_rates_of_lines_become_one_as_over_says(over: str, expected: float) -> None:
    assert speed(rule(over=over), TIMED) == expected
    rates = log(f"step {step} rate {128 / seconds}" for step, seconds in TIMES.items())
    assert speed(rule(by="samples_per_s", over=over), rates) == pytest.approx(expected)


def test_first_counts_its_step_and_after_does_not() -> None:
    assert speed(rule({"first": 2, "last": 3}), TIMED) == pytest.approx(2 * 128 / 5.5)
    assert speed(rule({"after": 2, "last": 3}), TIMED) == 256.0
    without_2 = TIMED.replace(b"step 2 in 5.0\n", b"")
    assert refused(rule({"after": 2, "last": 3}), without_2) == (
        "expected lines of steps 2-3, found 1 of 2, without 2; the log goes from 1 to 7"
    )
    assert speed(rule({"first": 3, "last": 3}), without_2) == 256.0


@pytest.mark.parametrize("by", ["elapsed_s", "timestamp"])
def test_a_clock_counts_the_time_between_two_lines(by: str) -> None:
    word = "since" if by == "elapsed_s" else "at"
    text = log(f"step {step} {word} {100 + 0.25 * step}" for step in range(0, 10, 2))
    assert speed(rule(by=by), text) == 512.0
    assert refused(rule({"after": 2, "last": 5}, by=by), text).startswith(
        "expected lines of steps 2 and 5, found 1 of 2"
    )


@pytest.mark.parametrize(
    ("start", "end", "seconds"),
    [
        ("21:10:59.5", "21:11:01.5", 2.0),
        ("23:59:59.5", "00:00:01.5", 2.0),
        ("2026-02-28T23:59:59", "2026-03-01T00:00:07.25", 8.25),
        ("1000.5", "1001.75", 1.25),
    ],
)
def test_timestamps_of_each_form_are_read(start: str, end: str, seconds: float) -> None:
    assert speed(
        rule(by="timestamp"), log([f"step 2 at {start}", f"step 6 at {end}"])
    ) == pytest.approx(512 / seconds)


def test_two_forms_of_a_clock_are_refused() -> None:
    text = log(["step 2 at 21:10:59.5", "step 6 at 1000.5"])
    assert (
        refused(rule(by="timestamp"), text)
        == "expected clocks of one form, found another form in a later line"
    )


def test_a_clock_may_stand_before_the_line() -> None:
    text = b"[21:10:59.5] 5 warnings, step 2\nstray 21:10:00.0\n[21:11:01.5] 7 warnings, step 6\n"
    declared = rule(
        by="timestamp", lines=r"step (?P<step>\d+)$", clock=r"(?P<timestamp>\d\d:\d\d:\d\d\.\d)"
    )
    assert speed(declared, text.replace(b"[", b"")) == 256.0
    assert "expected timestamp in the lines that count, that of 6 has none" in refused(
        declared, text.replace(b"[", b"").replace(b"21:11:01.5", b"")
    )


def test_of_several_measures_the_first_that_the_lines_have_is_used() -> None:
    declared = rule(by=["timestamp", "elapsed_s", "step_time_s"])
    both = log(f"step {step} in 0.5 since {step * 0.5}" for step in range(1, 8))
    assert declared.speed(both, CASE).warnings == (
        "the lines have no timestamp: elapsed_s is used instead",
    )
    assert declared.speed(TIMED, CASE).warnings == (
        "the lines have no timestamp: elapsed_s is used instead",
        "the lines have no elapsed_s: step_time_s is used instead",
    )
    assert speed(declared, TIMED) == 128.0


def test_a_clock_is_compared_with_the_other_times_of_its_lines() -> None:
    def text(seconds: float) -> bytes:
        return log(f"step {step} in {seconds} since {step}" for step in range(1, 8))

    assert rule(by="elapsed_s").speed(text(1.04), CASE).warnings == ()
    assert rule(by="elapsed_s").speed(text(1.25), CASE).warnings == (
        "the log disagrees with itself: 102.40 samples/s by its step times, 128.00 by its clock",
    )
    assert "expected a clock that agrees with the step times" in refused(
        rule(by="elapsed_s"), text(2.5)
    )


def test_missing_lines_between_the_ends_are_refused_unless_gaps_are_noted() -> None:
    text = log(f"step {step} since {step}" for step in (2, 3, 5, 6))
    every = {**STEPS, "every": 1}
    assert "found 4 of 5, without 4" in refused(rule(every, by="elapsed_s"), text)
    found = rule(every, by="elapsed_s", gaps="noted").speed(text, CASE)
    assert found.samples_per_s == 128.0 and found.warnings == (
        "1 of 5 lines are missing, the first of 4",
    )
    without_end = text.replace(b"step 6", b"step 16")
    assert "found 3 of 5, without 4; the log goes from 2 to 16" in refused(
        rule(every, by="elapsed_s", gaps="noted"), without_end
    )


@pytest.mark.parametrize(("scope", "factor"), [("global", 1), ("node", 2), ("process", 8)])
@pytest.mark.parametrize(("unit", "per_second"), [("s", 1.0), ("min", 1 / 60)])
def test_a_rate_covers_what_scope_says_in_the_unit_that_is_declared(
    scope: str, factor: int, unit: str, per_second: float
) -> None:
    text = log(f"step {step} rate 60" for step in range(1, 8))
    declared = rule(by="samples_per_s", scope=scope, units={"samples_per_s": unit})
    assert speed(declared, text) == pytest.approx(60 * factor * per_second)


def test_times_may_be_in_milliseconds() -> None:
    text = log(f"step {step} in 500 since {step * 500}" for step in range(1, 8))
    for by in ("step_time_s", "elapsed_s"):
        assert speed(rule(by=by, units={"step_time_s": "ms", "elapsed_s": "ms"}), text) == 256.0


def test_lines_in_their_order_count_whatever_their_steps() -> None:
    window = {"steps_above": 1, "skip_lines": 2, "take_lines": 4}
    text = log(f"step {step} in {step}" for step in (1, 2, 2, 3, 3, 4, 4, 5))
    assert speed(rule(window, printers="gpus"), text) == pytest.approx(4 * 128 / (3 + 3 + 4 + 4))
    assert (
        refused(rule(window), text)
        == "expected lines of step 2 at most 1 times, once from each process, found 2: several runs in one file"
    )
    assert (
        refused(rule({**window, "take_lines": 9}, printers="gpus"), text)
        == "expected 11 lines of steps above 1, found 7"
    )


def test_series_of_several_runs_are_no_ranks() -> None:
    window = {"steps_above": 1, "skip_lines": 0, "take_lines": 4}
    ranks = log(f"step {step} in {seconds}" for seconds in (2, 2.2) for step in range(1, 8))
    runs = log(f"step {step} in {seconds}" for seconds in (2, 5) for step in range(1, 8))

    assert speed(rule(window, printers="gpus"), ranks) == 64.0
    assert "found 2 that are not: several runs in one file" in refused(
        rule(window, printers="gpus"), runs
    )


def test_each_of_several_processes_must_print_each_step() -> None:
    text = log(f"step {step} since {step + rank / 10}" for step in range(1, 8) for rank in range(4))
    found = rule(by="elapsed_s", printers="gpus").speed(text, CASE)
    assert found.samples_per_s == pytest.approx(128.0)
    assert found.warnings == (
        "4 unnamed processes write to one log: the mean of their lines is taken",
    )
    assert "from each of 8 processes, found 4 lines" in refused(
        rule(by="elapsed_s", printers="ranks"), text
    )
    assert speed(rule(by="elapsed_s"), text) == 128.0


def test_a_total_is_printed_once_or_by_each_rank() -> None:
    declared = rule(
        {"total": True, "first": 1, "last": 7},
        by="samples_per_s",
        lines=[LINES, r"^total (?P<samples_per_s>\S+)$"],
    )
    text = TIMED + b"total 640\n"
    assert speed(declared, text) == 640.0
    shorter = declared.speed(log(["step 1 in 1", "step 2 in 1", "total 640"]), CASE)
    assert shorter.warnings == ("the total is of 2 steps, not of 7 as published",)
    assert "at most 1 ranks, found 2 totals" in refused(declared, text + b"total 640\n")
    assert "found steps after the first total: several runs" in refused(declared, text + text)
    assert (declared.first, declared.last) == (1, 7)


def test_values_in_the_next_line_belong_to_the_step_before() -> None:
    declared = rule(
        by="samples_per_s",
        lines=[r"^epoch (?P<step>\d+)$", r"^rate (?P<samples_per_s>\d+)$"],
        steps_called="epochs",
    )
    text = log(line for step in range(1, 8) for line in (f"epoch {step}", "rate 320", "rate 9"))
    assert speed(declared, text) == 320.0
    cut = text.replace(b"epoch 6\nrate 320\nrate 9\n", b"epoch 6\n")
    assert (
        refused(declared, cut)
        == "expected lines of epochs 2-6, found 4 of 5, without 6; the log goes from 1 to 7"
    )


def test_the_size_in_a_log_must_be_the_planned_one() -> None:
    declared = rule(size_lines=[r"^(?P<world_size>\d+) ranks of (?P<batch_size>\d+)"])
    assert speed(declared, b"8 ranks of 16\n" + TIMED) == 128.0
    assert refused(declared, b"4 ranks of 16\n" + TIMED) == "expected world_size 8, the log says 4"
    assert (
        refused(declared, b"8 ranks of 32\n" + TIMED) == "expected batch_size 16, the log says 32"
    )


def test_the_length_of_an_epoch_must_fit_the_ranks_and_stay_the_same() -> None:
    text = log(f"step {step} of 100 in 1.0" for step in range(1, 8))
    assert speed(rule(), text, Case(2, 4, 16, images=12900)) == 128.0
    assert "which implies 4 ranks, not 8" in refused(rule(), text, Case(2, 4, 16, images=6450))
    assert "expected one epoch length, found 50, 100" in refused(
        rule(), text.replace(b"of 100", b"of 50", 1)
    )


@pytest.mark.parametrize(
    ("rounding", "expected"),
    [
        (None, 2725.415),
        ({"places": 2, "by": "numpy"}, 2725.42),
        ({"places": 2, "by": "python"}, 2725.41),
        ({"places": 0}, 2725.0),
    ],
)
def test_the_speed_of_a_run_is_rounded_as_declared(
    rounding: dict[str, Any] | None, expected: float
) -> None:
    text = log(f"step {step} rate 2725.415" for step in range(1, 8))
    assert speed(rule(by="samples_per_s", over="mean", rounding=rounding), text) == pytest.approx(
        expected, abs=1e-9
    )


def test_rates_of_lines_may_be_rounded_before_their_mean() -> None:
    text = log(
        f"step {step} rate {rate}" for step, rate in enumerate((1, 1, 1, 10.4, 10.4, 10.4, 10.4, 1))
    )
    assert speed(rule(by="samples_per_s", over="mean"), text) == pytest.approx(10.4)
    assert speed(rule(by="samples_per_s", over="mean", line_rounding={"places": 0}), text) == 10.0


@pytest.mark.parametrize("word", ["7,512", "fast", "nan", "inf"])
def test_what_is_no_number_is_refused_with_its_group(word: str) -> None:
    text = log(f"step {step} rate {word}" for step in range(1, 8))
    assert (
        refused(rule(by="samples_per_s"), text)
        == f"expected a number in samples_per_s, found {word!r}"
    )


def test_no_module_of_the_rules_knows_a_system() -> None:
    package = Path(orchestrator.__file__).parent
    files = [
        *(package / "analysis" / "published").glob("*.py"),
        *(package / "plan").glob("published_*.py"),
    ]
    systems = [
        name for name, folder in frameworks().items() if (folder / "published.json").exists()
    ]
    words = [
        *systems,
        "paddle",
        "oneflow",
        "tensorflow",
        "TimeHistory",
        "fleetx",
        "tensorpack",
        "horovod",
    ]
    assert [
        (file.name, word)
        for file in files
        for word in words
        if re.search(word, file.read_text(), re.IGNORECASE)
    ] == []


# A folder of a user's own


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """Return a project with a framework folder, its rule and table, and a tree of three runs of two
    cases.
    """
    templates = tmp_path / "templates"
    templates.mkdir()
    folder_of(
        templates / "mlp",
        WHOLE + RULE.replace("  statistic: mean\n", "  statistic: mean\n  divisor: mean/mean\n"),
    )
    (templates / "mlp" / "published.json").write_text(TABLES)
    for case, ranks in (("1n1g", 1), ("1n2g", 2)):
        for run, late in ((1, 0.0), (2, 0.25), (3, 1.0)):
            path = tmp_path / "logs" / case / f"mlp_b256_fp32_{run}.log"
            path.parent.mkdir(parents=True, exist_ok=True)
            lines = [
                f"step {step:4d}  loss 0.9  {0.5 + late * ranks} s/step" for step in range(1, 41)
            ]
            path.write_bytes(log([f"{ranks} ranks", *lines, f"run {run}"]))
    return tmp_path


def summarize(own: Path, *words: str) -> Any:
    command = [
        "summarize",
        "--from-logs",
        str(own / "logs"),
        "-f",
        "mlp",
        "--templates",
        str(own / "templates"),
        *words,
    ]
    return CliRunner().invoke(program(), command, env={"COLUMNS": "200"})


@pytest.mark.parametrize(
    "words", [(), ("--rule", "steady"), ("--rule", "mlp"), ("--rule", "dlperf")]
)
def test_a_rule_of_a_users_own_measures_a_tree_with_its_divisor(
    own: Path, words: tuple[str, ...]
) -> None:
    done = summarize(own, *words)
    assert done.exit_code == 0, done.output
    # 512, 341.3 and 170.7 samples/s on one rank; 1024, 512 and 204.8 on two.
    assert re.search(r"1n1g +3 +341\.33 +341\.30 .* 1\.00 +– +100\.0%", done.output), done.output
    assert re.search(r"1n2g +3 +580\.27 +512\.00 .* 1\.70 +– +85\.0%", done.output), done.output
    assert "baseline 1n1g: 341.33 samples/s, n=3" in done.output
    note = "rule steady: mean rate of steps 11-40; the mean of 3 runs was published; speedup is mean over mean of 1n1g"
    assert note in done.output


def test_a_name_that_no_rule_has_is_refused_with_the_nearest(own: Path) -> None:
    done = summarize(own, "--rule", "stedy")
    assert isinstance(done.exception, ConfigError)
    assert "--rule: expected dlperf, mlp, steady, " in str(done.exception)
    assert str(done.exception).endswith(
        "got 'stedy'. without --rule the window of the run is used; did you mean 'steady'?"
    )
    of_another = summarize(own, "--rule", "fleetx_20_120")
    assert "--rule: expected a rule of mlp, steady, got 'fleetx_20_120'" in str(
        of_another.exception
    )


def test_published_shows_the_rules_of_the_folder(own: Path) -> None:
    done = CliRunner().invoke(
        program(), ["published", str(own / "templates" / "mlp")], env={"COLUMNS": "160"}
    )
    assert done.exit_code == 0
    assert done.output.startswith("a paper, table 2\nrule steady: mean rate of steps 11-40\n")
    shown = CliRunner().invoke(
        program(), ["framework", "show", "mlp", "--templates", str(own / "templates")]
    )
    assert "  published rule steady: mean rate of steps 11-40\n" in shown.output


def test_the_check_of_a_folder_reads_its_rule_and_its_tables(own: Path) -> None:
    folder = own / "templates" / "mlp"
    (folder / "sample.log").write_bytes(
        log(f"step {step} loss 0.9 0.5 s/step" for step in range(1, 41))
    )
    good = CliRunner().invoke(program(), ["framework", "check", str(folder)])
    assert good.exit_code == 0 and "published rule" not in good.output
    (folder / "framework.yaml").write_text(WHOLE + RULE.replace("s/step'", "s/iteration'"))
    (folder / "published.json").write_text(TABLES.replace("590.2", '"590.2"'))
    bad = CliRunner().invoke(program(), ["framework", "check", str(folder)])
    assert (
        f"note: no line of {folder}/sample.log matches lines: of the published rule steady"
        in bad.output
    )
    assert (
        f"{folder}/published.json:15: tables.mlp_b256.cases.1n2g.speed: expected a number above 0"
        in str(bad.exception)
    )


def test_a_rule_of_another_name_is_found_by_it(own: Path) -> None:
    framework = read_folder(own / "templates" / "mlp").framework
    assert (
        rule_of(framework).name
        == rule_of(framework, "mlp").name
        == rule_of(framework, "steady").name
        == "steady"
    )


DOCS = Path(__file__).parents[3] / "docs" / "published.md"


def block(language: str, begin: str) -> str:
    """Return the block of the documentation that begins with a text."""
    (found,) = re.findall(
        rf"^```{language}\n({re.escape(begin)}.*?)^```$",
        DOCS.read_text("utf-8"),
        re.MULTILINE | re.DOTALL,
    )
    return str(found)


def test_the_folder_and_the_table_of_the_documentation_give_what_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("templates").mkdir()
    folder_of(Path("templates/mlp"), WHOLE + block("yaml", "published:"))
    Path("templates/mlp/published.json").write_text(
        block("json", '{\n  "schema": 1,\n  "source": "a paper')
    )
    shown = block("console", "$ orch published templates/mlp\n").split("\n", 1)[1]
    done = CliRunner().invoke(program(), ["published", "templates/mlp"], env={"COLUMNS": "160"})
    assert f"{done.output}orch: {done.exception}\n" == shown


def test_the_documentation_names_every_key_of_a_rule() -> None:
    page = DOCS.read_text("utf-8").split("## A rule of your own")[1].split("## The format of")[0]
    keys = {*PublishedEntry.model_fields, *RuleEntry.model_fields, *WindowEntry.model_fields}
    assert [name for name in keys if not re.search(rf"[`{{ ]{name}[`:]", page)] == []


def test_the_documentation_names_every_key_of_published_json() -> None:
    page = DOCS.read_text("utf-8").split("## The format of")[1].split("## Average, median")[0]
    keys = {
        name for model in json_schema()["$defs"].values() for name in model["properties"]
    } | set(json_schema()["properties"])
    assert [key for key in keys if f"`{key}`" not in page] == []
