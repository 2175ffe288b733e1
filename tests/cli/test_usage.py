"""Words that a command does not take: one form of error for all commands, with what would be right."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from orchestrator.cli.main import program
from orchestrator.errors import OrchError
from tests.support.features import needs


def said(*words: str) -> str:
    """Return the exit status and the error of a command."""
    result = CliRunner().invoke(program(), words)
    assert isinstance(result.exception, OrchError), result.output
    return f"{result.exception.exit_code} {result.exception}"


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("bench", "MODEL: expected a value, got none. orch bench -h shows what it takes"),
        (
            "verify",
            "FILE|DIRECTORY|STORE: expected a value, got none. orch verify -h shows what it takes",
        ),
        ("archive --output", "--output: expected a value, got none"),
        (
            "bench m --node 6",
            "bench: expected one of its options, got --node. did you mean --nodes?",
        ),
        (
            "bench m --inventory x",
            "bench: expected one of its options, got --inventory. did you mean --hosts?",
        ),
        (
            "bench m --bs 64",
            "bench: expected one of its options, got --bs. did you mean --batch-size?",
        ),
        (
            "bench m --nproc_per_node 8",
            "bench: expected one of its options, got --nproc_per_node. did you mean --gpus?",
        ),
        (
            "bench m --precision fp16",
            "bench: expected one of its options, got --precision. did you mean --dtype?",
        ),
        (
            "check --hostfile x",
            "check: expected one of its options, got --hostfile. did you mean --hosts?",
        ),
        (
            "bench m --jso",
            "bench: expected one of its options, got --jso. did you mean --json?",
        ),
        (
            "bench m --hots x",
            "bench: expected one of its options, got --hots. did you mean --hosts or --set hots=…?",
        ),
        (
            "bench m -F x",
            "bench: expected one of its options, got -F. did you mean -f?",
        ),
        (
            "summarize --opne",
            "summarize: expected one of its options, got --opne. did you mean --open?",
        ),
        (
            "nodes --forget n1",
            "nodes: expected one of its options, got --forget. orch nodes -h shows what it takes",
        ),
        pytest.param(
            "history --last 3",
            "history: expected one of its options, got --last. orch history -h shows what it takes",
            marks=needs("history"),
        ),
        pytest.param(
            "site --title x",
            "site: expected one of its options, got --title. orch site -h shows what it takes",
            marks=needs("site"),
        ),
        ("--nothing", "expected one of its options, got --nothing. orch -h shows what it takes"),
        ("bench m --steps x", "--steps: expected a whole number, got 'x'"),
        pytest.param(
            "serve --port 99999",
            "--port: expected a number of at most 65535, got '99999'",
            marks=needs("site"),
        ),
        ("lab up --nodes 0", "--nodes: expected a number of at least 1, got '0'"),
        (
            "schema x",
            "KIND: expected one of 'config', 'framework', 'inventory', 'published', 'run', got 'x'",
        ),
        ("benhc m", "expected a command, got 'benhc'. did you mean 'bench'?"),
        ("lab frob", "lab: expected a command, got 'frob'. orch lab -h shows what it takes"),
        (
            "collect a b c",
            "collect: expected no further words, got b c. orch collect -h shows what it takes",
        ),
    ],
)
def test_words_that_a_command_does_not_take(words: str, error: str) -> None:
    assert said(*words.split()) == f"2 {error}"


def test_what_is_given_in_place_of_a_bench_or_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ORCH_PROJECT", str(tmp_path))
    (tmp_path / "plain").mkdir()
    (tmp_path / "sweep.yaml").write_text("nodes: 2\n")

    assert (
        "2 model: expected the name of a model, got the file 'sweep.yaml'. a run file is"
        in said("bench", "sweep.yaml")
    )
    for command in ("summarize", "archive", "collect", "resume"):
        assert said(command, "plain").startswith(
            "4 plain: expected the folder of a bench, with bench.json and a folder for each"
        )
    assert (
        "4 plain: expected what orch archive has written, an archive or a folder of its files"
        in said("verify", "plain")
    )


@needs("site")
def test_a_file_in_the_way_of_a_site_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ORCH_PROJECT", str(tmp_path))
    blocking = tmp_path / "sweep.yaml"
    blocking.write_text("nodes: 2\n")
    assert (
        said("site", "sweep.yaml/x")
        == f"2 sweep.yaml/x: expected folders above it, {blocking} is none"
    )
