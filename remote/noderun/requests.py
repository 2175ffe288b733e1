"""Operations on runs: the connection to a supervisor; stopping, removing and following runs."""

import contextlib
import json
import os
import select
import signal
import socket
import sys
import time

from noderun.channel import reply
from noderun.files import CHUNK, TAIL_BYTES, Refused, inside, read_slice, root_directory
from noderun.groups import group_of, remove_group
from noderun.lock import holder_of
from noderun.processes import bearers, boot_id, send_signal
from noderun.runs import belonging, runs_of, supervisor_lives, sweep
from noderun.supervisor import start_supervisor


def op_line(request):
    """Start a supervisor for a run directory if requested, then relay lines between it and the controller until one side ends.

    After the controller's "bye" more requests may follow; otherwise they could be mistaken for orders still on their way.
    """
    directory = inside(root_directory(request["root"]), "runs/" + request["run"])
    if request["start"]:
        start_supervisor(directory)
    os.chdir(directory)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    deadline = time.monotonic() + request.get("wait_s", 10)
    while True:
        try:
            connection.connect("supervisor.sock")
            break
        except OSError as error:
            if time.monotonic() > deadline or not request["start"]:
                raise Refused("node_lost", "no supervisor answers in %s: %s" % (directory, error.strerror), boot_id=boot_id())
            time.sleep(0.005)
    heard = bye = False
    # Output that the controller does not read must not hold up its orders, hence one select for both directions.
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
                    request["stay"] = False
                    return
                raise Refused("node_lost", "the supervisor in %s has just exited" % directory, boot_id=boot_id())
            heard = True
            view = memoryview(data)
            while view:
                view = view[os.write(1, view) :]


def op_stop(request):
    """End runs through their supervisors, then signal all other processes that belong to them; report any that are left."""
    root = root_directory(request["root"])
    grace_s = request["grace_s"]
    run_id = request.get("run")
    stopped = [
        name for name, directory in runs_of(root, run_id).items() if ask_supervisor(directory, request["reason"], grace_s)
    ]
    for number, wait_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 5.0)):
        owned = belonging(root, run_id)
        send_signal({pid: start for pid, (start, _) in owned.items()}, number)
        stopped += [run for _, run in owned.values() if run not in stopped]
        deadline = time.monotonic() + wait_s
        while belonging(root, run_id) and time.monotonic() < deadline:
            time.sleep(0.05)
    sweep(root)
    reply(stopped=stopped, left=[[pid, run] for pid, (_, run) in belonging(root, run_id).items()])


def ask_supervisor(directory, reason, grace_s):
    """Order a run's supervisor to stop and wait for the end. False if none answers, or if the run had already ended."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(grace_s + 10)
    data = b""
    try:
        os.chdir(directory)
        connection.connect("supervisor.sock")
    except OSError:
        connection.close()
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
        # The supervisor had already exited: its own controller said bye first. Processes left behind are found by the marker.
        pass
    finally:
        connection.close()
    return b'"state": "ended"' not in data


def op_drop(request):
    """Remove a run's directory if its supervisor has exited: of a run that never started, or on request of one that ended."""
    root = root_directory(request["root"])
    directory = inside(root, "runs/" + request["run"])
    deadline = time.monotonic() + 3.0
    while supervisor_lives(directory) and time.monotonic() < deadline:
        time.sleep(0.02)
    ended = os.path.exists(os.path.join(directory, "exit.json"))
    gone = os.path.isdir(directory) and not supervisor_lives(directory) and not belonging(root, request["run"])
    gone = gone and (request["finished"] or not ended)
    if gone:
        import shutil

        remove_group(group_of(directory))
        shutil.rmtree(directory)
    reply(dropped=gone)


def op_left(request):
    """Report processes that still belong to a run, and whether its supervisor is alive."""
    root = root_directory(request["root"])
    directory = inside(root, "runs/" + request["run"])
    left = [[pid, run] for pid, (_, run) in belonging(root, request["run"]).items()]
    reply(left=left, supervisor=supervisor_lives(directory))


def op_status(request):
    """Report the live runs of this node and the holder of its lock."""
    root = root_directory(request["root"])
    runs = {}
    for _, run in bearers().values():
        runs[run] = runs.get(run, 0) + 1
    reply(runs=runs, owner=holder_of(root))


def op_tail(request):
    """Send a log file from an offset and follow it while the run lives, until the controller closes its side."""
    directory = inside(root_directory(request["root"]), "runs/" + request["run"])
    path = os.path.join(directory, "logs", inside("", request["file"]))
    offset = request["offset"]
    while True:
        # Checked before reading, so that data written in between is read in the next round.
        lives = supervisor_lives(directory)
        data = read_slice(path, offset, CHUNK)
        if data:
            reply(offset=offset, bytes=len(data))
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
            offset += len(data)
            continue
        if not request["follow"] or not lives:
            break
        if select.select([0], [], [], 0.2)[0] and not os.read(0, 4096):
            break
    reply(done=True, offset=offset)


def op_program(request):
    """Run a staged program under this interpreter to its end; report its exit code and the last output."""
    import subprocess

    root = root_directory(request["root"])
    argv = [sys.executable, "-I", "-S", inside(root, request["program"])] + request["argv"]
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=request["limit_s"], cwd=root
        )
    except subprocess.TimeoutExpired:
        raise Refused("run_timeout", "%s: not finished within %g s" % (request["program"], request["limit_s"]))
    texts = [stream[-TAIL_BYTES:].decode("utf-8", "replace") for stream in (done.stdout, done.stderr)]
    reply(code=done.returncode, out=texts[0], err=texts[1])
