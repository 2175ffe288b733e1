"""Commands that cannot be: refused with their option before anything is contacted."""

from __future__ import annotations

import pytest

from orchestrator.plan.folders import frameworks
from tests.cli.nowhere import INVENTORY
from tests.support.cli_project import Project

KNOWN = ", ".join(frameworks())
TOO_MANY = "orch: --nodes: expected 9 hosts, 4 selected: no[1-4]. select more hosts with --hosts, or lower --nodes"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("resnet50 --nodes 9", TOO_MANY),
        ("resnet50 -f pytorh", f"orch: --framework: no framework 'pytorh'. available: {KNOWN}; did you mean 'pytorch'?"),
        ("resnet5 -f pytorch",
         "orch: model: pytorch has no model 'resnet5'. it has resnet50, vgg16; did you mean 'resnet50'?"),
        ("allreduce -f pytorch",
         "orch: model: pytorch has no model 'allreduce'. it has resnet50, vgg16; collectives has allreduce"),
        ("resnet5", "orch: model: no framework has a model 'resnet5'. available: "),
        ("resnet50 --gpus 9", "orch: --gpus: expected 9 gpus per node on 4 nodes, too few on no[1-4]. "
                              "lower --gpus, or correct gpus: for these hosts in the inventory"),
        ("resnet50 --nodes 0", "orch: --nodes: expected a whole number ≥ 1, got 0"),
        ("resnet50 --nodes two", "orch: --nodes: expected whole numbers separated by commas, got 'two'"),
        ("resnet50 --shape 4x8,4-8", "orch: --shape: expected shapes such as 1n1g,4n8g, got '4-8'"),
        ("resnet50 --shape 0n1g", "orch: --shape: expected a whole number ≥ 1, got 0"),
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
        ("allreduce --shape 1n2g --set group_ranks=2 --set group_distance=2",
         "orch: --set group_ranks: collectives: expected group_ranks × group_distance to divide the 2 ranks"
         " of 1n2g, got 2 × 2"),
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
        ("resnet50 --hosts gone.yaml", "orch: gone.yaml: expected a file, found none. check the path"),
        ("resnet50 --hosts inventory/", "orch: inventory/: expected a file, got a directory with cluster.yaml. "
                                        "name a file in it"),
        ("resnet50 --hosts inventory/cluster.yaml@pair",
         "orch: inventory/cluster.yaml@pair: expected a file or hosts, got both. "
         "ORCH_HOSTS=inventory/cluster.yaml names the file, then --hosts @pair hosts in it"),
        ("resnet50 --hosts @trio", "orch: hosts '@trio': expected a known group, got 'trio'. known groups: all, pair"),
        ("resnet50 --exclude no[1-4]", "orch: --exclude no[1-4]: no host is left. the inventory inventory/cluster.yaml has "
                                       "no other hosts"),
        ("resnet50 --exclude no9", "orch: --exclude no9: no host 'no9' in inventory/cluster.yaml. known hosts: no[1-4]"),
        ("resnet50 --exclude no9:gpu0", "orch: --exclude no9: no host 'no9' in inventory/cluster.yaml. "),
        ("resnet50 --devices no9:0", "orch: --devices no9: no host 'no9' in inventory/cluster.yaml. "),
        ("resnet50 --shape 9n1g", "orch: --shape: expected 9 hosts, 4 selected: no[1-4]. "
                                  "select more hosts with --hosts, or lower --shape"),
        ("resnet50 --shape 4n9g", "orch: --shape: expected 9 gpus per node on 4 nodes, too few on no[1-4]. "
                                  "lower --shape, or correct gpus: for these hosts in the inventory"),
        ("resnet50 --templates nowhere", "orch: nowhere: expected a folder with framework folders, found no such folder"),
        ("resnet50 --file nowhere.yaml", "orch: nowhere.yaml: expected a file, found none. check the path"),
    ],
)  # fmt: skip
def test_a_bench_that_cannot_be_is_refused_before_anything_is_contacted(
    project: Project, words: str, message: str
) -> None:
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
        (
            ["summarize", "b1.tar"],
            "no bench 'b1.tar'. unpack an archive with tar -xf, and use its directory",
        ),
        (
            ["summarize", "20260101-000000-dead"],
            "no bench '20260101-000000-dead'. orch status lists the benches",
        ),
        (
            ["summarize", "--format", "pdf"],
            "orch: --format: expected table, html, markdown, csv, json, junit, prometheus, mllog or dlperf, got 'pdf'",
        ),
        (["logs"], "no bench yet"),
        (
            ["check", "--only", "everything"],
            "orch: --only: expected names of checks, got 'everything'",
        ),
        (
            ["dataset", "make", "--dir", "images"],
            "orch: --dir: expected an absolute path, got 'images'. begin it with / or ~/",
        ),
        (
            ["dataset", "make", "--dir", "./images"],
            "orch: --dir: expected an absolute path, got './images'",
        ),
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
        "dataset make --dir /tmp/set --timeout",
    ],
)
def test_seconds_that_no_clock_counts_to_are_refused(
    project: Project, words: str, number: str
) -> None:
    said = project.refused(*words.split(), number)
    assert said.startswith(f"orch: {words.split()[-1]}: expected a time "), said


@pytest.mark.parametrize("number", ["0", "few"])
@pytest.mark.parametrize("option", ["--global-batch", "--repeats", "--steps"])
def test_a_number_that_an_option_does_not_take_is_named(
    project: Project, option: str, number: str
) -> None:
    done = project.orch("bench", "resnet50", option, number, "--dry-run")
    refused = done.stderr.splitlines()[-1]
    assert (
        done.returncode == 2 and option in refused and number in refused.replace("'", " ").split()
    )


def test_a_directory_that_is_no_bench_is_a_matter_of_data(project: Project) -> None:
    (project.path / "here").mkdir()
    assert "bench.json" in project.refused("summarize", "here", code=4)
    (project.path / "here" / "bench.json").write_text("{")
    assert "bench.json" in project.refused("summarize", "here", code=4)


@pytest.mark.parametrize(
    "words",
    [
        ["bench"],
        ["bench", "resnet50", "--frobnicate"],
        ["frobnicate"],
        ["bench", "resnet50", "--repeats", "0"],
    ],
)
def test_a_command_line_that_is_none_is_explained_with_status_2(
    project: Project, words: list[str]
) -> None:
    done = project.orch(*words)
    assert (
        done.returncode == 2
        and done.stdout == ""
        and done.stderr.startswith("orch: ")
        and "expected" in done.stderr
    )


@pytest.mark.parametrize("name", ["HF_TOKEN", "NCCL_IB_DISABLE"])
def test_a_secret_variable_is_no_axis(project: Project, name: str) -> None:
    (project.path / "inventory" / "cluster.yaml").write_text(
        f"{INVENTORY}secrets: [NCCL_IB_DISABLE]\n".replace('"0"', "a-word")
    )
    said = project.refused(
        "bench", "resnet50", "-f", "simulated", "--env", f"{name}=hush-hush", "--dry-run"
    )
    assert f"--env {name}: expected a variable that is not secret" in said and "hush" not in said
    (project.path / "choices.yaml").write_text(f"repeats: 1\nenv:\n  {name}: [hush-hush, hush]\n")
    said = project.refused(
        "bench", "resnet50", "-f", "simulated", "--file", "choices.yaml", "--dry-run"
    )
    assert (
        f"choices.yaml:3: env.{name}[0]: expected a variable that is not secret" in said
        and "hush" not in said
    )
