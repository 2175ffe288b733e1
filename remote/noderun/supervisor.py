"""The supervisor of a run, detached from ssh: its connections to the controller, and how a process
becomes one.
"""

import _thread
import base64
import contextlib
import json
import os
import resource
import select
import signal
import socket
import sys
import time

from noderun.exit_watch import ExitWatch
from noderun.file_wait import name_mount
from noderun.files import TAIL_BYTES, Refused, read_slice, remove_unless_read_only, unwritten
from noderun.groups import remove_group
from noderun.lock import OWNER_RECORD, hold_node, this_machine
from noderun.logs import in_order, log_files
from noderun.peers import SUPERVISOR, is_own
from noderun.prctl import adopt_orphans, name_process
from noderun.processes import boot_id, descendants, ending, in_step, send_signal
from noderun.records import write_whole
from noderun.run import RESERVE_BYTES, STUCK_S, Run
from noderun.runs import address_of, sweep
from noderun.stall import matching

POLL_S = 0.05
LONG_POLL_S = 0.25
CLOCKS_APART_S = 5.0
"""A node's clock may be behind Slurm's controller by this much."""
SETTLE_S = 2.0
"""After the start, and after a rank was first seen: the ends of ranks are then known only by
looking for them.
"""
STAND_IN_S = 0.25


def is_over_time():
    """Return whether the job of this process has reached the end that Slurm planned for it, as its
    step knows it.
    """
    end = os.environ.get("SLURM_JOB_END_TIME", "")
    return end.isdigit() and time.time() > int(end) - CLOCKS_APART_S


class Supervisor:
    """Takes orders for one run from everyone connected to its socket, and reports the run's events
    to them.
    """

    def __init__(self, directory):
        self.run = Run(directory, self.tell)
        self.connections = {}
        self.ends = ExitWatch()
        self.owner = b""
        self.is_job_ending = False
        self.name_socket = socket.socket(
            socket.AF_UNIX, socket.SOCK_STREAM
        )  # bound to the node's name once this run holds it
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(address_of(directory))
        self.sign_of_life = socket.socket(
            socket.AF_UNIX, socket.SOCK_DGRAM
        )  # for `supervisor_lives`
        self.sign_of_life.bind(address_of(directory))
        self.listener.listen(4)

    def serve(self):
        """Work until there is nothing left to own and nobody left to report to."""
        run = self.run
        while run.state != "gone":
            listeners = [self.listener, self.name_socket] if self.owner else [self.listener]
            pause_s = self.pause_s()
            handles = list(self.ends.handles.values())
            ready = select.select(listeners + list(self.connections) + handles, [], [], pause_s)[0]
            run.files.looked = time.monotonic()
            self.ends.take(ready)
            # A frozen node stops in this wait: judge lateness right after it, before anything that
            # queued up meanwhile.
            run.judge_lateness()
            if self.is_job_ending:
                run.stop(
                    "cancelled by Slurm, which ends the job"
                    + (" at its time limit" if is_over_time() else "")
                )
            self.take(ready)
            run.reap()
            if run.state in ("running", "stopping", "closing"):
                run.watch()
                if run.state == "ended":
                    self.sign("ended")
                    if not self.connections:
                        run.state = "gone"
        self.listener.close()

    def take(self, ready):
        """Take what has come at sockets that were ready."""
        for one in ready:
            is_open = one in (self.listener, self.name_socket) or one in self.connections
            # While an order before it waited for a file, the other thread may have taken it.
            if not is_open or not select.select([one], [], [], 0)[0]:
                continue
            if one is self.listener:
                self.accept()
            elif one is self.name_socket:
                self.introduce()
            else:
                self.receive(one)

    def stand_in(self):
        """In a thread: act for the other one while that waits for the file system."""
        files = self.run.files
        while True:
            time.sleep(STAND_IN_S)
            if not files.waited_s():
                continue
            with files.right:
                if files.waited_s():
                    ready = select.select([self.listener] + list(self.connections), [], [], 0)[0]
                    self.run.judge_lateness()
                    self.take(ready)
                    self.run.reap()
                    self.run.do_without_files()

    def pause_s(self):
        """Return how long to wait for an order or for the end of a process before looking at the
        run again.

        A look costs a node 0.1 ms of a processor, so a run whose processes are all followed is
        looked at rarely.
        """
        run = self.run
        if run.state in ("new", "ended"):
            return LONG_POLL_S
        if run.state not in ("armed", "running") or run.container or run.examination.pid:
            return 0 if run.state == "closing" else POLL_S
        is_followed = self.ends.follow({run.main: None, **run.ranks.wrappers()})
        if run.state == "armed":
            return LONG_POLL_S if is_followed else POLL_S
        is_settled = time.monotonic() - max(run.started or 0.0, self.ends.since) > SETTLE_S
        return LONG_POLL_S if is_followed and is_settled else POLL_S

    def hear_slurm(self, *_):
        """Note SIGTERM, which the spawner hands on: the job is cancelled, preempted or at its time
        limit.
        """
        self.is_job_ending = True

    # -- connections

    def accept(self):
        """Accept one more connection: the controller's, a re-attached one, or a request to stop the
        run.
        """
        connection, _ = self.listener.accept()
        if not is_own(connection):
            connection.close()
            return
        connection.settimeout(5)
        self.connections[connection] = b""
        run = self.run
        self.answer(
            connection,
            "hello",
            state=run.state,
            started=run.started,
            record=run.record,
            boot_id=boot_id(),
        )

    def introduce(self):
        """Send the owner's record to a process that may belong to another work directory or user,
        and close.
        """
        client, _ = self.name_socket.accept()
        with client, contextlib.suppress(OSError):
            client.setblocking(False)
            client.send(self.owner)

    def tell(self, event, **fields):
        """Send one event to all connections."""
        for connection in list(self.connections):
            self.answer(connection, event, **fields)

    def answer(self, connection, event, **fields):
        """Send one event to one connection; drop a connection that does not take it within 5 s. The
        run continues.
        """
        try:
            connection.sendall(json.dumps(dict(fields, event=event)).encode() + b"\n")
        except OSError:
            self.hang_up(connection)

    def hang_up(self, connection):
        """Forget a connection. If it was the last one and nothing runs, exit: without a start
        signal nothing is started.
        """
        connection.close()
        self.connections.pop(connection, None)
        if not self.connections and self.run.state in ("new", "armed", "ended"):
            self.run.state = "gone"

    def receive(self, connection):
        """Read from a connection and carry out each complete line."""
        try:
            data = connection.recv(65536)
        except OSError:
            data = b""
        if not data:
            self.hang_up(connection)
            return
        *lines, self.connections[connection] = (self.connections[connection] + data).split(b"\n")
        for line in lines:
            try:
                order = json.loads(line.decode())
                method = ORDERS[order["do"]]
            except (ValueError, KeyError, TypeError):
                self.hang_up(connection)
                return
            try:
                self.obey(method, order, connection)
            except Refused as refusal:
                self.answer(connection, "error", **refusal.fields)
                self.hang_up(connection)
            if connection not in self.connections:
                return

    def obey(self, method, order, connection):
        """Carry out an order. Before the start an error refuses the run; later no order touches
        files.
        """
        directory = self.run.directory
        try:
            method(self, order, connection)
        except OSError as error:
            # An error of writing to an open file has no file name, and other names are relative to
            # the run's directory.
            path = os.path.join(directory, error.filename) if error.filename else directory
            raise unwritten(
                error, path, directory, RESERVE_BYTES + len(order.get("variables", "").encode())
            )

    # -- orders

    def arm(self, order, connection):
        """Take the node, check everything, report armed."""
        self.run.renewed = time.monotonic()
        self.lock(order["owner"])
        self.run.arm(order)
        self.run.sampler.prepare(order)
        self.tell("armed", pid=os.getpid(), boot_id=boot_id())

    def lock(self, owner):
        """Hold the node's name for as long as this process lives; all work directories and all
        users share it. Refuses with the record of the run that has it."""
        record = owner_record(owner, "armed")
        write_whole(OWNER_RECORD, [record])
        hold_node(self.name_socket, owner["run_id"])
        self.name_socket.listen(64)
        self.owner = record

    def sign(self, state):
        """Change the state in the owner's record, whose length stays the same: this works on a full
        disk as well.
        """
        self.owner = owner_record(self.run.order["owner"], state)
        # The record only informs others.
        with self.run.files, contextlib.suppress(OSError), open(OWNER_RECORD, "r+b") as file:
            file.write(self.owner)

    def beat(self, order, connection):
        """Renew the lease and answer with the clock, to show liveness and to measure the offset
        between clocks.
        """
        self.run.renewed = time.monotonic()
        fields = {"n": order["n"], "mono": time.monotonic(), "state": self.run.state}
        tail = order.get("tail")
        if self.run.files.is_on:
            fields["waits_s"], fields["waits_for"] = self.run.files.waited_s(), name_mount()
        elif tail and self.run.state in ("running", "stopping"):
            with self.run.files:
                name = tail["file"]
                if any(sign in name for sign in "*?["):
                    sizes = matching(log_files("."), [name])
                    name = next((log for log in in_order(sizes) if sizes[log]), name)
                data = read_slice(os.path.join("logs", name), tail["offset"], TAIL_BYTES)
            # The controller asks for this file from now on: the offset is one in it.
            fields.update(data=base64.b64encode(data).decode(), offset=tail["offset"], file=name)
        self.answer(connection, "beat", **fields)

    def go(self, order, connection):
        """Start the run."""
        self.run.renewed = time.monotonic()
        self.run.go(order.get("at"))
        _thread.start_new_thread(self.stand_in, ())
        self.sign("running")
        self.run.sampler.begin()

    def stop(self, order, connection):
        """Stop the run for the given reason."""
        self.run.renewed = time.monotonic()
        self.run.stop(order["reason"])

    def examine(self, order, connection):
        """Look at what every rank does."""
        self.run.renewed = time.monotonic()
        if self.run.state == "running":
            self.run.examine()

    def finish(self, order, connection):
        """End processes that only wait here, because the first node has finished successfully."""
        self.run.renewed = time.monotonic()
        self.run.finish()

    def bye(self, order, connection):
        """The controller needs nothing more of a run that is over, or that never began: exit."""
        if self.run.state in ("new", "armed", "ended"):
            self.run.state = "gone"


def owner_record(owner, state):
    """Return the record of a node's owner, with the state of its run padded to a fixed length."""
    values = dict(
        owner, supervisor=os.getpid(), machine=this_machine(), state=state.ljust(len("running"))
    )
    return json.dumps(values).encode() + b"\n"


ORDERS = {
    "arm": Supervisor.arm,
    "beat": Supervisor.beat,
    "go": Supervisor.go,
    "stop": Supervisor.stop,
    "examine": Supervisor.examine,
    "finish": Supervisor.finish,
    "bye": Supervisor.bye,
}


def supervise(directory):
    """Become the supervisor of a run directory. The caller has detached this process from ssh."""
    os.chdir(directory)
    os.umask(0o077)
    name_process(SUPERVISOR.encode())
    adopt_orphans()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (hard if hard != resource.RLIM_INFINITY else soft, hard)
    )
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    sweep(os.path.dirname(os.path.dirname(directory)))
    supervisor = Supervisor(directory)
    if in_step():
        signal.signal(signal.SIGTERM, supervisor.hear_slurm)
    try:
        supervisor.serve()
    except BaseException as error:
        # Whatever went wrong here, a full disk or a bug in this program: no process may keep
        # running without an owner.
        supervisor.run.sampler.end()
        deadline = time.monotonic() + STUCK_S
        while descendants(os.getpid()) and time.monotonic() < deadline:
            send_signal(supervisor.run.find_processes(), signal.SIGKILL)
            time.sleep(POLL_S)
            supervisor.run.reap()
        if supervisor.run.container:
            supervisor.run.container.remove()
        why = str(error)
        # What is inside a folder that is removed goes before it.
        deadline = time.monotonic() + STUCK_S
        removed = isinstance(error, FileNotFoundError)
        while removed and os.path.isdir(directory) and time.monotonic() < deadline:
            time.sleep(POLL_S)
        if removed and not os.path.isdir(directory):
            why = "expected the run's folder %s, found none: was it, or its work directory, removed or renamed?"
            why %= directory
        supervisor.tell("stopping", reason="supervisor_failed: %s" % why, mono=time.monotonic())
        raise
    finally:
        supervisor.run.dismiss()
        remove_group(supervisor.run.group)
        remove_unless_read_only("env.sh")


def start_supervisor(directory):
    """Fork twice and become a supervisor that keeps nothing of this ssh session: no terminal, no
    stream, no session.

    No new interpreter is started: this program is already loaded, and a start costs more than all
    else a supervisor does.
    """
    pid = os.fork()
    if pid:
        code = ending(os.waitpid(pid, 0)[1])[0]
        if code:
            raise Refused(
                "node_unfit", "cannot start the supervisor of the run: %s" % os.strerror(code)
            )
        return
    os.setsid()
    try:
        if os.fork():
            os._exit(0)
    except OSError as error:
        os._exit(error.errno)
    become_supervisor(directory)


def become_supervisor(directory):
    """Turn this process, a fork, into the supervisor of a run directory, with no stream of the
    process that it came from.
    """
    code = 1
    try:
        null = os.open(os.devnull, os.O_RDWR)
        log = os.open(
            os.path.join(directory, "supervisor.err"),
            os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW,
            0o600,
        )
        for target, source in ((0, null), (1, null), (2, log)):
            os.dup2(source, target)
        os.closerange(3, 64)
        supervise(directory)
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)
