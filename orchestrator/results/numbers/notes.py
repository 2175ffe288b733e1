"""Notes on the steps of one run, and on speeds that contradict each other."""

from __future__ import annotations

from orchestrator.notes import DOUBT, Kind

# -- steady windows

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
MORE_WARM_UP = (SLOW_START.code, SPEEDING_UP.code)
"""What more warm-up steps may end."""
NO_STEADY_STATE = Kind(
    "no_steady_state", DOUBT, "the run reached no steady state: more --steps may be needed"
)
STARTS_TOO_EARLY = Kind(
    "starts_too_early",
    DOUBT,
    "the steady state begins with step {steady}, the window with step {first}: --warmup-steps {enough} or more",
)
SLOW_PRINTED_STEPS = Kind(
    "slow_printed_steps",
    DOUBT,
    "{count} of {lines} printed steps took {longer:.3g} times as long as the median: "
    "{they}, not for the {stride} steps of {their} line",
)

# -- what a log says of its own times, and of the training

AGAINST_ITSELF = Kind(
    "log_against_itself",
    DOUBT,
    "the log disagrees with itself: {speed} {unit} by its {name}, {by_time} by the elapsed time",
)
AGAINST_CLOCK = Kind("log_against_clock", DOUBT, "the log disagrees with the clock: {times}")
RATES_SINCE_START = Kind(
    "rates_since_start",
    DOUBT,
    "the rates look like means since the start: if they are, write cumulative: true under log:; "
    "the steps of the window are then {apart:.1%} {faster}",
)
STEPS_SKIPPED = Kind(
    "steps_skipped",
    DOUBT,
    "the optimizer skipped {skipped:g} of {steps} steps of the window after an overflow; "
    "a larger batch size, a lower loss scale or more --warmup-steps may help",
)
LOSS_NOT_FINITE = Kind(
    "loss_not_finite", DOUBT, "the loss is not finite in {spoilt} of {lines} lines of the window"
)
LOSS_CONSTANT = Kind(
    "loss_constant",
    DOUBT,
    "the loss is {loss:g} in all {lines} lines of the window: the program may not train",
)
GRADIENTS_NOT_FINITE = Kind(
    "gradients_not_finite",
    DOUBT,
    "the norm of the gradients is not finite in {spoilt} of {lines} lines of the window",
)

# -- speeds of several sizes

SUPERLINEAR = Kind(
    "superlinear",
    DOUBT,
    "superlinear: {faster:.2f} times as fast as {shape} on {times:g} times its ranks; doubt {shape} first",
)
MORE_RANKS_SLOWER = Kind(
    "more_ranks_slower", DOUBT, "more ranks but slower than {shape} ({speed} {unit})"
)
LARGER_BATCH_SLOWER = Kind(
    "larger_batch_slower", DOUBT, "a larger batch but slower than b{batch_size} ({speed} {unit})"
)
LOSS_AT_TWO_NODES = Kind(
    "loss_at_two_nodes",
    DOUBT,
    "loses {lost_ms:.0f} ms per step against {single}, and {shape} only {only_ms:.0f} where a lack "
    "of bandwidth would cost {least_ms:.0f}: a cost per step that does not grow with nodes, "
    "or one of the three numbers is wrong",
)
ABOVE_BOUND = Kind("impossible", DOUBT, "impossible: {limit} allows at most {bound:.0f} samples/s")
ABOVE_PEAK = Kind(
    "impossible",
    DOUBT,
    "impossible: {share:.1f}% of the peak of {device} for {dtype}, by mfu_causal",
)
