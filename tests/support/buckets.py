"""A service like S3, and a web server, each in a process of its own on a loopback address."""

from __future__ import annotations

import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.support import judge
from tests.support.ports import free_port

ADDRESS = "127.0.0.1"
KEYS = {
    "AWS_ACCESS_KEY_ID": "team",
    "AWS_SECRET_ACCESS_KEY": "not-a-secret",
    "AWS_DEFAULT_REGION": "us-east-1",
}


@contextmanager
def service() -> Iterator[dict[str, str]]:
    """Run moto's server; yield the environment by which programs reach it."""
    port = free_port(ADDRESS)
    with _server([sys.executable, "-m", "moto.server", "-H", ADDRESS, "-p", str(port)], port):
        yield {**KEYS, "AWS_ENDPOINT_URL": f"http://{ADDRESS}:{port}"}


def make_bucket(environment: Mapping[str, str], name: str) -> None:
    """Make a bucket of the service that an environment names."""
    url = f"{environment['AWS_ENDPOINT_URL']}/{name}"
    urllib.request.urlopen(urllib.request.Request(url, method="PUT"), timeout=judge.LIMIT_S).close()


@contextmanager
def web_server(folder: Path) -> Iterator[str]:
    """Serve a folder as files; yield its URL."""
    port = free_port(ADDRESS)
    command = [
        sys.executable,
        "-m",
        "http.server",
        "--bind",
        ADDRESS,
        "--directory",
        str(folder),
        str(port),
    ]
    with _server(command, port):
        yield f"http://{ADDRESS}:{port}"


@contextmanager
def _server(command: list[str], port: int) -> Iterator[None]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        judge.wait_for(lambda: _answers(port), 30, lambda: f"{command[2]} does not answer")
        yield
    finally:
        process.kill()
        process.wait()


def _answers(port: int) -> bool:
    try:
        urllib.request.urlopen(f"http://{ADDRESS}:{port}/", timeout=judge.LIMIT_S).close()
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True
