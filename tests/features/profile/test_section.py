"""Traces on the page of a bench."""

from __future__ import annotations

import re

from orchestrator.features.profile.bench import Profiled
from orchestrator.features.profile.section import ProfileSection
from orchestrator.features.profile.trace import Operator, Trace


def test_traces_are_a_table_of_their_own_and_names_of_operators_are_no_markup() -> None:
    trace = Trace(1, "node2", False, 5, 0.02, 0.4, 0.3, 0.1, (Operator("<b>aten</b>", 12, 0.25),))
    section = (
        ProfileSection((Profiled("series", "2n1g", "b.profile-001", False, (trace,), ""),), {})
        .page()
        .last
    )
    assert '<section id="traces">' in section
    cells = ["2n1g", "1", "node2", "20.00", "40.0%", "25.0%", "30.0%", "–", "–", "10.0%"]
    assert re.findall(r"<td>(.*?)</td>", section) == cells
    assert "&lt;b&gt;aten&lt;/b&gt; 25.0% (12)" in section and "<b>aten" not in section
