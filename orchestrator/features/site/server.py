"""The site of a project and its live pages over HTTP, for the user of this machine: loopback only,
a token, only reading.

Every address begins with the token, as ``http://127.0.0.1:8000/TOKEN/``, so that links between
pages are the same as in files. A cookie would be sent to every other port of this machine, where
another user may listen. A request with another ``Host`` than this machine is refused: its page
comes from a name that was made to point here (DNS rebinding).
"""

from __future__ import annotations

import hmac
import re
import socket
import sys
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, unquote

from orchestrator.errors import OrchError, format_exception
from orchestrator.features.site.clients import ClientLimits, Clients
from orchestrator.features.site.live import Live
from orchestrator.features.site.template import fill
from orchestrator.record.state_file import read_bytes

_HOST = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:[0-9]{1,5})?", re.IGNORECASE)
_MOST_PAGE_BYTES = 256 << 20
_ONLY_READING = "Only GET and HEAD are answered: nothing can be changed here."
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Type": "text/html; charset=utf-8",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class Bugs:
    """Tells of errors that nobody expected, each once: a page is made, and a node asked, again
    every two seconds.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._lock = threading.Lock()
        self._told: set[str] = set()

    def tell(self, error: BaseException) -> None:
        """Report the place of an error, without its message, which may hold a secret."""
        report = format_exception(error)
        with self._lock:
            if report in self._told:
                return
            self._told.add(report)
        self._tell(f"this is a bug in orch. Traceback:\n{report}")


class Pages:
    """The served pages: live pages of the benches of a project, and the files of its site in a
    folder.

    ``recent`` returns the benches that the front page names, running ones first; ``wanted`` is
    called when a page of the site is asked for, and returns the work on it in words.
    """

    def __init__(
        self, live: Live, site: Path, recent: Callable[[], list[str]], refresh: Callable[[], str]
    ) -> None:
        self.live = live
        self.site = site
        self.recent = recent
        self.refresh = refresh

    def page(self, path: str, query: dict[str, list[str]]) -> tuple[HTTPStatus, bytes]:
        """Return status and content of a page; ``path`` is decoded and has no token."""
        if path == "":
            return self._front()
        kind, _, name = path.partition("/")
        if kind == "live" and name:
            return self._live(name, query.get("log", [""])[0])
        if path.startswith("site/"):
            return self._file(name)
        return _refusal(HTTPStatus.NOT_FOUND, "There is no such page.", "../" * path.count("/"))

    def _front(self) -> tuple[HTTPStatus, bytes]:
        benches, errors = [], dict[str, str]()
        for name in self.recent():
            try:
                benches.append(self.live.bench(name))
            except (OrchError, OSError) as error:
                errors[name] = str(error)
        text = fill(
            "serve.html.j2", here="Live", links=(), benches=benches, errors=errors, every_s=5
        )
        return HTTPStatus.OK, text.encode()

    def _live(self, name: str, log: str) -> tuple[HTTPStatus, bytes]:
        above = "../" * (1 + name.count("/"))
        if not _is_bench(self.live.runs, name):
            return _refusal(HTTPStatus.NOT_FOUND, f"There is no bench {name}.", above)
        try:
            bench = self.live.bench(name, log)
        except (OrchError, OSError) as error:
            return _refusal(HTTPStatus.INTERNAL_SERVER_ERROR, str(error), above)
        text = fill("live.html.j2", here="", links=(), bench=bench, above=above, every_s=2)
        return HTTPStatus.OK, text.encode()

    def _file(self, name: str) -> tuple[HTTPStatus, bytes]:
        """Return a page of the site; of a site that is being made, the progress of that."""
        doing = self.refresh()
        above = "../" * (1 + name.count("/"))
        parts = (name or "index.html").split("/")
        if not all(
            part and not part.startswith(".") and "\0" not in part for part in parts
        ) or not parts[-1].endswith(".html"):
            return _refusal(HTTPStatus.NOT_FOUND, "There is no such page.", above)
        try:
            return HTTPStatus.OK, read_bytes(self.site.joinpath(*parts), _MOST_PAGE_BYTES)
        except OSError:
            text = doing or "The site has no such page."
            status = HTTPStatus.SERVICE_UNAVAILABLE if doing else HTTPStatus.NOT_FOUND
            return _refusal(status, text, above, again=bool(doing))


class _Handler(BaseHTTPRequestHandler):
    """Answers GET and HEAD of one connection."""

    server_version = "orch"
    sys_version = ""
    server: Server
    only: ClassVar[str] = "GET, HEAD"

    def do_GET(self) -> None:
        """Answer with a page."""
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        """Answer with the headers of a page."""
        self._answer(with_body=False)

    def _answer(self, *, with_body: bool) -> None:
        self.server.clients.note_request(self.connection)
        status, body, headers = self._page()
        self.server.clients.note_answer(self.connection)
        self.send_response(status)
        for name, value in {**_HEADERS, **headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def _page(self) -> tuple[HTTPStatus, bytes, dict[str, str]]:
        hosts = self.headers.get_all("Host") or []
        if len(hosts) != 1 or not _HOST.fullmatch(hosts[0].strip()):
            return (
                *_refusal(
                    HTTPStatus.FORBIDDEN, "The Host of this request is not this machine.", ""
                ),
                {},
            )
        address, _, question = self.path.partition("?")
        query = parse_qs(question)
        given, slash, path = address.removeprefix("/").partition("/")
        by_query = query.get("token", [""])[0]
        if not given and self.server.is_token(by_query):
            return HTTPStatus.FOUND, b"", {"Location": f"/{self.server.token}/"}
        if not self.server.is_token(given):
            return (
                *_refusal(
                    HTTPStatus.FORBIDDEN,
                    "The address needs the token that orch serve has printed.",
                    "",
                ),
                {},
            )
        if not slash:
            return HTTPStatus.FOUND, b"", {"Location": f"/{self.server.token}/"}
        try:
            return (*self.server.pages.page(unquote(path, errors="surrogateescape"), query), {})
        except (
            Exception
        ) as error:  # a page that cannot be made is no reason to show none of the others
            self.server.bugs.tell(error)
            why = "orch serve cannot make this page; it says why in its terminal."
            return (*_refusal(HTTPStatus.INTERNAL_SERVER_ERROR, why, ""), {})

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer an invalid request, or one that would change something."""
        self.close_connection = True
        words = _ONLY_READING if code == HTTPStatus.NOT_IMPLEMENTED else message
        status = (
            HTTPStatus.METHOD_NOT_ALLOWED
            if code == HTTPStatus.NOT_IMPLEMENTED
            else HTTPStatus(code)
        )
        _, body = _refusal(status, words or status.phrase, "")
        self.send_response(status)
        for name, value in {
            **_HEADERS,
            "Content-Length": str(len(body)),
            "Allow": self.only,
            "Connection": "close",
        }.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing of requests: their addresses have the token."""


class Server(ThreadingHTTPServer):
    """Serves pages on 127.0.0.1 to whoever has the token."""

    daemon_threads = True
    block_on_close = False
    address_family = socket.AF_INET

    def __init__(
        self, port: int, token: str, pages: Pages, bugs: Bugs, limits: ClientLimits | None = None
    ) -> None:
        self.token = token
        self.pages = pages
        self.bugs = bugs
        self.clients = Clients(limits or ClientLimits())
        super().__init__(("127.0.0.1", port), _Handler)

    @property
    def address(self) -> str:
        """The address of the front page, with the token."""
        return f"http://127.0.0.1:{self.server_address[1]}/{self.token}/"

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a connection in a thread of its own, or close it if there is no place for it."""
        if not self.clients.came(request):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self.clients.forget(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer a connection, and give its place back."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.clients.forget(request)

    def service_actions(self) -> None:
        """End connections whose clients are too slow; called between connections, and at each
        `poll_interval`.
        """
        self.clients.end_overdue()

    def is_token(self, given: str) -> bool:
        """Return True for the token; how long that takes says nothing of it."""
        return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), self.token.encode())

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report an error, unless a closed connection caused it."""
        error = sys.exc_info()[1]
        if error is not None and not isinstance(error, ConnectionError | TimeoutError):
            self.bugs.tell(error)


def _is_bench(runs: Path, name: str) -> bool:
    """Return True for the name of a bench, or of one of a stage, below a folder, and for nothing
    that leads out of it.
    """
    parts = name.split("/")
    if len(parts) > 2 or not all(
        part and not part.startswith(".") and "\0" not in part for part in parts
    ):
        return False
    try:
        return (runs.joinpath(*parts) / "bench.json").is_file()
    except OSError:  # a name that is too long
        return False


def _refusal(
    status: HTTPStatus, why: str, above: str, *, again: bool = False
) -> tuple[HTTPStatus, bytes]:
    links = ()
    return status, fill(
        "refusal.html.j2", here="", links=links, why=why, above=above, every_s=2 if again else 0
    ).encode()
