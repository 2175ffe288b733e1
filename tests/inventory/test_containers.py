"""``container:`` of hosts, groups and defaults: how the values are merged, and what is said of
those that cannot be.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.errors import ConfigError, Faults
from orchestrator.inventory import Inventory, open_inventory
from orchestrator.inventory.containers import check_choice


def opened(tmp_path: Path, text: str) -> Inventory:
    path = tmp_path / "cluster.yaml"
    path.write_text("schema: 1\n" + text)
    return open_inventory(str(path))


def test_the_most_specific_value_of_each_key_counts(tmp_path: Path) -> None:
    inventory = opened(
        tmp_path,
        "defaults: {container: {engine: docker, image: 'pt:1', limits: {memlock: unlimited}}}\n"
        "groups:\n  old: {hosts: [b, c], container: {image: 'pt:0'}}\n"
        "hosts:\n  a: {}\n  b: {}\n  c: {container: {name: trainer}}\n",
    )
    common = {"engine": "docker", "limits": {"memlock": "unlimited"}}
    assert {host.name: host.container for host in inventory.hosts} == {
        "a": {**common, "image": "pt:1"},
        "b": {**common, "image": "pt:0"},
        "c": {**common, "name": "trainer"},
    }


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            "{engine: lxc}",
            "container.engine: expected docker, podman, apptainer or enroot, got the text 'lxc'",
        ),
        ("{engin: docker}", "expected a known key, got 'engin'"),
        ("{image: x}", "container: expected engine: beside image:, got none"),
        (
            "{engine: docker, image: x, name: y}",
            "container: expected one of image, name, wrap, got image and name",
        ),
        (
            "{engine: apptainer, name: y}",
            "expected engine: docker or podman beside name:, got apptainer",
        ),
        ("{engine: enroot, image: x, user: image}", "expected engine: docker or podman for user"),
        ("{engine: docker, name: y, mounts: [/data]}", "expected no mounts beside name:"),
        ("{engine: docker, image: x, shm_gib: 4}", "expected ipc: private beside shm_gib:"),
        ("{wrap: [a], engine: docker}", "expected only python: beside wrap:, got engine"),
        ("{wrap: []}", "expected a list of one or more words, got a list"),
        ("{engine: docker, image: 'a b'}", "expected an image as text"),
        (
            "{engine: docker, image: x, mounts: [data]}",
            "container.mounts.0: expected /DIR, /DIR:/DIR or /DIR:/DIR:ro",
        ),
        (
            "{engine: docker, image: x, limits: {memlock: lots}}",
            "container.limits.memlock: expected unlimited, or a whole",
        ),
        (
            '{engine: docker, image: x, program: "it\'s"}',
            "container.program: expected a command as text",
        ),
        ("docker", "container: expected a mapping, got a text"),
    ],
)
def test_a_container_that_cannot_be_is_named_with_its_place(
    tmp_path: Path, values: str, message: str
) -> None:
    with pytest.raises(Faults) as caught:
        opened(tmp_path, f"hosts:\n  a: {{container: {values}}}\n")
    assert any(
        message in str(fault) and "cluster.yaml:3: hosts.a" in str(fault)
        for fault in caught.value.errors
    ), caught.value


@pytest.mark.parametrize("text", ["docker", "docker:", "lxc:x", "x", "podman:a b", "podman:-x"])
def test_a_choice_of_the_command_line_names_engine_and_image(text: str) -> None:
    with pytest.raises(ConfigError, match="expected ENGINE:IMAGE or none"):
        check_choice(text, "--container")


@pytest.mark.parametrize(
    "text",
    ["none", "docker:pt:1", "apptainer:/srv/pt.sif", "enroot:pt", "podman:localhost/pt@sha256:0f"],
)
def test_a_choice_may_be_any_image_or_none(text: str) -> None:
    check_choice(text, "--container")
