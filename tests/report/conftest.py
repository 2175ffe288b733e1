"""A summary of three shapes, one of them without a good run."""

from __future__ import annotations

import pytest

from orchestrator.results.summary import Summary
from tests.support.summaries import example


@pytest.fixture
def summary() -> Summary:
    return example()
