"""Failure rates by few failures, beside another program's quantiles."""

from __future__ import annotations

from pathlib import Path

import pytest
import scipy
from hypothesis import given
from hypothesis import strategies as some

from orchestrator.features.accept.certificate import certificate_of
from orchestrator.features.accept.failure_rate import failure_rate, least_time_between
from tests.support.acceptances import STEADY, SUITE, acceptance


@given(
    some.integers(1, 4000).flatmap(
        lambda runs: some.tuples(some.integers(0, min(runs, 60)), some.just(runs))
    )
)
def test_the_interval_of_a_rate_is_that_of_the_beta_distribution(of: tuple[int, int]) -> None:
    failed, runs = of
    low = scipy.stats.beta.ppf(0.025, failed, runs - failed + 1) if failed else 0.0
    high = scipy.stats.beta.ppf(0.975, failed + 1, runs - failed) if failed < runs else 1.0
    assert failure_rate(failed, runs) == pytest.approx((low, high), rel=1e-9)


@given(some.integers(0, 200), some.floats(1, 1e8))
def test_the_bound_of_the_time_is_that_of_the_chi_square_distribution(
    failed: int, seconds: float
) -> None:
    bound = 2 * seconds / scipy.stats.chi2.ppf(0.95, 2 * failed + 2)
    assert least_time_between(failed, seconds) == pytest.approx(bound, rel=1e-9)


def test_a_certificate_of_many_runs_says_how_often_they_may_fail(tmp_path: Path) -> None:
    suite = SUITE.replace("repeats: 5", "repeats: 12")
    twelve = {rank: [*STEADY, *STEADY, *STEADY][:12] for rank in range(4)}
    certificate = certificate_of(acceptance(tmp_path, twelve, nodes=4, suite=suite))
    (bar,) = [judged for judged in certificate.judged if judged.kind == "runs"]
    often = "0 of 12 failed, a rate of 0.0% to 26.5% (95 %); 16m of runs, at most one failure in 5m20s (95 %)"
    assert bar.got == f"12 of 12 runs have a number; {often}"
