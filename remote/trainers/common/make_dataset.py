"""Write a small image data set for tests and rehearsals: JPEG files in one folder per class, and
the same images as TFRecords.

    python3 -I -S make_dataset.py --dir /data/small --images 64 --classes 4 --size 128

Standard library only, Python 3.6 or newer. Every byte follows from the arguments: nodes that ran
the same command have the same data set, whatever their libraries. No picture is ever drawn: random
coefficients of the cosine transform are written directly as baseline JPEG, with Huffman codes of
one length, so that encoding needs no transform and no statistics. The last file written is
``dataset.json`` with a digest over all files, by which `orch` compares the data sets of nodes.
"""

import argparse
import errno
import hashlib
import json
import os
import random
import shutil
import struct
import sys

SCHEMA = 1
RECORD_FILES = 4
# A symbol is a run of zeros and the number of bits of the coefficient that follows; 0 ends a block.
DC_SYMBOLS = list(range(12))
AC_SYMBOLS = [0] + [run << 4 | bits for run in range(4) for bits in range(1, 8)]
DC_LENGTH, AC_LENGTH = 4, 5
QUANTUM = 8


def segment(marker, body):
    """Return one JPEG segment."""
    return struct.pack(">HH", marker, len(body) + 2) + body


def huffman_table(number, symbols, length):
    """Return the segment of a table whose codes all have the same length: a symbol's code is its
    index in the list.
    """
    counts = [len(symbols) if bits == length else 0 for bits in range(1, 17)]
    return segment(0xFFC4, bytes([number]) + bytes(counts) + bytes(symbols))


def header(width, height):
    """Return everything before the data of a colour image without subsampling."""
    frame = struct.pack(">BHHB", 8, height, width, 3) + b"".join(
        bytes([part, 0x11, 0]) for part in (1, 2, 3)
    )
    scan = bytes([3, 1, 0x00, 2, 0x00, 3, 0x00, 0, 63, 0])
    return b"".join(
        [
            b"\xff\xd8",
            segment(0xFFE0, b"JFIF\0\x01\x01\0\0\x01\0\x01\0\0"),
            segment(0xFFDB, b"\0" + bytes([QUANTUM] * 64)),
            segment(0xFFC0, frame),
            huffman_table(0x00, DC_SYMBOLS, DC_LENGTH),
            huffman_table(0x10, AC_SYMBOLS, AC_LENGTH),
            segment(0xFFDA, scan),
        ]
    )


class Bits:
    """Bits of entropy-coded data, the most significant bit first."""

    def __init__(self):
        self.value, self.count, self.bytes = 0, 0, bytearray()

    def add(self, value, count):
        """Append ``count`` bits."""
        self.value, self.count = self.value << count | value, self.count + count
        while self.count >= 8:
            self.count -= 8
            byte = self.value >> self.count & 0xFF
            self.bytes.append(byte)
            if byte == 0xFF:
                self.bytes.append(0)  # so that data never looks like a marker
        self.value &= (1 << self.count) - 1

    def add_number(self, code, length, value, bits):
        """Append a code and the number that follows it; a negative number is written less one,
        without its sign.
        """
        self.add(code, length)
        if bits:
            self.add(value if value > 0 else value + (1 << bits) - 1, bits)

    def finish(self):
        """Return all bytes, the last one padded with ones."""
        if self.count:
            self.add((1 << 8 - self.count) - 1, 8 - self.count)
        return bytes(self.bytes)


def jpeg(width, height, seed):
    """Return an image of smooth patches with some texture, determined by the seed."""
    draw = random.Random(seed).random
    data = Bits()
    before = [0, 0, 0]
    reach = 128 * 8 // QUANTUM
    for _ in range((-(-width // 8)) * (-(-height // 8))):
        for part in range(3):
            level = max(-reach, min(reach - 1, before[part] + int((draw() - 0.5) * reach / 4)))
            step, before[part] = level - before[part], level
            bits = abs(step).bit_length()
            data.add_number(DC_SYMBOLS.index(bits), DC_LENGTH, step, bits)
            for _ in range(int(draw() * 5)):
                run, value = int(draw() * 4), int((draw() - 0.5) * 16) or 1
                bits = abs(value).bit_length()
                data.add_number(AC_SYMBOLS.index(run << 4 | bits), AC_LENGTH, value, bits)
            data.add(0, AC_LENGTH)
    return header(width, height) + data.finish() + b"\xff\xd9"


# --- TFRecord: a length, its checksum, the bytes, their checksum ----------------------------------


def crc_table():
    """Return the table of CRC-32C."""
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


CRC = crc_table()


def masked_crc(data):
    """Return TFRecord's checksum of ``data``."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ CRC[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def record(data):
    """Return one framed record."""
    length = struct.pack("<Q", len(data))
    return (
        length + struct.pack("<I", masked_crc(length)) + data + struct.pack("<I", masked_crc(data))
    )


def varint(value):
    """Return a protobuf number."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def field(number, data):
    """Return a protobuf field of bytes, or of a message."""
    return varint(number << 3 | 2) + varint(len(data)) + data


def example(image, label):
    """Return a tf.train.Example as in ImageNet's records: labels start at 1."""
    features = {
        "image/encoded": field(1, field(1, image)),
        "image/class/label": field(3, field(1, varint(label + 1))),
    }
    entries = (
        field(1, field(1, name.encode()) + field(2, value))
        for name, value in sorted(features.items())
    )
    return field(1, b"".join(entries))


# --- files ----------------------------------------------------------------------------------------


def image_path(args, index):
    """Return the relative path of an image."""
    return "train/class%04d/%06d.jpg" % (index % args.classes, index)


def record_path(number):
    """Return the relative path of a file of records."""
    return "tfrecord/train-%05d-of-%05d" % (number, RECORD_FILES)


def files(args):
    """Yield (relative path, bytes) of every file of the data set, image files first."""
    records = [[] for _ in range(RECORD_FILES)]
    for index in range(args.images):
        label = index % args.classes
        # Shapes differ, as in a real data set: the short side is the requested size.
        shape = random.Random("%d shape %d" % (args.seed, index)).random()
        longer = int(args.size * (1 + shape / 2))
        width, height = (longer, args.size) if index % 2 else (args.size, longer)
        image = jpeg(width, height, "%d image %d" % (args.seed, index))
        yield image_path(args, index), image
        records[index % RECORD_FILES].append(record(example(image, label)))
    for number, entries in enumerate(records):
        yield record_path(number), b"".join(entries)


def files_on_disk(args):
    """Yield (relative path, bytes) of the same files as they are on disk. Raises OSError if one
    cannot be read.
    """
    for path in [image_path(args, index) for index in range(args.images)] + list(
        map(record_path, range(RECORD_FILES))
    ):
        with open(os.path.join(args.dir, path), "rb") as file:
            yield path, file.read()


def line_of(path, data):
    """Return a file's contribution to the data set's digest."""
    return ("%s\0%s\n" % (path, hashlib.sha256(data).hexdigest())).encode()


def made_before(args, made_from):
    """Return the description of an existing data set if it was made from the same arguments and is
    undamaged; refuse any other content."""
    try:
        with open(os.path.join(args.dir, "dataset.json")) as file:
            description = json.load(file)
    except FileNotFoundError:
        if os.path.isdir(args.dir) and os.listdir(args.dir):
            raise SystemExit(
                "%s: expected an empty or missing directory, found other content" % args.dir
            )
        return None
    made = description.get("made_from") if isinstance(description, dict) else None
    if made != made_from:
        raise SystemExit(
            "%s: expected no data set or one made from %s, found one made from %s"
            % (args.dir, made_from, made)
        )
    digest = hashlib.sha256()
    try:
        for path, data in files_on_disk(args):
            digest.update(line_of(path, data))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise SystemExit(
            "%s: expected the data set of dataset.json, found none; remove %s to make it again"
            % (error.filename, args.dir)
        )
    if digest.hexdigest() != description.get("sha256"):
        raise SystemExit(
            "%s: expected the data set of dataset.json, its files differ; remove them to make it again"
            % args.dir
        )
    return description


def make(args):
    """Write the data set next to its final place, rename it into place, and return its description.

    Nodes that share the directory do this at the same time: the first to finish makes it, and the
    others find it made.
    """
    made_from = {
        "images": args.images,
        "classes": args.classes,
        "size": args.size,
        "seed": args.seed,
        "schema": SCHEMA,
    }
    existing = made_before(args, made_from)
    if existing:
        return dict(existing, made=False)
    partial = "%s.%s.part" % (args.dir, os.urandom(8).hex())  # nodes may have equal process numbers
    digest, total = hashlib.sha256(), 0
    try:
        for path, data in files(args):
            target = os.path.join(partial, path)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            with open(target, "wb") as file:
                file.write(data)
            digest.update(line_of(path, data))
            total += len(data)
        description = {
            "made_from": made_from,
            "sha256": digest.hexdigest(),
            "bytes": total,
            "images": args.images,
        }
        with open(os.path.join(partial, "dataset.json"), "w") as file:
            json.dump(description, file, sort_keys=True)
        os.rename(partial, args.dir)  # replaces an empty directory, and no other
    except OSError as error:
        existing = (
            made_before(args, made_from) if error.errno in (errno.ENOTEMPTY, errno.EEXIST) else None
        )
        if not existing:
            raise
        return dict(existing, made=False)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return dict(description, made=True)


def arguments():
    """Return the checked command line."""
    parser = argparse.ArgumentParser(
        description="write a small image data set, identical on every machine"
    )
    parser.add_argument(
        "--dir",
        required=True,
        help="directory to create; an existing one must be empty or hold the same data set",
    )
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--classes", type=int, default=4)
    parser.add_argument("--size", type=int, default=128, help="pixels of the shorter side")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    for name, least, most in (("images", 1, 1000000), ("classes", 1, 1000), ("size", 8, 4096)):
        if not least <= getattr(args, name) <= most:
            parser.error(
                "--%s: expected %d to %d, got %d" % (name, least, most, getattr(args, name))
            )
    args.dir = os.path.abspath(os.path.expanduser(args.dir))
    return args


if __name__ == "__main__":
    try:
        print(json.dumps(make(arguments()), sort_keys=True))
    except OSError as error:
        sys.exit("%s: %s" % (error.filename, error.strerror))
