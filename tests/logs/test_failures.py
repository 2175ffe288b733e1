"""Known ways to fail, found in the words in which real programs say them, and not in harmless uses
of the same words.
"""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest
import yaml

from orchestrator.logs import endings, known_failure
from orchestrator.logs import failures as diagnosis
from orchestrator.logs.failure_table import KNOWN
from orchestrator.logs.failures import LAST_OUTPUT, diagnose, is_consequence, last_output
from orchestrator.record.node_record import ExitRecord

CAUSES = {
    "torch 2": ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of "
    "79.32 GiB",
                "out_of_memory"),
    "torch 1": ("RuntimeError: CUDA out of memory. Tried to allocate 1.50 GiB (GPU 3; 15.78 GiB total capacity)",
        "out_of_memory"),
    "cublas": ("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", "out_of_memory"),
    "cudnn": ("Could not create cudnn handle: CUDNN_STATUS_ALLOC_FAILED", "out_of_memory"),
    "tensorflow": ("tensorflow.python.framework.errors_impl.ResourceExhaustedError: OOM when allocating tensor with "
                   "shape[128,64,112,112]", "out_of_memory"),
    "xla": ("2021-07-21 23:23:06: E cuda_driver.cc:828] failed to allocate 32.00M from device: CUDA_ERROR_OUT_OF_MEMORY: "
    "out of "
            "memory", "out_of_memory"),
    "paddle": ("ResourceExhaustedError: \n\nOut of memory error on GPU 0. Cannot allocate 3.06GB memory on GPU 0",
        "out_of_memory"),
    "nccl cuda": ("node1:12:12 [0] enqueue.cc:1 NCCL WARN Cuda failure 'out of memory'", "out_of_memory"),
    "ours": ("orch: simulated fault: CUDA out of memory", "out_of_memory"),
    "kernel": ("[12345.6] Out of memory: Killed process 4242 (python3) total-vm:81234kB", "host_out_of_memory"),
    "slurm": ("slurmstepd: error: Detected 1 oom_kill event in StepId=123.0.", "host_out_of_memory"),
    "python": ("MemoryError", "host_out_of_memory"),
    "numpy": ("numpy.core._exceptions.MemoryError: Unable to allocate 1.2 TiB for an array", "host_out_of_memory"),
    "fork": ("OSError: [Errno 12] Cannot allocate memory", "host_out_of_memory"),
    "shm": ("RuntimeError: unable to write to file </torch_12_3>: DataLoader worker (pid 77) is killed by signal: Bus "
    "error. It is "
            "possible that dataloader's workers are out of shared memory.", "shared_memory"),
    "port": ("torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. "
    "The server "
             "socket has failed to bind to [::]:29500 (errno: 98 - Address already in use).", "port_in_use"),
    "port, new words": ("RuntimeError: The server socket has failed to listen on any local network address. port: 29500, "
    "useIpv6: "
                        "0, code: -98, name: EADDRINUSE, message: address already in use", "port_in_use"),
    "grpc": ("tensorflow.python.framework.errors_impl.UnknownError: Could not start gRPC server", "port_in_use"),
    "library": ("ImportError: libcudnn.so.8: cannot open shared object file: No such file or directory", "missing_library"),
    "libcuda": ("OSError: libcuda.so.1: cannot open shared object file: No such file or directory", "missing_library"),
    "loader": ("./train: error while loading shared libraries: libmpi.so.40: cannot open shared object file",
        "missing_library"),
    "module": ("ModuleNotFoundError: No module named 'torch'", "missing_module"),
    "disk": ("OSError: [Errno 28] No space left on device: 'logs/rank-0.out'", "disk_full"),
    "nvml": ("Failed to initialize NVML: Driver/library version mismatch", "driver_mismatch"),
    "old driver": ("RuntimeError: The NVIDIA driver on your system is too old (found version 11040).", "driver_too_old"),
    "dso": ("kernel version 460.91.3 does not match DSO version 470.57.2 -- cannot find working devices", "driver_mismatch"),
    "no gpu": ("RuntimeError: No CUDA GPUs are available", "no_device"),
    "ecc": ("RuntimeError: CUDA error: uncorrectable ECC error encountered", "hardware"),
    "slots": ("There are not enough slots available in the system to satisfy the 8 slots", "no_slots"),
    "rsh": ("root@node2: Permission denied (publickey).", "remote_shell"),
    "command": ("launch.sh: line 12: horovodrun: command not found", "not_found"),
    "program": ("python3: can't open file '/opt/x/train.py': [Errno 2] No such file or directory", "not_found"),
}  # fmt: skip
MEMORY = CAUSES["torch 2"][0]
SYMPTOMS = {
    "watchdog": ("[rank1]:[E1106 ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=4, "
                 "OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600061 milliseconds before timing out.", "collective_timeout"),
    "gloo": ("RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation to "
    "complete",
             "collective_timeout"),
    "system": ("torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1275, unhandled system error, "
    "NCCL version "
               "2.18.1\nncclSystemError: System call (e.g. socket, malloc) or external library call failed",
        "nccl_system_error"),
    "route": ("OSError: [Errno 113] No route to host", "no_route"),
}  # fmt: skip
CONSEQUENCES = (
    "RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.11.0.3]:41234",
    "node1:7:9 [1] misc/socket.cc:518 NCCL WARN Net : Call to recv from 10.200.84.247<58355> failed : Broken pipe",
    "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
    "ConnectionResetError: [Errno 104] Connection reset by peer",
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:",
    "rank 1 closed the connection",
    "W torch/distributed/elastic/agent/server/api.py: Sending process 4711 closing signal SIGTERM",
    "torch.distributed.elastic.multiprocessing.api.SignalException: Process 12 got signal: 15",
)
HARMLESS = (
    "node1:1:2 [0] NCCL INFO TUNER/Plugin: Plugin load returned 2 : libnccl-net.so: cannot open shared object file: No "
    "such file or "
    "directory : when loading libnccl-tuner.so",
    "W dso_loader.cc:64] Could not load dynamic library 'libnvinfer.so.7'; dlerror: libnvinfer.so.7: cannot open shared "
    "object file",
    "W bfc_allocator.cc:272] Allocator (GPU_0_bfc) ran out of memory trying to allocate 16.00MiB with freed_by_count=0. "
    "The caller "
    "indicates that this is not a failure, but may mean that there could be performance gains if more memory were available.",
    "orch step=12 t=12345.678901 step_time_s=0.251034 samples=1024 loss=6.9123",
    "epoch 1: memory 31.2 GiB, lr 0.1",
    "",
)  # fmt: skip


def test_the_examples_in_the_docstrings_hold() -> None:
    assert all(
        doctest.testmod(module).failed == 0 for module in (diagnosis, endings, known_failure)
    )


@pytest.mark.parametrize("name", [*CAUSES, *SYMPTOMS])
def test_a_known_failure_is_found_in_the_words_of_the_program_that_has_it(name: str) -> None:
    text, kind = (CAUSES | SYMPTOMS)[name]
    found = diagnose(f"orch step=1 loss=1\nTraceback (most recent call last):\n{text}\n")
    assert found and found.kind == kind and found.line in text and found.cause and found.remedy
    assert not is_consequence(text)


@pytest.mark.parametrize("text", CONSEQUENCES)
def test_what_only_complains_of_another_process_is_a_consequence(text: str) -> None:
    assert is_consequence(text)
    for cause, kind in CAUSES.values():
        for both in (f"{text}\n{cause}", f"{cause}\n{text}"):
            found = diagnose(both)
            assert found and found.kind == kind and not is_consequence(both)


@pytest.mark.parametrize("text", HARMLESS)
def test_harmless_lines_blame_nobody(text: str) -> None:
    assert diagnose(text) is None and not is_consequence(text)


def test_a_cause_goes_before_a_symptom_and_of_exceptions_the_last_one_counts() -> None:
    timeout, full, module = SYMPTOMS["watchdog"][0], CAUSES["disk"][0], CAUSES["module"][0]
    assert [
        found.kind
        for text in (f"{timeout}\n{full}\n{module}", f"{module}\n{full}")
        if (found := diagnose(text))
    ] == [
        "missing_module",
        "disk_full",
    ]


def test_of_plain_lines_the_first_cause_counts() -> None:
    memory, loss = CAUSES["kernel"][0], CAUSES["nvml"][0]
    assert [
        found.kind
        for text in (f"{memory}\n{loss}", f"{loss}\n{memory}")
        if (found := diagnose(text))
    ] == [
        "host_out_of_memory",
        "driver_mismatch",
    ]


def test_nccl_on_tcp_is_told_only_where_nothing_else_is() -> None:
    fallback = "n:1:1 [0] NCCL INFO NET/IB : No device found."
    assert (
        (found := diagnose(fallback))
        and found.kind == "network_fallback"
        and not is_consequence(fallback)
    )
    assert (
        found := diagnose(f"{fallback}\n{SYMPTOMS['system'][0]}")
    ) and found.kind == "nccl_system_error"


ROWS = yaml.safe_load(Path(__file__).with_name("known_failures.yaml").read_text(encoding="utf-8"))
UNKNOWN = (
    'Traceback (most recent call last):\n  File "own.py", line 7, in <module>\nValueError: got 7\n'
)


def test_each_known_failure_has_its_cases() -> None:
    assert [row["kind"] for row in ROWS] == list(dict.fromkeys(row["kind"] for row in ROWS))
    assert {row["kind"] for row in ROWS} == {row.kind for row in KNOWN}
    assert all(row["seen"] and row["harmless"] for row in ROWS)


@pytest.mark.parametrize(
    ("kind", "text"), [(row["kind"], text) for row in ROWS for text in row["seen"]]
)
def test_a_known_failure_is_found_where_it_ended_the_program(kind: str, text: str) -> None:
    for log in (
        text,
        f"step 1\n{text}",
        f"mbind: Operation not permitted\nstep 1 loss 2.3\n{text}\n\n",
    ):
        found = diagnose(log)
        assert found and found.kind == kind, found


@pytest.mark.parametrize(
    ("kind", "text"), [(row["kind"], text) for row in ROWS for text in row["harmless"]]
)
def test_the_same_words_in_a_harmless_line_are_no_cause(kind: str, text: str) -> None:
    """Neither alone, nor before another end, known or not; nor behind the other lines of a log."""
    other = MEMORY if kind != "out_of_memory" else "ModuleNotFoundError: No module named 'apex'\n"
    assert diagnose(f"{text}\n{UNKNOWN}") is None
    assert last_output(f"{text}\n{UNKNOWN}".splitlines()) == f"{LAST_OUTPUT}ValueError: got 7"
    found = diagnose(f"{text}\nstep 1\n{other}")
    assert found and found.kind != kind and found.is_end


RANKS = [
    {"rank": 0, "code": None, "signal": "SIGTERM"},
    {"rank": 1, "code": None, "signal": "SIGKILL"},
]


@pytest.mark.parametrize(
    ("record", "rank", "kind"),
    [
        ({"oom_kills": 1, "ranks": RANKS}, None, "host_out_of_memory"),
        ({"oom_kills": 1, "ranks": RANKS}, 1, "host_out_of_memory"),
        ({"oom_kills": 2, "ranks": []}, None, "host_out_of_memory"),
        ({"oom_kills": 1, "ranks": RANKS}, 0, None),
        ({"oom_kills": 0, "ranks": RANKS}, 1, None),
        ({"oom_kills": None, "ranks": RANKS}, 1, None),
        ({"ranks": RANKS}, 1, None),
    ],
)
def test_the_kernels_kills_for_memory_are_in_no_log_but_in_the_record(
    record: dict[str, object], rank: int | None, kind: str
) -> None:
    whole = {"schema": 1, "state": "failed", "node_rank": 0, "ranks": [], "files": {}} | record
    found = diagnose("orch step=3\n", ExitRecord.of(whole).memory_kills(rank))
    assert (found.kind if found else None) == kind


@pytest.mark.parametrize(
    "line",
    [
        "a" * 1_000_000,
        "ImportError: " + "x" * 500_000,
        "peer " * 200_000,
        "Got completion from peer " * 40_000,
        ": No such file or directory" + " " * 500_000 + "x",
        "/dev/shm " * 100_000,
        "connection " * 100_000,
        "((((" * 250_000,
        "\n".join(["kernel version " + "1." * 1000] * 2000),
        "\x00\ud83d\x1b[2J" * 100_000,
    ],
)  # fmt: skip
def test_hostile_lines_cost_no_more_than_their_length(line: str) -> None:
    found = diagnose(line)
    assert found is None or len(found.line) <= 300


def test_what_is_shown_of_a_line_is_short() -> None:
    found = diagnose("CUDA out of memory " + "x" * 10_000)
    assert found and len(found.line) == 300 and found.line.endswith("…")


ABORTED = f"{'-' * 74}\nMPI_ABORT was invoked on rank 0 in communicator MPI_COMM_WORLD\nwith errorcode 1.\n{'-' * 74}"
SAID = {
    "SystemExit": ("warming up\nown.py: expected a batch that fits, got 7", "own.py: expected a batch that fits, got 7"),
    "argparse": ("usage: own.py [-h]\n    [--heads N]\nown.py: error: --heads: wants 4", "own.py: error: --heads: wants 4"),
    "the exception, not the rest of its message": (
        'Traceback (most recent call last):\n  File "t.py", line 8\n    main()\n    ^^^^^^\nValueError: got 2\n\n  of 3\nor 4',
        "ValueError: got 2",
    ),
    "the last of several": (
        "Traceback (most recent call last):\n  File\nKeyError: 3\n\nDuring handling of the above exception, another occurred:\n"
        "Traceback (most recent call last):\n  File\nRuntimeError: no such layer",
        "RuntimeError: no such layer",
    ),
    "raised from another": (
        "Traceback (most recent call last):\n  File\nOSError: no b\n\nThe above exception was the direct cause of the following"
        " exception:\n\nTraceback (most recent call last):\n  File\nRuntimeError: no a",
        "RuntimeError: no a",
    ),
    "the error before an abort": (
        "HPL ERROR from process # 0, on line 321 of function HPL_pdinfo:\n>>> Need at least 4 processes for these tests <<<\n"
        f"HPL ERROR from process # 0, on line 621 of function HPL_pdinfo:\n>>> Illegal input <<<\n\n{ABORTED}",
        "HPL ERROR from process # 0, on line 321 of function HPL_pdinfo: >>> Need at least 4 processes for these tests <<<",
    ),
    "an error, and MPICH": (
        "step 7: loss 2.5\nERROR: n must be a multiple of 64\nAbort(3) on node 0 (rank 0 in comm 0): application called"
        " MPI_Abort(MPI_COMM_WORLD, 3) - process 0\n\n=======\n=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n"
        "=   KILL STATUS: 9 (Killed)",
        "ERROR: n must be a multiple of 64",
    ),
    "a sentence before an abort": (
        f"This test requires exactly two processes\n{ABORTED}", "This test requires exactly two processes"
    ),
    "an abort alone": (ABORTED, "MPI_ABORT was invoked on rank 0 in communicator MPI_COMM_WORLD with errorcode 1."),
    "a sentence before torchrun's": (
        "own.py: expected 8 GPUs, got 2\nE1128 03:00:00.1 77 torch/distributed/elastic/multiprocessing/api.py:869] failed"
        " (exitcode: 1) local_rank: 0 (pid: 99) of binary: /usr/bin/python3\nTraceback (most recent call last):\n  File\n"
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n=====\nown.py FAILED\n-----\nFailures:\n"
        "  <NO_OTHER_FAILURES>\n-----\nRoot Cause (first observed failure):\n[0]:\n  exitcode  : 1 (pid: 99)\n=====",
        "own.py: expected 8 GPUs, got 2",
    ),
    "an error of MPICH, with its stack": (
        "step 4\nAbort(138021134) on node 1 (rank 1 in comm 0): Fatal error in internal_Recv: Message truncated, error stack:\n"
        "internal_Recv(127).: MPI_Recv(buf=0x7ffd, count=1) failed",
        "Abort(138021134) on node 1 (rank 1 in comm 0): Fatal error in internal_Recv: Message truncated, error stack:"
        " internal_Recv(127).: MPI_Recv(buf=0x7ffd, count=1) failed",
    ),
    "an error of Open MPI": (
        "[n1:44] *** An error occurred in MPI_Recv\n[n1:44] *** MPI_ERR_TRUNCATE: message truncated\n[n1:44] *** "
        "MPI_ERRORS_ARE_FATAL (processes in this communicator will now abort,\n[n1:44] ***    and potentially your MPI job)",
        "[n1:44] *** MPI_ERR_TRUNCATE: message truncated",
    ),
    "a box about what works without": (
        f"{'-' * 74}\nPMIx was unable to find a usable compression library\non the system.\n{'-' * 74}\nown: matrix too small",
        "own: matrix too small",
    ),
    "an assertion of C": (
        "hpcg: src/G.cpp:41: void G(int): Assertion `size >= 8' failed.\nlaunch.sh: line 9:  44 Aborted   (core dumped) ./hpcg",
        "hpcg: src/G.cpp:41: void G(int): Assertion `size >= 8' failed.",
    ),
    "Rust": (
        "thread 'main' panicked at src/main.rs:4:5:\nexpected 8 ranks, got 2\nnote: run with `RUST_BACKTRACE=1` environment",
        "thread 'main' panicked at src/main.rs:4:5: expected 8 ranks, got 2",
    ),
    "the process that another one points at": (
        "(EngineCore pid=41) ERROR 11-02 10:00:01 [core.py:700] Traceback (most recent call last):\n"
        '(EngineCore pid=41) ERROR 11-02 10:00:01 [core.py:700]   File "/v/core.py", line 691\n'
        "(EngineCore pid=41) ERROR 11-02 10:00:01 [core.py:700] ValueError: 16 GiB are needed\n"
        "(APIServer pid=40) Traceback (most recent call last):\n"
        '(APIServer pid=40)   File "/v/client.py", line 767\n'
        "(APIServer pid=40) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
        "ValueError: 16 GiB are needed",
    ),
    "a launcher of Python": (
        "Traceback (most recent call last):\n  File\nAssertionError: 3 does not divide 8\n[2026-01-01 10:00:01,123] [ERROR]"
        " [launch.py:325:sigkill_handler] ['/usr/bin/python3', '-u', 't.py'] exits with return code = 1\n"
        "Traceback (most recent call last):\n  File\nsubprocess.CalledProcessError: Command '['/usr/bin/python3', 't.py']'"
        " returned non-zero exit status 1.",
        "AssertionError: 3 does not divide 8",
    ),
    "PyTorch names the rank": (
        '[rank3]: Traceback (most recent call last):\n[rank3]:   File "t.py", line 1\n[rank3]: AssertionError: not 8\n'
        "[rank3]:[W1127 04:20:00.1 ProcessGroupNCCL.cpp:1496] Warning: destroy_process_group() was not called",
        "AssertionError: not 8",
    ),
    "C++": ("terminate called after throwing an instance of 'std::runtime_error'\n  what():  no such key", "no such key"),
    "what libraries say at the end": (
        "own.py: no data\n/usr/lib/python3.11/multiprocessing/resource_tracker.py:254: UserWarning: leaked\n  warnings.warn(",
        "own.py: no data",
    ),
    "an own tracker's farewell is not part of it": (
        "Traceback (most recent call last):\n  File\nKeyError: 'lr'\nwandb: \nwandb: Find logs at: ./wandb",
        "KeyError: 'lr'",
    ),
    "what NCCL says": (
        "Traceback (most recent call last):\n  File\ntorch.distributed.DistBackendError: NCCL error in: x.cpp:1\n"
        "ncclInternalError: Internal check failed.\nLast error:\nXML Import Channel : dev 3 not found.",
        "XML Import Channel : dev 3 not found.",
    ),
    "the first sentence of a box": (
        f"{'-' * 74}\nYour requested PML framework component was not found or\ncould not be opened.\n\n  Host: n1\n{'-' * 74}",
        "Your requested PML framework component was not found or could not be opened.",
    ),
    "all that an exception says": (
        "Traceback (most recent call last):\n  File\nRuntimeError: Error(s) in loading state_dict for GPT:\n\tMissing key: 'a'",
        "RuntimeError: Error(s) in loading state_dict for GPT: Missing key: 'a'",
    ),
    "the torchrun of a rank says only that it failed": (
        "Traceback (most recent call last):\n  File\nValueError: expected 7\n"
        "Traceback (most recent call last):\n  File\ntorch.distributed.elastic.multiprocessing.errors.ChildFailedError:",
        "ValueError: expected 7",
    ),
    "an exception group": (
        "  + Exception Group Traceback (most recent call last):\n  |   File \"t.py\", line 40, in <module>\n"
        "  | ExceptionGroup: unhandled errors in a TaskGroup (2 sub-exceptions)\n  +-+---------------- 1 ----------------\n"
        "    | Traceback (most recent call last):\n    |   File \"t.py\", line 21, in load\n    | ValueError: 12 fields\n"
        "    +---------------- 2 ----------------\n    | Traceback (most recent call last):\n    |   File \"t.py\", line 5\n"
        "    | asyncio.exceptions.CancelledError\n    +------------------------------------",
        "ValueError: 12 fields",
    ),
    "a thread's end is not the program's": (
        "Traceback (most recent call last):\n  File\nNameError: name 'loader' is not defined\nException in thread Thread-3:\n"
        "Traceback (most recent call last):\n  File\nEOFError\n\nDuring handling of the above exception, another occurred:\n\n"
        "Traceback (most recent call last):\n  File\nKeyError: 4",
        "NameError: name 'loader' is not defined",
    ),
    "a thread's end where nothing else is": (
        "Exception in thread Thread-3:\nTraceback (most recent call last):\n  File\nKeyError: 4", "KeyError: 4"
    ),
    "DALI, without its frames": (
        "Traceback (most recent call last):\n  File\nRuntimeError: Critical error in pipeline:\n"
        "Error in MIXED operator 'd.image',\nwhich was used in the pipeline definition with the following traceback:\n\n"
        "  File \"m.py\", line 44, in pipe\n"
        "    images = fn.decoders.image(jpegs)\n\nencountered:\n\nUnrecognized image format. File: /d/9.JPEG\n"
        "Stacktrace (7 entries):\n[frame 0]: /x/libdali.so(+0x7a2b1e) [0x7f]\n\nCurrent pipeline object is no longer valid.",
        "RuntimeError: Critical error in pipeline: Error in MIXED operator 'd.image', which was used in the pipeline definition"
        " with the following traceback: encountered: Unrecognized image format. File: /d/9.JPEG",
    ),
    "TensorFlow, without its frames": (
        "Traceback (most recent call last):\n  File\nx.InvalidArgumentError: Graph execution error:\n\n"
        "Detected at node a/Reshape defined at (most recent call last):\n  File \"t.py\", line 9, in <module>\n\n"
        "Input has 12 values, the shape 7\n\t [[{{node a/Reshape}}]] [Op:__inference_f_1]",
        "x.InvalidArgumentError: Graph execution error: Detected at node a/Reshape defined at (most recent call last):"
        " Input has 12 values, the shape 7",
    ),
    "CUDA, without advice": (
        "Traceback (most recent call last):\n  File\n"
        "RuntimeError: CUDA error: operation not permitted when stream is capturing\n"
        "CUDA kernel errors might be asynchronously reported at some other API call\n"
        "For debugging consider passing CUDA_LAUNCH_BLOCKING=1\nCompile with `TORCH_USE_CUDA_DSA` to enable",
        "RuntimeError: CUDA error: operation not permitted when stream is capturing",
    ),
    "a rank, not the torchrun that lost its store meanwhile": (
        "[rank4]: Traceback (most recent call last):\n[rank4]:   File\n[rank4]: AssertionError: 3 heads\n"
        "Traceback (most recent call last):\n  File\n"
        "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d store has failed.",
        "AssertionError: 3 heads",
    ),
    "a rank whose lines have the time": (
        "Wed Jan 14 12:05:15 2026[1]<stderr>:Traceback (most recent call last):\nWed Jan 14 12:05:15 2026[1]<stderr>:  File\n"
        "Wed Jan 14 12:05:16 2026[1]<stderr>:KeyError: 'x'\nWed Jan 14 12:05:16 2026[0]<stdout>:step 3",
        "KeyError: 'x'",
    ),
    "an empty line between lines of a rank": (
        "[rank1]: Traceback (most recent call last):\n[rank1]:   File\n[rank1]: ImportError: no 'triton_key'\n\n"
        "[rank1]: Set TORCH_LOGS=1",
        "ImportError: no 'triton_key'",
    ),
    "a warning of PyTorch in January": (
        "own.py: no data\n[W114 10:54:51.986 ProcessGroupNCCL.cpp:1374] destroy_process_group() was not called",
        "own.py: no data",
    ),
    "a fatal line of PyTorch in January": (
        "[rank2]:[F114 10:21:13.770 ProcessGroupNCCL.cpp:1337] the watchdog saw a hang\nFatal Python error: Aborted",
        "[F114 10:21:13.770 ProcessGroupNCCL.cpp:1337] the watchdog saw a hang",
    ),
    "a fatal error of Python": (
        "Fatal Python error: _PyInterpreterState_Get: the function must be called with the GIL held\n\n"
        "Thread 0x7f (most recent call first):\n  <no Python frame>",
        "Fatal Python error: _PyInterpreterState_Get: the function must be called with the GIL held",
    ),
    "a tracker's error is not the program's": (
        "Traceback (most recent call last):\n  File\nKeyError: 3\nwandb: ERROR Dropped a chunk (No space left on device)",
        "KeyError: 3",
    ),
    "an abort that a destructor caused": (
        "pure virtual method called\nterminate called without an active exception\nE1019 08:21:39.5 3036 api.py:874] failed"
        " (exitcode: -6) local_rank: 0",
        "pure virtual method called",
    ),
    "the first of several ranks": (
        "[rank5]: step 1\n[rank5]: ValueError: 3 words\n[rank0]: AttributeError: no shape\n",
        "ValueError: 3 words",
    ),
    "a rank of torchrun and PyTorch": (
        "[default3]:[rank11]: Traceback (most recent call last):\n[default3]:[rank11]:   File \"t.py\", line 8, in main\n"
        "[default3]:[rank11]:     net(x)\n[default3]:[rank11]: TypeError: 3 heads\n",
        "TypeError: 3 heads",
    ),
    "a traceback with the times of a container": (
        "2026-08-01T10:00:00.123456789Z stderr F Traceback (most recent call last):\n"
        "2026-08-01T10:00:00.123456790Z stderr F   File \"t.py\", line 8, in main\n"
        "2026-08-01T10:00:00.123456791Z stderr F ZeroDivisionError: division by zero",
        "ZeroDivisionError: division by zero",
    ),
    "an error before the usage": (
        "libnuma: Warning: node argument 1 is out of range\n\n<1> is invalid\nusage: numactl [--all | -a]\n"
        "                [--show]\n<nodes> is a list of node numbers",
        "<1> is invalid",
    ),
    "a flag of absl": (
        "FATAL Flags parsing error:\n  Unknown command line flag 'foo'\nPass --helpshort to see help on flags.",
        "FATAL Flags parsing error: Unknown command line flag 'foo' Pass --helpshort to see help on flags.",
    ),
    "an exception of C++, without the dump of Open MPI": (
        "terminate called after throwing an instance of 'std::runtime_error'\n  what():  nx must be a multiple of 8\n"
        "[n1:04411] *** Process received signal ***\n[n1:04411] Signal: Aborted (6)",
        "nx must be a multiple of 8",
    ),
    "nccl-tests, of many ranks under mpirun": (
        "# Using devices\nn1: Test CUDA failure common.cu:941 'named symbol not found'\n .. n1 pid 88: Test failure\n"
        f"{'-' * 74}\nPrimary job  terminated normally, but 1 process returned\na non-zero exit code.\n{'-' * 74}\n{'-' * 74}\n"
        f"mpirun detected that one or more processes exited with non-zero status, thus causing\nthe job to end.\n{'-' * 74}",
        "n1: Test CUDA failure common.cu:941 'named symbol not found' .. n1 pid 88: Test failure",
    ),
    "lines that say nothing": ("mpirun: a process failed\n-----------\n", "mpirun: a process failed"),
    "controls": ("own.py: \x1b[31mred\x1b[0m\x07 \x00and\tblue", "own.py: red and blue"),
    "both ends": ("x" * 9000 + " the end", "x" * 150 + " […] " + "x" * 142 + " the end"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "sentence"), SAID.values(), ids=SAID)
def test_the_last_output_of_a_program_is_the_sentence_with_which_it_ended(
    text: str, sentence: str
) -> None:
    assert last_output(text.splitlines()) == LAST_OUTPUT + sentence


@pytest.mark.parametrize(
    "line",
    [
        "libibverbs: Warning: no userspace device-specific driver found for uverbs0",
        "/x/ops.py:12: FutureWarning: `autocast(args...)` is deprecated.\n  with autocast():",
        "INFO:root:step 3 of 40",
        "NCCL version 2.21.5+cuda12.4",
    ],
)
def test_a_warning_is_no_last_output(line: str) -> None:
    assert last_output([*line.splitlines(), ""]) == ""


FROM = "\n\nThe above exception was the direct cause of the following exception:\n\n"
DURING = "\n\nDuring handling of the above exception, another exception occurred:\n\n"


@pytest.mark.parametrize(
    ("between", "first", "last", "kind", "cause"),
    [
        (FROM, MEMORY, "RuntimeError: no batch", "out_of_memory",
         "last output: RuntimeError: no batch (its source: the GPU had no memory left)"),
        (DURING, MEMORY, "RuntimeError: no batch", "out_of_memory",
         "last output: RuntimeError: no batch (its source: the GPU had no memory left)"),
        (FROM, "OSError: [Errno 28] No space left on device", MEMORY, "out_of_memory", "the GPU had no memory left"),
        (DURING, "OSError: [Errno 28] No space left on device", MEMORY, "out_of_memory", "the GPU had no memory left"),
        (DURING, "FileNotFoundError: [Errno 2] No such file or directory: 'x'", "ValueError: 3", None, None),
        (FROM, "ConnectionResetError: [Errno 104] Connection reset by peer", "RuntimeError: no shard", None, None),
    ],
)  # fmt: skip
def test_the_cause_is_that_of_the_last_exception_of_a_chain(
    between: str, first: str, last: str, kind: str | None, cause: str | None
) -> None:
    header = 'Traceback (most recent call last):\n  File "t.py", line 8, in <module>\n'

    found = diagnose(f"{header}{first}{between}{header}{last}")

    assert (found and found.kind, found and found.cause) == (kind, cause)
    assert not (found and found.is_of_start)


HEADER = "Traceback (most recent call last):\n"
MODULE = '  File "t.py", line 1, in <module>\n    from a import b\n'
FUNCTION = '  File "t.py", line 9, in main\n    a.load(x)\n'
IMPORTLIB = '  File "<frozen importlib._bootstrap>", line 1027, in _find_and_load\n'
RUNPY = '  File "<frozen runpy>", line 88, in _run_code\n'
MISSING = "ModuleNotFoundError: No module named 'apex'\n"


@pytest.mark.parametrize(
    ("text", "is_of_start"),
    [
        (f"{HEADER}{RUNPY}{MODULE}{IMPORTLIB}{MODULE}{MISSING}", True),
        (MISSING, True),
        (f"{HEADER}{MODULE}{FUNCTION}{MODULE}{MISSING}", False),
        (f"{HEADER}{MODULE}FileNotFoundError: [Errno 2] No such file or directory: '/d/x'", False),
        ("python3: can't open file '/w/t.py': [Errno 2] No such file or directory", True),
        (
            "Could not load library libcudnn_cnn_infer.so.8. Error: libnvrtc.so: cannot open shared object file",
            False,
        ),
    ],
)
def test_only_what_the_start_of_a_program_needs_is_certain_to_fail_again(
    text: str, is_of_start: bool
) -> None:
    """What a function imports, or a file of data, other configurations may not need."""
    found = diagnose(text)
    assert found and found.is_of_start == is_of_start


def test_of_ranks_with_known_causes_that_of_the_first_one_counts() -> None:
    lines = ["[rank0]: step 1", "[rank5]: " + CAUSES["disk"][0], "[rank0]: " + CAUSES["python"][0]]
    assert (found := diagnose("\n".join(lines))) and found.kind == "disk_full"


def test_the_condition_of_a_check_in_a_kernel_is_shown() -> None:
    line = "x.cu:11: f: block: [6,0,0], thread: [12,0,0] Assertion `i < n` failed."
    found = diagnose(f"{line}\nRuntimeError: CUDA error: device-side assert triggered\n")
    assert found and (found.kind, found.line) == ("device_assert", line)


def test_of_several_ranks_an_unknown_exception_explains_what_others_wait_for() -> None:
    timeout = "[rank0]: RuntimeError: Timed out waiting 60000ms for recv operation to complete"
    unknown = "[rank3]: IndexError: index 7 is out of bounds"
    for log in (f"{timeout}\n{unknown}", f"{unknown}\n{timeout}"):
        assert diagnose(log) is None
        assert last_output(log.splitlines()) == f"{LAST_OUTPUT}IndexError: index 7 is out of bounds"
    found = diagnose(f"{timeout}\n{timeout.replace('rank0', 'rank3')}")
    assert found and found.kind == "collective_timeout"


def test_a_step_is_no_last_word_but_an_exception_among_steps_is() -> None:
    assert last_output(["step 1", "step 2"], exceptions_only=True) == "" == last_output([])
    assert last_output(
        ["step 1", "Traceback (most recent call last):", "  File", "ValueError: x"],
        exceptions_only=True,
    ).endswith(": x")
    assert (
        last_output(["Traceback (most recent call last):", "  File"])
        == f"{LAST_OUTPUT}Traceback (most recent call last):"
    )
