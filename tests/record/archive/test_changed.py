"""An archive is refused after any change, of a byte or of everything that is quoted nowhere else."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.api.sealing import contents as tables
from orchestrator.errors import DataError
from orchestrator.record import sealed_tar as sealedtar
from orchestrator.record.archive import seal, verify
from orchestrator.record.archive_record import RECORD, SUMS
from orchestrator.record.rundir import BenchDir
from orchestrator.report.formats.json import SCHEMA
from orchestrator.version import __version__
from tests.record.archive.packing import quoted, refusal, resealed
from tests.support.examples import examples
from tests.support.flips import refused, regions
from tests.support.run_folders import build


def test_every_changed_byte_is_refused(archive: Path) -> None:
    assert sorted(
        at for spans in regions(archive).values() for span in spans for at in span
    ) == list(range(archive.stat().st_size))

    def refuses(changed: Path) -> bool:
        return str(changed) in refusal(changed)

    tries = examples(200)
    found, passed = refused(archive, tries, 6, refuses)
    assert (dict(found), passed) == (
        dict.fromkeys(("content", "end", "header", "padding"), tries // 4),
        [],
    )


@settings(
    max_examples=examples(100),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.data())
def test_no_bytes_can_be_cut_out_added_or_put_in_place_of_others(
    archive: Path, tmp_path: Path, data: st.DataObject
) -> None:
    whole = archive.read_bytes()
    start = data.draw(st.integers(0, len(whole)))
    stop = data.draw(
        st.one_of(st.just(len(whole)), st.integers(start, min(len(whole), start + 1500)))
    )
    instead = data.draw(
        st.one_of(st.binary(max_size=4), st.sampled_from([bytes(512), bytes(10240), whole[:1024]]))
    )
    changed = whole[:start] + instead + whole[stop:]
    (tmp_path / "changed.tar").write_bytes(changed)
    if changed == whole:
        verify(tmp_path / "changed.tar", tables)
    else:
        refusal(tmp_path / "changed.tar")


def test_each_file_of_an_unpacked_archive_is_guarded_and_named(unpacked: Path) -> None:
    for path in [path for path in unpacked.rglob("*") if path.is_file() and path.stat().st_size]:
        whole = path.read_bytes()
        path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        text = refusal(unpacked)
        assert (
            SUMS in text
            if path.name == SUMS
            else (
                f"{path.relative_to(unpacked)}: expected SHA-256 {hashlib.sha256(whole).hexdigest()} as sealed, found "
                in text
            )
        )
        path.write_bytes(whole)
    verify(unpacked, tables)


def test_a_file_more_and_a_file_less_are_named(unpacked: Path) -> None:
    (unpacked / "r1" / "more.txt").write_text("")
    assert "r1/more.txt: expected only sealed files, found this one too" in refusal(unpacked)
    (unpacked / "r1" / "more.txt").unlink()
    (unpacked / "r1" / "manifest.json").unlink()
    assert "r1/manifest.json: expected this sealed file, it is missing" in refusal(unpacked)


def test_tables_that_the_logs_do_not_give_are_refused_however_true_the_digests(
    unpacked: Path, tmp_path: Path
) -> None:
    record = json.loads((unpacked / RECORD).read_text())
    speed = record["tables"]["rows"][0]["median"]
    record["tables"]["rows"][0]["median"] = speed * 1.01
    (unpacked / RECORD).write_text(json.dumps(record))
    text = refusal(resealed(unpacked, tmp_path / "a.tar"))
    assert (
        f"tables.rows.0.median: expected {speed * 1.01!r} as sealed, the logs give {speed!r}"
        in text
    )
    record["orch"] = "0.0.9"
    (unpacked / RECORD).write_text(json.dumps(record))
    assert f"sealed by orch 0.0.9 (tables of schema {SCHEMA})" in refusal(
        resealed(unpacked, tmp_path / "b.tar")
    )


def test_tables_of_an_older_schema_are_refused_with_what_to_do(
    unpacked: Path, tmp_path: Path
) -> None:
    """As orch sealed before tables had sheets: schema 2, of the same version."""
    record = json.loads((unpacked / RECORD).read_text())
    record["tables"]["schema"] = 2
    del record["tables"]["sheets"]
    (unpacked / RECORD).write_text(json.dumps(record))
    assert refusal(resealed(unpacked, tmp_path / "a.tar")).endswith(
        f"a.tar: archive.json: tables.schema: expected 2 as sealed, the logs give {SCHEMA}. "
        f"sealed by orch {__version__} (tables of schema 2), this is {__version__} (schema {SCHEMA}): "
        "verify it with that version. "
        "all files are as sealed; orch summarize recomputes the unpacked archive"
    )


@pytest.mark.parametrize(
    "place", [("rows",), ("rows", 0, "failures"), ("notes",), ("rows", 0, "n"), ("drifts",)]
)
def test_no_part_of_the_tables_can_be_left_out(
    unpacked: Path, tmp_path: Path, place: tuple[Any, ...]
) -> None:
    record = json.loads((unpacked / RECORD).read_text())
    inner = record["tables"]
    for key in place[:-1]:
        inner = inner[key]
    del inner[place[-1]]
    (unpacked / RECORD).write_text(json.dumps(record))
    assert "expected 'nothing' as sealed, the logs give" in refusal(
        resealed(unpacked, tmp_path / "a.tar")
    )


def test_an_archive_that_says_nothing_of_history_is_verified_and_gives_it(
    unpacked: Path, tmp_path: Path
) -> None:
    """As orch sealed before there were stores: schema 1."""
    record = json.loads((unpacked / RECORD).read_text())
    known = record.pop("history")
    (unpacked / RECORD).write_text(json.dumps(record | {"schema": 1}))
    assert verify(resealed(unpacked, tmp_path / "a.tar"), tables).history == known


@pytest.mark.parametrize(
    "place", [("measured",), ("benches", "b1", "cells", 0, "value"), ("created",)]
)
def test_a_history_that_the_logs_do_not_give_is_refused(
    unpacked: Path, tmp_path: Path, place: tuple[Any, ...]
) -> None:
    record = json.loads((unpacked / RECORD).read_text())
    inner = record["history"]
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = 99.5
    (unpacked / RECORD).write_text(json.dumps(record))
    where = ".".join(map(str, ("history", *place)))
    assert f"archive.json: {where}: expected 99.5 as sealed, the logs give " in refusal(
        resealed(unpacked, tmp_path / "a.tar")
    )


def test_last_digits_of_another_library_are_no_difference(unpacked: Path, tmp_path: Path) -> None:
    record = json.loads((unpacked / RECORD).read_text())
    record["tables"]["rows"][0]["interval"]["low"] *= 1 + 1e-12
    (unpacked / RECORD).write_text(json.dumps(record))
    verify(resealed(unpacked, tmp_path / "a.tar"), tables)


def test_who_rewrites_everything_is_found_by_the_quoted_seal_alone(
    archive: Path, copied: BenchDir, tmp_path: Path
) -> None:
    """Faster logs, exit records and tables that agree with them: no digest in the file can tell."""
    before = quoted(archive)
    for run in ("r1", "r2"):
        shutil.rmtree(copied.path / run)
        build(copied, run, repeat=int(run[1]), seconds=0.25)
    seal(copied, tmp_path / "faster.tar", tables)
    faster = verify(tmp_path / "faster.tar", tables)
    assert faster.tables["rows"][0]["median"] > verify(archive, tables).tables["rows"][0]["median"]
    assert f"expected the seal {before}, found {faster.seal}" in refusal(
        tmp_path / "faster.tar", before
    )


def test_another_root_folder_is_not_the_sealed_tar(
    archive: Path, unpacked: Path, tmp_path: Path
) -> None:
    renamed = tmp_path / "renamed.tar"
    with renamed.open("wb") as out:
        for name in [
            SUMS,
            *(line.split("  ")[1] for line in (unpacked / SUMS).read_text().splitlines()),
        ]:
            data = (unpacked / name).read_bytes()
            sealedtar.append(out, f"other/{name}", len(data), [data])
        out.write(sealedtar.end(out.tell()))
    assert renamed.stat().st_size == archive.stat().st_size
    with pytest.raises(
        DataError, match="expected files below b1/ as sealed, found them below other/"
    ):
        verify(renamed, tables, quoted(archive))
