"""Every framework folder there is: what it renders to, that it is a script, that values arrive, and
that its log is understood.

The folders are found, not listed here. Golden files hold whole plans; after a wanted change write
them anew, and read the difference before it is committed:

    ORCH_UPDATE_GOLDEN=1 pytest tests/plan/test_folders.py && git diff tests/golden
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import ConfigError
from orchestrator.inventory.hosts import Host
from orchestrator.logs.parse import parse
from orchestrator.logs.steps import VALUES
from orchestrator.plan.folders import frameworks
from orchestrator.plan.framework import Framework
from orchestrator.plan.placement import place
from orchestrator.plan.render import Plan, fold_files, render
from orchestrator.plan.spec import resolve
from orchestrator.plan.trial import read_variables
from tests.support.judge import LIMIT_S
from tests.support.rendering import complaint, opened, without_vendors

GOLDEN = Path(__file__).parents[1] / "golden"
FOLDERS = {name: opened(name) for name in frameworks()}
SHAPES = ((1, 1), (2, 8))
CASES = [
    (name, device, dtype, shape)
    for name, folder in FOLDERS.items()
    for device, table in folder.framework.dtypes.items()
    for dtype in table
    for shape in SHAPES
]
ODD = "od d $(touch pwned) 'q\" `x` ünï"


def host_of(
    framework: Framework, device: str, n: int, network: str = "10.11.0.", **variables: str
) -> Host:
    needed = {name: f"/opt/{name}" for name in framework.requires}
    shown = (
        {"interface": "ib0", "python": "/opt/python/bin/python", "data_dir": "/data/imagenet"}
        | needed
        | variables
    )
    env = {"NCCL_IB_DISABLE": "0"} if device == "cuda" else {}
    return Host(
        f"node{n}",
        f"{network}{n + 1}",
        gpus=8 if device == "cuda" else 0,
        slots=8,
        env=env,
        vars=shown,
    )


@cache
def plan_of(name: str, device: str, dtype: str, shape: tuple[int, int], **variables: str) -> Plan:
    folder = FOLDERS[name]
    framework = folder.framework
    choices = {"nodes": shape[0], "gpus": shape[1], "dtype": dtype}
    spec = resolve(framework, next(iter(framework.models)), device=device, choices=choices)
    hosts = [host_of(framework, device, n, **variables) for n in range(1, 1 + shape[0])]
    # Digests of names stand for those of contents, so that a golden file changes with its folder
    # and with nothing else.
    payload = {file: hashlib.sha256(file.encode()).hexdigest()[:12] for file in folder.payload}
    placement = place(spec, hosts, 20000)
    by_name = {host.name: host for host in hosts}
    return render(
        framework,
        folder.sources,
        spec,
        placement,
        by_name,
        run_id="run-1",
        repeat=1,
        payload=payload,
    )


@cache
def shown(name: str, device: str, dtype: str, shape: tuple[int, int]) -> str:
    """Return the whole plan as text, or the words in which the folder refuses it."""
    try:
        plan = plan_of(name, device, dtype, shape)
    except ConfigError as error:
        if error.kind == "template_error":
            raise
        return f"refused: {error}\n"
    files = [
        f"== {','.join(hosts)}: {file.path} ({file.mode:04o})\n{without_vendors(file.content, plan)}"
        for hosts, file in fold_files(plan.nodes)
    ]
    argv = [f"== {node.slot.host}: argv {list(node.argv)}\n" for node in plan.nodes]
    return "".join([*files, *argv])


def golden_path(name: str, device: str, dtype: str, shape: tuple[int, int]) -> Path:
    return GOLDEN / name / f"{device}-{dtype}-{shape[0]}x{shape[1]}.txt"


@pytest.mark.parametrize(("name", "device", "dtype", "shape"), CASES)
def test_a_plan_is_to_the_last_byte_what_it_was(
    name: str, device: str, dtype: str, shape: tuple[int, int]
) -> None:
    path = golden_path(name, device, dtype, shape)
    text = shown(name, device, dtype, shape)
    if os.environ.get("ORCH_UPDATE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert path.is_file(), f"write it with ORCH_UPDATE_GOLDEN=1, then read it: {path}"
    assert text == path.read_text(encoding="utf-8")


def test_no_golden_file_is_left_over() -> None:
    expected = {golden_path(*case) for case in CASES}
    stale = [path for path in GOLDEN.rglob("*") if path.is_file() and path not in expected]
    if os.environ.get("ORCH_UPDATE_GOLDEN"):
        for path in stale:
            path.unlink()
        stale = []
    assert stale == []


@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_does_not_refuse_everything(name: str) -> None:
    texts = [shown(*case) for case in CASES if case[0] == name]
    assert any(not text.startswith("refused") for text in texts) or "expected" in texts[0]


@pytest.mark.parametrize(("name", "device", "dtype", "shape"), CASES)
def test_scripts_are_scripts(name: str, device: str, dtype: str, shape: tuple[int, int]) -> None:
    if shown(name, device, dtype, shape).startswith("refused"):
        return
    for node in plan_of(name, device, dtype, shape).nodes:
        assert node.argv == ("/bin/bash", "launch.sh")
        for file in node.files:
            if file.path.endswith(".sh"):
                assert complaint(file.content) == "", file.path
        scripts = {file.path: file for file in node.files}
        assert scripts["env.sh"].mode == 0o600 and scripts["launch.sh"].mode == 0o700
        assert scripts["launch.sh"].content.startswith("#!/bin/bash\n")


@pytest.mark.parametrize("name", FOLDERS)
def test_ranks_and_addresses_are_literal_and_complete(name: str) -> None:
    case = next(
        (
            case
            for case in CASES
            if case[0] == name and case[3] == (2, 8) and not shown(*case).startswith("refused")
        ),
        None,
    )
    if case is None:
        assert all(
            shown(*one).startswith("refused")
            for one in CASES
            if one[0] == name and one[3] == (2, 8)
        )
        return
    plan = plan_of(*case)
    first = "".join(file.content for file in plan.nodes[0].files)
    assert "hostname" not in first
    metrics = FOLDERS[name].framework.log.metrics
    if metrics and all(metric.scope != "global" for metric in metrics):
        return  # each node measures by itself
    assert "10.11.0.2" in first or "10.11.0.3" in first
    # A node is told which one it is, or finds itself in the list of all.
    assert plan.nodes[0].files != plan.nodes[1].files or "10.11.0.3" in first


@pytest.mark.parametrize("name", FOLDERS)
def test_an_ipv6_address_is_in_brackets_where_a_port_follows(name: str) -> None:
    for case in CASES:
        if case[0] == name and case[3] == (2, 8) and not shown(*case).startswith("refused"):
            for node in plan_of(*case, network="fd00:10::").nodes:
                for file in node.files:
                    assert not re.search(r"fd00:10::\d:\d{4}", file.content), file.content


RECORDER = """\
#!/bin/bash
{ printf '%s\\0' "$@"; printf '\\n\\0'; } >> "$SAID"
printf '%s\\n' "$PRINTED"
"""
# Programs that folders start by name, from PATH.
BY_NAME = ("fio", "hpcc", "ib_write_bw", "ib_write_lat")
# What launch scripts look for in the output of a program, printed or in a file.
PRINTED = "  1 tests completed and passed residual checks,"
WRITTEN = {"hpccoutf.txt": "Success=1\nCommWorldProcs=1\n"}


def called(name: str, device: str, dtype: str, folder: Path) -> list[list[str]]:
    """Run a node's launch script with a recorder in the place of every program; return the argument
    lists that it got.
    """
    home = folder / ODD
    (home / "bin").mkdir(parents=True)
    recorder = home / "py thon"
    recorder.write_text(RECORDER)
    recorder.chmod(0o700)
    for program in BY_NAME:
        (home / "bin" / program).symlink_to(recorder)
    variables = {
        key: shlex.quote(str(recorder)) for key in ("python", "runner_python")
    }  # may be a command of several words
    variables["mpirun"] = str(recorder)
    for key, held in FOLDERS[name].framework.requires.items():
        variables[key] = str(home / key)
        (home / key / held).parent.mkdir(parents=True)
        (home / key / held).write_text("dist_strategy = make()\nload(batch_size=32)\n")
    variables |= {
        key: str(home / key) for key in read_variables(FOLDERS[name]) if key.endswith("_directory")
    }
    plan = plan_of(name, device, dtype, (1, 1), **variables, data_dir=str(home / "data"))
    run = folder / "run"
    run.mkdir()
    (run / "logs").mkdir()
    for file in plan.nodes[0].files:
        (run / file.path).write_text(file.content)
        (run / file.path).chmod(file.mode)
    for file_name, text in WRITTEN.items():
        (run / file_name).write_text(text)
    path = f"{home / 'bin'}:{os.environ['PATH']}"
    environment = {
        "PATH": path,
        "HOME": str(folder),
        "SAID": str(home / "said"),
        "PRINTED": PRINTED,
    }
    with (
        (run / "logs" / "node.out").open("wb") as out,
        (run / "logs" / "node.err").open("wb") as err,
    ):
        code = subprocess.call(
            plan.nodes[0].argv,
            cwd=run,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            timeout=LIMIT_S,
        )
    assert (code, (run / "logs" / "node.err").read_text()) == (0, "")
    assert not list(folder.rglob("pwned"))
    words = (home / "said").read_text().split("\0")[:-1]
    calls: list[list[str]] = [[]]
    for word in words:
        if word == "\n":
            calls.append([])
        else:
            calls[-1].append(word)
    return calls[:-1]


def own_programs(framework: Framework) -> list[str]:
    """Return the program of a folder that runs one of ours: the first that it sends, what programs
    share comes after.
    """
    return [
        file
        for file in framework.payload[:1]
        if file.startswith("train_") or "trainer.py" in framework.payload
    ]


def in_words(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@pytest.mark.parametrize(
    ("name", "device", "dtype"), sorted({case[:3] for case in CASES if case[3] == (1, 1)})
)
def test_the_launch_script_hands_odd_paths_on_and_every_option_of_our_own_trainers(
    name: str, device: str, dtype: str, tmp_path: Path
) -> None:
    if shown(name, device, dtype, (1, 1)).startswith("refused"):
        return
    framework = FOLDERS[name].framework
    calls = called(name, device, dtype, tmp_path)
    assert calls, "the program was never started"
    trainers = own_programs(framework)
    if not trainers:
        # A program that has to be changed is copied into the run directory; the copy shows that its
        # odd path was read.
        copies = list((tmp_path / "run").glob("*.py"))
        paths = [
            key for key in read_variables(FOLDERS[name]) if key.endswith(("_dir", "_directory"))
        ]
        assert (
            copies
            or not paths
            or any(str(tmp_path / ODD) in word for call in calls for word in call)
        )
        return
    words = [word for call in calls for word in call]
    # A script that the framework's own launcher starts for each rank; the recorder in the
    # launcher's place does not.
    for script in (tmp_path / "run").glob("*.sh"):
        if script.name not in ("launch.sh", "env.sh"):
            words += shlex.split(script.read_text(), comments=True)
    values = {
        word.partition("=")[2] if word.startswith("--") and "=" in word else word for word in words
    }
    spec = resolve(
        framework,
        next(iter(framework.models)),
        device=device,
        choices={"nodes": 1, "gpus": 1, "dtype": dtype},
    )
    shown_elsewhere = {"nccl_debug"}  # goes into the environment
    missing = {
        key: value
        for key, value in spec.options.items()
        if in_words(value) not in values and key not in shown_elsewhere
    }
    assert missing == {}
    assert any(word.endswith(f"/{trainers[0]}") for word in words)
    assert {
        spec.model,
        framework.dtype_flag(dtype, device),
        str(spec.batch_size),
        str(spec.steps),
    } <= values
    assert str(tmp_path / ODD / "py thon") in words


@pytest.mark.parametrize("name", FOLDERS)
def test_the_sample_log_is_understood(name: str) -> None:
    folder = Path(FOLDERS[name].framework.folder)
    parsed = parse((folder / "sample.log").read_bytes(), FOLDERS[name].framework.log)
    found: list[Any] = [dict(reading) for reading in parsed.readings] or [
        {key: value for key in ("step", *VALUES)
         if (value := getattr(sample, key)) is not None and value == value}  # before the first step the loss is NaN
        for sample in parsed.samples
    ]  # fmt: skip
    expected = json.loads((folder / "sample.json").read_text(encoding="utf-8"))
    assert found == expected and found
    assert parsed.warnings == ()
    if own_programs(FOLDERS[name].framework):
        assert parsed.closing and parsed.closing["simulated"] is FOLDERS[name].framework.simulated
        assert parsed.ranks == ((0, parsed.closing["world_size"]),)


@cache
def system_python() -> str:
    """Return the program that is started as `python3`, which may be a script that looks for it."""
    asked = [*("python3", "-I", "-c"), "import sys; print(sys.executable)"]
    return subprocess.check_output(asked, text=True, timeout=LIMIT_S).strip()


@pytest.mark.parametrize("name", FOLDERS)
def test_the_probe_is_python_that_prints_one_object_or_says_what_is_missing(name: str) -> None:
    probe = FOLDERS[name].framework.probe
    compile(probe, f"{name} probe", "exec")
    done = subprocess.run(
        [system_python(), "-I", "-c", probe], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )  # fmt: skip
    if done.returncode == 0:
        assert isinstance(json.loads(done.stdout.splitlines()[-1]), dict)
    else:
        assert done.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize("name", FOLDERS)
def test_defaults_and_options_agree_with_themselves(name: str) -> None:
    framework = FOLDERS[name].framework
    for device in framework.dtypes:
        for option_name, option in framework.options.items():
            for value in (option.default, option.device_default.get(device, option.default)):
                assert option.parse(option_name, in_words(value)) == value
            assert option.help and option.help[0] != " "
        spec = resolve(
            framework, next(iter(framework.models)), device=device, choices={"nodes": 1, "gpus": 1}
        )
        assert spec.steps > spec.warmup_steps
        assert isinstance(framework.default("repeats", device)[0], int)


@pytest.mark.parametrize("folder", sorted(GOLDEN.iterdir()), ids=lambda folder: folder.name)
def test_every_launch_script_of_every_folder_is_told_a_number_of_threads(folder: Path) -> None:
    texts = [path.read_text(encoding="utf-8") for path in folder.glob("*.txt")]
    counts = [
        (text.count("env.sh (0600)"), text.count("export OMP_NUM_THREADS=${OMP_NUM_THREADS:-"))
        for text in texts
    ]
    assert any(files for files, _ in counts)
    assert all(told >= files for files, told in counts)


def test_every_launcher_of_torch_keeps_its_folder_in_that_of_the_run() -> None:
    sources = {
        name: source
        for name, folder in FOLDERS.items()
        for source in folder.sources.values()
        if "-m torch.distributed.run " in source
    }
    assert "pytorch" in sources
    # By default it makes one in /tmp, which it leaves there.
    assert [name for name, source in sources.items() if "--log_dir launcher" not in source] == []


@pytest.mark.parametrize("name", FOLDERS)
def test_what_nccl_writes_to_a_file_is_read(name: str) -> None:
    folder = FOLDERS[name]
    writes = any("export NCCL_DEBUG_FILE=" in source for source in folder.sources.values())
    # These measure each device alone: no number of theirs depends on how ranks are connected.
    alone = name in ("gemm", "host_device", "memory_bandwidth")
    expected = ("nccl-*.log",) if writes and not alone else ()
    assert folder.framework.log.nccl_files == expected
