"""A sealed bench is proven as it is and refused after any change; nothing hostile gets out of it."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from orchestrator import __version__
from orchestrator.api.sealing import contents as tables
from orchestrator.cli.main import program
from orchestrator.errors import ConfigError, DataError, OrchError, RunError
from orchestrator.record import sealed_tar as sealedtar
from orchestrator.record.archive import RECORD, SUMS, seal, verify
from orchestrator.record.ownership import owned
from orchestrator.record.rundir import BenchDir
from orchestrator.record.sealed import unsealed
from tests.support.examples import examples
from tests.support.flips import refused, regions
from tests.support.run_folders import build


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> BenchDir:
    """Two good repeats, one that failed, and one that was never made."""
    made = BenchDir.create(tmp_path_factory.mktemp("project") / "runs", {"bench_id": "b1", "runs": ["r1", "r2", "r3", "r4"]})
    build(made, "r1")
    build(made, "r2", repeat=2, seconds=0.49)
    build(made, "r3", lambda planned, logs: logs[0].update({"rank-0.out": "cut"}), repeat=3)
    made.event("finished", run="r1")
    return made


@pytest.fixture(scope="module")
def archive(bench: BenchDir, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("sealed") / "b1.tar"
    seal(bench, target, tables)
    return target


@pytest.fixture
def copied(bench: BenchDir, tmp_path: Path) -> BenchDir:
    """A copy that a test may break."""
    shutil.copytree(bench.path, tmp_path / "copy")
    return BenchDir(tmp_path / "copy")


@pytest.fixture
def unpacked(archive: Path, tmp_path: Path) -> Path:
    subprocess.run(["tar", "-xf", archive, "-C", tmp_path], check=True)
    return tmp_path / "b1"


def quoted(archive: Path) -> str:
    return verify(archive, tables).seal


def resealed(folder: Path, target: Path) -> Path:
    """Write an archive of a folder as it is, with digests that are true: what somebody does who rewrites everything."""
    names = sorted(
        str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and path.name not in (SUMS, RECORD)
    )
    return packed(target, {name: (folder / name).read_bytes() for name in (RECORD, *names)})


def packed(target: Path, files: dict[str, bytes]) -> Path:
    sums = "".join(f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in files.items()).encode()
    with target.open("wb") as out:
        for name, data in {SUMS: sums, **files}.items():
            sealedtar.append(out, f"b1/{name}", len(data), [data])
        out.write(sealedtar.end(out.tell()))
    return target


def refusal(path: Path, seal: str = "") -> str:
    with pytest.raises(DataError) as caught:
        verify(path, tables, seal)
    assert caught.value.exit_code == 4
    return str(caught.value)


def tree(folder: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.lstat().st_mtime_ns, path.lstat().st_size) for path in (folder, *folder.rglob("*"))}


def test_an_archive_is_proven_packed_and_unpacked_and_says_the_same(bench: BenchDir, archive: Path, unpacked: Path) -> None:
    whole = verify(archive, tables)
    assert whole == verify(unpacked, tables) == verify(unpacked, tables, whole.seal)
    assert (whole.bench_id, whole.runs, whole.orch) == ("b1", 4, __version__)
    known = tables(bench)
    assert whole.tables == known["tables"]
    assert whole.history["benches"]["b1"]["cells"] == known["history"]["benches"]["b1"]["cells"]
    row = whole.tables["rows"][0]
    assert (row["n"], row["failed"]) == (2, 1)


def test_a_full_disk_is_named_with_the_size_of_the_whole_archive(bench: BenchDir, archive: Path, tmp_path: Path) -> None:
    room, size = 16 << 10, archive.stat().st_size
    place = tmp_path / "small"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={room}", "tmpfs", str(place)], capture_output=True).returncode:
        pytest.skip("mounting a small disk needs root")
    try:
        with pytest.raises(DataError, match=f"space on the controller's disk: {size} bytes needed, {room} free") as caught:
            seal(bench, place / "b1.tar", tables)
        assert caught.value.kind == "storage_full" and size > room and not list(place.iterdir())
    finally:
        subprocess.run(["umount", str(place)], check=True)


def test_a_folder_that_cannot_be_written_is_named_by_the_archive(bench: BenchDir, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError) as caught:
        seal(bench, tmp_path / "file/a.tar", tables)
    assert caught.value.where == str(tmp_path / "file/a.tar")


def test_other_programs_read_it_and_find_the_same_seal(archive: Path, unpacked: Path) -> None:
    subprocess.run(["sha256sum", "--quiet", "--strict", "--check", SUMS], cwd=unpacked, check=True)
    done = subprocess.run(["sha256sum", SUMS], cwd=unpacked, check=True, capture_output=True, text=True)
    assert done.stdout.split()[0] == quoted(archive)
    listed = subprocess.run(["tar", "-tf", archive], check=True, capture_output=True, text=True).stdout.splitlines()
    assert listed[:3] == [f"b1/{SUMS}", f"b1/{RECORD}", "b1/bench.json"] and listed[2:] == sorted(listed[2:])


def test_the_same_bench_gives_the_same_bytes(
    bench: BenchDir, archive: Path, copied: BenchDir, unpacked: Path, tmp_path: Path
) -> None:
    (copied.path / "owner.lock").write_text("{}\n")
    (copied.path / "report.html").write_text("derived")
    (copied.path / ".r9.part").mkdir()
    copied.run("r1").write_result("throughput.json", {"derived": True})
    for path in copied.path.rglob("*"):
        os.utime(path, (1, 1))
        path.chmod(0o755)
    for number, each in enumerate((bench, copied, BenchDir(unpacked))):
        seal(each, tmp_path / f"{number}.tar", tables)
        assert (tmp_path / f"{number}.tar").read_bytes() == archive.read_bytes()


def test_the_bytes_of_a_tar_depend_on_nothing_but_what_is_in_it() -> None:
    """Versions of Python write headers in different ways; those that orch runs on have to agree for good."""
    out = io.BytesIO()
    for name, data in (
        ("b1/SHA256SUMS", b"x" * 700),
        (f"b1/{'r' * 120}/logs/{'h' * 60}/rank-0.out", b""),
        ("b1/z", b"z" * 512),
    ):
        sealedtar.append(out, name, len(data), [data])
    out.write(sealedtar.end(out.tell()))
    assert len(out.getvalue()) == 10240
    assert hashlib.sha256(out.getvalue()).hexdigest() == "55dda419bff9d1148948a746bad3198eca14f2ae7173284e5d1d8c6a48184f65"


def test_neither_command_writes_where_the_evidence_lies(copied: BenchDir, unpacked: Path, tmp_path: Path) -> None:
    before = tree(copied.path), tree(unpacked)
    (tmp_path / "out").mkdir()
    seal(copied, tmp_path / "out" / "a.tar", tables)
    verify(unpacked, tables)
    assert (tree(copied.path), tree(unpacked)) == before
    assert os.listdir(tmp_path / "out") == ["a.tar"]


def test_every_changed_byte_is_refused(archive: Path) -> None:
    assert sorted(at for spans in regions(archive).values() for span in spans for at in span) == list(
        range(archive.stat().st_size)
    )

    def refuses(changed: Path) -> bool:
        return str(changed) in refusal(changed)

    tries = examples(200)
    found, passed = refused(archive, tries, 6, refuses)
    assert (dict(found), passed) == (dict.fromkeys(("content", "end", "header", "padding"), tries // 4), [])


@settings(max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_no_bytes_can_be_cut_out_added_or_put_in_place_of_others(archive: Path, tmp_path: Path, data: st.DataObject) -> None:
    whole = archive.read_bytes()
    start = data.draw(st.integers(0, len(whole)))
    stop = data.draw(st.one_of(st.just(len(whole)), st.integers(start, min(len(whole), start + 1500))))
    instead = data.draw(st.one_of(st.binary(max_size=4), st.sampled_from([bytes(512), bytes(10240), whole[:1024]])))
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
                f"{path.relative_to(unpacked)}: expected SHA-256 {hashlib.sha256(whole).hexdigest()} as sealed, found " in text
            )
        )
        path.write_bytes(whole)
    verify(unpacked, tables)


def test_a_file_more_and_a_file_less_are_named(unpacked: Path) -> None:
    (unpacked / "r1" / "more.txt").write_text("")
    assert "r1/more.txt: expected no such file as sealed" in refusal(unpacked)
    (unpacked / "r1" / "more.txt").unlink()
    (unpacked / "r1" / "manifest.json").unlink()
    assert "r1/manifest.json: expected this file as sealed, it is missing" in refusal(unpacked)


def test_tables_that_the_logs_do_not_give_are_refused_however_true_the_digests(unpacked: Path, tmp_path: Path) -> None:
    record = json.loads((unpacked / RECORD).read_text())
    speed = record["tables"]["rows"][0]["median"]
    record["tables"]["rows"][0]["median"] = speed * 1.01
    (unpacked / RECORD).write_text(json.dumps(record))
    text = refusal(resealed(unpacked, tmp_path / "a.tar"))
    assert f"tables.rows.0.median: expected {speed * 1.01!r} as sealed, the logs give {speed!r}" in text
    record["orch"] = "0.0.9"
    (unpacked / RECORD).write_text(json.dumps(record))
    assert "sealed by orch 0.0.9 (tables of schema 7)" in refusal(resealed(unpacked, tmp_path / "b.tar"))


def test_tables_of_an_older_schema_are_refused_with_what_to_do(unpacked: Path, tmp_path: Path) -> None:
    """As orch sealed before tables had sheets: schema 2, of the same version."""
    record = json.loads((unpacked / RECORD).read_text())
    record["tables"]["schema"] = 2
    del record["tables"]["sheets"]
    (unpacked / RECORD).write_text(json.dumps(record))
    assert refusal(resealed(unpacked, tmp_path / "a.tar")).endswith(
        "a.tar: archive.json: tables.schema: expected 2 as sealed, the logs give 7. "
        f"sealed by orch {__version__} (tables of schema 2), this is {__version__} (schema 7): verify it with that version. "
        "all files are as sealed; orch summarize recomputes the unpacked archive"
    )


@pytest.mark.parametrize("place", [("rows",), ("rows", 0, "failures"), ("notes",), ("rows", 0, "n"), ("drifts",)])
def test_no_part_of_the_tables_can_be_left_out(unpacked: Path, tmp_path: Path, place: tuple[Any, ...]) -> None:
    record = json.loads((unpacked / RECORD).read_text())
    inner = record["tables"]
    for key in place[:-1]:
        inner = inner[key]
    del inner[place[-1]]
    (unpacked / RECORD).write_text(json.dumps(record))
    assert "expected 'nothing' as sealed, the logs give" in refusal(resealed(unpacked, tmp_path / "a.tar"))


def test_an_archive_that_says_nothing_of_history_is_verified_and_gives_it(unpacked: Path, tmp_path: Path) -> None:
    """As orch sealed before there were stores: schema 1."""
    record = json.loads((unpacked / RECORD).read_text())
    known = record.pop("history")
    (unpacked / RECORD).write_text(json.dumps(record | {"schema": 1}))
    assert verify(resealed(unpacked, tmp_path / "a.tar"), tables).history == known


@pytest.mark.parametrize("place", [("measured",), ("benches", "b1", "cells", 0, "value"), ("created",)])
def test_a_history_that_the_logs_do_not_give_is_refused(unpacked: Path, tmp_path: Path, place: tuple[Any, ...]) -> None:
    record = json.loads((unpacked / RECORD).read_text())
    inner = record["history"]
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = 99.5
    (unpacked / RECORD).write_text(json.dumps(record))
    where = ".".join(map(str, ("history", *place)))
    assert f"archive.json: {where}: expected 99.5 as sealed, the logs give " in refusal(resealed(unpacked, tmp_path / "a.tar"))


def test_last_digits_of_another_library_are_no_difference(unpacked: Path, tmp_path: Path) -> None:
    record = json.loads((unpacked / RECORD).read_text())
    record["tables"]["rows"][0]["interval"]["low"] *= 1 + 1e-12
    (unpacked / RECORD).write_text(json.dumps(record))
    verify(resealed(unpacked, tmp_path / "a.tar"), tables)


def test_who_rewrites_everything_is_found_by_the_quoted_seal_alone(archive: Path, copied: BenchDir, tmp_path: Path) -> None:
    """Faster logs, exit records and tables that agree with them: no digest in the file can tell."""
    before = quoted(archive)
    for run in ("r1", "r2"):
        shutil.rmtree(copied.path / run)
        build(copied, run, repeat=int(run[1]), seconds=0.25)
    seal(copied, tmp_path / "faster.tar", tables)
    faster = verify(tmp_path / "faster.tar", tables)
    assert faster.tables["rows"][0]["median"] > verify(archive, tables).tables["rows"][0]["median"]
    assert f"expected the seal {before}, found {faster.seal}" in refusal(tmp_path / "faster.tar", before)


def test_what_names_its_file_is_told_alike_wherever_the_bench_lies(copied: BenchDir, tmp_path: Path) -> None:
    (copied.path / "r2" / "manifest.json").write_text("{")
    done = seal(copied, tmp_path / "a.tar", tables)
    assert any("r2/manifest.json" in note for note in done.tables["notes"]) and str(tmp_path) not in json.dumps(done.tables)
    damaged = done.history["benches"]["b1"]["damaged"]
    assert damaged["r2"].startswith("r2/manifest.json: ") and str(tmp_path) not in json.dumps(done.history)
    assert verify(tmp_path / "a.tar", tables) == done


def places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield (*place, key)
        yield from places(inner, (*place, key))


@settings(max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_forged_records_with_true_digests_are_read_or_refused(unpacked: Path, tmp_path: Path, data: st.DataObject) -> None:
    path = unpacked / data.draw(st.sampled_from([RECORD, "bench.json", "r1/manifest.json", "r2/logs/node1/exit.json"]))
    whole = path.read_bytes()
    record = inner = unsealed(json.loads(whole))
    *folders, key = data.draw(st.sampled_from(list(places(record))))
    for folder in folders:
        inner = inner[folder]
    inner[key] = data.draw(st.sampled_from([None, True, 0, -1, 1.5, 10**30, "", "../x", "\ud800", [], {}, [1], {"a": 1}]))
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
    names = sorted(str(path.relative_to(unpacked)) for path in unpacked.rglob("*") if path.is_file())
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


def link(path: Path) -> None:
    (path / "r1" / "link").symlink_to("/etc/passwd")


def linked_folder(path: Path) -> None:
    (path / "r1" / "link").symlink_to("/etc")


def pipe(path: Path) -> None:
    os.mkfifo(path / "r1" / "logs" / "pipe")


def odd_name(path: Path) -> None:
    (path / "r1" / "a name\n").write_text("")


def derived_only(path: Path) -> None:
    (path / "r4" / "results").mkdir(parents=True)


@pytest.mark.parametrize("flaw", [link, linked_folder, pipe, odd_name, derived_only])
def test_what_no_bench_has_is_not_sealed(copied: BenchDir, tmp_path: Path, flaw: Callable[[Path], None]) -> None:
    flaw(copied.path)
    with pytest.raises(DataError):
        seal(copied, tmp_path / "a.tar", tables)
    assert not list(tmp_path.glob("*.tar")) and not list(tmp_path.glob(".*"))


def test_a_bench_that_is_conducted_is_not_sealed(copied: BenchDir, tmp_path: Path) -> None:
    with owned(copied), pytest.raises(RunError, match="a controller is running this bench"):
        seal(copied, tmp_path / "a.tar", tables)
    seal(copied, tmp_path / "a.tar", tables)


def test_nothing_is_overwritten_and_a_bench_does_not_hold_its_own_archive(copied: BenchDir, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_text("mine")
    for target in (tmp_path / "a.tar", copied.path / "a.tar", tmp_path / "none" / "a.tar"):
        with pytest.raises(ConfigError):
            seal(copied, target, tables)
    assert (tmp_path / "a.tar").read_text() == "mine"


def test_a_large_log_is_never_held_in_memory(copied: BenchDir, tmp_path: Path) -> None:
    with (copied.path / "r1" / "large.txt").open("wb") as out:
        out.truncate(96 << 20)
    known = tables(copied)
    tracemalloc.start()
    seal(copied, tmp_path / "a.tar", lambda _: known)
    verify(tmp_path / "a.tar", lambda _: known)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 << 20


def orch(*words: str) -> Result:
    return CliRunner().invoke(program(), words)


def test_the_commands_print_the_seal_and_what_it_is_of(
    bench: BenchDir, archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sealed = orch("archive", str(bench.path))
    found = quoted(archive)
    assert sealed.stdout == f"b1.tar: sealed 48 files; 2 of 4 runs have a number\nseal {found}\n"
    assert (tmp_path / "b1.tar").read_bytes() == archive.read_bytes()
    proven = orch("verify", "b1.tar", "--seal", found)
    text = f"b1.tar: 48 files and the tables are as sealed by orch {__version__}; 2 of 4 runs have a number\nseal {found}\n"
    assert (proven.exit_code, proven.stdout, proven.stderr) == (0, text, "")
    assert "--seal SHA256 also verifies" in orch("verify", "b1.tar").stderr
    as_json = json.loads(orch("verify", "b1.tar", "--json").stdout)
    assert (as_json["seal"], as_json["measured"], as_json["tables"]) == (found, 2, tables(bench)["tables"])


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["verify", "nowhere.tar"], 2),
        (["verify", "/dev/null"], 2),
        (["verify", ".", "--seal", "abc"], 2),
        (["verify", "."], 4),
        (["archive", "nothing"], 2),
    ],
)
def test_what_is_no_archive_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], code: int) -> None:
    monkeypatch.chdir(tmp_path)
    error = orch(*words).exception
    assert isinstance(error, OrchError) and error.exit_code == code


@pytest.mark.parametrize("content", [None, "hello", "-----BEGIN OPENSSH PRIVATE KEY-----\n"])
def test_a_key_that_does_not_sign_leaves_no_archive_behind(
    bench: BenchDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    if content:
        (tmp_path / "key").write_text(content)
        (tmp_path / "key").chmod(0o600)
    done = orch("archive", str(bench.path), "--sign", "key", "-o", "b.tar")
    assert isinstance(done.exception, ConfigError) and "--sign key: " in str(done.exception)
    assert not list(tmp_path.glob("*.tar*"))
    assert orch("archive", str(bench.path), "-o", "b.tar").exit_code == 0


def test_another_root_folder_is_not_the_sealed_tar(archive: Path, unpacked: Path, tmp_path: Path) -> None:
    renamed = tmp_path / "renamed.tar"
    with renamed.open("wb") as out:
        for name in [SUMS, *(line.split("  ")[1] for line in (unpacked / SUMS).read_text().splitlines())]:
            data = (unpacked / name).read_bytes()
            sealedtar.append(out, f"other/{name}", len(data), [data])
        out.write(sealedtar.end(out.tell()))
    assert renamed.stat().st_size == archive.stat().st_size
    with pytest.raises(DataError, match="expected files below b1/ as sealed, found them below other/"):
        verify(renamed, tables, quoted(archive))
