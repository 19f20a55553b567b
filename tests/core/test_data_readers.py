"""Readers of data sets that users have, on small files in the real formats; damaged files are named with the byte."""

from __future__ import annotations

import gzip
import json
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hfta_nb as hfta
from hfta_nb import data
from hfta_nb.data.readers import READERS
from hfta_nb.data.readers.pickles import read_pickle
from hfta_nb.errors import DataError


def _idx(values: np.ndarray) -> bytes:
    return bytes((0, 0, 8, values.ndim)) + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes()


def _mnist(root: Path) -> None:
    images = np.arange(6 * 28 * 28, dtype=np.uint8).reshape(6, 28, 28)
    for split, count in (("train", 6), ("t10k", 3)):
        (root / f"{split}-images-idx3-ubyte.gz").write_bytes(gzip.compress(_idx(images[:count])))
        (root / f"{split}-labels-idx1-ubyte").write_bytes(_idx(np.arange(count, dtype=np.uint8)))


def _python2(images: np.ndarray, labels: list[int], key: str) -> bytes:
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
        (inner / f"data_batch_{i}").write_bytes(_python2(images, [i, i - 1], "labels"))
    # Written by Python 3, as copies of the data set are.
    (inner / "test_batch").write_bytes(pickle.dumps({"data": images, "labels": [9, 0]}, protocol=2))


def _cifar100(root: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (3, 3072), dtype=np.uint8)
    (root / "train").write_bytes(_python2(images, [99, 0, 5], "fine_labels"))
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


def _day(clicks: str) -> str:
    dense = "\t".join(["3", "", "-1", *map(str, range(10))])
    return "".join(f"{c}\t{dense}\t" + "\t".join(["", "ffffffff", *["1a"] * 24]) + "\n" for c in clicks)


def _criteo(root: Path) -> None:
    (root / "day_0").write_text(_day("0110"))
    (root / "day_1").write_text(_day("10"))


WRITERS: dict[str, Callable[[Path], None]] = {
    "mnist": _mnist,
    "fashion_mnist": _mnist,
    "cifar10": _cifar10,
    "cifar100": _cifar100,
    "image_folder": _image_folder,
    "tiny_imagenet": _tiny_imagenet,
    "modelnet40": _modelnet40,
    "shapenet_part": _shapenet_part,
    "wikitext": _wikitext,
    "criteo": _criteo,
}
EXPECTED: dict[str, tuple[tuple[int, int], list[tuple[int, ...]], dict[str, int]]] = {
    "mnist": ((6, 3), [(1, 28, 28)], {"num_classes": 10, "in_channels": 1}),
    "fashion_mnist": ((6, 3), [(1, 28, 28)], {"num_classes": 10}),
    "cifar10": ((10, 2), [(3, 32, 32)], {"num_classes": 10, "in_channels": 3, "image_size": 32}),
    "cifar100": ((3, 3), [(3, 32, 32)], {"num_classes": 100}),
    "image_folder": ((4, 2), [(3, 64, 64)], {"num_classes": 2}),
    "tiny_imagenet": ((2, 3), [(3, 64, 64)], {"num_classes": 2}),
    "modelnet40": ((2, 1), [(1024, 6)], {"num_classes": 2, "in_channels": 6}),
    "shapenet_part": ((1, 1), [(1024, 6)], {"num_classes": 4}),
    "wikitext": ((3, 2), [(64,)], {"context": 64, "vocab_size": 10}),
    "criteo": ((4, 2), [(13,), (26,)], {"categories": 10_000, "dense_features": 13}),
}


def test_every_reader_has_a_row() -> None:
    assert WRITERS.keys() == EXPECTED.keys() == READERS.keys() == set(data.kinds())


@pytest.fixture
def made(tmp_path: Path) -> Callable[[str], Path]:
    def make(kind: str) -> Path:
        root = tmp_path / kind
        root.mkdir()
        WRITERS[kind](root)
        return root

    return make


@pytest.mark.parametrize("kind", WRITERS)
def test_readers(kind: str, made: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    root = made(kind)
    d = data.load.__wrapped__(f"{kind}:{root}")
    sizes, shapes, facts = EXPECTED[kind]
    assert (len(d), d.held_out) == sizes
    assert [tuple(t.shape[1:]) for t in data.leaves(d.x)] == shapes
    assert facts.items() <= d.facts.items()
    assert d.name == f"{kind}:{root}"
    assert data.known(d.name)
    monkeypatch.setenv("HFTA_NB_DATA", str(root.parent))
    again = data.load.__wrapped__(kind)
    assert all(torch.equal(a, b) for a, b in zip(data.leaves(again.x), data.leaves(d.x), strict=True))


@pytest.mark.parametrize("kind", WRITERS)
def test_what_to_put_where(kind: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no such directory; put .* into .*, or set HFTA_NB_DATA"):
        data.load.__wrapped__(f"{kind}:{tmp_path / 'nowhere'}")
    with pytest.raises(DataError, match=r"not there; put "):
        data.load.__wrapped__(f"{kind}:{tmp_path}")


def test_values(made: Callable[[str], Path]) -> None:
    mnist = data.load(f"mnist:{made('mnist')}")
    assert mnist.y.tolist() == list(range(6))
    assert mnist.x[0, 0, 0, :3].tolist() == pytest.approx([0, 1 / 255, 2 / 255])
    cifar = data.load(f"cifar10:{made('cifar10')}")
    assert cifar.y.tolist() == [1, 0, 2, 1, 3, 2, 4, 3, 5, 4]
    torch.testing.assert_close(cifar.x.mean((0, 2, 3)), torch.zeros(3), atol=1e-6, rtol=0)
    torch.testing.assert_close(cifar.x[:2], cifar.x_validation)
    folder = data.load(f"image_folder:{made('image_folder')}")
    assert folder.x[:, :, 5, 5].tolist() == [[1, 0, 0]] * 2 + [[0, 0, 1]] * 2
    assert data.load(f"tiny_imagenet:{made('tiny_imagenet')}").y_validation.tolist() == [1, 0, 1]
    cloud = data.load(f"modelnet40:{made('modelnet40')}")
    assert cloud.y.tolist() == [0, 1]
    assert cloud.x[0, :, :3].norm(dim=1).max().item() == pytest.approx(1)
    assert torch.equal(cloud.x[:, :20], cloud.x[:, 20:40])
    words = data.load(f"wikitext:{made('wikitext')}")
    assert torch.equal(words.x[:, 1:], words.y[:, :-1])
    day = data.load(f"criteo:{made('criteo')}")
    assert day.y.tolist() == [0, 1, 1, 0]
    assert day.x[0][0, :4].tolist() == pytest.approx([torch.tensor(4.0).log().item(), 0, 0, 0])
    assert day.x[1][0, :3].tolist() == [0, 0xFFFFFFFF % 10_000, 0x1A]


def _cut(path: str, to: int) -> Callable[[Path], None]:
    return lambda root: (root / path).write_bytes((root / path).read_bytes()[:to]) and None


def _write(path: str, content: bytes) -> Callable[[Path], None]:
    return lambda root: (root / path).write_bytes(content) and None


class _Harm:
    def __reduce__(self) -> Any:
        return (print, ("harm",))


_LABELS = "train-labels-idx1-ubyte"
_BATCH = "cifar-10-batches-py/data_batch_3"
DAMAGE: list[tuple[str, Callable[[Path], None], str]] = [
    ("mnist", _cut(_LABELS, 11), rf"{_LABELS}, byte 11: has 3 bytes where \(6,\) asks for 6; fetch the file again"),
    ("mnist", _cut(_LABELS, 5), rf"{_LABELS}, byte 5: ends within its head of 8 bytes"),
    ("mnist", _write(_LABELS, b"<html>not found"), rf"{_LABELS}, byte 0: not an IDX file of bytes with 1 axes"),
    ("mnist", _write(_LABELS, _idx(np.full(6, 12, np.uint8))), "byte 8: a label above 9; got 12"),
    ("mnist", _write(_LABELS, _idx(np.zeros(5, np.uint8))), "byte 4: 5 labels for 6 images"),
    ("mnist", _cut("train-images-idx3-ubyte.gz", 40), "gz, byte 40: not a whole gzip file"),
    ("cifar10", _cut(_BATCH, 3000), r"data_batch_3, byte \d+: not a whole pickle"),
    ("cifar10", _write(_BATCH, b""), "data_batch_3, byte 0: not a whole pickle"),
    ("cifar10", _write(_BATCH, b"garbage"), "data_batch_3, byte 0: not a whole pickle"),
    (
        "cifar10",
        _write(_BATCH, pickle.dumps(_Harm(), protocol=2)),
        r"data_batch_3, byte \d+: a pickle that calls a function, which is not run; got '__builtin__ print'",
    ),
    ("cifar10", _write(_BATCH, pickle.dumps({"data": 3}, protocol=2)), "byte 0: not a batch of CIFAR"),
    (
        "cifar10",
        _write(_BATCH, _python2(np.zeros((1, 3072), np.uint8), [10], "labels")),
        "labels that are not between 0 and 9",
    ),
    ("image_folder", _cut("train/cats/1.png", 60), r"cats/1.png, byte 60: not a whole image"),
    (
        "image_folder",
        lambda root: (root / "val" / "birds").mkdir(),
        "birds: a class that training has not; accepted: cats, d",
    ),
    (
        "tiny_imagenet",
        _write("val/val_annotations.txt", b"val_0.JPEG\tn02\nval_1.JPEG\tn77\n"),
        "txt, byte 15: not an image",
    ),
    (
        "modelnet40",
        _write("chair/chair_0001.txt", b"1,2,3,4,5,6\n1,2,x,4,5,6\n"),
        "chair_0001.txt, byte 12: not a point",
    ),
    ("modelnet40", _write("chair/chair_0001.txt", b"1,2,3\n"), "byte 0: 3 numbers where a point has 6"),
    ("modelnet40", lambda root: (root / "chair" / "chair_0001.txt").unlink(), "chair_0001.txt: can't be read"),
    ("modelnet40", _write("modelnet40_train.txt", b"chair_0001\nsofa_0001\n"), "byte 11: not a cloud of a known class"),
    ("shapenet_part", _write("train_test_split/shuffled_val_file_list.json", b'["a",'), "json, byte 5: not JSON"),
    ("shapenet_part", _write("02691156/a1.txt", b"1 2 3 4 5 6 0.5\n"), "a part that is not a whole number"),
    ("wikitext", _write("wikitext-2/wiki.valid.tokens", b"good \xff\xfe bad"), "tokens, byte 5: not UTF-8"),
    ("wikitext", _write("wikitext-2/wiki.valid.tokens", b"few words"), "fewer than 65 words; got 3"),
    (
        "criteo",
        _write("day_1", _day("1").encode() + b"1\t2\n"),
        r"day_1, byte \d+: 2 fields where an impression has 40",
    ),
    ("criteo", _write("day_1", _day("2").encode()), "day_1, byte 0: not an impression"),
    ("criteo", _write("day_1", b""), "day_1, byte 0: holds no impressions"),
]


@pytest.mark.parametrize(("kind", "damage", "words"), DAMAGE)
def test_damage(
    kind: str, damage: Callable[[Path], None], words: str, made: Callable[[str], Path], capsys: Any
) -> None:
    root = made(kind)
    damage(root)
    with pytest.raises(DataError, match=words):
        data.load.__wrapped__(f"{kind}:{root}")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_pickles_of_all_protocols(protocol: int, tmp_path: Path) -> None:
    value = {"a": [1, -2, 300, 70_000, None, True, 1.5], "b": (1, (2, 3)), "c": {}, "d": [], "e": ()}
    path = tmp_path / "values"
    path.write_bytes(pickle.dumps(value, protocol=protocol))
    assert read_pickle(path) == value
    if protocol in (2, 3, 4):
        array = np.asfortranarray(np.arange(6, dtype=np.uint8).reshape(2, 3))
        path.write_bytes(pickle.dumps({"x": array}, protocol=protocol))
        assert read_pickle(path)["x"].tolist() == array.tolist()


def test_one_day_is_split_and_a_study_names_the_directory(made: Callable[[str], Path], tmp_path: Path) -> None:
    root = made("criteo")
    (root / "day_1").unlink()
    (root / "day_0").write_text(_day("01" * 20))
    study = hfta.Study("dlrm", {"lr": [0.1, 0.01]}, f"criteo:{root}", epochs=1, directory=tmp_path / "run", width=2)
    assert (len(study.data), study.data.held_out) == (36, 4)
    for _ in study.run():
        pass
    assert not (tmp_path / "run" / "data.safetensors").exists()
    assert hfta.Study.load(tmp_path / "run").data.name == study.data.name
    assert repr(f"criteo:{root}") in study.to_code()
