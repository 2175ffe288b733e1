"""Check published tables of language models: scaling, peaks, and shares of what a device can do.

Scaling is judged by `orchestrator.results.numbers.physics`, as in tables of images and orch's own
benches. Rows are compared if they have the same model, sequences, recomputation and settings, and
if their micro-batches cannot explain the finding: more of them between two updates make a GPU
faster, as it communicates less.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product

from orchestrator.features.published.language import (
    LanguageRecord,
    LanguageTable,
    recompute_language,
    speed_per_device,
)
from orchestrator.results.numbers.peaks import DIVISORS, device_in
from orchestrator.results.numbers.physics import ROOM, Finding, Measured, findings

_PEAKS_DIFFER = 0.002
"""Peaks in use for one device differ by up to this fraction, such as 989 and 990 TFLOP/s for 989.5.
"""


def find_language_doubts(
    tables: Iterable[LanguageTable],
) -> dict[str, dict[str, tuple[Finding, ...]]]:
    """Return the findings of each table by row, without rows that have none. Tables of one hardware
    are judged together.
    """
    tables = tuple(tables)
    return {table.name: _of_table(table, tables) for table in tables}


def _of_table(
    table: LanguageTable, tables: Iterable[LanguageTable]
) -> dict[str, tuple[Finding, ...]]:
    same = [
        other for other in tables if (other.hardware, other.dtype) == (table.hardware, table.dtype)
    ]
    peers = [(record, _measured_cell(other, record)) for other in same for record in other.records]
    disagreeing = {
        check.record
        for check in recompute_language(table).checks
        if check.what == "mfu" and not check.agrees
    }
    by_row = {}
    for record in table.records:
        doubts = [*_scaling(table, record, peers), *_of_row(table, record)]
        if record.name in disagreeing:
            doubts += _implied_peak(table, record)
        if doubts:
            by_row[record.name] = tuple(doubts)
    return by_row


def _scaling(
    table: LanguageTable,
    record: LanguageRecord,
    peers: Iterable[tuple[LanguageRecord, Measured | None]],
) -> tuple[Finding, ...]:
    cell = _measured_cell(table, record)
    if cell is None:
        return ()
    return findings(cell, [peer for other, peer in peers if peer and _comparable(record, other)])


def _comparable(record: LanguageRecord, other: LanguageRecord) -> bool:
    parallel = ("tensor_parallel", "pipeline_parallel", "context_parallel")
    same = ("model", "seq_len", "recomputation", "settings", *parallel)
    if other is record or any(getattr(record, name) != getattr(other, name) for name in same):
        return False
    ours, theirs = record.micro_batches or 1, other.micro_batches or 1
    size, other_size = record.gpus or 0, other.gpus or 0
    if other_size < size:
        return theirs >= ours
    if other_size == size:
        return theirs <= ours
    return theirs == ours


def _measured_cell(table: LanguageTable, record: LanguageRecord) -> Measured | None:
    tokens_per_s = record.figures.get("tokens_per_s")
    if tokens_per_s is None or record.gpus is None:
        return None
    whole_nodes = record.gpus % table.gpus_per_node == 0
    nodes, gpus = (
        (record.gpus // table.gpus_per_node, table.gpus_per_node)
        if whole_nodes
        else (1, record.gpus)
    )
    batch_size = record.batch_size or 1
    return Measured(
        nodes,
        gpus,
        batch_size,
        record.model,
        table.dtype,
        (float(tokens_per_s),),
        table.hardware,
        unit="tokens/s",
        work_per_rank=batch_size
        * (record.micro_batches or 1)
        * record.seq_len
        / record.model_ranks,
    )


def _of_row(table: LanguageTable, record: LanguageRecord) -> Iterator[Finding]:
    device = device_in(table.hardware)
    peak = (device.peak(table.dtype) or 0) / 1e12 if device else 0
    stated = table.peak_tflops
    if device and peak and stated and abs(stated / peak - 1) > _PEAKS_DIFFER:
        text = f"the MFU is a share of {stated:g} TFLOP/s, the dense peak of {device.name} for {table.dtype} is {peak:g}"
        yield Finding("peak", max(stated / peak, peak / stated), text)
    mfu, hfu = record.figures.get("mfu"), record.figures.get("hfu")
    if mfu and hfu and hfu < mfu:
        yield Finding("hfu", mfu / hfu, f"impossible: HFU {hfu:g} % is less than MFU {mfu:g} %")
    elif mfu and hfu and hfu > mfu and record.recomputation == "none":
        yield Finding(
            "hfu", hfu / mfu, f"HFU {hfu:g} % is more than MFU {mfu:g} %, but nothing is recomputed"
        )
    executed = max(mfu or 0.0, hfu or 0.0) / 100
    if executed:
        # Half of attention is masked, and some kernels leave it out: the least that computes the
        # same.
        sizes = table.sizes[record.model]
        least = sizes.flops_per_token(record.seq_len, causal=True) / table.flops_per_token(record)
        if executed * min(1.0, least) > ROOM:
            name = "HFU" if hfu and hfu > (mfu or 0) else "MFU"
            yield Finding(
                "arithmetic",
                executed,
                f"impossible: {name} {100 * executed:g} % is more than the device can do",
            )
    derived = speed_per_device(table, record)
    per_device = max(
        record.figures.get("tokens_per_s_per_device") or 0.0, float(derived.low) if derived else 0.0
    )
    if device and peak and per_device:
        least_flops = table.sizes[record.model].flops_per_token(record.seq_len, causal=True)
        bound = peak * 1e12 * ROOM / least_flops
        if per_device > bound:
            text = f"impossible: the arithmetic of {device.name} allows at most {bound:.0f} tokens/s per device"
            yield Finding("arithmetic", per_device / bound, text)


def _implied_peak(table: LanguageTable, record: LanguageRecord) -> Iterator[Finding]:
    """Yield the peak that the printed MFU and tokens/s imply, and the device that has it."""
    speed, mfu = speed_per_device(table, record), record.figures.get("mfu")
    if not speed or not mfu or not table.peak_tflops:
        return
    implied = (
        table.flops_per_token(record) * float((speed.low + speed.high) / 2) / (mfu / 100) / 1e12
    )
    named = []
    for device, dtype in product(DIVISORS, ("bf16", "fp8", "tf32", "fp32")):
        peak = device.peak(dtype)
        if peak and abs(implied * 1e12 / peak - 1) < _PEAKS_DIFFER:
            named.append(f"{device.name} for {dtype}")
    whose = f", the peak of {' or '.join(named)}" if named else ""
    text = f"MFU {mfu:g} % follows from tokens/s with a peak of {implied:.4g} TFLOP/s{whose}, not {table.peak_tflops:g}"
    yield Finding("peak", max(implied / table.peak_tflops, table.peak_tflops / implied), text)
