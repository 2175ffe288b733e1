"""Distributions and programs installed on this machine."""

import hashlib
import itertools
import json
import os
import re
import select
import signal
import stat
import time

from noderun.files import CHUNK, digest_of, why
from noderun.logs import MAX_FILES
from noderun.sysfs import names_in
from noderun.vendor_tools import has_ended

HEAR_S = 0.01
MOST_HEARD_BYTES = 1 << 20


def find_distributions(python, names, environment):
    """Return ({name: version}, paths searched) of the distributions that an interpreter would find;
    see `framework_facts`.

    None of them is imported, which takes seconds for a framework: pip creates a folder
    ``name-version`` for each.
    """
    code = "import json,sys;print(json.dumps([sys.executable]+sys.path))"
    answer = framework_facts(python, code, 60, environment)
    if isinstance(answer, dict):
        return {}, []
    paths = [os.path.realpath(answer[0])] + [path for path in answer[1:] if os.path.isdir(path)]
    by_name = {}
    for path in paths[1:]:
        for entry in names_in(path):
            name, _, version = os.path.splitext(entry)[0].partition("-")
            if entry.endswith((".dist-info", ".egg-info")) and version:
                by_name.setdefault(name.lower().replace(".", "_"), version.split("-py")[0])
    versions = {
        name: by_name.get(name.lower().replace("-", "_").replace(".", "_")) for name in names
    }
    return {name: version for name, version in versions.items() if version}, paths


def framework_facts(python, probe, timeout_s, environment):
    """Return the versions that the framework's own interpreter reports, or {"error": …} with what
    failed.

    ``python`` is the words of the command that starts it, such as ``["conda", "run", "-n", "pt",
    "python"]``, and ``environment`` the shell text that a run executes first: modules and variables
    decide which interpreter that is.
    """
    words = [os.path.expanduser(word) for word in python]
    python = " ".join(words)
    try:
        _, out, err = in_environment(environment, words + ["-c", probe], timeout_s, spares=False)
    except TimeoutError:
        return {"error": "%s did not answer within %g s" % (python, timeout_s)}
    except OSError as error:
        return {"error": "/bin/bash: %s" % error.strerror}
    try:
        return json.loads(out.strip().splitlines()[-1])
    except (ValueError, IndexError):
        lines = err.strip().splitlines() or ["it printed nothing"]
        before, last = [
            re.sub(r"^/dev/fd/\d+: line \d+: (exec: )?", "", line)[:400]
            for line in (["", ""] + lines)[-2:]
        ]
        if last.startswith("setup: "):
            return {"error": "%s; before it: %s" % (last, before) if before else last}
        return {"error": last if last.startswith(words[0] + ": ") else "%s: %s" % (python, last)}


def in_environment(environment, argv, timeout_s, text=b"", cwd=None, *, spares=True):
    """Return (exit code, standard output, standard error) of a program that bash starts after a
    shell text; ``text`` is its standard input. Of each output the last MiB is kept.

    The text may hold secrets, so it goes through a pipe: arguments can be read by every user of the
    machine, and standard input by the commands of the text. What runs on in the background is not
    waited for, and unless it ``spares`` that, it is killed. Raises OSError without bash,
    TimeoutError.
    """
    import subprocess

    script, end = os.pipe()
    try:
        process = subprocess.Popen(
            ["/bin/bash", "/dev/fd/%d" % script] + argv,
            stdin=subprocess.PIPE if text else subprocess.DEVNULL,
            bufsize=0,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=[script],
            cwd=cwd,
            start_new_session=True,
        )
    except OSError:
        os.close(end)
        raise
    finally:
        os.close(script)
    try:
        with os.fdopen(end, "wb") as pipe:
            pipe.write(environment.encode() + b'exec "$@"\n')
    except BrokenPipeError:  # a line of the text has ended the shell
        pass
    streams = {process.stdout.fileno(): b"", process.stderr.fileno(): b""}
    is_whole = False
    try:
        converse(process, text, streams, time.monotonic() + timeout_s)
        is_whole = True
    finally:
        if not (is_whole and spares):
            os.killpg(process.pid, signal.SIGKILL)
        code = process.wait()
        for stream in filter(None, (process.stdin, process.stdout, process.stderr)):
            stream.close()
    return (code,) + tuple(stream.decode("utf-8", "replace") for stream in streams.values())


def converse(process, text, streams, deadline):
    """Give a child a text and add to each stream, by its handle, what it prints until it has ended.
    Raises TimeoutError.
    """
    opened = list(streams)
    while True:
        is_over = has_ended(process.pid)
        writable = [process.stdin] if text else []
        ready, free, _ = select.select(opened, writable, [], 0 if is_over else HEAR_S)
        if is_over and not ready:
            return
        if free:
            try:
                text = text[os.write(process.stdin.fileno(), text[: select.PIPE_BUF]) :]
            except BrokenPipeError:  # it reads no more
                text = b""
            if not text:
                process.stdin.close()
        for handle in ready:
            piece = os.read(handle, CHUNK)
            if not piece:
                opened.remove(handle)
            streams[handle] = (streams[handle] + piece)[-MOST_HEARD_BYTES:]
        if time.monotonic() > deadline:
            raise TimeoutError


def program_digest(path):
    """Return the SHA-256 of a program: of its file, or of the Python files in a directory. None if
    neither exists, and {"error": …} if a file cannot be read.

    In a directory the first MAX_FILES files by name count, the same ones on every node.
    """
    try:
        if not os.path.isdir(path):
            return digest_of(path) if os.path.isfile(path) else None
        whole = hashlib.sha256()
        for name in itertools.islice(python_files(path), MAX_FILES):
            whole.update(os.fsencode("%s %s\n" % (name, digest_of(os.path.join(path, name)))))
        return whole.hexdigest()
    except OSError as error:
        return {"error": why(error, path)}


def python_files(path):
    """Yield the Python files below a directory, regular files only, relative to it and in order of
    name.
    """
    for folder, folders, names in os.walk(path):
        folders.sort()
        for name in sorted(names):
            whole = os.path.join(folder, name)
            if name.endswith(".py") and stat.S_ISREG(os.lstat(whole).st_mode):
                yield os.path.relpath(whole, path)
