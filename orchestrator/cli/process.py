"""The program `orch` as a process of its own: how it begins and ends."""

from __future__ import annotations

import atexit
import gc
import os
import sys
import threading
from collections.abc import Callable
from io import FileIO, TextIOWrapper
from typing import NoReturn, TextIO

__all__ = ["at_once", "run"]


def run() -> NoReturn:
    """Be `orch`."""
    at_once(_main)


def _main() -> None:
    from orchestrator.cli.main import main

    main()


def at_once(main: Callable[[], object]) -> NoReturn:
    """Run a program and end its process, without what takes time at either end and serves nobody.

    Python would take all modules apart at the end, which is an eighth of a second. The status is the program's own: text that a
    gone reader cannot take is dropped, where Python would end with 120. 1 instead of 0 where text is lost otherwise.
    """
    # What is loaded is there to stay: with Python's own 700, a tenth of each start went into looking for garbage in it.
    gc.set_threshold(50_000)
    # Inventories mean the same whatever plug-ins of pydantic there are, and to look for some is to read about all packages.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    _prepare_streams()
    code = 0
    try:
        main()
    except SystemExit as end:
        if end.code is not None and not isinstance(end.code, int):
            raise
        code = end.code or 0
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    lost = [stream for stream in (sys.stdout, sys.stderr) if not _flushed(stream)]
    os._exit(code or int(bool(lost)))


def _prepare_streams() -> None:
    """Let everything be printed: nowhere where a stream is closed, and as its escape what an encoding lacks."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:  # or a file that is opened later would have this number, and what is written to it
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, TextIOWrapper(FileIO(os.devnull, "w"), encoding="utf-8"))
        elif isinstance(stream, TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):
            stream.reconfigure(errors="backslashreplace")


def _flushed(stream: TextIO) -> bool:
    """Write out what was printed. False where it is lost, other than to a reader that has gone."""
    try:
        stream.flush()
    except BrokenPipeError:
        return True
    except OSError:
        return False
    return True
