"""Choices of devices on hosts: which GPUs runs may use (``--devices``) and which not (``--exclude
node2:gpu3``).

A chosen list becomes the host's ``vars.cuda_visible_devices`` and its length its ``gpus``, so that
ranks are placed on it and nothing else has to know of the choice. Devices are indices, UUIDs of
GPUs, or UUIDs of MIG instances.

>>> split_exclude("node1,node[2-3]:gpu3,node4:gpu[0-1]")
('node1', {'node[2-3]': ('3',), 'node4': ('0', '1')})
>>> devices_of("0-2,5"), devices_of("GPU-8c1f,MIG-77aa")
(('0', '1', '2', '5'), ('GPU-8c1f', 'MIG-77aa'))
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from orchestrator.errors import ConfigError
from orchestrator.inventory.hosts import Host, Inventory
from orchestrator.inventory.hostset import is_ipv6, split_words

_UUID = re.compile(r"(GPU|MIG)-[0-9A-Za-z/_-]+")
_RANGE = re.compile(r"(\d{1,4})(?:-(\d{1,4}))?")
_MOST = 1024
_HINT = "for example 0-3,5, GPU-8c1f…, MIG-77aa…, or node2:0-3 for one host"


def devices_of(text: str, where: str = "--devices") -> tuple[str, ...]:
    """Return the devices of a list such as ``0-3,5`` in written order, each once. Raises
    ConfigError.
    """
    devices: dict[str, None] = {}
    for word in (part.strip() for part in text.split(",")):
        match = _RANGE.fullmatch(word)
        if match:
            first, last = int(match[1]), int(match[2] or match[1])
            if first > last or last - first > _MOST:
                raise ConfigError(
                    f"expected an ascending range of devices, got {word!r}", where=where, hint=_HINT
                )
            devices |= dict.fromkeys(map(str, range(first, last + 1)))
        elif _UUID.fullmatch(word):
            devices[word] = None
        else:
            raise ConfigError(f"expected devices, got {word[:60]!r}", where=where, hint=_HINT)
    return tuple(devices)


def are_devices(value: object) -> bool:
    """Return True for devices as CUDA_VISIBLE_DEVICES takes them, each once.

    >>> [are_devices(value) for value in ("2, 3,GPU-8c", 3, "0,0", "0-3", [0, 1])]
    [True, True, False, False, False]
    """
    names = [name.strip() for name in str(value).split(",")]
    is_listed = all(name.isdecimal() or _UUID.fullmatch(name) for name in names)
    return is_listed and len(set(names)) == len(names)


def split_exclude(expression: str) -> tuple[str, dict[str, tuple[str, ...]]]:
    """Return the hosts of ``--exclude`` and, by host expression, the devices of ``node2:gpu3``.
    Raises ConfigError.
    """
    hosts = []
    devices: dict[str, tuple[str, ...]] = {}
    for word in split_words(expression) if expression else ():
        host, colon, rest = word.partition(":")
        if colon and not is_ipv6(word):
            text = re.sub(r"^gpu\[(.*)\]$|^gpu(?=\d)", r"\1", rest)
            devices[host] = (*devices.get(host, ()), *devices_of(text, f"--exclude {word}"))
        else:
            hosts.append(word)
    return ",".join(hosts), devices


def chosen(
    inventory: Inventory,
    hosts: Sequence[Host],
    given: Sequence[str],
    excluded: Mapping[str, Sequence[str]],
) -> list[Host]:
    """Return the hosts with the devices that ``--devices`` lists and without the excluded ones.

    Raises ConfigError for a host without GPUs or with an unknown number of them, and for a device
    that it does not have.
    """
    listed: dict[str, tuple[str, ...]] = {}
    for text in given:
        host, colon, rest = text.partition(":")
        of_text = inventory.select(host, option="--devices") if colon else hosts
        names = [selected.name for selected in of_text]
        listed |= dict.fromkeys(names, devices_of(rest if colon else text))
    without: dict[str, list[str]] = {}
    for expression, devices in excluded.items():
        for selected in inventory.select(expression, option="--exclude"):
            without.setdefault(selected.name, []).extend(devices)
    return [_with(host, listed.get(host.name), without.get(host.name, [])) for host in hosts]


def _with(host: Host, listed: Sequence[str] | None, without: Sequence[str]) -> Host:
    if listed is None and not without:
        return host
    where = "--devices" if listed is not None else "--exclude"
    if host.gpus == 0:
        raise ConfigError(
            f"expected hosts with GPUs, but {host.name} is measured on its CPU (gpus: 0)",
            where=where,
        )
    present = _present(host)
    if present is None and listed is None:
        hint = "set gpus: in the inventory, or list the devices to use with --devices"
        raise ConfigError(f"the number of GPUs of {host.name} is not known", where=where, hint=hint)
    unknown = [
        name
        for name in (*(listed or ()), *without)
        if present and name.isdigit() and name not in present
    ]
    if unknown and all(name.isdigit() for name in present or ()):
        raise ConfigError(
            f"{host.name} has no device {', '.join(unknown)}, only {', '.join(present or ())}",
            where=where,
        )
    rest = [
        name for name in (listed if listed is not None else present or ()) if name not in without
    ]
    if not rest:
        raise ConfigError(
            f"no device of {host.name} is left",
            where=where,
            hint=f"exclude the host: -x {host.name}",
        )
    return with_devices(host, ",".join(rest))


def _present(host: Host) -> tuple[str, ...] | None:
    """Return the devices of a host that runs may use, as the inventory knows them."""
    visible = host.vars.get("cuda_visible_devices")
    if visible is not None:
        return tuple(name.strip() for name in str(visible).split(","))
    if host.gpus is None:
        return None
    return tuple(map(str, range(host.gpus)))


def with_devices(host: Host, devices: str) -> Host:
    """Return a host whose runs use these devices, in the format of CUDA_VISIBLE_DEVICES."""
    return replace(
        host, gpus=len(devices.split(",")), vars={**host.vars, "cuda_visible_devices": devices}
    )
