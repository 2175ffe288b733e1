"""What is installed on this machine: distributions and programs."""

import hashlib
import itertools
import json
import os
import stat

from noderun.files import digest_of, names_in, why
from noderun.logs import MAX_FILES


def installed(python, names):
    """Return ({name: version}, paths searched) of the distributions that an interpreter would find; see `framework_facts`.

    None of them is imported, which takes seconds for a framework: pip creates a folder ``name-version`` for each.
    """
    code = "import json,sys;print(json.dumps([sys.executable]+sys.path))"
    answer = framework_facts(python, code, 60)
    if isinstance(answer, dict):
        return {}, []
    paths = [os.path.realpath(answer[0])] + [path for path in answer[1:] if os.path.isdir(path)]
    by_name = {}
    for path in paths[1:]:
        for entry in names_in(path):
            name, _, version = os.path.splitext(entry)[0].partition("-")
            if entry.endswith((".dist-info", ".egg-info")) and version:
                by_name.setdefault(name.lower().replace(".", "_"), version.split("-py")[0])
    versions = {name: by_name.get(name.lower().replace("-", "_").replace(".", "_")) for name in names}
    return {name: version for name, version in versions.items() if version}, paths


def framework_facts(python, probe, timeout_s):
    """Return the versions that the framework's own interpreter reports, or {"error": …} with what failed.

    ``python`` is the words of the command that starts it, such as ``["conda", "run", "-n", "pt", "python"]``.
    """
    import subprocess

    words = [os.path.expanduser(word) for word in python]
    python = " ".join(words)
    try:
        done = subprocess.run(
            words + ["-c", probe],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            timeout=timeout_s,
        )
    except OSError as error:
        return {"error": "%s: %s" % (python, error.strerror)}
    except subprocess.TimeoutExpired:
        return {"error": "%s did not answer within %g s" % (python, timeout_s)}
    try:
        return json.loads(done.stdout.decode("utf-8", "replace").strip().splitlines()[-1])
    except (ValueError, IndexError):
        last = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:] or ["it printed nothing"]
        return {"error": "%s: %s" % (python, last[0][:400])}


def program_digest(path):
    """Return the SHA-256 of a program: of its file, or of the Python files in a directory. None if neither exists, and
    {"error": …} if a file cannot be read.

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
    """Yield the Python files below a directory, regular files only, relative to it and in order of name."""
    for folder, folders, names in os.walk(path):
        folders.sort()
        for name in sorted(names):
            whole = os.path.join(folder, name)
            if name.endswith(".py") and stat.S_ISREG(os.lstat(whole).st_mode):
                yield os.path.relpath(whole, path)
