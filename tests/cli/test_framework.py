"""`orch framework` and `orch schema`: what they print, what they write, and how they end."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from orchestrator import yamlfile
from orchestrator.inventory.json_schema import json_schema as inventory_schema
from orchestrator.inventory.schema import TOP_KEYS
from orchestrator.plan.folders import frameworks
from tests.results.test_measures import FOLDER, made_bench
from tests.support import commands
from tests.support.cli_project import Project
from tests.support.commands import REPOSITORY
from tests.support.judge import LIMIT_S
from tests.support.own_folders import RULE, WHOLE, folder_of
from tests.support.terminal import Terminal


@pytest.fixture
def project(tmp_path: Path) -> Project:
    (tmp_path / "templates").mkdir()
    folder_of(
        tmp_path / "templates" / "mlp",
        WHOLE,
        "#!/bin/bash\n. ./env.sh\nexec true {{ options.width }} {{ options.mode }}\n",
    )
    return Project(tmp_path)


def log_of(project: Project, text: str) -> str:
    (project.path / "own.log").write_text(text)
    return "own.log"


def test_a_new_folder_passes_its_check_and_is_in_the_list(project: Project) -> None:
    made = project.orch("framework", "new", "mine")
    assert (made.returncode, made.stdout.splitlines()[0]) == (
        0, "templates/mine: framework.yaml, launch.sh.j2, sample.log, train.py",
    )  # fmt: skip
    checked = project.orch("framework", "check", "mine")
    assert (
        checked.returncode == 0 and "templates/mine: no fault; 8 configurations, " in checked.stdout
    )
    assert (
        "log.patterns[0]: 3 matches" in checked.stdout
        and "it reads step=1, step_time_s=0.026804" in checked.stdout
    )
    listed = project.orch("framework", "list", "--json")
    rows = {row["name"]: row for row in json.loads(listed.stdout)}
    assert rows["mine"]["from"] == "templates" and rows["pytorch"]["from"] == "orch"
    again = project.orch("framework", "new", "mine")
    assert (again.returncode, again.stderr) == (
        2, "orch: templates/mine: expected a new folder. existing files are not overwritten\n",
    )  # fmt: skip


def test_a_folder_from_a_command_takes_its_script_along(project: Project) -> None:
    (project.path / "run.py").write_text("import own\n")
    (project.path / "own.py").write_text("import data\n")
    (project.path / "data").mkdir()
    (project.path / "data" / "images.py").write_text("")
    made = project.orch(
        "framework",
        "new",
        "mine",
        "--from-command",
        "torchrun --nproc_per_node 8 run.py --epochs 1",
    )
    assert (
        made.returncode == 0
        and "left out, because orch sets it in each run: --nproc_per_node 8" in made.stdout
    )
    assert sorted(path.name for path in (project.path / "templates" / "mine").iterdir()) == [
        "data", "framework.yaml", "launch.sh.j2", "own.py", "run.py", "sample.log",
    ]  # fmt: skip
    assert project.orch("framework", "check", "mine").returncode == 0


def test_a_folder_of_metrics_takes_a_log_along_or_says_that_it_has_none(project: Project) -> None:
    words = ("--from-command", "python /opt/probe.py", "--metric", "bandwidth:GB/s")
    made = project.orch("framework", "new", "probe", *words)
    assert made.returncode == 0 and "sample.log is a placeholder" in made.stdout
    assert project.orch("framework", "check", "probe").returncode == 0
    made = project.orch(
        "framework", "new", "other", *words, "--log", log_of(project, "bandwidth: 7.25 GB/s\n")
    )
    assert made.returncode == 0 and "placeholder" not in made.stdout
    assert "bandwidth=7.25" in project.orch("framework", "check", "other").stdout
    silent = ("framework", "check", "other", "--log", log_of(project, "7.25 GB/s\n"))
    assert ": 1 line; no line with a result\n" in project.orch(*silent).stdout
    assert "--log gone.log: expected a file" in project.refused(
        "framework", "new", "third", *words, "--log", "gone.log"
    )
    twice = ("framework", "new", "third", *words, "--metric", "bandwidth:us:lower")
    assert "--metric: expected each metric once, got bandwidth again" in project.refused(*twice)
    assert "--metric: expected --from-command too" in project.refused(
        "framework", "new", "third", "--metric", "a:b"
    )
    assert not (project.path / "templates" / "third").exists()


def test_a_script_that_cannot_be_sent_makes_no_folder(project: Project) -> None:
    (project.path / "run.py").symlink_to("/etc/hostname")
    said = project.refused("framework", "new", "mine", "--from-command", "torchrun run.py")
    assert said.startswith(
        "orch: --from-command: expected files and folders, but run.py is a symbolic link"
    )
    assert "--from-command: expected a file, found no gone.py here" in project.refused(
        "framework", "new", "mine", "--from-command", "torchrun gone.py"
    )
    assert not (project.path / "templates" / "mine").exists()


@pytest.mark.parametrize("name", ["../x", "", ".hidden", "a b", "a/b"])
def test_a_name_that_is_no_folder_is_refused(project: Project, name: str) -> None:
    assert "orch: NAME: expected a name of letters, digits" in project.refused(
        "framework", "new", name
    )
    assert [path.name for path in (project.path / "templates").iterdir()] == ["mlp"]


def test_the_patterns_are_tried_on_a_given_log(project: Project) -> None:
    log = log_of(
        project,
        "rank 0 of 1 is up\nstep  1  loss 0.9  0.5 s/step\nstep  2  loss 0.9  0.5 s/step\nbye\n",
    )
    done = project.orch("framework", "check", "mlp", "--log", log)
    assert done.returncode == 0, done
    assert "own.log: 4 lines; steps 1 to 2, 2 of them" in done.stdout
    assert "no pattern matches 1 line:\n      4: bye" in done.stdout
    assert "counts_from" not in done.stdout
    log = log_of(project, "step  0  loss 0.9  0.5 s/step\nstep  1  loss 0.9  0.5 s/step\n")
    done = project.orch("framework", "check", "mlp", "--log", log)
    assert "note: the first step of this log is 0: if" in done.stdout


def test_a_log_without_a_number_ends_with_4_and_says_where_the_pattern_stops(
    project: Project,
) -> None:
    done = project.orch(
        "framework", "check", "mlp", "--log", log_of(project, "x\nstep  1  loss 0.9  0.5 s/it\n")
    )
    said = "orch: own.log: expected lines that give a number, found none. correct the patterns, or name another log of the "
    assert (done.returncode, done.stderr) == (4, f"{said}program with --log FILE\n")
    assert "log.patterns[0]: 0 matches" in done.stdout
    assert "nearly matches line 2: step  1  loss 0.9  0.5 s/it" in done.stdout
    assert "then the pattern has 'step' where the line has 'it'" in done.stdout
    read = json.loads(
        project.orch("framework", "check", "mlp", "--log", "own.log", "--json").stdout
    )
    assert (
        read["log"]["has_number"] is False
        and read["log"]["patterns"][0]["near_miss"]["number"] == 2
    )


def test_faults_of_the_file_of_templates_and_of_scripts_end_with_2(project: Project) -> None:
    folder = project.path / "templates" / "mlp"
    (folder / "framework.yaml").write_text(WHOLE.replace("default: 1024", "default: big"))
    (folder / "launch.sh.j2").write_text("{% if %}\n")
    done = project.orch("framework", "check", "mlp")
    assert done.returncode == 2 and "2 faults; nothing was rendered" in done.stdout
    assert [line.split(": ")[1] for line in done.stderr.splitlines()] == [
        "templates/mlp/framework.yaml:16", "templates/mlp/launch.sh.j2:1",
    ]  # fmt: skip
    (folder / "framework.yaml").write_text(WHOLE)
    (folder / "launch.sh.j2").write_text("if true\n{{ options.width }} {{ options.mode }}\n")
    done = project.orch("framework", "check")  # all of the project
    assert (
        done.returncode == 2
        and "expected a script that bash reads, got line 3: syntax error" in done.stderr
    )
    assert (
        json.loads(project.orch("framework", "check", "mlp", "--json").stdout)["faults"][0]["kind"]
        == "template_error"
    )


def test_a_folder_is_shown_with_everything_that_it_declares(project: Project) -> None:
    done = project.orch("framework", "show", "mlp")
    assert "width  1024 (int, at least 1): width of each layer" in done.stdout
    assert "mode   fast (str, one of fast, slow): how" in done.stdout
    shown = json.loads(project.orch("framework", "show", "mlp", "--json").stdout)
    assert shown["options"]["width"]["default"] == 1024 and shown["payload"] == [
        "rank_wrapper.py",
        "train.py",
    ]


def test_a_folder_that_hides_another_one_is_said_where_it_is_used_and_in_the_list(
    project: Project,
) -> None:
    folder_of(project.path / "templates" / "simulated", WHOLE)
    ours = frameworks()["simulated"]
    shown = project.orch("framework", "show", "simulated")
    assert shown.stderr == f"framework: templates/simulated hides {ours}\n"
    assert f"my MLP; hides {ours}" in project.orch("framework", "list").stdout
    assert project.orch("framework", "show", "mlp").stderr == ""


def test_a_framework_of_no_folder_is_answered_with_where_was_looked(project: Project) -> None:
    assert "did you mean 'mlp'?; looked in templates and orch's own folders" in project.refused(
        "framework", "check", "mpl"
    )
    (project.path / "more").mkdir()
    done = project.orch("framework", "show", "mpl", ORCH_TEMPLATES="more")
    assert "looked in more, templates and orch's own folders" in done.stderr


def schema_of(project: Project, kind: str) -> Any:
    schema = json.loads(project.orch("schema", kind).stdout)
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def test_the_schema_of_a_folder_accepts_every_shipped_one_and_refuses_mistakes(
    project: Project,
) -> None:
    schema = schema_of(project, "framework")
    for path in frameworks().values():
        schema.validate(yamlfile.load(path / "framework.yaml").value)
    for old, new in (
        ("title: my MLP\n", ""),
        ("title:", "lanch: x\ntitle:"),
        ("type: int", "type: integer"),
        ("  steps:", "  step:"),
    ):
        assert not schema.is_valid(yamlfile.loads(WHOLE.replace(old, new, 1), "x").value), new
    schema.validate(yamlfile.loads(WHOLE + RULE, "x").value)
    for old, new in (
        ("by: step_time_s", "by: step_time"),
        ("{first:", "{from:"),
        ("over: mean", "over: average"),
    ):
        assert not schema.is_valid(yamlfile.loads(WHOLE + RULE.replace(old, new, 1), "x").value), (
            new
        )


def test_the_schema_of_an_inventory_accepts_the_reference_and_has_the_keys_that_are_read(
    project: Project,
) -> None:
    schema = schema_of(project, "inventory")
    reference = yamlfile.load(REPOSITORY / "inventory" / "cluster.yaml").value
    schema.validate(reference)
    assert not schema.is_valid({**reference, "host": {}})
    assert not schema.is_valid({**reference, "defaults": {"gpu": 8}})
    assert set(inventory_schema()["properties"]) == {*TOP_KEYS, "base"}


def test_the_schema_of_a_run_file_has_its_keys(project: Project) -> None:
    schema = schema_of(project, "run")
    schema.validate({"batch_size": 64, "dtype": "fp16", "options": {"width": 8, "fast": True}})
    assert not schema.is_valid({"colour": "red"}) and not schema.is_valid({"batch_size": "64"})


def test_a_file_without_a_schema_is_refused(project: Project) -> None:
    assert (
        "'framework', 'inventory', 'published', 'run'" in project.orch("schema", "cluster").stderr
    )


def test_the_patterns_are_tried_on_a_log_that_a_bench_has_collected(tmp_path: Path) -> None:
    bench = made_bench(tmp_path, "b1", [["0.5", "0.7"]])
    target = tmp_path / "templates" / "pinger"
    target.mkdir(parents=True)
    (target / "framework.yaml").write_text(
        FOLDER.format(model="ping").replace("[node.out]", "[rank-0.out]")
    )
    (target / "launch.sh.j2").write_text("#!/bin/bash\nexec true {{ spec.steps }}\n")
    for run in bench.runs():  # the builder names another folder
        content = run.manifest_content()
        run.update_manifest(framework={**content["framework"], "name": "pinger"})
    environment = {"ORCH_PROJECT": str(tmp_path)}
    done = commands.orch(
        tmp_path, "framework", "check", "pinger", "--bench", "b1", environment=environment
    )
    assert done.returncode == 0, done
    assert (
        "rank-0.out: " in done.stdout
        and "metric time_s: 2 values, the first is 0.5 s at to=0" in done.stdout
    )
    both = commands.orch(
        tmp_path,
        "framework",
        "check",
        "pinger",
        "--bench",
        "b1",
        "--log",
        "x",
        environment=environment,
    )
    assert both.returncode == 2 and "expected one of --log and --bench, got both" in both.stderr
    none = commands.orch(
        tmp_path, "framework", "check", "pytorch", "--bench", "b1", environment=environment
    )
    assert (
        none.returncode == 2
        and "expected collected logs of pytorch like rank-0.out, found none" in none.stderr
    )


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("ping to=1 time_s=1.2.3", "time_s '1.2.3' is not a number"),
        ("ping to=0 time_s=0.5", "expected one line with time_s at to=0, got another"),
        ("ping to=1 time_s=nan", "expected a finite time_s, got 'nan'"),
    ],
)
def test_a_log_whose_metrics_would_fail_a_run_fails_the_check(
    tmp_path: Path, line: str, said: str
) -> None:
    target = tmp_path / "templates" / "pinger"
    target.mkdir(parents=True)
    text = FOLDER.format(model="ping").replace("[\\d.]+", "[\\d.na]+")
    (target / "framework.yaml").write_text(text)
    (target / "launch.sh.j2").write_text("#!/bin/bash\nexec true {{ spec.steps }}\n")
    environment = {"ORCH_PROJECT": str(tmp_path)}
    (target / "sample.log").write_text("ping to=0 time_s=0.5\n")
    assert (
        commands.orch(tmp_path, "framework", "check", "pinger", environment=environment).returncode
        == 0
    )
    (target / "sample.log").write_text(f"ping to=0 time_s=0.5\n{line}\n")
    done = commands.orch(tmp_path, "framework", "check", "pinger", environment=environment)
    assert done.returncode == 4 and said in done.stderr, done


def test_a_number_in_the_form_that_the_folder_declares_passes_the_check(tmp_path: Path) -> None:
    target = tmp_path / "templates" / "pinger"
    target.mkdir(parents=True)
    text = FOLDER.format(model="ping").replace("(?P<time_s>[\\d.]+)", "(?P<time_s>[\\d.,]+)")
    (target / "launch.sh.j2").write_text("#!/bin/bash\nexec true {{ spec.steps }}\n")
    (target / "sample.log").write_text("ping to=0 time_s=1,234.5\n")
    for form, code in (("", 4), ('  thousands: ","\n', 0)):
        (target / "framework.yaml").write_text(text.replace("log:\n", f"log:\n{form}"))
        done = commands.orch(
            tmp_path, "framework", "check", "pinger", environment={"ORCH_PROJECT": str(tmp_path)}
        )
        assert done.returncode == code, done


def test_at_a_terminal_lines_end_between_words(tmp_path: Path) -> None:
    """What cannot be broken is whole; what is no terminal gets every line whole."""
    variables = commands.inherited_environment() | {
        "PYTHONPATH": str(REPOSITORY),
        "COLUMNS": "80",
    }
    for words, status in ((("show", "pytorch"), 0), (("show", "no" * 30), 2)):
        argv = [sys.executable, "-m", "orchestrator", "framework", *words]
        terminal = Terminal(argv, tmp_path, variables)
        try:
            assert terminal.end() == status, terminal.text
        finally:
            terminal.close()
        piped = subprocess.run(
            argv, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=LIMIT_S
        )
        whole = piped.stdout + piped.stderr
        assert any(len(line) > 80 for line in whole.splitlines())
        assert terminal.text.split() == whole.split()
        lines = terminal.text.splitlines()
        assert all(len(line) <= 80 or len(line.split()) == 1 for line in lines), terminal.text
    assert lines[1].startswith("  ")
