"""The schema of ``framework.yaml``: its keys, their types, and what each of them means.

Words about a key are here once: messages about a fault and the JSON Schema for editors use them.
What several keys must be together is in `orchestrator.plan.consistency`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from orchestrator.inventory.fields import WORD, Strict, Text, Truth, matches, takes, whole
from orchestrator.plan.framework import Option
from orchestrator.plan.log_schema import LogEntry
from orchestrator.plan.published_schema import PublishedEntry
from orchestrator.plan.schema_values import (
    FILE,
    Device,
    Launch,
    MeasureName,
    Mode,
    Name,
    Number,
    Payload,
    Port,
    Scalar,
    Variable,
    Word,
)


class TransformerEntry(Strict):
    """The sizes of a language model, from which floating-point operations are counted."""

    layers: Annotated[int, whole(1)] = Field(description="number of layers")
    width: Annotated[int, whole(1)] = Field(description="width of a token between layers")
    heads: Annotated[int, whole(1)] = Field(description="heads of queries")
    kv_heads: Annotated[int, whole(1)] | None = Field(
        None, description="heads of keys and values; without it, those of heads"
    )
    head_width: Annotated[int, whole(1)] | None = Field(
        None, description="width of a head; without it, width / heads"
    )
    mlp: Annotated[int, whole(1)] = Field(description="hidden width of an MLP, or of one expert")
    gated: Truth = Field(description="the MLP has a third matrix, as in SwiGLU")
    vocab: Annotated[int, whole(1)] = Field(
        description="width of the output layer: tokens of the vocabulary, with padding"
    )
    tied: Truth = Field(True, description="the output layer is the embedding table")
    experts: Annotated[int, whole(1)] = Field(1, description="experts of a layer")
    active_experts: Annotated[int, whole(1)] = Field(
        1, description="experts that each token passes"
    )


class ModelDefaults(Strict):
    """What a run of one model uses where nobody chooses, and its device has no default of its own."""

    batch_size: Annotated[int, whole(1)] = Field(1, description="samples per device and step")
    options: dict[Word, Scalar] = Field(
        {}, description="values of options by name, such as {seq_len: 4096}"
    )


class StepEntry(Strict):
    """What a step computes, each as the name of an option: for language models."""

    tokens: Text = Field(description="the option that holds the tokens of a sequence")
    micro_batches: Text = Field(
        "", description="the option that holds the forward passes of a step; without it, one"
    )
    shared_by: list[Text] = Field(
        [],
        description="options whose product is the number of ranks that compute one copy of the model; without it, one",
    )
    recomputation: Text = Field(
        "", description="the option that says what is recomputed: none, selective or full"
    )
    batch_size_up_to: Text = Field(
        "",
        description="the option that, above 0, has a run train with the largest batch size up to it that fits",
    )


class ModelEntry(Strict):
    """A model; a template reads it as ``model``. Further keys are the folder's own."""

    model_config = ConfigDict(extra="allow")

    title: Text = Field("", description="the model's title")
    parameters: Annotated[int, whole(1)] = Field(
        1, description="number of parameters, for predictions and plausibility checks"
    )
    transformer: TransformerEntry | None = Field(None, description="the sizes of a language model")
    defaults: ModelDefaults = Field(
        ModelDefaults.model_construct(), description="defaults of this model"
    )


class Defaults(Strict):
    """What a run uses where nobody chooses."""

    batch_size: Annotated[int, whole(1)] = Field(1, description="samples per device and step")
    dtype: Text = Field("", description="a name in the table of dtypes")
    loader: Text = Field("", description="one of loaders")
    steps: Annotated[int, whole(1)] = Field(1, description="steps of a run, the warm-up included")
    warmup_steps: Annotated[int, whole(0)] = Field(
        0, description="steps at the beginning that are not measured"
    )
    timeout_s: Annotated[
        int | float,
        takes(
            "seconds above 0",
            lambda value: type(value) in (int, float) and 0 < value < float("inf"),
            "without a unit: 300",
        ),
    ] = Field(1, description="seconds after which a run is stopped")
    repeats: Annotated[int, whole(1)] = Field(1, description="runs of each configuration")


class OptionEntry(Strict):
    """An option of the program, set with ``--set NAME=VALUE``; a template reads it as ``options.NAME``."""

    type: Literal["int", "float", "bool", "str"] = Field(
        description="the type of its values: int, float, bool or str"
    )
    default: Scalar = Field(description="its value where nobody chooses, of its type")
    help: Text = Field(description="what it does, in one line of text")
    choices: list[Scalar] = Field([], description="the only values that it takes")
    minimum: Number | None = Field(None, description="the smallest number that it takes")
    maximum: Number | None = Field(None, description="the largest number that it takes")
    device_default: dict[Device, Scalar] = Field({}, description="another default on one device")

    def as_option(self) -> Option:
        """Return the option that this entry declares."""
        device_default = {str(device): value for device, value in self.device_default.items()}
        return Option(
            self.type,
            self.default,
            self.help,
            tuple(self.choices),
            self.minimum,
            self.maximum,
            device_default,
        )


class FileEntry(Strict):
    """A template, rendered for every node."""

    template: Text = Field(
        description="the name of a template in this folder, such as launch.sh.j2"
    )
    path: Annotated[
        str,
        takes(
            "a file name of letters, digits, '.', '_' and '-'",
            matches(FILE),
            "it is written into the run's directory",
        ),
    ] = Field(description="the file to write on a node, such as launch.sh")
    target: Literal["sh", "json", "yaml"] = Field(
        "sh", description="how printed values are quoted: for sh, json or yaml"
    )
    mode: Mode = Field("0600", description='permissions, in quotes: "0700" for a program')


class KnobEntry(Strict):
    """A parameter that `orch tune` may change."""

    env: list[
        Annotated[str, takes("a variable name of letters, digits and '_'", matches(WORD))]
    ] = Field([], description="the environment variables that it sets together")
    option: Text = Field("", description="or the option that it sets")
    multiplies: Literal["", "batch_size"] = Field(
        "", description="or batch_size, which each value multiplies"
    )
    values: Annotated[list[Scalar | list[Scalar]], Field(min_length=1)] = Field(
        description="the values to try, the best guess first"
    )
    networks: list[Literal["Socket", "IB", "any"]] = Field(
        [], description="only where NCCL uses one of these"
    )
    when: dict[Word, list[Scalar]] = Field(
        {},
        description="only where the closing line of the first run has one of these values: {parallel: [fsdp]}",
    )
    numerics: Truth = Field(False, description="it changes the computed numbers")
    default: Text = Field("", description="the value in effect if nobody sets one, in words")


class FrameworkFile(Strict):
    """A framework folder of orch: what a program takes, how it starts, and what its log means."""

    title: Text = Field(description="the program's title, as text")
    measures: MeasureName = Field("training", description="what a run measures")
    launch: Launch = Field("every_node", description="where the launch script starts the program")
    launch_by: dict[str, dict[str, Launch]] = Field(
        {}, description="launch for single values of options"
    )
    batch_size_is: Literal["device", "node", "global"] = Field(
        "device", description="what the program's batch size counts"
    )
    simulated: Truth = Field(False, description="the program waits instead of computing")
    models: Annotated[dict[Name, ModelEntry], Field(min_length=1)] = Field(
        description="the models by name, such as {mlp: {title: MLP}}; MODEL of orch bench MODEL"
    )
    per_step: StepEntry | None = Field(
        None, description="what a step of a language model computes, as names of options"
    )
    dtypes: Annotated[dict[Device, dict[Name, Text]], Field(min_length=1)] = Field(
        description="for cuda and cpu, orch's name of each type and the program's, such as {cpu: {fp32: float32}}"
    )
    dtype_reasons: dict[Device, Text] = Field(
        {}, description="why the table of types is short on a device"
    )
    caveats: dict[Device, Text] = Field(
        {}, description="a note on every number measured on a device"
    )
    loaders: list[Text] = Field([], description="values of --loader, such as [synthetic]")
    defaults: Defaults = Field(
        description="a mapping with batch_size, dtype, loader, steps, warmup_steps, timeout_s and repeats"
    )
    device_defaults: dict[Device, Defaults] = Field({}, description="other defaults on one device")
    options: dict[Word, OptionEntry] = Field({}, description="the options of --set, by name")
    env: dict[Variable, Text] = Field(
        {}, description="environment variables of every run; those of the inventory win"
    )
    setup: list[Text] = Field(
        [],
        description="lines of bash that run first on every node, after vars.setup of the host; what they print is in setup.out",
    )
    files: Annotated[list[FileEntry], Field(min_length=1)] = Field(
        description="a list of templates, one of which has the path launch.sh"
    )
    payload: list[Payload] = Field([], description="files and folders/ that are sent to the nodes")
    requires: dict[Word, Text] = Field(
        {},
        description="host variables that are folders of programs on the nodes, and a file in each: {my_dir: train.py}",
    )
    ports: dict[Literal["first_node", "every_node"], Port] = Field(
        {"first_node": 1}, description="how many ports, from master_port on, the program listens on"
    )
    probe: Text = Field(description="Python that prints versions as a JSON object")
    distributions: list[Text] = Field(
        [], description="Python distributions; one that is installed proves the framework present"
    )
    log: LogEntry = Field(description="a mapping with files and patterns")
    published: PublishedEntry | None = Field(
        None, description="how published numbers of this system were computed"
    )
    tunes: list[KnobEntry] = Field(
        [], description="the parameters of orch tune, the most important first"
    )


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of ``framework.yaml``."""
    schema = FrameworkFile.model_json_schema()
    for model in (
        Defaults,
        ModelDefaults,
        ModelEntry,
    ):  # theirs only stand for keys that are not set
        for field in schema["$defs"][model.__name__]["properties"].values():
            field.pop("default", None)
    return schema
