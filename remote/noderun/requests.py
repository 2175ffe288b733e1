"""Operations on runs: the connection to a supervisor; stopping, removing and following runs."""

import contextlib
import json
import os
import select
import signal
import sys
import time

from noderun.channel import reply, write_bytes
from noderun.files import (
    CHUNK,
    TAIL_BYTES,
    Refused,
    inside,
    open_regular,
    own_directory,
    read_slice,
    root_directory,
    run_directory,
)
from noderun.lock import holder
from noderun.logs import in_order, log_files
from noderun.processes import bearers, boot_id, send_signal
from noderun.runs import (
    belonging,
    connect,
    find_unproved_containers,
    living_runs,
    remove_containers,
    remove_run,
    supervisor_lives,
    sweep,
)
from noderun.sampler import SAMPLES
from noderun.unverified import find_unverified_runs

MOST_LISTED = 256
"""Logs of a run that are listed while it lasts."""


def last_words(directory):
    """Return the last line that the supervisor of a run has left, as the end of a sentence; empty
    without any.
    """
    said = read_slice(os.path.join(directory, "supervisor.err"), 0, CHUNK).decode(
        "utf-8", "replace"
    )
    return "".join("; it ended with " + line for line in said.strip().splitlines()[-1:])


def op_line(request):
    """Start a supervisor for a run directory if requested, then relay lines between it and the
    controller until one side ends.

    If the request names a job of Slurm, the supervisor is started by the spawner of that job. After
    the controller's "bye" more requests may follow; otherwise they could be mistaken for orders
    still on their way.
    """
    directory = run_directory(request)
    if request["start"]:
        from noderun.spawner import start_by

        start_by(request.get("job"), directory, request.get("wait_s", 10))
    os.listdir(directory)  # raises the system's error if there is no such directory
    deadline = time.monotonic() + request.get("wait_s", 10)
    while True:
        try:
            connection = connect(directory)
            break
        except OSError as error:
            if time.monotonic() > deadline or not request["start"]:
                raise Refused(
                    "node_lost",
                    "no supervisor answers in %s: %s%s"
                    % (directory, error.strerror or error, last_words(directory)),
                    boot_id=boot_id(),
                )
            time.sleep(0.005)
    heard = bye = False
    # Output that the controller does not read must not hold up its orders, hence one select for
    # both directions.
    while True:
        ready = select.select([0, connection], [], [])[0]
        if 0 in ready:
            data = os.read(0, 65536)
            if not data:
                return
            bye = data.endswith(b'{"do": "bye"}\n')
            with contextlib.suppress(OSError):  # a supervisor that has exited is noticed below
                connection.sendall(data)
        if connection in ready:
            try:
                data = connection.recv(65536)
            except OSError:  # it exited before it accepted this connection
                data = b""
            if not data:
                if bye:
                    reply(event="closed")
                    return
                if heard:
                    request["stay"] = 0
                    return
                raise Refused(
                    "node_lost",
                    "the supervisor in %s has just exited" % directory,
                    boot_id=boot_id(),
                )
            heard = True
            view = memoryview(data)
            while view:
                view = view[os.write(1, view) :]


def op_stop(request):
    """End runs through their supervisors, then signal all other processes that belong to them;
    report any that are left.
    """
    own = own_directory(request)
    grace_s = request["grace_s"]
    run_id = request.get("run")
    directories = (
        [run_directory(request)] if run_id else living_runs(root_directory(request["root"]))
    )
    stopped = [
        os.path.basename(path)
        for path in directories
        if ask_supervisor(path, request["reason"], grace_s)
    ]
    for number, wait_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 5.0)):
        owned = belonging(own, run_id)
        send_signal({pid: start for pid, (start, _) in owned.items()}, number)
        stopped += [run for _, run in owned.values() if run not in stopped]
        deadline = time.monotonic() + wait_s
        while belonging(own, run_id) and time.monotonic() < deadline:
            time.sleep(0.05)
    deadline = time.monotonic() + 5.0
    while any(map(supervisor_lives, directories)) and time.monotonic() < deadline:
        time.sleep(0.02)
    remove_containers(own, run_id)
    sweep(own)
    alive = [os.path.basename(path) for path in directories if supervisor_lives(path)]
    reply(stopped=stopped, **dict(remains(own, run_id), **({"alive": alive} if alive else {})))


def remains(own, run_id):
    """Return the leftovers of one run or of all: its processes, and processes that may belong to
    it.
    """
    left = [[pid, run] for pid, (_, run) in belonging(own, run_id).items()]
    return dict({"left": left}, **doubts(own, run_id))


def doubts(own, run_id=None):
    """Return the runs that may not have ended: possible leftovers of their processes and
    containers.
    """
    both = {
        "unverified": find_unverified_runs(own, run_id),
        "containers": find_unproved_containers(own, run_id),
    }
    return {name: value for name, value in both.items() if value}


def ask_supervisor(directory, reason, grace_s):
    """Order a run's supervisor to stop and wait for the end. False if none answers, or if the run
    had already ended.
    """
    data = b""
    try:
        connection = connect(directory, grace_s + 10)
    except OSError:
        return False
    try:
        connection.sendall(json.dumps({"do": "stop", "reason": reason}).encode() + b"\n")
        # The supervisor of a run that is over sends only a hello with the state "ended".
        while b'"event": "ended"' not in data and b'"state": "ended"' not in data:
            block = connection.recv(65536)
            if not block:
                break
            data += block
        connection.sendall(b'{"do": "bye"}\n')
    except OSError:
        # The supervisor had already exited: its own controller said bye first. Processes left
        # behind are found by the marker.
        pass
    finally:
        connection.close()
    return b'"state": "ended"' not in data


def op_drop(request):
    """Remove a run's directory if its supervisor has exited.

    The run never started, or it ended and the request asks for it.
    """
    directory = run_directory(request)
    deadline = time.monotonic() + 3.0
    while supervisor_lives(directory) and time.monotonic() < deadline:
        time.sleep(0.02)
    ended = os.path.exists(os.path.join(directory, "exit.json"))
    gone = os.path.isdir(directory) and not supervisor_lives(directory)
    gone = gone and not belonging(own_directory(request), request["run"])
    gone = gone and not find_unproved_containers(own_directory(request), request["run"])
    gone = gone and (request["finished"] or not ended)
    if gone:
        remove_run(root_directory(request["root"]), directory)
    reply(dropped=gone or not os.path.isdir(directory))


def op_left(request):
    """Report processes that still belong to a run, and whether its supervisor is alive."""
    own = own_directory(request)
    sweep(own)
    reply(supervisor=supervisor_lives(run_directory(request)), **remains(own, request["run"]))


def op_status(request):
    """Report the live runs of this node, the run that holds it, and runs whose end cannot be
    verified.
    """
    own = own_directory(request)
    sweep(own)
    runs = {}
    for _, run in bearers().values():
        runs[run] = runs.get(run, 0) + 1
    reply(runs=runs, owner=holder(), **doubts(own))


def op_examine(request):
    """Report what every rank of a run does on this node; nothing is stopped for it."""
    from noderun.examine import examine

    owned = sorted(belonging(own_directory(request), request["run"]))
    reply(report=examine(run_directory(request), owned))


def op_tail(request):
    """Send a log file from an offset and follow it while the run lives, until the controller closes
    its side.
    """
    directory = run_directory(request)
    path = os.path.join(directory, "logs", inside("", request["file"]))
    offset = request["offset"]
    while True:
        # Checked before reading, so that data written in between is read in the next round.
        lives = supervisor_lives(directory)
        data = read_slice(path, offset, CHUNK)
        if data:
            reply(offset=offset, bytes=len(data))
            write_bytes(data)
            offset += len(data)
            continue
        if not request["follow"] or not lives:
            break
        if select.select([0], [], [], 0.2)[0] and not os.read(0, 4096):
            break
    reply(done=True, offset=offset)


def op_recent(request):
    """Send the end of a log of a run and of its samples, as they are now, with the sizes of its
    logs.
    """
    directory = run_directory(request)
    if not os.path.isdir(os.path.join(directory, "logs")):
        reply(absent=True)
        return
    sizes = log_files(directory)
    names = in_order(sizes)[:MOST_LISTED]
    log = end_of(os.path.join(directory, "logs", inside("", request["file"])), request["most"])
    path = os.path.join(directory, SAMPLES)
    columns = read_slice(path, 0, CHUNK).partition(b"\n")[0] + b"\n"
    samples = columns + end_of(path, request["most_samples"]).partition(b"\n")[2]
    reply(
        lives=supervisor_lives(directory),
        sizes={name: sizes[name] for name in names},
        log=len(log),
        samples=len(samples),
    )
    write_bytes(log + samples)


def end_of(path, most):
    """Return up to ``most`` bytes at the end of a regular file; empty if the file is missing."""
    with open_regular(path) as handle:
        return (
            b""
            if handle is None
            else os.pread(handle, most, max(0, os.fstat(handle).st_size - most))
        )


def op_program(request):
    """Run a staged program under this interpreter to its end; report its exit code and the last
    output.
    """
    import subprocess

    root = root_directory(request["root"])
    argv = [sys.executable, "-I", "-S", inside(root, request["program"])] + request["argv"]
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=request["limit_s"],
            cwd=root,
        )
    except subprocess.TimeoutExpired:
        raise Refused(
            "run_timeout", "%s: not finished within %g s" % (request["program"], request["limit_s"])
        )
    texts = [
        stream[-TAIL_BYTES:].decode("utf-8", "replace") for stream in (done.stdout, done.stderr)
    ]
    reply(code=done.returncode, out=texts[0], err=texts[1])


OPERATIONS_ON_RUNS = {
    "drop": op_drop,
    "examine": op_examine,
    "left": op_left,
    "line": op_line,
    "program": op_program,
    "recent": op_recent,
    "status": op_status,
    "stop": op_stop,
    "tail": op_tail,
}
