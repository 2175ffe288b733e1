"""The schema of ``language_models:`` in a ``published.json``: rows of figures, how these were
printed, and what counts as an operation. Rows hold what was printed;
`orchestrator.features.published.language` has what follows from what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from orchestrator.errors import nearest
from orchestrator.features.published.figures import Printing
from orchestrator.features.published.language import (
    FIGURES,
    LanguageRecord,
    LanguageTable,
    Operations,
    Sizes,
)
from orchestrator.grouping import group_pairs
from orchestrator.inventory.fields import Filled, Setting, Strict, Text, takes
from orchestrator.inventory.values import KeyPath
from orchestrator.plan.schema import TransformerEntry
from orchestrator.plan.transformer import transformer_of

_MOST = 1e18

Figure = Literal[
    "parameters",
    "global_batch",
    "global_batch_tokens",
    "step_time_s",
    "samples_per_s",
    "tokens_per_s",
    "tokens_per_s_per_device",
    "tflops_per_device",
    "mfu",
    "hfu",
]


def _whole(least: int) -> Any:
    return takes(
        f"a whole number ≥ {least}", lambda value: type(value) is int and least <= value < _MOST
    )


_Count = Annotated[int, _whole(1)]
_Factor = Annotated[int, _whole(0)]
_Number = Annotated[
    int | float,
    takes(
        "a number ≥ 0",
        lambda value: type(value) in (int, float) and 0 <= value < _MOST,
        "without quotes, unit and thousands separator",
    ),
]
_Above0 = Annotated[
    int | float,
    takes(
        "a number above 0",
        lambda value: type(value) in (int, float) and 0 < value < _MOST,
        "without quotes",
    ),
]
_Recomputation = Literal["none", "selective", "full"]


class OperationsEntry(Strict):
    """Operations per token."""

    parameters: _Factor = Field(0, description="operations for each of the N parameters that count")
    attention: _Factor = Field(0, description="operations for each of L·d·T")


class TrainingEntry(OperationsEntry):
    """Operations of training on one token."""

    parameters: _Count = Field(description="operations for each of the N parameters that count")


class PrintingEntry(Strict):
    """How a figure was printed."""

    places: Annotated[
        int,
        takes("a whole number from 0 to 12", lambda value: type(value) is int and 0 <= value <= 12),
    ] = Field(0, description="the number of decimal places")
    by: Literal["nearest", "cut"] = Field(
        "nearest", description="nearest: rounded; cut: further digits were left out"
    )


class SizesEntry(Strict):
    """A model of the tables."""

    transformer: TransformerEntry | None = Field(
        None, description="the sizes, as in framework.yaml"
    )
    weights: _Count | None = Field(
        None,
        description="in place of transformer: the weights of the matrix products that a token passes",
    )
    attention_width: _Factor = Field(
        0,
        description="with weights: summed over layers with attention, heads × the mean width of a head's keys and values",
    )
    vectors_per_layer: _Factor | None = Field(
        None,
        description="further parameters in vectors of the width, such as norms and biases; without it N is not recomputed",
    )
    vectors_per_model: _Factor = Field(0, description="the same, once")
    vectors_per_position: _Factor = Field(
        0, description="the same, for each token of a sequence: learned positions"
    )


class RecordEntry(Strict):
    """One row: what was trained, and the figures as they were printed."""

    model: Filled = Field(description="the model, one of sizes")
    seq_len: _Count = Field(description="tokens of a sequence")
    gpus: _Count | None = Field(None, description="number of all devices")
    batch_size: _Count | None = Field(
        None, description="sequences of a forward pass of one copy of the model"
    )
    micro_batches: _Count | None = Field(None, description="forward passes of a step")
    tensor_parallel: _Count = Field(1, description="devices that share each layer of a copy")
    pipeline_parallel: _Count = Field(1, description="stages of layers of a copy")
    context_parallel: _Count = Field(1, description="devices that share the tokens of a sequence")
    recomputation: _Recomputation = Field(
        "none", description="what the backward pass computes again: none, selective or full"
    )
    settings: dict[str, Setting] = Field(
        {}, description="further settings of the program, which tell rows apart"
    )
    parameters: _Count | None = Field(None, description="the printed number of parameters")
    global_batch: _Count | None = Field(None, description="sequences of a step")
    global_batch_tokens: _Count | None = Field(None, description="tokens of a step")
    step_time_s: _Above0 | None = Field(None, description="seconds of a step")
    samples_per_s: _Number | None = Field(None, description="sequences per second")
    tokens_per_s: _Above0 | None = Field(None, description="tokens per second of all devices")
    tokens_per_s_per_device: _Above0 | None = Field(
        None, description="tokens per second and device"
    )
    tflops_per_device: _Above0 | None = Field(
        None, description="TFLOP/s and device, without recomputation"
    )
    mfu: _Above0 | None = Field(None, description="model FLOPs utilization, in percent")
    hfu: _Above0 | None = Field(None, description="hardware FLOPs utilization, in percent")


class LanguageTableEntry(Strict):
    """One table."""

    title: Text = Field("", description="the table's title")
    hardware: Filled = Field(description="devices and network, as text")
    dtype: Filled = Field(description="the type, such as bf16")
    gpus_per_node: _Count = Field(8, description="devices of a node")
    peak_tflops: _Above0 | None = Field(
        None, description="the peak, in TFLOP/s, that the printed MFU is a share of"
    )
    operations: TrainingEntry | None = Field(
        None, description="operations of this table, where they differ from the file's"
    )
    known: list[Text] = Field(
        [], description="differences that are known, as orch published prints them"
    )
    notes: list[Text] = Field([], description="remarks that are printed below the table")
    records: Annotated[list[RecordEntry], Field(min_length=1)] = Field(description="the rows")


class LanguageModels(Strict):
    """Published figures of language models, and what their document counts as an operation."""

    operations: TrainingEntry = Field(
        description="operations of training on one token, without recomputation: {parameters: 6, attention: 12}"
    )
    counted: Literal["all", "matmul"] = Field(
        description="which parameters are N: all, or the weights of matrix products without embedding tables, norms and biases"
    )
    recomputed: dict[_Recomputation, OperationsEntry] = Field(
        {},
        description="what hardware executes besides, by kind of recomputation: {full: {parameters: 2, attention: 4}}",
    )
    printed: dict[Figure, PrintingEntry] = Field(
        {},
        description="how figures were printed: {mfu: {places: 2}}; without it rounded to whole numbers",
    )
    sizes: Annotated[dict[str, SizesEntry], Field(min_length=1)] = Field(
        description="the models by name"
    )
    tables: Annotated[dict[str, LanguageTableEntry], Field(min_length=1)] = Field(
        description="the tables by name"
    )


def language_entry(path: KeyPath) -> type[BaseModel]:
    """Return the model of the mapping at a path that begins with ``language_models``.

    >>> language_entry(("language_models", "tables", "h100", "records", 3)).__name__
    'RecordEntry'
    """
    match path[1:]:
        case ("operations", *_):
            return TrainingEntry
        case ("recomputed", _, *_):
            return OperationsEntry
        case ("printed", _, *_):
            return PrintingEntry
        case ("sizes", _, "transformer", *_):
            return TransformerEntry
        case ("sizes", _, *_):
            return SizesEntry
        case ("tables", _, "records", _, *_):
            return RecordEntry
        case ("tables", _, "operations", *_):
            return TrainingEntry
        case ("tables", _, *_):
            return LanguageTableEntry
    return LanguageModels


def language_inconsistencies(entry: LanguageModels) -> Iterator[tuple[KeyPath, str, str]]:
    """Yield inconsistencies between the keys of ``language_models``: the path of a key, its fault,
    a hint.
    """
    for name, table in entry.tables.items():
        at: KeyPath = ("language_models", "tables", name, "records")
        names = _names(table.records)
        counts = Counter(names)
        for number, record in enumerate(table.records):
            if record.model not in entry.sizes:
                models = ", ".join(entry.sizes)
                hint = nearest(record.model, entry.sizes).lstrip("; ")
                yield (
                    (*at, number, "model"),
                    f"expected one of sizes, {models}, got {record.model!r}",
                    hint,
                )
                continue
            if (
                entry.counted == "all"
                and record.parameters is None
                and entry.sizes[record.model].vectors_per_layer is None
            ):
                hint = "operations count all parameters: print them, or write vectors_per_layer of the model"
                yield (
                    (*at, number, "parameters"),
                    "expected the number of parameters, got none",
                    hint,
                )
            if counts[names[number]] > 1:
                hint = "rows of a table differ in what was trained or in settings; make another table of it"
                yield (
                    (*at, number),
                    f"expected one row of {names[number]}, got {counts[names[number]]}",
                    hint,
                )
            if record.gpus is not None and record.gpus % _model_ranks(record):
                shared = f"a multiple of the {_model_ranks(record)} devices of a copy of the model"
                yield (*at, number, "gpus"), f"expected {shared}, got {record.gpus}", ""
    for name, sizes in entry.sizes.items():
        at_model: KeyPath = ("language_models", "sizes", name)
        if (sizes.transformer is None) == (sizes.weights is None):
            got = "neither" if sizes.weights is None else "both"
            yield at_model, f"expected transformer, or weights with attention_width, got {got}", ""
        elif sizes.transformer is None:
            continue
        elif (
            sizes.transformer.head_width is None
            and sizes.transformer.width % sizes.transformer.heads
        ):
            place: KeyPath = (*at_model, "transformer", "heads")
            width, heads = sizes.transformer.width, sizes.transformer.heads
            yield (
                place,
                f"expected a divisor of the width {width}, got {heads}",
                "say head_width: of other heads",
            )


def language_tables(entry: LanguageModels | None, source: str) -> tuple[LanguageTable, ...]:
    """Return the tables of a file, none if it has none."""
    if entry is None:
        return ()
    sizes = {name: _sizes(model) for name, model in entry.sizes.items()}
    recomputed = {
        str(kind): _operations(operations) for kind, operations in entry.recomputed.items()
    }
    printing = {
        figure: Printing(printed.places, printed.by) for figure, printed in entry.printed.items()
    }
    return tuple(
        LanguageTable(
            name=name,
            title=table.title or name,
            source=source,
            hardware=table.hardware,
            dtype=table.dtype,
            gpus_per_node=table.gpus_per_node,
            peak_tflops=None if table.peak_tflops is None else float(table.peak_tflops),
            operations=_operations(table.operations or entry.operations),
            counts_all=entry.counted == "all",
            recomputed=recomputed,
            printing={str(figure): value for figure, value in printing.items()},
            sizes=sizes,
            records=tuple(map(_record, table.records, _names(table.records))),
            known=tuple(table.known),
            notes=tuple(table.notes),
        )
        for name, table in entry.tables.items()
    )


def _operations(entry: OperationsEntry) -> Operations:
    return Operations(entry.parameters, entry.attention)


def _sizes(entry: SizesEntry) -> Sizes:
    if entry.transformer is None:
        return Sizes(entry.weights or 0, entry.attention_width)
    transformer = transformer_of(entry.transformer.model_dump(exclude_none=True))
    return Sizes.of(
        transformer,
        vectors_per_layer=entry.vectors_per_layer,
        vectors_per_model=entry.vectors_per_model,
        vectors_per_position=entry.vectors_per_position,
    )


def _model_ranks(entry: RecordEntry) -> int:
    return entry.tensor_parallel * entry.pipeline_parallel * entry.context_parallel


def _names(entries: Sequence[RecordEntry]) -> list[str]:
    """Return a name for each row: what was trained, and of rows that agree in that the settings in
    which they differ.
    """
    names = [_base_name(entry) for entry in entries]
    alike = group_pairs(zip(names, entries, strict=True))
    for number, entry in enumerate(entries):
        others = alike[names[number]]
        rows = [{"recomputation": other.recomputation, **other.settings} for other in others]
        own = {"recomputation": entry.recomputation, **entry.settings}
        differing = []
        for key in own:
            if any(row.get(key) != own[key] for row in rows):
                differing.append(key)
        names[number] += "".join(f", {key}={own[key]}" for key in differing)
    return names


def _base_name(entry: RecordEntry) -> str:
    size = f", {entry.gpus} GPUs" if entry.gpus else ""
    batch = ""
    if entry.batch_size:
        batch = f", b{entry.batch_size}" + (
            f"x{entry.micro_batches}" if entry.micro_batches else ""
        )
    parallel = {
        "tp": entry.tensor_parallel,
        "pp": entry.pipeline_parallel,
        "cp": entry.context_parallel,
    }
    split = " ".join(f"{name}{ranks}" for name, ranks in parallel.items() if ranks > 1)
    return f"{entry.model}, {entry.seq_len} tokens{size}{batch}" + (f", {split}" if split else "")


def _record(entry: RecordEntry, name: str) -> LanguageRecord:
    figures: Mapping[str, int | float | None] = {
        figure: getattr(entry, figure) for figure in FIGURES
    }
    return LanguageRecord(
        name=name,
        model=entry.model,
        seq_len=entry.seq_len,
        gpus=entry.gpus,
        batch_size=entry.batch_size,
        micro_batches=entry.micro_batches,
        recomputation=entry.recomputation,
        settings=entry.settings,
        figures={figure: value for figure, value in figures.items() if value is not None},
        tensor_parallel=entry.tensor_parallel,
        pipeline_parallel=entry.pipeline_parallel,
        context_parallel=entry.context_parallel,
    )
