"""What is served on this machine: to whoever has the token, by the name of this machine, and for
reading alone.
"""

from __future__ import annotations

import http.client
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from orchestrator.features.site.clients import ClientLimits
from orchestrator.features.site.live import Live
from orchestrator.features.site.server import Bugs, Pages, Server
from tests.support import judge
from tests.support.benches import bench
from tests.support.judge import LIMIT_S

TOKEN = "t0ken_-x"
LARGE = 16 << 20
HOSTILE = "&lt;b&gt;label&lt;/b&gt;"
"""The label of a bench, as a page shows it."""


class Asked:
    """A server on a free port, and what it told."""

    def __init__(self, runs: Path, site: Path, limits: ClientLimits | None = None) -> None:
        self.told: list[str] = []
        self.doing = ""
        names = sorted(path.name for path in runs.iterdir()) if runs.exists() else []
        pages = Pages(Live(runs, lambda _: {}), site, lambda: names, lambda: self.doing)
        self.pages = pages
        self.server = Server(0, TOKEN, pages, Bugs(self.told.append), limits)
        self.port = self.server.server_address[1]

    @contextmanager
    def answering(self) -> Iterator[Asked]:
        thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield self
        self.server.shutdown()
        self.server.server_close()
        thread.join()
        assert self.told == []

    def connected(self, sent: bytes = b"") -> socket.socket:
        connection = socket.socket()
        # Some kernels would take in the whole of LARGE for a client that reads nothing.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        connection.settimeout(LIMIT_S)
        connection.connect(("127.0.0.1", self.port))
        connection.sendall(sent)
        return connection

    def ask(
        self, path: str, method: str = "GET", **headers: str
    ) -> tuple[int, str, dict[str, str]]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT_S)
        connection.putrequest(method, path, skip_host="Host" in headers)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        body = answer.read().decode()
        connection.close()
        return answer.status, body, dict(answer.getheaders())


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Asked]:
    runs, site = tmp_path / "runs", tmp_path / "site"
    bench(runs, "a", "2026-10-01T08:00:00Z", [1.0, 1.0], label="<b>label</b>")
    bench(runs, "stage", "2026-10-01T08:00:00Z", [1.0]).path.rename(tmp_path / "moved")
    (runs / "acceptance").mkdir()
    (tmp_path / "moved").rename(runs / "acceptance" / "stage")
    broken = bench(runs, "d", "2026-10-01T08:00:00Z", [1.0])
    (broken.path / "bench.json").write_text("{")
    (site / "benches").mkdir(parents=True)
    (site / "index.html").write_text("<h1>the site</h1>")
    (site / "benches" / "a.html").write_text("the page of a")
    (site / "orch-site.json").write_text("{}")
    (tmp_path / "secret.html").write_text("outside")
    (site / "link.html").symlink_to(tmp_path / "secret.html")
    with Asked(runs, site).answering() as asked:
        yield asked


def test_nothing_is_said_without_the_token(served: Asked) -> None:
    for path in (
        "/",
        "/site/index.html",
        "/t0ken/",
        "/T0KEN_-X/",
        f"/{TOKEN}x/",
        f"/%2e/{TOKEN}/",
        "/?token=t0ken",
        "/%C3%A9/",
    ):
        status, body, _ = served.ask(path)
        assert status == 403 and "needs the token" in body and HOSTILE not in body, path
    assert served.ask(f"/{TOKEN}/")[0] == 200
    status, _, headers = served.ask(f"/?token={TOKEN}")
    assert (status, headers["Location"]) == (302, f"/{TOKEN}/") and "Set-Cookie" not in headers
    assert served.ask(f"/{TOKEN}")[2]["Location"] == f"/{TOKEN}/"


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "127.0.0.1.evil.example",
        "localhost.evil.example:80",
        "",
        "10.11.0.2",
        "[::2]",
    ],
)
def test_a_name_that_was_made_to_point_here_gets_nothing(served: Asked, host: str) -> None:
    status, body, _ = served.ask(f"/{TOKEN}/", Host=host)
    assert status == 403 and "not this machine" in body and HOSTILE not in body


@pytest.mark.parametrize("host", ["127.0.0.1:9", "localhost", "LOCALHOST:8000", "[::1]:80"])
def test_names_of_this_machine_are_answered_at_any_port_as_through_a_tunnel(
    served: Asked, host: str
) -> None:
    assert served.ask(f"/{TOKEN}/", Host=host)[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"])
def test_nothing_can_be_changed(served: Asked, method: str) -> None:
    status, _, headers = served.ask(f"/{TOKEN}/", method)
    assert status == 405 and headers["Allow"] == "GET, HEAD"
    assert served.ask(f"/{TOKEN}/", "HEAD")[:2] == (200, "")


def test_it_listens_on_loopback_alone_and_headers_keep_pages_to_themselves(served: Asked) -> None:
    assert served.server.socket.getsockname()[0] == "127.0.0.1"
    headers = served.ask(f"/{TOKEN}/")[2]
    assert headers["X-Frame-Options"] == "DENY" and headers["Referrer-Policy"] == "no-referrer"
    assert headers["Cache-Control"] == "no-store" and "Access-Control-Allow-Origin" not in headers


@pytest.mark.parametrize(
    "path",
    [
        "../secret.html", "site/../secret.html", "site/..%2fsecret.html", "site/%2e%2e/secret.html", "site/link.html",
        "site/orch-site.json", "site//etc/passwd.html", "site/benches", "site/\\..\\x.html", "site/%00.html", "site/.x.html",
        "site", "live/../a", "live/..", "live/acceptance", "live/acceptance/../a", "live/%2e%2e/%2e%2e/etc", "live/a/a-1",
        "nothing", f"live/{'x' * 3000}", f"site/{'x' * 3000}.html",
    ],
)  # fmt: skip
def test_no_address_leads_out_of_the_site_and_the_benches(served: Asked, path: str) -> None:
    status, body, _ = served.ask(f"/{TOKEN}/{path}")
    assert status == 404 and "outside" not in body


def test_pages_of_the_site_and_of_benches_also_of_stages_are_served(served: Asked) -> None:
    assert served.ask(f"/{TOKEN}/site/")[:2] == (200, "<h1>the site</h1>")
    assert served.ask(f"/{TOKEN}/site/benches/a.html?x=1")[:2] == (200, "the page of a")
    status, body, _ = served.ask(f"/{TOKEN}/live/a")
    assert (
        status == 200 and HOSTILE in body and "<b>" not in body and "2 of 2 runs measured" in body
    )
    assert served.ask(f"/{TOKEN}/live/acceptance/stage?log=node1%2f..%2f..%2fx")[0] == 200


def test_a_damaged_bench_says_why_and_the_front_page_shows_the_others(served: Asked) -> None:
    status, body, _ = served.ask(f"/{TOKEN}/live/d")
    assert status == 500 and "bench.json" in body and "expected" in body
    status, body, _ = served.ask(f"/{TOKEN}/")
    assert status == 200 and HOSTILE in body and "bench.json: expected" in body


def test_a_page_that_is_being_made_says_so_and_comes_by_itself(served: Asked) -> None:
    served.doing = "The site is being made: 3 of 200"
    status, body, _ = served.ask(f"/{TOKEN}/site/trends.html")
    assert status == 503 and "3 of 200" in body and 'http-equiv="refresh"' in body
    assert served.ask(f"/{TOKEN}/site/index.html")[:2] == (200, "<h1>the site</h1>")


def test_a_bug_is_told_once_and_the_other_pages_are_still_served(
    served: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served.pages.live, "bench", lambda *_: 1 / 0)
    answers = [served.ask(f"/{TOKEN}/live/a")[:2] for _ in range(3)]
    assert [status for status, _ in answers] == [500] * 3 and "in its terminal" in answers[0][1]
    assert len(served.told) == 1 and "ZeroDivisionError" in served.told.pop()
    assert served.ask(f"/{TOKEN}/site/")[0] == 200


def test_what_is_no_request_is_refused_and_a_silent_one_holds_up_nobody(served: Asked) -> None:
    with socket.create_connection(("127.0.0.1", served.port), timeout=LIMIT_S) as silent:
        with socket.create_connection(("127.0.0.1", served.port), timeout=LIMIT_S) as odd:
            odd.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n" + b"X: y\r\n" * 200 + b"\r\n")
            assert b" 431 " in odd.recv(4096).split(b"\r\n")[0]
        assert served.ask(f"/{TOKEN}/")[0] == 200
        silent.close()


@pytest.mark.parametrize(
    "target",
    ["http://[evil]/", "http://[", "//[::x]/?token=x", "/?" + "&" * 3000, "?", "\xff[", "*"],
)
def test_an_address_that_is_none_is_refused_and_told_to_nobody(served: Asked, target: str) -> None:
    with socket.create_connection(("127.0.0.1", served.port), timeout=LIMIT_S) as odd:
        odd.sendall(f"GET {target} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode("latin-1"))
        assert b" 403 " in odd.recv(4096).split(b"\r\n")[0]


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A site with a page that no buffer of a socket holds."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "large.html").write_bytes(b"x" * LARGE)
    (tmp_path / "site" / "index.html").write_text("the site")
    return tmp_path


@pytest.mark.parametrize("is_asking", [False, True], ids=["silent", "never reading"])
def test_who_sends_and_reads_at_once_is_served_while_others_hold_all_places(
    large: Path, is_asking: bool
) -> None:
    limits = ClientLimits(most=8)
    with Asked(large, large / "site", limits).answering() as served, ExitStack() as open_:
        for _ in range(limits.most):
            slow = open_.enter_context(
                served.connected(request("site/large.html") if is_asking else b"")
            )
            assert not is_asking or slow.recv(1, socket.MSG_PEEK) == b"H"  # the answer has begun
        judge.wait_for(
            lambda: len(served.server.clients) == limits.most, 20, "not all places were taken"
        )
        for _ in range(3):
            assert served.ask(f"/{TOKEN}/site/")[:2] == (200, "the site")
            # One of them gave its place up, and the others keep theirs.
            judge.wait_for(
                lambda: len(served.server.clients) == limits.most - 1,
                20,
                "places were not kept or not given back",
            )


def test_a_client_that_sends_a_byte_now_and_then_is_dropped(large: Path) -> None:
    with (
        Asked(large, large / "site", ClientLimits(request_s=0.5)).answering() as served,
        served.connected() as slow,
    ):
        began = time.monotonic()

        def is_dropped() -> bool:
            try:
                slow.sendall(b"G")
            except ConnectionError:
                return True
            return False

        judge.wait_for(is_dropped, 20, "it may send for ever")
        assert time.monotonic() - began >= 0.5 and len(served.server.clients) == 0


def test_a_client_that_never_reads_is_dropped_and_one_that_reads_gets_all(large: Path) -> None:
    with Asked(large, large / "site", ClientLimits(answer_s=0.5)).answering() as served:
        with served.connected(request("site/large.html")) as slow:
            assert slow.recv(1, socket.MSG_PEEK) == b"H"
            judge.wait_for(
                lambda: len(served.server.clients) == 0, 20, "it keeps its place for ever"
            )
            assert len(rest_of(slow)) < LARGE
        with served.connected(request("site/large.html")) as good:
            assert len(rest_of(good).partition(b"\r\n\r\n")[2]) == LARGE


def test_a_page_that_is_never_made_ends_with_its_connection_and_other_clients_are_served(
    large: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = threading.Event()
    with Asked(
        large, large / "site", ClientLimits(most=2, request_s=60, total_s=0.5)
    ).answering() as served:
        monkeypatch.setattr(served.pages, "recent", lambda: [] if made.wait(LIMIT_S) else [])
        with served.connected(request("")) as stuck:
            assert (
                rest_of(stuck) == b"" and len(served.server.clients) == 1
            )  # its thread is still there
            assert served.ask(f"/{TOKEN}/site/")[:2] == (200, "the site")
        made.set()
        judge.wait_for(lambda: len(served.server.clients) == 0, 20, "its place was not given back")


def request(page: str) -> bytes:
    return f"GET /{TOKEN}/{page} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


def rest_of(connection: socket.socket) -> bytes:
    """Return what comes until the other end closes or resets the connection."""
    parts = list[bytes]()
    try:
        while part := connection.recv(1 << 16):
            parts.append(part)
    except ConnectionError:
        pass
    return b"".join(parts)
