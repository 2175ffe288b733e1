"""Evidence over many looks: what is named, after how many looks, and what never is."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from noderun.evidence import FAULTY, HEALTHY, add_look, score_limit, slow_looks, thin

HOUR_S = 3600.0
LIMIT = score_limit(8, 2, 96, 1e-4)
Values = dict[str, dict[str, float]]


def node(devices: int, name: str = "GPU") -> dict[str, Any]:
    return {str(place): {"name": name, "metrics": {}} for place in range(devices)}


def looks(known: dict[str, Any], first: int, count: int, slow: float = 0.0, **options: Any) -> None:
    """Make looks, an hour apart; device 0 is slower by a share, all scatter by 0.3 %."""
    generator = random.Random(first)
    for number in range(first, first + count):
        common = 1 + 0.02 * math.sin(number / 24 * 2 * math.pi)
        values: Values = {
            device: {
                "gemm": 600 * common * generator.gauss(1, 0.003) / (1 + slow * (device == "0"))
            }
            for device in known
        }
        add_look(known, values, number * HOUR_S, 0.05, LIMIT, **options)


def named(known: dict[str, Any]) -> dict[str, set[str]]:
    """Return the comparisons by which devices are named."""
    found: dict[str, set[str]] = {}
    for device, of_device in known.items():
        for key, score in of_device["metrics"]["gemm"]["scores"].items():
            if score["named"]:
                found.setdefault(device, set()).add(key)
    return found


def test_a_slow_device_is_named_against_its_peers_after_slow_looks_alone() -> None:
    known, least = node(8), slow_looks(LIMIT)
    assert least * math.log(FAULTY / HEALTHY) >= LIMIT > (least - 1) * math.log(FAULTY / HEALTHY)
    looks(known, 0, least - 1, slow=0.06)
    assert named(known) == {}
    looks(known, least - 1, 1, slow=0.06)
    assert named(known) == {"0": {"peers"}}
    assert known["0"]["metrics"]["gemm"]["scores"]["peers"]["slow"] == least


def test_a_device_that_becomes_slow_is_named_against_its_past_until_it_is_good_again() -> None:
    known = node(1)
    looks(known, 0, 72)
    assert named(known) == {}
    looks(known, 72, 10, slow=0.12)
    assert named(known) == {"0": {"past"}}
    looks(known, 82, 24 * 30, slow=0.12)
    assert named(known) == {"0": {"past"}}, "a fault that lasts became its own past"
    looks(known, 82 + 24 * 30, 20)
    assert named(known) == {}


def test_all_devices_of_a_node_that_become_slow_are_named_by_a_reference_only() -> None:
    known, references = node(4), [["GPU*", "gemm", 600.0, 0.08], ["*", "gemm", 1.0, 0.08]]
    for number in range(slow_looks(LIMIT)):
        values: Values = {device: {"gemm": 500.0} for device in known}
        add_look(known, values, number * HOUR_S, 0.05, LIMIT, references)
    assert named(known) == dict.fromkeys(known, {"reference"})


def test_the_wave_of_a_day_names_nobody() -> None:
    known = node(8)
    looks(known, 0, 24 * 60)
    assert named(known) == {}


def test_a_device_whose_looks_scatter_is_not_named_for_that() -> None:
    generator, known = random.Random(3), node(8)
    for number in range(24 * 60):
        values: Values = {
            device: {"gemm": 600 * generator.gauss(1, 0.06 if device == "0" else 0.003)}
            for device in known
        }
        add_look(known, values, number * HOUR_S, 0.05, LIMIT)
    assert named(known) == {}


@pytest.mark.parametrize("devices", [1, 2])
def test_without_two_peers_nothing_is_compared_with_peers(devices: int) -> None:
    known = node(devices)
    looks(known, 0, 30, slow=0.5)
    assert named(known) == {}


def test_devices_of_another_name_are_no_peers() -> None:
    known = node(3)
    known["2"]["name"] = "another GPU"
    looks(known, 0, 30, slow=0.5)
    assert named(known) == {}


def test_a_year_of_looks_keeps_the_last_day_whole_and_no_more_than_four_weeks() -> None:
    values: list[list[float]] = []
    for number in range(365 * 96):
        values = thin([*values, [number * 900.0, 1.0]], number * 900.0, 86400)
    times = [when for when, _ in values]
    assert len(values) <= 1024 and times == sorted(times)
    assert [when for when in times if when > times[-1] - 86400] == [
        times[-1] - 900.0 * back for back in reversed(range(96))
    ]
    assert times[0] > times[-1] - 28 * 86400
