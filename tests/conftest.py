"""What holds for all tests."""

from __future__ import annotations

from tests import judge

judge.patience = 4.0
