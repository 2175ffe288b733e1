"""The operation that reports the facts of this machine."""

import base64
import contextlib
import json
import os
import re
import socket
import sys
import time
import zlib

from noderun.channel import reply
from noderun.container_facts import container_facts
from noderun.data_set import look_at_data
from noderun.files import (
    CHUNK,
    Refused,
    free_bytes,
    free_inodes,
    read_slice,
    root_directory,
    who_may_rename,
)
from noderun.groups import usable_cpus, usable_memory_bytes
from noderun.installed import find_distributions, framework_facts, program_digest
from noderun.launch import check_port
from noderun.limits import limits, shared_memory_bytes
from noderun.lock import holder, run_of
from noderun.meter import Meter
from noderun.network import infiniband_ports, interface_facts, networks, resolve_names, route_to
from noderun.processes import bearers, boot_id, name_of, owners, processes
from noderun.sysfs import names_in
from noderun.vendor_tools import TOLD_S, begin, collect_output, find_write_error, kernel_log
from noderun.vendors import VENDORS

METERED_S = 0.25
MOST_LEFT = 16
CAPTURE_S = 600  # longer than any capture takes


def op_facts(request):
    """Report the facts that preflight compares and the manifest stores.

    Output of other programs and of the kernel is sent as it is, compressed: the controller parses
    it.
    """
    root = root_directory(request["root"])
    began, meter = time.monotonic(), Meter()
    meter.start()
    unwritable = find_write_error(root)
    started = start_reports(root)  # they run while the rest is collected
    facts = {
        "hostname": socket.gethostname(),
        "boot_id": boot_id(),
        "kernel": os.uname().release,
        "machine": os.uname().machine,
        "runner_python": "%d.%d.%d" % sys.version_info[:3],
        "user": os.environ.get("USER", str(os.getuid())),
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "cpu_limit": usable_cpus(),
        "memory_bytes": usable_memory_bytes(),
        "workdir": root,
        "workdir_first": first_in(root, request),
        "workdir_open": who_may_rename(root),
        "disk_free_bytes": free_bytes(root),
        "disk_free_inodes": free_inodes(root),
        "disk_error": unwritable,
        "limits": limits(),
        "shm_bytes": shared_memory_bytes(),
        "verbs": sum(name.startswith("uverbs") for name in names_in("/dev/infiniband")),
        "time": time.time(),
        "ports_busy": [],
    }
    python, environment = request["python"], request["environment"]
    versions, paths = {}, []
    if "container" not in request:
        if "distributions" in request:
            versions, paths = find_distributions(python, request["distributions"], environment)
        facts["framework"] = versions or framework_facts(
            python, request["probe"], request["probe_timeout_s"], environment
        )
        facts["imported"] = not versions
    for port in request["ports"]:
        try:
            check_port(port)
        except Refused:
            facts["ports_busy"].append(port)
    if request.get("interface"):
        facts["interface"] = interface_facts(request["interface"])
    peers = request.get("peers") or []
    addresses = resolve_names([facts["hostname"]] + peers)
    facts["hostname_addresses"] = addresses[facts["hostname"]]
    if peers:
        routes = [
            next((route for route in map(route_to, addresses[peer]) if route), None)
            for peer in peers
        ]
        facts["route"] = routes[0]
        facts["routes"] = {peer: route and route["interface"] for peer, route in zip(peers, routes)}
        facts["unresolved"] = [peer for peer in peers if not addresses[peer]]
        facts["networks"] = networks()
    if request.get("data_dir"):
        directory = os.path.expanduser(request["data_dir"])
        facts["data_dir"] = os.path.isdir(directory)
        facts["data_set"] = look_at_data(directory) if facts["data_dir"] else None
        facts["data_made"] = os.path.isfile(os.path.join(directory, "dataset.json"))
    facts["programs"] = {
        path: program_digest(os.path.expanduser(path)) for path in request.get("programs", ())
    }
    reports = {name: collect_output(program, TOLD_S) for name, program in started.items()}
    describe_gpus(reports)
    reports["infiniband"] = infiniband_ports()
    if "container" in request:
        # Its engine uses processors too. They are looked at before, for as long as tells something.
        time.sleep(max(0.0, METERED_S - (time.monotonic() - began)))
    facts["load"] = dict(meter.record()["processors"], seconds=round(time.monotonic() - began, 3))
    if "container" in request:
        facts.update(container_facts(root, request), imported=True)
    facts["processes_left"] = left_of_runs()
    # Last: the supervisor of the previous run may need a moment to exit.
    facts["held_by"] = find_lasting_holder()
    packed = base64.b64encode(zlib.compress(json.dumps(reports).encode(), 6)).decode()
    reply(
        facts=facts,
        told=packed,
        standing={"machine": machine(), "paths": {path: state_of(path) for path in paths}},
    )


def start_reports(root):
    """Start all programs that describe GPUs; return {name: started program, None without one}."""
    started = {}
    for vendor in VENDORS:
        of_vendor = {name: begin(argv, root) for name, argv in vendor.reports.items()}
        if None in list(of_vendor.values())[:1]:
            of_vendor.update((name, begin(argv, root)) for name, argv in vendor.instead.items())
        started.update(of_vendor)
    return started


def describe_gpus(reports):
    """Add to what programs said: the owners of the processes in it, and what the kernel says."""
    if reports["smi"]:
        reports["smi"]["text"] = re.sub(
            r"(?s)<supported_clocks>.*?</supported_clocks>", "", reports["smi"]["text"]
        )
    for vendor in VENDORS:
        texts = [reports[name]["text"] for name in vendor.listings if reports.get(name)]
        if texts:
            pids = re.findall(vendor.pid, "".join(texts))
            reports.setdefault("owners", {}).update(owners(pids))
        for name, path in vendor.texts.items():
            reports[name] = read_slice(path, 0, 4096).decode("utf-8", "replace")
        if vendor.log_word:
            reports["kernel_log"] = kernel_log(vendor.log_word)
        if vendor.peer_modules:
            folders = ["/sys/module/" + name for name in vendor.peer_modules]
            reports["peermem"] = any(map(os.path.isdir, folders))


def first_in(root, request):
    """Return the node and the capture that first saw a work directory; None if it is not writable.

    Nodes with the same answer share the directory. A symbolic link is made at once with its
    content, and by one node only, over NFS too. Its name contains this capture, so no copy of the
    directory on another disk has it.
    """
    link, first = (
        os.path.join(root, ".capture-" + request["capture"]),
        "%s in %s" % (request["node"], request["capture"]),
    )
    try:
        os.symlink(first, link)
    except FileExistsError:
        return os.readlink(link)
    except OSError:
        return None
    for name in names_in(root):
        path = os.path.join(root, name)
        with contextlib.suppress(OSError):
            if (
                name.startswith(".capture-")
                and os.lstat(path).st_mtime < os.lstat(link).st_mtime - CAPTURE_S
            ):
                os.unlink(path)
    return first


def left_of_runs():
    """Return [[process id, name, state, run id]] of this user's processes of runs that do not hold
    this node any more.
    """
    held = run_of(holder() or "")
    marked = [(pid, run) for pid, (_, run) in sorted(bearers().items()) if run != held]
    table = processes() if marked else {}
    return [[pid, name_of(pid), table[pid][1], run] for pid, run in marked if pid in table][
        :MOST_LEFT
    ]


def find_lasting_holder():
    """Return the record of this node's holder if it still holds it after 1 s, None if the node is
    free by then.
    """
    deadline = time.monotonic() + 1.0
    record = holder()
    while record is not None and time.monotonic() < deadline:
        time.sleep(0.05)
        record = holder()
    return record


def machine():
    """Return a text that changes with every boot and every change of the GPU driver, in the
    kernel's own words.
    """
    drivers = b"".join(read_slice(vendor.driver, 0, CHUNK) for vendor in VENDORS)
    return boot_id() + "\n" + drivers.decode("utf-8", "surrogateescape")


def state_of(path):
    """Return inode, size and times of a path, as ``stat -L -c '%i %s %Y %Z'`` prints them."""
    status = os.stat(path)
    return "%d %d %d %d" % (status.st_ino, status.st_size, status.st_mtime, status.st_ctime)


def cpu_model():
    """Return the processor's name, or the architecture if the kernel has no name."""
    with open("/proc/cpuinfo", errors="replace") as file:
        for line in file:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return os.uname().machine
