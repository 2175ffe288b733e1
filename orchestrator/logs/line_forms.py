"""Forms of the lines of logs: of a traceback, a fatal line, a box of mpirun, a warning."""

from __future__ import annotations

import re
from enum import IntEnum

HEADER = "Traceback (most recent call last):"
DURING = "During handling of the above exception"
DIRECT_CAUSE = "The above exception was the direct cause"
# An exception without a traceback, as of a syntax error.
EXCEPTION = re.compile(
    r"(?:[A-Za-z_]\w{0,60}\.){0,12}[A-Z]\w{0,60}(?:Error|Exception|Exit|Interrupt)(?::|\s*$)"
)
WHAT = re.compile(r"\s{1,9}what\(\):\s{0,9}(?=\S)")
# PyTorch's and torchrun's before a line of a rank, also torchrun's before PyTorch's; mpirun's and
# horovodrun's, with or without the time.
RANK_TAG = re.compile(
    r"(?P<named>\[[a-z]{1,40}[0-9]{1,9}\]:)(?:\[rank[0-9]{1,9}\]:)? ?"
    r"|(?:\w{3} \w{3} [ 0-9]{2} [0-9:]{8} [0-9]{4})?"
    r"(?P<timed>\[(?:[^\[\]\s]{1,200}@)?(?:[0-9]{1,9},)?[0-9]{1,9}\]<std(?:out|err|diag)>):? ?"
)
# The time that an engine of containers writes before every line.
STAMP = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}\.[0-9]{3,9}Z (?:std(?:out|err) [FP] )?")
# The margin of an exception group, and the lines between its exceptions.
GROUP_MARGIN = re.compile(
    r"^\s{2,80}(?:\| ?|\+ (?=Exception Group Traceback)|\+-(?:\+-)?-{9,20} [0-9.]{1,6} -{10,20}"
    r"|\+-{30,40})"
)
# A frame of a traceback; and of one that belongs to the loading of modules, before a program runs.
FRAME = re.compile(r"\s{0,80}File \".{1,500}\", line [0-9]{1,9}, in \S")
IMPORT_FRAME = re.compile(
    r"\s{0,80}File \"(?:.{0,400}\bimportlib\b.{0,100}\", |.{1,500}\", line [0-9]{1,9}, in (?:<module>|_))"
)
# What libraries add to any message, and the frames in it.
ADDED = re.compile(
    r"(?:CUDA|HIP) kernel errors might be asynchronously|For debugging consider passing [A-Z]"
    r"|Compile with `TORCH_USE_|Search for `cuda\w{1,60}' in |Exception raised from "
    r"|-{20}\s*$|For simplicity, JAX has removed its internal frames"
    r"|Additional GRPC error information|The error could be from a previous operation|\[\[\{\{node "
    r"|\[?frame #?[0-9]{1,4}\]?: |Stacktrace \([0-9]{1,4} entries\)|<stack traces unavailable>"
)
BOX = re.compile(r"-{70,80}\s*$")
# glog writes the month with two digits, PyTorch that of January to September with one.
_DATE = r"(?:[0-9]{4,8} |[0-9]{3} (?=[0-9]{2}:))"
GLOG = re.compile(
    rf"(?:\[rank[0-9]{{1,9}}\]:)?\[?(?P<level>[IWEF])(?:{_DATE}| [\w./-]{{1,200}}:[0-9]{{1,9}}\])"
    r"|[0-9-]{10}[ T][0-9:.,]{8,20}: (?P<tf>[IWEF]) "
)
FATAL = re.compile(
    rf"\[?(?:FATAL|CRITICAL|fatal)\b|\[?F{_DATE}|[0-9-]{{10}}[ T][0-9:.,]{{8,20}}: F "
    r"|.{0,200}\bCheck failed: |.{0,200}: Assertion `.{1,300}' failed"
    r"|(?:\[[^\]]{1,80}\] )?\*\*\* MPI_ERR_[A-Z_]{2,30}: "
    r"|pure virtual method called"
    r"|Fatal Python error: (?!Aborted|Segmentation fault|Bus error|Illegal instruction)"
)
# Errors of MPICH, Rust, Go and absl, with the lines behind them.
FATAL_BLOCK = re.compile(
    r"(?:Abort\([0-9]{1,12}\) on node .{1,60}: )?Fatal error in |thread '.{1,60}' panicked |panic: "
    r"|FATAL Flags parsing error:"
)
# A box of mpirun about what it does without.
BOX_HARMLESS = re.compile(
    r"(?:\[?warn)|.{0,200}(?:usable compression library|not used by default|system call to fork"
    r"|No OpenFabrics connection schemes|error initializing an OpenFabrics device)",
    re.IGNORECASE,
)
# The beginning of an entry of a log, which no message of several lines has.
ENTRY = re.compile(r"\[?[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}:")
# Open MPI's before a line about a process that a signal ended.
PROCESS = re.compile(r"\[[^\]\s]{1,80}:[0-9]{1,9}\] ")
# What a program says itself of its error, and no figure of that name.
ERROR = re.compile(
    r"(?!Fatal Python error)(?:.{0,80}\W)?(?:ERROR\b|[Ee]rror(?: returned from |: (?![0-9.+-]))"
    r"|Test (?:CUDA|NCCL) failure )"
    r"|\s{0,4}(?:[Cc]annot|[Cc]ould ?n[o']t|[Uu]nable to|[Ff]ailed to|Illegal|Invalid) "
)
# What a shell, a loader, an interpreter, an engine of containers and a launcher say last of all.
LAUNCHER = re.compile(
    r"\S{1,200}: (?:line )?[0-9]{1,9}: "
    r"|\S{1,200}: (?:error while loading shared libraries|symbol lookup error): "
    r"|\S{0,200}python[0-9.]{0,9}: (?:can't open|No module|Error while finding module)"
    r"|(?:docker|podman|apptainer|singularity|enroot|ssh|srun|mpirun|mpiexec|prterun): "
    r"|slurmstepd\S{0,60}: |nvidia-container-cli: |(?:Error|exec|env|bash|sh|FATAL): "
    r"|\[proxy:|\[mpiexec@"
)
_HARMLESS = re.compile(
    r"(?<![=\w])warn(?:ings?)?\b|\b[A-Z][a-z]{1,40}Warning\b|\bignor(?:e|ed|ing)\b"
    r"|(?-i:(?<![=\w])(?:INFO|DEBUG|TRACE)\b)|\[(?:info|debug|trace)\]"
    r"|\bretry(?:ing)?\b(?! (?:count|failed|limit))|\btry(?:ing)? again\b"
    r"|\battempt [0-9]{1,9} ?(?:of|/)|\bfall(?:ing|s)? ?back\b|\bskipp(?:ed|ing)\b"
    r"|\bcontinuing\b|\bnon-?fatal\b|\bnot fatal\b|\bharmless\b|\boptional\b|\bdisabl(?:ed|ing)\b"
    r"|\bRUST_BACKTRACE=|^wandb: |^NCCL version [0-9]",
    re.IGNORECASE,
)
_HARMLESS_LITERALS = (
    *("warn", "ignor", "info", "debug", "trace", "retry", "again", "attempt", "back", "skip"),
    *("continuing", "fatal", "harmless", "optional", "disabl", "rust_backtrace", "wandb: "),
    "nccl version",
)
"""One of these is in each line that `_HARMLESS` matches: a search for them is much faster."""
# Python's warnings end with the line of source that warned, which is indented.
PYTHON_WARNING = re.compile(r"\S{0,300}:[0-9]{1,9}: \w{0,40}Warning: ")
# How the text about a program's arguments begins, which some print behind their error.
USAGE = re.compile(r"usage: ", re.IGNORECASE)
# What libraries say after a program's own last line, while its process ends.
AT_EXIT = re.compile(rf"\[?W{_DATE}|{PYTHON_WARNING.pattern}")
NCCL_WARN = re.compile(r"NCCL WARN |\[[0-9]{1,4}\] \S{1,100}:[0-9]{1,6} WARN ")
# Of plug-ins, libraries and settings that NCCL works without.
_NCCL_HARMLESS = re.compile(
    r"Failed to open lib|iommu|NUMA auto balancing|libnccl-\w{1,20}\.so|\bPlugin\b|GID|deprecat",
    re.IGNORECASE,
)


class Place(IntEnum):
    """The place of a line: before the end, or part of it."""

    HARMLESS = 0
    EARLIER = 1
    END = 2


def has_words(text: str) -> bool:
    """Return whether a line has more than marks, as rules and margins have."""
    return any(map(str.isalnum, text))


def is_header(text: str) -> bool:
    """Return whether a line begins a traceback of Python, whatever stands before it."""
    return HEADER in text and not text.startswith("C++ ")


def place_itself(text: str) -> Place:
    """Return the place that a line gives itself."""
    if NCCL_WARN.search(text):
        return Place.HARMLESS if _NCCL_HARMLESS.search(text) else Place.EARLIER
    match = GLOG.match(text)
    level = (match["level"] or match["tf"]) if match else ""
    lowered = text.lower()
    may_be = any(literal in lowered for literal in _HARMLESS_LITERALS)
    is_harmless = level in ("I", "W") or (may_be and _HARMLESS.search(text))
    return Place.HARMLESS if is_harmless else Place.EARLIER
