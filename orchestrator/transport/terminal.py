"""Questions at the controlling terminal, whose answers are not shown: `ask` and `show`."""

from __future__ import annotations

import os
import signal
import termios

_TERMINAL = "/dev/tty"
_ENTER, _ERASE, _INTERRUPT, _END, _CLEAR = b"\r\n", b"\x7f\x08", b"\x03", b"\x04", b"\x15"


class NoTerminal(Exception):  # noqa: N818  # the caller decides what it means
    """This process has no controlling terminal."""


class Interrupted(Exception):  # noqa: N818
    """Ctrl-C was pressed at a question; this process has been sent SIGINT."""


def is_there() -> bool:
    """Return True if this process has a controlling terminal."""
    try:
        os.close(_open())
    except NoTerminal:
        return False
    return True


def ask(prompt: str) -> str | None:
    """Show ``prompt``, and return the line that is typed, without showing it; None for Ctrl-D.

    Ctrl-C interrupts this process as usual, once the terminal is as it was. Raises Interrupted
    then, and NoTerminal.
    """
    handle = _open()
    try:
        before = termios.tcgetattr(handle)
        silent = list(before)
        silent[3] &= ~(termios.ECHO | termios.ICANON | termios.ISIG)
        termios.tcsetattr(handle, termios.TCSAFLUSH, silent)
        try:
            os.write(handle, prompt.encode("utf-8", "replace"))
            line, end = _line(handle)
        finally:
            termios.tcsetattr(handle, termios.TCSAFLUSH, before)
            os.write(handle, b"\n")
    except termios.error as error:
        raise NoTerminal from error
    finally:
        os.close(handle)
    if end == _INTERRUPT:
        os.kill(os.getpid(), signal.SIGINT)
        raise Interrupted
    if end not in _ENTER:
        return None
    return line.decode("utf-8", "surrogateescape")


def show(text: str) -> None:
    """Show a line. Raises NoTerminal."""
    handle = _open()
    try:
        os.write(handle, text.encode("utf-8", "replace") + b"\n")
    finally:
        os.close(handle)


def _open() -> int:
    try:
        return os.open(_TERMINAL, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as error:
        raise NoTerminal from error


def _line(handle: int) -> tuple[bytes, bytes]:
    """Return the typed line, and the key that ended it."""
    line = bytearray()
    while True:
        key = os.read(handle, 1)
        if not key or key in (_INTERRUPT, _END) or key in _ENTER:
            return bytes(line), key or _END
        if key in _ERASE:
            while line and line[-1] & 0xC0 == 0x80:  # the later bytes of one character
                line.pop()
            del line[-1:]
        elif key == _CLEAR:
            line.clear()
        else:
            line += key
