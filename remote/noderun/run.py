"""A run inside its supervisor: the processes that it owns, their ranks and limits, and the record
of their end.
"""

import contextlib
import os
import select
import signal
import time

from noderun.containers import enter_container
from noderun.examination import FAILED, Examination
from noderun.file_wait import FileWait, name_mount
from noderun.files import Refused, digest_of, lacking, why_read_only
from noderun.groups import make_group, members, oom_kills
from noderun.launch import check_port, launch
from noderun.logs import MAX_FILES, digests, log_files
from noderun.meter import Meter
from noderun.processes import bearers, boot_id, descendants, ending, name_of, send_signal
from noderun.ranks import Ranks, describe_end
from noderun.records import write_json, write_whole
from noderun.sampler import Sampler
from noderun.stall import Stall, is_attended
from noderun.unverified import write_origin

SCHEMA = 1
STUCK_S = 10.0
RESERVE_BYTES = 1 << 18
HASH_S = 0.2
PROBE_S = 10.0
CLEAR_UP_S = 5.0
ENTER_S = 60.0
UNARMED_S = 300.0  # with a thousand nodes, the last supervisor is started long after the first


class Run:
    """One run on this node, in its own directory. States: new, armed, running, stopping, closing
    while its logs are hashed, ended, and gone once its supervisor may exit. ``tell(event,
    **fields)`` sends an event to every connected controller."""

    def __init__(self, directory, tell):
        self.directory = directory
        self.tell = tell
        self.files = FileWait()
        self.state = "new"
        self.order = {}
        self.renewed = time.monotonic()
        self.main = 0
        self.main_status = None
        self.barrier = None
        self.report = None
        self.started = None
        self.stop_reason = ""
        self.stopped = None
        self.killed_at = None
        self.group = ""
        self.container = None
        self.emptied, self.told = None, False
        self.ranks = Ranks()
        self.record = None
        self.logs_checked = self.probed = 0.0
        self.stall = Stall()
        self.examination = Examination(directory)
        self.oom_kills, self.left_over = 0, []
        self.hashing, self.closing_told = iter(()), 0.0
        self.meter = Meter()
        self.sampler = Sampler()

    # -- orders

    def arm(self, order):
        """Check every file and port, and write the variables. These come with the order: if a
        controller dies earlier, they are on no disk without a supervisor to remove them."""
        if os.path.exists("exit.json"):
            raise Refused(
                "node_unfit",
                "expected a new run, %s has already ended on this node" % order["run_id"],
            )
        write_whole("env.sh", [order["variables"].encode()])
        for path, expected in order["files"].items():
            if digest_of(path) != expected:
                raise Refused(
                    "transfer_corrupt",
                    "%s differs from what was sent; expected SHA-256 %s" % (path, expected),
                )
        for port in order["ports"]:
            check_port(port)
        self.container = enter_container(self.directory)
        os.makedirs("logs", 0o700, exist_ok=True)
        os.makedirs("ranks", 0o700, exist_ok=True)
        with open("reserve", "wb") as file:
            os.posix_fallocate(file.fileno(), 0, RESERVE_BYTES)
        self.order = order
        self.group = make_group("orch-%s-%d" % (order["run_id"], order["node_rank"]))
        if self.group:
            write_whole("group", [self.group.encode()])
        write_origin(self.group)
        self.prepare()
        self.state = "armed"

    def prepare(self):
        """Fork the child that becomes the launch script, and let it wait at the barrier until the
        start signal.
        """
        barrier_in, self.barrier = os.pipe()
        self.report, report_in = os.pipe()
        self.main = os.fork()
        if self.main == 0:
            os.close(self.barrier)
            os.close(self.report)
            launch(self.order, barrier_in, report_in, self.group)
        os.close(barrier_in)
        os.close(report_in)

    def dismiss(self):
        """Close the barrier on a child that still waits there, and reap it."""
        if self.barrier is not None:
            os.close(self.barrier)
            self.barrier = None
            if self.main_status is None:
                self.main_status = os.waitpid(self.main, 0)[1]

    def go(self, at):
        """Release the barrier: exec at ``at`` s of this node's monotonic clock, at once for None.
        Report the true instant.
        """
        if self.state != "armed":
            raise Refused(
                "start_timeout", "expected state armed at the start signal, got %s" % self.state
            )
        self.state = "running"
        with contextlib.suppress(
            BrokenPipeError
        ):  # it died at the barrier: reported as a failed launch script
            os.write(self.barrier, b"now" if at is None else b"%.9f" % at)
        os.close(self.barrier)
        self.barrier = None
        self.oom_kills = oom_kills()
        self.meter.start()
        # The child's exec closes its end. Wait for that only, not for its report: at the instant of
        # the start, every process that wakes up on a machine shared by several nodes delays the
        # others.
        closed = select.poll()
        closed.register(self.report, 0)
        closed.poll()
        data = os.read(self.report, 64)
        os.close(self.report)
        self.stall.start(time.monotonic())
        if data:
            self.started = float(data)
            self.tell("started", mono=self.started)

    def finish(self):
        """End processes that only wait here because the first node, which started everything, has
        finished successfully.
        """
        if self.state == "running":
            self.state, self.killed_at = "stopping", time.monotonic() + self.order["grace_s"]
            self.signal(signal.SIGTERM)

    def stop(self, reason):
        """Begin to stop: SIGTERM now, SIGKILL after the grace period."""
        if self.state == "running":
            self.stop_reason = reason
            self.state = "stopping"
            self.stopped = time.monotonic()
            self.killed_at = self.stopped + self.order["grace_s"]
            self.tell("stopping", reason=reason, mono=self.stopped)
            if reason.startswith(FAILED) and self.order.get("examines") and not self.files.is_on:
                with self.files:
                    report = self.examination.last_collectives(self.ranks.in_order())
                self.tell("collectives", report=report)
            self.signal(signal.SIGTERM)
        elif self.state in ("new", "armed"):
            self.state = "gone"

    def stop_failed(self, reason):
        """Stop for a rank or launch script that failed, or for the disk, if that has failed: no
        wrapper can end its rank's record then, and what it ended with says nothing of its program.
        """
        with self.files:
            failed_disk = why_read_only(self.directory)
        self.stop("node_unfit: " + failed_disk if failed_disk else reason)

    # -- in every round of the supervisor's loop

    def judge_lateness(self):
        """Expire the lease before any queued beat is read: beats that waited in a frozen node renew
        nothing.
        """
        now = time.monotonic()
        if self.state == "ended" and now - self.renewed > self.order["lease_s"]:
            self.state = "gone"
        elif self.state in ("new", "armed") and now - self.renewed > self.order.get(
            "lease_s", UNARMED_S
        ):
            self.state = "gone"
        elif self.state == "running":
            if now - self.renewed > self.order["lease_s"]:
                self.stop(
                    "lease_expired: no controller renewed the lease for %g s"
                    % self.order["lease_s"]
                )
            elif self.started and now - self.started > self.order["limit_s"]:
                self.end_overdue("run_timeout: longer than %g s" % self.order["limit_s"])

    def reap(self):
        """Collect ended children, both the main process and adopted orphans."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.main:
                self.main_status = status

    def find_processes(self):
        """Return {pid: start time} of this run's processes: descendants, group members, and if
        ordered, by its marker.
        """
        owned = descendants(os.getpid())
        owned.update(members(self.group))
        if self.order.get("by_marker"):
            owned.update((pid, start) for pid, (start, _) in bearers(self.order["run_id"]).items())
        apart = {
            self.sampler.pid,
            *self.examination.helpers(),
            *(self.container.helpers() if self.container else ()),
        }
        return {pid: start for pid, start in owned.items() if pid not in apart}

    def inside(self):
        """Return {pid: start time} of what the launch script has started: of the processes in its
        container, if it has one.
        """
        if not self.container:
            return self.find_processes()
        with self.files:
            return self.container.processes()

    def signal(self, number):
        """Signal what the launch script has started. What starts and watches a container ends by
        itself after it, and is only signalled if nothing is inside, not yet or not any more."""
        if self.container and self.files.is_on:
            return  # its processes are known from files; they are ended when these can be read
        if self.container and self.inside():
            self.told = True
            with self.files:
                self.container.signal(number)
        elif not self.is_entering():
            send_signal(self.find_processes(), number)

    def watch(self):
        """Look for ranks that ended, for logs that grew too long, and for the end of all processes."""
        if self.state == "closing":
            self.close()
            return
        self.read_ranks()
        self.report_examination()
        now = time.monotonic()
        if self.container:
            with self.files:
                self.container.measure()
        if now - self.logs_checked > 1.0:
            self.logs_checked = now
            with self.files:
                sizes = log_files(".")
                full_disk, failed_disk = lacking(self.directory), ""
                if now - self.probed > PROBE_S:
                    self.probed, failed_disk = now, why_read_only(self.directory)
            if sum(sizes.values()) > self.order["output_limit_bytes"]:
                self.stop(
                    "output_limit: more than %d bytes of logs" % self.order["output_limit_bytes"]
                )
            if len(sizes) > MAX_FILES:
                self.stop("output_limit: more than %d log files" % MAX_FILES)
            if full_disk:
                self.stop("storage_full: " + full_disk)
            if failed_disk:
                self.stop("node_unfit: " + failed_disk)
            self.judge_progress(sizes, now)
        if self.main_status not in (None, 0) and self.state == "running":
            # From here on processes end because of the stop; without this reason the first of them
            # would look like the cause.
            code, name = ending(self.main_status)
            self.stop_failed(
                "rank_failed: its launch script ended with %s" % (name or "exit code %s" % code)
            )
        if self.main_status == 0 and self.state == "running":
            self.state, self.killed_at = "stopping", now + self.order["grace_s"]
            left = self.inside()
            self.left_over = [[pid, name_of(pid)] for pid in sorted(left)]
            if left:
                self.signal(signal.SIGTERM)
        if self.state == "stopping":
            self.see_to_the_end(now)

    def is_entering(self):
        """Return True while the engine creates the container: it is ended when it has come, as
        without its client the engine would go on to make it."""
        if self.container is None or self.main_status is not None:
            return False
        with self.files:
            return self.container.is_coming()

    def see_to_the_end(self, now):
        """Kill processes that outlive the grace period; end the run when none is left."""
        if self.is_entering() and now < self.killed_at + ENTER_S:
            return
        inside = self.inside()
        left = inside or self.find_processes()
        if self.container and not inside and self.emptied is None:
            # The engine clears up now, which takes it some time.
            self.emptied, self.killed_at = now, max(self.killed_at, now + CLEAR_UP_S)
        elif self.container and inside and not self.told:
            self.killed_at = max(self.killed_at, now + self.order["grace_s"])
            self.signal(signal.SIGTERM)
        if not left and self.main_status is not None:
            if not self.container or self.is_container_over():
                self.read_ranks()
                self.end()
        elif now >= max(self.killed_at, self.files.answered) + STUCK_S:
            self.end(sorted(left))
        elif now >= self.killed_at:
            self.signal(signal.SIGKILL)

    def is_container_over(self):
        """Return whether the end of the run's container is proved, or was waited for long enough."""
        with self.files:
            return self.container.is_over()

    def do_without_files(self):
        """Stop a run whose file system does not answer for as long as a log may be silent, and kill
        one that was stopped after its grace period; called while the supervisor waits for it.
        """
        waited_s, limit_s = self.files.waited_s(), self.order.get("stall_s") or 0
        if self.state == "running" and limit_s and waited_s > limit_s:
            words = "run_timeout: %s has not answered for %g s"
            self.stop(words % (name_mount(), limit_s))
        elif self.state == "stopping" and time.monotonic() >= self.killed_at:
            self.signal(signal.SIGKILL)

    # -- a run that does not go on

    def judge_progress(self, sizes, now):
        """Tell a suspicion, and end a run whose logs stay empty or stop growing."""
        reason = self.stall.overdue(self.order, sizes, now, self.meter.grew)
        if reason:
            self.end_overdue(reason)
        with self.files:
            told = self.stall.look(self.order, self.ranks.in_order(), sizes, now)
        if told:
            self.tell(told[0], mono=now, **told[1])

    def end_overdue(self, reason):
        """Stop the run for its silence or its length, but first examine its ranks.

        A controller examines the ranks of all nodes.
        """
        if self.files.is_on:
            self.stop(reason)
        elif self.state == "running" and self.examination.mark_overdue(reason):
            self.examine()
            self.tell("overdue", reason=reason, mono=time.monotonic())

    def examine(self):
        """Begin to examine what every rank does; the report follows as an event."""
        if not self.files.is_on:
            self.examination.begin(sorted(self.find_processes()))

    def report_examination(self):
        """Tell the report of a look that is over, and stop an overdue run that no controller is
        going to stop.
        """
        with self.files:
            is_over = self.examination.is_over()
        if is_over:
            self.tell("examined", report=self.examination.report, mono=time.monotonic())
        if self.examination.may_stop(self.order.get("examines") and is_attended(self.renewed)):
            self.stop(self.examination.overdue)

    def read_ranks(self):
        """Read rank records; a failed rank is reported at once and stops this node at once."""
        with self.files:
            ended = list(self.ranks.read(self.oom_kills if self.state == "running" else None))
        for record in ended:
            self.tell("rank", **record)
            if record["code"] != 0 and self.state == "running":
                self.stop_failed(
                    "rank_failed: rank %d ended with %s" % (record["rank"], describe_end(record))
                )

    def end(self, stuck=()):
        """Begin the exit record: what happened. ``stuck``: processes that could not be ended, as
        they wait in the kernel.
        """
        self.reap()  # so that the time of all processes is known
        with self.files:
            self.examination.give_up(self.stop_reason.startswith("run_timeout"))
            sizes, samples = log_files("."), self.sampler.leave()
            if os.path.exists("env.sh"):
                os.unlink("env.sh")
            proof = self.container.read_proof() if self.container else None
        if sum(sizes.values()) > self.order["output_limit_bytes"] and not self.stop_reason:
            self.stop_reason = (
                "output_limit: more than %d bytes of logs" % self.order["output_limit_bytes"]
            )
        code, name = (None, None) if self.main_status is None else ending(self.main_status)
        self.stop_reason = self.stop_reason or (
            "stuck: processes %s outlive SIGKILL" % list(stuck) if stuck else ""
        )
        state = (
            "failed"
            if code != 0 or any(rank.get("code") != 0 for rank in self.ranks.in_order())
            else "finished"
        )
        if self.stop_reason and not self.stop_reason.startswith("rank_failed"):
            state = "stopped"
        self.record = {
            "schema": SCHEMA,
            "run_id": self.order["run_id"],
            "node_rank": self.order["node_rank"],
            "state": state,
            "code": code,
            "signal": name,
            "reason": self.stop_reason,
            "started_mono_s": self.started,
            "stopped_mono_s": self.stopped,
            "ended_mono_s": time.monotonic(),
            "boot_id": boot_id(),
            "oom_kills": max(0, oom_kills() - self.oom_kills),
            "left_over": self.left_over,
            "stuck": [[pid, name_of(pid)] for pid in stuck],
            "meter": self.meter.record(self.container.used_s if self.container else 0.0),
            "ranks": self.ranks.in_order(),
            "files": {},
        }
        if self.container:
            self.record["container"] = proof
        self.state, self.hashing = (
            "closing",
            digests(sizes, self.order["output_limit_bytes"], samples),
        )
        self.close()

    def close(self):
        """Hash the logs for a moment, so that orders are answered in between; when all are hashed,
        write the exit record.
        """
        until = time.monotonic() + HASH_S
        while True:
            with self.files:
                name, size, digest = next(self.hashing, ("", 0, ""))
            if not name:
                break
            if digest:
                self.record["files"][name] = {"bytes": size, "sha256": digest}
            now = time.monotonic()
            if now > until:
                if now - self.closing_told > 1.0:
                    self.closing_told = now
                    self.tell("closing", file=name)
                return
        with self.files:
            # On a full disk this frees the space that the record needs.
            os.unlink("reserve")
            write_json("exit.json", self.record)
        self.state = "ended"
        self.tell("ended", record=self.record)
