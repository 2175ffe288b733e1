"""Lines by every transport that reaches a server by SSH."""

from __future__ import annotations

import pytest


@pytest.fixture(params=["ssh", "openssh"])
def transport(request: pytest.FixtureRequest) -> str:
    """Every transport that reaches a server by SSH."""
    return str(request.param)
