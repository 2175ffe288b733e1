"""Machine files of schedulers and MPI, and lists of hosts: one host a line, or all of them in one
expression.

| written | who writes it | means |
|---|---|---|
| ``node1 slots=8 max_slots=8`` | Open MPI, DeepSpeed | 8 ranks: GPUs, or slots of a machine without |
| ``node1:8`` | MPICH, Intel MPI, Horovod's ``-H`` | the same |
| ``node1`` once per slot | ``$PBS_NODEFILE``, ``$LSB_DJOB_HOSTFILE``; with spaces, ``$LSB_HOSTS`` | slots; GPUs are asked |
| ``node1 16 node2 16`` | ``$LSB_MCPU_HOSTS`` | slots; GPUs are asked |
| ``me@node1:2222``, ``me@gpu[01-04]`` | people | login user, and port |

A number after the colon is a port if a user stands before the host, or if it is too large for
slots.

>>> [(host.name, host.ssh.user, host.ssh.port) for host in from_expression("me@a:2222,b:4022").hosts]
[('a', 'me', 2222), ('b', None, 4022)]
>>> [(host.name, host.slots) for host in from_expression("node1 16 node2 8").hosts]
[('node1', 16), ('node2', 8)]
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

from orchestrator.errors import ConfigError
from orchestrator.inventory.hosts import Inventory
from orchestrator.inventory.hostset import alias_of, expand, is_ipv6, split_words
from orchestrator.inventory.schema import HostEntry, build, refuse

_COUNT_KEYS = ("slots", "max_slots", "max-slots")
_OTHER_KEYS = {
    **dict.fromkeys(
        ("slot", "count", "cpu", "cpus", "core", "cores", "np", "ppn", "n"),
        "did you mean slots={value}?",
    ),
    **dict.fromkeys(
        ("binding", "bind", "map"),
        "orch places and binds ranks itself, see --cpu-binding; leave {key}= out",
    ),
    **dict.fromkeys(
        ("user", "username", "user_name", "user-name"),
        "write the user before the host: {value}@node1",
    ),
    **dict.fromkeys(
        ("ifname", "boards", "max_cores", "weight", "sockets"),
        "leave {key}= out; orch does not read it",
    ),
    "ifhn": "leave {key}= out; vars.interface of an inventory of orch names the device of training traffic",
}
"""What hostfiles of MPI may have besides slots, and what to do with it."""
_KEYS = {*_COUNT_KEYS, *_OTHER_KEYS}
_CLOSE = 0.8
_NUMBERED = re.compile(r"([^:]+|(?:[^@]+@)?\[[0-9A-Fa-f:.]+\]):([0-9]{1,9})")
_COUNT = re.compile(r"[1-9][0-9]{0,3}")
_MOST_SLOTS = 1024
_MOST_PORT = 65535


def parse_machine_file(text: str, source: str) -> Inventory:
    """Return the inventory of a machine file or a list. Raises Faults of ConfigError with file and
    line.
    """
    faults: list[ConfigError] = []
    entries: list[HostEntry] = []
    for number, line in enumerate(text.splitlines(), 1):
        place = f"{source}:{number}"
        words = re.sub(r"\s*=\s*", "=", strip_comment(line)).split()
        if is_list_of_slots(words):
            entries.extend(_with_slots(words, place))
        elif words:
            count = _slots(words[1:], place, faults)
            entries.extend(_entries(words[0], count, place, faults))
    return build(source, _apart(_without_repeats(entries)), faults=faults)


def from_expression(expression: str, source: str = "--hosts") -> Inventory:
    """Return an inventory of the hosts that ``expression`` names, with the connection settings of
    the user's ssh configuration.

    ``10.11.0.[2-5]``, ``10.11.0.2-5``, ``gpu[01-04]``, ``a,b``, ``me@a:2222``; ``a:8,b:8`` sets the
    GPUs of each host, like Horovod's ``-H``; the values of LSF's ``$LSB_MCPU_HOSTS`` and
    ``$LSB_HOSTS``. Raises Faults of ConfigError for a group, which only an inventory file can
    declare, and for anything that is not a host.
    """
    place = f"{source} {expression[:80]!r}"
    if "@" in expression and all(
        word.strip().startswith("@") for word in expression.split(",") if "@" in word
    ):
        hint = "set ORCH_HOSTS to the inventory file that has it, or name that file with --hosts"
        raise ConfigError(
            "expected hosts, got a group and no inventory that holds it", where=place, hint=hint
        )
    if expression.casefold() in ("slurm", "srun"):
        hint = f"did you mean {expression.casefold()}, in small letters?"
        raise ConfigError("expected hosts, got a word for those of a job", where=place, hint=hint)
    if re.fullmatch(r"(?i:pods?):[^@]*=.*", expression):
        hint = f"did you mean pods:{expression.partition(':')[2][:60]}?"
        raise ConfigError("expected hosts, got labels of pods", where=place, hint=hint)
    faults: list[ConfigError] = []
    words = expression.split()
    if is_list_of_slots(words):
        entries = list(_with_slots(words, place))
    elif len(words) > 1 and "," not in expression:
        entries = [entry for word in words for entry in _entries(word, None, place, faults)]
    else:
        entries = list(_entries(expression, None, place, faults))
    if entries:
        return build(expression, _apart(_without_repeats(entries)), faults=faults)
    return refuse(faults)


def is_machine_key(key: str) -> bool:
    """Return True for a key of machine files, also if it is not quite one: a text whose hosts have
    such keys is no inventory of Ansible.

    >>> [is_machine_key(key) for key in ("slots", "Slot", "solts", "gpus", "rack")]
    [True, True, True, False, False]
    """
    return bool(_meant(key))


def _meant(key: str) -> str:
    """Return the key of machine files that a key is, or is nearly; empty for another one."""
    key = key.casefold()
    close = [key] if key in _KEYS else get_close_matches(key, _COUNT_KEYS, 1, _CLOSE)
    return "".join(close)


def is_list_of_slots(words: Sequence[str]) -> bool:
    """Return True for hosts and numbers in turn, as in ``$LSB_MCPU_HOSTS``."""
    return len(words) > 1 and len(words) % 2 == 0 and all(map(_is_count, words[1::2]))


def strip_comment(line: str) -> str:
    """Return a line without what follows ``#``."""
    return re.split(r"(?:^|\s)#", line, maxsplit=1)[0]


def split_count(word: str) -> tuple[str, str] | None:
    """Return host and number of ``host:8``, or None for a word without a number."""
    match = None if is_ipv6(word) else _NUMBERED.fullmatch(word)
    return (match[1], match[2]) if match else None


def _is_count(text: str) -> bool:
    return bool(_COUNT.fullmatch(text)) and int(text) <= _MOST_SLOTS


def _with_slots(words: Sequence[str], place: str) -> Iterator[HostEntry]:
    for name, count in zip(words[::2], words[1::2], strict=True):
        yield HostEntry(name, {"slots": int(count)}, lambda _: place)


def _without_repeats(entries: list[HostEntry]) -> list[HostEntry]:
    """Return each host once: schedulers such as PBS write a line for each slot. With counts, a
    repeated host stays a fault.
    """
    times = Counter(entry.hosts for entry in entries)
    if any(set(entry.values) - {"ssh"} for entry in entries) or max(times.values(), default=1) == 1:
        return entries
    first = {entry.hosts: entry for entry in reversed(entries)}
    if any(entry.values != first[entry.hosts].values for entry in entries):
        return entries
    return [
        replace(first[name], values={**first[name].values, "slots": count})
        for name, count in times.items()
    ]


def _apart(entries: list[HostEntry]) -> list[HostEntry]:
    """Return the entries, with a name of its own for each port of an address: ``host-2201`` and
    ``host-2202``.
    """
    times = Counter(entry.hosts for entry in entries)
    ports = Counter((entry.hosts, _port(entry)) for entry in entries)
    return [
        HostEntry(_name_with_port(entry), {**entry.values, "address": entry.hosts}, entry.where)
        if times[entry.hosts] > ports[entry.hosts, _port(entry)]
        else entry
        for entry in entries
    ]


def _name_with_port(entry: HostEntry) -> str:
    """Return ``host-2201``; ``10.0.0.1-port22`` where ``10.0.0.1-22`` would be a range of
    addresses.
    """
    alias, port = alias_of(entry.hosts), _port(entry)
    name = f"{alias}-{port}"
    if _each_of(name) == [name]:
        return name
    return f"{alias}-port{port}"


def _port(entry: HostEntry) -> int:
    return int(entry.values.get("ssh", {}).get("port", 22))


def _slots(words: Iterable[str], place: str, faults: list[ConfigError]) -> str | None:
    """Return the text of ``slots=`` on a line."""
    counts: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        meant = _meant(key)
        is_told = meant and meant != key or meant in _OTHER_KEYS
        if equals and is_told and re.fullmatch(r"[\w.,:=;-]*", value):
            hint = _OTHER_KEYS.get(meant, f"did you mean {meant}={{value}}?")
            hint = hint.format(key=key, value=value[:60])
            faults.append(
                ConfigError(f"expected slots=N after the host, got {key}=", where=place, hint=hint)
            )
        elif not equals or key not in _COUNT_KEYS:
            hint = "write one host per line; other settings of a host go into a YAML inventory"
            faults.append(
                ConfigError(
                    "expected slots=N after the host, got something else", where=place, hint=hint
                )
            )
        elif counts.setdefault(key.replace("-", "_"), value) != value:
            message = f"expected one value of {key}, got {counts[key]} and {value}"
            faults.append(ConfigError(message[:200], where=place))
    count, most = counts.get("slots"), counts.get("max_slots", "")
    if count and _is_count(count) and _is_count(most) and int(most) < int(count):
        message = f"expected max_slots={count} or more, got {most}"
        faults.append(ConfigError(message, where=place, hint="lower slots=, or leave it out"))
    return count


def _entries(
    expression: str, slots: str | None, place: str, faults: list[ConfigError]
) -> Iterator[HostEntry]:
    """Yield the hosts of one line. In hostfiles a slot is a place for a rank, which on a machine
    with GPUs is a GPU.
    """
    try:
        words = split_words(expression)
    except ConfigError as error:
        faults.append(ConfigError(error.message, where=place, hint=error.hint))
        words = []
    if slots is None and "@" not in expression and not any(map(split_count, words)):
        words = [expression] if words else []
    for word in words:
        name, number = split_count(word) or (word, "")
        user, at, host = name.rpartition("@")
        host = host if at and user else name
        ssh: dict[str, Any] = {"user": user} if at and user else {}
        values: dict[str, Any] = {}
        if number and (ssh or _MOST_SLOTS < int(number) <= _MOST_PORT):
            if 0 < int(number) <= _MOST_PORT:
                ssh["port"] = int(number)
            else:
                faults.append(
                    ConfigError(
                        f"expected a port from 1 to {_MOST_PORT}, got {number}", where=place
                    )
                )
            host, number = host[1:-1] if host.startswith("[") and host.endswith("]") else host, ""
        count = number or slots
        if not number and ":" in host and not is_ipv6(host) and not host.startswith("["):
            hint = "a number of slots stands after a colon, and nothing else, such as a device: node1:8"
            host = host.partition(":")[0]  # what follows may be a password
            message = f"expected a host name, or host:slots, got {f'{host[:60]}:…'!r}"
            faults.append(ConfigError(message, where=place, hint=hint))
        if number == "22":
            hint = "a number after the colon counts slots; a port needs its user before the host: me@node1:22"
            faults.append(
                ConfigError(
                    f"expected a host, or host:slots, got {word[:60]!r}", where=place, hint=hint
                )
            )
        elif count is not None and not _is_count(count):
            message = (
                f"expected slots as a whole number from 1 to {_MOST_SLOTS}, got {count[:60]!r}"
            )
            faults.append(ConfigError(message, where=place))
        elif count is not None:
            values = {"gpus": int(count), "slots": int(count)}
        for host_name in _each_of(host) if "port" in ssh else [host]:
            yield HostEntry(host_name, {**values, "ssh": ssh} if ssh else values, lambda _: place)


def _each_of(host: str) -> list[str]:
    """Return the hosts of a range one by one, so that ports can tell them apart; `build` reports
    invalid ranges.
    """
    try:
        return expand(host)
    except ConfigError:
        return [host]
