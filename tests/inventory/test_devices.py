"""Choices of devices: what is written, which hosts it is for, and what cannot be."""

from __future__ import annotations

import pytest

from orchestrator.errors import ConfigError
from orchestrator.inventory import Host, Inventory
from orchestrator.inventory.devices import chosen, devices_of, split_exclude
from tests.support.inventories import faults_of, read

HOSTS = (
    Host("a1", "a1", gpus=4),
    Host("a2", "a2", gpus=4, vars={"cuda_visible_devices": "2, 3,GPU-8c"}),
    Host("b", "b"),
)
INVENTORY = Inventory("x.yaml", HOSTS, {"a": ("a1", "a2")})


def listed(
    given: tuple[str, ...] = (), exclude: str = ""
) -> dict[str, tuple[int | None, str | None]]:
    """Number of GPUs and the devices of each host after a choice."""
    hosts = chosen(INVENTORY, HOSTS, given, split_exclude(exclude)[1])
    return {host.name: (host.gpus, host.vars.get("cuda_visible_devices")) for host in hosts}


@pytest.mark.parametrize(
    "devices", ['"0,0"', '"0;1"', '"0-3"', "[0, 1]", '"gpu0"', '"GPU-8c,GPU-8c"']
)
def test_an_inventory_lists_devices_each_once(devices: str) -> None:
    text = f"schema: 1\nhosts: {{n1: {{gpus: 2, vars: {{cuda_visible_devices: {devices}}}}}}}\n"
    (fault,) = faults_of(lambda: read(text))
    assert "cuda_visible_devices: expected devices, each once, got" in fault


@pytest.mark.parametrize(
    ("given", "exclude", "changed"),
    [
        ((), "a1:gpu0", {"a1": (3, "1,2,3")}),
        ((), "a1:0,a1:gpu[2-3]", {"a1": (1, "1")}),
        ((), "@a:gpu3", {"a1": (3, "0,1,2"), "a2": (2, "2,GPU-8c")}),
        (("b:0-1",), "", {"b": (2, "0,1")}),
        (
            ("0-1", "a2:3", "b:MIG-1,MIG-2"),
            "",
            {"a1": (2, "0,1"), "a2": (1, "3"), "b": (2, "MIG-1,MIG-2")},
        ),
        (("a1:0-3",), "a1:gpu[1-2]", {"a1": (2, "0,3")}),
    ],
)
def test_a_choice_is_the_visible_devices_and_the_number_of_gpus(
    given: tuple[str, ...], exclude: str, changed: dict[str, tuple[int, str]]
) -> None:
    assert listed(given, exclude) == listed() | changed


@pytest.mark.parametrize(
    ("given", "exclude", "message"),
    [
        (("0-9",), "", "--devices: a1 has no device 4, 5, 6, 7, 8, 9, only 0, 1, 2, 3"),
        ((), "b:gpu0", "--exclude: the number of GPUs of b is not known"),
        ((), "a1:gpu[0-3]", "--exclude: no device of a1 is left"),
        ((), "a1:gpu7", "--exclude: a1 has no device 7"),
        (("c:0",), "", "no host 'c' in x.yaml"),
    ],
)
def test_an_impossible_choice_is_refused(
    given: tuple[str, ...], exclude: str, message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        listed(given, exclude)
    assert message in str(caught.value)


@pytest.mark.parametrize("text", ["", "3-1", "x", "0,", "GPU", "0-99999", "1;2"])
def test_what_is_no_list_of_devices_is_refused(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        devices_of(text)
    assert str(caught.value).startswith("--devices: expected ")


def test_a_host_that_is_measured_on_its_cpu_has_no_devices() -> None:
    cpu = Host("c", "c", gpus=0)
    with pytest.raises(ConfigError) as caught:
        chosen(Inventory("x", (cpu,)), [cpu], ["0"], {})
    assert "c is measured on its CPU" in str(caught.value)


def test_hosts_to_leave_out_may_be_ipv6_addresses() -> None:
    assert split_exclude("fd00::1,n1:gpu2") == ("fd00::1", {"n1": ("2",)})
