"""The private folder of one command's masters: their sockets, and the helper that ssh starts to ask
for a password.

A watcher, a small shell script in a session of its own, waits for the end of this process. When
that comes without `close`, as after ``kill -9``, it ends the masters that it was told of, each only
while its start time and its user are the same, and removes the folder.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from orchestrator.errors import ConfigError
from orchestrator.files import who_may_replace
from orchestrator.procs import start_program, stat
from orchestrator.transport.openssh import askpass

_PATH_LIMIT = 80
"""A socket's path has 107 bytes, of which ssh uses 17 more while it makes one."""

_WATCH = """
set -f
folder=$1 known=
while read -r line; do known="$known $line"; done
[ -d "$folder" ] && [ ! -L "$folder" ] && [ -O "$folder" ] || exit 0
# A process is still the one that was started if it is of this user and began at the same tick, field 22 of its stat.
signal() {
    for one in $known; do
        pid=${one%:*}
        read -r line 2>/dev/null <"/proc/$pid/stat" || continue
        set -- ${line##*) }
        [ "${20}" = "${one#*:}" ] && [ -O "/proc/$pid" ] && kill -"$number" "$pid" 2>/dev/null
    done
}
number=TERM; signal
rm -rf -- "$folder"
sleep 2
number=KILL; signal
"""


class MasterFolder:
    """A folder of mode 0700 with short paths, for one command."""

    def __init__(self) -> None:
        """Make the folder. Raises ConfigError if there is no place for it."""
        self.path = _new_folder()
        self.helper = self.path / "askpass"
        source = Path(askpass.__file__).resolve()
        self.helper.write_text(
            f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -I -S {shlex.quote(str(source))} "$@"\n'
        )
        self.helper.chmod(0o700)
        self._watcher = start_program(
            ["/bin/sh", "-c", _WATCH, "orch-ssh-watch", str(self.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
        )

    def watch(self, pid: int) -> None:
        """Tell the watcher of a child of this process that is to end with it."""
        process = stat(pid)
        if process:
            assert self._watcher.stdin
            with suppress(BrokenPipeError):  # somebody has ended the watcher
                os.write(self._watcher.stdin.fileno(), f"{pid}:{process.start_ticks}\n".encode())

    def close(self) -> None:
        """Remove the folder, after its masters have ended, and end the watcher."""
        shutil.rmtree(self.path, ignore_errors=True)
        assert self._watcher.stdin
        self._watcher.stdin.close()
        self._watcher.wait()


def _new_folder() -> Path:
    """Make a folder in the user's run-time directory or in /tmp: where programs can be started, and
    paths are short.
    """
    for parent in (os.environ.get("XDG_RUNTIME_DIR", ""), "/tmp", tempfile.gettempdir()):
        if not parent or len(parent) > _PATH_LIMIT - 20:
            continue
        try:
            if not (
                os.statvfs(parent).f_flag & os.ST_NOEXEC or who_may_replace(Path(parent, "new"))
            ):
                return Path(tempfile.mkdtemp(prefix="orch-ssh-", dir=parent))
        except OSError:
            continue
    hint = "set XDG_RUNTIME_DIR to a folder of your own with a short path, on a file system that lets programs be started"
    raise ConfigError(
        "expected a folder for the sockets of ssh, found none that fits in XDG_RUNTIME_DIR and /tmp",
        hint=hint,
    )
