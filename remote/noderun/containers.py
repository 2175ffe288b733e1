"""The container that a run's launch script starts in: its processes, their end, and the proof of
it.

Containers of docker and podman are objects. Their processes are no children of the command that
starts them, so ending that command ends nothing. They are known by the container's control group,
whose name holds the container's id and whose list of processes every user may read, and by
ORCH_CONTAINER in their environment where this user may read it. In a container that ran before,
only what bears that mark is of the run; whatever else has begun there since is reported and never
signalled.
"""

import contextlib
import os
import signal
import time

from noderun.files import Refused, read_slice
from noderun.groups import can_be_seen, find_groups, members, seconds_used
from noderun.installed import in_environment
from noderun.processes import descendants, marked_by, name_of, processes, send_signal
from noderun.records import read_record, write_json

CONTAINER = "container.json"
ID = "container.id"
GROUPS = "container.groups"
PROOF = "container.proof"
ASK_S = 8.0
PROOF_S = 60.0
COMING_S = 15.0
FORGOTTEN_S = 600.0


def enter_container(directory):
    """Return the container of a run that is about to start, after a look at what a standing one
    has; None without one.

    Refuses if the engine does not answer, or the standing container does not run.
    """
    container = container_of(directory)
    try:
        if container:
            container.look_before()
    except TimeoutError:
        raise Refused(
            "node_unfit", "%s did not answer within %g s" % (container.known["engine"], ASK_S)
        )
    except OSError as error:
        raise Refused("node_unfit", "%s: %s" % (container.known["engine"], error.strerror))
    return container


def container_of(directory):
    """Return the container of a run's directory; None for a run on the node itself, or in what
    leaves processes to their parents."""
    return Container(directory) if os.path.exists(os.path.join(directory, CONTAINER)) else None


class Container:
    """The container of one run on this node, from the files of the run's directory."""

    def __init__(self, directory):
        self.directory = directory
        self.known = read_record(os.path.join(directory, CONTAINER))
        self.name = self.known["name"]
        self.standing = self.known["standing"]
        self.groups = []
        self.before = {}
        self.counting = None
        self.used_before = 0.0
        self.used_s = 0.0
        self.looked = 0.0
        self.helper = {}
        self.helping_since = None

    def ask(self, words):
        """Return the standard output of the engine. Raises OSError with what it says instead,
        TimeoutError.
        """
        code, out, err = in_environment(self.known["setup"], self.known["program"] + words, ASK_S)
        if code:
            raise OSError(code, (err.strip().splitlines() or ["exit code %d" % code])[-1][:400])
        return out

    # -- its processes

    def look_before(self):
        """Before a run: note what a standing container has. Raises OSError, also if it does not
        run, TimeoutError.
        """
        if self.standing:
            words = self.ask(
                [
                    "inspect",
                    "--type=container",
                    "--format={{.Id}} {{.State.Running}}",
                    self.standing,
                ]
            ).split()
            if words[1:] != ["true"]:
                raise OSError(
                    0, "container %s is not running; start it, or name an image" % self.standing
                )
            groups = find_groups(words[0])
            self.note(groups, all_in(groups))
            self.counting = find_groups(words[0], ["cpuacct"])
            self.used_before = self.count()

    def find(self):
        """Look for its control groups, once a second until they are found, and for what was in them
        before the run.
        """
        if self.groups or time.monotonic() - self.looked < 1.0:
            return
        self.looked = time.monotonic()
        with contextlib.suppress(OSError, ValueError):
            record = read_record(os.path.join(self.directory, GROUPS))
            self.groups, self.before = (
                record["groups"],
                {pid: start for pid, start in record["before"]},
            )
            return
        number = (
            read_slice(os.path.join(self.directory, ID), 0, 128).decode("ascii", "replace").strip()
        )
        if len(number) >= 12:
            self.note(find_groups(number), {})
            self.counting = find_groups(number, ["cpuacct"])

    def is_coming(self):
        """Return True while docker creates the container: its client has made the file for the id,
        and has not written it.

        A client that is ended then leaves an empty file, and a daemon that may still finish the
        container.
        """
        try:
            status = os.stat(os.path.join(self.directory, ID))
        except OSError:
            return False
        return status.st_size == 0 and time.time() - status.st_mtime < FORGOTTEN_S

    def note(self, groups, before):
        """Record its control groups, for those who look when the groups are gone, and what was in
        them before the run.
        """
        if groups:
            self.groups, self.before = groups, before
            with contextlib.suppress(OSError):  # a full disk
                write_json(
                    os.path.join(self.directory, GROUPS),
                    {"groups": groups, "before": sorted(before.items())},
                )

    def measure(self):
        """Look at the processor seconds that it has used: its control groups are gone before the
        run has ended.
        """
        self.find()
        self.used_s = max(self.used_s, self.count() - self.used_before)

    def count(self):
        """Return the processor seconds that its control groups count now; 0 without any."""
        return sum(seconds_used(group) or 0.0 for group in self.counting or ())

    def processes(self):
        """Return {pid: start time} of the run's processes inside, as far as this user can tell
        them.
        """
        self.find()
        inside = {pid: start for pid, (start, _) in marked_by("ORCH_CONTAINER", self.name).items()}
        return inside if self.standing else merge(inside, all_in(self.groups))

    def strangers(self):
        """Return {pid: start time} of what has begun in a standing container since and bears no
        mark that can be read.
        """
        self.find()
        marked = marked_by("ORCH_CONTAINER", self.name)
        now = all_in(self.groups) if self.standing else {}
        return {
            pid: start
            for pid, start in now.items()
            if self.before.get(pid) != start and pid not in marked
        }

    def signal(self, number):
        """Signal its processes inside. What this user may not kill, because it has become another
        one, ends with the removal of the container, without waiting for that."""
        self.looked = 0.0  # its control groups are there now, and not much longer
        inside = self.processes()
        send_signal(inside, number)
        if number == signal.SIGKILL and not self.standing and out_of_reach(inside):
            self.begin(self.remove)

    # -- what takes long, in a child: a supervisor must answer its controller in the meantime

    def begin(self, work):
        """Do some work in a child process, unless one is at work."""
        if self.is_busy():
            return
        pid = os.fork()
        if pid == 0:
            try:
                os.closerange(3, 1024)  # the supervisor's sockets, which stand for its life
                work()
            finally:
                os._exit(0)
        self.helper = {pid: processes().get(pid, (0, "", 0))[2]}

    def is_busy(self):
        """Return True while the child is at work."""
        now = processes() if self.helper else {}
        return any(
            pid in now and now[pid][1] != "Z" and now[pid][2] == start
            for pid, start in self.helper.items()
        )

    def helpers(self):
        """Return the process ids of that child and of what it has started."""
        return [
            pid
            for helper in self.helper
            if self.is_busy()
            for pid in [helper] + list(descendants(helper))
        ]

    # -- its end

    def is_over(self):
        """Begin to remove the container and to prove its end; return True once that is done or has
        taken too long.
        """
        if self.helping_since is None and not self.is_busy():
            self.helping_since = time.monotonic()
            self.begin(self.remove)
        if self.helping_since is None:
            return False
        return not self.is_busy() or time.monotonic() - self.helping_since > PROOF_S

    def remove(self):
        """Remove the container and its contents, look for leftovers, and record them as `read_proof`
        returns them.
        """
        deadline = time.monotonic() + COMING_S
        with contextlib.suppress(OSError, TimeoutError):
            while self.is_coming() and not self.list_containers() and time.monotonic() < deadline:
                time.sleep(0.5)
            if not self.standing and self.list_containers():
                self.ask(["rm", "--force", self.name])
                if self.is_coming():  # it has come, and is gone
                    os.unlink(os.path.join(self.directory, ID))
        self.look()

    def look(self):
        """Look for leftovers, and record them as `read_proof` returns them."""
        write_json(os.path.join(self.directory, PROOF), self.proof())

    def read_proof(self):
        """Return the recorded proof.

        ``by`` are the ways that showed that nothing is left; ``left`` are certain or possible
        leftovers.
        """
        try:
            return read_record(os.path.join(self.directory, PROOF))
        except (OSError, ValueError):
            return {
                "by": [],
                "left": ["%s did not answer within %g s" % (self.known["engine"], PROOF_S)],
            }

    def proof(self):
        """Return a proof that nothing is left now.

        For a container of the run's own, it is the engine's list of containers with its labels, in
        any state, or the control group. For a container that ran before, it is the group alone.
        """
        left = [
            "process %d (%s) still runs" % (pid, name_of(pid)) for pid in sorted(self.processes())
        ]
        by = []
        is_seen = bool(self.groups) and all(map(can_be_seen, self.groups))
        if self.standing:
            strangers = sorted(self.strangers())
            left += [
                "process %d (%s) was started in %s during the run"
                % (pid, name_of(pid), self.standing)
                for pid in strangers
            ]
            left += [] if is_seen else ["the control group of %s cannot be read" % self.standing]
        else:
            try:
                names = self.list_containers()
                left += ["container %s" % name for name in names]
                left += (
                    ["%s may still create container %s" % (self.known["engine"], self.name)]
                    if self.is_coming()
                    else []
                )
                by += [] if names else ["label"]
            except (OSError, TimeoutError) as error:
                said = (
                    "no answer within %g s" % ASK_S
                    if isinstance(error, TimeoutError)
                    else error.strerror
                )
                left += [] if is_seen else ["%s: %s" % (self.known["engine"], said)]
        left += (
            ["processes in its control group that are in another PID namespace"]
            if has_unseen(self.groups)
            else []
        )
        by += ["control group"] if is_seen and not left else []
        return {"by": [] if left else by, "left": left[:20]}

    def list_containers(self):
        """Return the names of the run's containers that the engine knows, in any state. Raises
        OSError, TimeoutError.
        """
        filters = ["--filter=label=%s=%s" % item for item in sorted(self.known["labels"].items())]
        return self.ask(["ps", "--all", "--format={{.Names}}"] + filters).split()


def merge(first, second):
    """Return both of two mappings of processes as one."""
    both = dict(first)
    both.update(second)
    return both


def all_in(groups):
    """Return {pid: start time} of the live processes in several control groups."""
    living = {}
    for group in groups:
        living.update(members(group))
    return living


def has_unseen(groups):
    """Return True if one of some control groups holds a process of a process namespace that is not
    below this one.
    """
    return any(
        b"0" in read_slice(os.path.join(group, "cgroup.procs"), 0, 1 << 20).split()
        for group in groups
    )


def out_of_reach(targets):
    """Return True if this user may not signal one of these processes."""
    for pid in targets:
        try:
            os.kill(pid, 0)
        except PermissionError:
            return True
        except OSError:
            continue
    return False
