"""Files received from the controller, and logs sent to it."""

import contextlib
import errno
import fcntl
import glob
import hashlib
import json
import os
import signal
import sys
import time
import zlib

from noderun.channel import IDLE_S, receive_blocks, reply, write_bytes
from noderun.files import (
    Refused,
    digest_of,
    inside,
    open_regular,
    own_directory,
    read_slice,
    root_directory,
    run_directory,
    unwritten,
)
from noderun.logs import MAX_FILES, in_order, log_files, odd_files
from noderun.processes import boot_id
from noderun.records import write_whole
from noderun.runs import supervisor_lives, sweep

PIECE = 1 << 20
LONG_PIECE = 1 << 23
TRIAL = {
    True: 2 * PIECE,
    False: LONG_PIECE,
}  # bytes to send compressed or not before the two ways are compared
PIPE_BYTES = 1 << 18
REPLACED = 10  # times that a file is read again because it was replaced meanwhile
F_SETPIPE_SZ = 1031  # in fcntl from Python 3.10 on


def op_put(request):
    """Receive files. Report which are missing, by digest; read those; check, flush and rename each
    into place.
    """
    root = root_directory(request["root"])
    missing = []
    for index, item in enumerate(request["files"]):
        path = inside(root, item["path"])
        with contextlib.suppress(OSError):
            if digest_of(path) == item["sha256"]:
                continue
        if not (item.get("elsewhere") and copy_file(root, item, path)):
            missing.append(index)
    reply(root=root, missing=missing)
    for index in missing:
        item = request["files"][index]
        path = inside(root, item["path"])
        directory = os.path.dirname(path)
        try:
            os.makedirs(directory, 0o700, exist_ok=True)
            write_whole(path, intact(item, path), item["mode"])
        except OSError as error:
            raise unwritten(error, path, root, item["bytes"])
        if digest_on_disk(path) != item["sha256"]:
            with contextlib.suppress(
                FileNotFoundError
            ):  # another node that shares the directory has removed it too
                os.unlink(path)
            raise digest_error(item, path)
    reply(done=True)


def digest_on_disk(path):
    """Return the digest of a file that another node may replace with an equal one while it is read:
    NFS then calls the file that was opened stale."""
    for _ in range(REPLACED):
        try:
            return digest_of(path)
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
    return digest_of(path)


def intact(item, path):
    """Yield a file's bytes as they arrive. Refuses altered ones before the file gets its name:
    another node that shares the directory may already use a good file of that name."""
    digest = hashlib.sha256()
    yield from receive_blocks(item["bytes"], digest)
    if digest.hexdigest() != item["sha256"]:
        raise digest_error(item, path)


def digest_error(item, path):
    """Return the refusal of a file whose bytes are not those that were announced."""
    return Refused("transfer_corrupt", "%s: expected SHA-256 %s" % (path, item["sha256"]))


def copy_file(root, item, path):
    """Copy a file that another set on this node also contains, and return True if one did: sets of
    payload files share most.
    """
    for source in glob.glob(os.path.join(glob.escape(root), item["elsewhere"])):
        with contextlib.suppress(OSError):  # whatever the reason, the bytes can still be sent
            if not os.path.isfile(source) or os.path.getsize(source) != item["bytes"]:
                continue
            with open(source, "rb") as file:
                content = file.read()
            if hashlib.sha256(content).hexdigest() == item["sha256"]:
                os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
                write_whole(path, [content], item["mode"])
                return True
    return False


def deflate(data):
    """Compress bytes into a raw stream of RFC 1951, which has no checksum: logs have digests."""
    engine = zlib.compressobj(1, zlib.DEFLATED, -15)
    return engine.compress(data) + engine.flush()


class Pieces:
    """Sends pieces of logs: the first 2 MiB compressed, the next 8 MiB uncompressed, and the rest
    in whichever way has taken less time per byte.

    Most runs leave less than 2 MiB on a node. With more, compressing pays on a slow connection and
    delays a fast one. The time of a piece includes compressing and writing it; a write blocks while
    the connection is full. The trial without compression is therefore longer than what pipe, ssh
    server and kernel buffer together, or every connection would look fast.
    """

    def __init__(self):
        self.size = {True: 0, False: 0}  # bytes sent so far, compressed or not
        self.took_s = {True: 0.0, False: 0.0}

    def packs(self):
        """Return True if the next piece is to be compressed."""
        for packed in (True, False):
            if self.size[packed] < TRIAL[packed]:
                return packed
        return self.took_s[True] / self.size[True] < self.took_s[False] / self.size[False]

    def send(self, name, log, offset, left):
        """Send the next piece of ``log``, an open file with ``left`` bytes still to send; return
        its uncompressed size.
        """
        packed = self.packs()
        data = os.pread(log, min(PIECE, left), offset) if packed else b""
        size = len(data) if packed else min(LONG_PIECE, left, os.fstat(log).st_size - offset)
        if size <= 0:
            return 0
        begun = time.monotonic()
        signal.alarm(IDLE_S)  # as in `receive_blocks`: ends this process if nobody reads
        if packed:
            body = deflate(data)
            reply(name=name, offset=offset, raw=size, bytes=len(body), packed=True)
            sys.stdout.buffer.write(body)
        else:
            reply(name=name, offset=offset, raw=size, bytes=size, packed=False)
            hand_over(log, offset, size)
        self.size[packed] += size
        self.took_s[packed] += time.monotonic() - begun
        return size


def hand_over(log, offset, size):
    """Write bytes of an open file to standard output, without copying them if its file system
    allows.
    """
    end = offset + size
    while offset < end:
        signal.alarm(IDLE_S)
        most = min(PIECE, end - offset)
        try:
            sent = os.sendfile(1, log, offset, most)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOSYS):
                sys.exit(
                    "a log cannot be sent: %s" % error.strerror
                )  # within raw bytes: no event can be sent
            sent = os.write(1, os.pread(log, most, offset))
        if not sent:
            sys.exit("a log became shorter while it was being sent")
        offset += sent


def widen_output():
    """Enlarge the pipe to the ssh server, so that the two sides wait for each other less often."""
    with contextlib.suppress(OSError):  # standard output is not a pipe, or this user has too many
        fcntl.fcntl(1, F_SETPIPE_SZ, PIPE_BYTES)


def op_get(request):
    """Send the logs of a run from the offsets that the controller already holds, and the exit
    record last.
    """
    sweep(own_directory(request))
    directory = run_directory(request)
    if not os.path.isdir(os.path.join(directory, "logs")):
        reply(absent=True)
        return
    record = read_slice(os.path.join(directory, "exit.json"), 0, 1 << 24)
    sizes = log_files(directory)
    left_out = max(0, len(sizes) - request["max_files"])
    sizes = {name: sizes[name] for name in in_order(sizes)[:MAX_FILES]}
    kept = json.loads(record.decode())["files"] if record else {}
    space, pieces = request["max_bytes"], Pieces()
    widen_output()
    for name in list(sizes)[: request["max_files"]]:
        offset = request["have"].get(name, 0)
        limit = min(sizes[name], kept[name]["bytes"] if name in kept else space, space)
        space -= limit
        with open_regular(os.path.join(directory, "logs", name)) as log:
            while log is not None and offset < limit:
                sent = pieces.send(name, log, offset, limit - offset)
                if not sent:
                    break
                offset += sent
    extra = {
        "left_out": left_out,
        "odd": odd_files(directory),
        "boot_id": boot_id(),
        "bytes": len(record),
    }
    reply(done=True, sizes=sizes, alive=supervisor_lives(directory), **extra)
    write_bytes(record)
