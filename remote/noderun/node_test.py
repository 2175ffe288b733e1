"""The node test: time every device of this node for some seconds, add that to the evidence of all
its looks before, and say whether a device is slow.

``orch accept sentinel`` joins this file, what it imports, and the programs that time devices into
one file, `orch-node-test`. It needs no controller, no network and no other file: it is for prologs,
epilogs, health checks and cron. It changes nothing on the node; ``--on-fail`` is what acts.
"""

import argparse
import base64
import fcntl
import json
import os
import re
import shutil
import signal
import socket
import sys
import tempfile
import time
import zlib

from noderun.device_timers import METRICS, time_devices
from noderun.evidence import RECENT_S, add_look, median, score_limit, slow_looks
from noderun.files import open_regular
from noderun.hooks import act, name_of_node
from noderun.other_use import OtherUse, busy_limit
from noderun.sysfs import first_line
from noderun.vendor_tools import TOLD_S, begin, collect_output
from noderun.vendors import VENDORS

VERSION = 1
GOOD, NOT_MEASURED, BAD = "good", "not measured", "failed"
STATUS = {GOOD: 0, NOT_MEASURED: 0, BAD: 5}
MOST_STATE_BYTES = 1 << 25
SAMPLE_S = 1.0
"""How long the use of the processors is sampled before the processor is timed."""
WORDS = {"peers": "its peers", "past": "its past", "reference": "the reference"}
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Slurm gives its Prolog, Epilog and HealthCheckProgram none."""
PLACE = "orch-node-test-"


class Unusable(Exception):
    """Why nothing can be tested here; the exit status is 2."""


# --- devices --------------------------------------------------------------------------------------


def find_devices(folder):
    """Return {identity: {"name", "serial", "variable"}} of the GPUs, in the order of PCI addresses,
    or of the processor where there are none; and the ids of processes that compute on the GPUs.
    """
    for vendor in VENDORS:
        gpus = [(address, uuid) for address, uuid in vendor.numbered_gpus("/") if uuid]
        if not gpus:
            continue
        started = [
            begin(vendor.reports[name], folder)
            for name in vendor.listings
            if name in vendor.reports
        ]
        told = "".join(
            answer["text"] for answer in (collect_output(one, TOLD_S) for one in started) if answer
        )
        serials = vendor.serials("/", gpus, told)
        devices = {
            uuid: {"serial": serials.get(uuid, ""), "variable": vendor.by_uuid} for _, uuid in gpus
        }
        return devices, sorted(set(re.findall(vendor.pid, told)), key=int)
    identity = first_line("/etc/machine-id") or socket.gethostname()
    serial = first_line("/sys/class/dmi/id/product_serial")
    return {"cpu-" + identity: {"serial": serial, "variable": ""}}, []


# --- what is known --------------------------------------------------------------------------------


def load(path):
    """Return what is known of devices. A file that cannot be read is put aside; a later version's is
    left, and raises Unusable.
    """
    with open_regular(path) as handle:
        text = b"" if handle is None else os.pread(handle, MOST_STATE_BYTES, 0)
    if not text:
        return {"version": VERSION, "devices": {}}
    try:
        state = json.loads(text.decode())
        version = state["version"]
        check_state(state)
    except (ValueError, LookupError, TypeError, AttributeError):
        aside = "%s.unreadable-%d" % (path, time.time())
        os.rename(path, aside)
        sys.stderr.write("orch-node-test: %s cannot be read: it is now %s\n" % (path, aside))
        return {"version": VERSION, "devices": {}}
    if version > VERSION:
        raise Unusable("%s is of a later version: expected %d, got %d" % (path, VERSION, version))
    return state


def check_state(state):
    """Raise an error unless all parts that are used have their types."""
    for device in state["devices"].values():
        device["name"], device["first"] + device["last"] + device["looks"], device["serial"]
        for metric in device["metrics"].values():
            for values in metric["values"].values():
                sum(when + value for when, value in values)
            for score in metric["scores"].values():
                (
                    score["score"]
                    + score["slow"]
                    + score["looks"]
                    + score["since"]
                    + sum(score["slower"])
                )
                score["named"]
    "".join(list(state.get("faults", {}).values()))
    sum(state.get("acted", {}).values(), state.get("looked", 0))


def remember(state, results, devices, now):
    """Add devices that answered, with their names, the time of this look, and what was wrong, which
    stands until a look without it.
    """
    faults = state.setdefault("faults", {})
    if results:
        state["looked"] = now
    for device, result in results.items():
        if result["wrong"] or result["error"]:
            faults[device] = "%s, on %s" % (result["wrong"] or result["error"], day(now))
        elif result["values"]:
            faults.pop(device, None)
        if result["values"]:
            known = state["devices"].setdefault(
                device, {"first": now, "looks": 0, "metrics": {}, "serial": "", "name": ""}
            )
            known["name"], known["last"] = result["name"], now
            known["serial"] = devices[device]["serial"] or known["serial"]
            known["looks"] += 1


# --- the verdict ----------------------------------------------------------------------------------


def judge(args, state, present, limit):
    """Return {device: reason} of the devices that fail, and {device: remark} of those that need
    more looks.
    """
    failed, watched = {}, {}
    for device, known in state["devices"].items():
        if device not in present:
            failed[device] = "was here on %s, and is not now" % day(known["last"])
    faults = state.get("faults", {})
    failed.update({device: faults[device] for device in present if device in faults})
    for device in present:
        scores = [
            (metric, key, score)
            for metric, of_metric in state["devices"]
            .get(device, {"metrics": {}})["metrics"]
            .items()
            for key, score in of_metric["scores"].items()
        ]
        for metric, key, score in sorted(scores, key=lambda found: -found[2]["score"]):
            if not (score["named"] or score["score"] > limit / 2):
                continue  # there may be no slow look to tell of
            text = "%s %.1f%% slower than %s in %d of %d looks since %s" % (
                metric, 100 * median(score["slower"]), WORDS[key], score["slow"], score["looks"], day(score["since"]),
            )  # fmt: skip
            if score["named"]:
                failed.setdefault(device, text)
            else:
                watched.setdefault(device, text)
    gpus = sum(bool(device["variable"]) for device in present.values())
    if gpus < args.gpus:
        failed["node"] = "expected %d GPUs, found %d" % (args.gpus, gpus)
    return failed, watched


def day(when):
    """Return a time in UTC, to the minute."""
    return time.strftime("%Y-%m-%dT%H:%MZ", time.gmtime(when))


# --- main -----------------------------------------------------------------------------------------


def parse(argv):
    """Return the command line. Raises SystemExit with status 2."""
    parser = argparse.ArgumentParser(
        prog="orch-node-test",
        description="Time the devices of this node, and say whether one is slow, by the evidence of all looks so far.",
        epilog="Exit status: 0 good or not measured, 5 a device fails, 2 the test cannot be made here.",
    )
    own = "/var/lib/orch-node-test" if os.geteuid() == 0 else "~/.local/state/orch-node-test"
    add = parser.add_argument
    add(
        "--state",
        default=own,
        metavar="DIR",
        help="where the evidence is kept, local to the node; %(default)s",
    )
    add("--python", default=sys.executable, help="the Python that has PyTorch; %(default)s")
    add(
        "--seconds",
        type=positive,
        default=20.0,
        help="time for all measurements of a look; %(default)s",
    )
    add("--find", type=share, default=0.05, metavar="SHARE", help="the slowdown to find; 5%%")
    add(
        "--false-alarms",
        type=positive,
        default=1e-4,
        metavar="RATE",
        help="accepted for a node and day; %(default)s",
    )
    add(
        "--interval",
        type=float,
        default=900.0,
        metavar="SECONDS",
        help="do not measure again before; %(default)s",
    )
    add(
        "--recent",
        type=float,
        default=float(RECENT_S),
        metavar="SECONDS",
        help="looks that are no past yet; %(default)s",
    )
    add(
        "--limit",
        type=positive,
        default=180.0,
        metavar="SECONDS",
        help="a device that has not answered by then has failed; %(default)s",
    )
    add(
        "--busy",
        type=positive,
        default=busy_limit(os.cpu_count() or 1),
        metavar="CPUS",
        help="count no look at a processor of which others use more; %(default)s",
    )
    add("--gpus", type=int, default=0, help="how many GPUs the node must have")
    add(
        "--on-fail",
        default="",
        metavar="COMMAND",
        help="run by the shell when a device fails, with ORCH_NODE, ORCH_DEVICE, ORCH_SERIAL, ORCH_VERDICT, ORCH_REASON"
        " and ORCH_EVIDENCE, a file",
    )
    add(
        "--forget",
        default="",
        metavar="DEVICE",
        help="drop what is known of a device that was repaired or taken out; all for every device",
    )
    add(
        "--show",
        action="store_true",
        help="print the last verdict, and what --on-fail would run; do nothing",
    )
    add("--json", action="store_true", help="print the evidence as JSON")
    return parser.parse_args(argv)


def positive(text):
    """Return a number above 0."""
    value = float(text)
    if not 0 < value < float("inf"):
        raise ValueError(text)
    return value


def share(text):
    """Return a share of 0.5 to 100 %."""
    value = positive(text.rstrip("%")) / (100 if text.endswith("%") else 1)
    if not 0.005 <= value <= 1:
        raise ValueError(text)
    return value


def node_test_main(programs, references):
    """Make one look, print one line, and exit. ``programs`` are those that time devices, {name:
    base 64 of zlib}, ``references`` as in `add_look`.
    """
    os.environ.setdefault("PATH", PATH)
    args = parse(sys.argv[1:])
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    try:
        sys.exit(look(args, programs, references))
    except Unusable as error:
        sys.stderr.write("orch-node-test: %s\n" % error)
        sys.exit(2)


def hold(folder):
    """Make the folder of the evidence and lock it; return False if another look holds it. Raises
    Unusable.
    """
    if folder.startswith("~"):
        raise Unusable("--state: this user has no home: expected another folder")
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        lock = os.open(os.path.join(folder, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise Unusable("--state: %s: %s" % (folder, error.strerror)) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # until this process ends
    except OSError:
        return False
    return True


def look(args, programs, references):
    """Measure if it is time, judge, tell, and act. Returns the exit status."""
    folder = os.path.expanduser(args.state)
    if not hold(folder):
        tell(args, NOT_MEASURED, "another look at this node is in progress", {})
        return STATUS[NOT_MEASURED]
    path = os.path.join(folder, "evidence.json")
    state = load(path)
    forget(state, args.forget)
    devices, computing = find_devices(folder)
    now, why_not, results = time.time(), "", {}
    limit = score_limit(
        len(devices), len(METRICS), max(1.0, 86400 / max(1.0, args.interval)), args.false_alarms
    )
    if not (args.show or args.forget):
        why_not = reason_to_wait(args, state, now, computing)
        if not why_not:
            results, why_not = measure(args, programs, devices, folder)
            remember(state, results, devices, now)
            values = {
                device: result["values"] for device, result in results.items() if result["values"]
            }
            add_look(state["devices"], values, now, args.find, limit, references, args.recent)
    failed, watched = judge(args, state, devices, limit)
    verdict = BAD if failed else NOT_MEASURED if why_not else GOOD
    hooks = act(args, state, failed, path, sorted(devices))
    reason = "; ".join(
        "%s: %s" % (name_of_device(state, device), text)
        for device, text in {**watched, **failed}.items()
    )
    ended = ["--on-fail of %s: %s" % hook for hook in hooks.items()]
    reason = "; ".join(filter(None, [reason, why_not, *ended]))
    tell(args, verdict, reason, {"devices": state["devices"], "present": sorted(devices), "failed": failed, "watched": watched,
                                 "measured": results, "slow_looks": slow_looks(limit), "hooks": hooks})  # fmt: skip
    return STATUS[verdict]


def forget(state, name):
    """Drop what is known of a device, or of all, so that the next look is made at once."""
    if name:
        state.pop("looked", None)
    for known in (state["devices"], state.get("faults", {})):
        for device in [one for one in known if name in (one, "all")]:
            del known[device]


def reason_to_wait(args, state, now, computing):
    """Return why this is no time to measure, empty if it is."""
    last = max([known["last"] for known in state["devices"].values()], default=0)
    waited_s = now - state.get("looked", last)
    if 0 <= waited_s < args.interval:
        return "last look %.0f s ago" % waited_s
    return "in use by process %s" % ", ".join(computing) if computing else ""


def measure(args, programs, devices, folder):
    """Time all devices, and return the results of `time_devices` and why they do not count, empty if
    they do: others have used the devices meanwhile. A wrong result counts in any case. Raises
    Unusable if none could be timed because of the Python.
    """
    on_gpus, others = any(device["variable"] for device in devices.values()), OtherUse()

    def why_not(results):
        own = [str(result["pid"]) for result in results.values()]  # may hang in its driver
        computing = find_devices(folder)[1] if on_gpus else []
        computing = [number for number in computing if number not in own]
        if computing:
            return "process %s began to compute in the look" % ", ".join(computing)
        used = others.processors()
        if on_gpus or used <= args.busy:
            return ""
        return "others use %.1f of %d processors" % (used, os.cpu_count() or 1)

    if not on_gpus:
        time.sleep(SAMPLE_S)  # a look takes processors away from whoever computes here
        reason = why_not({})
        if reason:
            return {}, reason
        others = OtherUse()
    results = run_programs(args, programs, devices, folder)
    reason = why_not(results)
    if reason:
        results = {
            device: {**result, "values": {}, "error": ""} for device, result in results.items()
        }
    return results, reason


def run_programs(args, programs, devices, folder):
    """Time all devices with the programs in a folder that is removed again, by the next look if this
    one is killed. Raises Unusable if none could be timed because of the Python.
    """
    for name in os.listdir(folder):
        if name.startswith(PLACE):
            shutil.rmtree(os.path.join(folder, name), ignore_errors=True)
    place = tempfile.mkdtemp(prefix=PLACE, dir=folder)
    try:
        for name, text in programs.items():
            with open(os.path.join(place, name), "wb") as file:
                file.write(zlib.decompress(base64.b64decode(text)))
        results = time_devices(args.python, args.seconds, place, devices, args.limit)
    except OSError as error:
        raise Unusable("%s: %s" % (error.filename or folder, error.strerror)) from None
    finally:
        shutil.rmtree(place, ignore_errors=True)
    errors = [result["error"] for result in results.values()]
    if all("ModuleNotFoundError" in error for error in errors):
        raise Unusable("--python: %s: %s" % (args.python, errors[0]))
    return results


def name_of_device(state, device):
    """Return a device with its serial number and name, where they are known."""
    known = state["devices"].get(device, {})
    words = [("serial " + known["serial"]) if known.get("serial") else "", known.get("name", "")]
    words = ", ".join(filter(None, words))
    return "%s (%s)" % (device, words) if words else device


def tell(args, verdict, reason, evidence):
    """Print the verdict, as a line or as JSON."""
    if args.json:
        answer = {"node": name_of_node(), "verdict": verdict, "reason": reason, **evidence}
        print(json.dumps(answer, sort_keys=True))
    else:
        print(
            "orch-node-test %s: %s%s" % (name_of_node(), verdict, ": " + reason if reason else "")
        )
