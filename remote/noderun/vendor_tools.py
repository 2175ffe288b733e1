"""Reports of other programs and of the kernel's log about this machine."""

import errno
import os
import time

TOLD_S = 10
MOST_TOLD_BYTES = 1 << 22
MOST_LINES = 40


def nameless(folder):
    """Open an unnamed file for writing and reading."""
    path = os.path.join(folder, ".told.%s" % os.urandom(8).hex())
    kept = os.fdopen(
        os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "w+b"
    )
    os.unlink(path)
    return kept


def find_write_error(folder):
    """Return why a folder cannot be written to; empty if it can."""
    try:
        with nameless(folder) as file:
            file.write(b"0")
    except OSError as error:
        return error.strerror
    return ""


def limit_files():
    """Have the kernel end this process if it writes more into a file than will be read."""
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (MOST_TOLD_BYTES, MOST_TOLD_BYTES))


def begin(argv, folder):
    """Start a program, which may be a script of the site around another one, in a session of its
    own, and keep its output in an unnamed file for later; None if there is no such program.
    """
    import subprocess

    try:
        kept = nameless(folder)
    except OSError:
        import tempfile

        kept = tempfile.TemporaryFile()
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=kept,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=limit_files,
        )
    except OSError:
        kept.close()
        return None
    return process, kept, time.monotonic()


def has_ended(pid):
    """Return True if a child has ended, without reaping it."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def collect_output(started, limit_s):
    """Return exit code and text of a started program; the code is None if it exceeded ``limit_s``.

    Processes that it has started end with it. A program that hangs in the kernel does not die when
    it is killed, so nothing waits for that.
    """
    import signal

    if started is None:
        return None
    process, kept, began = started
    while not has_ended(process.pid) and time.monotonic() < began + limit_s:
        time.sleep(0.005)
    is_over = has_ended(process.pid)
    # Before it is reaped: until then no other group can have its number.
    os.killpg(process.pid, signal.SIGKILL)
    code = process.poll() if is_over else None
    with kept:
        kept.seek(0)
        return {"code": code, "text": kept.read(MOST_TOLD_BYTES).decode("utf-8", "replace")}


def kernel_log(word, path="/dev/kmsg"):
    """Return the last lines of the kernel's log that contain a word, each with its age in seconds;
    or why it cannot be read.

    A record is ``priority,number,microseconds since boot,flags;text``
    (Documentation/ABI/testing/dev-kmsg).
    """
    lines, total = [], 0
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        return {"closed": error.strerror}
    try:
        for _ in range(1 << 17):
            try:
                record = os.read(handle, 8192)
            except BlockingIOError:
                break
            except OSError as error:
                if (
                    error.errno != errno.EPIPE
                ):  # EPIPE: the record was overwritten before it was read
                    return {"closed": error.strerror}
                continue
            head, _, text = record.decode("utf-8", "replace").partition(";")
            if not record:
                break
            if word in text:
                total += 1
                lines = lines[1 - MOST_LINES :] + [
                    [time.monotonic() - int(head.split(",")[2]) / 1e6, text.split("\n")[0][:300]]
                ]
    finally:
        os.close(handle)
    return {"lines": lines, "total": total}
