"""Options that have defaults in files: which of them a command uses, says, and lets win."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.cli import main
from orchestrator.cli.defaults import _key
from orchestrator.options import OPTIONS
from orchestrator.record.defaults import CHOICES, KEYS
from tests.support.cli_project import Project

INVENTORY = "schema: 1\ndefaults: {gpus: 0}\nhosts: {'n[1-4]': {address: '192.0.2.[1-4]'}}\n"


@pytest.fixture
def project(tmp_path: Path) -> Project:
    (tmp_path / "cpu.yaml").write_text(INVENTORY)
    (tmp_path / "orch.yaml").write_text(
        "hosts: cpu.yaml\nnodes: [1, 2]\nrepeats: 2\ntimeout: 5m\nlease: 2m\nexclude: n4\n"
    )
    (tmp_path / ".config" / "orch").mkdir(parents=True)
    (tmp_path / ".config" / "orch" / "config.yaml").write_text("accept_new: true\nrepeats: 9\n")
    return Project(tmp_path)


def plan(project: Project, *words: str) -> list[dict[str, object]]:
    done = project.orch(
        "bench", "resnet50", "-f", "simulated", "--gpus", "1", "--dry-run", "--json", *words
    )
    assert done.returncode == 0, done.stderr
    return [run["spec"] for run in json.loads(done.stdout)]


def test_every_row_is_an_option_of_a_bench() -> None:
    bench = {_key(param) for param in main.whole().commands["bench"].params}
    assert {"set" if name == "options" else name for name in OPTIONS} <= bench


def test_every_key_of_a_file_has_one_way_to_a_command() -> None:
    of_command_lines = {name for name, row in KEYS.items() if row.commands}
    assert of_command_lines.isdisjoint({*CHOICES, "hosts", "templates"})
    assert {*KEYS} == {*of_command_lines, *CHOICES, "hosts", "templates"}
    assert CHOICES == {"nodes": "nodes", "repeats": "repeats", "timeout": "timeout_s"}


def test_a_bench_uses_defaults_says_which_and_prints_their_origins(project: Project) -> None:
    done = project.orch("bench", "resnet50", "-f", "simulated", "--gpus", "1", "--dry-run")
    assert done.stderr.splitlines()[:4] == [
        "defaults: exclude=n4, lease=2m (orch.yaml)",
        "defaults: accept_new=true (~/.config/orch/config.yaml)",
        "defaults: nodes=1,2, repeats=2, timeout=5m (orch.yaml)",
        f"inventory: {project.path}/cpu.yaml (orch.yaml), 3 of 4 hosts",
    ]
    assert (
        "   nodes = 2  (orch.yaml)\n" in done.stdout
        and "   timeout_s = 300.0  (orch.yaml)\n" in done.stdout
    )


def test_a_run_file_wins_over_defaults_and_the_command_line_over_both(project: Project) -> None:
    (project.path / "choices.yaml").write_text("nodes: 3\ntimeout_s: 60\n")
    assert [(spec["nodes"], spec["timeout_s"]) for spec in plan(project, "--no-baseline")] == [
        (1, 300),
        (2, 300),
        (2, 300),
        (1, 300),
    ]
    of_file = plan(project, "--no-baseline", "--file", "choices.yaml")
    assert [(spec["nodes"], spec["timeout_s"]) for spec in of_file] == [(3, 60)] * 2
    commanded = plan(
        project,
        "--no-baseline",
        "--file",
        "choices.yaml",
        "--nodes",
        "2",
        "--repeats",
        "1",
        "--timeout",
        "1m30s",
    )
    assert [(spec["nodes"], spec["timeout_s"]) for spec in commanded] == [(2, 90)]


@pytest.mark.parametrize("words", [["--ladder"], ["--nodes", "1"]])
def test_default_nodes_give_way_to_any_choice_of_shapes(project: Project, words: list[str]) -> None:
    assert (
        "nodes="
        not in project.orch(
            "bench", "resnet50", "-f", "simulated", "--gpus", "1", "--dry-run", *words
        ).stderr
    )


def test_other_commands_take_only_what_is_theirs(project: Project) -> None:
    done = project.orch("check", "--only", "nothing")
    assert "lease" not in done.stderr and "defaults: exclude=n4 (orch.yaml)" in done.stderr


@pytest.mark.parametrize(
    "words", [("bench", "resnet50", "--dry-run"), ("status",), ("schema", "run")]
)
def test_a_misspelt_key_is_refused_by_every_command_with_the_nearest(
    project: Project, words: tuple[str, ...]
) -> None:
    (project.path / "orch.yaml").write_text("repeat: 3\n")
    said = project.refused(*words)
    assert said.startswith(
        f"orch: {project.path}/orch.yaml:1: repeat: unknown key repeat."
    ) and said.endswith("did you mean 'repeats'?")
    assert project.orch(*words, "--help").returncode == 0


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (("--hosts", ""), "--hosts"), (("--hosts=",), "--hosts"), (("-H", ""), "--hosts"), (("--slurm", ""), "--slurm"),
        (("-x", ""), "--exclude"), (("-b", ""), "--batch-size"), (("--label", ""), "--label"),
    ],
)  # fmt: skip
def test_an_option_emptied_by_an_unset_variable_does_not_mean_what_is_used_without_it(
    project: Project, words: tuple[str, ...], option: str
) -> None:
    done = project.orch("bench", "resnet50", "-f", "simulated", "--nodes", "1", "--dry-run", *words)
    assert (
        done.returncode == 2
        and f"orch: {option}: expected a value, got an empty text" in done.stderr
    ), done.stderr


def test_machines_chosen_twice_are_refused_and_of_other_options_the_last_one_counts(
    project: Project,
) -> None:
    bench = ("bench", "resnet50", "-f", "simulated", "--dry-run")
    done = project.orch(*bench, "-x", "n1", "--exclude", "n2")
    assert (
        done.returncode == 2
        and "orch: --exclude: expected the option once, got it again" in done.stderr
    ), done.stderr
    assert (
        project.orch(
            *bench, "--env", "A=1", "--env", "B=2", "--steps", "40", "--steps", "50"
        ).returncode
        == 0
    )


def test_a_missing_inventory_says_which_file_named_it_and_what_to_do(project: Project) -> None:
    (project.path / "orch.yaml").write_text("hosts: racks/none.yaml\n")
    done = project.orch("check")
    assert (
        done.returncode == 2
        and "none.yaml (orch.yaml): expected a file, found none. name an inventory or hosts"
        in done.stderr
    )
    (project.path / "orch.yaml").unlink()
    done = project.orch("check")
    assert (
        done.returncode == 2
        and "inventory/cluster.yaml (the default): expected a file" in done.stderr
    )


def test_a_longest_wait_in_a_file_does_not_make_a_bench_wait(project: Project) -> None:
    (project.path / "orch.yaml").write_text("hosts: cpu.yaml\nbudget: 20d\nwait_limit: 12d\n")
    words = ("bench", "resnet50", "-f", "simulated", "--nodes", "1", "--gpus", "1", "--dry-run")
    assert "wait_limit" not in project.orch(*words).stderr
    assert (
        "defaults: budget=480h, wait_limit=288h (orch.yaml)"
        in project.orch(*words, "--wait").stderr
    )


def test_a_time_in_a_file_has_the_bounds_of_its_option(project: Project) -> None:
    (project.path / "orch.yaml").write_text("hosts: cpu.yaml\nlease: 1s\n")
    refused = project.orch("bench", "resnet50", "-f", "simulated", "--dry-run")
    assert refused.returncode == 2
    assert (
        "orch.yaml:2: lease: expected a time of 2s or more" in refused.stderr
        and "got '1s'" in refused.stderr
    )


@pytest.mark.parametrize("key", ["wait_limit", "budget"])
def test_no_time_is_refused_in_a_file_as_on_the_command_line(project: Project, key: str) -> None:
    words = (
        "bench",
        "resnet50",
        "-f",
        "simulated",
        "--nodes",
        "1",
        "--gpus",
        "1",
        "--dry-run",
        "--wait",
    )
    (project.path / "orch.yaml").write_text("hosts: cpu.yaml\n")
    option = f"--{key.replace('_', '-')}"
    assert (
        f"orch: {option}: expected a time above 0, got '0'"
        in project.orch(*words, option, "0").stderr
    )
    (project.path / "orch.yaml").write_text(f"hosts: cpu.yaml\n{key}: 0\n")
    done = project.orch(*words)
    assert done.returncode == 2
    assert f"{project.path}/orch.yaml:2: {key}: expected a time above 0, got '0'" in done.stderr


def test_the_command_line_takes_back_a_flag_of_a_file(project: Project) -> None:
    flags = ("accept_new", "wait", "keep_going", "strict")
    (project.path / "orch.yaml").write_text(
        "hosts: cpu.yaml\n" + "".join(f"{flag}: true\n" for flag in flags)
    )
    words = ("bench", "resnet50", "-f", "simulated", "--nodes", "1", "--gpus", "1", "--dry-run")
    assert all(f"{flag}=true" in project.orch(*words).stderr for flag in flags)
    taken_back = project.orch(*words, *(f"--no-{flag.replace('_', '-')}" for flag in flags))
    assert taken_back.returncode == 0 and not any(flag in taken_back.stderr for flag in flags)
