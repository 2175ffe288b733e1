"""Notes on runs, rows and tables: the kinds, by what they are about."""

from __future__ import annotations

from orchestrator.notes import DOUBT, REFUSAL, Kind

# -- the steps of a window

NOT_STEADY = Kind("not_steady", DOUBT, "not steady{where}: {found}")
SLOW_STEPS = Kind(
    "slow_steps",
    DOUBT,
    "{count} of {total} steps took {longer:.3g} times as long as the median: {steps}; that is {cost}",
)
SLOW_STRETCH = Kind(
    "slow_stretch",
    DOUBT,
    "{steps} took {longer:.1%} longer per step than the others; that is {cost}",
)
SLOW_START = Kind("slow_start", DOUBT, SLOW_STRETCH.words, "; more --warmup-steps may be needed")
SLOWING_DOWN = Kind(
    "slowing_down",
    DOUBT,
    "the last fifth of the window is {longer:.1%} slower per step than the first; "
    "that is {lost:.1%} of the window; the machine slows down",
)
SPEEDING_UP = Kind(
    "speeding_up",
    DOUBT,
    "the last fifth of the window is {shorter:.1%} faster per step than the first; that is {lost:.1%} of the window",
    "; more --warmup-steps may be needed",
)
NO_STEADY_STATE = Kind("no_steady_state", DOUBT, "the run reached no steady state: more --steps may be needed")
STARTS_TOO_EARLY = Kind(
    "starts_too_early",
    DOUBT,
    "the steady state begins with step {steady}, the window with step {first}: --warmup-steps {enough} or more",
)
MORE_WARM_UP = (SLOW_START.code, SPEEDING_UP.code)
"""What more warm-up steps may end."""

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
BASELINE_RUNNING = Kind("no_baseline", REFUSAL, "{series}: no speedup yet, because no {shape} run has ended")
NO_BASELINE = Kind(
    "no_baseline",
    REFUSAL,
    "{series}: no speedup, because there is no good {shape} run",
    "; {how}",
)
