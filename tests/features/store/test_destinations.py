"""How a store is named: what is taken for a directory, a machine and a bucket, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.errors import ConfigError
from orchestrator.features.store.destinations import destination


@pytest.mark.parametrize(
    ("text", "kind", "path", "host", "user", "port"),
    [
        ("/srv/bench", "directory", "/srv/bench", "", None, None),
        ("team/a:b", "directory", "team/a:b", "", None, None),
        ("file:///srv/my%20bench", "directory", "/srv/my bench", "", None, None),
        ("me@head:/srv/bench/", "machine", "/srv/bench", "head", "me", None),
        ("head:~/bench", "machine", "bench", "head", None, None),
        ("me@[2001:db8::1]:bench", "machine", "bench", "2001:db8::1", "me", None),
        ("ssh://me@head:2222/srv/bench", "machine", "/srv/bench", "head", "me", 2222),
        ("ssh://head/~/bench", "machine", "bench", "head", None, None),
        ("s3://team/bench/", "bucket", "s3://team/bench", "", None, None),
        ("S3://Team/Bench", "bucket", "s3://Team/Bench", "", None, None),
        (
            "https://results.example.org/bench",
            "bucket",
            "https://results.example.org/bench",
            "",
            None,
            None,
        ),
    ],
)
def test_a_store_is_where_its_name_says(
    text: str, kind: str, path: str, host: str, user: str | None, port: int | None
) -> None:
    there = destination(text)
    assert (there.kind, there.path, there.host, there.user, there.port) == (
        kind,
        path,
        host,
        user,
        port,
    )


def test_a_directory_with_a_colon_is_one_if_it_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "head:bench").mkdir()
    assert destination("head:bench").kind == "directory"


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "head:", "head:/", "head:~", "head:~other/x", "head:-x", "head:a\nb", "user@:/x", ":/x", "ssh://head", "ssh://head/",
        "ssh:///x", "ssh://me:secret@head/x", "ssh://head:port/x", "ftp://team/x", "s3://", "s3:///x", "s3://key:secret@team/x",
        "file://head/x", "https://[::1/x", "~no-such-user/x",
    ],
)  # fmt: skip
def test_what_names_no_store_is_refused(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        destination(text)
    assert "secret" not in str(caught.value)
