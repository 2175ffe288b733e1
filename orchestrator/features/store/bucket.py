"""A store in a bucket of S3 or a service like it, through fsspec and s3fs; on a web server, which
gives and does not take.

s3fs takes address, keys and profile from where other programs take them: ``AWS_ENDPOINT_URL``,
``AWS_PROFILE``, ``~/.aws``. An object appears complete or not at all, and one under a name that
exists replaces it; nothing else is asked of the service.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from orchestrator.errors import ConfigError, DataError
from orchestrator.features.store.place import too_long

__all__ = ["SCHEMES", "BucketPlace"]

SCHEMES = ("s3", "http", "https")
_CONNECT_S, _READ_S = 10, 60
_OF_S3: dict[str, Any] = {
    "use_listings_cache": False,
    "default_cache_type": "none",
    "config_kwargs": {
        "connect_timeout": _CONNECT_S,
        "read_timeout": _READ_S,
        "retries": {"max_attempts": 4, "mode": "standard"},
    },
}


class BucketPlace:
    """Objects below a URL."""

    def __init__(self, url: str) -> None:
        """Raises ConfigError if fsspec or what it needs for this URL is not installed."""
        self.title = url
        scheme = url.partition("://")[0]
        self._can_list = scheme == "s3"
        try:
            from aiohttp import ClientError, ClientTimeout
            from botocore.exceptions import BotoCoreError, NoCredentialsError
            from fsspec.core import url_to_fs

            # By default aiohttp gives up after five minutes, also while an archive is still
            # arriving.
            timeout = ClientTimeout(total=None, sock_connect=_CONNECT_S, sock_read=_READ_S)
            options = _OF_S3 if scheme == "s3" else {"client_kwargs": {"timeout": timeout}}
            self._files, self._root = url_to_fs(url, skip_instance_cache=True, **options)
            self._without_keys, self._failures = (
                NoCredentialsError,
                (OSError, ClientError, BotoCoreError),
            )
        except ImportError as error:
            hint = "install them: pip install 'orch-bench[store]'"
            raise ConfigError(f"expected fsspec and s3fs, {error}", where=url, hint=hint) from None

    def make(self) -> None:
        """Refuse what cannot be written; a folder in a bucket needs no making."""
        if not self._can_list:
            hint = "push to the directory or bucket that the web server serves"
            raise ConfigError(
                "expected a place that can be written, got a web server",
                where=self.title,
                hint=hint,
            )

    def sizes(self, folder: str) -> dict[str, int | None] | None:
        """Return what is in a folder."""
        if not self._can_list:
            return None
        with self._translated(folder):
            try:
                rows = self._files.ls(self._path(folder), detail=True, refresh=True)
            except FileNotFoundError:
                self._bucket_exists()
                return {}
        return {
            posixpath.basename(row["name"]): row["size"] if row["type"] == "file" else None
            for row in rows
        }

    def read(self, name: str, start: int, size: int) -> bytes:
        """Return bytes of an object."""
        with self._translated(name):
            data: bytes = self._files.cat_file(self._path(name), start=start, end=start + size)
        # A web server may know no ranges, and send all.
        return data[start : start + size] if len(data) > size else data

    def fetch(self, name: str, target: Path, most: int) -> None:
        """Copy an object."""
        from fsspec.callbacks import Callback

        where = f"{self.title}/{name}"

        class Limit(Callback):  # type: ignore[misc, unused-ignore]
            """Counts what has come."""

            def call(self, *_: object, **__: object) -> None:
                if self.value > most:
                    raise too_long(where, most)

        with self._translated(name):
            self._files.get_file(self._path(name), str(target), callback=Limit())
        if target.stat().st_size > most:
            raise too_long(where, most)

    def publish(self, name: str, source: Path) -> None:
        """Put an object; of one in parts, the service shows nothing before the last."""
        with self._translated(name):
            self._files.put_file(str(source), self._path(name))

    def close(self) -> None:
        """Free nothing: fsspec's connections end with the process."""

    def _path(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}".rstrip("/")

    def _bucket_exists(self) -> None:
        bucket = self._root.partition("/")[0]
        if not self._files.exists(bucket):
            raise ConfigError(
                "expected a bucket, found none",
                where=self.title,
                hint=f"create the bucket {bucket} first",
            )

    @contextmanager
    def _translated(self, name: str) -> Iterator[None]:
        where = f"{self.title}/{name}".rstrip("/")
        try:
            yield
        except FileNotFoundError:
            raise
        except self._without_keys as error:
            hint = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
            raise ConfigError(
                f"expected access keys for the bucket: {_said(error)}", where=self.title, hint=hint
            ) from error
        except PermissionError as error:
            hint = "the access keys need s3:ListBucket and s3:GetObject, and s3:PutObject to push"
            raise ConfigError(
                f"refused: {_said(error)}", kind="unsafe_path", where=where, hint=hint
            ) from error
        except self._failures as error:
            asked = (
                "is the service up, and AWS_ENDPOINT_URL its address?"
                if self._can_list
                else "is the web server up?"
            )
            hint = f"{asked} repeat the command when it is; nothing is lost"
            raise DataError(
                f"the service does not work: {_said(error)}",
                kind="storage_failed",
                where=where,
                hint=hint,
            ) from error
        except ValueError as error:
            hint = "set AWS_ENDPOINT_URL to a URL such as https://host:9000"
            raise ConfigError(
                f"expected the URL of a service: {_said(error)}", where=self.title, hint=hint
            ) from error


def _said(error: BaseException) -> str:
    return str(error).strip().splitlines()[0][:300] if str(error).strip() else type(error).__name__
