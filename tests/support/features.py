"""Marks of tests that use a feature by its command or its pages: they are skipped without it."""

from __future__ import annotations

import pytest

from orchestrator.feature import features

__all__ = ["needs"]


def needs(feature: str) -> pytest.MarkDecorator:
    """Return the mark of tests that run only with this feature."""
    return pytest.mark.skipif(feature not in features(), reason=f"without {feature}")
