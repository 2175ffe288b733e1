"""The node runner over a real sshd: one that stays for further requests, and lets go when nobody
has any.
"""

from __future__ import annotations

import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from orchestrator.errors import OrchError, RunError, TransportError
from orchestrator.inventory import NO_SECRETS, redaction
from orchestrator.nodes import cluster as clusters
from orchestrator.nodes.cluster import Cluster
from orchestrator.nodes.conversation import Call, SupervisorLine
from orchestrator.nodes.deploy import is_unchanged, stage_payload
from orchestrator.nodes.fanout import WIDTH, each
from orchestrator.nodes.node import Node, Upload
from orchestrator.plan.folders import FrameworkFolder, open_framework
from orchestrator.plan.framework import Framework, run_path
from orchestrator.plan.payload import runner_source
from orchestrator.procs import cmdline, environ, snapshot
from orchestrator.record.deploys import Deployed
from orchestrator.transport import Trust
from orchestrator.transport.ssh import Transport
from tests.contract.rig import Rig
from tests.support import judge
from tests.support.judge import LIMIT_S


@pytest.fixture(params=["ssh", "openssh", "kubectl"])
def transport(request: pytest.FixtureRequest) -> str:
    """Every transport that reaches a server of its own."""
    return str(request.param)


def runners(node: Node) -> set[int]:
    """The node runners of the node's own server, wherever they hang by now; tests beside this one
    have servers of theirs.
    """
    return {pid for pid, name in _started(node) if name != "orch-supervisor"}


def supervisors(node: Node) -> set[int]:
    """Those of them that have become supervisors of runs."""
    return {pid for pid, name in _started(node) if name == "orch-supervisor"}


def _started(node: Node) -> Iterator[tuple[int, str]]:
    pod = f"HOSTNAME={node.host.vars.get('pod')}".encode()
    server = f" {node.host.address} {node.host.ssh.port}".encode()
    for pid, one in snapshot().items():
        program, *words = cmdline(pid).split(b"\0")
        runs = program.endswith(b"python3") and any(b"signal.alarm(60)" in word for word in words)
        if runs and any(
            entry == pod or entry.startswith(b"SSH_CONNECTION=") and entry.endswith(server)
            for entry in environ(pid)
        ):
            yield pid, one.name


def answers(node: Node) -> bool:
    return node.ask("left", run="none", timeout_s=LIMIT_S) == {"left": [], "supervisor": False}


@pytest.fixture
def node(line: Transport, tmp_path: Path) -> Iterator[Node]:
    host = replace(line.host, vars={**line.host.vars, "workdir": str(tmp_path / "work")})
    line.host = host
    made = Node(line, runner_source())
    yield made
    made.close()
    judge.wait_for(lambda: not runners(made) | supervisors(made), 5, "they stay")


def kept(node: Node, events: queue.SimpleQueue[str]) -> SupervisorLine:
    """The line to the supervisor of a run that is staged and not started."""
    folder = run_path(node.host.name, "r1")
    files = [
        Upload(f"{folder}/launch.sh", b"exit 0\n", 0o700),
        Upload(f"{folder}/env.sh", b"", 0o600),
    ]
    node.put(files, timeout_s=LIMIT_S)
    line = node.supervisor("r1", start=True, timeout_s=LIMIT_S)
    line.start(lambda _, event: events.put(event["event"]))
    return line


def test_the_runner_that_carried_a_line_answers_what_follows(node: Node) -> None:
    events: queue.SimpleQueue[str] = queue.SimpleQueue()
    line = kept(node, events)
    only = runners(node)
    line.send("bye")
    line.close(10)
    assert answers(node) and answers(node)
    assert len(only) == 1 and runners(node) == only and events.empty()
    judge.wait_for(lambda: not supervisors(node), 5, "the supervisor stays")


@pytest.mark.parametrize("transport", ["kubectl"], indirect=True)
def test_in_a_pod_that_no_run_uses_a_runner_waits_as_long_as_the_controller_is_there(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clusters, "_HOLD_S", 0.2)
    cluster = Cluster([node.host], Trust(store=Path(os.devnull)), NO_SECRETS)
    cluster.nodes[node.host.name] = node
    assert answers(node)
    with cluster.open():
        (first,) = runners(node)
        os.kill(first, signal.SIGKILL)  # as its timer does, unless another request comes
        judge.wait_for(lambda: runners(node) - {first}, LIMIT_S, "no other one comes")
    judge.wait_for(lambda: not runners(node), LIMIT_S, "it stays without a controller")


def test_where_a_runner_dies_in_its_answer_the_login_shell_is_not_suspected(node: Node) -> None:
    node.put([Upload("payload/x/slow.py", b"import time; time.sleep(2)\n")], timeout_s=LIMIT_S)
    failed: queue.SimpleQueue[RunError] = queue.SimpleQueue()

    def ask() -> None:
        try:
            node.ask("program", program="payload/x/slow.py", argv=[], limit_s=20, timeout_s=LIMIT_S)
        except RunError as error:
            failed.put(error)

    asking = threading.Thread(target=ask)
    asking.start()
    time.sleep(0.5)
    (only,) = runners(node)
    os.kill(only, signal.SIGKILL)
    error = failed.get(timeout=LIMIT_S)
    asking.join(LIMIT_S)
    assert (
        error.message == "the node runner ended before it had answered: it printed nothing"
        and "shell" not in error.hint
    )


def test_without_a_goodbye_the_supervisor_and_the_runner_go(node: Node) -> None:
    line = kept(node, queue.SimpleQueue())
    old = runners(node)
    assert len(old) == 1 and len(supervisors(node)) == 1
    line.close(0.2)
    assert answers(node)
    judge.wait_for(lambda: not old & runners(node) and not supervisors(node), 5, "they stay")


def test_a_line_whose_runner_was_killed_is_not_waited_for(node: Node) -> None:
    events: queue.SimpleQueue[str] = queue.SimpleQueue()
    line = kept(node, events)
    (runner,) = runners(node)
    os.kill(runner, signal.SIGKILL)
    assert events.get(timeout=LIMIT_S) == "lost"
    line.close(10_000)  # longer than a test may take
    assert answers(node)


def test_one_runner_answers_request_after_request(node: Node) -> None:
    files = [Upload("payload/x/a", b"a" * 100_000), Upload("payload/x/b", b"b")]
    assert node.put(files, timeout_s=LIMIT_S) == 100_001
    first = runners(node)
    assert node.put(files, timeout_s=LIMIT_S) == 0
    assert answers(node)
    assert len(first) == 1 and runners(node) == first


def fetched(node: Node, have: Mapping[str, int], max_bytes: int) -> dict[str, bytearray]:
    """Fetch the logs of a run from these offsets on, with a limit for all of them; return what came
    by name.
    """
    came: dict[str, bytearray] = {}

    def sink(name: str, offset: int) -> Callable[[memoryview], None]:
        log = came.setdefault(name, bytearray())
        assert offset == have.get(name, 0) + len(log)
        return lambda data: log.extend(data)

    assert node.fetch("r1", have, sink, timeout_s=30, max_bytes=max_bytes, max_files=8)
    return came


MIB = 1 << 20


@pytest.mark.parametrize(
    "sizes", [(1,), (MIB,), (9 * MIB + 1,), (23 * MIB,), (5 * MIB, 11 * MIB, 3), (7 * MIB,) * 3]
)
@pytest.mark.parametrize("spare", [0, 5000])
def test_logs_that_just_keep_to_the_limit_come_whole_whatever_their_pieces(
    node: Node, sizes: tuple[int, ...], spare: int
) -> None:
    folder = Path(node.root) / run_path(node.host.name, "r1") / "logs"
    folder.mkdir(parents=True)
    folder.parents[3].chmod(0o700)
    logs = {f"rank-{number}.out": os.urandom(size) for number, size in enumerate(sizes)}
    for name, content in logs.items():
        (folder / name).write_bytes(content)
    limit = sum(sizes) + spare
    assert fetched(node, {}, limit) == logs
    have = {name: len(content) // 3 for name, content in logs.items()}
    assert fetched(node, have, limit) == {
        name: content[have[name] :] for name, content in logs.items()
    }


SAYS = """import json, sys
nonce = json.loads(sys.stdin.readline())["nonce"]
print("ORCH", nonce, flush=True)
said = %r
while True:
    print(said, flush=True)
"""
PIECE = {"name": "rank-0.out", "offset": 0, "raw": 2, "bytes": 2, "packed": False}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"bytes": -5},
        {"bytes": True},
        {"offset": 7},
        {"offset": None},
        {"raw": 1 << 40},
        {"name": {}},
        {"packed": True},
    ],
)
def test_a_node_that_sends_no_piece_of_a_log_is_named(
    line: Transport, fields: dict[str, object]
) -> None:
    """The first is one, and is sent again for ever."""
    node = Node(line, (SAYS % (json.dumps(PIECE | fields) + "\nab")).encode())
    with pytest.raises(
        RunError, match="expected a piece of a log, got something malformed: "
    ) as caught:
        node.fetch("r1", {}, lambda *_: lambda _: None, timeout_s=10, max_bytes=100, max_files=8)
    assert (caught.value.kind, caught.value.host) == ("result_invalid", line.host.name)


@pytest.mark.parametrize("missing", [[1], [-1], [True], ["0"], 3, None])
def test_a_node_that_lacks_files_that_it_was_not_offered_is_named(
    line: Transport, missing: object
) -> None:
    node = Node(line, (SAYS % json.dumps({"missing": missing})).encode())
    with pytest.raises(RunError, match="expected the files that the node lacks") as caught:
        node.put([Upload("payload/x/a", b"a")], timeout_s=10)
    assert (caught.value.kind, caught.value.host) == ("result_invalid", line.host.name)


@pytest.mark.parametrize(
    ("op", "answer"),
    [
        ("stop", {"stopped": [[]], "left": []}),
        ("stop", {}),
        ("status", {"runs": {}, "owner": ["alice"]}),
        ("status", {"runs": 5, "owner": None}),
        ("drop", {"dropped": "yes"}),
        ("examine", {"report": []}),
        ("facts", {"facts": 1, "told": "", "standing": {}}),
        ("program", {"code": 0, "out": None, "err": ""}),
        ("undeploy", {"root": "/w", "runs": -1, "kept": []}),
    ],
)
def test_a_node_that_does_not_answer_what_it_was_asked_is_named(
    line: Transport, op: str, answer: object
) -> None:
    node = Node(line, (SAYS % json.dumps(answer)).encode())
    with pytest.raises(RunError, match=f"expected an answer to {op}, got something mal") as caught:
        node.ask(op, timeout_s=10)
    assert (caught.value.kind, caught.value.host) == ("result_invalid", line.host.name)


PROGRAM = {
    "train.py": b"import models.net\n" * 9000,
    "models/net.py": b"a" * 70_000,
    "noderun.py": b"b" * 5000,
}


@cache
def simulated() -> Framework:
    return open_framework("simulated").framework


def stage(node: Node, files: Mapping[str, bytes]) -> tuple[int, Deployed]:
    """Bring a set to a node as a deploy does; return the bytes that were sent, and what a deploy
    would remember.
    """
    payload = dict(files)
    framework = replace(simulated(), payload=tuple(payload))
    folder = FrameworkFolder(framework, {}, payload)
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text()
    driver = Path("/proc/driver/nvidia/version")
    machine = boot_id + (driver.read_text() if driver.exists() else "")
    state = os.stat("/")
    paths = {"/": f"{state.st_ino} {state.st_size} {int(state.st_mtime)} {int(state.st_ctime)}"}
    known = Deployed(
        "", node.root, {folder.payload_digest: folder.payload_digests}, machine, paths, {}, 0.0
    )
    return stage_payload(node, folder), known


def folder_of(node: Node, deployed: Deployed) -> Path:
    (digest,) = deployed.sets
    return Path(node.root) / "payload" / digest


def test_a_set_is_one_folder_whose_files_import_each_other_and_is_sent_once(node: Node) -> None:
    source = b"import sys\nimport beside, models.net\nprint(sys.path[0], beside.ANSWER, models.net.ANSWER)\n"
    files = {
        "train.py": source,
        "beside.py": b"ANSWER = 1\n",
        "models/net.py": b"import beside\nANSWER = beside.ANSWER + 1\n",
    }
    sent, deployed = stage(node, files)
    assert sent == sum(map(len, files.values())) and is_unchanged(node, deployed)
    folder = folder_of(node, deployed)
    assert {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} == set(
        files
    )
    argv = [sys.executable, "-s", "-E", "-S", str(folder / "train.py")]
    done = subprocess.run(
        argv, cwd="/", capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert (done.stdout, done.stderr) == (f"{folder} 1 2\n", "")
    assert stage(node, files)[0] == 0 and is_unchanged(node, deployed), (
        "what Python compiled beside it is no part of a set"
    )


def test_of_a_set_that_differs_in_one_file_only_that_file_is_sent(node: Node) -> None:
    sent, before = stage(node, PROGRAM)
    assert sent == sum(map(len, PROGRAM.values()))
    changed = PROGRAM | {"models/net.py": b"c" * 70_000}
    sent, after = stage(node, changed)
    assert sent == 70_000 and is_unchanged(node, after) and is_unchanged(node, before)
    assert [(folder_of(node, after) / name).read_bytes() for name in changed] == list(
        changed.values()
    )
    (folder_of(node, before) / "train.py").write_bytes(b"x" * len(PROGRAM["train.py"]))
    assert (
        stage(node, changed)[0] == 0
        and is_unchanged(node, after)
        and not is_unchanged(node, before)
    ), "the sets share no bytes"
    sent, _ = stage(node, changed | {"models/net.py": b"d"})
    assert sent == 1, "one of the copies is as it was"


def test_half_a_set_is_never_taken_for_a_whole_one(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, deployed = stage(node, PROGRAM)
    folder = folder_of(node, deployed)
    shutil.rmtree(folder)
    send = Call.send

    def send_and_kill(call: Call, data: bytes) -> None:
        if data == PROGRAM["models/net.py"]:
            judge.wait_for(
                lambda: (folder / "train.py").exists(), 5, "the first file does not arrive"
            )
            for pid in runners(node):
                os.kill(pid, signal.SIGKILL)
        send(call, data)

    with monkeypatch.context() as patched:
        patched.setattr(Call, "send", send_and_kill)
        with pytest.raises(OrchError):  # the runner is missed on sending, or in its answer
            stage(node, PROGRAM)
    assert [path.name for path in folder.iterdir() if path.suffix == ".py"] == ["train.py"]
    assert not is_unchanged(node, deployed)
    assert stage(node, PROGRAM)[0] == 75_000 and is_unchanged(node, deployed)


def test_controllers_that_stage_a_set_at_once_leave_it_whole(node: Node) -> None:
    simulated()  # not in several threads at once: ast.parse of Python 3.11.4 and later may fail there (cpython issue 106905)
    results, errors = each(range(6), lambda _: stage(node, PROGRAM))
    assert not errors
    _, deployed = results[0]
    assert is_unchanged(node, deployed) and stage(node, PROGRAM)[0] == 0
    folder = folder_of(node, deployed)
    assert {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} == set(
        PROGRAM
    )


def test_requests_at_the_same_time_are_all_answered(node: Node) -> None:
    results, errors = each(range(6), lambda _: answers(node))
    assert not errors and list(results.values()) == [True] * 6


def test_a_runner_that_has_left_is_replaced_by_another(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node._stay_s = 1
    answers(node)
    judge.wait_for(lambda: not runners(node), 10, "it does not leave")
    assert answers(node)


def test_a_refusal_ends_the_runner_and_not_the_node(node: Node) -> None:
    with pytest.raises(RunError, match="unsafe path"):
        node.put([Upload("../out", b"x")], timeout_s=LIMIT_S)
    assert node.put([Upload("in", b"x")], timeout_s=LIMIT_S) == 1


def test_a_line_that_breaks_while_a_runner_waits_is_told_as_such(rig: Rig, tmp_path: Path) -> None:
    server = rig.serve()
    node = Node(rig.connect(server), runner_source())
    node.root = str(tmp_path / "work")
    answers(node)
    server.kill_connections()
    with pytest.raises(TransportError) as caught:
        answers(node)
    assert caught.value.kind == "node_lost"


def test_what_is_heard_in_the_lines_own_thread_comes_in_order_and_ends(line: Transport) -> None:
    channel = line.popen(
        ["sh", "-c", "for n in 1 2 3; do echo $n; sleep 0.05; done; exec cat"], timeout_s=LIMIT_S
    )
    taken = channel.recv(LIMIT_S)  # what was taken before is not told again
    heard: list[bytes] = []
    over = threading.Event()

    def listen(data: bytes) -> None:
        heard.append(data)
        if not data:
            over.set()

    channel.listen(listen)
    channel.send(b"4\n")
    time.sleep(0.3)
    channel.shutdown_write()
    assert over.wait(LIMIT_S)
    assert (
        sorted((taken + b"".join(heard)).split()) == [b"1", b"2", b"3", b"4"]
        and heard[-1] == b""
        and heard.count(b"") == 1
    )


@pytest.mark.parametrize(
    "said",
    [b"Killed", b"[1]", b'{"mono": NaN}', b'{"mono": 1e999}', b'{"n": 1, "n": 2}', b"[" * 9999],
)
def test_what_a_runner_cannot_mean_is_refused_with_its_words(line: Transport, said: bytes) -> None:
    call = Call(
        line.popen(["printf", "%s\\n", said.decode()], timeout_s=LIMIT_S), line.host, 10, "python3"
    )
    with pytest.raises(RunError, match="expected a line of the node runner") as caught:
        call.line()
    assert caught.value.kind == "result_invalid" and repr(said[:80]) in caught.value.message


SECRET = "hunter2-and-more"


REFUSAL = {"kind": "node_busy", "message": f"it is {SECRET}", "owner": json.dumps([SECRET])}


@pytest.mark.parametrize(
    ("out", "err"),
    [
        (f"{'x' * 70}{SECRET}\n", ""),
        (json.dumps(["x" * 70 + SECRET]) + "\n", ""),
        ("", f"a {SECRET[:9]}\nb\n{SECRET}\nc {SECRET[:4]}\n{SECRET[4:]}\n"),
        (json.dumps({"error": REFUSAL}) + "\n", ""),
    ],
    ids=["noise", "noise that is cut", "lines of errors", "a refusal"],
)
def test_what_a_runner_says_is_without_secrets_before_it_is_cut_and_split(
    line: Transport, out: str, err: str
) -> None:
    argv = ["sh", "-c", 'printf %s "$2" >&2; sleep 0.1; printf %s "$1"', "sh", out, err]
    call = Call(line.popen(argv, timeout_s=LIMIT_S), line.host, 10, "python3", redaction([SECRET]))
    with pytest.raises(OrchError) as caught:
        call.line()
    text = str(caught.value)
    assert SECRET not in text and SECRET[4:] not in text and SECRET[:14] not in text, text


def test_answers_are_without_secrets_at_any_depth_and_keep_their_keys(line: Transport) -> None:
    answer = json.dumps(
        {"event": "x", "facts": {"a": [json.dumps({"b": SECRET})]}, "error_text": "no"}
    )
    call = Call(
        line.popen(["printf", "%s\\n", answer], timeout_s=LIMIT_S),
        line.host,
        10,
        "python3",
        redaction([SECRET, "error"]),
    )
    assert call.line() == {
        "event": "x",
        "facts": {"a": ['{"b": "(not shown)"}']},
        "error_text": "no",
    }


def test_a_broken_line_ends_what_is_heard(rig: Rig) -> None:
    server = rig.serve()
    channel = rig.connect(server).popen(["cat"], timeout_s=LIMIT_S)
    over = threading.Event()
    channel.listen(lambda data: None if data else over.set())
    server.kill_connections()
    assert over.wait(LIMIT_S)
    with pytest.raises(TransportError):
        channel.recv(1)


def test_no_more_calls_at_a_time_than_the_width_and_none_is_forgotten() -> None:
    running, most, lock = 0, 0, threading.Lock()

    def call(key: int) -> int:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.01)
        with lock:
            running -= 1
        if key % 7 == 0:
            raise RunError("seven", kind="rank_failed")
        return key * key

    keys = range(3 * WIDTH)
    results, errors = each(keys, call)
    assert most <= WIDTH
    assert list(results) == [key for key in keys if key % 7] and all(
        results[key] == key * key for key in results
    )
    assert list(errors) == [key for key in keys if key % 7 == 0]


def test_who_is_interrupted_begins_nothing_more() -> None:
    begun: list[int] = []

    def call(key: int) -> None:
        begun.append(key)
        time.sleep(0.05)
        raise ValueError("a fault of the program")

    with pytest.raises(ValueError):
        each(range(10 * WIDTH), call)
    time.sleep(0.3)
    assert len(begun) <= 3 * WIDTH
