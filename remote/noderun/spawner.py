"""The spawner: a process that starts supervisors where what a connection starts would end with the
connection.

Slurm ends every process that a step has started when the step ends, also those that left their
parents and their session. A relay of the controller is a step, so a supervisor that it forked would
not outlive it. One further step, on all nodes of the job, is the spawners': it runs as long as the
controller that started it, and after that as long as any of its supervisors.
"""

import contextlib
import json
import os
import select
import signal
import socket
import time

from noderun.channel import reply
from noderun.files import Refused
from noderun.lock import abstract_name, node_marks
from noderun.peers import is_own, refuse_others
from noderun.prctl import name_process
from noderun.supervisor import become_supervisor, start_supervisor

SPAWN_S = 0.1
YIELD_S = 10.0


def spawner_address(job):
    """Return the address at which the spawner of a job listens on this node."""
    return abstract_name("spawner", [os.getuid(), job] + node_marks())


def op_spawn(request):
    """Start supervisors for the runners of a job, until the controller is gone and the last
    supervisor has ended.

    The controller is gone when standard input ends, or brings nothing for the time of the lease:
    the network may be down. A spawner of the same job that an earlier controller started gives its
    address to this one, and keeps its supervisors.
    """
    name_process(b"orch-spawner")
    address = spawner_address(request["job"])
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    take_address(listener, address)
    reply(event="spawner", pid=os.getpid())
    children, has_controller, heard = set(), True, time.monotonic()

    def hand_on(number, _):
        """Tell the supervisors that the job ends: of a step's processes Slurm signals only the
        first, until SIGKILL.
        """
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, number)

    signal.signal(signal.SIGTERM, hand_on)
    while has_controller or children:
        sources = ([listener] if listener else []) + ([0] if has_controller else [])
        ready = select.select(sources, [], [], SPAWN_S)[0]
        if 0 in ready:
            has_controller, heard = bool(os.read(0, 4096)), time.monotonic()
        elif time.monotonic() - heard > request["lease_s"]:
            has_controller = False
        if listener and listener in ready:
            listener = answer(listener, children)
        reap(children)


def take_address(listener, address):
    """Bind and listen; whoever has the address now is asked to give it up."""
    deadline, said = time.monotonic() + YIELD_S, ""
    while True:
        try:
            listener.bind(address)
            listener.listen(64)
            return
        except OSError as error:
            if time.monotonic() > deadline:
                words = "another spawner does not give up its address: %s"
                raise Refused("node_busy", words % (said or error.strerror))
        try:
            ask_spawner(address, {"do": "yield"})
        except OSError as error:
            said = error.strerror
        time.sleep(0.01)


def answer(listener, children):
    """Carry out one order: start a supervisor, or give up the address. Return the listening socket,
    None without one.
    """
    connection, _ = listener.accept()
    with connection:
        connection.settimeout(2.0)
        try:
            if not is_own(connection):
                return listener
            order = json.loads(connection.recv(65536).decode())
            if order["do"] == "yield":
                listener.close()
                connection.sendall(b"{}\n")
                return None
            pid = os.fork()
            if pid == 0:
                listener.close()
                connection.close()
                become_supervisor(order["directory"])
            children.add(pid)
            connection.sendall(b"{}\n")
        except (OSError, ValueError, KeyError) as error:
            with contextlib.suppress(OSError):
                connection.sendall(json.dumps({"error": str(error)}).encode() + b"\n")
    return listener


def reap(children):
    """Collect supervisors that have ended."""
    for pid in list(children):
        with contextlib.suppress(ChildProcessError):
            if os.waitpid(pid, os.WNOHANG)[0] == pid:
                children.discard(pid)


def ask_spawner(address, order):
    """Send one order to a spawner and return its answer. Raises OSError if none listens."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(5.0)
        client.connect(address)
        refuse_others(client)
        client.sendall(json.dumps(order).encode())
        return json.loads(client.recv(65536).decode() or "{}")


def start_by(job, directory, wait_s):
    """Start the supervisor of a run directory: by the spawner of a job, which may be just starting
    itself, or without a job as a process of its own."""
    if not job:
        start_supervisor(directory)
        return
    deadline = (
        time.monotonic() + wait_s / 2.0
    )  # so that the reason is known before the controller stops waiting
    while True:
        try:
            answered = ask_spawner(spawner_address(job), {"do": "start", "directory": directory})
            if "error" in answered:
                raise Refused(
                    "node_unfit",
                    "the spawner cannot start the supervisor of the run: %s" % answered["error"],
                )
            return
        except OSError as error:
            if time.monotonic() > deadline:
                words = "no spawner of Slurm's job %s answers on this node to user %d: %s"
                raise Refused("node_unfit", words % (job, os.getuid(), error.strerror or error))
        time.sleep(0.02)
