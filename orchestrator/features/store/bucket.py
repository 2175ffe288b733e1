"""A store in a bucket of S3, Google or Azure, or of a service like S3; on a web server, which gives
and does not take. obstore talks to all of them.

An object appears complete or not at all, and one under a name that exists replaces it; nothing else
is asked of the service.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterator, Mapping
from configparser import Error, RawConfigParser
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from orchestrator.errors import ConfigError, DataError
from orchestrator.features.store.place import NAMES, PIECE_BYTES, names_in, too_long

_KEYS = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
    "gs": "set GOOGLE_APPLICATION_CREDENTIALS",
    "az": "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}
SCHEMES = (*_KEYS, "http", "https")
_READ_TIMEOUT = "60s"
_RETRIES: Any = {"max_retries": 6}
_OF_PROFILE = {
    "access_key_id": "aws_access_key_id",
    "secret_access_key": "aws_secret_access_key",
    "token": "aws_session_token",
    "region": "region",
    "endpoint": "endpoint_url",
}
_SET_BY = {"region": ("AWS_REGION", "AWS_DEFAULT_REGION"), "endpoint": ("AWS_ENDPOINT_URL",)}
_OTHER_KEYS = (
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)


class BucketPlace:
    """Objects below a URL."""

    def __init__(self, url: str) -> None:
        """Raises ConfigError if obstore is not installed, or settings of the service are wrong."""
        self.title = url
        self._scheme = urlsplit(url).scheme
        self._can_list = self._scheme in _KEYS
        try:
            from obstore import exceptions
            from obstore.store import from_url
        except ImportError as error:
            hint = "install it: pip install 'orch-bench[store]'"
            raise ConfigError(f"expected obstore, {error}", where=url, hint=hint) from None
        self._errors = exceptions
        # Without a limit of its own obstore ends a request after 30 s, also one that makes
        # progress.
        client: Any = {
            "allow_http": True,
            "connect_timeout": "10s",
            "read_timeout": _READ_TIMEOUT,
            "timeout": "1d",
        }
        options: Any = _of_s3(os.environ, url) if self._scheme == "s3" else {}
        try:
            self._objects: Any = from_url(
                url, client_options=client, retry_config=_RETRIES, **options
            )
        except exceptions.BaseError as error:
            raise ConfigError(
                f"expected a service: {_first_line(error)}",
                where=url,
                hint=_KEYS.get(self._scheme, ""),
            ) from error

    def make(self) -> None:
        """Refuse what cannot be written; a folder in a bucket needs no making."""
        if not self._can_list:
            hint = "push to the directory or bucket that the web server serves"
            raise ConfigError(
                "expected a place that can be written, got a web server",
                where=self.title,
                hint=hint,
            )

    def sizes(self, folder: str) -> dict[str, int | None]:
        """Return the names in a folder, with the sizes of objects; of a web server, those that
        the last push listed.
        """
        if not self._can_list:
            return self._list_names()
        with self._translate_errors(folder):
            found = self._objects.list_with_delimiter(folder or None)
        sizes: dict[str, int | None] = {
            posixpath.basename(path): None for path in found["common_prefixes"]
        }
        return sizes | {posixpath.basename(row["path"]): row["size"] for row in found["objects"]}

    def _list_names(self) -> dict[str, int | None]:
        try:
            with self._translate_errors(NAMES):
                return names_in(bytes(self._objects.get(NAMES).bytes()))
        except FileNotFoundError:
            hint = "the next orch push to the directory or bucket that it serves writes it"
            message = f"expected {NAMES}, the list of archives, found none"
            raise DataError(message, kind="state_damaged", where=self.title, hint=hint) from None

    def read(self, name: str, start: int, size: int) -> bytes:
        """Return bytes of an object."""
        with self._translate_errors(name):
            if self._can_list:
                return bytes(self._objects.get_range(name, start=start, length=size))
            data = b""
            for piece in self._objects.get(name).stream():  # not all web servers give ranges
                data += bytes(piece)
                if len(data) >= start + size:
                    break
            return data[start : start + size]

    def fetch(self, name: str, target: Path, most: int) -> None:
        """Copy an object."""
        with self._translate_errors(name):
            found = self._objects.get(name)
        if found.meta["size"] > most:
            raise too_long(f"{self.title}/{name}", most)
        with self._translate_errors(name), target.open("xb") as out:
            for piece in found.stream(min_chunk_size=PIECE_BYTES):
                out.write(piece)

    def publish(self, name: str, source: Path) -> None:
        """Put an object; of one in parts, the service shows nothing before the last."""
        with self._translate_errors(name):
            self._objects.put(name, source)

    @contextmanager
    def _translate_errors(self, name: str) -> Iterator[None]:
        where = f"{self.title}/{name}".rstrip("/")
        try:
            yield
        except (self._errors.PermissionDeniedError, self._errors.UnauthenticatedError) as error:
            hint = "the access keys must allow to list and read objects, and to put them to push"
            raise ConfigError(
                f"refused: {_first_line(error)}", kind="unsafe_path", where=where, hint=hint
            ) from error
        except self._errors.BaseError as error:
            raise self._fault(error, where) from error

    def _fault(self, error: Exception, where: str) -> ConfigError | DataError:
        if "NoSuchBucket" in str(error):
            hint = f"create the bucket {urlsplit(self.title).netloc} first"
            return ConfigError("expected a bucket, found none", where=self.title, hint=hint)
        if "169.254.169.254" in str(error) or "metadata.google" in str(error):
            message = f"expected access keys for the bucket: {_first_line(error)}"
            return ConfigError(message, where=self.title, hint=_KEYS[self._scheme])
        asked = "is the service up?" if self._can_list else "is the web server up?"
        if self._scheme == "s3":
            asked = "is the service up, and AWS_ENDPOINT_URL its address?"
        hint = f"{asked} repeat the command when it is; nothing is lost"
        message = f"the service does not work: {_first_line(error)}"
        return DataError(message, kind="storage_failed", where=where, hint=hint)


def _of_s3(environment: Mapping[str, str], url: str) -> dict[str, str]:
    """Return the options from a profile of the AWS tools that no environment variable sets.

    obstore reads the variables itself. Raises ConfigError without keys.
    """
    profile = environment.get("AWS_PROFILE") or "default"
    values = _profile_values(environment, profile)
    options = {option: values[key] for option, key in _OF_PROFILE.items() if key in values}
    for option, names in _SET_BY.items():
        if any(map(environment.get, names)):
            options.pop(option, None)
    endpoint = environment.get("AWS_ENDPOINT_URL") or options.get("endpoint", "")
    if endpoint and not re.match(r"https?://[^/]", endpoint):
        raise ConfigError(
            f"expected the URL of a service, got {endpoint!r}",
            where=url,
            hint="set AWS_ENDPOINT_URL to a URL such as https://host:9000",
        )
    if environment.get("AWS_ACCESS_KEY_ID"):
        return {option: options[option] for option in _SET_BY if option in options}
    if "access_key_id" in options or any(map(environment.get, _OTHER_KEYS)):
        return options
    if values.keys() & {"sso_session", "sso_start_url", "role_arn", "credential_process"}:
        hint = f'eval "$(aws configure export-credentials --profile {profile} --format env)"'
        raise ConfigError(
            f"expected access keys, the profile {profile} has none", where=url, hint=hint
        )
    if environment.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true":
        raise ConfigError(
            "expected access keys for the bucket, found none", where=url, hint=_KEYS["s3"]
        )
    return options


def _profile_values(environment: Mapping[str, str], profile: str) -> dict[str, str]:
    """Return the settings of a profile in the files of the AWS tools; those with keys win."""
    files = {
        "AWS_CONFIG_FILE": "~/.aws/config",
        "AWS_SHARED_CREDENTIALS_FILE": "~/.aws/credentials",
    }
    values: dict[str, str] = {}
    for variable, default in files.items():
        path = Path(environment.get(variable) or default).expanduser()
        parser = RawConfigParser()
        try:
            parser.read(path, encoding="utf-8")
        except (Error, OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"cannot be read: {str(error).splitlines()[0]}", where=str(path)
            ) from error
        for section in (profile, f"profile {profile}"):
            if parser.has_section(section):
                values |= parser[section]
    return values


def _first_line(error: BaseException) -> str:
    """Return the first line of an error of obstore, without what a server sent, and with the kind
    of failure of a connection.
    """
    text, _, details = str(error).partition("\n\nDebug source:")
    said = text.strip().partition("\n")[0].partition(": <")[0][:300] or type(error).__name__
    kind = re.search(r"HttpError \{\s+kind: (\w+)", details)
    return f"{said} ({kind[1]})" if kind else said
