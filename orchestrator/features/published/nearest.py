"""A measured speed of a language model beside the nearest published row, and how they differ.

No row of another document is the same measurement, so the nearest one is looked for in this order:
operations per token, to a factor of two, or the name of the model if they are not known; GPU, by
its peak if it is another one; type; tokens of a sequence; number of GPUs; recomputation; sequences
of a forward pass. The published MFU is converted to what orch counts as an operation, so that both
shares are of the same kind.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf, log2

from orchestrator.devices.vendor import Device
from orchestrator.features.published.language import LanguageRecord, LanguageTable
from orchestrator.features.published.tables import PublishedFile
from orchestrator.results.entries import Row
from orchestrator.results.numbers.peaks import device_in
from orchestrator.results.summary import Summary


@dataclass(frozen=True, slots=True)
class NearestRecord:
    """One measured cell and the nearest published row. Speeds are in tokens/s per device,
    ``our_mfu`` and ``published_mfu`` in percent by orch's operations; None if they are not known.
    ``ratio`` is the MFU over the published one. ``differences`` are sentences: ours, and
    as published."""

    series: str
    case: str
    source: str
    table: str
    record: str
    our_tokens_per_s: float | None
    published_tokens_per_s: float | None
    our_mfu: float | None
    published_mfu: float | None
    ratio: float | None
    differences: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Cell:
    """A measured cell: its speed, and the values of the metrics that follow from it by name."""

    row: Row
    values: Mapping[str, float]

    @property
    def flops_per_token(self) -> float | None:
        tflops, tokens_per_s = (
            self.values.get("tflops_per_device"),
            self.values.get("tokens_per_s_per_device"),
        )
        if tflops and tokens_per_s:
            return tflops * 1e12 / tokens_per_s
        return None

    @property
    def recomputation(self) -> tuple[str, ...]:
        """The kind of recomputation that may explain HFU and MFU, which differ by products that are
        computed again; empty if not known.
        """
        mfu, hfu = self.values.get("mfu"), self.values.get("hfu")
        if not mfu or not hfu:
            return ()
        if hfu > 1.001 * mfu:
            return ("full",)
        return ("none", "selective")

    @property
    def device(self) -> Device | None:
        return device_in(self.row.hardware)


def nearest_records(summary: Summary, files: Iterable[PublishedFile]) -> tuple[NearestRecord, ...]:
    """Return the nearest published row for each measured speed of a language model, in the order of
    the summary.
    """
    rows = [
        (file, table, record)
        for file in files
        for table in file.language
        for record in table.records
    ]
    cells = [
        _cell(row, summary) for row in summary.speeds() if row.tokens and row.value is not None
    ]
    return tuple(
        _beside(cell, *min(rows, key=lambda row: _distance(cell, row[1], row[2])))
        for cell in cells
        if rows
    )


def _cell(speed: Row, summary: Summary) -> _Cell:
    derived = [row for row in summary.rows if row.is_derived and row.run_ids == speed.run_ids]
    return _Cell(speed, {row.metric: row.value for row in derived if row.value is not None})


def _distance(cell: _Cell, table: LanguageTable, record: LanguageRecord) -> tuple[float, ...]:
    device, other, ours = cell.device, device_in(table.hardware), cell.flops_per_token
    same_device = bool(device and other and device.name == other.name)
    return (
        round(_octaves(ours, _flops(table, record)))
        if ours
        else float(cell.row.model != record.model),
        0.0
        if same_device
        else 1 + _octaves(device.half if device else None, other.half if other else None),
        float(cell.row.dtype != table.dtype),
        _octaves(cell.row.tokens, record.seq_len),
        _octaves(cell.row.world_size, record.gpus),
        float(_recomputes_otherwise(cell, record)),
        _octaves(cell.row.batch_size, record.batch_size),
    )


def _recomputes_otherwise(cell: _Cell, record: LanguageRecord) -> bool:
    return bool(cell.recomputation) and record.recomputation not in cell.recomputation


def _octaves(ours: float | None, theirs: float | None) -> float:
    """Return how many factors of two are between two numbers; more than between any if one is not
    known.
    """
    return abs(log2(ours / theirs)) if ours and theirs else inf


def _flops(table: LanguageTable, record: LanguageRecord) -> int:
    """Return the operations per token as orch counts them."""
    return table.sizes[record.model].flops_per_token(record.seq_len)


def _share(table: LanguageTable) -> float:
    """Return the peak that the MFU of a table is a share of, as a share of its device's; 1 if
    either is not known.
    """
    device = device_in(table.hardware)
    peak = device.peak(table.dtype) if device else None
    if table.peak_tflops and peak:
        return table.peak_tflops * 1e12 / peak
    return 1.0


def _beside(
    cell: _Cell, file: PublishedFile, table: LanguageTable, record: LanguageRecord
) -> NearestRecord:
    printed = record.figures.get("mfu")
    published = None
    if printed:
        published = printed * _flops(table, record) / table.flops_per_token(record) * _share(table)
    ours = cell.values.get("mfu")
    notes = []
    if cell.row.simulated:
        notes.append("ours is simulated: not a speed of any hardware")
    if cell.row.device == "cpu":
        notes.append("ours ran on CPUs")
    return NearestRecord(
        series=cell.row.series,
        case=cell.row.shape,
        source=file.source,
        table=table.title,
        record=record.name,
        our_tokens_per_s=cell.values.get("tokens_per_s_per_device"),
        published_tokens_per_s=record.figures.get("tokens_per_s_per_device"),
        our_mfu=ours,
        published_mfu=published,
        ratio=ours / published if ours and published else None,
        differences=_differences(cell, file, table, record),
        notes=tuple(notes),
    )


def _differences(
    cell: _Cell, file: PublishedFile, table: LanguageTable, record: LanguageRecord
) -> tuple[str, ...]:
    row, device, other = cell.row, cell.device, device_in(table.hardware)
    ours, theirs = cell.flops_per_token, _flops(table, record)
    micro_batches = record.micro_batches or 1
    step = None
    if record.batch_size and record.gpus:
        step = record.batch_size * micro_batches * record.gpus * record.seq_len
    pairs = (
        ("program", row.framework, file.framework),
        ("model", row.model, record.model),
        (
            "operations per token",
            f"{ours / 1e9:.3g} GFLOP" if ours else None,
            f"{theirs / 1e9:.3g} GFLOP",
        ),
        (
            "GPU",
            device.name if device else row.device if row.device == "cpu" else None,
            other.name if other else None,
        ),
        ("dtype", row.dtype, table.dtype),
        ("sequence", f"{row.tokens} tokens", f"{record.seq_len} tokens"),
        ("GPUs", str(row.world_size), str(record.gpus) if record.gpus else None),
        (
            "batch of a forward pass",
            str(row.batch_size),
            str(record.batch_size) if record.batch_size else None,
        ),
        ("tokens of a step", str(row.global_batch * row.tokens), str(step) if step else None),
        *(
            [("recomputation", " or ".join(cell.recomputation), record.recomputation)]
            if _recomputes_otherwise(cell, record)
            else []
        ),
    )
    unknown = "not known"
    return tuple(
        f"{name}: {our or unknown}, published {their or unknown}"
        for name, our, their in pairs
        if our != their
    )
