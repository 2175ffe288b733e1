"""SSH servers for machines without sshd, one process per node: real commands, real exit codes and
signals.

`orchestrator.lab.loopback` runs it as ``python -m orchestrator.lab.asyncssh_server LAB_DIRECTORY
NODE…``. It behaves like sshd where that matters to an orchestrator: a session ends when its command
has ended and no process holds its output open, a client that disappears closes the command's pipes
but kills nothing, and streams are bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO, Any

import asyncssh

from orchestrator.lab.identity import session_environment
from orchestrator.lab.state import Lab, LabNode, read
from orchestrator.procs import record_pid

Session = asyncssh.SSHServerProcess[bytes]
_CHUNK = 1 << 17


class _Server(asyncssh.SSHServer):
    """A server that forwards connections to other nodes, as sshd does by default."""

    def connection_requested(
        self, dest_host: str, dest_port: int, orig_host: str, orig_port: int
    ) -> bool:
        return True


async def _session(environment: dict[str, str], session: Session) -> None:
    """Run the client's command in a session of its own, and report how it ended."""
    shell = os.environ.get("SHELL", "/bin/sh")
    argv = [shell, "-c", session.command] if session.command else [shell]
    variables = {
        **environment,
        **{name: value for name, value in session.env.items() if name.startswith(("LANG", "LC_"))},
    }
    child = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0,
                             env=variables, start_new_session=True)  # fmt: skip
    assert child.stdin and child.stdout and child.stderr
    feeding = asyncio.create_task(_feed(session, child.stdin))
    outputs = asyncio.gather(
        _drain(child.stdout, session.stdout), _drain(child.stderr, session.stderr)
    )
    gone = asyncio.create_task(session.channel.wait_closed())
    ending = asyncio.create_task(_wait_for_end(child))
    done = asyncio.gather(ending, outputs)
    futures: list[asyncio.Future[Any]] = [done, gone]
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
    feeding.cancel()
    if not done.done():
        # The client is gone: close its pipes, leave the command running, and only reap it.
        outputs.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await done
        await ending
        return
    _report(session, child.returncode)


def _report(session: Session, code: int) -> None:
    if code >= 0:
        session.exit(code)
    else:
        session.exit_with_signal(signal.Signals(-code).name.removeprefix("SIG"))


async def _wait_for_end(child: subprocess.Popen[bytes]) -> None:
    """Wait for a child without a thread: its process descriptor becomes readable."""
    ended = asyncio.Event()
    descriptor = os.pidfd_open(child.pid)
    loop = asyncio.get_running_loop()
    loop.add_reader(descriptor, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
        child.wait()


async def _feed(session: Session, sink: IO[bytes]) -> None:
    """Pass the client's bytes to the command; the end of input closes its stdin."""
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, sink)
    writer = asyncio.StreamWriter(transport, protocol, None, loop)
    try:
        while data := await session.stdin.read(_CHUNK):
            writer.write(data)
            await writer.drain()
    except (BrokenPipeError, ConnectionError, asyncssh.Error):
        transport.abort()  # one side has closed
    finally:
        transport.close()


async def _drain(source: IO[bytes], sink: asyncssh.SSHWriter[bytes]) -> None:
    """Pass the command's bytes to the client until no process holds the other end of the pipe."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=_CHUNK)
    transport, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), source
    )
    try:
        while data := await reader.read(_CHUNK):
            sink.write(data)
            await sink.drain()
    except (BrokenPipeError, ConnectionError, asyncssh.Error):
        return  # the client is gone; the rest of the output is dropped
    finally:
        transport.close()


async def _serve(lab: Lab, node: LabNode, environment: dict[str, str]) -> None:
    server = await asyncssh.listen(
        node.address,
        node.port,
        server_factory=_Server,
        server_host_keys=[str(node.folder / "host_key")],
        authorized_client_keys=str(lab.directory / "authorized_keys"),
        process_factory=functools.partial(_session, environment),
        sftp_factory=True,
        encoding=None,
        line_editor=False,
        allow_scp=False,
    )
    record_pid(node.folder / "pid", os.getpid())
    await server.wait_closed()


def _environment(lab: Lab, node: LabNode) -> dict[str, str]:
    """Return the environment of a command: the variables that sshd would set, and the lab's own."""
    user = os.environ.get("USER", "user")
    shell = os.environ.get("SHELL", "/bin/sh")
    plain = {
        "USER": user,
        "LOGNAME": user,
        "SHELL": shell,
        "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/games",
    }
    return {**plain, "PWD": str(node.home), **session_environment(lab, node)}


def main() -> None:
    """Fork a server for each of the named nodes, and return when all have ended."""
    lab = read(Path(sys.argv[1]))
    if lab is None:
        sys.exit(f"no lab in {shlex.quote(sys.argv[1])}")
    for name in sys.argv[2:]:
        if os.fork() == 0:
            node = lab.node(name)
            os.chdir(node.home)
            asyncio.run(_serve(lab, node, _environment(lab, node)))
            sys.exit("the server has ended")
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()


if __name__ == "__main__":
    main()
