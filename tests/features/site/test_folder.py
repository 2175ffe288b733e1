"""The folder of a site: replaced as a whole, with what is somebody's own in it, and never in place
of anything else.
"""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path

import pytest

from orchestrator.errors import ConfigError, RunError
from orchestrator.features.site import folder
from orchestrator.features.site.folder import STATE, check_target, staging


def write(target: Path, generation: int) -> None:
    with staging(check_target(target)) as new:
        for name in ("index.html", "benches/a.html", STATE):
            (new / name).write_text(f"{generation} " + "x" * 50_000)


@pytest.mark.parametrize("has_exchange", [True, False], ids=["exchange", "two renames"])
def test_a_reader_sees_whole_pages_of_one_site_or_of_a_later_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_exchange: bool
) -> None:
    if not has_exchange:
        monkeypatch.setattr(folder, "_exchange", lambda *_: False)
    target, is_over, seen, absent = tmp_path / "www", threading.Event(), list[tuple[int, int]](), 0
    write(target, 0)

    def read() -> None:
        nonlocal absent
        while not is_over.is_set():
            try:
                texts = [(target / name).read_text() for name in ("index.html", "benches/a.html")]
            except FileNotFoundError:
                absent += 1
                continue
            assert all(len(text.split(" ")[1]) == 50_000 for text in texts)
            seen.append((int(texts[0].split(" ")[0]), int(texts[1].split(" ")[0])))

    reader = threading.Thread(target=read)
    reader.start()
    for generation in range(1, 60):
        write(target, generation)
    is_over.set()
    reader.join()
    assert len(seen) > 5 and all(first <= second for first, second in seen) and seen == sorted(seen)
    assert not (has_exchange and absent)
    assert [path.name for path in tmp_path.iterdir()] == ["www"]


def test_a_build_that_fails_leaves_the_site_as_it_was_and_nothing_beside_it(tmp_path: Path) -> None:
    target = tmp_path / "www"
    write(target, 1)
    with pytest.raises(ZeroDivisionError), staging(target) as new:
        (new / "index.html").write_text("half")
        _ = 1 / 0
    assert (target / "index.html").read_text().startswith("1 ") and [
        path.name for path in tmp_path.iterdir()
    ] == ["www"]


def test_what_a_killed_build_left_is_removed_and_a_site_that_it_set_aside_comes_back(
    tmp_path: Path,
) -> None:
    target = tmp_path / "www"
    write(target, 1)
    (target / "CNAME").write_text("mine")
    target.rename(tmp_path / ".www.orch-site-old")  # killed between the two renames
    (tmp_path / ".www.orch-site" / "benches").mkdir(parents=True)
    write(target, 2)
    assert (target / "CNAME").read_text() == "mine" and (
        target / "index.html"
    ).read_text().startswith("2 ")
    assert [path.name for path in tmp_path.iterdir()] == ["www"]


def test_what_is_somebodys_own_in_a_site_stays(tmp_path: Path) -> None:
    target = tmp_path / "www"
    write(target, 1)
    (target / ".git" / "objects").mkdir(parents=True)
    (target / ".git" / "objects" / "ab").write_text("object")
    (target / "latest").symlink_to("benches/a.html")
    target.chmod(0o750)
    write(target, 2)
    assert (
        target / ".git" / "objects" / "ab"
    ).read_text() == "object" and target.stat().st_mode & 0o777 == 0o750
    assert os.readlink(target / "latest") == "benches/a.html" and (
        target / "latest"
    ).read_text().startswith("2 ")


@pytest.mark.parametrize("kind", ["file", "other folder", "mount"])
def test_what_is_no_site_is_not_replaced(tmp_path: Path, kind: str) -> None:
    target = tmp_path / "target"
    if kind == "file":
        target.write_text("mine")
    elif kind == "other folder":
        target.mkdir()
        (target / "thesis.tex").write_text("mine")
    else:
        target = Path("/proc")
    with pytest.raises(ConfigError) as refused:
        check_target(target)
    assert str(target) in str(refused.value) and kind in {"file": "file", "mount": "mount"}.get(
        kind, "other folder"
    )
    assert kind != "other folder" or (
        "thesis.tex" in str(refused.value) and (target / "thesis.tex").read_text() == "mine"
    )


def test_an_empty_folder_and_a_link_to_one_are_used(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    write(tmp_path / "link", 1)
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real" / "index.html").is_file()


def test_two_builds_beside_each_other_are_refused(tmp_path: Path) -> None:
    other = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    with pytest.raises(RunError, match="another orch site"):
        write(tmp_path / "www", 1)
    os.close(other)
    write(tmp_path / "www", 1)
