"""Runs in a container of a real podman: how they end, what proves it, and what is said where
nothing does.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from noderun.container_facts import look_inside
from orchestrator.inventory import Host
from orchestrator.plan.containers import RECORD, SCRIPT, Container, container_of
from orchestrator.plan.payload import probe_source
from tests.support import judge, podman
from tests.support.machine import Line, Machine, supervisors

STAND_IN = Path(podman.__file__).with_name("stand_in_for_apptainer.sh")
RUN = f"in-container-{os.getpid()}"
NAME = f"orch-{RUN}-0"
SLEEP = f"sleep {10_000_000 + os.getpid()}"
"""What only scripts of this process execute: other workers run tests of this file at the same time.
"""
LABELS = {"orch.run": RUN, "orch.node_rank": "0"}
# Everything that outlives a stop: a process that hears nothing, and a daemon that has left parents,
# session and environment.
STUBBORN = f"""\
#!/bin/bash
( setsid env -i /usr/bin/{SLEEP} & )
( setsid /usr/bin/{SLEEP} & )
trap '' TERM
echo on
while :; do {SLEEP}; done
"""


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("podman")
    program = podman.script(folder)
    archive = podman.image(folder)
    subprocess.run([program, "import", archive, podman.IMAGE], check=True, capture_output=True)
    options = ["--network", "host", "--ulimit", "nofile=20000:20000", "--ulimit", "nproc=4096:4096"]
    done = subprocess.run(
        [program, "run", "--rm", *options, podman.IMAGE, "env"],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"podman cannot start a container here: {done.stderr.strip()[-200:]}")
    yield program
    podman.remove_run_root(folder)


@pytest.fixture
def node(machine: Machine, engine: Path) -> Iterator[Machine]:
    yield machine
    (engine.parent / "broken").unlink(missing_ok=True)
    for name in listed(engine):
        subprocess.run(
            [engine, "rm", "--force", "--time", "0", name], check=True, capture_output=True
        )
    assert not sleepers(), "processes of the test's containers were left"


def listed(engine: Path) -> list[str]:
    return subprocess.run(
        [engine, "ps", "-a", "--format", "{{.Names}}"], capture_output=True, text=True, check=True
    ).stdout.split()


def sleepers() -> list[int]:
    """Return the processes of the scripts of this file, by what the kernel says they execute."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes().replace(b"\0", b" ").rstrip().endswith(SLEEP.encode()):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def wait_for_sleepers() -> None:
    """Wait until all three of a script are there: a daemon clears its environment of the run's mark
    by its exec.
    """
    judge.wait_for(lambda: len(sleepers()) == 3, 10, "not all three of the script are there")


def container(engine: Path, **values: Any) -> Container:
    of_image = {} if "name" in values else {"image": podman.IMAGE, "limits": podman.LIMITS}
    host = Host(
        "node1",
        "node1",
        gpus=0,
        container={"engine": "podman", "program": str(engine), **of_image, **values},
    )
    made = container_of(host, "")
    assert made
    return made


def stage(node: Machine, launch: str, around: Container) -> dict[str, str]:
    """Stage a launch script and the files of its container; return what an order needs of them."""
    files = node.stage(RUN, launch)
    variables = {"ORCH_RUN_ID": RUN, "ORCH_NODE_RANK": "0"}
    texts = {SCRIPT: around.script(NAME, LABELS, variables), RECORD: around.record(NAME, LABELS)}
    folder = node.folder(RUN).relative_to(node.root)
    assert node.put(
        *((f"{folder}/{name}", text.encode(), 0o700) for name, text in texts.items())
    ) == {"done": True}
    return files | {name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()}


def start(node: Machine, launch: str, around: Container, **changes: Any) -> Line:
    files = stage(node, launch, around)
    line = node.supervisor(RUN)
    node.arm(line, RUN, files, argv=["/bin/bash", SCRIPT, "bash", "launch.sh"], **changes)
    line.wait_for("armed")
    line.order("go", at=None)
    line.wait_for("started")
    return line


def ended(line: Line) -> dict[str, Any]:
    record: dict[str, Any] = line.wait_for("ended")["record"]
    line.order("bye")
    return record


def kill_supervisor(node: Machine) -> None:
    (supervisor,) = supervisors(node.folder(RUN))
    os.kill(supervisor, signal.SIGKILL)
    judge.wait_for(lambda: not supervisors(node.folder(RUN)), 2, "the supervisor lives on")


def test_a_run_that_ends_well_leaves_no_container_and_proves_it(
    node: Machine, engine: Path
) -> None:
    launch = '#!/bin/bash\necho "$ORCH_RUN_ID $ORCH_CONTAINER $(id -u 2>/dev/null || echo $UID) $HOME"\nexit 0\n'
    record = ended(start(node, launch, container(engine)))
    assert (record["state"], record["code"], record["left_over"]) == ("finished", 0, [])
    assert record["container"] == {"by": ["label", "control group"], "left": []} or record[
        "container"
    ]["by"] == ["label"]
    assert (
        node.folder(RUN) / "logs/node.out"
    ).read_text() == f"{RUN} {NAME} {os.getuid()} {node.folder(RUN)}\n"
    assert listed(engine) == [] and "containers" not in node.ask("status")


def test_the_exit_code_of_the_launch_script_is_that_of_the_run(node: Machine, engine: Path) -> None:
    record = ended(start(node, "#!/bin/bash\nexit 43\n", container(engine)))
    assert (record["state"], record["code"]) == ("failed", 43)


def test_a_stop_ends_all_that_is_inside(node: Machine, engine: Path) -> None:
    line = start(node, STUBBORN, container(engine))
    node.wait_for_log(RUN, "node.out", b"on\n")
    wait_for_sleepers()
    line.order("stop", reason="test")
    record = ended(line)
    assert record["container"] == {"by": ["label", "control group"], "left": []}
    assert not sleepers() and listed(engine) == []


def test_processes_with_numbers_of_their_own_are_seen_to_live_and_ended(
    node: Machine, engine: Path
) -> None:
    rank = f"RANK=0 LOCAL_RANK=0 exec python3 -I -S ../../../../payload/x/rank_wrapper.py -- /usr/bin/{SLEEP}\n"
    around = container(engine, pid="private", options=["--init=false"])
    text = around.script(NAME, LABELS, {}).replace(
        "--init ", "", 1
    )  # which needs a package of its own
    assert "--pid host" not in text
    # Nobody renews this run: an engine that is slow to start a container must not look like a rank
    # that is seen as dead.
    line = start(node, f"#!/bin/bash\necho on\n{rank}", around, lease_s=120)
    node.wait_for_log(RUN, "node.out", b"on\n")
    judge.wait_for(lambda: list((node.folder(RUN) / "ranks").glob("0.json")), 10, "no rank")
    assert json.loads((node.folder(RUN) / "ranks/0.json").read_text())["wrapper"] < 20
    assert (
        line.told("stopping", 2.5) is None
    )  # a wrapper that is seen as dead would stop the run at once
    line.order("stop", reason="test")
    assert ended(line)["container"]["left"] == [] and not sleepers()


def test_a_container_outlives_its_supervisor_and_a_stop_removes_it(
    node: Machine, engine: Path
) -> None:
    start(node, STUBBORN, container(engine))
    node.wait_for_log(RUN, "node.out", b"on\n")
    wait_for_sleepers()
    kill_supervisor(node)
    assert len(sleepers()) == 3
    (left,) = node.ask("status")["containers"].values()
    assert f"container {NAME}" in left
    answer = node.ask("stop", run=RUN, grace_s=0.3, reason="now")
    assert answer["left"] == [] and "containers" not in answer and set(answer["stopped"]) == {RUN}
    assert not sleepers() and listed(engine) == []


def test_the_control_group_alone_proves_the_end(node: Machine, engine: Path) -> None:
    line = start(node, STUBBORN, container(engine))
    node.wait_for_log(RUN, "node.out", b"on\n")
    judge.wait_for(
        lambda: (node.folder(RUN) / "container.groups").exists(), 5, "no control group was found"
    )
    (engine.parent / "broken").touch()
    line.order("stop", reason="test")
    assert ended(line)["container"] == {"by": ["control group"], "left": []}
    assert not sleepers() and "containers" not in node.ask("left", run=RUN)


def test_an_end_that_nothing_proves_is_not_verified_until_something_does(
    node: Machine, engine: Path
) -> None:
    start(node, STUBBORN, container(engine))
    node.wait_for_log(RUN, "node.out", b"on\n")
    judge.wait_for(
        lambda: (node.folder(RUN) / "container.groups").exists(), 5, "no control group was found"
    )
    kill_supervisor(node)
    # As where control groups cannot be read: neither they nor the engine tell anything.
    for name in ("container.groups", "container.id"):
        (node.folder(RUN) / name).unlink()
    (engine.parent / "broken").touch()
    said = {RUN: ["podman: cannot connect to the engine"]}
    assert node.ask("stop", run=RUN, grace_s=0.3, reason="now")["containers"] == said
    assert (
        node.ask("status")["containers"] == said
        and node.ask("drop", run=RUN, finished=True)["dropped"] is False
    )
    (engine.parent / "broken").unlink()
    # As docker leaves it where its client is killed while the daemon creates the container, which
    # it may do yet.
    identity = node.folder(RUN) / "container.id"
    identity.touch()
    assert (
        node.ask("left", run=RUN)["containers"][RUN][-1]
        == f"podman may still create container {NAME}"
    )
    os.utime(identity, (0, 0))
    assert "containers" not in node.ask("stop", run=RUN, grace_s=0.3, reason="now")
    assert not sleepers() and listed(engine) == []


def test_a_control_group_that_is_hidden_proves_nothing(node: Machine, engine: Path) -> None:
    start(node, STUBBORN, container(engine))
    node.wait_for_log(RUN, "node.out", b"on\n")
    wait_for_sleepers()
    noted = node.folder(RUN) / "container.groups"
    judge.wait_for(noted.exists, 5, "no control group was found")
    kill_supervisor(node)
    # As where its file system is covered or no longer mounted: nothing is at that path, and nothing
    # of its kind around it.
    before = noted.read_text()
    (group,) = json.loads(before)["groups"]
    noted.write_text(json.dumps({"groups": [str(node.root / Path(group).name)], "before": []}))
    (engine.parent / "broken").touch()
    said = {RUN: ["podman: cannot connect to the engine"]}
    assert node.ask("stop", run=RUN, grace_s=0.3, reason="now")["containers"] == said
    noted.write_text(before)
    assert "containers" not in node.ask("stop", run=RUN, grace_s=0.3, reason="now")
    assert not sleepers()


@pytest.fixture
def standing(node: Machine, engine: Path) -> Iterator[str]:
    name = f"standing-{os.getpid()}"
    options = ["--network", "host", "--ulimit", "nofile=20000:20000", "--ulimit", "nproc=4096:4096"]
    mount = f"{node.root}:{node.root}"
    node.root.mkdir(mode=0o700, exist_ok=True)
    argv = [
        engine,
        "run",
        "--detach",
        "--name",
        name,
        *options,
        "-v",
        mount,
        podman.IMAGE,
        "sleep",
        "100000",
    ]
    subprocess.run(argv, check=True, capture_output=True)
    yield name
    subprocess.run([engine, "rm", "--force", "--time", "0", name], check=True, capture_output=True)


def test_a_standing_container_outlives_the_run_in_it(
    node: Machine, engine: Path, standing: str
) -> None:
    line = start(node, STUBBORN.replace("env -i ", ""), container(engine, name=standing))
    node.wait_for_log(RUN, "node.out", b"on\n")
    line.order("stop", reason="test")
    assert ended(line)["container"] == {"by": ["control group"], "left": []}
    assert not sleepers() and listed(engine) == [standing]


def test_what_sheds_its_mark_in_a_standing_container_is_named_and_not_signalled(
    node: Machine, engine: Path, standing: str
) -> None:
    line = start(node, STUBBORN, container(engine, name=standing))
    node.wait_for_log(RUN, "node.out", b"on\n")
    wait_for_sleepers()
    line.order("stop", reason="test")
    record = ended(line)
    (daemon,) = sleepers()
    said = [f"process {daemon} (sleep) was started in {standing} during the run"]
    assert record["container"] == {"by": [], "left": said}
    assert node.ask("left", run=RUN)["containers"] == {RUN: said}
    assert node.ask("stop", run=RUN, grace_s=0.2, reason="now")["containers"] == {
        RUN: said
    } and sleepers() == [daemon]
    os.kill(daemon, signal.SIGKILL)
    judge.wait_for(lambda: not sleepers(), 2, "it lives on")
    assert "containers" not in node.ask("status")


def test_a_standing_container_that_does_not_run_refuses_the_run(
    node: Machine, engine: Path
) -> None:
    files = stage(node, "#!/bin/bash\n", container(engine, name="nobody"))
    line = node.supervisor(RUN)
    node.arm(line, RUN, files, argv=["/bin/bash", SCRIPT, "bash", "launch.sh"])
    refusal = line.wait_for("error")
    assert (
        refusal["kind"] == "node_unfit"
        and "podman: " in refusal["message"]
        and "nobody" in refusal["message"]
    )


def facts_of(node: Machine, around: Container, **request: Any) -> dict[str, Any]:
    probe = 'import json, platform; print(json.dumps({"python": platform.python_version()}))'
    asked = {
        "python": ["python3"],
        "environment": "export A=1\n",
        "probe": probe,
        "probe_timeout_s": 30,
        "ports": [],
    }
    look = around.look(f"orch-preflight-{os.getpid()}", probe_source().decode())
    answer = node.ask("facts", **(asked | {"capture": "0" * 16, "container": look} | request))
    facts: dict[str, Any] = answer["facts"]
    return facts


def test_preflight_looks_inside(node: Machine, engine: Path) -> None:
    facts = facts_of(node, container(engine, ipc="private", shm_gib=0.25))
    inside = facts["container"]
    python = subprocess.run(
        ["/usr/bin/python3", "-V"], capture_output=True, text=True, check=True
    ).stdout.split()[1]
    assert facts["framework"] == {"python": python} and inside["python"] == python
    assert facts["limits"]["nofile"] == [20000, 20000] and facts["shm_bytes"] == 1 << 28
    digest = subprocess.run(
        [engine, "image", "inspect", "-f", "{{.Id}}", podman.IMAGE],
        capture_output=True,
        text=True,
        check=True,
    )
    assert (
        inside["digest"] == f"sha256:{digest.stdout.strip()}"
        and inside["workdir"] is True
        and inside["same_user"] is True
    )
    assert not list(node.root.glob(".inside-*"))
    assert facts["containers_left"] == [] and listed(engine) == []


def test_a_probe_that_reports_no_version_has_run_inside(node: Machine, engine: Path) -> None:
    assert facts_of(node, container(engine), probe="print('{}')")["framework"] == {}


def test_preflight_sees_who_owns_what_is_made_inside(node: Machine, engine: Path) -> None:
    node.ask("status")  # which makes the work directory
    node.root.chmod(0o701)
    inside = facts_of(node, container(engine, user="65534:65534"))["container"]
    assert inside["workdir"] is False  # it may not write there at all


def test_preflight_says_why_a_container_does_not_start(node: Machine, engine: Path) -> None:
    missing = facts_of(node, container(engine, image="localhost/no/such:1"))
    assert "no/such" in missing["container"]["error"] and "error" in missing["framework"]
    without = facts_of(node, container(engine, python="/opt/none/python3"))
    assert "/opt/none/python3" in without["container"]["error"]


def test_preflight_finds_the_containers_of_earlier_runs(node: Machine, engine: Path) -> None:
    options = [
        "--network",
        "host",
        "--ulimit",
        "nofile=20000:20000",
        "--ulimit",
        "nproc=4096:4096",
        "--label",
        "orch.run=earlier",
    ]
    argv = [
        engine,
        "run",
        "--detach",
        "--name",
        "orch-earlier-0",
        *options,
        podman.IMAGE,
        "sleep",
        "100000",
    ]
    subprocess.run(argv, check=True, capture_output=True)
    ((name, state),) = facts_of(node, container(engine))["containers_left"]
    assert name == "orch-earlier-0" and state.startswith("Up")  # as this version says "running"


@pytest.fixture
def plain_user(engine: Path, open_home: Path) -> Iterator[tuple[Machine, Container]]:
    """A node whose user has no privileges, and what enters a root file system there: a stand-in for
    apptainer and enroot.
    """
    rootfs, program = open_home / "rootfs", open_home / "enter"
    rootfs.mkdir()
    subprocess.run(["tar", "-C", rootfs, "-xf", engine.parent / "image.tar"], check=True)
    shutil.copy(STAND_IN, program)
    subprocess.run(["chown", "-R", "65534:65534", open_home], check=True)
    plain = Machine(open_home / "work", python="/usr/bin/python3", user=65534)
    allowed = (
        subprocess.run(
            ["unshare", "--user", "--map-root-user", "--mount", "true"], user=65534, check=False
        ).returncode
        == 0
    )
    around = container_of(
        Host("n", "n", gpus=0, container={"wrap": [str(program), str(rootfs), "{workdir}"]}), ""
    )
    assert around and not around.is_object
    if not allowed:
        pytest.skip("a user without privileges may not make namespaces here")
    yield plain, around
    plain.close()


def test_what_enters_a_root_file_system_without_privileges_ends_as_any_program(
    plain_user: tuple[Machine, Container],
) -> None:
    plain, around = plain_user
    files = plain.stage(
        RUN,
        STUBBORN.replace("echo on", "echo on $(cat /proc/self/uid_map | (read a b c; echo $a $b))"),
    )
    text = around.script(NAME, LABELS, {"ORCH_RUN_ID": RUN, "ORCH_NODE_RANK": "0"}).encode()
    folder = plain.folder(RUN).relative_to(plain.root)
    assert plain.put((f"{folder}/{SCRIPT}", text, 0o700)) == {"done": True}
    line = plain.supervisor(RUN)
    digests = files | {SCRIPT: hashlib.sha256(text).hexdigest()}
    plain.arm(line, RUN, digests, argv=["/bin/bash", SCRIPT, "bash", "launch.sh"])
    line.wait_for("armed")
    line.order("go", at=None)
    plain.wait_for_log(RUN, "node.out", b"on 0 65534\n")
    wait_for_sleepers()
    line.order("stop", reason="test")
    record = ended(line)
    assert record["state"] == "stopped" and "container" not in record and not sleepers()


LOGGED = (
    'time="2026-11-29T07:42:37Z" level=error msg="cannot find UID/GID for user me: no subuid ranges found"\n'
    'time="2026-11-29T07:42:37Z" level=warning msg="Using rootless single mapping. Check /etc/subuid"\n'
)
"""What podman logs for a user without ids for containers, in most of which it runs all the same."""


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (LOGGED + 'Error: exec: "python3": not found\n', 'Error: exec: "python3": not found'),
        (LOGGED, " / ".join(LOGGED.splitlines())),
        ("", "it printed nothing"),
    ],
)
def test_the_error_of_an_engine_is_shown_without_what_it_logs_beside(
    tmp_path: Path, said: str, error: str
) -> None:
    script = f"cat >&2 <<'END'\n{said}END\nexit 127\n"
    known = {"look": "", "python": ["python3"], "script": script}
    request = {"python": ["python3"], "probe": "", "probe_timeout_s": 60, "environment": ""}
    assert look_inside(str(tmp_path / "mark"), request, known) == {"error": error}
