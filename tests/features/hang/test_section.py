"""The JSON of hangs, by the published schema."""

from __future__ import annotations

import json

from orchestrator.features.hang.bench import Hang, RankAccount, Suspicion
from orchestrator.features.hang.section import HangSection
from orchestrator.report.formats import json as jsonout
from tests.support.summaries import example
from tests.support.summary_schema import assert_every_key_counts, problems


def test_the_schema_has_the_hangs_of_a_summary() -> None:
    seen = RankAccount(
        2,
        "node2",
        118,
        "step",
        "stopped in step 118 (state T)",
        False,
        "T",
        "",
        "",
        0.0,
        ("x.py:3",),
    )
    said = (Suspicion(42.5, "no step for 4.7 s"), Suspicion(None, "it went on after 3 s"))
    hang = Hang(
        "r9",
        "stopped",
        "node2",
        (2,),
        "rank 2 on node2 stopped",
        (0, 1, 3),
        said,
        (seen,),
        ("node3: not collected",),
    )
    added = json.loads(json.dumps(HangSection((hang,)).documents()))
    whole = json.loads(jsonout.render(example())) | added
    assert problems(whole) == []
    assert_every_key_counts(whole, optional=added)
