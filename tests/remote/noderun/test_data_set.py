"""A data set looks the same on nodes with the same data, and different where anything that was
looked at differs.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from noderun import data_set
from noderun.data_set import look_at_data
from orchestrator.checks.cross_node import alike, unlike
from orchestrator.checks.judge import unfit
from tests.support.node_facts import known


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Return a data set of two folders, neither of them made by orch."""
    for split in ("train", "val"):
        (tmp_path / "images" / split).mkdir(parents=True)
        for number in range(6):
            (tmp_path / "images" / split / f"{number}.jpg").write_bytes(b"%d" % number * 100_000)
    (tmp_path / "images" / "labels.txt").write_text("cat\ndog\n")
    return tmp_path / "images"


def middle_byte(copy: Path) -> None:
    with (copy / "train" / "3.jpg").open("r+b") as file:
        file.seek(50_000)
        file.write(b"x")


def renamed(copy: Path) -> None:
    (copy / "train" / "3.jpg").rename(copy / "train" / "9.jpg")


CHANGES: dict[str, Callable[[Path], Any]] = {
    "a folder deleted": lambda copy: shutil.rmtree(copy / "train"),
    "a file deleted": lambda copy: (copy / "val" / "5.jpg").unlink(),
    "a file more": lambda copy: (copy / "val" / "6.jpg").touch(),
    "a file renamed": renamed,
    "a file longer": lambda copy: os.truncate(copy / "val" / "0.jpg", 100_001),
    "a byte changed": middle_byte,
}


@pytest.mark.parametrize("change", CHANGES)
def test_any_difference_among_what_is_looked_at_is_found(
    images: Path, tmp_path: Path, change: str
) -> None:
    copy = tmp_path / "elsewhere"
    shutil.copytree(images, copy)
    looks = {"node1": look_at_data(str(images)), "node2": look_at_data(str(copy))}
    assert looks["node1"] == looks["node2"]
    assert (
        looks["node1"]["names"] == 15
        and looks["node1"]["sizes"] == 13
        and looks["node1"]["whole"] is True
    )
    CHANGES[change](copy)
    looks["node2"] = look_at_data(str(copy))
    facts = {
        host: {"data_dir": True, "data_set": look, "data_made": True}
        for host, look in looks.items()
    }
    assert [(error.host, error.message) for error in unfit(unlike(known(facts)))] == [
        ("node2", "data: expected the same data set as on node1, found a different one")
    ]


def test_other_data_sets_may_differ_but_not_silently(images: Path, tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere"
    shutil.copytree(images, copy)
    shutil.rmtree(copy / "train")
    copies = {"node1": images, "node2": copy}
    facts = {
        host: {"data_dir": True, "data_set": look_at_data(str(path))}
        for host, path in copies.items()
    }
    digests = {host: values["data_set"]["digest"][:12] for host, values in facts.items()}
    (check,) = alike(known(facts))
    assert unlike(known(facts)) == [] and (check.host, check.verdict) == ("node2", "warning")
    assert (check.found, check.expected) == (
        f"data set {digests['node2']}",
        f"data set {digests['node1']} as on node1",
    )


def test_times_hidden_files_and_loops_of_links_do_not_count(images: Path, tmp_path: Path) -> None:
    before = look_at_data(str(images))
    os.utime(images / "val" / "0.jpg", (1, 1))
    (images / ".index").write_text("a loader's")
    (tmp_path / "link").symlink_to(images)
    assert look_at_data(str(images)) == before == look_at_data(str(tmp_path / "link"))
    (images / "val" / "loop").symlink_to(images)
    assert look_at_data(str(images))["names"] == before["names"] + 1


def test_a_large_data_set_is_looked_at_in_part(
    images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, most in (("LOOK_NAMES", 10), ("LOOK_SIZES", 4), ("LOOK_FILES", 2)):
        monkeypatch.setattr(data_set, name, most)
    look = look_at_data(str(images))
    assert (look["names"], look["sizes"], look["whole"]) == (10, 4, False)
    assert 0 < look["bytes"] <= 2 * 3 * data_set.LOOK_BYTES


def test_what_cannot_be_read_is_an_error_and_no_digest(
    images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert look_at_data(str(images / "none")) == {
        "error": f"{images / 'none'}: No such file or directory"
    }
    monkeypatch.setattr(data_set, "LOOK_S", -1.0)
    assert look_at_data(str(images)) == {"error": f"{images}: not listed in -1 s"}
