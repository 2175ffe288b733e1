"""The framework ``plain_pairs``: the rounds of `orch bench pairs` over plain TCP of Python's
standard library.

A process takes 15 MB, and not the 300 of PyTorch and its launcher, so that 64 nodes fit into one
machine. The lines, the rounds and the judgement are the same as in the framework ``pairs``.
"""

from __future__ import annotations

from pathlib import Path

from tests.support.commands import REPOSITORY

FRAMEWORK = """\
title: links between pairs of nodes, over plain TCP
measures: pairs
launch: every_node
models: {plain_pairs: {}}
dtypes: {cpu: {none: none}}
defaults: {dtype: none, steps: 13, warmup_steps: 1, timeout_s: 1800, repeats: 1}
options:
  size_bytes: {type: int, default: 262144, minimum: 4, help: bytes}
  iterations: {type: int, default: 3, minimum: 1, help: transfers}
  all_reduce: {type: bool, default: false, help: none}
files: [{template: launch.sh.j2, path: launch.sh, mode: "0700"}]
payload: [plain_pairs.py, rounds.py]
probe: "print('{}')"
log:
  files: [node.out]
  nodes: every
  readings: '%s'
"""
LAUNCH = """\
. ./env.sh
exec {{ python }} -I -S {{ payload["plain_pairs.py"] }} {{ node.node_rank }} {{ spec.steps }} {{ spec.warmup_steps }} \\
  {{ options.size_bytes }} {{ options.iterations }} {{ master_port }} {% for address in addresses %}{{ address }} {% endfor %}
"""
PROGRAM = """\
import os, socket, statistics, sys, threading, time
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from rounds import rounds

me, steps, warmup, size, iterations, port = map(int, sys.argv[1:7])
addresses, lines = sys.argv[7:], {}
RUN = os.environ["ORCH_RUN_ID"].encode()


def exactly(line, count):
    view = memoryview(bytearray(count))
    while view:
        got = line.recv_into(view)
        if not got:
            sys.exit("a peer hung up")
        view = view[got:]


def to(address):
    deadline = time.monotonic() + 600
    while True:
        try:
            line = socket.create_connection((address, port), timeout=600)
            break
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    line.sendall(RUN + b"%4d" % me)
    return line


def take(listener):
    # A node that was lost in the run before may still look for its peers.
    while True:
        line, _ = listener.accept()
        line.settimeout(600)
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        got = b""
        while len(got) < len(RUN) + 4 and (more := line.recv(len(RUN) + 4 - len(got))):
            got += more
        if got.startswith(RUN) and len(got) == len(RUN) + 4:
            lines[int(got[len(RUN):])] = line
            return
        line.close()


def barrier():
    for line in followers if me == 0 else [lines[0]]:
        line.recv(1) if me == 0 else line.sendall(b"x")
    for line in followers if me == 0 else [lines[0]]:
        line.sendall(b"x") if me == 0 else line.recv(1)


listener = socket.create_server((addresses[me], port), backlog=256)
taking = threading.Thread(target=lambda: [take(listener) for _ in range(len(addresses) - 1 - me)])
taking.start()
mine = {rank: to(addresses[rank]) for rank in range(me)}
taking.join()
lines.update(mine)
followers = [lines[rank] for rank in sorted(lines)]
data = bytes(size)


def both(line, leads):
    sending = threading.Thread(target=line.sendall, args=(data,))
    sending.start()
    exactly(line, size)
    sending.join()
    ping(line, leads)


def one_way(line, sends, leads):
    if sends:
        line.sendall(data)
        exactly(line, 8) if leads else None
    else:
        exactly(line, size)
        None if leads else line.sendall(b"acknowle")


def request(line, leads):
    line.sendall(b"requests") if leads else exactly(line, 8)
    exactly(line, size) if leads else line.sendall(data)


def ping(line, leads):
    if leads:
        line.sendall(b"question")
        exactly(line, 8)
    else:
        exactly(line, 8)
        line.sendall(b"answered")


KINDS = (("a-to-b", size, lambda line, leads: one_way(line, leads, leads)), ("b-to-a", size, request), ("both", size, both),
         ("ping", 8, ping))
for sweep in range(1 - warmup, steps - warmup + 1):
    for number, pairs in enumerate(rounds(len(addresses), sweep), start=1):
        barrier()
        for a, b in pairs:
            if me in (a, b):
                line, leads = lines[b if me == a else a], me == a
                for name, count, transfer in KINDS:
                    ping(line, leads)
                    times = []
                    for _ in range(iterations):
                        begin = time.monotonic()
                        transfer(line, leads)
                        times.append(time.monotonic() - begin)
                    if leads and sweep > 0:
                        words = "orch pair sweep=%d round=%d a=%d b=%d local_rank=0 direction=%s size_bytes=%d time_s=%.9f"
                        print(words % (sweep, number, a, b, name, count, statistics.median(times)), flush=True)
"""


def write(project: Path) -> None:
    """Write the framework into the templates of a project, with the rounds of `pairs.py`."""
    folder = project / "templates" / "plain_pairs"
    folder.mkdir(parents=True)
    shipped = (REPOSITORY / "templates/pairs/framework.yaml").read_text()
    readings = shipped.partition("  readings: '")[2].partition("'\n")[0]
    (folder / "framework.yaml").write_text(FRAMEWORK % readings)
    (folder / "launch.sh.j2").write_text(LAUNCH)
    (folder / "plain_pairs.py").write_text(PROGRAM)
    source = (REPOSITORY / "remote/trainers/torch/pairs.py").read_text()
    rounds = "def rounds(" + source.partition("def rounds(")[2].partition("\n\n\n")[0]
    imports = "import zlib\nfrom typing import List, Optional, Tuple\nPair = Tuple[int, int]"
    (folder / "rounds.py").write_text(f"{imports}\n\n\n{rounds}\n")
