"""Tell from the stack of a rank if it waits for other ranks, or waits or works for itself.

A function of C has no frame, so the source line of its caller counts as well. A name proves little
in a stack of any program:
`wait` of a file of PyTorch's collectives waits for ranks, `wait` of `threading` does not.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from orchestrator.features.hang.node_report import Call, RankSeen

_FRAME = re.compile(
    r'File "(?P<file>[^"]*)", line \d+ in (?P<faulthandler>\S+)|^\s+(?P<spy>\S+) \([^)]*:\d+\)$'
)
BACKWARD = "the backward pass"
_DEEP = 6
"""Frames, innermost first, in which a collective is looked for."""
_COLLECTIVE_NAMES = re.compile(
    r"\b(all_?reduce\w*|all_?gather\w*|reduce_scatter\w*|(monitored_)?barrier|broadcast\w*|all_?to_?all\w*|_exchange|wait_tensor"
    r"|Allreduce|Allgather\w*|Alltoall\w*|Barrier|Bcast|block_until_ready|effects_barrier|sync_global_devices|wait_for_everyone"
    r"|_verify_params_across_processes|_sync_module_states)\b",
    re.IGNORECASE,
)
"""Functions of torch.distributed, DeepSpeed, Horovod, mpi4py, Paddle, JAX, Accelerate, and of our
simulated ring.
"""
_COLLECTIVE_FILES = re.compile(
    r"(torch/distributed/(distributed_c10d|_functional_collectives|rendezvous|utils)|torch/nn/parallel/distributed"
    r"|torch/distributed/(_composable/)?fsdp/\w+|deepspeed/comm/\w+|horovod/\w+/mpi_ops|mpi4py/\w+|paddle/distributed/\S*\w+"
    r"|jax/experimental/multihost_utils)\.py$"
)
"""Files of which every innermost frame waits for other ranks. Names of functions such as `send`,
`gather` are too common.
"""
_BACKWARD = re.compile(r"torch/autograd/\w+\.py$")
_ENGINE = ("_engine_run_backward", "run_backward", "backward", "grad")
"""Gradients are averaged in the backward pass, which C++ waits for in these functions."""
_WAITING_CODE = re.compile(
    r"[\w.\[\]]*store\w*\.(wait|get)\(|[\w.\[\]]*\.(wait|wait_all|Wait|Waitall)\("
    r"|\b([aA]ll_?reduce|[aA]ll_?gather\w*|[rR]educe_scatter\w*|[bB]arrier|[bB]roadcast\w*|Bcast|[aA]ll_?to_?all\w*)\("
    r"|\bblock_until_ready\("
)
"""Of programs alone: a `wait` of Python's own library has a frame there."""
_LOOP = "a loop, for a condition"
_MONITORED = "monitored_barrier"
_AT_A_STORE = re.compile(rf"store\w*\.|{_MONITORED}|_new_process_group_helper|{_LOOP}")
_OF_SOME = re.compile(
    r"broadcast|Bcast|(^|\.)(gather|scatter|reduce|Gatherv?|Scatterv?|Reduce)(_object\w*)?$"
    r"|\b(i?send\w*|i?recv\w*|batch_isend_irecv)$|\.(wait|wait_all|Wait|Waitall)$"
)
_DEVICE_CODE = re.compile(
    r"synchronize\(|\.(item|cpu|tolist|numpy|nonzero)\(|\b(float|int|bool|print)\("
)
"""Calls that wait for a GPU, and so for the collectives that are queued there."""
_DEVICE_FILES = re.compile(r"torch/(cuda|xpu|accelerator)/\w+\.py$|torch/_tensor\w*\.py$")
_INSTALLED = re.compile(r"/lib(64)?/python3|/(site|dist)-packages/|^<")
_LIBRARY = re.compile(r"/lib(64)?/python3[^/]*/(?!site-packages/|dist-packages/)")
_OPAQUE = re.compile(
    r"/(tensorflow|jax|jaxlib|paddle|mxnet|oneflow|mindspore|horovod|deepspeed|mpi4py|ray)/"
)
"""Packages whose native calls may contain collectives that have no name in a stack."""
_PARENTS = re.compile(
    r"(torch/(multiprocessing/spawn|distributed/(run|launcher\S*|elastic\S*))|accelerate/commands\S*|deepspeed/launcher\S*)"
)
"""Programs that wait for the processes of ranks, and are none."""
_LOCAL_CALLS = (
    "nanosleep", "clock_nanosleep", "wait4", "waitid", "fsync", "fdatasync", "openat", "read", "readv", "pread64",
    "write", "writev", "pwrite64",
)  # fmt: skip
"""System calls by which no library for collectives waits for other ranks."""
_LOCAL_CODE = re.compile(
    r"\bsleep\(|\.(acquire|join|result|communicate|recv\w*|read\w*|accept|select|get)\(|\b(input|open)\("
)


def calls_of(seen: RankSeen) -> tuple[Call, ...]:
    """Return the Python calls of the main thread, innermost first; of an older report only their
    names.
    """
    if seen.calls:
        return seen.calls
    return tuple(
        Call(match["faulthandler"] or match["spy"])
        for match in map(_FRAME.search, main_stack(seen))
        if match
    )


def main_stack(seen: RankSeen) -> tuple[str, ...]:
    """Return the main thread's stack, innermost first: the last that faulthandler writes, the first
    that py-spy does.
    """
    starts = [
        number
        for number, line in enumerate(seen.python)
        if line.startswith(("Thread ", "Current thread "))
    ]
    if not starts:
        return seen.python
    if "MainThread" in "".join(
        seen.python[:4]
    ):  # py-spy names threads, and begins with the main one
        return seen.python[starts[0] + 1 : starts[1] if len(starts) > 1 else None]
    return seen.python[starts[-1] + 1 :]


def waits_for_others(seen: RankSeen) -> str:
    """Return the words for a call by which a rank waits for others, empty if its stacks show none."""
    calls = calls_of(seen)
    if not calls:
        return ""
    inner = calls[0]
    if inner.polls or any(call.polls for call in calls[:3]):
        return f"{_LOOP} ({_name_call(next(call for call in calls if call.polls))})"
    if named := _collective(calls):
        return named
    if _BACKWARD.search(inner.file) and inner.name.rpartition(".")[2] in _ENGINE:
        return BACKWARD
    if not _LIBRARY.search(inner.file) and (found := _WAITING_CODE.search(inner.code)):
        return found[0].rstrip("(").lstrip(".")
    if seen.uses_device and (_DEVICE_FILES.search(inner.file) or _DEVICE_CODE.search(inner.code)):
        return f"a call that waits for its GPU ({inner.name})"
    return next(
        (f"{named} of another thread" for thread in seen.beside if (named := _collective(thread))),
        "",
    )


def is_apart(place: str) -> bool:
    """Return True if a wait in this place is none in a collective: one at a store, for a condition,
    or for all to make a process group.
    """
    return bool(_AT_A_STORE.search(place))


def is_of_a_group(place: str) -> bool:
    """Return True if a wait in this place, which no recorder holds, may be for a part of all ranks."""
    return _MONITORED in place


def is_a_loop(place: str) -> bool:
    """Return True if a wait in this place is a loop of the program that sleeps between looks, as a
    checkpoint or an upload has one too."""
    return place.startswith(_LOOP)


def is_of_some(place: str) -> bool:
    """Return True if a wait in this place may be over for some ranks, as for the root of a
    broadcast, or is for one other rank alone: it does not tell who is behind."""
    return bool(_OF_SOME.search(place)) and not is_apart(place)


def is_for_itself(seen: RankSeen, *, computes: bool) -> bool:
    """Return True if the stack and the system call of a rank show that it waits, or works, for
    itself and not for others.
    """
    calls = calls_of(seen)
    if not calls or any(_PARENTS.search(call.file) for call in calls) or waits_for_others(seen):
        return False
    if any(_OPAQUE.search(call.file) for call in calls[:2]):
        return False
    if computes:  # a GPU's own call may spin
        return not seen.uses_device
    inner = calls[0]
    return bool(
        seen.call in _LOCAL_CALLS or _LIBRARY.search(inner.file) or _LOCAL_CODE.search(inner.code)
    )


def is_inside_for_itself(seen: RankSeen, *, computes: bool) -> bool:
    """Return True if the program's own code computes, or sleeps without a collective on record,
    inside of a collective's function, such as a hook or a handler of a signal."""
    calls = calls_of(seen)
    at = _find_collective(calls)
    is_own = at > 0 and bool(calls[0].file) and not _INSTALLED.search(calls[0].file)
    return is_own and (computes or (seen.collectives is not None and seen.call in _LOCAL_CALLS))


def _find_collective(calls: Sequence[Call]) -> int:
    """Return the place of the collective among the innermost calls of a thread, -1 without one."""
    for at, call in enumerate(calls[:_DEEP]):
        if _COLLECTIVE_NAMES.fullmatch(call.name.rpartition(".")[2]):
            return at
    if calls and _COLLECTIVE_FILES.search(calls[0].file):
        return 0
    return -1


def _collective(calls: Sequence[Call]) -> str:
    """Return the name of the collective among the innermost calls of a thread, empty without one."""
    at = _find_collective(calls)
    return calls[at].name.rpartition(".")[2] if at >= 0 else ""


def _name_call(call: Call) -> str:
    return f"in {call.name}"
