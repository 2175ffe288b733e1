"""Atomic writes of files, folders for them, and the errors when a place cannot be written."""

from __future__ import annotations

import errno
import fcntl
import grp
import os
import pwd
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from orchestrator.errors import ConfigError, DataError, OrchError

_PART = re.compile(r"\.[0-9a-f]{16}\.part")
_MOST_LINKS = 40
"""More links than this the kernel does not follow either."""
PROJECT_HINT = "make it a writable folder, or set ORCH_PROJECT to one"
"""The hint when a file of a project cannot be written."""


def write_atomic(
    path: Path,
    data: bytes,
    mode: int = 0o600,
    *,
    hint: str = "",
    is_input: bool = False,
    is_new: bool = False,
) -> None:
    """Write a file completely or not at all: write and flush a temporary file in its folder, rename
    it, flush the folder.

    The last two parts of the path may not be links, and with ``is_new`` the file may not exist.
    Raises OrchError as `failures` does.
    """
    with failures(path, needed=len(data), hint=hint, is_input=is_input):
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            temporary, file = _temporary(folder)
            try:
                try:
                    os.fchmod(file, mode)
                    write_all(file, data)
                    os.fsync(file)
                finally:
                    os.close(file)
                if is_new:
                    os.link(temporary, path.name, src_dir_fd=folder, dst_dir_fd=folder)
                    os.unlink(temporary, dir_fd=folder)
                else:
                    os.rename(temporary, path.name, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                with suppress(FileNotFoundError):
                    os.unlink(temporary, dir_fd=folder)
                raise
            os.fsync(folder)
        finally:
            os.close(folder)


def _temporary(folder: int) -> tuple[str, int]:
    """Return name and handle of a new file in an open folder, locked for as long as it is open:
    `remove_parts` spares it.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    while True:
        name = f".{secrets.token_hex(8)}.part"
        file = os.open(name, flags, 0o600, dir_fd=folder)
        with suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_EX)
        if os.fstat(file).st_nlink:
            return name, file
        os.close(file)  # removed between the two calls


def remove_parts(folder: Path) -> None:
    """Remove temporary files of `write_atomic` below a folder whose writer is gone, killed before
    it could rename them.
    """
    for path in folder.rglob(".*.part"):
        if not _PART.fullmatch(path.name):
            continue
        with suppress(OSError):
            file = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
            finally:
                os.close(file)


def write_all(file: int, data: bytes) -> None:
    """Write all of ``data``, in as many calls as the system needs."""
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


def is_file(path: Path) -> bool:
    """Return whether the file exists.

    False also for an impossible path: too long, or with a NUL.
    """
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def who_may_replace(path: Path, *, is_private: bool = False) -> str:
    """Return why users other than this one and root may replace a path; empty if none may.

    In a sticky folder such as /tmp, users may only replace their own files. With ``is_private`` the
    path's own folder may not be sticky either, because its files may be gone tomorrow.
    """
    for place in _ways_to(path.absolute()):
        for folder in place.parents:
            status = os.lstat(folder)
            if status.st_uid not in (0, os.getuid()):
                return f"{folder} belongs to another user"
            if stat.S_ISLNK(status.st_mode) or not _is_shared(status):
                continue
            if not status.st_mode & stat.S_ISVTX or is_private and folder == place.parent:
                return f"others may write to {folder}"
    return ""


def _ways_to(path: Path) -> list[Path]:
    """Return a path, and what it becomes as the links above it are followed one after the other:
    each folder that decides where the path leads is above one of these.
    """
    ways = [path]
    while len(ways) <= _MOST_LINKS:
        links = [folder for folder in ways[-1].parents if folder.is_symlink()]
        if not links:
            break
        target = links[-1].parent / links[-1].readlink() / ways[-1].relative_to(links[-1])
        ways.append(Path(os.path.normpath(target)))
    return ways


def _is_shared(status: os.stat_result) -> bool:
    """Return True if others may write to a folder. A group that has no member but this user is
    nobody else.
    """
    if status.st_mode & stat.S_IWOTH or not status.st_mode & stat.S_IWGRP:
        return bool(status.st_mode & stat.S_IWOTH)
    try:
        user, group = pwd.getpwuid(os.getuid()).pw_name, grp.getgrgid(status.st_gid)
    except KeyError:
        return True
    return group.gr_name != user or bool(set(group.gr_mem) - {user})


def make_folder(path: Path, hint: str = "", *, is_input: bool = False) -> None:
    """Make a folder with access for this user only, and the folders above it, unless it exists.

    Raises OrchError as `failures` does, with ``hint`` and the path that is not a folder or cannot
    be written.
    """
    with failures(path, hint=hint, is_input=is_input):
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            parts = (path, *path.parents)
            blocking = next(
                (part for part in parts if os.path.lexists(part) and not part.is_dir()), path
            )
            raise NotADirectoryError(errno.ENOTDIR, "it is not a folder", str(blocking)) from None


def sync_directory(path: Path) -> None:
    """Flush a folder, so that its list of files survives a crash."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@contextmanager
def failures(
    path: Path, needed: int = 0, hint: str = "", *, is_input: bool = False
) -> Iterator[None]:
    """Convert an OSError from writing ``path`` into an OrchError; ``hint`` is the remedy when the
    place cannot be written.

    Raises DataError storage_full or storage_failed. With ``is_input`` the user has just named the
    place and no host has been contacted yet, so a place that cannot be written is a ConfigError
    (unsafe_path).
    """
    try:
        yield
    except OSError as error:
        raise _failure(path, error, needed, hint, is_input=is_input) from error


def _failure(path: Path, error: OSError, needed: int, hint: str, *, is_input: bool) -> OrchError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        free = "unknown"
        with suppress(OSError):
            system = os.statvfs(path.parent)
            free = str(system.f_bavail * system.f_frsize)
        sizes = f"{needed} bytes needed, {free} free" if needed else f"{free} free"
        message = f"no space on the controller's disk: {sizes}"
        return DataError(
            message,
            kind="storage_full",
            where=str(path),
            hint="free some space and repeat; nothing is lost",
        )
    if isinstance(error, FileExistsError):
        return ConfigError(
            "already exists, and results are never overwritten", kind="unsafe_path", where=str(path)
        )
    # A name without a folder is the temporary name in the folder of the path.
    where = error.filename if str(error.filename).startswith("/") else path
    message = f"cannot be written: {error.strerror or error}"
    if is_input:
        return ConfigError(message, kind="unsafe_path", where=str(where), hint=hint)
    hint = (
        hint
        or "check mount, dmesg and the permissions of this folder on the controller; orch resume continues the bench"
    )
    return DataError(message, kind="storage_failed", where=str(where), hint=hint)
