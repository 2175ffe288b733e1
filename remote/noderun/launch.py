"""Start the launch script at the start signal, and check that ports are free before."""

import os
import signal
import socket
import time

from noderun.files import Refused


def launch(order, barrier, report, group):
    """In the forked child: wait for the start signal, then exec the launch script at its instant,
    in the run's control group.

    Never returns. If the barrier is closed without a start signal, nothing is started.
    """
    try:
        os.setsid()
        if group:
            with open(os.path.join(group, "cgroup.procs"), "w") as file:
                file.write("0")
        # The supervisor ignores these, and a shell cannot trap a signal that is ignored when it
        # starts.
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        environment = {key: value for key, value in os.environ.items() if not of_connection(key)}
        environment.update(ORCH_RUN_ID=order["run_id"], ORCH_NODE_RANK=str(order["node_rank"]))
        usual = go_first()
        word = os.read(barrier, 64)
        if not word:
            os._exit(0)
        for number, name in ((1, "node.out"), (2, "node.err")):
            path = os.path.join("logs", name)
            os.dup2(
                os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600), number
            )
        if word != b"now":
            # No busy waiting at the end: where nodes share cores, as in a lab, it would delay the
            # others.
            time.sleep(min(10.0, max(0.0, float(word) - time.monotonic())))
        os.write(report, b"%.9f" % time.monotonic())
        if usual:
            os.sched_setscheduler(0, *usual)
        else:
            os.sched_yield()  # to processes that wait for this very instant on the same core
        os.execvpe(order["argv"][0], order["argv"], environment)
    except OSError as error:
        os.write(2, ("%s: %s\n" % (order["argv"][0], error.strerror)).encode())
    finally:
        os._exit(127)


def of_connection(name):
    """Return True for a variable that tells how this process was started: sshd's, or a Slurm
    step's.

    A step has one task on a node, and a program that believes these variables would find another
    world than the run's.
    """
    return name.startswith(("SSH_", "SLURM", "PMI_", "PMIX_")) and name not in (
        "SLURM_CONF",
        "SLURM_JOB_ID",
    )


def go_first():
    """Run this process before others of its node, so that a busy node does not start late. Return
    what restores the old state.

    Only a privileged user may do this; for others return None, and the process is scheduled as
    usual.
    """
    try:
        usual = os.sched_getscheduler(0), os.sched_getparam(0)
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except OSError:
        return None
    return usual


def check_port(port):
    """Refuse if something already listens on a port that the run needs."""
    probe = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        probe.bind(("0.0.0.0", port))
    except OSError as error:
        raise Refused("port_busy", "port %d: %s" % (port, error.strerror), port=port)
    finally:
        probe.close()
