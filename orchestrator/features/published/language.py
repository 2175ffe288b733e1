"""Published figures of language models, and the arithmetic that recomputes each from the others.

A figure agrees if some true numbers exist that would be printed as all the figures it is recomputed
from, and as itself. What counts as an operation is the document's own convention: `Operations` per
token, of N parameters and of L·d·T, the products of attention. docs/published.md has the formula of
each figure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import Any

from orchestrator.features.published.figures import Bounds, Printing, exact, split_known
from orchestrator.plan.transformer import Transformer


@dataclass(frozen=True, slots=True)
class Operations:
    """Operations per token: ``parameters`` for each of the N parameters that are counted,
    ``attention`` for each of L·d·T.
    """

    parameters: int = 0
    attention: int = 0


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a model from which operations are counted.

    ``weights``: the weights of the matrix products that a token passes. ``attention_width``: L·d,
    summed over the layers with attention, where d is heads times the mean width of a head's keys
    and values: they differ in multi-head latent attention (DeepSeek-V2, 2024), and hybrid models
    have layers without attention. ``transformer``: the sizes, None if the two numbers describe the
    model. Besides the weights it has vectors of the width, such as norms and biases:
    ``vectors_per_layer``, ``vectors_per_model``, and ``vectors_per_position`` of a sequence, each
    None if not stated.
    """

    weights: int
    attention_width: int
    transformer: Transformer | None = None
    vectors_per_layer: int | None = None
    vectors_per_model: int = 0
    vectors_per_position: int = 0

    @classmethod
    def of(cls, transformer: Transformer, **vectors: int | None) -> Sizes:
        """Return the sizes of a transformer; ``vectors`` as the attributes of these names."""
        attention_width = transformer.layers * transformer.heads * transformer.head_width
        return cls(transformer.matmul_parameters, attention_width, transformer, **vectors)  # type: ignore[arg-type]

    def parameters(self, seq_len: int) -> int | None:
        """Return the number of all parameters for sequences of ``seq_len`` tokens, None if that is
        not stated.
        """
        if self.transformer is None or self.vectors_per_layer is None:
            return None
        layers, width = self.transformer.layers, self.transformer.width
        vectors = (
            self.vectors_per_layer * layers
            + self.vectors_per_model
            + self.vectors_per_position * seq_len
        )
        return self.transformer.parameters + vectors * width

    def flops_per_token(self, seq_len: int, *, causal: bool = False) -> int:
        """Return the operations of training on one token as orch counts them, see
        `orchestrator.plan.transformer`.
        """
        return 6 * self.weights + (6 if causal else 12) * self.attention_width * seq_len


@dataclass(frozen=True, slots=True)
class LanguageRecord:
    """One row, ``name`` tells it from the others of its table.

    ``gpus`` is the number of all devices, ``batch_size`` the sequences of a forward pass of one
    copy of the model, ``micro_batches`` the forward passes of a step; None if it is not printed.
    ``model_ranks`` are the devices that compute one copy, by tensor, pipeline and context
    parallelism. ``figures`` are the printed numbers by name.
    """

    name: str
    model: str
    seq_len: int
    gpus: int | None
    batch_size: int | None
    micro_batches: int | None
    recomputation: str
    settings: Mapping[str, Any]
    figures: Mapping[str, float]
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    context_parallel: int = 1

    @property
    def model_ranks(self) -> int:
        """Devices that compute one copy of the model."""
        return self.tensor_parallel * self.pipeline_parallel * self.context_parallel


@dataclass(frozen=True, slots=True)
class LanguageTable:
    """One table.

    ``peak_tflops`` is the peak that its MFU is a share of, None if it is not stated. ``operations``
    counts training without recomputation, ``recomputed`` the additional operations of the hardware
    by kind of recomputation. ``counts_all``: N counts all parameters, not the weights of matrix
    products. ``printing`` describes how each figure was printed, ``known`` lists known differences.
    """

    name: str
    title: str
    source: str
    hardware: str
    dtype: str
    gpus_per_node: int
    peak_tflops: float | None
    operations: Operations
    counts_all: bool
    recomputed: Mapping[str, Operations]
    printing: Mapping[str, Printing]
    sizes: Mapping[str, Sizes]
    records: tuple[LanguageRecord, ...]
    known: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def bounds(self, record: LanguageRecord, kind: str) -> Bounds | None:
        """Return the bounds of a printed figure's true number; None if it is not printed."""
        printed = record.figures.get(kind)
        if printed is None:
            return None
        return self.printing.get(kind, Printing()).bounds(printed)

    def flops_per_token(self, record: LanguageRecord) -> int:
        """Return the operations of training on one token, as the document counts them."""
        return self._count_operations(record, self.operations)

    def hardware_flops_per_token(self, record: LanguageRecord) -> int:
        """Return the operations of training on one token with those that are executed again."""
        return self.flops_per_token(record) + self._count_operations(
            record, self.recomputed.get(record.recomputation, Operations())
        )

    def _count_operations(self, record: LanguageRecord, operations: Operations) -> int:
        sizes, printed = self.sizes[record.model], record.figures.get("parameters")
        everything = int(printed) if printed is not None else sizes.parameters(record.seq_len) or 0
        parameters = everything if self.counts_all else sizes.weights
        return (
            operations.parameters * parameters
            + operations.attention * sizes.attention_width * record.seq_len
        )


@dataclass(frozen=True, slots=True)
class FigureCheck:
    """One printed figure of a row, and the bounds that follow for it from the other figures."""

    record: str
    what: str
    printed: float
    low: float
    high: float
    agrees: bool

    def __str__(self) -> str:
        recomputed = (
            f"{self.low:.10g}" if self.low == self.high else f"{self.low:.6f} to {self.high:.6f}"
        )
        return f"{self.record}: {self.what} {self.printed!r}, recomputed {recomputed}"


@dataclass(frozen=True, slots=True)
class LanguageCheck:
    """A recomputed table, with differences as in `tables.TableCheck`."""

    table: LanguageTable
    checks: tuple[FigureCheck, ...]
    odd: tuple[str, ...] = ()
    undeclared: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()


def recompute_language(table: LanguageTable) -> LanguageCheck:
    """Return every printed figure of a table that follows from others, with what follows."""
    checks = [check for record in table.records for check in _checks(table, record)]
    wrong = [str(check) for check in checks if not check.agrees]
    return LanguageCheck(
        table,
        tuple(checks),
        **split_known(wrong, table.known),
    )


def _checks(table: LanguageTable, record: LanguageRecord) -> list[FigureCheck]:
    checks = []
    for kind, formula in FIGURES.items():
        printed = table.bounds(record, kind)
        recomputed = formula(table, record) if printed and formula else None
        if printed and recomputed:
            low, high = float(recomputed.low), float(recomputed.high)
            checks.append(
                FigureCheck(
                    record.name, kind, record.figures[kind], low, high, printed.meets(recomputed)
                )
            )
    return checks


def _whole(number: int | None) -> Bounds | None:
    if number is None:
        return None
    return Bounds(Fraction(number), Fraction(number))


def _product(of: Bounds | None, factor: Fraction | None) -> Bounds | None:
    if of and factor is not None:
        return of.times(factor)
    return None


def _over(number: Fraction | int, divisor: float | None) -> Fraction | None:
    if not divisor:
        return None
    return Fraction(number) / exact(divisor)


def _parameters(table: LanguageTable, record: LanguageRecord) -> Bounds | None:
    return _whole(table.sizes[record.model].parameters(record.seq_len))


def _global_batch(table: LanguageTable, record: LanguageRecord) -> Bounds | None:
    if record.gpus is None or record.batch_size is None:
        return None
    at_once = record.batch_size * record.gpus // record.model_ranks
    if record.micro_batches is not None:
        return _whole(at_once * record.micro_batches)
    # Whatever the number of forward passes, it is a whole one.
    passes, rest = divmod(record.figures.get("global_batch", 0), at_once)
    return _whole(at_once * max(1, round(passes))) if rest else None


def _global_batch_tokens(table: LanguageTable, record: LanguageRecord) -> Bounds | None:
    printed = record.figures.get("global_batch")
    if printed is None:
        return None
    return _whole(int(printed) * record.seq_len)


def _samples_per_s(table: LanguageTable, record: LanguageRecord) -> Bounds | None:
    step = table.bounds(record, "step_time_s")
    batch = record.figures.get("global_batch")
    sequences = _global_batch(table, record) if batch is None else _whole(int(batch))
    if sequences is None and (tokens := record.figures.get("global_batch_tokens")) is not None:
        sequences = _product(_whole(int(tokens)), Fraction(1, record.seq_len))
    if step is None or sequences is None or step.low <= 0:
        return None
    return Bounds(sequences.low / step.high, sequences.high / step.low)


def _tokens_per_s(table: LanguageTable, record: LanguageRecord) -> Bounds | None:
    samples = table.bounds(record, "samples_per_s") or _samples_per_s(table, record)
    return _product(samples, Fraction(record.seq_len))


def _tokens_per_s_per_device(table: LanguageTable, record: LanguageRecord) -> Bounds | None:
    tokens = table.bounds(record, "tokens_per_s") or _tokens_per_s(table, record)
    return _product(tokens, _over(1, record.gpus))


def speed_per_device(table: LanguageTable, record: LanguageRecord) -> Bounds | None:
    """Return the tokens per second and device of a row, from any figure of speed; None if it has
    none.

    The figure for all devices is preferred: it has most digits.
    """
    printed = table.bounds(record, "tokens_per_s_per_device")
    of_all = _tokens_per_s_per_device(table, record)
    if "tokens_per_s" in record.figures and of_all:
        return of_all
    return printed or of_all


def _tflops_per_device(table: LanguageTable, record: LanguageRecord) -> Bounds | None:
    return _product(
        speed_per_device(table, record), Fraction(table.flops_per_token(record), 10**12)
    )


def _mfu(table: LanguageTable, record: LanguageRecord) -> Bounds | None:
    tflops = _tflops_per_device(table, record) or table.bounds(record, "tflops_per_device")
    return _product(tflops, _over(100, table.peak_tflops))


def _hfu(table: LanguageTable, record: LanguageRecord) -> Bounds | None:
    ratio = Fraction(table.hardware_flops_per_token(record), table.flops_per_token(record))
    return _product(table.bounds(record, "mfu") or _mfu(table, record), ratio)


FIGURES: Mapping[str, Callable[[LanguageTable, LanguageRecord], Bounds | None] | None] = (
    MappingProxyType(
        {
            "parameters": _parameters,
            "global_batch": _global_batch,
            "global_batch_tokens": _global_batch_tokens,
            "step_time_s": None,
            "samples_per_s": _samples_per_s,
            "tokens_per_s": _tokens_per_s,
            "tokens_per_s_per_device": _tokens_per_s_per_device,
            "tflops_per_device": _tflops_per_device,
            "mfu": _mfu,
            "hfu": _hfu,
        }
    )
)
"""The figures that a row may have, and what each follows from; None for one that others follow
from.
"""
