"""Sets of hosts as text: brackets, ranges, groups, and the rules for host names and addresses.

All code that reads, prints or compares host names uses this module. It knows no inventory: groups
are passed as a mapping.

>>> expand("gpu[01-03],node7")
['gpu01', 'gpu02', 'gpu03', 'node7']
>>> expand("10.11.0.2-4")
['10.11.0.2', '10.11.0.3', '10.11.0.4']
>>> expand("@lab,node9", {"lab": ["@left", "node[3,1]"], "left": ["node2"]})
['node2', 'node3', 'node1', 'node9']
>>> fold(["node7", "gpu03", "gpu01", "gpu02"])
'gpu[01-03],node7'
>>> nearest("nod1", ["node1", "gpu1"])
"; did you mean 'node1'?"
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from ipaddress import AddressValueError, IPv4Address, IPv6Address, ip_address
from itertools import product
from math import prod
from types import MappingProxyType
from typing import TypeAlias

from orchestrator.errors import ConfigError, nearest

MAX_HOSTS = 10_000
_MAX_NESTING = 50
_LOOPBACK = re.compile(
    r"(?:.+\.)?localhost(?:[46]|\.localdomain[46]?)?\.?|ip6-(?:localhost|loopback)", re.IGNORECASE
)
_MAX_ALIAS_BYTES = 128
_NO_GROUPS: Mapping[str, Sequence[str]] = MappingProxyType({})
_ADDRESS_RANGE = re.compile(r"(\d{1,3}\.\d{1,3}\.\d{1,3})\.(\d{1,3}-\d{1,3})")
_SPAN = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9})(?:/([0-9]{1,9}))?)?")
_PIECES = re.compile(r"\[([^\[\]]*)\]")
# Names of more digits in a row are no range for `expand`; files from elsewhere may have them.
_FOLDABLE = re.compile(r"(?!.*[0-9]{10})[A-Za-z0-9._-]+")
# Hosts of one pattern: for each place of a number in it the numbers, as written.
_Block: TypeAlias = "tuple[frozenset[str], ...]"
# Run directories are read on laptops too, and on Windows these words name devices.
_RESERVED = re.compile(r"(all|con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?", re.IGNORECASE)


def expand(expression: str, groups: Mapping[str, Sequence[str]] = _NO_GROUPS) -> list[str]:
    """Return the names that ``expression`` stands for, in written order, without duplicates.

    Accepts comma lists, ``node[1-4,7]``, padding ``gpu[01-04]``, steps ``n[0-8/2]``, several
    brackets, ``10.11.0.2-5`` and ``@group``; members of groups are expressions too. Raises
    ConfigError for bad brackets, an unknown group, a loop of groups, or more than `MAX_HOSTS`
    hosts. An IPv6 address is returned unchanged.
    """
    names: dict[str, None] = {}
    for count, name in enumerate(_Walk(expression, groups).names(expression)):
        names[name] = None
        if len(names) > MAX_HOSTS or count > 10 * MAX_HOSTS:
            raise _refusal(
                expression, f"expected at most {MAX_HOSTS} hosts, got more", "split the expression"
            )
    return list(names)


def is_path(text: str) -> bool:
    """Return True for what can only be a path: a step in brackets has a slash, too.

    >>> is_path("inventory/lab"), is_path("node[0-10/2]")
    (True, False)
    """
    return "/" in _PIECES.sub("", text)


def split_words(expression: str) -> list[str]:
    """Split an expression at the commas outside brackets. Raises ConfigError if a part is empty."""
    words, depth = [""], 0
    for character in expression:
        depth += (character == "[") - (character == "]")
        if character == "," and depth == 0:
            words.append("")
        else:
            words[-1] += character
    if not expression.strip():
        raise _refusal(
            expression, "expected a host, got an empty text", "for example node1,node[3-4]"
        )
    stripped = [word.strip(" ") for word in words]
    if not all(stripped):
        raise _refusal(
            expression,
            "expected a host on each side of a comma, got nothing",
            "for example node1,node[3-4]",
        )
    return stripped


def fold(names: Iterable[str]) -> str:
    """Return ``names`` as one short, sorted expression, which `expand` turns back into the same set
    of names.
    """
    blocks: dict[str, list[_Block]] = {}
    others = []
    for name in dict.fromkeys(names):
        if _FOLDABLE.fullmatch(name):
            pieces = re.split("([0-9]+)", name)
            numbers = tuple(frozenset([number]) for number in pieces[1::2])
            blocks.setdefault("%s".join(pieces[::2]), []).append(numbers)
        else:
            others.append(name)
    words = []
    for pattern in sorted(blocks):
        for block in sorted(_merge(blocks[pattern]), key=_block_order):
            words.append(pattern % tuple(map(_spans, block)))
    return ",".join([*words, *others])


def in_order(names: Iterable[str]) -> list[str]:
    """Return names of hosts, or of their logs, as a person sorts them where no inventory or file
    has an order of its own: numbers by their values.

    >>> in_order({"node10", "node2", "node02", "gpu1.rack-b", "gpu2.rack-a"})
    ['gpu1.rack-b', 'gpu2.rack-a', 'node02', 'node2', 'node10']
    """

    def key(name: str) -> tuple[list[tuple[str, int]], str]:
        pieces = re.findall("([^0-9]*)([0-9]*)", name)
        return [(text, int(number or -1)) for text, number in pieces], name

    return sorted(names, key=key)


def _merge(blocks: list[_Block]) -> list[_Block]:
    """Join blocks that differ in the numbers of one place, until none do."""
    count = 0
    while count != len(blocks):
        count = len(blocks)
        for place in reversed(range(len(blocks[0]))):
            joined: dict[_Block, frozenset[str]] = {}
            for block in blocks:
                rest = block[:place] + block[place + 1 :]
                joined[rest] = joined.get(rest, frozenset()) | block[place]
            blocks = [(*rest[:place], numbers, *rest[place:]) for rest, numbers in joined.items()]
    return blocks


def _block_order(block: _Block) -> tuple[int, list[tuple[int, str, str]]]:
    """Sort key: the blocks of most hosts first."""
    sizes = []
    for numbers in block:
        ordered = sorted(numbers, key=_number_order)
        sizes.append((-len(ordered), ordered[0], ordered[-1]))
    return -prod(map(len, block)), sizes


def _number_order(number: str) -> tuple[int, str]:
    return len(number), number


def _spans(numbers: frozenset[str]) -> str:
    """Return numbers as text, in brackets if they are several; those padded alike are one span."""
    spans: list[list[str]] = []
    for number in sorted(numbers, key=_number_order):
        if spans and int(number) == int(spans[-1][-1]) + 1 and _same_padding(spans[-1][0], number):
            spans[-1][1:] = [number]
        else:
            spans.append([number])
    text = ",".join(map("-".join, spans))
    return text if len(numbers) == 1 else f"[{text}]"


def _same_padding(first: str, number: str) -> bool:
    if len(first) == len(number):
        return True
    return (first == "0" or not first.startswith("0")) and not number.startswith("0")


def alias_of(word: str) -> str:
    """Return the host name for a host declared by ``word`` alone: the word itself, or an IPv6
    address with '-' instead of ':'.

    >>> alias_of("fd00::1"), alias_of("::1"), alias_of("node1")
    ('fd00--1', '0--1', 'node1')
    """
    if not is_ipv6(word):
        return word
    alias = word.lower().replace(":", "-")
    return ("0" if alias.startswith("-") else "") + alias + ("0" if alias.endswith("-") else "")


def is_ipv6(text: str) -> bool:
    """Return whether ``text`` is an IPv6 address, without brackets and without a zone."""
    try:
        IPv6Address(text)
    except AddressValueError:
        return False
    return "%" not in text


def is_loopback(address: str) -> bool:
    """Return True for an address or a name by which every machine finds itself.

    >>> [is_loopback(text) for text in ("localhost", "127.0.1.1", "::ffff:127.0.0.1", "localhost7", "10.0.0.1")]
    [True, True, True, False, False]
    """
    try:
        number = _number_of(address)
    except ValueError:
        return bool(_LOOPBACK.fullmatch(address))
    return number.is_loopback or number.is_unspecified


def same_machine_key(address: str) -> str:
    """Return one spelling for all spellings of an address, so that two hosts with the same machine
    are detected.

    >>> same_machine_key("FD00::0001") == same_machine_key("fd00::1"), same_machine_key("Node1.")
    (True, 'node1')
    >>> same_machine_key("127.0.0.1") == same_machine_key("::1"), same_machine_key("127.0.0.2")
    (True, '127.0.0.2')
    """
    key = str(_number_of(address)) if is_ipv6(address) else address.lower().rstrip(".")
    is_own = key in ("127.0.0.1", "::1") or _LOOPBACK.fullmatch(key)
    return "localhost" if is_own else key


def _number_of(address: str) -> IPv4Address | IPv6Address:
    """Return an address, of IPv4 if IPv6 only wraps it. Raises ValueError."""
    number = ip_address(address)
    return getattr(number, "ipv4_mapped", None) or number


def check_alias(name: str, where: str) -> None:
    """Raise ConfigError unless ``name`` is valid as a host name and as the name of the host's log
    folder.
    """
    _check_common(name, where, "a host name")
    if _RESERVED.fullmatch(name):
        raise ConfigError(
            f"expected a host name, got the reserved word {name!r}",
            where=where,
            hint="choose another name",
        )
    if len(name.encode(errors="replace")) > _MAX_ALIAS_BYTES:
        got = f"{len(name.encode(errors='replace'))} bytes: {name[:20]!r}…"
        raise ConfigError(
            f"expected a host name of at most {_MAX_ALIAS_BYTES} bytes, got {got}", where=where
        )
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]*", name) or name.endswith("."):
        assigned = re.match(
            r"\w+[=:]", name
        )  # a line of another kind of file, with what may be a secret
        raise ConfigError(
            f"expected a host name of letters, digits, '.', '_' and '-', got {assigned[0] + '…' if assigned else name!r}",
            where=where,
            hint="it begins with a letter, digit or '_' and does not end with '.'; write the real name into address:",
        )


def check_address(address: str, where: str) -> None:
    """Raise ConfigError unless ``address`` is an IPv4 address, an IPv6 address without brackets, or
    a valid DNS name.

    ``gate+node1`` and ``gate/node1`` are accepted too: a ``Host *+*`` of an ssh configuration can
    say how to reach them.
    """
    _check_common(address, where, "an address")
    if is_ipv6(address):
        return
    if (
        len(address) > 253
        or not re.fullmatch(r"[A-Za-z0-9_]([A-Za-z0-9._/+-]*[A-Za-z0-9_.])?", address)
        or ".." in address
    ):
        shown = repr(address if len(address) <= 60 else address[:20] + "…")
        raise ConfigError(
            f"expected an IPv4 or IPv6 address or a host name, got {shown}", where=where
        )
    if re.fullmatch(r"[0-9.]+", address):
        try:
            IPv4Address(address)
        except AddressValueError:
            hint = "four numbers up to 255, without leading zeros"
            raise ConfigError(
                f"expected an IPv4 address, got {address!r}", where=where, hint=hint
            ) from None


def _check_common(text: str, where: str, kind: str) -> None:
    """Raise ConfigError for an address with additions such as a user or a port; the hint names the
    key for the addition.
    """
    if not text:
        raise ConfigError(f"expected {kind}, got an empty text", where=where)
    if any(character.isspace() or not character.isprintable() for character in text):
        raise ConfigError(
            f"expected {kind} without spaces and control characters, got {text[:60]!r}", where=where
        )
    hint = ""
    if text.startswith("@"):
        hint = "groups are declared under groups:"
    elif "@" in text:
        hint = "write the user as ssh: {user: …}"
    elif is_ipv6(text.split("%")[0]) and "%" in text:
        hint = "leave out the zone and use an address that needs none"
    elif re.fullmatch(r"\[.*\](:[0-9]*)?", text) and is_ipv6(text[1:].split("]")[0].split("%")[0]):
        hint = "write an IPv6 address without brackets and a port as ssh: {port: …}"
    elif re.fullmatch(r"[^:]+:[0-9]*", text):
        hint = "write the port as ssh: {port: …}"
    if hint:
        raise ConfigError(f"expected {kind} alone, got {text[:60]!r}", where=where, hint=hint)


class _Walk:
    """One expansion. Each group is expanded only once, so that nested groups stay cheap."""

    def __init__(self, expression: str, groups: Mapping[str, Sequence[str]]) -> None:
        self.expression = expression
        self.groups = groups
        self.finished: set[str] = set()

    def names(self, expression: str, trail: tuple[str, ...] = ()) -> Iterator[str]:
        for word in split_words(expression):
            if word.startswith("@"):
                yield from self.members(word[1:], trail)
            else:
                yield from _expand_word(word, self.expression)

    def members(self, group: str, trail: tuple[str, ...]) -> Iterator[str]:
        if group in trail:
            loop = " → ".join((*trail[trail.index(group) :], group))
            raise _refusal(
                self.expression,
                f"expected groups without a loop, got {loop}",
                "remove one of them from the other",
            )
        if group not in self.groups:
            names = ", ".join(list(self.groups)[:20]) or "none"
            hint = f"known groups: {names}{nearest(group, self.groups)}"
            raise _refusal(self.expression, f"expected a known group, got {group!r}", hint)
        if len(trail) >= _MAX_NESTING:
            raise _refusal(
                self.expression,
                f"expected groups nested at most {_MAX_NESTING} deep, got more",
                "flatten them",
            )
        for member in self.groups[group] if group not in self.finished else ():
            yield from self.names(member, (*trail, group))
        self.finished.add(group)


def _expand_word(word: str, expression: str) -> Iterator[str]:
    if match := _ADDRESS_RANGE.fullmatch(word):
        word = f"{match[1]}.[{match[2]}]"
    if re.fullmatch(r"\[[^\],]*:[^\],]*\].*", word):
        raise _refusal(
            expression,
            f"expected a range between brackets, got {word!r}",
            "write an IPv6 address without brackets",
        )
    pieces = _PIECES.split(word)
    if any(bracket in text for text in pieces[::2] for bracket in "[]"):
        raise _refusal(
            expression, f"expected paired brackets, got {word!r}", "for example node[1-4]"
        )
    spans = []
    for text in pieces[1::2]:
        spans.append([_span(span.strip(), expression) for span in text.split(",")])
    size = prod(sum(len(numbers) for numbers, _ in axis) for axis in spans)
    if size > MAX_HOSTS:
        raise _refusal(
            expression,
            f"expected at most {MAX_HOSTS} hosts, got {size} in {word!r}",
            "split the expression",
        )
    axes = []
    for axis in spans:
        axes.append([f"{number:0{width}d}" for numbers, width in axis for number in numbers])
    for numbers in product(*axes):
        yield "".join(a + b for a, b in zip(pieces[::2], (*numbers, ""), strict=True))


def _span(text: str, expression: str) -> tuple[range, int]:
    """Return the numbers of ``01-08/2`` and the width to which they are padded."""
    match = _SPAN.fullmatch(text)
    hint = "for example node[1-4], gpu[01-16] or n[0-8/2]"
    if not match:
        raise _refusal(
            expression, f"expected a number or a range between brackets, got {text!r}", hint
        )
    first, last = match[1], match[2] or match[1]
    padded = any(end.startswith("0") and len(end) > 1 for end in (first, last))
    if int(first) > int(last) or (padded and len(first) != len(last)) or match[3] == "0":
        raise _refusal(
            expression,
            f"expected an ascending range, its ends padded to one width, got {text!r}",
            hint,
        )
    return range(int(first), int(last) + 1, int(match[3] or 1)), len(first) if padded else 1


def _refusal(expression: str, message: str, hint: str) -> ConfigError:
    shown = expression if len(expression) <= 80 else expression[:80] + "…"
    return ConfigError(
        message if len(message) <= 200 else message[:200] + "…", where=f"hosts {shown!r}", hint=hint
    )
