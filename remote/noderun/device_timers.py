"""Processes that time the devices of a node, all at the same time, for the node test."""

import contextlib
import json
import os
import select
import signal
import subprocess
import time

from noderun.prctl import die_with_parent

METRICS = ("gemm", "memory", "h2d", "d2h", "peer")
"""What `device_test.py` knows: TFLOP/s of a matrix product, else GB/s."""
REAP_S = 15


class Timer:
    """A process that times one device; it ends with this one."""

    def __init__(self, python, programs, device, variable, peer):
        environment = dict(os.environ, PYTHONDONTWRITEBYTECODE="1")
        kind, threads = "cpu", len(os.sched_getaffinity(0))
        if variable:
            kind, threads = "cuda", 1
            environment[variable] = ",".join([device, peer] if peer else [device])
        self.process = subprocess.Popen(
            [
                python,
                "-u",
                os.path.join(programs, "device_test.py"),
                "--device",
                kind,
                "--threads",
                str(threads),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
        self.rest = b""
        self.error = ""

    def ask(self, metric, seconds):
        """Send a request; a process that is gone answers with its error."""
        try:
            self.process.stdin.write(("%s %g\n" % (metric, seconds)).encode())
            self.process.stdin.flush()
        except BrokenPipeError:
            pass

    def answer(self, deadline):
        """Return the next answer; None if there is none until then, ``error`` says why."""
        while b"\n" not in self.rest:
            left_s = deadline - time.monotonic()
            ready = select.select([self.process.stdout], [], [], max(0, left_s))[0]
            block = os.read(self.process.stdout.fileno(), 65536) if ready else b""
            if not block:
                self.error = self.last_words() if ready else "no answer"
                return None
            self.rest += block
        line, _, self.rest = self.rest.partition(b"\n")
        return json.loads(line.decode())

    def last_words(self):
        """Return the last line that the process wrote before it ended."""
        lines = self.process.stderr.read().decode("utf-8", "replace").strip().split("\n")
        return "ended with %s: %s" % (self.process.wait(), lines[-1][:200])

    def kill(self):
        """Kill the process, unless it is reaped: then another group may have its number."""
        if self.process.returncode is None:
            os.killpg(self.process.pid, signal.SIGKILL)

    def reap(self, deadline):
        """Wait for the end of a killed process, which a driver may take seconds to clean up, and the
        next look would find on its GPU. One that hangs in a driver never ends.
        """
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(max(0.1, deadline - time.monotonic()))


def time_devices(python, seconds, programs, devices, limit_s):
    """Return {device: {"name", "values": {metric: value}, "wrong": text, "error": text, "pid"}}: all
    devices are asked for the same metric at the same time, until ``limit_s`` have passed.
    """
    order = list(devices)
    timers, results, deadline = {}, {}, time.monotonic() + limit_s
    try:
        for place, device in enumerate(order):
            peer = order[(place + 1) % len(order)] if len(order) > 1 else ""
            timers[device] = Timer(python, programs, device, devices[device]["variable"], peer)
        answers = collect(timers, deadline)
        for device in order:
            results[device] = {"values": {}, "wrong": "", **(answers[device] or {"name": ""})}
        for metric in METRICS:
            if time.monotonic() > deadline:
                break  # one hangs, and the others are not to be blamed
            asked = {device: timer for device, timer in timers.items() if not timer.error}
            for timer in asked.values():
                timer.ask(metric, seconds / len(METRICS))
            for device, answer in collect(asked, deadline).items():
                if answer and "value" in answer:
                    results[device]["values"][metric] = answer["value"]
                results[device]["wrong"] = results[device]["wrong"] or (answer or {}).get(
                    "wrong", ""
                )
        for device, timer in timers.items():
            results[device].update(error=timer.error, pid=timer.process.pid)
        return results
    finally:
        for timer in timers.values():
            timer.kill()
        deadline = time.monotonic() + REAP_S
        for timer in timers.values():
            timer.reap(deadline)


def collect(timers, deadline):
    """Return the next answer of each timer, by device."""
    return {device: timer.answer(deadline) for device, timer in timers.items()}
