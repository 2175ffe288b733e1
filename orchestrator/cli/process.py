"""The process of the program `orch`: its start and its end."""

from __future__ import annotations

import atexit
import errno
import gc
import os
import sys
from contextlib import suppress
from io import BufferedWriter, FileIO, TextIOWrapper

# An interrupt during the imports above ends in a traceback: longer ones are in functions.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn, TextIO


def run() -> NoReturn:
    """Run `orch` and end the process."""
    at_once(_main)


def _main() -> None:
    from orchestrator.cli.main import main

    main()


def at_once(main: Callable[[], object]) -> NoReturn:
    """Run a program and end its process, without the unnecessary work that Python does at start and
    end.

    At the end Python would tear down all modules, which takes an eighth of a second. The exit
    status is the program's own: text for a reader that has gone is dropped, where Python would exit
    with 120. It is 1 instead of 0 if output is lost otherwise. Ctrl-C before a command has begun
    ends it as during one.
    """
    code = 0
    try:
        _prepare()
        main()
    except KeyboardInterrupt:
        _tell("orch: interrupted\n")
        code = 130
    except SystemExit as end:
        if end.code is not None and not isinstance(end.code, int):
            raise
        code = end.code or 0
    except Exception as error:  # not left to Python, or to the library of the command line, which would show its message
        _report(error)
        code = 1
    import threading

    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    lost = [stream for stream in (sys.stdout, sys.stderr) if not _flush(stream)]
    os._exit(code or int(bool(lost)))


def _prepare() -> None:
    # Loaded modules are never garbage: with Python's default of 700, collections took a tenth of
    # every start.
    gc.set_threshold(50_000)
    # Inventories do not depend on plug-ins of pydantic, and the search for plug-ins reads the
    # metadata of all packages.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    _prepare_streams()
    _keep_secrets()
    sys.unraisablehook = _repeat_interrupt


def _repeat_interrupt(ignored: Any) -> None:
    """Repeat an interrupt that fell into a callback, as of an import, where Python ignores it."""
    from _thread import start_new_thread  # does not wait here, where the next would be ignored too

    if ignored.exc_type is KeyboardInterrupt:
        start_new_thread(_interrupt_soon, ())
    else:
        sys.__unraisablehook__(ignored)


def _interrupt_soon() -> None:
    import time

    time.sleep(0.05)
    os.kill(os.getpid(), 2)


def _keep_secrets() -> None:
    """Keep the values of an inventory out of a core dump, and out of the report of an unexpected
    exception.
    """
    import resource
    import threading

    if sys.argv[1:2] != ["lab"]:  # whose nodes inherit the limit
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    threading.excepthook = lambda args: _report(args.exc_value) if args.exc_value else None


def _report(error: BaseException) -> None:
    from orchestrator.errors import format_exception

    _tell(f"orch: this is a bug in orch. Traceback:\n{format_exception(error)}")


def _tell(text: str) -> None:
    with suppress(OSError):
        print(text, end="", file=sys.stderr, flush=True)


def _prepare_streams() -> None:
    """Make every text printable: a closed stream discards it, characters outside the encoding
    are printed as escapes, and a width of 0 columns, which some terminals tell, is not known.
    """
    if not os.environ.get("COLUMNS", "1").strip("0"):
        del os.environ["COLUMNS"]
    for number in range(3):
        try:
            os.fstat(number)
        except (
            OSError
        ):  # otherwise a file that is opened later gets this number, and receives the output
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, TextIOWrapper(FileIO(os.devnull, "w"), encoding="utf-8"))
        elif isinstance(stream, TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):
            stream.reconfigure(errors="backslashreplace")
    if type(sys.stderr) is TextIOWrapper:
        sys.stderr = TextIOWrapper(
            BufferedWriter(_Messages(2, "w", closefd=False)),
            sys.stderr.encoding,
            sys.stderr.errors,
            line_buffering=True,
        )


class _Messages(FileIO):
    """Standard error, whose reader may go before a bench is over: the rest is then discarded, as
    neither a run nor the end of a job may depend on it.
    """

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if error.errno not in (errno.EPIPE, errno.EIO):
                raise
            return len(data)


def _flush(stream: TextIO) -> bool:
    """Flush a stream. Return False if output is lost for another reason than a reader that has
    gone.
    """
    try:
        stream.flush()
    except BrokenPipeError:
        return True
    except OSError:
        return False
    return True
