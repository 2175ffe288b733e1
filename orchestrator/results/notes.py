"""Notes on runs, rows and tables."""

from __future__ import annotations

from orchestrator.notes import DOUBT, REFUSAL, REMARK, Kind

# -- how a run was read and how it went

LOG_REREAD = Kind("log_reread", REMARK, "{text}")
FOLDER_CAVEAT = Kind("folder_caveat", REMARK, "{text}")
PROGRAM_REMARK = Kind("program_remark", REMARK, "{text}")
UNREAD_RESULTS = Kind(
    "unread_results",
    DOUBT,
    "logs of {hosts} have matching lines that were not read, such as {example}; files: and nodes: say which are read",
)
READ_WITH_GRAMMAR = Kind("read_with_grammar", REMARK, "read with log: of {framework}{window}")
DTYPE_OF_NAME = Kind(
    "dtype_of_name",
    DOUBT,
    "expected a dtype of {framework} in the name of the file, {dtypes}, got {dtype}",
)
OPTIONS_OF_LOG = Kind(
    "options_of_log", REMARK, "{said} as the log says; the default of {framework} is {usual}"
)
STEP_SIZES = Kind("step_sizes", REMARK, "{sizes}")
METRICS_LEFT_OUT = Kind("metrics_left_out", REFUSAL, "metrics of the folder are left out: {fault}")
RANKS_NOT_VERIFIED = Kind(
    "ranks_not_verified", DOUBT, "rank count not verified (the log has no rank lines: log.rank)"
)
LEFTOVER_PROCESSES = Kind(
    "leftover_processes",
    DOUBT,
    "processes of the run were left over on {hosts} and had to be ended",
)
END_NOT_VERIFIED = Kind(
    "end_not_verified", DOUBT, "not verified: whether the run has ended on {hosts}"
)
SLOW_ANSWERS = Kind(
    "slow_answers",
    DOUBT,
    "{host} answered slowly during the run: in {ms:.0f} ms, the others in {usual_ms:.1f} ms",
)
OUTPUT_DTYPE = Kind(
    "output_dtype", DOUBT, "dtype {dtype} requested, the model's output was {output}"
)
LOST_LINK = Kind("lost_link", DOUBT, "{interface} of {hosts} lost its link {times}")
CPU_BINDING = Kind("cpu_binding", REMARK, "ranks are bound to CPUs, {binding}")
SHARED_CORES = Kind(
    "shared_cores",
    DOUBT,
    "ranks {first} and {second} share CPUs {cpus} of {host}: fewer cores than ranks",
)
PARALLEL_LAYOUT = Kind("parallel_layout", REMARK, "parallel=auto ran as {layout}")
PEAK = Kind(
    "peak",
    REMARK,
    "MFU and HFU are shares of {tflops:g} TFLOP/s, the dense peak of {device} for {dtype}",
)
NO_PEAK = Kind("no_mfu", REFUSAL, "no MFU: the dense peak of {device} for {dtype} is not known")
NO_SIZES = Kind(
    "no_mfu",
    REFUSAL,
    "no TFLOP/s and no MFU: {framework} does not say the sizes of {model}, models: transformer:",
)
PROGRAM_FIGURE = Kind(
    "program_figure",
    DOUBT,
    "the program reports {name} {said}, but its log gives {computed}: {why}",
)

# -- ranks beside each other

RANK_PARTS_UNUSED = Kind(
    "rank_parts_unused", REFUSAL, "the parts of steps{where} were not used: {fault}"
)
SLOW_RANK = Kind("slow_rank", DOUBT, "rank {rank} on {host} {does}")
SLOW_NODE = Kind("slow_node", DOUBT, "every rank of {host} {does}")
SLOW_RANK_UNSEEN = Kind(
    "slow_rank_unseen",
    REMARK,
    "one repeat: a rank that takes less than {least:.1%} longer to compute than the others would not be named",
)
RANKS_NOT_COMPARED = Kind(
    "ranks_not_compared",
    REFUSAL,
    "the GPU of rank {rank} on {host} waits for its program (the CPU side) in {share:.0%} "
    "of the steps, so ranks are not compared by compute time",
)

# -- what a configuration ran on

SIMULATED = Kind(
    "simulated",
    REMARK,
    "simulated: the program waits instead of computing; not a speed of this hardware",
)
ON_CPUS = Kind("cpu", REMARK, "cpu: measured on CPUs")
GPU_CONDITION = Kind("gpu_condition", DOUBT, "before it ran on {hosts}: {found}")
CLOCKS_LOWERED = Kind(
    "clocks_lowered", DOUBT, "clocks lowered by {reason}: for {shares} on {hosts}{runs}"
)
LOAD_BY_OTHERS = Kind(
    "load_by_others", DOUBT, "other processes used {share} of the processors of {hosts}{by}{runs}"
)
SENT_LITTLE = Kind(
    "sent_little",
    DOUBT,
    "{hosts} sent at most {most:.0f} bytes per step{gradients}: "
    "each node may train alone, or over links whose bytes the kernel does not count",
)
FACT_DIFFERS = Kind("fact_differs", DOUBT, "{fact} differs: {values}")
BASELINE_FACT = Kind(
    "baseline_fact_differs", DOUBT, "{fact} is {values}, the baseline's was {baseline}"
)

# -- collectives

RANK_FAR_ABOVE = Kind(
    "one_rank_slower", DOUBT, "one rank took more than {longer:.0%} longer than the mean of all"
)
FEW_CALLS = Kind(
    "few_calls",
    DOUBT,
    "fewer than {calls} calls were timed in some runs, because they take long",
)

# -- repeats

FEW_REPEATS = Kind("few_repeats", DOUBT, "{repeats}: interval unreliable below n={enough}")
UNEVEN_REPEATS = Kind("uneven_repeats", DOUBT, "{repeats} where other cells have {typical}")
WIDE_SPREAD = Kind("wide_spread", DOUBT, "repeats spread over {more}{spread} of the median")
COARSE = Kind(
    "coarse_log",
    DOUBT,
    "the log resolves {step}, more than half of the interval's width: too coarse for so narrow an interval",
)
COARSE_ALONE = Kind(
    "coarse_log",
    DOUBT,
    "the log resolves {step}, a tenth of the number or more: it has too few digits",
)
COARSE_AND_EQUAL = Kind(
    "coarse_log",
    DOUBT,
    "all {count} repeats are equal: the log resolves {step}, which hides how far apart they are",
)
REPEAT_APART = Kind(
    "repeat_apart",
    DOUBT,
    "repeat {repeat} is {apart:.1%} {direction} than the others, more than chance explains; it still counts",
)
EQUAL_LOGS = Kind(
    "equal_repeats",
    DOUBT,
    "the logs of repeats {repeats} are equal byte for byte: one measurement, not {count}",
)
EQUAL_TIMES = Kind(
    "equal_repeats",
    DOUBT,
    "the step times of repeats {repeats} are equal to the microsecond: one measurement, not {count}",
)
OTHER_HOSTS = Kind("other_hosts", DOUBT, "repeats ran on different hosts: {places}")
OTHER_INTERFACES = Kind(
    "other_interfaces", DOUBT, "repeats ran over different interfaces on {hosts}: {ways}"
)
SLOWER_THAN_WIDER = Kind(
    "slower_than_wider", DOUBT, "{dtype} but slower than {wider} ({speed} {unit})"
)
BASELINE_LENGTH = Kind(
    "baseline_length", DOUBT, "its baseline ran {steps} steps ({warmup_steps} warm-up)"
)

# -- baselines

BATCH_SIZE_NOT_FOUND = Kind(
    "no_baseline",
    REFUSAL,
    "{series}: no speedup, because no {shape} run found this batch size; --batch-size sets one for all shapes",
)
BASELINE_IMPOSSIBLE = Kind(
    "no_baseline",
    REFUSAL,
    "{series}: no speedup, because {shape} is impossible; --baseline-shape chooses another baseline",
)
BASELINE_RUNNING = Kind(
    "no_baseline", REFUSAL, "{series}: no speedup yet, because no {shape} run has ended"
)
NO_BASELINE = Kind(
    "no_baseline",
    REFUSAL,
    "{series}: no speedup, because there is no good {shape} run",
    "; {how}",
)

# -- the whole table

INCOMPLETE = Kind("incomplete", REFUSAL, "incomplete: {counts}")
IN_PROGRESS = Kind("in_progress", REMARK, "in progress: {counts}")
NOTHING_RUN = Kind("nothing_run", REFUSAL, "nothing was run: {where}{reason}")
RANDOM_ORDER = Kind("random_order", REMARK, "random order in blocks, seed {seed}")
BORROWED = Kind("borrowed_runs", REMARK, "runs borrowed from {bench} as a baseline: {count}")
RUN_IN_NO_ROW = Kind("run_in_no_row", REFUSAL, "run {run} is in no row: {cause}")
METRIC_WITHOUT_VALUE = Kind(
    "metric_without_value", REFUSAL, "no run has a value of {metrics}, which {folder} declares"
)
EXPECTATION = Kind("expectation", REMARK, "expected {expected}: {verdict}, {place}{got}")
EXPECTATION_NOT_MET = Kind("expectation_not_met", DOUBT, EXPECTATION.words)
BOUND_IN_OTHER_UNIT = Kind(
    "bound_in_other_unit",
    DOUBT,
    "{got}; the bound was given in {unit}, before the log was read again",
)
BOUNDS_MET = Kind("expectation", REMARK, "bounds met, in {rows} rows: {bounds}")
DRIFT_OF_METRIC = Kind(
    "drift",
    DOUBT,
    "{metric} of all configurations changed by {drift:+.1%} during the bench; "
    "typical values are those of its middle, without this drift",
)
DRIFT = Kind(
    "drift",
    DOUBT,
    "all configurations became {drift:.1%} {direction} during the bench; "
    "speed, speedup and their intervals are those of its middle, without this drift",
)
UNCERTAIN_DRIFT = Kind(
    "uncertain_drift",
    REMARK,
    "{what} of all configurations changed by {drift:+.1%} during the bench, which may be chance; "
    "typical values are those of its middle, without this drift",
)
DRIFT_OF_MEDIANS = Kind(
    "drift",
    DOUBT,
    "all configurations became {drift:.1%} {direction} during the bench; "
    "speed and its interval are those of its middle, without this drift; "
    "medians and speedups contain it",
)
CARRIED_OVER = Kind(
    "carried_over",
    DOUBT,
    "runs are off by as much as the runs before them (correlation {correlation:.1f}): "
    "repeats are not independent, and intervals too narrow; "
    "repeat the bench on another day, or with more repeats",
)
