"""Known failures of training programs, as rows of a table, for `orchestrator.logs.failures`.

A line has the kind of the first row that is in it, so a row with more precise words stands before
one with wider words.
"""

from __future__ import annotations

from orchestrator.logs.gpu_failures import GPU
from orchestrator.logs.known_failure import known
from orchestrator.logs.network_failures import NETWORK, TIME_LIMITS

__all__ = ["KNOWN"]

_MEMORY_AND_LIMITS = (
    known(
        "memlock",
        "the limit of locked memory is too low for InfiniBand",
        "raise memlock on the node: ulimit -l, /etc/security/limits.d, LimitMEMLOCK of sshd or"
        " slurmd, or --ulimit memlock=-1 of a container",
        r"\bib[vu]?_\w{1,40}.{0,120}Cannot allocate memory",
        "max(?:imum)? locked memory",
        "RLIMIT_MEMLOCK",
        r"trying to\s{1,9}allocate some locked memory",
        unless="cannot modify limit",
        explains=("nccl_system_error",),
    ),
    known(
        "open_files",
        "the limit of open files was reached",
        "raise ulimit -n on the node, or use fewer loader workers",
        "Too many open files",
        r"\bE[NM]FILE\b",
        # The limit of inotify is another one, and only watchers of files need it.
        unless="inotify",
    ),
    known(
        "shared_memory",
        "the node's /dev/shm is full",
        "give the node more shared memory (docker run --shm-size), or use fewer loader workers",
        "insufficient shared memory",
        "out of shared memory",
        r"unable to (?:open|write to|allocate|resize) shared memory",
        r"No space left on device.{0,80}/dev/shm",
        r"/dev/shm.{0,120}No space left on device",
        r"posix_fallocate failed ?: No space left on device",
        r"failed to extend /dev/shm",
        r"Error while creating shared memory segment",
        r"not enough space for\s.{0,200}shared-memory backing",
        r"DataLoader worker \(pid\(?s?\)? ?[0-9(), ]{1,60}\) is killed by signal: Bus error",
    ),
    known(
        "process_limit",
        "the limit of processes and threads was reached",
        "raise ulimit -u or the pids limit of the control group, or lower OMP_NUM_THREADS",
        "pthread_create\\b.{0,80}(?:failed|Resource temporarily unavailable|EAGAIN)",
        "RLIMIT_NPROC",
        "can't start new thread",
        "unable to create new native thread",
        "libgomp: Thread creation failed",
        r"\bfork\b.{0,60}Resource temporarily unavailable",
        r"BlockingIOError: \[Errno 11\] Resource temporarily unavailable",
        "System unable to allocate necessary resources for OMP thread",
    ),
    known(
        "host_out_of_memory",
        "the node had no memory left",
        "lower --batch-size or --gpus, or free memory on the node",
        r"\bMemoryError\b",
        "Cannot allocate memory",
        "DefaultCPUAllocator: (?:can't allocate memory|not enough memory)",
        "std::bad_alloc",
        r"Out of memory: Killed process",
        r"oom-kill:",
        "Detected [0-9]{1,6} oom[-_]kill event",
        r"task [0-9, -]{1,60}: Out Of Memory",
        "cgroup out-of-memory handler",
        "have been OOM Killed",
        "Exceeded (?:job|step) memory limit",
        "java.lang.OutOfMemoryError",
        r"DataLoader worker \(pid\(?s?\)? ?[0-9(), ]{1,60}\) is killed by signal: Killed",
    ),
)

_FILES = (
    known(
        "exec_format",
        "the program was built for another kind of processor",
        "install a build for this node's processor: see uname -m",
        "Exec format error",
        "cannot execute binary file",
        "image platform .{0,80}does not match",
        is_often_harmless=True,
        is_of_start=True,
    ),
    known(
        "not_found",
        "a file or program is missing on the node",
        "correct the path in inventory or options, or copy the file there",
        r"could not access\s{1,9}or execute an executable",
        r"(?:mpirun|mpiexec|prterun) (?:could not|was unable to) find ",
        r"executable file .{0,200}not found",
        is_often_harmless=True,
        explains=("launcher_daemon",),
        is_of_start=True,
    ),
    known(
        "container_start",
        "the container could not be started",
        "see the line: the image's name and who may read it, and on the node user namespaces and the engine's own log",
        r"pyxis: {1,9}(?:enroot|\[ERROR\]|couldn't start container)",
        r"pyxis: seccomp filter failed",
        r"\benroot-\w{1,20}: (?:failed|error)",
        r"docker: Error response from daemon: ",
        r"connect to the Docker (?:daemon|API)",
        r"OCI runtime .{0,40}(?:error|failed)",
        r"\bFATAL: {1,9}.{0,80}(?:image|container|\.sif|docker://)",
        r"Error: (?:initializing source|unable to copy from source|copying system image)",
        is_of_start=True,
    ),
    known(
        "disk_full",
        "a disk is full",
        "free some space on the node, or set vars.workdir to another disk",
        "No space left on device",
        "Disk quota exceeded",
        r"\bENOSPC\b",
        unless="inotify",
    ),
    known(
        "missing_module",
        "a Python module is missing",
        "install it for the interpreter that vars.python of this host names",
        r"ModuleNotFoundError: No module named",
        r"ImportError: No module named",
        is_often_harmless=True,
        is_of_start=True,
    ),
    known(
        "library_versions",
        "a shared library is of another version than the program was built for",
        "install builds that belong together, and look for an older copy in LD_LIBRARY_PATH",
        r"undefined symbol: \S",
        r"version `\w{1,20}_[0-9.]{1,12}' not found",
        r"source was compiled with: [0-9.]{1,20}.{0,20}cuDNN|cuDNN version incompatibility",
        "CUDNN_STATUS_(?:SUBLIBRARY_)?VERSION_MISMATCH",
        "may indicate binary incompatibility",
        "module was compiled against (?:NumPy C-)?API version",
        is_often_harmless=True,
        explains=("launcher_daemon",),
        is_of_start=True,
    ),
    known(
        "missing_library",
        "a shared library is missing",
        "install it, or put its folder into LD_LIBRARY_PATH under env: in the inventory",
        r"error while loading shared libraries",
        r"cannot open shared object file",
        # TensorFlow and NCCL try plug-ins, and work without them.
        unless=r"Could not load dynamic library|dso_loader",
        is_often_harmless=True,
        explains=("launcher_daemon",),
        is_of_start=True,
    ),
    known(
        "not_found",
        "a file or program is missing on the node",
        "correct the path in inventory or options, or copy the file there",
        r"FileNotFoundError: ",
        r": command not found\b",
        r": [0-9]{1,9}: \S{1,200}: not found\s{0,9}$",
        r"[]:] No such file or directory\s{0,9}$",
        r"exec\w{0,4}(?:\(\)|p? error)\W.{0,200}No such file or directory",
        is_often_harmless=True,
        explains=("launcher_daemon",),
        is_of_start=True,
    ),
    known(
        "permission",
        "the login user does not have a permission that the program needs",
        "check owner and mode of the path in the line",
        r"PermissionError: ",
        r": Permission denied\s{0,9}$",
        r"Operation not permitted",
        # Containers and limits refuse these, and the program carries on.
        unless=r"Permission denied \((?:publickey|gssapi)|\bmbind\b|set_mempolicy|move_pages"
        r"|cannot modify limit|setpriority|sched_set|\bnice\b",
        is_often_harmless=True,
    ),
    known(
        "illegal_instruction",
        "the program was built for another processor",
        "install a build for this node's processor",
        "Illegal instruction",
        "CPU instructions that your machine doesn't have",
    ),
)

KNOWN = (*TIME_LIMITS, *GPU, *_MEMORY_AND_LIMITS, *_FILES, *NETWORK)
