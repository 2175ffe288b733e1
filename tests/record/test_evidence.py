"""Logs are stored as they came and read without secrets, long after the secret is known to nobody."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import DataError
from orchestrator.inventory import NO_SECRETS, redaction
from orchestrator.record.evidence import last_bytes, log_bytes, mark_secrets
from orchestrator.record.rundir import RunDir

SECRET = "hunter2-and-more"
HIDDEN = b"(not shown)"


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    (tmp_path / "bench").mkdir()
    return RunDir(tmp_path / "bench" / "r1")


def test_what_was_secret_when_a_log_was_collected_stays_hidden(run: RunDir) -> None:
    text = f"a {SECRET}\nb later-secret\n".encode()
    run.write_log("n1", "rank-0.out", text)
    mark_secrets(run, "n1", redaction([SECRET]))
    for later in (NO_SECRETS, redaction(["later-secret"])):
        mark_secrets(run, "n1", later)
    assert log_bytes(run, "n1", "rank-0.out") == b"a %s\nb %s\n" % (HIDDEN, HIDDEN)
    assert run.log_path("n1", "rank-0.out").read_bytes() == text
    assert SECRET not in (run.path / "hidden" / "n1.json").read_text()


def test_a_run_without_secrets_has_no_file_about_them(run: RunDir) -> None:
    run.write_log("n1", "rank-0.out", b"nothing\n")
    mark_secrets(run, "n1", redaction([SECRET]))
    assert not (run.path / "hidden").exists() and log_bytes(run, "n1", "rank-0.out") == b"nothing\n"


@given(st.integers(0, 60), st.integers(0, 60), st.integers(1, 140))
def test_the_end_of_a_log_holds_no_part_of_a_secret_wherever_it_is_cut(
    before: int, after: int, count: int
) -> None:
    with TemporaryDirectory() as folder:
        run = RunDir(Path(folder) / "r1")
        run.write_log("n1", "rank-0.err", b"." * before + SECRET.encode() + b"," * after)
        mark_secrets(run, "n1", redaction([SECRET]))
        end = last_bytes(run, "n1", "rank-0.err", count)
    rest = end.replace(HIDDEN, b"")
    assert not rest.strip(b".,") and len(rest) == min(count, after) + max(
        0, min(before, count - after - len(SECRET))
    )


def test_an_exit_record_is_read_without_secrets(run: RunDir) -> None:
    record = b'{"reason": "it said hunter2-and-more", "state": "failed"}'
    mark_secrets(run, "n1", redaction([SECRET, "state"]), record)
    run.write_log("n1", "exit.json", record)
    assert run.exit_content("n1") == {"reason": "it said (not shown)", "state": "failed"}


@pytest.mark.parametrize(
    "places", [[[5, 3]], [[0, 4], [2, 6]], [[-1, 2]], [[1]], [["a", 2]], {"a": 1}, [[True, 2]]]
)
def test_places_that_nobody_wrote_are_refused(run: RunDir, places: list[tuple[int, int]]) -> None:
    run.write_secret_places(
        "n1", {"rank-0.out": places} if isinstance(places, list) else {"rank-0.out": [(9, 3)]}
    )
    with pytest.raises(DataError, match="places of secrets"):
        run.secret_places("n1")
