"""Notes on how a log was read."""

from __future__ import annotations

from orchestrator.notes import DOUBT, REMARK, Kind

CLOSING_LINE_UNREAD = Kind("closing_line_unread", DOUBT, "closing line: {fault}")
CLOSING_LINES_DIFFER = Kind(
    "closing_lines_differ", DOUBT, "several closing lines differ; the last one was used"
)
LINES_LEFT_OUT = Kind(
    "lines_left_out",
    DOUBT,
    "{lines} {begin} like those of {pattern} and {were} left out:{first} {line!r}",
)
LINE_CUT_OFF = Kind(
    "line_cut_off",
    REMARK,
    "the last line has no line end, so it may be cut off, and was not read: {line}",
)
LOG_CUT = Kind(
    "log_cut",
    DOUBT,
    "no line of log.closing, {pattern!r}, was found: the log is cut, or its program did not end",
)
LONG_LINES_CUT = Kind(
    "long_lines_cut",
    DOUBT,
    "of lines over {line_bytes} bytes, only the first {most_bytes} bytes in all were read",
)
NOT_A_NUMBER = Kind(
    "not_a_number", DOUBT, "step lines with a value that is not a number were left out"
)
NO_RANK = Kind("rank_line_unread", DOUBT, "a rank line has no valid rank")
# The line with the step is damaged or missing.
NO_STEP = Kind("values_without_step", DOUBT, "values that belong to no step were left out")
READ_AS_RANKS = Kind(
    "read_as_ranks",
    REMARK,
    "{count} series of the same steps in one file were read as {count} ranks",
)
STEP_GOES_BACK = Kind(
    "step_goes_back",
    DOUBT,
    "the step goes back {times}: the last attempt that reaches step {step} was used",
)

# -- transports of NCCL

NCCL_SOCKET = Kind("nccl_socket", DOUBT, "NCCL uses {network} between nodes, not InfiniBand{why}")
NCCL_NETWORK_IN_NODE = Kind(
    "nccl_network_in_node", DOUBT, "NCCL uses {network} between GPUs of one node"
)
NCCL_NO_GDRDMA = Kind(
    "nccl_no_gdrdma", DOUBT, "NCCL uses NET/IB without GDRDMA: data passes through host memory"
)
NCCL_NO_NVLS = Kind("nccl_no_nvls", DOUBT, "NCCL does not use NVLS: NCCL_NVLS_ENABLE is 0")
NCCL_SHARED_MEMORY = Kind(
    "nccl_shared_memory",
    DOUBT,
    "NCCL uses shared memory between GPUs of a node, not P2P: {reason}",
)
