"""The result of a tune, from the files of its bench alone: an answer, and the evidence for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median, multimode
from typing import Any

from orchestrator.features.search.halving.candidates import Settings, format_candidate, settings
from orchestrator.features.search.halving.schedule import NOT_CONFIRMED, TOO_SHORT
from orchestrator.features.search.record import Candidate, TuneRecord
from orchestrator.features.search.strategy import Change, Round, State, change, good
from orchestrator.plan import Knob, RunSpec
from orchestrator.plan.measures import SAMPLES_PER_S, TOKENS_PER_S
from orchestrator.plural import plural
from orchestrator.record.bench_record import BenchRecord
from orchestrator.report.text import one_line
from orchestrator.results import RunResult

FASTER, DEFAULT, UNCONFIRMED, UNFINISHED = "faster", "default", "unconfirmed", "unfinished"
_VERSIONS = ("framework_version", "cuda", "cudnn", "nccl")


@dataclass(frozen=True, slots=True)
class Tried:
    """One candidate in one round: its speeds, in the unit of the tune, and their median over the
    default's, None if either has no speed.

    ``failure``: why a run of the candidate, in any round, has no number, or why none could be made.
    """

    rung: int
    steps: int
    confirms: bool
    settings: str
    speeds: tuple[float, ...]
    failed: int
    of_default: float | None
    failure: str


@dataclass(frozen=True, slots=True)
class Tuned:
    """The result.

    ``verdict``: ``faster`` with the settings, ``default`` if no candidate was faster,
    ``unconfirmed`` if time or good runs were too few to decide, or ``unfinished``. ``gain`` is from
    the confirmation, whatever its outcome. ``chosen`` are the options from the command line;
    ``batch_size`` is None if the spec's stays. ``global_batches`` are the most frequent global
    batches of the default and the best candidate, whose runs may find their own batch size. Speeds
    are in ``unit``: samples/s, or tokens/s of a language model.
    """

    bench_id: str
    created: str
    verdict: str
    why: str
    spec: Mapping[str, Any]
    chosen: Mapping[str, Any]
    hosts: tuple[str, ...]
    inventory: str
    networks: tuple[str, ...]
    versions: Mapping[str, Any]
    best: str
    env: Mapping[str, str]
    options: Mapping[str, Any]
    batch_size: int | None
    global_batches: tuple[int, int]
    unit: str
    gain: Change | None
    median_speed: float | None
    default_speed: float | None
    evidence: tuple[str, ...]
    tried: tuple[Tried, ...]


def answer_of(
    record: BenchRecord, search: TuneRecord, state: State, knobs: Sequence[Knob]
) -> Tuned:
    """Return the result of a tune in this state; ``knobs`` are those that apply."""
    default, final = record.cells[0], state.verification
    best: Candidate = state.sides[0]
    gain, runs, fastest = None, [], default
    best_speed = base_speed = None
    chosen = Settings({}, {})
    if final:
        best, fastest = final.rung.verifies, record.cells[final.rung.cells[1]]
        runs = [run for _, run in final.runs]
        gain = change(good(final.values), best, state.sides[0])
        best_speed = _median(final.values[best].values(), default)
        base_speed = _median(final.values[state.sides[0]].values(), default)
        chosen = settings(knobs, best)
    observed = state.first.observed if state.first and state.first.throughput else {}
    by_hand = {
        name: value
        for name, value in default.options.items()
        if default.origins.get(f"options.{name}") == "command line"
    }
    return Tuned(
        bench_id=record.bench_id,
        created=record.created,
        verdict=_verdict(search.ended, final, gain),
        why=search.ended,
        spec=default.as_dict(),
        chosen=by_hand,
        hosts=tuple(record.planned_with.hosts if record.planned_with else ())[: default.nodes],
        inventory=record.inventory,
        networks=tuple(observed.get("networks", ())),
        versions={name: observed[name] for name in _VERSIONS if observed.get(name)},
        best=format_candidate(knobs, best) if final else "",
        env=chosen.env,
        options=chosen.options,
        batch_size=chosen.batch_size,
        global_batches=(_global_batch(default, runs), _global_batch(fastest, runs)),
        unit=(TOKENS_PER_S if default.step.tokens else SAMPLES_PER_S).unit,
        gain=gain,
        median_speed=best_speed,
        default_speed=base_speed,
        evidence=state.evidence,
        tried=tuple(_list_tried(state, knobs, default)),
    )


def _verdict(ended: str, final: Round | None, gain: Change | None) -> str:
    if not ended:
        return UNFINISHED
    if gain and gain.is_faster:
        return FASTER
    if ended in (TOO_SHORT, NOT_CONFIRMED) or (final and not (gain and gain.decides)):
        return UNCONFIRMED
    return DEFAULT


def _global_batch(planned: RunSpec, runs: Sequence[RunResult]) -> int:
    """Return the global batch of the ``runs`` of a planned spec, which may have found their batch
    size themselves.

    If repeats found different ones, the most frequent; the planned one if no run has a number.
    """
    batches = [
        run.spec.global_batch
        for run in runs
        if run.is_good and run.spec and run.spec.is_run_of(planned)
    ]
    return min(multimode(batches), default=planned.global_batch)


def _list_tried(state: State, knobs: Sequence[Knob], default: RunSpec) -> list[Tried]:
    rows = []
    for number, measured in enumerate(state.rounds, start=1):
        rung, refused = measured.rung, dict(measured.rung.refused)
        base = _median(measured.values[state.sides[0]].values(), default)
        for candidate, by_block in measured.values.items():
            speeds = tuple(speed * default.items for speed in by_block.values() if speed)
            of_default = median(speeds) / base if speeds and base and any(candidate) else None
            failed, failure = len(by_block) - len(speeds), refused.get(candidate, "")
            if failed:
                failure = state.failures[candidate][0]
            words = format_candidate(knobs, candidate)
            rows.append(
                Tried(number, rung.steps, rung.confirms, words, speeds, failed, of_default, failure)
            )
    return rows


def _median(samples_per_s: Iterable[float | None], spec: RunSpec) -> float | None:
    speeds = [speed for speed in samples_per_s if speed]
    return median(speeds) * spec.items if speeds else None


# --- in words ------------------------------------------------------------------------------------


def answer(tuned: Tuned) -> str:
    """Return the answer in one sentence."""
    gain = tuned.gain
    measured = ""
    if gain and tuned.median_speed and tuned.default_speed:
        ends = f"95 % {gain.interval.low:.3f} to {gain.interval.high:.3f}, {plural(gain.pairs, 'pair')} of runs"
        speeds = f"medians {tuned.median_speed:.1f} against {tuned.default_speed:.1f} {tuned.unit}"
        before, after = tuned.global_batches
        work = ""
        if after != before:
            work = f"; a step computes a global batch of {after} instead of {before}"
        measured = f"{gain.ratio:.3f} times the speed of the default ({ends}; {speeds}{work}): {tuned.best}"
    return one_line(
        {
            "faster": measured,
            "default": f"no candidate was faster than the default: {measured or tuned.why}",
            "unconfirmed": (
                f"no result, because the confirmation has too few pairs of runs: {measured or tuned.why}"
                if tuned.tried
                else f"no result: {tuned.why}"
            ),
            "unfinished": "the tune is not finished",
        }[tuned.verdict]
    )


def rungs(tuned: Tuned) -> list[list[str]]:
    """Return lines for each round: one about it, and one for each of its candidates, the fastest
    first.
    """
    tables = []
    for number in dict.fromkeys(tried.rung for tried in tuned.tried):
        rows = [tried for tried in tuned.tried if tried.rung == number]
        kind = "confirmation" if rows[0].confirms else f"round {number}"
        lines = [_line(row) for row in sorted(rows, key=_order)]
        tables.append([f"{kind}, {plural(rows[0].steps, 'step')}:", *lines])
    return tables


def _order(tried: Tried) -> float:
    return -(1.0 if tried.of_default is None and tried.speeds else tried.of_default or 0.0)


def _line(tried: Tried) -> str:
    words = [f"{tried.settings}:", *(f"{speed:.1f}" for speed in tried.speeds)]
    if not tried.speeds:
        words.append("–")
    if tried.of_default is not None:
        words.append(f" {tried.of_default:.3f}")
    if tried.failure:
        words.append(f" {tried.failed} failed:" if tried.failed else "")
        words.append(tried.failure)
    return one_line(f"  {' '.join(words)}")
