"""Write a small image data set for tests and rehearsals: JPEG files in folders by class, and the same as TFRecords.

    python3 -I -S make_dataset.py --dir /data/small --images 64 --classes 4 --size 128

Standard library only, Python 3.6 or newer, and every byte follows from the arguments: nodes that ran the same command hold the
same data set, whatever their libraries. No picture is ever drawn: random coefficients of the cosine transform are written
straight into baseline JPEG, with Huffman codes of one length, so that an encoder needs no transform and no statistics.
The last thing written is ``dataset.json`` with a digest over all files, by which `orch` compares the data sets of nodes.
"""

import argparse
import hashlib
import json
import os
import random
import shutil
import struct
import sys

SCHEMA = 1
RECORD_FILES = 4
# A symbol is a run of zeros and the number of bits of the coefficient behind it; 0 ends a block.
DC_SYMBOLS = list(range(12))
AC_SYMBOLS = [0] + [run << 4 | bits for run in range(4) for bits in range(1, 8)]
DC_LENGTH, AC_LENGTH = 4, 5
QUANTUM = 8


def segment(marker, body):
    """Return one JPEG segment."""
    return struct.pack(">HH", marker, len(body) + 2) + body


def huffman_table(number, symbols, length):
    """Return the segment of a table whose codes all have one length: a symbol's code is its place in the list."""
    counts = [len(symbols) if bits == length else 0 for bits in range(1, 17)]
    return segment(0xFFC4, bytes([number]) + bytes(counts) + bytes(symbols))


def header(width, height):
    """Return everything before the data of a colour image without subsampling."""
    frame = struct.pack(">BHHB", 8, height, width, 3) + b"".join(bytes([part, 0x11, 0]) for part in (1, 2, 3))
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
    """Bits of entropy-coded data, the first one highest."""

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
        """Append a code and the number behind it; a negative number is written less one, without its sign."""
        self.add(code, length)
        if bits:
            self.add(value if value > 0 else value + (1 << bits) - 1, bits)

    def finish(self):
        """Return all bytes, the last one filled with ones."""
        if self.count:
            self.add((1 << 8 - self.count) - 1, 8 - self.count)
        return bytes(self.bytes)


def jpeg(width, height, seed):
    """Return an image of smooth patches with some texture, as the seed has it."""
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


# --- TFRecord: a length, its checksum, the bytes, their checksum ----------------------------------------------------------


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
    """Return the checksum that TFRecord keeps of ``data``."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ CRC[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def record(data):
    """Return one framed record."""
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked_crc(length)) + data + struct.pack("<I", masked_crc(data))


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
    """Return a tf.train.Example as ImageNet's records have them: labels count from 1."""
    features = {
        "image/encoded": field(1, field(1, image)),
        "image/class/label": field(3, field(1, varint(label + 1))),
    }
    entries = (field(1, field(1, name.encode()) + field(2, value)) for name, value in sorted(features.items()))
    return field(1, b"".join(entries))


# --- files ----------------------------------------------------------------------------------------------------------------


def files(asked):
    """Yield (relative path, bytes) of every file of the data set, image files first."""
    records = [[] for _ in range(RECORD_FILES)]
    for index in range(asked.images):
        label = index % asked.classes
        # Not all alike in shape, as in a real set: the short side is the size asked for.
        shape = random.Random("%d shape %d" % (asked.seed, index)).random()
        longer = int(asked.size * (1 + shape / 2))
        width, height = (longer, asked.size) if index % 2 else (asked.size, longer)
        image = jpeg(width, height, "%d image %d" % (asked.seed, index))
        yield "train/class%04d/%06d.jpg" % (label, index), image
        records[index % RECORD_FILES].append(record(example(image, label)))
    for number, made in enumerate(records):
        yield "tfrecord/train-%05d-of-%05d" % (number, RECORD_FILES), b"".join(made)


def made_before(asked, wanted):
    """Return the description of the data set that lies there if it is the one asked for; refuse any other content."""
    try:
        with open(os.path.join(asked.dir, "dataset.json")) as file:
            found = json.load(file)
    except FileNotFoundError:
        if os.path.isdir(asked.dir) and os.listdir(asked.dir):
            raise SystemExit("%s: expected an empty or missing directory, it holds something else" % asked.dir)
        return None
    if not isinstance(found, dict) or found.get("made_from") != wanted:
        raise SystemExit("%s: expected none or the same data set, it holds one of %s" % (asked.dir, found.get("made_from")))
    return found


def make(asked):
    """Write the data set beside its place, rename it into place, return its description."""
    wanted = {"images": asked.images, "classes": asked.classes, "size": asked.size, "seed": asked.seed, "schema": SCHEMA}
    found = made_before(asked, wanted)
    if found:
        return dict(found, made=False)
    partial = "%s.%d.part" % (asked.dir, os.getpid())
    digest, total = hashlib.sha256(), 0
    try:
        for path, data in files(asked):
            target = os.path.join(partial, path)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            with open(target, "wb") as file:
                file.write(data)
            digest.update(("%s\0%s\n" % (path, hashlib.sha256(data).hexdigest())).encode())
            total += len(data)
        description = {"made_from": wanted, "sha256": digest.hexdigest(), "bytes": total, "images": asked.images}
        with open(os.path.join(partial, "dataset.json"), "w") as file:
            json.dump(description, file, sort_keys=True)
        if os.path.isdir(asked.dir):
            os.rmdir(asked.dir)
        os.rename(partial, asked.dir)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return dict(description, made=True)


def arguments():
    """Return the command line, checked."""
    parser = argparse.ArgumentParser(description="write a small image data set, the same bytes everywhere")
    parser.add_argument("--dir", required=True, help="made; an existing one must be empty or hold the same data set")
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--classes", type=int, default=4)
    parser.add_argument("--size", type=int, default=128, help="pixels of the shorter side")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    for name, least, most in (("images", 1, 1000000), ("classes", 1, 1000), ("size", 8, 4096)):
        if not least <= getattr(asked, name) <= most:
            parser.error("--%s: expected %d to %d, got %d" % (name, least, most, getattr(asked, name)))
    asked.dir = os.path.abspath(os.path.expanduser(asked.dir))
    return asked


if __name__ == "__main__":
    try:
        print(json.dumps(make(arguments()), sort_keys=True))
    except OSError as error:
        sys.exit("%s: %s" % (error.filename, error.strerror))
