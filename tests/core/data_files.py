"""Small files in the formats of users' data sets, with their publishers' layouts."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest


def idx(values: np.ndarray) -> bytes:
    return bytes((0, 0, 8, values.ndim)) + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes()


def _mnist(root: Path) -> None:
    images = np.arange(6 * 28 * 28, dtype=np.uint8).reshape(6, 28, 28)
    for split, count in (("train", 6), ("t10k", 3)):
        (root / f"{split}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(images[:count])))
        (root / f"{split}-labels-idx1-ubyte").write_bytes(idx(np.arange(count, dtype=np.uint8)))


def python2(images: np.ndarray, labels: list[int], key: str) -> bytes:
    """A batch as Python 2 wrote CIFAR's: strings of bytes, protocol 2."""
    raw = images.tobytes()
    shape = b"K" + bytes([len(images)]) + b"M" + struct.pack("<H", images.shape[1]) + b"\x86"
    array = b"cnumpy.core.multiarray\n_reconstruct\nq\x03cnumpy\nndarray\nq\x04K\x00\x85U\x01b\x87Rq\x05(K\x01" + shape
    array += b"cnumpy\ndtype\nq\x06U\x02u1K\x00K\x01\x87Rq\x07(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    array += b"\x89T" + struct.pack("<i", len(raw)) + raw + b"tb"
    numbers = b"]q\x08(" + b"".join(b"K" + bytes([v]) for v in labels) + b"e"
    name = b"U" + bytes([len(key)]) + key.encode()
    return b"\x80\x02}q\x01(U\x04dataq\x02" + array + name + numbers + b"u."


def _cifar10(root: Path) -> None:
    inner = root / "cifar-10-batches-py"
    inner.mkdir()
    images = np.random.default_rng(0).integers(0, 256, (2, 3072), dtype=np.uint8)
    for i in range(1, 6):
        (inner / f"data_batch_{i}").write_bytes(python2(images, [i, i - 1], "labels"))
    # Written by Python 3, as copies of the data set are.
    (inner / "test_batch").write_bytes(pickle.dumps({"data": images, "labels": [9, 0]}, protocol=2))


def _cifar100(root: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (3, 3072), dtype=np.uint8)
    (root / "train").write_bytes(python2(images, [99, 0, 5], "fine_labels"))
    (root / "test").write_bytes(pickle.dumps({"data": images, "fine_labels": [1, 2, 3]}, protocol=4))


def _picture(path: Path, colour: tuple[int, int, int], size: tuple[int, int] = (80, 60)) -> None:
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)


def _image_folder(root: Path) -> None:
    for kind, colour in (("cats", (255, 0, 0)), ("dogs", (0, 0, 255))):
        for i in range(2):
            _picture(root / "train" / kind / f"{i}.png", colour)
        _picture(root / "val" / kind / "a.JPG", colour, (64, 64))


def _tiny_imagenet(root: Path) -> None:
    for kind in ("n01", "n02"):
        _picture(root / "train" / kind / "images" / f"{kind}_0.JPEG", (9, 9, 9), (64, 64))
    notes = ""
    for i, kind in enumerate(("n02", "n01", "n02")):
        _picture(root / "val" / "images" / f"val_{i}.JPEG", (9, 9, 9), (64, 64))
        notes += f"val_{i}.JPEG\t{kind}\t0\t0\t63\t63\n"
    (root / "val" / "val_annotations.txt").write_text(notes)


def _cloud(path: Path, columns: int, separator: str, part: int | None = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = np.random.default_rng(0).normal(size=(20, columns))
    if part is not None:
        rows[:, -1] = part
    path.write_text("".join(separator.join(f"{v:.6f}" for v in row) + "\n" for row in rows))


def _modelnet40(root: Path) -> None:
    (root / "modelnet40_shape_names.txt").write_text("chair\nnight_stand\n")
    (root / "modelnet40_train.txt").write_text("chair_0001\nnight_stand_0001\n")
    (root / "modelnet40_test.txt").write_text("night_stand_0002\n")
    for kind, name in (
        ("chair", "chair_0001"),
        ("night_stand", "night_stand_0001"),
        ("night_stand", "night_stand_0002"),
    ):
        _cloud(root / kind / f"{name}.txt", 6, ",")


def _shapenet_part(root: Path) -> None:
    (root / "synsetoffset2category.txt").write_text("Airplane\t02691156\n")
    (root / "train_test_split").mkdir()
    for split, name in (("train", "a1"), ("val", "b2")):
        listed = root / "train_test_split" / f"shuffled_{split}_file_list.json"
        listed.write_text(json.dumps([f"shape_data/02691156/{name}"]))
        _cloud(root / "02691156" / f"{name}.txt", 7, " ", part=3)


def _wikitext(root: Path) -> None:
    inner = root / "wikitext-2"
    inner.mkdir()
    (inner / "wiki.train.tokens").write_text(" \n = Title = \n the cat sat on the mat . \n" * 20, encoding="utf-8")
    (inner / "wiki.valid.tokens").write_text(" the dog sat on the mat . \n" * 20, encoding="utf-8")


def day(clicks: str) -> str:
    dense = "\t".join(["3", "", "-1", *map(str, range(10))])
    return "".join(f"{c}\t{dense}\t" + "\t".join(["", "ffffffff", *["1a"] * 24]) + "\n" for c in clicks)


def _criteo(root: Path) -> None:
    (root / "day_0").write_text(day("0110"))
    (root / "day_1").write_text(day("10"))


CUBE = """OFF
# a cube whose top is one polygon, the other sides two triangles each
8 11 0
0 0 0
1 0 0
1 1 0
0 1 0
0 0 1
1 0 1
1 1 1
0 1 1
4 4 5 6 7 0.2 0.3 0.4
3 0 2 1
3 0 3 2
3 0 1 5
3 0 5 4
3 1 2 6
3 1 6 5
3 2 3 7
3 2 7 6
3 3 0 4
3 3 4 7
"""


def _modelnet40_off(root: Path) -> None:
    for kind, split, text in (
        ("chair", "train", CUBE),
        ("chair", "test", CUBE),
        (
            "table",
            "train",
            CUBE.replace("OFF\n# a cube whose top is one polygon, the other sides two triangles each\n", "OFF"),
        ),
        ("table", "test", CUBE),
    ):
        place = root / "ModelNet40" / kind / split
        place.mkdir(parents=True)
        (place / f"{kind}_0001.off").write_text(text)


def _modelnet40_hdf5(root: Path) -> None:
    h5py = pytest.importorskip("h5py")
    (root / "shape_names.txt").write_text("airplane\nchair\n")
    for split, count in (("train", 3), ("test", 2)):
        (root / f"{split}_files.txt").write_text(f"data/modelnet40_ply_hdf5_2048/ply_data_{split}0.h5\n")
        with h5py.File(root / f"ply_data_{split}0.h5", "w") as file:
            rng = np.random.default_rng(0)
            file["data"] = rng.normal(size=(count, 2048, 3)).astype(np.float32)
            file["label"] = (np.arange(count, dtype=np.uint8) % 2)[:, None]


def _image_files(root: Path) -> None:
    for i in range(20):
        _picture(root / f"{i % 2}" / f"{i}.png", (0, 255, i))


def _lsun(root: Path) -> None:
    lmdb, image = pytest.importorskip("lmdb"), pytest.importorskip("PIL.Image")
    for split, count in (("train", 4), ("val", 2)):
        with (
            lmdb.open(str(root / f"bedroom_{split}_lmdb"), map_size=2**20) as env,
            env.begin(write=True) as transaction,
        ):
            for i in range(count):
                held = io.BytesIO()
                image.new("RGB", (100, 70), (255, 0, i)).save(held, "webp", lossless=True)
                transaction.put(f"{i:040x}".encode(), held.getvalue())


WRITERS: dict[str, Callable[[Path], None]] = {
    "mnist": _mnist,
    "fashion_mnist": _mnist,
    "cifar10": _cifar10,
    "cifar100": _cifar100,
    "image_folder": _image_folder,
    "tiny_imagenet": _tiny_imagenet,
    "modelnet40": _modelnet40,
    "modelnet40_off": _modelnet40_off,
    "modelnet40_hdf5": _modelnet40_hdf5,
    "image_files": _image_files,
    "lsun": _lsun,
    "shapenet_part": _shapenet_part,
    "wikitext": _wikitext,
    "criteo": _criteo,
}
