"""Ranks of a PyTorch program as processes of their own, forked from one that has imported PyTorch.

The import takes a second or two of processor time, in every rank and in torchrun besides: most of
what such a test costs. A rank has the arguments, environment and streams that torchrun gives it.
That torchrun does so is held by tests that use
`tests.support.trainers.torchrun`, and in a lab.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from tests.support.fork_server import ForkServer
from tests.support.judge import LIMIT_S
from tests.support.ports import free_port
from tests.support.trainers import FLAT, PYTHON

ENVIRONMENT = {
    "PATH": os.environ["PATH"],
    "GLOO_SOCKET_IFNAME": "lo",
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": str(FLAT),
    # Compile in the rank itself: processes for it would each import PyTorch first.
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
}
OPTIMIZERS = ("torch._dynamo",)
"""What the first optimizer of a rank imports: most of the time of a rank that trains a few steps."""
SERVER = """
import importlib, json, os, runpy, signal, sys
import torch, torch.distributed, torch.nn.parallel
def be(order, rank):
    for name, number in (("out", 1), ("err", 2)):
        os.dup2(os.open(f"{order['folder']}/rank.sh-{rank}.{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    node, local = divmod(rank, order["nproc"])
    identity = {"RANK": rank, "LOCAL_RANK": local, "GROUP_RANK": node, "WORLD_SIZE": order["nodes"] * order["nproc"],
                "LOCAL_WORLD_SIZE": order["nproc"], "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": order["port"]}
    os.environ.update({name: str(value) for name, value in identity.items()})
    sys.argv = [order["program"], *order["arguments"]]
    sys.path[0] = os.path.dirname(order["program"])
    runpy.run_path(order["program"], run_name="__main__")
for line in sys.stdin:
    order = json.loads(line)
    for name in order["imports"]:
        importlib.import_module(name)
    ranks = {}
    for rank in range(order["nodes"] * order["nproc"]):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                be(order, rank)
                code = 0
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
                if code and end.code != code:
                    print(end.code, file=sys.stderr)
            except BaseException:
                sys.excepthook(*sys.exc_info())
            finally:
                sys.stdout.flush(), sys.stderr.flush()
                os._exit(code)
        ranks[pid] = rank
    codes = {}
    while ranks:
        pid, status = os.wait()
        codes[ranks.pop(pid)] = code = os.waitstatus_to_exitcode(status)
        for other in ranks if code else ():
            os.kill(other, signal.SIGTERM)
    print(json.dumps([codes[rank] for rank in sorted(codes)]), flush=True)
"""


@cache
def server() -> ForkServer:
    """Return the server of this test process, which ends with it."""
    forks = ForkServer([PYTHON, "-u", "-c", SERVER], ENVIRONMENT)
    atexit.register(forks.close)
    return forks


def ranks(
    program: Path,
    arguments: Sequence[str],
    folder: Path,
    nproc: int,
    *,
    nodes: int = 1,
    imports: Sequence[str] = (),
) -> list[str]:
    """Run a program of PyTorch in ``nproc`` ranks on each of some nodes; return what each rank
    printed, in order of rank.

    ``imports``: modules that all ranks share from then on, imported before the first of them. What
    they wrote lies in ``folder``, where `tests.support.trainers.torchrun` has it as well.
    """
    order = {
        "program": str(program),
        "arguments": list(arguments),
        "folder": str(folder),
        "nproc": nproc,
        "nodes": nodes,
    }
    order["imports"] = list(imports)
    try:
        codes = server().ask({**order, "port": free_port()}, timeout_s=LIMIT_S)
    except TimeoutError:
        server.cache_clear()
        raise
    errors = "".join(path.read_text() for path in sorted(folder.glob("*.err")))
    assert codes == [0] * nproc * nodes, f"{codes}: {errors}"
    return [(folder / f"rank.sh-{rank}.out").read_text() for rank in range(nproc * nodes)]
