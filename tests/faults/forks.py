"""Fork ranks of `injected/own_training.py` from a process that has imported PyTorch once: an import
takes longer than a trial.

    python -m tests.faults.forks SOCKET

A launch script connects (`ask`), and says where and with which environment and arguments its rank
is to run. The rank has the wrapper of every other rank. It is ended when the connection ends, and
its exit code is sent when it ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import signal
import socket
import sys
import threading
from pathlib import Path

HERE = Path(__file__).parent
REMOTE = HERE.parents[1] / "remote"
TRAINERS = sorted((REMOTE / "trainers").glob("[a-z]*"))
ASK = """\
import json, os, socket, sys
line = socket.socket(socket.AF_UNIX)
line.connect(sys.argv[1])
line.sendall(json.dumps([os.getcwd(), dict(os.environ), sys.argv[2:]]).encode() + b"\\n")
sys.exit(int(line.makefile().readline() or 1))
"""
"""Started by a launch script, with the socket and the arguments of the training program."""


def serve(path: str) -> None:
    """Fork a rank for each connection."""
    sys.path[:0] = [*map(str, TRAINERS), str(REMOTE), str(HERE / "injected")]
    import own_training  # noqa: F401 - imported here, once for all ranks
    import torch

    torch.set_num_threads(1)
    import torch._dynamo  # noqa: F401 - DistributedDataParallel does so in each rank

    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(64)
    print("ready", flush=True)
    while True:
        line, _ = listener.accept()
        folder, environment, words = json.loads(line.makefile().readline())
        pid = os.fork()
        if pid == 0:
            listener.close()
            line.close()
            _become(folder, environment, words)
        threading.Thread(target=_follow, args=(line, pid), daemon=True).start()


def _follow(line: socket.socket, pid: int) -> None:
    """Send how a rank ended; end it where nobody waits for that any more."""
    ended = threading.Event()

    def end_with_its_asker() -> None:
        with contextlib.suppress(OSError):
            line.recv(1)
        if not ended.is_set():
            with contextlib.suppress(OSError):
                os.killpg(pid, signal.SIGKILL)

    threading.Thread(target=end_with_its_asker, daemon=True).start()
    status = os.waitpid(pid, 0)[1]
    ended.set()
    with contextlib.suppress(OSError):
        line.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))
        line.shutdown(socket.SHUT_RDWR)
    line.close()


def _become(folder: str, environment: dict[str, str], words: list[str]) -> None:
    """Be the wrapper of a rank, whose program runs in the fork that would execute it."""
    code = 1
    try:
        os.setsid()
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        from noderun import rank

        os.execvp = _train  # type: ignore[assignment]
        answer = rank.rank_main(words)
        code = answer if isinstance(answer, int) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
    finally:
        os._exit(code)


def _train(_program: str, words: list[str]) -> None:
    code = 1
    try:
        sys.argv = ["own_training.py", *words]
        runpy.run_module("own_training", run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    serve(sys.argv[1])
