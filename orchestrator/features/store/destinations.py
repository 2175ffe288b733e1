"""Read the name of a store: a directory, a folder of a machine, a URL.

>>> destination("/srv/bench").kind, destination("results").kind, destination("./a:b").kind
('directory', 'directory', 'directory')
>>> destination("me@head:/srv/bench"), destination("head:bench").path
(Destination(kind='machine', title='me@head:/srv/bench', path='/srv/bench', host='head', user='me', port=None), 'bench')
>>> [(there.path, there.host, there.port) for there in map(destination, ("ssh://head:2222/srv/bench", "ssh://head/~/bench"))]
[('/srv/bench', 'head', 2222), ('bench', 'head', None)]
>>> destination("s3://team/bench/")
Destination(kind='bucket', title='s3://team/bench', path='s3://team/bench', host='', user=None, port=None)
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from orchestrator.errors import ConfigError
from orchestrator.features.store.bucket import SCHEMES

# As scp: a colon before any slash names a machine. An address of IPv6 is in brackets.
_SCP = re.compile(
    r"(?:(?P<user>[^@/:\s]+)@)?(?P<host>\[[0-9A-Fa-f:.%\w]+\]|[^@/:\s\[\]]+):(?P<path>.*)",
    re.DOTALL,
)
_FORMS = "a store is named by a directory, user@host:/path, ssh://user@host:port/path, s3://bucket/path (gs://, az://) or https://host/path"
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


@dataclass(frozen=True, slots=True)
class Destination:
    """The place of a store.

    ``kind`` is directory, machine or bucket; ``path`` is the folder there, or the URL.
    """

    kind: str
    title: str
    path: str
    host: str = ""
    user: str | None = None
    port: int | None = None


def destination(text: str) -> Destination:
    """Return the store that a text names. Raises ConfigError if it names none."""
    if scheme := _SCHEME.match(text):
        return _of_url(text, scheme[1].lower())
    machine = _SCP.fullmatch(text)
    if machine and not Path(text).exists():
        host = machine["host"].removeprefix("[").removesuffix("]")
        return Destination("machine", text, _folder(machine["path"], text), host, machine["user"])
    if not text.strip() or (":" in text.partition("/")[0] and not Path(text).exists()):
        raise ConfigError("expected a store", where=text or "STORE", hint=_FORMS)
    try:
        return Destination("directory", text, str(Path(text).expanduser()))
    except RuntimeError:
        message = f"expected a user of this machine, {text.partition('/')[0]} has no home folder"
        raise ConfigError(message, where=text, hint=_FORMS) from None


def _of_url(text: str, scheme: str) -> Destination:
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigError(
            f"expected a URL, got one with {str(error).lower()}", where=text
        ) from None
    if scheme == "file" and not host:
        return Destination("directory", text, unquote(parts.path))
    if scheme == "ssh" and host and not parts.password:
        path = unquote(parts.path)
        return Destination(
            "machine",
            text,
            _folder(path.removeprefix("/") if path[:2] == "/~" else path, text),
            host,
            parts.username,
            port,
        )
    if scheme in SCHEMES and host and not (parts.username or parts.query or parts.fragment):
        title = f"{scheme}{text[len(scheme) :]}".rstrip("/")
        return Destination("bucket", title, title)
    # A key in a URL would be in the history of the shell, and is shown by no message.
    raise ConfigError(
        "expected a store", where=re.sub(r"//[^/@]*@|[?#].*", "//…", text), hint=_FORMS
    )


def _folder(path: str, text: str) -> str:
    """Return a folder of a machine, relative to the home of its user unless it is absolute."""
    folder = re.sub(r"^~(/|$)", "", path).rstrip("/") or ("/" if path.startswith("/") else "")
    if folder in ("", "/") or folder[0] in "~-" or not folder.isprintable():
        hint = "name a folder, as in user@host:/srv/bench or host:bench"
        raise ConfigError("expected the folder of a store on that machine", where=text, hint=hint)
    return folder
