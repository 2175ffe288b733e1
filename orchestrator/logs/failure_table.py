"""Known failures of training programs and the words that show them, for `orchestrator.logs.failures`.

Each pattern is part of a message as the program prints it. Quantifiers are bounded and never nested, so that the time for a
hostile line is at most proportional to its length.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["CAUSE", "CONSEQUENCE", "KNOWN", "SYMPTOM", "KnownFailure"]

CAUSE, SYMPTOM, CONSEQUENCE = 3, 2, 1
"""Weights of lines: a cause explains the failure, a symptom does not, a consequence only reports another process."""


@dataclass(frozen=True, slots=True)
class KnownFailure:
    """One known failure. A line shows it if it matches ``pattern`` but not ``unless``, a harmless use of the same words."""

    kind: str
    weight: int
    cause: str
    remedy: str
    pattern: re.Pattern[str]
    unless: re.Pattern[str] | None = None


def _known(kind: str, weight: int, cause: str, remedy: str, words: tuple[str, ...], unless: str = "") -> KnownFailure:
    pattern = re.compile("|".join(words), re.IGNORECASE)
    return KnownFailure(kind, weight, cause, remedy, pattern, re.compile(unless, re.IGNORECASE) if unless else None)


_SMALLER = "lower --batch-size, or end other processes on the device: see nvidia-smi"

KNOWN = (
    _known(
        "out_of_memory",
        CAUSE,
        "the GPU had no memory left",
        _SMALLER,
        (
            "CUDA out of memory",
            r"CUDA error: out of memory",
            "CUDA_ERROR_OUT_OF_MEMORY",
            "cudaErrorMemoryAllocation",
            r"torch(?:\.cuda)?\.OutOfMemoryError",
            "CUBLAS_STATUS_ALLOC_FAILED",
            "CUDNN_STATUS_ALLOC_FAILED",
            r"OOM when allocating tensor",
            r"ResourceExhaustedError",
            r"Resource exhausted: Out of memory",
            r"RESOURCE_EXHAUSTED: Out of memory",
            "Out of memory error on GPU",
            "HIP out of memory",
            "Cuda failure 'out of memory'",
        ),
        unless="the caller indicates that this is not a failure",
    ),
    _known(
        "host_out_of_memory",
        CAUSE,
        "the node had no memory left",
        "lower --batch-size or --gpus, or free memory on the node",
        (
            r"\bMemoryError\b",
            "Cannot allocate memory",
            "DefaultCPUAllocator: can't allocate memory",
            "std::bad_alloc",
            r"Out of memory: Killed process",
            "oom-kill:",
            "Detected [0-9]{1,6} oom[-_]kill event",
        ),
    ),
    _known(
        "shared_memory",
        CAUSE,
        "the node's /dev/shm is full",
        "give the node more shared memory (docker run --shm-size), or use fewer loader workers",
        (
            "insufficient shared memory",
            "out of shared memory",
            r"unable to (?:open|write to|allocate) shared memory",
            r"No space left on device.{0,80}/dev/shm",
            r"/dev/shm.{0,120}No space left on device",
            r"DataLoader worker \(pid [0-9(), ]{1,20}\) is killed by signal: Bus error",
        ),
    ),
    _known(
        "disk_full",
        CAUSE,
        "a disk is full",
        "free some space on the node, or set vars.workdir to another disk",
        ("No space left on device", "Disk quota exceeded", r"\bENOSPC\b"),
    ),
    _known(
        "port_in_use",
        CAUSE,
        "a port that the program needs is in use",
        "find the process that listens on it with ss -ltnp on that node; the next run gets another port automatically",
        ("Address already in use", r"\bEADDRINUSE\b", "Could not start gRPC server", r"Port [0-9]{1,5} conflict"),
    ),
    _known(
        "driver_mismatch",
        CAUSE,
        "the NVIDIA driver and its libraries are of different versions",
        "reboot the node, or reload its driver: it was updated while it was loaded",
        (
            "Driver/library version mismatch",
            r"kernel version [0-9.]{1,20} does not match DSO version",
            "CUDA driver version is insufficient for CUDA runtime version",
            "forward compatibility was attempted on non",
            r"NVIDIA driver on your system is too old",
            "cudaErrorInsufficientDriver",
            "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
        ),
    ),
    _known(
        "no_device",
        CAUSE,
        "the program found no GPU",
        "check nvidia-smi -L on the node, and vars.cuda_visible_devices",
        (
            "no CUDA-capable device is detected",
            "CUDA_ERROR_NO_DEVICE",
            "Found no NVIDIA driver on your system",
            "invalid device ordinal",
            "No CUDA GPUs are available",
            "Torch not compiled with CUDA enabled",
        ),
    ),
    _known(
        "hardware",
        CAUSE,
        "a GPU failed",
        "exclude the node, and check dmesg (Xid) and nvidia-smi -q on it",
        (
            "uncorrectable (?:NVLink|ECC) error",
            r"\bXid \([^)]{1,40}\): [0-9]{1,3}",
            "GPU has fallen off the bus",
            "CUDA_ERROR_ECC_UNCORRECTABLE",
        ),
    ),
    _known(
        "missing_module",
        CAUSE,
        "a Python module is missing",
        "install it for the interpreter that vars.python of this host names",
        (r"ModuleNotFoundError: No module named", r"ImportError: No module named"),
    ),
    _known(
        "missing_library",
        CAUSE,
        "a shared library is missing",
        "install it, or put its folder into LD_LIBRARY_PATH under env: in the inventory",
        (
            r"error while loading shared libraries",
            r"cannot open shared object file",
            r"undefined symbol: \S",
            r"version `(?:GLIBC|GLIBCXX|CXXABI)_[0-9.]{1,12}' not found",
        ),
        # NCCL tries plug-ins, and TensorFlow TensorRT; both work without them.
        unless=r"NCCL INFO|Could not load dynamic library|dso_loader",
    ),
    _known(
        "not_found",
        CAUSE,
        "a file or program is missing on the node",
        "correct the path in inventory or options, or copy the file there",
        (r"FileNotFoundError: ", r": command not found\b", r"[]:] No such file or directory\s{0,9}$"),
        unless=r"NCCL INFO|cannot open shared object file",
    ),
    _known(
        "permission",
        CAUSE,
        "the login user does not have a permission that the program needs",
        "check owner and mode of the path in the line",
        (r"PermissionError: ", r": Permission denied\s{0,9}$", r"Operation not permitted"),
        unless=r"Permission denied \((?:publickey|gssapi)",
    ),
    _known(
        "remote_shell",
        CAUSE,
        "the launcher could not log in to another node",
        "set up ssh keys between the nodes",
        (
            r"Permission denied \(publickey",
            "Host key verification failed",
            "ORTE was unable to reliably start one or more daemons",
            "PRTE has lost communication with a remote daemon",
            "unable to launch the specified application",
        ),
    ),
    _known(
        "no_slots",
        CAUSE,
        "mpirun was given too few slots",
        "lower --gpus, or raise gpus: or slots: in the inventory",
        ("There are not enough slots available in the system",),
    ),
    _known(
        "illegal_instruction",
        CAUSE,
        "the program was built for another processor",
        "install a build for this node's processor",
        (
            "Illegal instruction",
            "CPU instructions that your machine doesn't have",
            "no kernel image is available for execution on the device",
        ),
    ),
    _known(
        "collective_timeout",
        SYMPTOM,
        "a collective operation timed out",
        "another rank was slow, hung or dead: check the rank with the shortest log",
        (
            "Watchdog caught collective operation timeout",
            r"Some NCCL operations have failed or timed out",
            "NCCL timeout",
            r"Timed out waiting [0-9]{1,12} ?ms for (?:recv|send)",
            r"wait timeout after [0-9]{1,12} ?ms",
            "DEADLINE_EXCEEDED",
            "Deadline Exceeded",
            r"Timed out after [0-9]{1,9} seconds waiting for clients",
        ),
    ),
    _known(
        "nccl_system_error",
        SYMPTOM,
        "NCCL got a system error",
        "run again with NCCL_DEBUG: INFO under env: in the inventory",
        (
            "ncclSystemError",
            "unhandled system error",
            "ncclUnhandledCudaError",
            "unhandled cuda error",
            "ncclInternalError",
            "Got completion (?:from peer )?.{0,80}(?:with error|with status=)",
        ),
    ),
    _known(
        "no_route",
        SYMPTOM,
        "one node cannot reach another",
        "check vars.interface, the addresses, and firewalls between the nodes",
        ("No route to host", "Network is unreachable", r"connect(?:ion)? timed out", "Unable to find address for"),
    ),
    _known(
        "ended_elsewhere",
        CONSEQUENCE,
        "another process of the run had ended",
        "look for the first failure, on another rank or node",
        (
            r"connection (?:was )?(?:closed|reset|refused|aborted)",
            "closed the connection",
            r"\bbroken pipe\b",
            r"remote process (?:has )?exited",
            "ncclRemoteError",
            r"\bChildFailedError\b",
            r"\bECONNRESET\b",
            r"\bEPIPE\b",
            r"socket closed\b",
            r"\bUNAVAILABLE: ",
            r"Sending process group signal|Sending process [0-9]{1,9} closing signal",
            r"SignalException: Process [0-9]{1,9} got signal",
            r"received (?:death )?signal.{0,20}SIGTERM",
            r"peer .{0,60}(?:is gone|went away)",
            "Aborted by peer",
            r"mpirun has exited due to|exited on signal [0-9]{1,2} \(Terminated\)",
            "TCPStore.{0,60}recvValue failed",
        ),
    ),
    _known(
        "network_fallback",
        CONSEQUENCE,
        "NCCL found no InfiniBand and uses TCP between nodes",
        "check ibstat on the node, and NCCL_IB_HCA; a slow link alone does not make a run fail",
        (r"NCCL INFO NET/IB : No device found", r"NCCL INFO Using network Socket"),
    ),
)
