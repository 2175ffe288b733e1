"""Notes on logs that the rules of published tables read."""

from __future__ import annotations

from orchestrator.notes import DOUBT, REMARK, Kind

NAMES_OF_FILES = Kind(
    "names_of_files",
    REMARK,
    "case, batch size and type are taken from the names of folders and files: a log tree has no manifest",
)
RULE_USED = Kind(
    "rule_used",
    REMARK,
    "rule {name}: {title}; the {statistic} of {runs} was published; speedup is {divisor} of {baseline}",
)
COPY_LEFT_OUT = Kind(
    "copy_left_out", REMARK, "{name} has the same bytes as {original} and is left out"
)
MISNAMED = Kind(
    "logs_misnamed",
    DOUBT,
    "not read, because not named <case>/<model>_b<batch size>_<dtype>_<id>.log: {names}",
)
OTHER_RUN_COUNTS = Kind(
    "other_run_counts", REMARK, "the published procedure has {runs} of each case; {counts}"
)
RUN_ID_TWICE = Kind(
    "run_id_twice", DOUBT, "{name}: run id {run} occurs more than once, with different content"
)
LINES_MISSING = Kind(
    "lines_missing", DOUBT, "{missing} of {needed} lines are missing, the first of {first}"
)
UNNAMED_PROCESSES = Kind(
    "unnamed_processes",
    REMARK,
    "{count} unnamed processes write to one log: the mean of their lines is taken",
)
FIRST_OF_SEVERAL = Kind(
    "first_of_several",
    DOUBT,
    "the log has up to {count} different lines of one of its {called}, as of several processes or"
    " runs: the first of each counts",
)
TOTALS_OF_RANKS = Kind(
    "totals_of_ranks", REMARK, "{count} ranks print the total; one is taken, not the sum"
)
TOTAL_OF_OTHER_STEPS = Kind(
    "total_of_other_steps", DOUBT, "the total is of {steps} steps, not of {usual} as published"
)
GOES_BACK = Kind(
    "step_goes_back",
    DOUBT,
    "the step goes back in the log, {count} times: the last complete run counts",
)
OTHER_TIME_USED = Kind(
    "other_time_used", DOUBT, "the lines have no {name}: {other} is used instead"
)
CLOCK_AGAINST_LOG = Kind(
    "log_against_itself",
    DOUBT,
    "the log disagrees with itself: {speed} samples/s by its {name}, {by_clock} by its clock",
)
