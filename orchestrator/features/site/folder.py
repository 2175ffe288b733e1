"""The folder of a site, which is replaced as a whole: a reader sees the old site or the new one,
and never half of one.

A site is built in a folder beside it, in which unchanged pages are hard links; then the two change
places, by one call of the system where that is possible (``renameat2`` with ``RENAME_EXCHANGE``,
Linux 3.15), by two renames elsewhere.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from orchestrator.errors import ConfigError, RunError
from orchestrator.files import failures

STATE = "orch-site.json"
"""What makes a folder a site: the state of its last build."""
PAGES = ("index.html", "trends.html", "compare.html", "nodes.html", "acceptances.html")
_FOLDERS = ("benches", "compare", "acceptances")
_OWN = {STATE, *PAGES, *_FOLDERS}
"""What a site has in its folder. Everything else there is somebody's own, and stays."""
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
_NO_EXCHANGE = (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTSUP)


def check_target(target: Path) -> Path:
    """Return the real path of a site's folder, which may not exist yet. Raises ConfigError for any
    other folder.
    """
    path = target.resolve()
    blocking = next(
        (part for part in path.parents if os.path.lexists(part) and not part.is_dir()), None
    )
    if blocking:
        raise ConfigError(
            f"expected folders above it, {blocking} is none", kind="unsafe_path", where=str(target)
        )
    if not os.path.lexists(path):
        return path
    if not path.is_dir():
        raise ConfigError(
            "expected a folder or an unused name, got a file", kind="unsafe_path", where=str(target)
        )
    if os.path.ismount(path):
        message = "expected a folder that can be replaced, got the mount point of a file system"
        raise ConfigError(
            message,
            kind="unsafe_path",
            where=str(target),
            hint=f"name a folder in it: {target / 'site'}",
        )
    names = sorted(entry.name for entry in os.scandir(path))
    if names and STATE not in names:
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        message = f"expected an empty folder or a site of orch ({STATE}), found {shown}"
        raise ConfigError(
            message, kind="unsafe_path", where=str(target), hint="name another folder"
        )
    return path


@contextmanager
def staging(target: Path) -> Iterator[Path]:
    """Yield an empty folder beside a site, and put it in the site's place at the end, with the
    files in the old one that are somebody's own. After an error the old site is as it was.

    Raises RunError if another process is building a site beside it, and OrchError for a place that
    cannot be written.
    """
    with failures(target.parent, is_input=True):
        target.parent.mkdir(parents=True, exist_ok=True)
        new, old = target.with_name(f".{target.name}.orch-site"), _aside(target)
        with _alone(target.parent):
            if old.is_dir() and not os.path.lexists(
                target
            ):  # a build was killed between the two renames
                old.rename(target)
            _remove(new)
            new.mkdir()
            try:
                for name in _FOLDERS:
                    (new / name).mkdir()
                yield new
                _carry_over(target, new)
                _sync(new)
                _replace(target, new)
            finally:
                _remove(new)


def keep_page(old: Path, new: Path) -> bool:
    """Take a page over from the old site. Return False if it is missing, or no regular file."""
    if old.is_symlink() or not old.is_file():
        return False
    _link(old, new)
    return True


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            message = "another orch site is building in this folder"
            raise RunError(
                message,
                kind="run_in_use",
                where=str(folder),
                hint="repeat the command when the other one has finished",
            ) from None
        except OSError:  # a file system without locks of folders
            pass
        yield
    finally:
        os.close(handle)


def _carry_over(old: Path, new: Path) -> None:
    """Take over files in the old folder that are not of the site, such as a ``.git`` or
    ``.htaccess``.
    """
    if not old.is_dir():
        return
    shutil.copymode(old, new)
    for entry in os.scandir(old):
        if entry.name in _OWN:
            continue
        if entry.is_dir(follow_symlinks=False):
            shutil.copytree(entry.path, new / entry.name, symlinks=True, copy_function=_link_name)
        else:
            _link(Path(entry.path), new / entry.name)


def _link_name(old: str, new: str) -> None:
    _link(Path(old), Path(new))


def _link(old: Path, new: Path) -> None:
    try:
        os.link(old, new, follow_symlinks=False)
    except OSError:  # another file system is mounted there, or this one has no hard links
        shutil.copy2(old, new, follow_symlinks=False)


def _sync(folder: Path) -> None:
    """Flush every file that was written, so that a crash after the replacement does not leave empty
    pages.
    """
    for path in (
        *folder.glob("*.*"),
        *(page for name in _FOLDERS for page in (folder / name).iterdir()),
    ):
        if path.is_file() and not path.is_symlink() and path.stat().st_nlink == 1:
            with path.open("rb") as file:
                os.fsync(file.fileno())


def _replace(target: Path, new: Path) -> None:
    if not os.path.lexists(target):
        new.rename(target)
        return
    if _exchange(target, new):
        return
    old = _aside(target)
    _remove(old)
    target.rename(old)
    new.rename(target)
    _remove(old)


def _aside(target: Path) -> Path:
    return target.with_name(f".{target.name}.orch-site-old")


def _exchange(first: Path, second: Path) -> bool:
    """Let two folders change places in one step. Return False if this system or file system cannot
    do that.
    """
    import ctypes

    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    if rename(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in _NO_EXCHANGE:
        return False
    raise OSError(number, os.strerror(number), str(first))


def _remove(folder: Path) -> None:
    with suppress(FileNotFoundError):
        shutil.rmtree(folder)
