"""Redaction of secret values in text that people and programs read: errors, events, records,
results, reports.

A value can appear in other forms than the one in the inventory: quoted for a shell, escaped in JSON
(also in JSON within JSON) or in a Python traceback, encoded in a URL, in base64 or hexadecimal with
other bytes around it, and all of these wrapped over lines at any width. So texts are compared
without what quoting and wrapping add: white space, quotes, backslashes and plus signs are ignored,
and escapes are decoded. `Redaction.spans` says where a value was found; raw logs are left
unchanged.

>>> clean = redaction(["s3cret/value"])
>>> clean.text("token=s3cret/value, url=s3cret%2Fvalue, header=dXNlcjpzM2NyZXQvdmFsdWU=, s3cret/\\n  value")
'token=(not shown), url=(not shown), header=dXNlcjp(not shown)dWU=, (not shown)'
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from mmap import mmap
from typing import Any

from orchestrator.inventory.encodings import Reading, forms, plain, read_partial, readings

SHOWN = "(not shown)"
LEAST = 4
"""Characters that a secret needs, without white space, quotes, backslashes and plus signs: a
shorter one is in almost every text."""
_WORD, _WORD_OF_DIGITS = 8, 16
"""A shorter value, or a shorter one of digits alone, is replaced only as a whole word, because
other text may contain it.
"""
_BLOCK = 256 << 10
Spans = Sequence[tuple[int, int]]
"""Offsets of the first byte of each place and of the byte after it, in order and without overlaps.
"""

_NAME = re.compile(
    r"passw(?:or)?d|passphrase|passcode|secret|credential|private_?key|webhook|snmp_community"
    # TOKENS and TOKENIZERS belong to language models and are not secret: MAX_TOKENS,
    # TOKENIZERS_PARALLELISM.
    r"|token(?!s|iz)|(?:auth|access|api|bearer|vault|refresh)_?tokens"
    r"|(?:api|access|secret|signing|encrypt\w*|master|account|storage|licen[cs]e|munge|deploy|shared|session|auth)_?keys?"
    r"|(?:wandb|ngc|hf|openai|anthropic|aws|azure|gcp|ssl|tls)_key(?![a-z])"
    r"|(?<!by)(?<!com)(?<!multi)(?<!single)(?<!tres)pass(?:es)?(?:_?[0-9]+)?$"
    r"|.(?:_|db|root|user|admin|sql)pwd$|(?:^|_|root|user|admin|db)pw(?:_hash)?$|(?:^|_)(?:creds?|psk)$"
    r"|(?:basic|http|registry|docker|proxy|redis|npm)_?auth$|^vault_(?!addr|url|version|id$|dir|host|port|path|namespace|role)",
    re.IGNORECASE,
)
"""Names of secrets as inventories, environments and roles of Ansible have them."""
_KEYED_URL = re.compile(r"://[^/\s:@]{0,200}:[^/\s@]{1,400}@")
_PRIVATE_KEY = re.compile(r"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----|^\$ANSIBLE_VAULT")
_SPACE = re.compile(rb"[\s+]")
_WORD_BYTES = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_")
_PACKERS = (base64.b64encode, base64.urlsafe_b64encode)
_SWITCH = re.compile(r"(?:true|false|yes|no|on|off|none|null|[0-9]{1,3})", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class _Needle:
    """A value in a form that a reading of a text may have.

    ``alone``: only as a whole word, with white space only if ``spaced``.
    """

    text: bytes
    alone: bool = False
    spaced: bool = True


@dataclass(frozen=True, slots=True)
class Redaction:
    """A filter that replaces secret values in texts, in bytes and in JSON values; one without
    needles changes nothing.
    """

    needles: tuple[_Needle, ...] = ()

    def text(self, text: str) -> str:
        """Return the text with every secret value replaced by `SHOWN`."""
        if not self.needles:
            return text
        data = _bytes(text)
        spans = self.spans(data)
        if spans:
            return hide_spans(data, spans).decode("utf-8", "surrogatepass")
        return text

    def data(self, data: bytes) -> bytes:
        """Return the bytes with every secret value replaced by `SHOWN`."""
        return hide_spans(data, self.spans(data))

    def value(self, value: Any) -> Any:
        """Return a JSON value with the secrets replaced in all its keys and texts, at any depth.

        A text of a few letters is kept, even if it is a secret: it is a word of the protocol with
        nodes, such as "error".
        """
        if isinstance(value, str):
            if len(value) < _WORD and value.isalpha():
                return value
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.value(str(key)): self.value(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(item) for item in value]
        return value

    def stream(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        """Yield a log that arrives in pieces with every secret value replaced. Bytes that may be
        the beginning of a value are held back until more arrive, or until the end."""
        held = b""
        for piece in pieces:
            held += piece
            spans = self.spans(held)
            safe = self._unfinished_from(held)
            safe = next((start for start, stop in spans if start <= safe < stop), safe)
            if safe:
                yield hide_spans(held[:safe], [span for span in spans if span[1] <= safe])
                held = held[safe:]
        if held:
            yield self.data(held)

    def spans(self, data: bytes | mmap, *, words: bool = True) -> list[tuple[int, int]]:
        """Return the places of secret values.

        ``words=False``: without the values that are only replaced as whole words.
        """
        needles = [needle for needle in self.needles if words or not needle.alone]
        if not needles:
            return []
        reach = max(4096, 16 * max(len(needle.text) for needle in needles))
        spans: list[tuple[int, int]] = []
        for start in range(0, len(data), _BLOCK):
            first = max(0, start - reach)
            # One byte more on each side shows whether a word ends at the edge.
            block = bytes(data[first : start + _BLOCK + 1])
            spans += [
                (first + begin, first + end)
                for begin, end in _places(block, needles)
                if (begin or not first)
                and (end < len(block) or first + end == len(data))  # others are in another block
            ]
        return merge_spans(spans)

    @property
    def reach(self) -> int:
        """Bytes before a place in a log in which a value may begin that ends behind it; 0 without
        needles.
        """
        if not self.needles:
            return 0
        return 16 * max(len(needle.text) for needle in self.needles) + 1024

    def within(self, data: bytes, cut: int) -> bytes:
        """Return a piece of a log that still grows, from ``cut`` on, with every secret value
        replaced: also those that begin before it, of which ``cut`` is at least `reach`, and without
        an end in which one may begin.

        >>> redaction(["s3cret/value"]).within(b"token=s3cret/value, then s3cret/va", 9)
        b'(not shown), then '
        """
        spans = self.spans(data)
        stop = self._unfinished_from(data)
        if stop < len(data):
            stop = next((start for start, end in spans if start <= stop < end), stop)
        start = next((begin for begin, end in spans if begin < cut < end), cut)
        return hide_spans(
            data[start:stop],
            [
                (begin - start, end - start)
                for begin, end in spans
                if start <= begin and end <= stop
            ],
        )

    def _unfinished_from(self, data: bytes) -> int:
        """Return the begin of a possible secret value that continues after the data; else the
        data's length.
        """
        first = max(
            0, len(data) - 16 * max((len(needle.text) for needle in self.needles), default=0) - 1024
        )
        begins = [len(data)]
        for reading in read_partial(data[first:]):
            begins.append(first + reading.end)
            for needle in self.needles:
                start = _start_at_end(reading.text, needle.text)
                begins += [] if start is None else [first + reading.raw(start)[0]]
        return min(begins)


def _start_at_end(text: bytes, needle: bytes) -> int | None:
    """Return the first place from which a text, to its end, is how a needle begins."""
    place = text.find(needle[:1], max(0, len(text) - len(needle) + 1))
    while place >= 0 and not needle.startswith(text[place:]):
        place = text.find(needle[:1], place + 1)
    return place if place >= 0 else None


NO_SECRETS = Redaction()


def redaction(values: Iterable[str]) -> Redaction:
    """Return the redaction of these values in all their forms. Switches, and values shorter than
    `LEAST`, are ignored.
    """
    needles: dict[_Needle, None] = {}
    for value in values:
        if not is_switch(value) and len(significant(value)) >= LEAST:
            needles.update(dict.fromkeys(_needles(value)))
            # A program may print a value of several lines line by line, with something else between
            # them.
            for line in value.splitlines():
                if len(line.strip()) >= _WORD and len(significant(line)) >= _WORD:
                    needles.update(dict.fromkeys(_needles(line)))
    return Redaction(tuple(needles))


def is_switch(value: str) -> bool:
    """Return True for a value that turns something on or off, or is a number of up to three digits;
    it is no secret, whatever the name of its variable.

    >>> is_switch("1"), is_switch("False"), is_switch("hunter2")
    (True, True, False)
    """
    return not value.strip() or bool(_SWITCH.fullmatch(value.strip()))


def names_secret(name: str) -> bool:
    """Return True for a name like a secret's: of a variable of an environment, an inventory, or
    another tool's file.

    >>> [names_secret(name) for name in ("admin_password", "dbPassword", "ansible_become_pass", "HF_TOKEN", "mysql_root_pw")]
    [True, True, True, True, True]
    >>> [names_secret(name) for name in ("MAX_TOKENS", "tokenizer_dir", "bypass", "PWD", "public_key", "rdma_network")]
    [False, False, False, False, False, False]
    """
    return bool(_NAME.search(re.sub(r"[-. ]", "_", name)))


def keeps_secret(name: str, value: Any) -> bool:
    """Return True for a variable that may hold a secret: by its name or one inside it, or as a key
    or a URL with a password.

    >>> keeps_secret("users", [{"name": "amy", "password": "hunter2"}]), keeps_secret("store", "s3://amy:hunter2@store/x")
    (True, True)
    >>> keeps_secret("passwordless", True), keeps_secret("store", "s3://store/x")
    (False, False)
    """
    if isinstance(value, Mapping):
        return any(
            keeps_secret(f"{name}_{key}" if names_secret(name) else str(key), item)
            for key, item in value.items()
        )
    if isinstance(value, list | tuple):
        return any(keeps_secret(name, item) for item in value)
    text = "" if value is None else str(value)
    return (
        bool(_KEYED_URL.search(text) or _PRIVATE_KEY.search(text))
        or names_secret(name)
        and not is_switch(text)
    )


def public_vars(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ``vars`` of a host that records may show: they stand in them as they are, so no
    secret is kept there.
    """
    return {name: value for name, value in variables.items() if not keeps_secret(name, value)}


def hidden(name: str, value: str) -> str:
    """Return the replacement of a variable's value in records: `SHOWN` with 16 bits of a hash of
    name and value.

    They are enough to see that a value has changed, and too few to recognise one.

    >>> hidden("HF_TOKEN", "hunter2"), hidden("HF_TOKEN", "hunter3")
    ('(not shown) 1bbc', '(not shown) c12d')
    """
    digest = hashlib.sha256(_bytes(f"{name}\0{value}")).hexdigest()
    return f"{SHOWN} {digest[:4]}"


def significant(value: str) -> bytes:
    """Return the bytes of a value by which it is recognised: those that quoting and wrapping do not
    alter.
    """
    return plain(_bytes(value))


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def hide_spans(data: bytes | mmap, spans: Spans) -> bytes:
    """Return the bytes with `SHOWN` in each of these places."""
    parts, position = [], 0
    for start, stop in spans:
        parts += [data[position:start], SHOWN.encode()]
        position = stop
    return b"".join([*parts, data[position:]])


def _needles(value: str) -> Iterator[_Needle]:
    data = _bytes(value)
    recognised = significant(value)
    is_number = value.isdigit() and len(value) < _WORD_OF_DIGITS
    alone = is_number or len(value.strip()) < _WORD or len(recognised) < _WORD
    for text in forms(data):
        # At its end a percent sign may seem to begin an escape, with what follows the value.
        if text := text.rstrip(b"%&\\"):
            yield _Needle(text, alone, bool(_SPACE.search(data.strip())))
    # In base64, a value is often part of a longer text, as in a header or in JSON.
    for form in dict.fromkeys(
        (
            data,
            *(_bytes(json.dumps(value, ensure_ascii=is_ascii)[1:-1]) for is_ascii in (True, False)),
        )
    ):
        packed = [form.hex().encode(), form.hex().upper().encode()]
        packed += [pack(form).rstrip(b"=") for pack in _PACKERS] if alone else _aligned_base64(form)
        yield from (_Needle(plain(text), alone, spaced=not alone) for text in packed)


def _aligned_base64(data: bytes) -> Iterator[bytes]:
    """Yield, for each alignment, the part of the base64 text that does not depend on the bytes
    before and after the value.
    """
    for before in range(3):
        padded = bytes(before) + data
        whole = len(padded) // 3 * 3
        skipped = (before * 8 + 5) // 6
        for pack in _PACKERS:
            yield pack(padded[:whole])[skipped:]


def _places(data: bytes, needles: Sequence[_Needle]) -> Iterator[tuple[int, int]]:
    """Yield the places of the needles in a block of data, in any order."""
    for text, decoder in readings(data):
        hits = [needle for needle in needles if needle.text in text]
        reading = Reading.of(data, decoder) if hits else None
        for needle in hits:
            assert reading
            at = reading.text.find(needle.text)
            while at >= 0:
                start, stop = reading.raw(at)[0], reading.raw(at + len(needle.text) - 1)[1]
                if not needle.alone or _is_alone(data, start, stop, needle.spaced):
                    yield start, stop
                at = reading.text.find(needle.text, at + 1)


def _is_alone(data: bytes, start: int, stop: int, is_spaced: bool) -> bool:
    edges = data[start - 1 : start] + data[stop : stop + 1] if start else data[stop : stop + 1]
    return not _WORD_BYTES.intersection(edges) and (
        is_spaced or not _SPACE.search(data, start, stop)
    )


def merge_spans(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return spans in order and without overlaps."""
    merged: list[tuple[int, int]] = []
    for start, stop in sorted(spans):
        if merged and start < merged[-1][1]:
            merged[-1] = merged[-1][0], max(stop, merged[-1][1])
        else:
            merged.append((start, stop))
    return merged
