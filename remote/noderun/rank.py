"""One rank: its own log files, the CPUs that it may use, and a record of how it ended."""

import errno
import os
import signal
import sys
import time

from noderun.binding import BINDING_FILE, bind_rank
from noderun.processes import ending, identity
from noderun.records import Reserved, write_json

# Reasons for lowered clocks, as nvidia-smi counts them.
SLOWDOWNS = (
    "sw_power_cap",
    "sync_boost",
    "sw_thermal_slowdown",
    "hw_thermal_slowdown",
    "hw_power_brake_slowdown",
)


def ask_slowdowns():
    """Start nvidia-smi to report for how many microseconds, since the driver was loaded, each
    reason has lowered the clocks of each GPU of this run; None if there is no nvidia-smi. The
    answer waits in a pipe, so that nothing waits for it."""
    if not any(
        os.access(os.path.join(folder, "nvidia-smi"), os.X_OK) for folder in os.get_exec_path()
    ):
        return None  # checked here because importing subprocess costs time: many ranks start at once, on many nodes
    import subprocess

    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    query = "--query-gpu=" + ",".join("clocks_event_reasons_counters." + name for name in SLOWDOWNS)
    argv = ["nvidia-smi", query, "--format=csv,noheader,nounits"] + (
        ["--id=" + visible] if visible else []
    )
    try:
        return subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
    except OSError:
        return None


def slowdowns(process):
    """Return the answer, a row of microseconds per GPU; empty if the driver does not count, as
    older ones, or does not answer in 5 s, or if ``process`` is None."""
    if process is None:
        return []
    import subprocess

    try:
        text = process.communicate(timeout=5)[0].decode("utf-8", "replace")
        return [[int(field) for field in line.split(",")] for line in text.splitlines()]
    except ValueError:  # words instead of numbers
        return []
    except subprocess.TimeoutExpired:
        process.kill()
        return []


def slowed_us(before, after):
    """Return {reason: microseconds}: how much longer it lowered the clocks of the GPU that it
    slowed most; without zeros.
    """
    grown = [[late - early for early, late in zip(*rows)] for rows in zip(before, after)]
    longest = dict(zip(SLOWDOWNS, map(max, zip(*grown))))
    return {name: number for name, number in longest.items() if number > 0}


def rank_main(argv):
    """Run one rank with its own log files and write ``ranks/<rank>.json``; return its exit code, or
    128 + its signal, or what went wrong as a text for `sys.exit`."""
    try:
        rank, local_rank = (int(os.environ[name]) for name in ("RANK", "LOCAL_RANK"))
    except (KeyError, ValueError) as error:
        text = "rank_wrapper.py: expected whole numbers as RANK and LOCAL_RANK in the environment, which a launcher sets: %r"
        return text % error
    streams = []
    for ending_name in ("out", "err"):
        path = os.path.join("logs", "rank-%d.%s" % (rank, ending_name))
        streams.append(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600))
    record = {"rank": rank, "local_rank": local_rank, "started_mono_s": time.monotonic()}
    record.update(identity(os.getpid()))
    try:
        bound = bind_rank(local_rank)
    except (OSError, ValueError, KeyError) as error:
        return "rank_wrapper.py: %s: %s" % (BINDING_FILE, error)
    if bound:
        record["bound"] = bound
    # The launcher ends a rank by signalling its process group; the child dies, and the wrapper
    # survives to record it.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    path = os.path.join("ranks", "%d.json" % rank)
    try:
        final = Reserved(path)
    except OSError as error:
        return "rank_wrapper.py: %s: %s" % (path, error.strerror)
    pid = os.fork()
    if pid == 0:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        os.dup2(streams[0], 1)
        os.dup2(streams[1], 2)
        os.environ["ORCH_PROGRESS"] = os.path.abspath(os.path.join("ranks", "%d.progress" % rank))
        try:
            os.execvp(argv[0], argv)
        except OSError as error:
            os.write(2, ("%s: %s\n" % (argv[0], error.strerror)).encode())
            os._exit(127 if error.errno == errno.ENOENT else 126)
    try:
        write_json(path, dict(record, pid=pid))
    except OSError as error:
        os.kill(pid, signal.SIGKILL)  # without a record nobody would notice its end
        return "rank_wrapper.py: %s: %s" % (path, error.strerror)
    query = ask_slowdowns() if local_rank == 0 else None
    code, name = ending(os.waitpid(pid, 0)[1])
    record.update(pid=pid, code=code, signal=name, ended_mono_s=time.monotonic())
    if query and code == 0:  # a failed rank is reported at once
        record["slowed_us"] = slowed_us(slowdowns(query), slowdowns(ask_slowdowns()))
    try:
        final.write(record)
    except OSError as error:
        return "rank_wrapper.py: %s: %s" % (path, error.strerror)
    return code if code is not None else 128 + getattr(signal, name, 0)


if __name__ == "__main__":
    if sys.argv[1:2] != ["--"] or not sys.argv[2:]:
        sys.exit("rank_wrapper.py: expected -- and the command of a rank, got %r" % sys.argv[1:])
    status = rank_main(sys.argv[2:])
    if isinstance(status, int):
        os._exit(status)  # without Python's clearing up of modules, 6 % of a wrapper's time
    sys.exit(status)
