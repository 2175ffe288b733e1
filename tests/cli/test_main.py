"""What the command line says and how it ends when nothing is contacted: exact text, exit status, no traceback."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator import __version__
from orchestrator.cli.main import report
from orchestrator.errors import (
    EXIT_STATUS,
    ConfigError,
    DataError,
    Faults,
    OrchError,
    Regression,
    RunError,
    TransportError,
    Undecided,
    recorded_error,
)
from orchestrator.plan.folders import frameworks
from tests.support.benches import bench
from tests.support.cli_project import Project
from tests.support.commands import REPOSITORY

ORCH = (sys.executable, "-c", "import sys; sys.argv[0] = 'orch'; from orchestrator.cli.process import run; run()")

INVENTORY = """\
schema: 1
defaults: {gpus: 8, vars: {interface: ib0, python: /opt/py/bin/python}, env: {NCCL_IB_DISABLE: "0"}}
groups: {pair: [no1, no2]}
hosts:
  "no[1-4]": {address: "nowhere-[1-4].invalid"}
"""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    (tmp_path / "inventory").mkdir()
    (tmp_path / "inventory" / "cluster.yaml").write_text(INVENTORY)
    (tmp_path / "cpu.yaml").write_text("schema: 1\nhosts:\n  n1: {address: n1.invalid, gpus: 0, slots: 2}\n")
    return Project(tmp_path)


KNOWN = ", ".join(frameworks())
TOO_MANY = "orch: --nodes: expected 9 hosts, 4 selected: no[1-4]. select more hosts with --hosts, or lower --nodes"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("resnet50 --nodes 9", TOO_MANY),
        ("resnet50 -f pytorh", f"orch: --framework: no framework 'pytorh'. available: {KNOWN}; did you mean 'pytorch'?"),
        ("resnet5 -f pytorch",
         "orch: model: pytorch has no model 'resnet5'. it has resnet50, vgg16; did you mean 'resnet50'?"),
        ("resnet5", "orch: model: no framework has a model 'resnet5'. available: "),
        ("resnet50 --gpus 9", "orch: --gpus: expected 9 gpus per node on 4 nodes, too few on no[1-4]. "
                              "lower --gpus, or correct gpus: for these hosts in the inventory"),
        ("resnet50 --nodes 0", "orch: --nodes: expected a whole number ≥ 1, got 0"),
        ("resnet50 --nodes two", "orch: --nodes: expected whole numbers separated by commas, got 'two'"),
        ("resnet50 --shape 4x8,4-8", "orch: --shape: expected shapes such as 1n1g,4n8g, got '4-8'"),
        ("resnet50 --shape 0n1g", "orch: --nodes: expected a whole number ≥ 1, got 0"),
        ("resnet50 --dtype fp8", "orch: --dtype: expected one of fp32, tf32, fp16, bf16 for pytorch on cuda, got 'fp8'"),
        ("resnet50 --batch-size 0", "orch: --batch-size: expected a whole number ≥ 1, got 0"),
        ("resnet50 --loader dali -f simulated", "orch: --loader: expected one of synthetic for simulated, got 'dali'"),
        ("resnet50 --steps 20 --warmup-steps 20", "orch: --steps: expected more steps than the 20 warm-up steps, got 20. "
                                                  "--steps includes the warm-up; the steps after it are measured"),
        ("resnet50 --timeout 0", "orch: --timeout: expected a time above 0, got '0'"),
        ("resnet50 --lease 1s", "orch: --lease: expected a time of 2s or more, got '1s'"),
        ("resnet50 --stall-timeout 5x", "orch: --stall-timeout: expected a time such as 90s, 30m, 1h30m or 90 (seconds), "
                                        "got '5x'"),
        ("resnet50 --order alphabetic", "orch: --order: expected balanced, random or interleaved, got 'alphabetic'"),
        ("resnet50 --set image_size", "orch: --set: expected key=value, got 'image_size'"),
        ("resnet50 --set =5", "orch: --set: expected key=value, got '=5'"),
        ("resnet50 --set image_size=64 --set image_size=32", "orch: --set: image_size is set twice, to '64' and '32'"),
        ("resnet50 --set image_size=tall", "orch: --set image_size: expected a whole number ≥ 32, got 'tall'"),
        ("allreduce --nodes 2 --set sizes='1024,0'",
         "orch: --set sizes: collectives: expected whole numbers of bytes separated by commas, got 1024,0"),
        ("all_to_all --nodes 2 --set in_place=in",
         "orch: --set in_place: collectives: expected out or both, got in: all_to_all is from one buffer to another"),
        ("send_recv --shape 1n1g", "orch: --shape: collectives: expected 2 or more ranks for send_recv, got 1n1g"),
        ("gemm --nodes 1 --set sizes=100", "orch: --set sizes: gemm: expected multiples of 16 separated by commas, got 100"),
        ("memory_bandwidth --nodes 1 --set sizes=1001",
         "orch: --set sizes: memory_bandwidth: expected multiples of 8 separated by commas, got 1001"),
        ("host_device --nodes 1 --set sizes='0,4096'",
         "orch: --set sizes: host_device: expected numbers of bytes separated by commas, got 0,4096"),
        ("host_device --hosts cpu.yaml",
         "orch: --hosts: expected hosts for cuda, host_device does not run on cpu. a CPU has no memory of its own to copy to; "
         "orch bench memory_bandwidth measures that of the host"),
        ("resnet50 --set compile=perhaps", "orch: --set compile: expected true or false, got 'perhaps'"),
        ("resnet50 -f simulated --set computems=5",
         "orch: --set computems: simulated has no option 'computems'. it has compute_ms=-1.0, jitter_percent=0.0, "
         "gradient_mb=0.0, seed=0, peer_timeout_s=60.0, slow_rank=0, slow_percent=0.0, fail_at_step=0, fail_rank=0, "
         "fail_mode=exit3; did you mean 'compute_ms'?"),
        ("resnet50 --hosts gone.yaml", "orch: gone.yaml: expected a file, there is none. check the path"),
        ("resnet50 --hosts inventory/", "orch: inventory/: expected a file, got a directory with cluster.yaml. "
                                        "name a file in it"),
        ("resnet50 --hosts @trio", "orch: hosts '@trio': expected a known group, got 'trio'. known groups: all, pair"),
        ("resnet50 --exclude no[1-4]", "orch: --exclude no[1-4]: no host is left. the inventory inventory/cluster.yaml has "
                                       "no other hosts"),
        ("resnet50 --templates nowhere", "orch: nowhere: expected a folder of framework folders, found none"),
        ("resnet50 --file nowhere.yaml", "orch: nowhere.yaml: expected a file, there is none. check the path"),
    ],
)  # fmt: skip
def test_a_bench_that_cannot_be_is_refused_before_anything_is_contacted(project: Project, words: str, message: str) -> None:
    assert project.refused("bench", *words.split()).startswith(message)


def test_every_fault_of_an_inventory_is_reported_with_file_line_and_key(project: Project) -> None:
    path = project.path / "inventory" / "cluster.yaml"
    path.write_text(
        "schema: 1\ndefaults: {gpu: 8}\nhosts:\n  n1: {address: a, gpus: eight}\n  n2: {address: b, ssh: {port: 70000}}\n"
    )
    assert project.refused("deploy").splitlines() == [
        "orch: inventory/cluster.yaml:2: defaults.gpu: expected a known key, got 'gpu'. "
        "known keys: gpus, slots, transport, ssh, env, vars, container, expect; did you mean 'gpus'?",
        "orch: inventory/cluster.yaml:4: hosts.n1.gpus: expected a whole number from 0 to 1024, got the text 'eight'",
        "orch: inventory/cluster.yaml:5: hosts.n2.ssh.port: expected a whole number from 1 to 65535, got the number 70000",
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("dtype: fp16\ncolour: red\n", "choices.yaml:2: unknown key colour. valid keys: framework, dtype, batch_size"),
        ("options: {image_size: 1}\n", "orch: choices.yaml:1: options.image_size: expected a whole number ≥ 32, got '1'"),
        ("a: 1\na: 2\n", "choices.yaml:2"),
        ("timeout_s: .inf\n", "got '.inf'"),
    ],
)  # fmt: skip
def test_a_run_file_that_cannot_be_is_refused(project: Project, text: str, words: str) -> None:
    (project.path / "choices.yaml").write_text(text)
    assert words in project.refused("bench", "resnet50", "--file", "choices.yaml")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["collect"], "no bench yet. to create one: orch bench resnet50"),
        (["summarize"], "no bench yet. to create one: orch bench resnet50"),
        (["summarize", "b1.tar"], "no bench 'b1.tar'. unpack an archive with tar -xf, and use its directory"),
        (["summarize", "20260101-000000-dead"], "no bench '20260101-000000-dead'. orch status lists the benches"),
        (
            ["summarize", "--format", "pdf"],
            "orch: --format: expected table, html, markdown, csv, json, junit, prometheus, mllog or dlperf, got 'pdf'",
        ),
        (["logs"], "no bench yet"),
        (["check", "--only", "everything"], "orch: --only: expected names of checks, got 'everything'"),
        (["dataset", "make", "--dir", "images"], "orch: --dir: expected an absolute path, got 'images'. begin it with / or ~/"),
        (["dataset", "make", "--dir", "./images"], "orch: --dir: expected an absolute path, got './images'"),
        (["check", "-f", "nothing"], "no framework 'nothing'"),
        (["lab", "exec", "--", "true"], "no lab is up in"),
    ],
)
def test_other_commands_refuse_as_plainly(project: Project, words: list[str], message: str) -> None:
    assert message in project.refused(*words)


@pytest.mark.parametrize("number", ["inf", "nan", "1e300"])
@pytest.mark.parametrize(
    "words",
    [
        "bench resnet50 --dry-run --timeout",
        "bench resnet50 --dry-run --lease",
        "bench resnet50 --dry-run --stop-grace",
        "bench resnet50 --dry-run --first-line-timeout",
        "bench resnet50 --dry-run --stall-timeout",
        "tune resnet50 --dry-run --stall-timeout",
        "dataset make --dir /tmp/set --timeout",
    ],
)
def test_seconds_that_no_clock_counts_to_are_refused(project: Project, words: str, number: str) -> None:
    said = project.refused(*words.split(), number)
    assert said.startswith(f"orch: {words.split()[-1]}: expected a time "), said


@pytest.mark.parametrize(
    "damage",
    [
        {"placement": None}, {"placement": []}, {"placement": {"slots": None}}, {"placement": {"slots": []}},
        {"placement": {"slots": [5]}}, {"framework": "pytorch"}, {"framework": None}, {"spec": 5}, {"payload": 5},
    ],
)  # fmt: skip
def test_a_damaged_earlier_bench_is_passed_over(project: Project, damage: dict[str, Any]) -> None:
    earlier = bench(project.path / "runs", "20260101-000000-aaaa", "2026-01-01T00:00:00Z", [1.0])
    (run,) = earlier.runs()
    manifest = {name: value for name, value in run.manifest_content().items() if name != "seal"} | damage
    (run.path / "manifest.json").write_text(json.dumps(manifest))  # as somebody leaves it who edits it by hand
    (earlier.path / "events.jsonl").write_text('{"event": "planned", "run": "x"}\n{"event": "begun", "at": "now"}\n')
    words = ("bench", "resnet50", "-f", "simulated", "--nodes", "2", "--budget", "10m", "--dry-run")
    done = project.orch(*words)
    assert done.returncode == 0 and "== simulated resnet50 1n1g, world size 1" in done.stdout, done.stderr


def test_a_directory_that_is_no_bench_is_a_matter_of_data(project: Project) -> None:
    (project.path / "here").mkdir()
    assert "bench.json" in project.refused("summarize", "here", code=4)
    (project.path / "here" / "bench.json").write_text("{")
    assert "bench.json" in project.refused("summarize", "here", code=4)


@pytest.mark.parametrize(
    "words", [["bench"], ["bench", "resnet50", "--frobnicate"], ["frobnicate"], ["bench", "resnet50", "--repeats", "0"]]
)
def test_a_command_line_that_is_none_is_explained_with_status_2(project: Project, words: list[str]) -> None:
    done = project.orch(*words)
    assert done.returncode == 2 and done.stdout == "" and done.stderr.startswith("Usage: orch")


def test_the_version_and_help_go_to_stdout(project: Project) -> None:
    variables = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    started = subprocess.run([*ORCH, "--version"], env=variables, capture_output=True, text=True, timeout=60, check=True)
    assert (started.stdout, started.stderr) == (project.orch("--version").stdout, "") == (f"orch {__version__}\n", "")
    helped = project.orch("--help")
    assert helped.returncode == 0 and helped.stderr == "" and "Exit status: 0 success" in helped.stdout
    assert project.orch("-h").stdout == helped.stdout


def test_every_exit_status_is_in_the_help_and_in_the_docs_with_one_meaning(project: Project) -> None:
    classes = (OrchError, ConfigError, TransportError, DataError, Regression, Undecided, RunError)
    assert {error.exit_code for error in classes} | {0} == set(EXIT_STATUS)
    assert len({error.exit_code for error in classes[1:]}) == len(classes) - 1
    helped = " ".join(project.orch("--help").stdout.split())
    rows = re.findall(r"^\| (\d) \| ([^|]+) \|", (REPOSITORY / "docs" / "cluster.md").read_text(), re.MULTILINE)
    assert dict(EXIT_STATUS) == {int(code): meaning for code, meaning in rows}
    for code, meaning in EXIT_STATUS.items():
        assert f"{code} {meaning}" in helped, code


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """An empty folder on a disk that is mounted read-only, and beside it one that has ``.orch``."""
    place = tmp_path / "disk"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(place)], capture_output=True).returncode:
        pytest.skip("mounting a disk needs root")
    (place / "new").mkdir()
    (place / "old" / ".orch").mkdir(parents=True)
    subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)
    yield place
    subprocess.run(["umount", str(place)], check=True)


COMMANDS = [["deploy"], ["lab", "up", "--kind", "asyncssh", "--nodes", "1"], ["bench", "resnet50"]]


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[0])
@pytest.mark.parametrize("where", ["new", "old"])
def test_a_project_that_cannot_be_written_is_named_with_what_to_do(
    project: Project, read_only: Path, words: list[str], where: str
) -> None:
    done = project.orch(*words, ORCH_PROJECT=str(read_only / where))
    (message,) = [line for line in done.stderr.splitlines() if line.startswith("orch: ")]
    assert done.returncode == 2 and message.startswith(f"orch: {read_only}/{where}/"), done
    assert "ORCH_PROJECT" in message and ".part" not in message, message


def test_a_project_with_a_path_that_is_too_long_is_refused(project: Project) -> None:
    long = "/".join(["/" + "d" * 200] * 18)
    for words in COMMANDS:
        done = project.orch(*words, ORCH_PROJECT=long)
        assert done.returncode == 2 and "expected a project's path of at most 3546 bytes" in done.stderr, done


def test_what_lies_where_a_projects_folder_should_be_is_named(project: Project) -> None:
    for name, refused in ((".orch", COMMANDS[:2]), ("runs", COMMANDS[2:])):
        path = project.path / name
        path.touch()
        for words in refused:
            assert f"orch: {path}: cannot be written: it is not a folder. " in project.refused(*words)
        path.unlink()


def test_who_stops_reading_our_output_gets_no_traceback(project: Project) -> None:
    # In bash, so that the status of the program at the head of the pipe is known.
    script = '"$@" bench resnet50 --ladder --dry-run | head -n 1; exit ${PIPESTATUS[0]}'
    variables = os.environ | {"PYTHONPATH": str(REPOSITORY), "HOME": str(project.path)}
    argv = ["bash", "-c", script, "bash", *ORCH]
    done = subprocess.run(argv, cwd=project.path, env=variables, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode in (0, 1), done.stderr
    assert done.stdout.endswith("that is chosen when a run starts\n") and "Traceback" not in done.stderr, done.stderr


@pytest.mark.parametrize("name", ["HF_TOKEN", "NCCL_IB_DISABLE"])
def test_a_secret_variable_is_no_axis(project: Project, name: str) -> None:
    (project.path / "inventory" / "cluster.yaml").write_text(
        f"{INVENTORY}secrets: [NCCL_IB_DISABLE]\n".replace('"0"', "a-word")
    )
    said = project.refused("bench", "resnet50", "-f", "simulated", "--env", f"{name}=hush-hush", "--dry-run")
    assert f"--env {name}: expected a variable that is not secret" in said and "hush" not in said
    (project.path / "choices.yaml").write_text(f"repeats: 1\nenv:\n  {name}: [hush-hush, hush]\n")
    said = project.refused("bench", "resnet50", "-f", "simulated", "--file", "choices.yaml", "--dry-run")
    assert f"choices.yaml:3: env.{name}[0]: expected a variable that is not secret" in said and "hush" not in said


def test_a_dry_run_lists_what_it_skips_and_the_variables_of_each_configuration(project: Project) -> None:
    words = ("bench", "resnet50", "-f", "simulated", "--nodes", "1,9", "--gpus", "1", "--env", "NCCL_ALGO=Ring,Tree")
    done = project.orch(*words, "--dry-run")
    assert done.returncode == 0, done
    start = done.stdout.index("2 configurations are skipped, because impossible:\n")
    too_many = "--nodes: expected 9 hosts, 4 selected: no[1-4]"
    assert done.stdout[start:].splitlines()[1:3] == [
        f"  simulated resnet50 9n1g NCCL_ALGO=Ring: {too_many}", f"  simulated resnet50 9n1g NCCL_ALGO=Tree: {too_many}",
    ]  # fmt: skip
    for line in ("   env.NCCL_ALGO = Tree  (command line)", "export NCCL_ALGO=Tree"):
        assert line in done.stdout.splitlines()
    as_json = project.orch(*words, "--dry-run", "--json")
    assert "skipped, because impossible: simulated resnet50 9n1g NCCL_ALGO=Ring; simulated" in as_json.stderr
    assert {run["spec"]["env"]["NCCL_ALGO"] for run in json.loads(as_json.stdout)} == {"Ring", "Tree"}
    assert too_many in project.refused(*words, "--strict", "--dry-run")


def test_a_dry_run_contacts_nobody_and_shows_every_value_with_its_origin_and_every_file(project: Project) -> None:
    (project.path / "choices.yaml").write_text("steps: 40\noptions: {compute_ms: 7}\n")
    done = project.orch(
        "bench", "resnet50", "-f", "simulated", "--nodes", "2", "--gpus", "2", "--repeats", "1", "--dtype", "fp16", "--file",
        "choices.yaml", "--set", "seed=5", "--dry-run",
    )  # fmt: skip
    assert done.returncode == 0, done
    assert done.stderr == "inventory: inventory/cluster.yaml (the default), 4 of 4 hosts\n"
    text = done.stdout
    assert text.splitlines()[0] == "2 runs; port 20000 stands for the port that is chosen when a run starts"
    for line in (
        "== simulated resnet50 1n1g, world size 1",
        "== simulated resnet50 2n2g, world size 4",
        "   dtype = fp16  (command line)",
        "   nodes = 1  (baseline)",
        "   steps = 40  (run file)",
        "   batch_size = 128  (simulated default)",
        "   options.compute_ms = 7.0  (run file)",
        "   options.seed = 5  (command line)",
        "   options.gradient_mb = 0.0  (simulated default)",
        "   node_rank 1: no2 (nowhere-2.invalid), ranks 2-3, devices 0,1",
        "-- no[1-2]: env.sh (0600)",
        "export NCCL_IB_DISABLE=0",
        "-- no1: launch.sh (0700)",
        "-- no2: launch.sh (0700)",
        "export WORLD_SIZE=4 MASTER_ADDR=nowhere-1.invalid MASTER_PORT=20000 NODE_RANK=1",
        "start 3 1",
    ):
        assert line in text.splitlines(), line
    assert text.count("-- ") - text.count("rank_wrapper.py -- ") == 5
    assert not (project.path / "runs").exists() and not (project.path / ".orch").exists()


def test_a_dry_run_as_json_holds_the_same_files(project: Project) -> None:
    done = project.orch("bench", "vgg16", "--nodes", "4", "--no-baseline", "--repeats", "2", "--dry-run", "--json")
    plans = json.loads(done.stdout)
    assert [(plan["repeat"], plan["spec"]["model"], plan["placement"]["world_size"]) for plan in plans] == [
        (1, "vgg16", 32), (2, "vgg16", 32),
    ]  # fmt: skip
    assert [node["slot"]["host"] for node in plans[0]["nodes"]] == ["no1", "no2", "no3", "no4"]
    assert [file["path"] for file in plans[0]["nodes"][3]["files"]] == ["env.sh", "launch.sh"]
    assert "--node_rank 3" in plans[0]["nodes"][3]["files"][1]["content"]
    assert plans[0]["origins"]["nodes"] == "command line" and plans[0]["origins"]["gpus"] == "inventory"


def test_lists_make_cells_and_repeats_run_them_forwards_and_backwards(project: Project) -> None:
    done = project.orch(
        "bench", "resnet50", "--shape", "1n1g,4n8g", "--dtype", "fp32,fp16", "--repeats", "2", "--dry-run", "--json"
    )  # fmt: skip
    plans = json.loads(done.stdout)
    cells = [(plan["spec"]["dtype"], plan["spec"]["nodes"], plan["repeat"]) for plan in plans]
    once = [("fp32", 1), ("fp32", 4), ("fp16", 1), ("fp16", 4)]
    assert cells == [*((*cell, 1) for cell in once), *((*cell, 2) for cell in reversed(once))]
    assert len({plan["run_id"] for plan in plans}) == 8


def test_a_secret_of_the_environment_is_not_shown_by_a_dry_run(project: Project) -> None:
    path = project.path / "inventory" / "cluster.yaml"
    path.write_text(
        INVENTORY.replace('NCCL_IB_DISABLE: "0"', 'NCCL_IB_DISABLE: "0", HF_TOKEN: hush-hush') + "secrets: [HF_TOKEN]\n"
    )
    for form in ([], ["--json"]):
        done = project.orch("bench", "resnet50", "--nodes", "1", "--dry-run", *form)
        assert done.returncode == 0 and "HF_TOKEN" in done.stdout
        assert "hush-hush" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("hosts", "names"),
    [
        ("@pair", ["no1", "no2"]),
        ("no[2-3]", ["no2", "no3"]),
        ("nowhere-4.invalid", ["no4"]),
        ("no1,no4", ["no1", "no4"]),
    ],
)
def test_hosts_are_selected_by_expression_from_the_projects_inventory(project: Project, hosts: str, names: list[str]) -> None:
    done = project.orch("bench", "resnet50", "-H", hosts, "--no-baseline", "--dry-run", "--json")
    assert [slot["host"] for slot in json.loads(done.stdout)[0]["placement"]["slots"]] == names
    assert f"inventory: inventory/cluster.yaml (the default), {len(names)} of 4 hosts" in done.stderr


def test_an_expression_that_no_inventory_knows_stands_for_itself(project: Project) -> None:
    done = project.orch("bench", "resnet50", "-H", "10.11.0.[2-5]", "--gpus", "8", "--no-baseline", "--dry-run", "--json")
    assert [slot["address"] for slot in json.loads(done.stdout)[0]["placement"]["slots"]] == [
        f"10.11.0.{n}" for n in (2, 3, 4, 5)
    ]


def test_where_the_inventory_comes_from_is_said(project: Project) -> None:
    other = project.path / "other.yaml"
    other.write_text("schema: 1\nhosts: {x1: {address: x1.invalid, gpus: 1}}\n")
    words = ("bench", "resnet50", "--dry-run")
    assert "inventory: other.yaml (--hosts), 1 of 1 hosts" in project.orch(*words, "-H", "./other.yaml").stderr.replace(
        "./", ""
    )
    assert "other.yaml (ORCH_HOSTS), 1 of 1 hosts" in project.orch(*words, ORCH_HOSTS=str(other)).stderr
    (project.path / ".orch").mkdir()
    (project.path / ".orch" / "project.json").write_text(json.dumps({"schema": 1, "inventory": str(other)}))
    assert "other.yaml (the last deploy), 1 of 1 hosts" in project.orch(*words).stderr


def test_control_characters_in_a_message_are_shown_and_not_sent_to_the_terminal(project: Project) -> None:
    message = project.refused("bench", "resnet50", "--dtype", "\x1b]0;owned\x07")
    assert "\x1b" not in message and "\x07" not in message and "owned" in message


def test_unreachable_hosts_are_a_matter_of_transport(project: Project) -> None:
    key = project.path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True, timeout=30)
    inventory = project.path / "inventory" / "cluster.yaml"
    inventory.write_text(INVENTORY.replace("{gpus: 8,", f"{{gpus: 8, ssh: {{key: {key}}},"))
    done = project.orch("check", "--only", "reach")
    assert (done.returncode, done.stdout) == (3, "")
    messages = [line for line in done.stderr.splitlines() if line.startswith("orch: ")]
    assert len(messages) == 4 and all("does not resolve" in message for message in messages), done.stderr


LINES = st.text("ab \n\r\x0b\x1c\x85\u2028", max_size=12).map(lambda text: text.replace("a", "\norch: all is well"))


@given(st.lists(st.tuples(LINES, LINES, LINES, st.sampled_from(["", "n1", "n2"])), min_size=1, max_size=3))
def test_no_text_of_others_begins_a_line_in_the_name_of_orch(texts: list[tuple[str, str, str, str]]) -> None:
    errors = [RunError(message, kind="x", where=where, hint=hint, host=host) for message, where, hint, host in texts]
    recorded = [recorded_error(error.as_dict(), "r") for error in errors]
    for error in (errors[0], Faults(errors), Faults(recorded)):
        with redirect_stderr(io.StringIO()) as shown:
            report(error)
        lines = shown.getvalue().split("\n")[:-1]
        count = len({(str(one), one.host) for one in (error.errors if isinstance(error, Faults) else [error])})
        assert sum(line.startswith("orch: ") for line in lines) <= count and lines[0].startswith("orch: ")
        assert all(line.startswith(("orch: ", "  ")) and len(line.splitlines()) == 1 for line in lines), lines


def test_a_dry_run_sends_no_control_code_of_a_template_or_an_inventory(project: Project) -> None:
    path = project.path / "inventory" / "cluster.yaml"
    path.write_text(INVENTORY.replace('NCCL_IB_DISABLE: "0"', 'A: "x\\e[31m\\a"'))
    words = ("bench", "resnet50", "-f", "simulated", "--nodes", "1", "--gpus", "1", "--dry-run")
    assert "export A='x\\x1b[31m\\x07'" in project.orch(*words).stdout
    refused = project.refused(*words, "--set", "a\norch: all is well=1")
    assert refused.count("\n") == 0 and refused.startswith("orch: --set a\\norch: all is well: ")
