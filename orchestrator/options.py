"""Options of a bench, one row each: name, description, type, default, and where each may stand.

The command line of `orch bench` and of commands that share its options, the run file with its JSON
Schema, the files of defaults with theirs, the options of `orchestrator.prepare`, and the least
value of each count all come from `OPTIONS`. A row is named as its option, with ``_`` for ``-``; the
order is that in messages and in the help.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

from orchestrator.errors import nearest

FIRST, WHAT, OFTEN, LIMITS, WHERE, OUTPUT = GROUPS = (
    "Needed first",
    "What is measured",
    "How often",
    "Limits",
    "Where",
    "Output",
)
"""Headings of the help, in its order."""


class InRunFile(NamedTuple):
    """The place of an option in a run file.

    It stands under ``key``, by default its name, and its value has one of ``types``, which messages
    call ``expected``. ``place``:

    - ``list``: of a run; several values make as many configurations
    - ``run``: of a run; an entry of ``include`` may have another value
    - ``all_runs``: of a run, and the same in all of them
    - ``bench``: not of a run
    """

    place: Literal["list", "run", "all_runs", "bench"]
    types: tuple[type, ...]
    expected: str
    key: str = ""


class DefaultKey(NamedTuple):
    """The place of an option in a file of defaults.

    ``kind`` is a kind of value in `orchestrator.record.defaults`, ``limit`` the field of `Limits`
    that it sets. ``commands`` says whose command line takes it: ``all`` commands with the option,
    those that start ``runs``, or, if empty, none, because other code applies it. ``note`` follows
    the help in the JSON Schema, for rules that hold only in a file.
    """

    kind: str
    limit: str = ""
    commands: Literal["", "all", "runs"] = ""
    note: str = ""


class BenchOption(NamedTuple):
    """An option, and where it may stand."""

    help: str
    group: str
    # On the command line: a text, hosts as a text, one text for each time it is given, a number, a
    # flag, a flag with its --no- form, a time.
    type: Literal[
        "text", "hosts", "texts", "count", "flag", "switch", "duration", "path", "paths"
    ] = "text"
    metavar: str = ""
    # The short form, as in "-n", and the long one where it is not the name.
    short: str = ""
    long: str = ""
    # The default, and how the help shows it where code sets it.
    value: Any = None
    shown: str = ""
    # The smallest value of a count.
    least: int | None = None
    # Completion in a shell: a function of orchestrator.cli.complete.
    completion: str = ""
    # Callback with its value before the command: a function of orchestrator.cli.connection_log.
    callback: str = ""
    # Other commands than `orch bench` that take it.
    others: tuple[str, ...] = ()
    # Part of the request: it changes which runs are planned.
    plans: bool = False
    run_file: InRunFile | None = None
    default: DefaultKey | None = None

    @property
    def is_list(self) -> bool:
        """True if it takes several values, which make configurations of their own."""
        return self.run_file is not None and self.run_file.place == "list"


def check_names(names: Iterable[str], known: Iterable[str], function: str) -> None:
    """Raise TypeError for a name that is no option, with the nearest that is one."""
    valid = tuple(known)
    for name in names:
        if name not in valid:
            raise TypeError(
                f"{function}: expected the name of an option, got {name}{nearest(name, valid)}"
            )


def _list_of(*types: type, expected: str) -> InRunFile:
    return InRunFile("list", types, expected)


_WHOLE = "a whole number"
_SEARCHES = ("tune", "bisect")
_RUNNING = (*_SEARCHES, "accept")
OPTIONS: Mapping[str, BenchOption] = {
    "framework": BenchOption(
        "Frameworks. Default: chosen by the model.", FIRST, short="-f", metavar="NAME,…", completion="frameworks",
        others=("tune",), plans=True, run_file=_list_of(str, expected="text"),
    ),
    "dtype": BenchOption(
        "fp32, tf32, fp16, bf16, fp8.", FIRST, metavar="T,…", others=("tune",), plans=True,
        run_file=_list_of(str, expected="text"),
    ),
    "batch_size": BenchOption(
        "Samples per device and step; language models: sequences per micro-batch.", FIRST, short="-b", metavar="N,…",
        others=("tune",), plans=True, least=1, run_file=_list_of(int, expected=_WHOLE),
    ),
    "loader": BenchOption(
        "Sources of samples.", WHAT, metavar="L,…", others=("tune",), plans=True, run_file=_list_of(str, expected="text"),
    ),
    "cpu_binding": BenchOption(
        "CPUs of a rank: all, its GPU's NUMA node, its own cores.", WHAT, metavar="none|numa|cores,…", plans=True,
        run_file=_list_of(str, expected="none, numa or cores"),
    ),
    "options": BenchOption(
        "Values of a framework option; quotes keep a comma: 'k=\"a,b\"'.", FIRST, "texts", "KEY=V,…", long="--set",
        completion="settings", plans=True,
        run_file=_list_of(str, int, float, bool, expected="a text, a number, true or false"),
    ),
    "env": BenchOption(
        "Values of an environment variable, such as NCCL_ALGO=Ring,Tree.", WHAT, "texts", "NAME=V,…", plans=True,
        run_file=_list_of(str, int, expected="a text or a whole number"),
    ),
    "hosts": BenchOption(
        "Inventory file, gpu[01-04],@group, slurm, or pods:LABEL=VALUE.", FIRST, "hosts", short="-H", metavar="FILE|HOSTS",
        completion="hosts", others=_RUNNING, default=DefaultKey("text", note="A path is from the folder of this file on."),
    ),
    "exclude": BenchOption(
        "Hosts or devices to leave out, such as node2:gpu3.", WHERE, "hosts", short="-x", metavar="HOSTS", completion="hosts",
        others=_RUNNING, default=DefaultKey("text", commands="all"),
    ),
    "accept_new": BenchOption(
        "Accept and store host keys seen for the first time.", WHERE, "switch", others=_RUNNING,
        default=DefaultKey("flag", commands="all"),
    ),
    "templates": BenchOption(
        "Directory with more framework folders; repeatable. Always searched: ORCH_TEMPLATES, templates/ of the project.",
        WHAT, "paths", "DIR", others=_RUNNING,
        default=DefaultKey("folders", note="A path is from the folder of this file on."),
    ),
    "nodes": BenchOption(
        "Node counts. Default: all nodes.", FIRST, short="-n", metavar="N,…", plans=True, least=1,
        run_file=_list_of(int, expected=_WHOLE), default=DefaultKey("numbers"),
    ),
    "gpus": BenchOption(
        "Ranks per node. Default: all GPUs.", FIRST, short="-g", metavar="N,…", plans=True, least=1,
        run_file=_list_of(int, expected=_WHOLE),
    ),
    "shape": BenchOption(
        "Shapes instead of --nodes and --gpus; 4x8 is 4n8g.", WHAT, metavar="1n1g,…", plans=True,
        run_file=_list_of(str, expected="a shape such as 4n8g"),
    ),
    "steps": BenchOption(
        "Steps per run, including warm-up.", FIRST, "count", others=("tune",), plans=True, least=1,
        run_file=InRunFile("run", (int,), _WHOLE),
    ),
    "warmup_steps": BenchOption(
        "Steps that are not measured.", OFTEN, "count", others=("tune",), plans=True, least=0,
        run_file=InRunFile("run", (int,), _WHOLE),
    ),
    "container": BenchOption(
        "Start launch scripts in this image; none: on the hosts.", WHAT, metavar="ENGINE:IMAGE", others=("tune",), plans=True,
        run_file=InRunFile("all_runs", (str,), "ENGINE:IMAGE, or none"),
    ),
    "ladder": BenchOption(
        "1n1g, 1n2g … one full node, then 2, 4 … up to --nodes.", WHAT, "flag", plans=True,
        run_file=InRunFile("bench", (bool,), "true or false"),
    ),
    "repeats": BenchOption(
        "Runs per configuration.", FIRST, "count", short="-r", plans=True, least=1,
        run_file=InRunFile("bench", (int,), _WHOLE), default=DefaultKey("count"),
    ),
    "label": BenchOption(
        "A name for the bench, shown next to its id.", FIRST, metavar="TEXT", others=("bisect",), plans=True,
        run_file=InRunFile("bench", (str,), "text"),
    ),
    "expect": BenchOption(
        "Exit with 5 if this bound is not met, 6 if undecided.", OUTPUT, "texts", '"METRIC >= N"', plans=True,
        run_file=InRunFile("bench", (str, list), "a bound such as busbw >= 350, or a list of them"),
    ),
    "until_ci": BenchOption(
        "Add repeats until every 95 % interval is within ± this fraction of its value.", OFTEN, metavar="1%", plans=True,
        default=DefaultKey("percentage", commands="runs"),
    ),
    "max_repeats": BenchOption(
        "Maximum repeats with --until-ci. Default: 30.", OFTEN, "count", plans=True, least=2,
        default=DefaultKey("count", commands="runs"),
    ),
    "order": BenchOption(
        "balanced, random or interleaved.", OFTEN, value="balanced", plans=True, default=DefaultKey("order", commands="runs"),
    ),
    "budget": BenchOption(
        "Total time: 90s, 30m, 1h30m.", OFTEN, metavar="TIME", others=_RUNNING, plans=True,
        default=DefaultKey("duration", commands="runs"),
    ),
    "baseline": BenchOption(
        "Measure 1n1g unless an earlier run of it is usable.", OFTEN, "switch", value=True, plans=True,
    ),
    "baseline_shape": BenchOption(
        "Baseline shape of speedups, instead of 1n1g.", OFTEN, metavar="1n8g", plans=True,
    ),
    "timeout": BenchOption(
        "Time after which a run is stopped.", LIMITS, "duration", "TIME", others=("tune",), plans=True,
        run_file=InRunFile("run", (int, float), "seconds above 0", "timeout_s"), default=DefaultKey("duration"),
    ),
    "global_batch": BenchOption(
        "Samples per step over all ranks: strong scaling. Default: weak scaling.", WHAT, "count", others=("tune",),
        plans=True, least=1, run_file=InRunFile("run", (int,), _WHOLE),
    ),
    "lease": BenchOption(
        "How long a node continues a run without contact with the controller.", LIMITS, "duration", "TIME", shown="60s",
        others=_RUNNING, default=DefaultKey("duration", "lease_s", commands="runs"),
    ),
    "stop_grace": BenchOption(
        "Time between SIGTERM and SIGKILL.", LIMITS, "duration", "TIME", shown="5s", others=_RUNNING,
        default=DefaultKey("duration", "grace_s", commands="runs"),
    ),
    "first_line_timeout": BenchOption(
        "Maximum time until the first log line.", LIMITS, "duration", "TIME", shown="10m", others=("accept",),
        default=DefaultKey("duration", "first_line_s", commands="runs"),
    ),
    "stall_timeout": BenchOption(
        "Maximum time between two log lines; a proven hang ends a run earlier.", LIMITS, "duration", "TIME", shown="10m",
        others=_RUNNING, default=DefaultKey("duration", "stall_s", commands="runs"),
    ),
    "output_limit": BenchOption(
        "Maximum MiB of logs per run and node.", LIMITS, "count", value=1024, least=1,
        default=DefaultKey("count", commands="runs"),
    ),
    "wait": BenchOption(
        "Wait for nodes held by other runs; --wait 30m: at most that long.", LIMITS, "switch", others=_RUNNING,
        default=DefaultKey("flag", commands="runs"),
    ),
    "wait_limit": BenchOption(
        "Longest wait, with --wait. Default: no limit.", LIMITS, metavar="2h", others=_RUNNING,
        default=DefaultKey("duration", commands="runs"),
    ),
    "keep_going": BenchOption(
        "Start runs even if they would fail as an earlier one did.", LIMITS, "switch",
        default=DefaultKey("flag", commands="runs"),
    ),
    "strict": BenchOption(
        "Refuse the bench if a configuration is impossible, instead of skipping it.", WHAT, "switch", plans=True,
        default=DefaultKey("flag", commands="runs"),
    ),
    "file": BenchOption(
        "YAML file with the same choices, lists, include and exclude; options override it.", FIRST, "path", "FILE",
    ),
    "profile": BenchOption(
        "Trace steps of an extra run that no table includes.", OUTPUT, metavar="torch[:steps=5][:ranks=0,3]",
    ),
    "telemetry": BenchOption(
        "Sample each node's power, clocks, load and errors once a second.", OUTPUT, "switch", value=True,
    ),
    "output": BenchOption(
        "Write the path of the new directory in runs/ to this file, for scripts.", OUTPUT, "path", "FILE", others=("accept",),
    ),
    "detach": BenchOption("Run in the background; orch attach shows progress.", OUTPUT, "flag", others=_SEARCHES),
    "slurm": BenchOption(
        "Submit a job with these sbatch options, wait for it, run in it, end it.", WHERE, metavar="partition=P,time=1h,…",
        others=("tune",),
    ),
    "kubernetes": BenchOption(
        "Create a job of pods from these options or a pod template, run in it, delete it.", WHERE,
        metavar="image=I,gpus=8,…", others=("tune",),
    ),
    "devices": BenchOption(
        "GPUs or MIG instances to use; repeatable for individual hosts.", WHERE, "texts", "0-3|HOST:0-3",
    ),
    "skip_unreachable": BenchOption(
        "Skip hosts that cannot be reached, and name them.", WHERE, "flag", others=("accept",),
    ),
    "with_suspects": BenchOption(
        "Keep hosts that orch nodes lists as suspect, to retest them.", WHERE, "flag", others=("accept",),
    ),
    "gate": BenchOption(
        "Run this orch accept suite first; continue without nodes that fail it.", WHERE, metavar="SUITE",
    ),
    "spares": BenchOption(
        "Keep the last N hosts to replace any that are unreachable, unfit, held, or lost later.", WHERE, "count", "N",
        value=0, least=0,
    ),
    "debug": BenchOption(
        "Print each step of every login on stderr.", OUTPUT, "flag", short="-v", callback="set_debug", others=_RUNNING,
    ),
    "dry_run": BenchOption("Print the plan and the files of every node; contact no host.", FIRST, "flag", others=_RUNNING),
    "json": BenchOption("Print JSON on standard output.", OUTPUT, "flag", others=_RUNNING),
}  # fmt: skip
COUNTS: Mapping[str, int] = {
    name: row.least
    for name, row in OPTIONS.items()
    if row.least is not None and row.run_file and row.run_file.place != "bench"
}
"""The smallest value of each option that is a count in a spec."""


def long_form(name: str) -> str:
    """Return an option as a command line has it.

    >>> long_form("batch_size"), long_form("options")
    ('--batch-size', '--set')
    """
    return OPTIONS[name].long or f"--{name.replace('_', '-')}"


def select_plan_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that change which runs are planned."""
    return {name: value for name, value in given.items() if OPTIONS[name].plans}


def single_choices(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given options that every run has once, by their names in a run file."""
    single = {}
    for name, row in OPTIONS.items():
        if row.run_file and row.run_file.place in ("run", "all_runs"):
            value = given.get(name)
            if value not in (None, ""):
                single[row.run_file.key or name] = value
    return single
