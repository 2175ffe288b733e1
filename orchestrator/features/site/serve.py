"""`orch serve`: the site of a project and its running benches, live, in a browser on this machine."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli import complete
from orchestrator.cli.options import Debug

if TYPE_CHECKING:
    from subprocess import Popen

    from orchestrator.features.site.server import Server
    from orchestrator.features.site.watching import Nodes
    from orchestrator.record import Project

_SITE = "site"
_OTHERS = 3
"""Benches besides those that are being run that the front page names."""
_BETWEEN_S, _SHARE = 10.0, 0.1
"""The least time between two builds of the site, and the most of the time that they may take."""
_LEAVE_S = 5.0


def serve(
    bench: Annotated[
        str,
        typer.Argument(
            metavar="BENCH",
            autocompletion=complete.benches,
            help="Bench whose page the printed address shows; default: all benches.",
        ),
    ] = "",
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Port on 127.0.0.1; 0: any free port.")
    ] = 0,
    open_: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    no_nodes: Annotated[
        bool,
        typer.Option(
            "--no-nodes", help="Contact no node; omit logs and samples of the run in progress."
        ),
    ] = False,
    debug: Debug = False,
) -> None:
    """Show running benches live in a browser, with progress, logs and samples, and all others as
    orch site does.

    Listens on 127.0.0.1 only, and answers only requests with the token in the address that it
    prints. Nothing can be changed through it. Nodes are asked every two seconds while somebody is
    looking. Ctrl-C ends it.
    """
    import secrets
    import webbrowser

    from orchestrator.cli.options import bench_path
    from orchestrator.errors import ConfigError
    from orchestrator.extras import need
    from orchestrator.features.site.live import Live
    from orchestrator.features.site.server import Bugs, Pages, Server
    from orchestrator.features.site.watching import Nodes
    from orchestrator.files import write_atomic
    from orchestrator.record import Project
    from orchestrator.report.html.navigation import address

    project = Project.here(os.environ)
    project.prepare()
    part = ""
    if bench:
        path, runs = bench_path(bench).resolve(), project.runs.resolve()
        if not path.is_relative_to(runs):
            raise ConfigError(
                f"expected a bench of this project, in {runs}",
                where=str(path),
                hint="set ORCH_PROJECT to its own",
            )
        part = "live/" + "/".join(map(address, path.relative_to(runs).parts))
    bugs = Bugs(lambda text: typer.echo(f"orch: {text}", err=True))
    nodes, site = Nodes(project, bugs.tell), Builder(project)
    pages = Pages(
        Live(project.runs, nodes.look if not no_nodes else lambda _: {}),
        site.folder,
        lambda: recent(project),
        site.refresh,
    )
    try:
        server = Server(port, secrets.token_urlsafe(24), pages, bugs)
    except OSError as error:
        raise ConfigError(
            f"expected a free port: {error.strerror}",
            where=f"--port {port}",
            hint="--port 0 takes any free port",
        ) from error
    try:
        need("matplotlib", "charts of the pages")
    except ConfigError as error:
        typer.echo(f"serve: only live pages, no site: {error}", err=True)
    if "ORCH_LAB" in os.environ:
        outside = "outside, orch serve --no-nodes shows everything except logs and samples of the run in progress"
        typer.echo(
            f"serve: in a lab of namespaces, only programs inside reach the address; {outside}",
            err=True,
        )
    typer.echo(server.address + part)
    sys.stdout.flush()
    typer.echo(
        "serve: only for this machine, and only with the token in the address; Ctrl-C ends it",
        err=True,
    )
    redirect = project.root / ".orch" / f"serve-{server.server_address[1]}.html"
    if open_:
        # The words of a browser's command line are in the list of processes, for all users.
        write_atomic(
            redirect,
            f'<meta http-equiv="refresh" content="0;url={server.address}{part}"/>'.encode(),
        )
        if not webbrowser.open(redirect.as_uri()):
            typer.echo("orch: no browser on this machine; open the address above in one", err=True)
    try:
        _serve_until_signal(server, nodes, site)
    finally:
        redirect.unlink(missing_ok=True)


def _serve_until_signal(server: Server, nodes: Nodes, site: Builder) -> None:
    """Serve until a signal, then end everything that was started; a second signal ends the process
    at once.
    """
    from orchestrator.cli.signals import handle_signals

    told = threading.Event()

    def act(number: int, _: object) -> None:
        if told.is_set():
            site.kill()
            os._exit(128 + number)
        told.set()

    with handle_signals(act):
        threading.Thread(
            target=server.serve_forever, name="serve", kwargs={"poll_interval": 0.2}, daemon=True
        ).start()
        site.refresh()
        while not told.wait(
            0.5
        ):  # a wait without a limit would not be ended by a signal on every system
            pass
        server.shutdown()
        server.server_close()
        nodes.close()
        site.close()


def recent(project: Project) -> list[str]:
    """Return the names of the benches that are being run, and of the newest others, the newest
    first.
    """
    from orchestrator.features.site.catalogue import bench_names
    from orchestrator.record import BenchDir, holder

    names = sorted(
        bench_names(project.runs), key=lambda name: name.rpartition("/")[2], reverse=True
    )
    held = [name for name in names if holder(BenchDir(project.runs / name)) is not None]
    return [*held, *[name for name in names if name not in held][:_OTHERS]]


class Builder:
    """Builds the site of a project in ``.orch/site``, by `orch site` in a process of its own, when
    somebody looks at it.
    """

    def __init__(self, project: Project) -> None:
        self.folder = project.root / ".orch" / _SITE
        self._project = project
        self._lock = threading.Lock()
        self._process: Popen[str] | None = None
        self._listener: threading.Thread | None = None
        self._said: deque[str] = deque(maxlen=3)
        self._began_s = self._ended_s = self._took_s = 0.0
        self._is_over = False

    def refresh(self) -> str:
        """Start a build if the last one is some time ago; return the work in progress in words,
        empty without any.
        """
        with self._lock:
            if self._listener and self._listener.is_alive():
                return f"The site is being made: {self._said[-1] if self._said else 'reading the benches'}"
            failed = self._process.returncode if self._process else 0
            rest_s = max(_BETWEEN_S, self._took_s / _SHARE)
            if not self._is_over and (
                not self._ended_s or time.monotonic() > self._ended_s + rest_s
            ):
                self._start()
                return "The site is being made: reading the benches"
            if not failed:
                return ""
            return f"The site could not be made: {' '.join(self._said)}"

    def _start(self) -> None:
        from subprocess import DEVNULL, PIPE, Popen

        argv = [
            sys.executable,
            "-m",
            "orchestrator",
            "site",
            str(self.folder),
            "--home",
            "../",
            "--stop-with-stdin",
        ]
        # Python would also look for modules in the current folder, which is anybody's; so it starts
        # in another one.
        places = [str(Path(__file__).parents[3]), *filter(None, [os.environ.get("PYTHONPATH", "")])]
        environment = os.environ | {
            "ORCH_PROJECT": str(self._project.root),
            "PYTHONPATH": os.pathsep.join(places),
        }
        self._said.clear()
        self._began_s = time.monotonic()
        self._process = Popen(
            argv,
            cwd="/",
            env=environment,
            stdin=PIPE,  # held by this process alone, and closed by the system however it ends
            stdout=DEVNULL,
            stderr=PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        with suppress(OSError):  # a bench may be run by this machine
            os.setpriority(os.PRIO_PROCESS, self._process.pid, 10)
        self._listener = threading.Thread(
            target=self._listen, args=(self._process,), name="site", daemon=True
        )
        self._listener.start()

    def _listen(self, process: Popen[str]) -> None:
        from orchestrator.report.text import one_line

        assert process.stderr
        for line in process.stderr:
            self._said.append(one_line(line.rstrip("\n")).removeprefix("site: "))
        process.wait()
        if process.stdin:
            process.stdin.close()
        self._ended_s = time.monotonic()
        self._took_s = self._ended_s - self._began_s

    def close(self) -> None:
        """End a build that is under way; the site stays as it was."""
        from subprocess import TimeoutExpired

        with self._lock:  # whoever is about to start one has started it, or sees that it is over
            self._is_over = True
        if self._process and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(_LEAVE_S)
            except TimeoutExpired:
                self.kill()

    def kill(self) -> None:
        """Kill a build that is under way, with the processes that it started."""
        import signal

        from orchestrator.procs import signal_group

        if self._process:
            signal_group(self._process, signal.SIGKILL)
