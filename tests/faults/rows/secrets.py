"""What only the login user of a node may know: values of the environment, and the files that a run
leaves.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shlex
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from tests.e2e.rig import ORCH, Controller, Done
from tests.faults.rows.common import LONG, running
from tests.faults.rows.hostile import at_terminal
from tests.faults.rows.setup import inventory, on_node, server
from tests.faults.rows.workload import workload
from tests.faults.suite import Trial, row
from tests.support import faults, judge, secret_forms
from tests.support.faultlab import few_inodes
from tests.support.secret_forms import parts

SAMPLER = """
import os, sys, time
secrets, stop, period_s = [word.encode() for word in sys.argv[2:]], sys.argv[1], 0.005
hits, rounds, slowest = set(), 0, 0.0
print("on", flush=True)
while not os.path.exists(stop):
    began = time.monotonic()
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            try:
                with open("/proc/%s/cmdline" % name, "rb") as file:
                    data = file.read()
            except OSError:
                continue
            if any(word in data for word in secrets):
                hits.add(data[:200])
    rounds += 1
    if rounds == 100:
        print("seen often", flush=True)
    took = time.monotonic() - began
    slowest = max(slowest, took)
    time.sleep(max(0.0, period_s - took))
print(rounds, round(slowest, 3), len(hits), sorted(hits)[:3])
"""


def a_secret(trial: Trial) -> str:
    """Return a value that nobody else has, with characters that every kind of quoting alters."""
    return f"tok{trial.random.getrandbits(64):016x}'\"$(x) \\y&=%"


def forms(secret: str) -> tuple[bytes, ...]:
    """Return how a secret may look in a file."""
    texts = (
        secret,
        shlex.quote(secret),
        json.dumps(secret)[1:-1],
        quote(secret, safe=""),
        repr(secret)[1:-1],
        secret[:19],
    )
    packed = (base64.b64encode(b"x" * n + secret.encode())[4:-4] for n in range(3))
    return (*(text.encode() for text in texts), *packed)


def with_secret(controller: Controller, secret: str, **variables: object) -> str:
    """Write an inventory whose nodes have a secret in their environment."""
    path = Path(
        inventory(controller, name="secret.yaml", secrets=["API_TOKEN"], variables=variables)
    )
    value = json.loads(path.read_text())
    value["defaults"]["env"] = {"API_TOKEN": secret, "PLAIN": "seen"}
    path.write_text(json.dumps(value))
    return str(path)


def found_in(folders: list[Path], secret: str, *, but: Callable[[Path], bool]) -> list[str]:
    """Return the files below these folders that hold the secret in any form."""
    hits = []
    for folder in folders:
        for path in folder.rglob("*"):
            if path.is_symlink() or not path.is_file() or but(path):
                continue
            data = path.read_bytes()
            hits += [str(path)] if any(form in data for form in forms(secret)) else []
    return hits


@row("X1", "a secret in a process list", limit_s=120)
def process_lists(trial: Trial) -> None:
    controller, secret = trial.controller, a_secret(trial)
    controller.forks = False  # what is looked at are command lines
    hosts, stop = with_secret(controller, secret), trial.scratch / "stop"
    argv = [
        sys.executable,
        "-c",
        SAMPLER,
        str(stop),
        secret[:19],
        base64.b64encode(secret.encode()).decode()[:20],
    ]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as sampler:
        assert sampler.stdout and sampler.stdout.readline() == "on\n"
        words = workload(
            controller,
            "def start():\n    assert os.environ['PLAIN'] == 'seen' and 'API_TOKEN' in os.environ\n",
        )
        folder = str(controller.project / "templates")
        for command in (
            ("deploy", "-f", "odd", "--templates", folder),
            (*words, "--nodes", "4"),
            ("status",),
            ("summarize",),
        ):
            hosted = () if command[0] == "summarize" else ("--hosts", hosts)
            done = controller.orch(*command, *hosted)
            assert done.code == 0, done
        while not select.select([sampler.stdout], [], [], 0)[0]:
            assert controller.orch("status", "--hosts", hosts).code == 0
        assert sampler.stdout.readline() == "seen often\n"
        stop.touch()
        rounds, slowest, hits, some = sampler.stdout.read().split(" ", 3)
    trial.notes.append(f"{rounds} samples, the slowest took {slowest} s")
    assert hits == "0", f"{hits} command lines with the secret, such as {some}"


@contextmanager
def unreachable(trial: Trial, node: str) -> Iterator[None]:
    """Have a node that refuses connections."""
    faults.sshd_stop(trial.lab, node)
    try:
        yield
    finally:
        faults.sshd_start(trial.lab, node)


@contextmanager
def changed(trial: Trial, node: str, before: str, after: str) -> Iterator[None]:
    """Have something broken on a node by one script, and mended by another."""
    on_node(trial.lab, node, before)
    try:
        yield
    finally:
        on_node(trial.lab, node, after)


BUG = (
    "import sys; sys.argv[0] = 'orch'\n"
    "import orchestrator.{module} as module\n"
    "def broken(*args, **more):\n"
    "    {act}\n"
    "module.{name} = broken\n"
    "from orchestrator.cli.process import run; run()"
)
RAISES = "raise RuntimeError('a fault of ours')"
DIES = "import os; os.kill(os.getpid(), 9)"
BUGS = {
    "plan": ("plan.bench", "plan_run"),
    "preflight": ("controller.fitness", "capture"),
    "stage": ("controller.launch", "stage_payload"),
    "watch": ("controller.watch", "Watch.run"),
    "collect": ("controller.campaign", "collect_host"),
}
LEAK = """
def step(number):
    if number == 3 and RANK == 1:
        sys.stderr.write("environment: %r\\n" % dict(os.environ))
        raise SystemExit("cannot log in with " + os.environ["API_TOKEN"])
"""


@row("X2", "our own output, with a fault forced in every phase", trials=5, limit_s=300, short=False)
def our_own_output(trial: Trial) -> None:
    controller, secret, node = (
        trial.controller,
        a_secret(trial),
        trial.random.choice(trial.nodes[1:]),
    )
    hosts = with_secret(controller, secret)
    quick, leaking = workload(controller, ""), workload(controller, LEAK, name="leaking")
    phases = {
        "connect": lambda: unreachable(trial, node),
        "preflight": lambda: changed(
            trial, node, "rm -rf ~/.orch-node; touch ~/.orch-node", "rm ~/.orch-node"
        ),
        "arm": lambda: few_inodes(trial.lab, node, f"~/.orch-node/nodes/{node}"),
    }
    for phase, breaking in phases.items():
        with breaking():
            done = controller.orch(*quick, "--nodes", "4", "--hosts", hosts)
        assert done.code, f"{phase}: {done}"
        _judge_files(trial, phase, secret, done, logs=True)
    for phase, (module, name) in BUGS.items() if trial.full else ():
        program = (sys.executable, "-c", BUG.format(module=module, name=name, act=RAISES))
        done = controller.end(
            controller.start(
                *quick, "--nodes", "2", "--lease", "2", "--hosts", hosts, program=program
            ),
            60,
        )
        assert (
            done.code and "builtins.RuntimeError" in done.err and "a fault of ours" not in done.err
        ), f"{phase}: {done}"
        judge.wait_until_clean(trial.lab, 8)
        _judge_files(trial, f"bug in {phase}", secret, done, logs=True)
    program = (
        sys.executable,
        "-c",
        BUG.format(module="controller.launch", name="Launch._arm", act=DIES),
    )
    done = controller.end(
        controller.start(*quick, "--nodes", "4", "--hosts", hosts, program=program), 60
    )
    assert done.code == -signal.SIGKILL, done
    _judge_files(trial, "killed when all was staged", secret, done, logs=True)
    done = controller.orch(*quick, "--nodes", "4", "--hosts", hosts)
    assert done.code == 0, done
    _judge_files(trial, "nothing", secret, done, logs=True)
    done = controller.orch(*leaking, "--nodes", "2", "--hosts", hosts)
    assert done.code == 1 and "cannot log in with" in done.err, done
    _judge_files(trial, "a rank that tells it", secret, done, logs=False)
    for command in (
        ("summarize", "--json"),
        ("summarize",),
        ("summarize", "--format", "csv"),
        ("summarize", "--format", "markdown"),
    ):
        said = controller.orch(*command)
        assert not any(form in (said.out + said.err).encode() for form in forms(secret)), command
    code, seen = at_terminal(controller, "logs", "--rank", "1", "--err")
    assert (
        code == 0
        and b"cannot log in with (not shown)" in seen
        and not any(form in seen for form in forms(secret))
    ), seen
    _variable_file(trial, trial.rival("fresh"), secret)


def _judge_files(trial: Trial, phase: str, secret: str, done: Done, *, logs: bool) -> None:
    """Search all that was said and all files. ``logs``: also what ranks themselves wrote, whose
    bytes are kept as they are.
    """
    said = (done.out + done.err).encode()
    assert not any(form in said for form in forms(secret)), f"{phase}: said in {done}"
    folders = [trial.scratch, *(node.home for node in trial.lab.nodes)]
    folders += [node.folder for node in trial.lab.nodes]
    hits = found_in(
        folders,
        secret,
        but=lambda path: path.name == "secret.yaml" or (not logs and "logs" in path.parts),
    )
    assert not hits, f"{phase}: the secret is in {hits}"


def _variable_file(trial: Trial, controller: Controller, secret: str) -> None:
    """While a run lasts the secret is in one file of each node, which only its user can read;
    afterwards in none.
    """
    process = running(controller, "--hosts", with_secret(controller, secret))
    for node in trial.lab.nodes:
        hits = found_in([node.home], secret, but=lambda path: "logs" in path.parts)
        assert [Path(hit).name for hit in hits] == ["env.sh"], hits
        assert stat.S_IMODE(Path(hits[0]).stat().st_mode) == 0o600, hits
    os.kill(process.pid, signal.SIGINT)
    done = controller.end(process, 60)
    assert done.code == 130, done
    _judge_files(trial, "a whole run", secret, done, logs=False)


# What a rank prints, with its whole environment in every form: into both of its logs, and where the
# log grammar reads.
TELLS = (
    (Path(secret_forms.__file__).read_text().replace("from __future__ import annotations", ""))
    + """
SECRET = os.environ["API_TOKEN"]
WHOLE = [repr(os.environ), json.dumps(dict(os.environ)), "x" * 300 + SECRET + "y" * 300]
PRINTED = "\\n".join([*all_forms(SECRET), *WHOLE])
DEVICE = SECRET
DONE.update(devices={SECRET: WORLD}, output_dtype=SECRET, framework_version=SECRET, remarks=["made with " + SECRET])
DONE.update(cuda=json.dumps([SECRET]))
def start():
    for stream in (sys.stdout, sys.stderr):
        stream.write(PRINTED + "\\n")
"""
)
FAILS = (
    TELLS
    + """
def step(number):
    if number == 2 and RANK == 1:
        raise ValueError(SECRET + PRINTED)
"""
)
FORMATS = ("json", "csv", "junit", "markdown", "mllog", "prometheus")


@row("X4", "ranks that print their environment in every form, and fail or train", limit_s=120)
def every_form(trial: Trial) -> None:
    controller, secret = trial.controller, a_secret(trial)
    hosts = with_secret(controller, secret)
    said = []
    for name, code, status in (("tells", TELLS, 0), ("fails", FAILS, 1)):
        done = controller.orch(
            *workload(controller, code, name=name), "--nodes", "2", "--hosts", hosts
        )
        assert done.code == status, done
        said.append(done)
        outputs = [("summarize", "--format", name) for name in FORMATS]
        outputs += [
            ("summarize",),
            ("summarize", "--open"),
            ("history",),
            ("history", "--json"),
            ("status", "--json", "--hosts", hosts),
        ]
        outputs += [
            ("logs", "--rank", str(rank), *err) for rank in (0, 1) for err in ((), ("--err",))
        ]
        said += [controller.orch(*words) for words in outputs]
        assert all(
            "(not shown)" in done.out and "Traceback" not in done.err for done in said[-2:]
        ), said[-2:]
        raw = controller.orch("logs", "--rank", "1", "--err", "--raw")
        assert (
            secret in raw.out
            and raw.out
            == (controller.runs[-1] / "logs" / trial.nodes[1] / "rank-1.err").read_text()
        )
    lines = [
        line
        for done in said
        for line in (done.out + done.err).splitlines()
        if any(part in line for part in parts(secret))
    ]
    assert not lines, lines[:3]
    # Without the inventory the same is hidden.
    Path(hosts).unlink()
    for words in (("summarize", "--json"), ("logs", "--rank", "1", "--err")):
        done = controller.orch(*words)
        assert not any(part in done.out + done.err for part in parts(secret)), done
    for folder in (
        trial.scratch,
        *(node.home for node in trial.lab.nodes),
        *(node.folder for node in trial.lab.nodes),
    ):
        for path in folder.rglob("*"):
            if path.is_file() and not path.is_symlink() and "logs" not in path.parts:
                text = path.read_bytes().decode("utf-8", "replace")
                assert not (left := {part for part in parts(secret) if part in text}), (
                    f"{path}: {left}"
                )
    assert list(controller.bench.rglob("report.html")) and list(
        controller.project.rglob("history.json")
    )


@row("X3", "umask 0 and parents open to all; forwarding and terminals", limit_s=120)
def modes_and_forwarding(trial: Trial) -> None:
    controller, node = trial.controller, trial.random.choice(trial.nodes)
    home = trial.lab.node(node).home
    shutil.rmtree(home / ".orch-node", ignore_errors=True)
    before = home.stat().st_mode
    controller.project.chmod(0o777)
    home.chmod(0o777)
    controller.program = ("sh", "-c", 'umask 0; exec "$@"', "sh", *ORCH)
    seen: dict[Path, int] = {}
    try:
        with server(trial.lab, node, "PermitUserEnvironment yes") as other:
            settings = {
                "port": other.port,
                "host_keys": "accept-new",
                "known_hosts": str(controller.project / "known"),
            }
            hosts = inventory(
                controller, {node: {"address": trial.lab.node(node).address}}, ssh=settings
            )
            process = controller.start(
                "bench", *LONG, "--nodes", "1", "--steps", "20", "--hosts", hosts
            )
            while process.poll() is None:
                _look(
                    seen,
                    home / ".orch-node",
                    controller.project / "runs",
                    controller.project / ".orch",
                )
            done = controller.end(process, 60)
            assert done.code == 0, done
            assert controller.orch("deploy", "-f", "simulated", "--hosts", hosts).code == 0
            assert controller.orch("summarize").code == 0
            _look(
                seen, home / ".orch-node", controller.project / "runs", controller.project / ".orch"
            )
            log = other.log
    finally:
        home.chmod(before)
    assert len(seen) > 20 and any(path.name == "env.sh" for path in seen), sorted(seen)
    open_ones = [f"{path} {mode:o}" for path, mode in seen.items() if mode & 0o077]
    assert not open_ones, f"open to others: {open_ones}"
    asked = [line for line in log.splitlines() if any(word in line for word in FORWARDING)]
    assert "session" in log and not asked, asked


FORWARDING = (
    "pty-req",
    "auth-agent-req",
    "x11-req",
    "tcpip-forward",
    "direct-tcpip",
    "streamlocal",
    "Allocated",
    "req env",
)


def _look(seen: dict[Path, int], *folders: Path) -> None:
    """Note the mode of everything that is there now; the most open one that was seen counts."""
    for folder in folders:
        for top, below, files in os.walk(folder):
            for path in (Path(top), *(Path(top) / name for name in (*below, *files))):
                try:
                    mode = path.lstat().st_mode
                except FileNotFoundError:
                    continue
                if not stat.S_ISLNK(mode):
                    seen[path] = seen.get(path, 0) | stat.S_IMODE(mode)
