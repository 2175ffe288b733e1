"""How each published system computed a speed from a log: its own window, divisor and rounding, as a small function by name.

`orchestrator.results.numbers` is how orch itself measures. These rules exist to recompute a published table from its logs, and
to compute a new one in the same way. They search the bytes of a log for their own lines, because two of them count lines rather
than steps. Where a published script silently accepted a fault (too few lines, a second run in the file, a different world
size), the rule raises an error; wherever the script gave a correct number, the rule gives the same number.

>>> log = b"".join(b"train: epoch 0, iter %d, loss: 1.0, samples/s: 9.9 %.1f\\n" % (i, 1.6e9 + i / 10) for i in (20, 120))
>>> RULES["oneflow_20_120"].speed(log, Case(nodes=2, gpus=8, batch_size=128)).samples_per_s
20480.0
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType

from orchestrator.analysis.published.lines import before, last_attempt, lines_in, refused, steps_said, whole_attempt
from orchestrator.results import mean
from orchestrator.results.numbers.throughput import APART, published

__all__ = ["RULES", "Case", "Rule", "RunSpeed", "check_epoch_length"]

_TIME_HISTORY = re.compile(
    rb"TimeHistory: [0-9.]+ seconds, (?P<speed>\d{1,15}\.\d+) examples/second"
    rb" between steps (?P<first>\d{1,9}) and (?P<last>\d{1,9})(?!\d)"
)
_TIME_HISTORY_CLOCK = re.compile(rb"\d\d:\d\d:\d\d\.\d{1,6}")
_PADDLE = re.compile(
    rb"\[Pass (?P<epoch>\d{1,9}), train batch (?P<step>\d{1,9})\][^\r\n\[]{0,200}?elapse +(?P<elapse>\d+\.\d+) +sec"
)
_PADDLE_CLOCK = re.compile(rb"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}")
_ONEFLOW = re.compile(
    rb"train: epoch \d+, iter (?P<step>\d{1,9}),[^\r\n]{0,200}?samples/s: [0-9.]+(?: (?P<clock>\d{9,}\.\d+))? *(?=[\r\n])"
)
_ONEFLOW_HEADER = re.compile(rb"(?:^|[\r\n])(num_nodes|gpu_num_per_node|batch_size_per_device) = (\d{1,9})\s")
_HEADER_BYTES = 1 << 20
_TOO_FAR_APART = 2.0
"""Two measures of one window that differ by this factor give no number."""
_PYTORCH = re.compile(
    rb"Epoch: \[(?P<epoch>\d{1,9})\]\[ *(?P<step>\d{1,9})/(?P<of>\d{1,9})\][ \t]*Time +(?P<time>\d+\.\d+) +\("
)
_FLEETX = re.compile(
    rb"step(?P<step>\d{1,9}), train_loss: [^,\r\n]{1,40}, total time cost = (?P<total>\d+\.\d+), step per second:"
)
_TENSORPACK = re.compile(
    rb"Epoch (?P<epoch>\d{1,9}) \(global_step \d+\) finished"
    rb"|Throughput \(samples/sec\): (?P<speed>\d{1,15}(?:\.\d+)?(?:e\+\d\d)?)(?=\s)"
)
_TF_CNN = re.compile(rb"total images/sec: (?P<speed>\d+\.\d\d)(?!\d)|(?P<step>\d+)\timages/sec: ")


@dataclass(frozen=True, slots=True)
class Case:
    """The size of one run. ``batch_size`` is samples per device; ``images`` is the size of the data set, 0 if not known."""

    nodes: int
    gpus: int
    batch_size: int
    images: int = 0

    @property
    def ranks(self) -> int:
        """Number of devices."""
        return self.nodes * self.gpus

    @property
    def global_batch(self) -> int:
        """Samples of one step."""
        return self.ranks * self.batch_size

    def __str__(self) -> str:
        return f"{self.nodes}n{self.gpus}g"


@dataclass(frozen=True, slots=True)
class RunSpeed:
    """Speed of one run, rounded as its publisher did, and warnings about the log."""

    samples_per_s: float
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Rule:
    """One published rule. ``window`` describes what is measured, ``first`` and ``last`` are its first and last step."""

    window: str
    first: int
    last: int
    read: Callable[[bytes, Case], RunSpeed]

    def speed(self, log: bytes, case: Case) -> RunSpeed:
        """Return the run's speed, never 0. Raise DataError (result_invalid) if the log does not contain the window."""
        speed = self.read(log, case)
        if not 0 < speed.samples_per_s < math.inf:
            raise refused("expected a speed above 0", f"found {speed.samples_per_s:g} samples/s")
        return speed


def tf_timehistory_1_6(log: bytes, case: Case) -> RunSpeed:
    """Return the mean of TimeHistory lines 2 to 6, which are steps 100-600."""
    lines, warnings = _time_history(log)
    return RunSpeed(published(mean([float(line["speed"]) for line in lines[1:6]])), warnings)


def tf_timehistory_clock(log: bytes, case: Case) -> RunSpeed:
    """Return 500 global batches over the time between TimeHistory lines 1 and 6. The clock may pass midnight."""
    lines, warnings = _time_history(log)
    start, end = (_seconds_of_day(before(line, _TIME_HISTORY_CLOCK)) for line in (lines[0], lines[5]))
    seconds = end - start + (86400 if end < start - 43200 else 0)
    by_rates = math.fsum(100 * case.global_batch / (float(line["speed"]) or math.nan) for line in lines[1:6])
    warnings += _contradiction(500 * case.global_batch, seconds, by_rates, "rates")
    return RunSpeed(_per_second(case.global_batch, 500, seconds), warnings)


def paddle_lines_20_119(log: bytes, case: Case) -> RunSpeed:
    """Return the speed of the 99 batches after batch 20, by the clock of the lines of batches 20 and 119.

    Logs without timestamps need no correction: ``elapse`` is the time since the end of the previous batch.
    """
    lines, warnings = _paddle(log, range(20, 120), least=(20, 119))
    start, end = (_clock(before(lines[batch], _PADDLE_CLOCK)) for batch in (20, 119))
    if start is None or end is None:
        lines, warnings = _paddle(log, need=range(20, 120))
        seconds = math.fsum(float(lines[batch]["elapse"]) for batch in range(21, 120))
        warnings += ("the lines have no timestamp: the elapse of batches 21-119 was summed instead",)
    else:
        seconds = (end - start).total_seconds()
        elapsed = [float(line["elapse"]) for batch, line in lines.items() if 20 < batch < 120]
        warnings += _contradiction(99 * case.global_batch, seconds, 99 * mean(elapsed), "elapse")
    return RunSpeed(_per_second(case.global_batch, 99, seconds), warnings)


def paddle_elapse_20_120(log: bytes, case: Case) -> RunSpeed:
    """Return the mean of the speeds of batches 20-119, each from its elapse, as later versions of the script do."""
    lines, warnings = _paddle(log, need=range(20, 120))
    speeds = [_per_second(case.global_batch, 1, float(lines[batch]["elapse"]), places=4) for batch in range(20, 120)]
    return RunSpeed(published(mean(speeds)), warnings)


def oneflow_20_120(log: bytes, case: Case) -> RunSpeed:
    """Return 100 global batches over the unix times of iterations 20 and 120; not rounded before the median."""
    for name, value in ((m[1].decode(), int(m[2])) for m in _ONEFLOW_HEADER.finditer(log, 0, _HEADER_BYTES)):
        planned = {"num_nodes": case.nodes, "gpu_num_per_node": case.gpus, "batch_size_per_device": case.batch_size}[name]
        if value != planned:
            raise refused(f"expected {name} {planned}", f"the log says {value}")
    items = [(int(match["step"]), match) for match in lines_in(log, _ONEFLOW)]
    lines, warnings = whole_attempt(items, need=(20, 120), what="lines of iterations 20 and 120")
    if any(lines[step]["clock"] is None for step in (20, 120)):
        raise refused("expected a unix time at the end of each line", "this version of the program prints none")
    seconds = float(lines[120]["clock"]) - float(lines[20]["clock"])
    return RunSpeed(_per_second(case.global_batch, 100, seconds, places=None), warnings)


def pytorch_lines_drop20_take100(log: bytes, case: Case) -> RunSpeed:
    """Return the speed by the mean ``Time`` of lines 21-120, counted over all ranks in the order of the file.

    Only lines with an iteration above 5 count. The ranks of a node write to one stream without naming themselves.
    """
    lines = list(lines_in(log, _PYTORCH))
    lengths = sorted({int(line["of"]) for line in lines})
    if len(lengths) > 1:
        raise refused("expected one epoch length", f"found {', '.join(map(str, lengths))}: several runs in one file")
    if lines and case.images:
        check_epoch_length(lengths[0], case)
    kept = [line for line in lines if int(line["step"]) > 5]
    counts = Counter((line["epoch"], line["step"]) for line in kept)
    (_, step), most = max(counts.items(), key=lambda item: item[1], default=((b"", b""), 0))
    if most > case.gpus:
        raise refused(
            f"expected iteration {int(step)} at most {case.gpus} times, once from each rank of a node",
            f"found it {most} times: several runs in one file",
        )
    if len(kept) < 120:
        raise refused("expected 120 lines with an iteration above 5", f"found {len(kept)}")
    seconds = math.fsum(float(line["time"]) for line in kept[20:120])
    return RunSpeed(_per_second(case.global_batch, 100, seconds))


def fleetx_20_120(log: bytes, case: Case) -> RunSpeed:
    """Return 100 global batches over the growth of the total time cost from step 20 to step 120."""
    items = [(int(match["step"]), match) for match in lines_in(log, _FLEETX)]
    attempt, warnings = last_attempt(items, slack=1, last=120)
    ends = [[float(match["total"]) for step, match in attempt if step == end] for end in (20, 120)]
    counts = {len(totals) for totals in ends}
    if 0 in counts:
        raise refused("expected lines of steps 20 and 120", steps_said([step for step, _ in attempt]))
    if counts not in ({1}, {case.gpus}):
        raise refused(f"expected steps 20 and 120 once, or from each of {case.gpus} trainers", f"found {sorted(counts)} lines")
    if counts != {1}:
        warnings += (f"{case.gpus} unnamed trainers write to one log: the mean of their clocks is taken",)
    seconds = mean(ends[1]) - mean(ends[0])
    return RunSpeed(_per_second(case.global_batch, 100, seconds, places=None), warnings)


def tensorpack_epochs(log: bytes, case: Case) -> RunSpeed:
    """Return the speed of epochs 2-10, combined by time. The first epoch builds the graph and is not measured."""
    epochs: list[tuple[int, float | None]] = []
    for match in lines_in(log, _TENSORPACK):
        if match["epoch"] is not None:
            epochs.append((int(match["epoch"]), None))
        elif epochs and epochs[-1][1] is None:
            epochs[-1] = epochs[-1][0], float(match["speed"])
    speeds = [(epoch, speed) for epoch, speed in epochs if speed is not None]
    lines, warnings = whole_attempt(speeds, need=range(2, 11), what="the throughput of epochs 2-10")
    return RunSpeed(9 / math.fsum(1 / (lines[epoch] or math.nan) for epoch in range(2, 11)), warnings)


def tf_cnn_total(log: bytes, case: Case) -> RunSpeed:
    """Return the total. With Horovod every rank prints the total over all ranks: one of them is taken.

    Ranks finish together: a total followed by steps is that of an earlier run in the same log.
    """
    matches = list(lines_in(log, _TF_CNN))
    totals = [float(match["speed"]) for match in matches if match["speed"]]
    if not totals:
        raise refused("expected a line with the total", "found none: the run did not finish")
    first = next(number for number, match in enumerate(matches) if match["speed"])
    if any(match["step"] for match in matches[first:]):
        raise refused("expected the totals of one run at its end", "found steps after the first total: several runs")
    if len(totals) > case.ranks or max(totals) > min(totals) * 1.01:
        raise refused(f"expected the same total from at most {case.ranks} ranks", f"found {len(totals)} totals: several runs?")
    warning = f"{len(totals)} ranks print the total; one is taken, not the sum"
    return RunSpeed(totals[0], (warning,) if len(totals) > 1 else ())


def check_epoch_length(iterations: int, case: Case) -> None:
    """Check the iterations of an epoch against data set and ranks. Raise DataError (result_invalid) with the implied ranks.

    A loader either drops the last, smaller batch or keeps it. ``case.images`` must be above 0.
    """

    def full(ranks: int) -> int:
        return case.images // (ranks * case.batch_size)

    if full(case.ranks) <= iterations <= full(case.ranks) + 1:
        return
    ranks = max(1, round(case.images / (max(1, iterations) * case.batch_size)))
    fits = full(ranks) <= iterations <= full(ranks) + 1
    raise refused(
        f"expected {full(case.ranks)} iterations in an epoch of {case.images} images, {case}",
        f"the log has {iterations}, which implies {f'{ranks} ranks, not {case.ranks}' if fits else 'a different data set'}",
        hint="some of the nodes ran on their own, or the data set is a different one (--images)",
    )


RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "tf_timehistory_1_6": Rule("mean of the 5 rates printed for steps 100-600", 101, 600, tf_timehistory_1_6),
        "tf_timehistory_clock": Rule("steps 100-600 by the clock of their lines", 101, 600, tf_timehistory_clock),
        "paddle_lines_20_119": Rule("99 batches, by the clock of batches 20 and 119", 21, 119, paddle_lines_20_119),
        "paddle_elapse_20_120": Rule("mean of the rates of batches 20-119", 20, 119, paddle_elapse_20_120),
        "oneflow_20_120": Rule("iterations 20-120 by the clock of their lines", 21, 120, oneflow_20_120),
        "pytorch_lines_drop20_take100": Rule(
            "mean time of lines 21-120 with an iteration above 5, over all ranks of node 0",
            6,
            120,
            pytorch_lines_drop20_take100,
        ),
        "fleetx_20_120": Rule("steps 21-120 by their total time cost", 21, 120, fleetx_20_120),
        "tensorpack_epochs": Rule("epochs 2-10, combined by time", 51, 500, tensorpack_epochs),
        "tf_cnn_total": Rule("the total that the program prints", 1, 100, tf_cnn_total),
    }
)
"""Every published rule by the name that a ``framework.yaml`` gives in ``published.rule``."""


def _time_history(log: bytes) -> tuple[list[re.Match[bytes]], tuple[str, ...]]:
    """Return the lines of steps 0-100, 100-200 … 500-600."""
    items = [(int(match["last"]), match) for match in lines_in(log, _TIME_HISTORY)]
    ends = range(100, 700, 100)
    lines, warnings = whole_attempt(items, need=ends, what="6 TimeHistory lines for steps 0-600")
    odd = [int(lines[last]["first"]) for last in ends if int(lines[last]["first"]) != last - 100]
    if odd:
        raise refused("expected TimeHistory lines of 100 steps each", f"one begins with step {odd[0]}")
    return [lines[last] for last in ends], warnings


def _paddle(
    log: bytes, need: Sequence[int], least: Sequence[int] | None = None
) -> tuple[dict[int, re.Match[bytes]], tuple[str, ...]]:
    matches = list(lines_in(log, _PADDLE))
    first = min((int(match["epoch"]) for match in matches), default=0)
    items = [(int(match["step"]), match) for match in matches if int(match["epoch"]) == first]
    return whole_attempt(items, need, "lines of batches 20-119", least)


def _per_second(batch: int, steps: int, seconds: float, places: int | None = 2) -> float:
    """Return samples/s, computed and rounded as the scripts do. Raise DataError if the time is not above 0."""
    if not 0 < seconds < math.inf:
        raise refused("expected a time above 0 s in the window", f"found {seconds:g} s")
    speed = batch / (seconds / steps)
    return speed if places is None else round(speed, places)


def _contradiction(samples: int, by_clock_s: float, otherwise_s: float, name: str) -> tuple[str, ...]:
    """Return a warning if the clock of a log and its other times, called ``name``, differ over the ``samples`` of the window.

    Raise DataError (result_invalid) if one is twice the other: a clock was set, or lines of different runs are in the log.
    """
    if not by_clock_s > 0 or 1 / (1 + APART) < otherwise_s / by_clock_s < 1 + APART or math.isnan(otherwise_s):
        return ()
    if not 1 / _TOO_FAR_APART < otherwise_s / by_clock_s < _TOO_FAR_APART:
        raise refused(
            f"expected a clock that agrees with the {name} of the same lines",
            f"found {by_clock_s:g} s by the clock, {otherwise_s:g} s by the {name}",
            hint="the clock of the machine was set in the window, or the log holds lines of several runs",
        )
    speeds = f"{samples / otherwise_s:.2f} samples/s by its {name}, {samples / by_clock_s:.2f} by its clock"
    return (f"the log disagrees with itself: {speeds}",)


def _seconds_of_day(clock: bytes | None) -> float:
    if clock is None:
        raise refused("expected a timestamp before TimeHistory", "the line has none")
    hours, minutes, seconds = clock.split(b":")
    return int(hours) * 3600 + int(minutes) * 60 + float(seconds)


def _clock(text: bytes | None) -> datetime | None:
    try:
        return datetime.strptime(text.decode(), "%Y-%m-%d %H:%M:%S,%f") if text else None
    except ValueError:
        return None
