"""Lines by every transport that reaches a server of its own."""

from __future__ import annotations

import pytest


@pytest.fixture(params=["ssh", "openssh", "kubectl"])
def transport(request: pytest.FixtureRequest) -> str:
    """Every transport that reaches a server of its own."""
    return str(request.param)
