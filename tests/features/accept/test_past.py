"""Which hosts are due for an acceptance again."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from orchestrator.features.accept.past import hosts_to_accept
from orchestrator.record.past_acceptance import PastAcceptance

NOW = datetime(2026, 11, 30, 12, tzinfo=timezone.utc)
DAY_S = 86400.0
HOSTS = ("n1", "n2")
NEVER, OLD = "quick has not judged it", "a-19 is of 2026-11-19"


def accepted(day: str, suite: str = "quick", **of: object) -> PastAcceptance:
    given = {"hosts": HOSTS, "failed": (), "undecided": (), **of}
    verdict = "fail" if given["failed"] else "pass"
    return PastAcceptance(f"a-{day}", f"2026-11-{day}T12:00:00Z", suite, verdict, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("made", "due"),
    [
        pytest.param([], dict.fromkeys(HOSTS, NEVER), id="none"),
        pytest.param([accepted("20")], {}, id="both within the time"),
        pytest.param(
            [accepted("23", "accept")], dict.fromkeys(HOSTS, NEVER), id="of another suite"
        ),
        pytest.param([accepted("19")], dict.fromkeys(HOSTS, OLD), id="too long ago"),
        pytest.param([accepted("19"), accepted("25", hosts=("n2",))], {"n1": OLD}, id="one since"),
        pytest.param(
            [accepted("25", failed=(("n2", "slow"),))],
            {"n2": "a-25 has not passed it"},
            id="one failed",
        ),
        pytest.param(
            [accepted("25", undecided=("n1",)), accepted("24")],
            {"n1": "a-25 has not passed it"},
            id="the last one counts",
        ),
        pytest.param([accepted("24", failed=(("n1 to n2", "slow"),))], {}, id="a link failed"),
    ],
)
def test_a_host_is_due_that_has_not_passed_within_the_time(
    made: list[PastAcceptance], due: dict[str, str]
) -> None:
    assert hosts_to_accept(HOSTS, made, "quick", 10.5 * DAY_S, NOW) == due


def test_hosts_of_an_open_verdict_of_the_cluster_have_not_passed() -> None:
    node = {"verdict": "pass", "why": []}
    finding = {"subject": "cluster", "text": "20% slower may be missed", "verdict": "undecided"}
    past = PastAcceptance.of_certificate({
        "acceptance_id": "a-25", "created": "2026-11-25T12:00:00Z", "suite": "quick",
        "verdict": "undecided", "links": [], "cluster": [{**finding, "hosts": ["n2"]}],
        "nodes": [{**node, "host": host} for host in HOSTS],
    })  # fmt: skip
    due = hosts_to_accept(HOSTS, [past], "quick", 10.5 * DAY_S, NOW)
    assert due == {"n2": "a-25 has not passed it"}
