"""Archives that somebody made to do harm: nothing of them gets out, and no bytes of theirs raise
anything else.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.api.sealing import contents as tables
from orchestrator.errors import DataError
from orchestrator.record.archive import verify
from orchestrator.record.archive_record import RECORD, SUMS
from orchestrator.record.sealed import unseal_record
from tests.record.archive.packing import packed, refusal, resealed, tree
from tests.support.examples import examples


def places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    for key, inner in (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    ):
        yield (*place, key)
        yield from places(inner, (*place, key))


@settings(
    max_examples=examples(100),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.data())
def test_forged_records_with_true_digests_are_read_or_refused(
    unpacked: Path, tmp_path: Path, data: st.DataObject
) -> None:
    path = unpacked / data.draw(
        st.sampled_from([RECORD, "bench.json", "r1/manifest.json", "r2/logs/node1/exit.json"])
    )
    whole = path.read_bytes()
    record = inner = unseal_record(json.loads(whole))
    *folders, key = data.draw(st.sampled_from(list(places(record))))
    for folder in folders:
        inner = inner[folder]
    inner[key] = data.draw(
        st.sampled_from(
            [None, True, 0, -1, 1.5, 10**30, "", "../x", "\ud800", [], {}, [1], {"a": 1}]
        )
    )
    path.write_text(json.dumps(record))
    try:
        with suppress(DataError):
            verify(resealed(unpacked, tmp_path.with_suffix(".tar")), tables)
    finally:
        path.write_bytes(whole)


HOSTILE: dict[str, dict[str, bytes]] = {
    "up": {"../evil": b"x"},
    "absolute": {"/tmp/evil": b"x"},
    "up from within": {"r1/../../evil": b"x"},
    "a backslash": {"r1\\evil": b"x"},
    "hidden": {".evil": b"x"},
    "a lock": {"owner.lock": b"x"},
    "something derived": {"r1/results/throughput.json": b"x"},
    "a file that is a folder": {"r1": b"x"},
    "the list of digests as a folder": {f"{SUMS}/evil": b"x"},
    "the list of digests again": {SUMS: b"x"},
}


@pytest.mark.parametrize("more", HOSTILE.values(), ids=HOSTILE)
def test_names_that_sealing_does_not_give_are_refused_and_written_nowhere(
    unpacked: Path, tmp_path: Path, more: dict[str, bytes]
) -> None:
    names = sorted(
        str(path.relative_to(unpacked)) for path in unpacked.rglob("*") if path.is_file()
    )
    files = {name: (unpacked / name).read_bytes() for name in names if name not in (SUMS, RECORD)}
    files = {RECORD: (unpacked / RECORD).read_bytes(), **dict(sorted({**files, **more}.items()))}
    before = tree(tmp_path)
    archive = packed(tmp_path.parent / f"{tmp_path.name}.tar", files)
    refusal(archive)
    assert tree(tmp_path) == before and not Path("/tmp/evil").exists()


def header(change: Callable[[bytearray], None]) -> Callable[[bytes], bytes]:
    """Return what changes the header of the third file, with a checksum that is true."""

    def changed(data: bytes) -> bytes:
        found = bytearray(data)
        at = found.index(b"b1/bench.json\0")
        block = found[at : at + 512]
        change(block)
        block[148:156] = b" " * 8
        block[148:156] = b"%06o\0 " % sum(block)
        found[at : at + 512] = block
        return bytes(found)

    return changed


def put(at: int, what: bytes) -> Callable[[bytes], bytes]:
    return header(lambda block: block.__setitem__(slice(at, at + len(what)), what))


CONTAINERS: dict[str, Callable[[bytes], bytes]] = {
    "a link": put(156, b"2"),
    "a hard link": put(156, b"1"),
    "a device": put(156, b"3"),
    "a folder": put(156, b"5"),
    "a sparse file": put(156, b"S"),
    "another owner": put(265, b"root"),
    "another time": put(136, b"00000000001"),
    "another mode": put(100, b"0004755"),
    "a name elsewhere": put(0, b"/etc/evil\0\0\0\0\0"),
    "8 GiB": put(124, b"77777777777"),
    "a size in base 256": put(124, b"\x80" + b"\xff" * 10),
    "a negative size": put(124, b"-0000000001"),
    "a size with spaces": put(124, b"        200"),
    "another archive behind it": lambda data: data + data,
    "nothing but zeros": lambda data: bytes(len(data)),
    "nothing": lambda data: b"",
    "text": lambda data: b"see b1/SHA256SUMS\n" * 100,
    "gzip": lambda data: b"\x1f\x8b\x08\x00" + data,
}


@pytest.mark.parametrize("change", CONTAINERS.values(), ids=CONTAINERS)
def test_an_archive_that_another_program_wrote_is_refused(
    archive: Path, tmp_path: Path, change: Callable[[bytes], bytes]
) -> None:
    (tmp_path / "a.tar").write_bytes(change(archive.read_bytes()))
    refusal(tmp_path / "a.tar")
