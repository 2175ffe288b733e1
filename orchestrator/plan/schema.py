"""The schema of ``framework.yaml``: its keys, their types, and what each of them means.

Words about a key are here once: messages about a fault and the JSON Schema for editors use them.
What several keys must be together is in `orchestrator.plan.consistency`.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from orchestrator.inventory.fields import takes, takes_variable
from orchestrator.logs.numbers import THOUSANDS
from orchestrator.plan.framework import Option
from orchestrator.plan.payload import is_payload_name
from orchestrator.plan.published_schema import PublishedEntry

__all__ = ["Defaults", "FileEntry", "FrameworkFile", "KnobEntry", "LogEntry", "MetricEntry", "OptionEntry", "json_schema"]

Device = Literal["cuda", "cpu"]
Launch = Literal["every_node", "first_node"]
MeasureName = Literal["training", "language_model", "collectives", "pairs", "readings"]
Scope = Literal["global", "node", "process"]
Unit = Literal["ns", "us", "ms", "s", "min", "h"]

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,63}")
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and "\0" not in value


def _is_glob(value: Any) -> bool:
    return _is_text(value) and bool(value) and not value.startswith("/") and ".." not in value.split("/")


def _matches(pattern: re.Pattern[str]) -> Any:
    return lambda value: isinstance(value, str) and bool(pattern.fullmatch(value))


def _whole(least: int, most: int = 1 << 40) -> Any:
    words = f"a whole number ≥ {least}" if most == 1 << 40 else f"a whole number from {least} to {most}"
    return takes(words, lambda value: type(value) is int and least <= value <= most)


Text = Annotated[str, takes("text", _is_text, "put quotes around it")]
Name = Annotated[
    str, takes("a name of letters, digits, '.', '_', '+' and '-'", _matches(_NAME), "it becomes part of file names")
]
Glob = Annotated[
    str, takes("files below the logs of a node, such as rank-0.out or node.out", _is_glob, "without / at its beginning and ..")
]
Scalar = Annotated[
    bool | int | float | str,
    takes("a number, text, true or false", lambda value: type(value) in (bool, int, float) or _is_text(value)),
]
Number = Annotated[
    int | float, takes("a number", lambda value: type(value) in (int, float), "write it without quotes, and without a unit")
]
Above0 = Annotated[
    int | float, takes("a number above 0", lambda value: type(value) in (int, float) and 0 < value < float("inf"))
]
Share = Annotated[
    int | float, takes("a number above 0 and below 1", lambda value: type(value) in (int, float) and 0 < value < 1)
]
Separator = Annotated[
    str,
    takes(
        "a comma, a space, _ or an apostrophe",
        lambda value: value in THOUSANDS,
        "such as thousands: ','; a point is the one before decimals",
    ),
]
Suffix = Annotated[str, takes("one to three letters", _matches(re.compile("[A-Za-z]{1,3}")), "such as K, Mi or GB")]
Truth = Annotated[bool, takes("true or false", lambda value: type(value) is bool)]
Port = Annotated[
    int | Literal["gpus"],
    takes("a whole number from 0 to 64, or gpus", lambda value: value == "gpus" or type(value) is int and 0 <= value <= 64),
]
Pattern = Annotated[str, takes("a regular expression as text", _is_text, "put single quotes around it")]
Variable = Annotated[str, takes_variable("a folder")]
Word = Annotated[
    str,
    takes("a name of letters, digits and '_'", _matches(_WORD)),
    takes("another name", lambda value: not hasattr(dict, value), "in a template, this one is a method of all options"),
]
Payload = Annotated[
    str,
    takes("another name", lambda value: value != "rank_wrapper.py", "orch's rank wrapper has this one"),
    takes(
        "a file such as train.py, or a folder such as models/, relative to the framework's folder",
        lambda value: value == "rank_wrapper.py" or is_payload_name(value),
        "letters, digits, dots, dashes and underscores; no part begins with a dot or a dash",
    ),
]
Mode = Annotated[
    str,
    takes('permissions such as "0700", in quotes', lambda value: _is_text(value) and bool(re.fullmatch("0[0-7]{3}", value))),
]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class TransformerEntry(_Strict):
    """The sizes of a language model, from which floating-point operations are counted."""

    layers: Annotated[int, _whole(1)] = Field(description="number of layers")
    width: Annotated[int, _whole(1)] = Field(description="width of a token between layers")
    heads: Annotated[int, _whole(1)] = Field(description="heads of queries")
    kv_heads: Annotated[int, _whole(1)] | None = Field(None, description="heads of keys and values; without it, those of heads")
    head_width: Annotated[int, _whole(1)] | None = Field(None, description="width of a head; without it, width / heads")
    mlp: Annotated[int, _whole(1)] = Field(description="hidden width of an MLP, or of one expert")
    gated: Truth = Field(description="the MLP has a third matrix, as in SwiGLU")
    vocab: Annotated[int, _whole(1)] = Field(description="width of the output layer: tokens of the vocabulary, with padding")
    tied: Truth = Field(True, description="the output layer is the embedding table")
    experts: Annotated[int, _whole(1)] = Field(1, description="experts of a layer")
    active_experts: Annotated[int, _whole(1)] = Field(1, description="experts that each token passes")


class ModelDefaults(_Strict):
    """What a run of one model uses where nobody chooses, and its device has no default of its own."""

    batch_size: Annotated[int, _whole(1)] = Field(1, description="samples per device and step")
    options: dict[Word, Scalar] = Field({}, description="values of options by name, such as {seq_len: 4096}")


class StepEntry(_Strict):
    """What a step computes, each as the name of an option: for language models."""

    tokens: Text = Field(description="the option that holds the tokens of a sequence")
    micro_batches: Text = Field("", description="the option that holds the forward passes of a step; without it, one")
    shared_by: list[Text] = Field(
        [], description="options whose product is the number of ranks that compute one copy of the model; without it, one"
    )
    recomputation: Text = Field("", description="the option that says what is recomputed: none, selective or full")
    batch_size_up_to: Text = Field(
        "", description="the option that, above 0, has a run train with the largest batch size up to it that fits"
    )


class ModelEntry(_Strict):
    """A model; a template reads it as ``model``. Further keys are the folder's own."""

    model_config = ConfigDict(extra="allow")

    title: Text = Field("", description="the model's title")
    parameters: Annotated[int, _whole(1)] = Field(
        1, description="number of parameters, for predictions and plausibility checks"
    )
    transformer: TransformerEntry | None = Field(None, description="the sizes of a language model")
    defaults: ModelDefaults = Field(ModelDefaults.model_construct(), description="defaults of this model")


class Defaults(_Strict):
    """What a run uses where nobody chooses."""

    batch_size: Annotated[int, _whole(1)] = Field(1, description="samples per device and step")
    dtype: Text = Field("", description="a name in the table of dtypes")
    loader: Text = Field("", description="one of loaders")
    steps: Annotated[int, _whole(1)] = Field(1, description="steps of a run, the warm-up included")
    warmup_steps: Annotated[int, _whole(0)] = Field(0, description="steps at the beginning that are not measured")
    timeout_s: Annotated[
        int | float,
        takes("seconds above 0", lambda value: type(value) in (int, float) and 0 < value < float("inf"), "without a unit: 300"),
    ] = Field(1, description="seconds after which a run is stopped")
    repeats: Annotated[int, _whole(1)] = Field(1, description="runs of each configuration")


class OptionEntry(_Strict):
    """An option of the program, set with ``--set NAME=VALUE``; a template reads it as ``options.NAME``."""

    type: Literal["int", "float", "bool", "str"] = Field(description="the type of its values: int, float, bool or str")
    default: Scalar = Field(description="its value where nobody chooses, of its type")
    help: Text = Field(description="what it does, in one line of text")
    choices: list[Scalar] = Field([], description="the only values that it takes")
    minimum: Number | None = Field(None, description="the smallest number that it takes")
    maximum: Number | None = Field(None, description="the largest number that it takes")
    device_default: dict[Device, Scalar] = Field({}, description="another default on one device")

    def as_option(self) -> Option:
        """Return the option that this entry declares."""
        device_default = {str(device): value for device, value in self.device_default.items()}
        return Option(self.type, self.default, self.help, tuple(self.choices), self.minimum, self.maximum, device_default)


class FileEntry(_Strict):
    """A template, rendered for every node."""

    template: Text = Field(description="the name of a template in this folder, such as launch.sh.j2")
    path: Annotated[
        str,
        takes("a file name of letters, digits, '.', '_' and '-'", _matches(_FILE), "it is written into the run's directory"),
    ] = Field(description="the file to write on a node, such as launch.sh")
    target: Literal["sh", "json", "yaml"] = Field("sh", description="how printed values are quoted: for sh, json or yaml")
    mode: Mode = Field("0600", description='permissions, in quotes: "0700" for a program')


class MetricEntry(_Strict):
    """A metric: what a group of a line with results means."""

    unit: Text = Field(description="the unit of its values, such as GB/s")
    better: Literal["higher", "lower"] = Field(description="which values are better: higher or lower")
    help: Text = Field("", description="what it is, in one line of text")
    group: Text = Field("", description="the named group that holds its value; without it, the one of its name")
    factor: Number = Field(1, description="what printed values are multiplied by to be in its unit")
    keys: list[Word] = Field([], description="groups that tell values of one run apart, such as [size_bytes]")
    scope: Literal["global", "node", "rank"] = Field("global", description="what a line is about: the run, a node or a rank")
    over: Literal["only", "mean", "harmonic_mean", "median", "min", "max", "sum", "last"] = Field(
        "only", description="how lines of one log with equal keys become one value; only expects a single line"
    )
    across: Literal["sum", "mean", "min", "max", "each"] | None = Field(
        None, description="how the values of nodes or ranks become one; each keeps them apart"
    )
    speedup: Truth = Field(False, description="it is compared with that of a single device")
    primary: Truth = Field(False, description="the metric that stands for the run; without it, the first one")
    says: Literal["tokens_per_s", "tokens_per_s_per_device", "tflops_per_device", "mfu"] | None = Field(
        None, description="the metric of a language model of which it is the program's own figure"
    )
    ema: Share | None = Field(
        None, description="with says: the newest step's share, where the program prints an exponential moving average"
    )


class LogEntry(_Strict):
    """What the lines of the program's log mean."""

    files: Annotated[list[Glob], Field(min_length=1)] = Field(
        description="the files with step lines, below the logs of a node: [rank-0.out] or [node.out]"
    )
    patterns: list[Pattern] = Field(
        [], description="regular expressions with the groups step and one that says how fast, and any of metrics"
    )
    nodes: Literal["first", "last", "every"] = Field("first", description="the nodes whose files are read")
    prefix: Pattern = Field("", description="what a launcher puts before each line of a rank: group rank or local_rank")
    thousands: Separator = Field("", description="what separates thousands in numbers, such as ',' in 5,762")
    suffixes: dict[Suffix, Above0] = Field({}, description="what follows a number, and its factor: {K: 1000, M: 1000000}")
    scope: Scope = Field("global", description="what the rate in a line covers: the run, a node, or a process")
    scope_by: dict[str, dict[str, Scope]] = Field({}, description="scope for single values of options")
    cumulative: Truth = Field(False, description="a rate is the mean since the start")
    counts_from: Annotated[int, takes("0 or 1", lambda value: type(value) is int and value in (0, 1))] = Field(
        1, description="the number of the program's first step", json_schema_extra={"enum": [0, 1]}
    )
    after_warmup: Truth = Field(False, description="the program performs its warm-up before it counts")
    rank: Pattern = Field("", description="the line by which each rank says who it is: groups rank and world_size")
    rank_files: list[Glob] = Field([], description="the files with these lines; without it those of files")
    rank_parts: Pattern = Field("", description="the line with the parts of a rank's steps, as JSON in the group json")
    closing: Pattern = Field("", description="the last line, with the facts of the run as JSON in the group json")
    nccl_files: list[Glob] = Field([], description="files in which NCCL logs, such as nccl-*.log")
    readings: Pattern | list[Pattern] = Field(
        [], description="lines with results other than steps: a regular expression with groups of any name, or several"
    )
    metrics: dict[Word, MetricEntry] = Field(
        {}, description="what groups of readings and patterns are, by name: {bandwidth: {unit: GB/s, better: higher}}"
    )
    units: dict[Literal["timestamp", "elapsed_s", "step_time_s", "samples_per_s", "steps_per_s"], Unit] = Field(
        {}, description="the unit of time of a group that is not in seconds: {step_time_s: ms}"
    )
    summed_over: dict[Literal["samples", "samples_per_s", "steps_per_s"], Literal["nodes", "ranks"]] = Field(
        {}, description="groups that the program has already added up over all nodes or ranks"
    )


class KnobEntry(_Strict):
    """A parameter that `orch tune` may change."""

    env: list[Annotated[str, takes("a variable name of letters, digits and '_'", _matches(_WORD))]] = Field(
        [], description="the environment variables that it sets together"
    )
    option: Text = Field("", description="or the option that it sets")
    multiplies: Literal["", "batch_size"] = Field("", description="or batch_size, which each value multiplies")
    values: Annotated[list[Scalar | list[Scalar]], Field(min_length=1)] = Field(
        description="the values to try, the best guess first"
    )
    networks: list[Literal["Socket", "IB", "any"]] = Field([], description="only where NCCL uses one of these")
    when: dict[Word, list[Scalar]] = Field(
        {}, description="only where the closing line of the first run has one of these values: {parallel: [fsdp]}"
    )
    numerics: Truth = Field(False, description="it changes the computed numbers")
    default: Text = Field("", description="the value in effect if nobody sets one, in words")


class FrameworkFile(_Strict):
    """A framework folder of orch: what a program takes, how it starts, and what its log means."""

    title: Text = Field(description="the program's title, as text")
    measures: MeasureName = Field("training", description="what a run measures")
    launch: Launch = Field("every_node", description="where the launch script starts the program")
    launch_by: dict[str, dict[str, Launch]] = Field({}, description="launch for single values of options")
    batch_size_is: Literal["device", "node", "global"] = Field("device", description="what the program's batch size counts")
    simulated: Truth = Field(False, description="the program waits instead of computing")
    models: Annotated[dict[Name, ModelEntry], Field(min_length=1)] = Field(
        description="the models by name, such as {mlp: {title: MLP}}; MODEL of orch bench MODEL"
    )
    per_step: StepEntry | None = Field(None, description="what a step of a language model computes, as names of options")
    dtypes: Annotated[dict[Device, dict[Name, Text]], Field(min_length=1)] = Field(
        description="for cuda and cpu, orch's name of each type and the program's, such as {cpu: {fp32: float32}}"
    )
    dtype_reasons: dict[Device, Text] = Field({}, description="why the table of types is short on a device")
    caveats: dict[Device, Text] = Field({}, description="a note on every number measured on a device")
    loaders: list[Text] = Field([], description="values of --loader, such as [synthetic]")
    defaults: Defaults = Field(
        description="a mapping with batch_size, dtype, loader, steps, warmup_steps, timeout_s and repeats"
    )
    device_defaults: dict[Device, Defaults] = Field({}, description="other defaults on one device")
    options: dict[Word, OptionEntry] = Field({}, description="the options of --set, by name")
    env: dict[Variable, Text] = Field({}, description="environment variables of every run; those of the inventory win")
    setup: list[Text] = Field(
        [],
        description="lines of bash that run first on every node, after vars.setup of the host; what they print is in setup.out",
    )
    files: Annotated[list[FileEntry], Field(min_length=1)] = Field(
        description="a list of templates, one of which has the path launch.sh"
    )
    payload: list[Payload] = Field([], description="files and folders/ that are sent to the nodes")
    requires: dict[Word, Text] = Field(
        {}, description="host variables that are folders of programs on the nodes, and a file in each: {my_dir: train.py}"
    )
    ports: dict[Literal["first_node", "every_node"], Port] = Field(
        {"first_node": 1}, description="how many ports, from master_port on, the program listens on"
    )
    probe: Text = Field(description="Python that prints versions as a JSON object")
    distributions: list[Text] = Field(
        [], description="Python distributions; one that is installed proves the framework present"
    )
    log: LogEntry = Field(description="a mapping with files and patterns")
    published: PublishedEntry | None = Field(None, description="how published numbers of this system were computed")
    tunes: list[KnobEntry] = Field([], description="the parameters of orch tune, the most important first")


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of ``framework.yaml``."""
    schema = FrameworkFile.model_json_schema()
    for model in (Defaults, ModelDefaults, ModelEntry):  # theirs only stand for keys that are not set
        for field in schema["$defs"][model.__name__]["properties"].values():
            field.pop("default", None)
    return schema
