"""Images from disk for the trainers, as far as they do not depend on a framework. Python 3.8 or
newer; Pillow or DALI if used.

A data set is a folder of class folders of JPEG files, `<data dir>/train/<class>/<file>`, or the
same without `train`. All ranks draw from one endless sequence: the files in a new order for each
epoch, one epoch after the other. Rank r of w takes the positions r, r+w, r+2w …, so batches are
always full and no two ranks get the same position.
"""

from __future__ import annotations

import importlib.util
import math
import os
import random
import sys
from contextlib import suppress
from typing import Any, Iterator, List, NamedTuple, Tuple

MEAN = (0.485 * 255, 0.456 * 255, 0.406 * 255)
DEVIATION = (0.229 * 255, 0.224 * 255, 0.225 * 255)
AREA = (0.08, 1.0)
RATIO = (3 / 4, 4 / 3)
ENDINGS = (".jpg", ".jpeg", ".png")


def require(loader: str) -> None:
    """Raise SystemExit if this interpreter misses what a loader needs."""
    needs = {"synthetic": ("sys", ""), "native": ("PIL", "Pillow")}
    module, package = needs.get(loader, ("nvidia.dali", "NVIDIA DALI (nvidia-dali-cuda120)"))
    with suppress(ImportError):
        if importlib.util.find_spec(module):
            return
    raise SystemExit(
        f"--loader: {loader} needs {package}, which is not installed for {sys.executable}"
    )


def train_folder(data_dir: str) -> str:
    """Return the folder that contains the class folders."""
    data_dir = os.path.expanduser(data_dir)
    below = os.path.join(data_dir, "train")
    return below if os.path.isdir(below) else data_dir


def image_files(
    data_dir: str, num_classes: int, endings: Tuple[str, ...] = ENDINGS
) -> List[Tuple[str, int]]:
    """Return (path, label) of every image, in order of name. Raises SystemExit if there are no
    images or too many classes.
    """
    folder = train_folder(data_dir)
    try:
        names = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
    except OSError as error:
        raise SystemExit(f"--data-dir: {folder}: {error.strerror}") from None
    images = [
        (os.path.join(folder, name, file), label)
        for label, name in enumerate(names)
        for file in sorted(os.listdir(os.path.join(folder, name)))
        if file.lower().endswith(endings)
    ]
    if not images:
        raise SystemExit(
            f"--data-dir: expected folders of JPEG files in {folder}, found no image. see: orch dataset make"
        )
    if len(names) > num_classes:
        raise SystemExit(
            f"--num-classes: expected {len(names)} or more for {folder}, got {num_classes}"
        )
    return images


class Draw(NamedTuple):
    """One sample to be made: the index of its image, and the seed of its crop."""

    index: int
    seed: int


def draws(count: int, rank: int, world_size: int, seed: int) -> Iterator[Draw]:
    """Yield this rank's share of the endless sequence."""
    place, epoch = 0, 0
    while True:
        order = list(range(count))
        random.Random(seed * 1_000_003 + epoch).shuffle(order)
        for index in order:
            if place % world_size == rank:
                yield Draw(index, seed * 1_000_003 + place)
            place += 1
        epoch += 1


class Batches:
    """An endless sequence of lists of `Draw`s; the data loaders of the frameworks take it as a
    batch sampler.
    """

    def __init__(self, count: int, batch_size: int, rank: int, world_size: int, seed: int) -> None:
        self.batch_size = batch_size
        self._draws = (count, rank, world_size, seed)

    def __iter__(self) -> Iterator[List[Draw]]:
        """Yield batches, starting at the first position."""
        sequence = draws(*self._draws)
        while True:
            yield [next(sequence) for _ in range(self.batch_size)]


def crop_box(width: int, height: int, random_: random.Random) -> Tuple[int, int, int, int]:
    """Return a random part of an image: 8 % to 100 % of its area, up to a third wider or taller
    than a square.
    """
    for _ in range(10):
        area = width * height * random_.uniform(*AREA)
        ratio = math.exp(random_.uniform(math.log(RATIO[0]), math.log(RATIO[1])))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            left, top = random_.randint(0, width - w), random_.randint(0, height - h)
            return left, top, left + w, top + h
    side = min(width, height)
    left, top = (width - side) // 2, (height - side) // 2
    return left, top, left + side, top + side


def decode_crop(path: str, size: int, seed: int) -> bytes:
    """Return size x size RGB pixels of a random part of an image, row by row, mirrored in half of
    the cases.
    """
    from PIL import Image

    random_ = random.Random(seed)
    with Image.open(path) as image:
        pixels = image.convert("RGB")
        box = crop_box(*pixels.size, random_)
        pixels = pixels.resize((size, size), Image.BILINEAR, box)
    if random_.random() < 0.5:
        pixels = pixels.transpose(Image.FLIP_LEFT_RIGHT)
    return pixels.tobytes()


def dali_batches(args: Any, me: Any, device_id: Any, iterator: Any) -> Iterator[Tuple[Any, Any]]:
    """Yield images and labels of NVIDIA DALI, without end. ``iterator``: its class for a framework."""
    from nvidia.dali.plugin.base_iterator import LastBatchPolicy

    source = iterator(
        [dali_pipeline(args, me, device_id)],
        ["images", "labels"],
        reader_name="reader",
        last_batch_policy=LastBatchPolicy.FILL,
        auto_reset=True,
    )
    while True:
        for (batch,) in source:
            yield batch["images"], batch["labels"]


def dali_pipeline(args: Any, me: Any, device_id: Any) -> Any:
    """Return NVIDIA DALI's pipeline for a rank: read, decode, crop and resize at random, mirror,
    normalise; NCHW float32 and labels.

    With ``--loader dali-gpu`` nvJPEG decodes, and all later stages run on the GPU too.
    ``device_id`` None needs no GPU at all.
    """
    from nvidia.dali import fn, pipeline_def, types

    image_files(args.data_dir, args.num_classes)  # its messages are clearer than DALI's
    on_gpu = args.loader == "dali-gpu"

    @pipeline_def(
        batch_size=args.batch_size,
        num_threads=args.workers,
        device_id=device_id,
        seed=args.seed + me.rank,
    )
    def pipeline() -> Any:
        files, labels = fn.readers.file(
            file_root=train_folder(args.data_dir),
            shard_id=me.rank,
            num_shards=me.world_size,
            random_shuffle=True,
            pad_last_batch=True,
            name="reader",
        )
        device = "mixed" if on_gpu else "cpu"
        images = fn.decoders.image(files, device=device, output_type=types.RGB)
        images = fn.random_resized_crop(
            images, size=args.image_size, random_area=AREA, random_aspect_ratio=RATIO
        )
        images = fn.crop_mirror_normalize(
            images,
            mirror=fn.random.coin_flip(),
            dtype=types.FLOAT,
            output_layout="CHW",
            mean=MEAN,
            std=DEVIATION,
        )
        return images, (labels.gpu() if on_gpu else labels)

    made = pipeline()
    made.build()
    return made
