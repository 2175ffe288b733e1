"""Images from disk: the data set that `orch dataset make` writes, and what the trainers read of it."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import subprocess
import sys
from collections import Counter
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.support.judge import LIMIT_S
from tests.support.ranks import OPTIMIZERS, ranks
from tests.support.trainers import FLAT, PYTHON, PYTORCH, closing, needs, samples

MAKER = FLAT / "make_dataset.py"
SMALL = ["--images", "10", "--classes", "3", "--size", "40"]


def make(
    folder: Path, *arguments: str, python: str = sys.executable
) -> subprocess.CompletedProcess[str]:
    """Run the program as the node runner runs it."""
    command = [python, "-I", "-S", str(MAKER), "--dir", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)


def module(name: str) -> ModuleType:
    """A file of remote/, imported."""
    spec = importlib.util.spec_from_file_location(name, FLAT / f"{name}.py")
    assert spec and spec.loader
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def content(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture(scope="module")
def data_set(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small data set."""
    folder = tmp_path_factory.mktemp("data") / "set"
    done = make(folder, *SMALL)
    assert (done.returncode, done.stderr) == (0, "")
    return folder


# --- the data set ---------------------------------------------------------------------------------


def test_a_data_set_is_the_same_bytes_wherever_it_is_made(data_set: Path, tmp_path: Path) -> None:
    done = make(tmp_path / "again", *SMALL)
    assert content(tmp_path / "again") == content(data_set)
    said = json.loads(done.stdout)
    assert said.pop("made") is True
    assert said == json.loads((data_set / "dataset.json").read_text())
    # The digest is part of what nodes compare: a change of it is a change of the data set, and asks
    # for a new schema number.
    assert said["sha256"] == "cb1911da0392978d2aeb04d059ecf59a8c83888951e5713c805e7afdfff3d025"


def test_an_older_python_makes_the_same_data_set(data_set: Path, tmp_path: Path) -> None:
    old = Path("/root/.pyenv/versions/3.6.15/bin/python")
    if not old.exists():
        pytest.skip("no Python 3.6 here")
    assert make(tmp_path / "old", *SMALL, python=str(old)).returncode == 0
    assert content(tmp_path / "old") == content(data_set)


def test_classes_are_folders_and_images_are_dealt_out(data_set: Path) -> None:
    counts = Counter(path.parent.name for path in data_set.glob("train/*/*.jpg"))
    assert counts == {"class0000": 4, "class0001": 3, "class0002": 3}
    assert len(list(data_set.glob("tfrecord/train-*-of-00004"))) == 4


def test_another_seed_makes_other_images(data_set: Path, tmp_path: Path) -> None:
    make(tmp_path / "other", *SMALL, "--seed", "1")
    assert not set(content(tmp_path / "other").values()) & set(content(data_set).values())


def test_images_are_images(data_set: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for path in sorted(data_set.glob("train/*/*.jpg")):
        with image.open(path) as opened:
            opened.load()
            assert opened.mode == "RGB" and min(opened.size) == 40 and max(opened.size) < 61
            low, high = zip(*opened.getextrema(), strict=True)
            assert max(high) - min(low) > 60, "a picture without contrast teaches nothing"


def test_making_it_again_changes_nothing_and_another_set_is_refused(data_set: Path) -> None:
    before = content(data_set)
    again = make(data_set, *SMALL)
    assert (again.returncode, json.loads(again.stdout)["made"]) == (0, False)
    other = make(data_set, "--images", "11")
    assert other.returncode == 1 and "expected no data set or one made from {" in other.stderr
    assert content(data_set) == before


def test_files_of_somebody_else_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    done = make(tmp_path, *SMALL)
    assert done.returncode == 1
    assert (
        done.stderr == f"{tmp_path}: expected an empty or missing directory, found other content\n"
    )
    assert content(tmp_path) == {"thesis.txt": b"mine"}


def test_nothing_is_left_of_a_data_set_that_could_not_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = make(tmp_path / "file" / "set", *SMALL)
    assert done.returncode == 1 and "Not a directory" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]


@pytest.mark.parametrize(
    ("argument", "value"), [("--images", "0"), ("--classes", "1001"), ("--size", "7")]
)
def test_impossible_sizes_are_refused(tmp_path: Path, argument: str, value: str) -> None:
    done = make(tmp_path / "set", argument, value)
    assert (done.returncode, f"{argument}: expected" in done.stderr) == (2, True)


def test_a_checksum_is_what_the_format_says() -> None:
    # The check value of CRC-32C is that of these nine digits.
    maker = module("make_dataset")
    crc = 0xE3069283
    assert maker.masked_crc(b"123456789") == ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


# --- who reads what -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def loaders() -> ModuleType:
    """What trainers share."""
    return module("loaders")


@pytest.mark.parametrize(("count", "world_size"), [(10, 1), (10, 2), (7, 3), (2, 5)])
def test_ranks_share_each_epoch_without_overlap(
    loaders: ModuleType, count: int, world_size: int
) -> None:
    epochs = 6
    shares = [loaders.draws(count, rank, world_size, seed=3) for rank in range(world_size)]
    places = [next(shares[place % world_size]) for place in range(count * epochs)]
    assert len({draw.seed for draw in places}) == count * epochs
    orders = [
        [draw.index for draw in places[at : at + count]] for at in range(0, len(places), count)
    ]
    assert all(sorted(order) == list(range(count)) for order in orders)
    assert len({tuple(order) for order in orders}) > 1, "a new order for each epoch"


def test_batches_are_full_even_of_fewer_images_than_a_batch(loaders: ModuleType) -> None:
    batches = list(islice(loaders.Batches(3, 8, 0, 2, seed=0), 4))
    assert [len(batch) for batch in batches] == [8] * 4


def test_crops_lie_inside_and_take_between_8_percent_and_all(loaders: ModuleType) -> None:
    generator = random.Random(0)
    for _ in range(2000):
        width, height = generator.randint(1, 500), generator.randint(1, 500)
        left, top, right, bottom = loaders.crop_box(width, height, generator)
        assert 0 <= left < right <= width and 0 <= top < bottom <= height
    shares = [
        (b - t) * (r - w) / 480_000
        for w, t, r, b in (loaders.crop_box(800, 600, generator) for _ in range(2000))
    ]
    assert min(shares) == pytest.approx(0.08, abs=0.01) and 0.8 < max(shares) <= 1


def test_pixels_follow_from_the_seed(loaders: ModuleType, data_set: Path) -> None:
    pytest.importorskip("PIL")
    path = str(next(data_set.glob("train/*/*.jpg")))
    assert len(loaders.decode_crop(path, 32, 5)) == 32 * 32 * 3
    assert (
        loaders.decode_crop(path, 32, 5)
        == loaders.decode_crop(path, 32, 5)
        != loaders.decode_crop(path, 32, 6)
    )


def test_labels_are_the_places_of_sorted_folders(loaders: ModuleType, data_set: Path) -> None:
    files = loaders.image_files(str(data_set), 1000)
    assert Counter(label for _, label in files) == {0: 4, 1: 3, 2: 3}
    assert all(f"class{label:04d}" in path for path, label in files)
    assert loaders.image_files(str(data_set / "train"), 1000) == files


def test_what_is_wrong_with_a_folder_is_said(
    loaders: ModuleType, data_set: Path, tmp_path: Path
) -> None:
    with pytest.raises(SystemExit, match="--data-dir: .*: No such file or directory"):
        loaders.image_files(str(tmp_path / "gone"), 10)
    with pytest.raises(
        SystemExit, match="--data-dir: expected folders of JPEG files in .*, found no image"
    ):
        loaders.image_files(str(tmp_path), 10)
    with pytest.raises(SystemExit, match="--num-classes: expected 3 or more for .*, got 2"):
        loaders.image_files(str(data_set), 2)


@pytest.mark.parametrize(
    ("loader", "module_name", "words"),
    [("native", "PIL", "Pillow"), ("dali-cpu", "nvidia", "NVIDIA DALI")],
)
def test_a_missing_package_is_named(
    loaders: ModuleType, monkeypatch: pytest.MonkeyPatch, loader: str, module_name: str, words: str
) -> None:
    monkeypatch.setitem(sys.modules, module_name, None)
    with pytest.raises(SystemExit, match=f"--loader: {loader} needs {words}"):
        loaders.require(loader)


# --- PyTorch --------------------------------------------------------------------------------------


@pytest.mark.parametrize("loader", ["native", "dali-cpu"])
def test_pytorch_trains_from_disk(tmp_path: Path, data_set: Path, loader: str) -> None:
    needs("torch", *{"native": ["PIL"], "dali-cpu": ["nvidia.dali"]}[loader])
    arguments = [
        "--device",
        "cpu",
        "--image-size",
        "32",
        "--batch-size",
        "2",
        "--steps",
        "7",
        "--num-classes",
        "10",
    ]
    arguments += ["--loader", loader, "--data-dir", str(data_set), "--workers", "1"]
    arguments += ["--solo-steps", "0"]
    texts = ranks(PYTORCH, arguments, tmp_path, nproc=2, imports=OPTIMIZERS)
    assert [step["step"] for step in samples("pytorch", texts[0])] == list(range(8))
    facts = closing("pytorch", texts[0])
    assert (facts["loader"], facts["workers"], facts["ranks"]) == (loader, 1, [0, 1])
    assert len(facts["input_wait_s"]) == 2 and min(facts["input_wait_s"]) > 0


def batches_of(trainer: str, code: str, data_set: Path, *arguments: str) -> Any:
    """What ``code`` prints in an interpreter that has the framework, with the trainer as ``t`` and
    its arguments as ``a``.
    """
    head = f"import json, sys; sys.argv[1:] = {list(arguments)!r}; import {trainer} as t; a = t.arguments()\n"
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(FLAT), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [PYTHON, "-c", head + code],
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("loader", ["native", "dali-cpu"])
def test_what_pytorch_reads_is_normalised_and_an_epoch_holds_every_label(
    data_set: Path, loader: str
) -> None:
    needs("torch", *{"native": ["PIL"], "dali-cpu": ["nvidia.dali"]}[loader])
    code = """
import torch
data = t.batches(a, torch.device("cpu"), t.Identity(0, 0, 1, 0))
seen, sizes = [], set()
for _ in range(5):
    images, labels = next(data)
    seen += labels.tolist(); sizes.add((tuple(images.shape), str(images.dtype)))
mean, most = float(images.mean()), float(images.abs().max())
print(json.dumps({"labels": seen, "sizes": sorted(map(str, sizes)), "mean": mean, "most": most}))
"""
    arguments = ["--device", "cpu", "--image-size", "32", "--batch-size", "2", "--workers", "1"]
    found = batches_of(
        "train_pytorch", code, data_set, *arguments, "--loader", loader, "--data-dir", str(data_set)
    )
    assert Counter(found["labels"]) == {0: 4, 1: 3, 2: 3}
    assert found["sizes"] == ["((2, 3, 32, 32), 'torch.float32')"]
    assert abs(found["mean"]) < 2.5 and 0.1 < found["most"] < 2.7
