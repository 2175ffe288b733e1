"""Inventories as text: read, and refused with all their faults."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator import yamlfile
from orchestrator.errors import Faults, OrchError
from orchestrator.inventory.formats import parse_text
from orchestrator.inventory.hosts import Inventory

DATA = Path(__file__).parents[1] / "data" / "inventories"


def read(text: str, source: str = "lab.yaml") -> Inventory:
    return parse_text(text, source, yamlfile.loads)


def faults_of(make: Callable[[], object]) -> list[str]:
    with pytest.raises(OrchError) as caught:
        make()
    error = caught.value
    assert (error.exit_code, error.kind) == (2, "config_invalid")
    return [str(each) for each in (error.errors if isinstance(error, Faults) else [error])]
