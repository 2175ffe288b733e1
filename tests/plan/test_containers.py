"""What a node starts its launch script in, as text: compared whole with golden files, and executed
with a stand-in engine.
"""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import ConfigError
from orchestrator.inventory import Host
from orchestrator.plan.containers import container_of, inside
from orchestrator.plan.placement import place
from orchestrator.plan.render import Plan, render
from orchestrator.plan.spec import RunSpec
from tests.support.rendering import FRAMEWORK, complaint

GOLDEN = Path(__file__).parents[1] / "data" / "golden" / "containers"
CONTAINERS: dict[str, dict[str, Any]] = {
    "docker": {"engine": "docker", "image": "registry.example/pt:24.05", "limits": {"memlock": "unlimited", "stack": 67108864},
               "devices": ["/dev/infiniband"], "mounts": ["/data", "/opt/a b:/mnt:ro"], "options": ["--cap-add", "IPC_LOCK"]},
    "docker-private": {"engine": "docker", "image": "pt", "ipc": "private", "pid": "private", "shm_gib": 16, "user": "image",
                       "network": "fast", "gpus": False, "program": "sudo docker"},
    "docker-standing": {"engine": "docker", "name": "trainer", "python": "/opt/conda/bin/python"},
    "podman": {"engine": "podman", "image": "localhost/pt", "program": "podman --runtime runc", "limits": {"nofile": 20000},
               "user": "1000:100"},
    "podman-login": {"engine": "podman", "image": "localhost/pt"},
    "apptainer": {"engine": "apptainer", "image": "/srv/pt 1.sif", "mounts": ["/data:/mnt:ro"]},
    "enroot": {"engine": "enroot", "image": "pt", "mounts": ["/data"]},
    "wrap": {"wrap": ["/srv/enter.sh", "--bind={workdir}", "it's"]},
}  # fmt: skip


def planned(values: dict[str, Any], container: str = "", *, gpus: int = 2, **host: Any) -> Plan:
    spec = RunSpec(
        "echo",
        "resnet50",
        1,
        1,
        "cuda",
        8,
        "fp32",
        "synthetic",
        9,
        1,
        60.0,
        {},
        container=container,
    )
    of_node = Host("gpu1", "10.0.0.1", gpus=gpus, container=values, **host)
    source = {"launch.sh.j2": "#!/bin/bash\n{{ runner_python }} w -- {{ python }} train.py\n"}
    placement = place(spec, [of_node], 20000)
    known = {"gpu1": of_node}
    return render(
        FRAMEWORK,
        source,
        spec,
        placement,
        known,
        run_id="b.001-r1",
        repeat=1,
        payload={"rank_wrapper.py": "0"},
    )


def files_of(plan: Plan) -> dict[str, str]:
    return {file.path: file.content for file in plan.nodes[0].files}


@pytest.mark.parametrize("name", CONTAINERS)
def test_a_container_is_rendered_as_its_golden_file_says(name: str) -> None:
    files = files_of(planned(CONTAINERS[name]))
    text = "".join(
        f"== {path}\n{files[path]}"
        for path in ("container.sh", "container.json", "launch.sh")
        if path in files
    )
    golden = GOLDEN / f"{name}.txt"
    if "ORCH_UPDATE_GOLDEN" in os.environ:
        golden.write_text(text)
    assert text == golden.read_text()
    assert not complaint(files["container.sh"])


def test_every_golden_file_belongs_to_a_container() -> None:
    assert {path.stem for path in GOLDEN.iterdir()} == set(CONTAINERS)


def test_the_container_is_around_the_launch_script() -> None:
    node = planned(CONTAINERS["docker"]).nodes[0]
    assert node.argv == ("/bin/bash", "container.sh", "bash", "launch.sh")
    assert {file.path: file.mode for file in node.files} == {
        "env.sh": 0o600, "launch.sh": 0o700, "container.sh": 0o700, "container.json": 0o600,
    }  # fmt: skip
    assert planned({}).nodes[0].argv == ("/bin/bash", "launch.sh")


def test_setup_lines_of_a_host_run_outside_and_its_variables_inside() -> None:
    plan = planned(
        CONTAINERS["apptainer"],
        vars={"setup": "module load apptainer"},
        env={"TOKEN": "very-secret"},
    )
    files = files_of(plan)
    assert "module load apptainer" in files["container.sh"] and "module load" not in files["env.sh"]
    assert "very-secret" in files["env.sh"] and "very-secret" not in files["container.sh"]


def test_what_is_written_inside_is_private_whatever_the_umask_of_the_engine() -> None:
    text = files_of(planned(CONTAINERS["docker"]))["env.sh"]
    done = subprocess.run(
        ["bash", "-c", "umask 022; " + text + "umask"], capture_output=True, text=True, check=True
    )
    assert done.stdout == "0077\n"


@pytest.mark.parametrize("own", ["", "/cache/of the image"])
def test_kernels_that_are_compiled_inside_outlive_the_container(tmp_path: Path, own: str) -> None:
    run = tmp_path / "nodes" / "gpu 1" / "runs" / "r1"
    run.mkdir(parents=True)
    script = (
        files_of(planned(CONTAINERS["docker"]))["env.sh"] + 'printf %s "$TORCHINDUCTOR_CACHE_DIR"'
    )
    environment = {"PATH": os.environ["PATH"], **({"TORCHINDUCTOR_CACHE_DIR": own} if own else {})}
    done = subprocess.run(
        ["bash", "-euc", script],
        cwd=run,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == (own or str(tmp_path / "nodes" / "gpu 1" / "inductor"))
    assert "TORCHINDUCTOR" not in files_of(planned({}))["env.sh"]


def test_a_choice_replaces_engine_and_image_and_keeps_mounts_and_limits() -> None:
    host = Host("gpu1", "10.0.0.1", gpus=0, container=CONTAINERS["podman"] | {"mounts": ["/data"]})
    chosen = container_of(host, "docker:other:1")
    assert chosen and chosen.values["image"] == "other:1" and chosen.values["mounts"] == ["/data"]
    assert chosen.program == ("docker",)  # and not that of podman
    assert container_of(host, "none") is None
    assert container_of(Host("gpu1", "10.0.0.1", container={"mounts": ["/data"]}), "") is None


def test_only_a_run_that_reads_the_data_set_mounts_it() -> None:
    host = Host(
        "gpu1", "10.0.0.1", vars={"data_dir": "/data/imagenet"}, container=CONTAINERS["enroot"]
    )
    with_data = container_of(host, "", with_data=True)
    assert with_data and "--mount /data/imagenet:/data/imagenet:ro" in with_data.script("n", {}, {})
    without = container_of(host, "")
    assert without and "imagenet" not in without.script("n", {}, {})


def test_interpreters_are_those_inside() -> None:
    host = Host(
        "gpu1",
        "10.0.0.1",
        vars={"python": "/host/python", "runner_python": "/host/other", "setup": "module load x"},
    )
    container = container_of(host, "podman:x")
    assert (
        inside(host, container).python == ("python3",)
        and "setup" not in inside(host, container).vars
    )
    assert inside(host, None) is host


def test_a_launcher_that_starts_processes_on_other_nodes_is_refused() -> None:
    spec = RunSpec(
        "echo",
        "resnet50",
        1,
        1,
        "cuda",
        8,
        "fp32",
        "synthetic",
        9,
        1,
        60.0,
        {},
        container="docker:x",
    )
    host = Host("gpu1", "10.0.0.1", gpus=1)
    first = replace(FRAMEWORK, launch="first_node")
    with pytest.raises(ConfigError, match="whose launcher starts processes on other nodes"):
        render(
            first,
            {},
            spec,
            place(spec, [host], 20000),
            {"gpu1": host},
            run_id="r",
            repeat=1,
            payload={},
        )


def test_the_script_hands_on_its_arguments_and_the_marks(tmp_path: Path) -> None:
    """The engine is a stand-in that prints what it is given: this is about the quoting of the
    script alone.
    """
    run = tmp_path / "it's a dir" / "nodes" / "n" / "runs" / "r"
    run.mkdir(parents=True)
    engine = tmp_path / "engine"
    engine.write_text('#!/bin/bash\nprintf "%s\\n" "$@"\n')
    engine.chmod(0o700)
    container = container_of(
        Host("n", "n", container=CONTAINERS["docker"] | {"program": str(engine), "user": "image"}),
        "",
    )
    assert container
    (run / "container.sh").write_text(
        container.script("orch-r-0", {"orch.run": "r"}, {"ORCH_RUN_ID": "r"})
    )
    done = subprocess.run(
        ["bash", "container.sh", "bash", "a b"], cwd=run, capture_output=True, text=True, check=True
    )
    words = done.stdout.splitlines()
    workdir = str(tmp_path / "it's a dir")
    assert words[-3:] == ["registry.example/pt:24.05", "bash", "a b"]
    assert f"{workdir}:{workdir}" in words and "/opt/a b:/mnt:ro" in words and str(run) in words
    assert {"ORCH_RUN_ID=r", "ORCH_CONTAINER=orch-r-0", "orch.run=r"} <= set(words)


def test_a_wrap_starts_in_the_directory_of_the_run(tmp_path: Path) -> None:
    run = tmp_path / "nodes" / "n" / "runs" / "r"
    run.mkdir(parents=True)
    container = container_of(
        Host("n", "n", container={"wrap": ["env", "WORK={workdir}", "A=it's"]}), ""
    )
    assert container and container.program == () and not container.is_object
    (run / "container.sh").write_text(container.script("orch-r-0", {}, {"ORCH_RUN_ID": "r"}))
    show = 'printf "%s|" "$PWD" "$WORK" "$A" "$ORCH_RUN_ID" "$ORCH_CONTAINER"'
    done = subprocess.run(
        ["bash", "container.sh", "bash", "-c", show],
        cwd=run,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"{run}|{tmp_path}|it's|r|orch-r-0|"


def test_what_a_supervisor_must_know_is_json() -> None:
    record = json.loads(files_of(planned(CONTAINERS["docker-standing"]))["container.json"])
    assert (
        record["standing"] == "trainer"
        and record["program"] == ["docker"]
        and record["name"] == "orch-b.001-r1-0"
    )
