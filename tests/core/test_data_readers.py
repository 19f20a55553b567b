"""Readers of users' data sets, on small files in the real formats; errors name the damaged byte."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hfta_nb as hfta
from hfta_nb import data
from hfta_nb.data.readers import READERS
from hfta_nb.data.readers.meshes import _triangles_only, read_off, sampled
from hfta_nb.data.readers.pickles import read_pickle
from hfta_nb.errors import DataError
from tests.core.data_files import CUBE, WRITERS, day, idx, python2

EXPECTED: dict[str, tuple[tuple[int, int], list[tuple[int, ...]], dict[str, int]]] = {
    "mnist": ((6, 3), [(1, 28, 28)], {"num_classes": 10, "in_channels": 1}),
    "fashion_mnist": ((6, 3), [(1, 28, 28)], {"num_classes": 10}),
    "cifar10": ((10, 2), [(3, 32, 32)], {"num_classes": 10, "in_channels": 3, "image_size": 32}),
    "cifar100": ((3, 3), [(3, 32, 32)], {"num_classes": 100}),
    "image_folder": ((4, 2), [(3, 64, 64)], {"num_classes": 2}),
    "tiny_imagenet": ((2, 3), [(3, 64, 64)], {"num_classes": 2}),
    "modelnet40": ((2, 1), [(1024, 6)], {"num_classes": 2, "in_channels": 6}),
    "modelnet40_off": ((2, 2), [(1024, 6)], {"num_classes": 2, "in_channels": 6}),
    "modelnet40_hdf5": ((3, 2), [(1024, 3)], {"num_classes": 2, "in_channels": 3}),
    "image_files": ((18, 2), [(3, 64, 64)], {"in_channels": 3, "image_size": 64}),
    "lsun": ((4, 2), [(3, 64, 64)], {"in_channels": 3, "image_size": 64}),
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
    assert data.task_of(kind) == d.task
    assert d.x.dtype == torch.uint8 if "image_size" in d.facts else True
    assert all(t.dtype in (torch.float32, torch.int64) for t in data.leaves(d.sample(2)))
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
    assert mnist.sample(1)[0, 0, 0, :3].tolist() == pytest.approx([0, 1 / 255, 2 / 255])
    cifar = data.load(f"cifar10:{made('cifar10')}")
    assert cifar.y.tolist() == [1, 0, 2, 1, 3, 2, 4, 3, 5, 4]
    x = cifar.sample(10, dtype=torch.float64)
    torch.testing.assert_close(x.mean((0, 2, 3)), torch.zeros(3).double(), atol=1e-6, rtol=0)
    torch.testing.assert_close(x.std((0, 2, 3)), torch.ones(3).double(), atol=1e-6, rtol=0)
    torch.testing.assert_close(cifar.x[:2], cifar.x_validation)
    folder = data.load(f"image_folder:{made('image_folder')}")
    assert folder.sample(4)[:, :, 5, 5].tolist() == [[1, 0, 0]] * 2 + [[0, 0, 1]] * 2
    pictures = data.load(f"lsun:{made('lsun')}")
    assert pictures.sample(4)[:, :2, 9, 9].tolist() == [[1, -1]] * 4
    assert data.load(f"image_files:{made('image_files')}").sample(1)[0, :2, 9, 9].tolist() == [-1, 1]
    assert data.load(f"tiny_imagenet:{made('tiny_imagenet')}").y_validation.tolist() == [1, 0, 1]
    cloud = data.load(f"modelnet40:{made('modelnet40')}")
    assert cloud.y.tolist() == [0, 1]
    assert cloud.x[0, :, :3].norm(dim=1).max().item() == pytest.approx(1)
    assert torch.equal(cloud.x[:, :20], cloud.x[:, 20:40])
    words = data.load(f"wikitext:{made('wikitext')}")
    assert torch.equal(words.x[:, 1:], words.y[:, :-1])
    assert " ".join(words.words[i] for i in words.x[0, :9]) == "= Title = <eos> the cat sat on the"
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
_OFF = "ModelNet40/table/train/table_0001.off"
_BATCH = "cifar-10-batches-py/data_batch_3"
DAMAGE: list[tuple[str, Callable[[Path], None], str]] = [
    ("mnist", _cut(_LABELS, 11), rf"{_LABELS}, byte 11: has 3 bytes where \(6,\) asks for 6; fetch the file again"),
    ("mnist", _cut(_LABELS, 5), rf"{_LABELS}, byte 5: ends within its head of 8 bytes"),
    ("mnist", _write(_LABELS, b"<html>not found"), rf"{_LABELS}, byte 0: not an IDX file of bytes with 1 axes"),
    ("mnist", _write(_LABELS, idx(np.full(6, 12, np.uint8))), "byte 8: a label above 9; got 12"),
    ("mnist", _write(_LABELS, idx(np.zeros(5, np.uint8))), "byte 4: 5 labels for 6 images"),
    ("mnist", _cut("train-images-idx3-ubyte.gz", 40), "gz, byte 40: not a whole gzip file"),
    ("cifar10", _cut(_BATCH, 3000), r"data_batch_3, byte \d+: not a whole pickle"),
    ("cifar10", _write(_BATCH, b""), "data_batch_3, byte 0: not a whole pickle"),
    ("cifar10", _write(_BATCH, b"garbage"), r"data_batch_3, byte \d+: not a whole pickle"),
    (
        "cifar10",
        _write(_BATCH, pickle.dumps(_Harm(), protocol=2)),
        r"data_batch_3, byte \d+: a pickle that calls a function, which is not run; got '__builtin__ print'",
    ),
    ("cifar10", _write(_BATCH, pickle.dumps({"data": 3}, protocol=2)), "byte 0: not a batch of CIFAR"),
    (
        "cifar10",
        _write(_BATCH, python2(np.zeros((1, 3072), np.uint8), [10], "labels")),
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
    ("modelnet40_off", _write(_OFF, b"ply\n"), "off, byte 0: not an OFF file; got 'ply'"),
    ("modelnet40_off", _write(_OFF, b"OFF\nmany faces\n"), "off, byte 4: not the numbers of corners and faces"),
    ("modelnet40_off", _write(_OFF, b"OFF\n1 1 0\n0 0\n"), "off, byte 10: not a corner"),
    ("modelnet40_off", _write(_OFF, b"OFF 3 1 0\n0 0 0\n1 0 0\n0 1 0\n3 0 1 3\n"), "byte 28: not a face of these 3"),
    ("modelnet40_off", _write(_OFF, b"OFF 3 1 0\n0 0 0\n1 0 0\n0 nan 0\n3 0 1 2\n"), "byte 22: not a corner"),
    ("modelnet40_off", _write(_OFF, b"OFF 3 1 0\n0 0 0\n1 0 0\n0 1 0\n3 0 x 2\n"), "byte 28: not a face"),
    ("modelnet40_off", _write(_OFF, b"OFF 3 1 0\n0 0 0\n1 0 0\n2 0 0\n3 0 1 2\n"), "byte 0: no surface to draw points"),
    ("modelnet40_off", _cut(_OFF, 28), r"off, byte 28: ends after 3 of 8 corners and 0 of 11 faces"),
    ("modelnet40_hdf5", _cut("ply_data_train0.h5", 3000), "h5, byte 3000: not a whole HDF5 file"),
    ("modelnet40_hdf5", _write("ply_data_test0.h5", b""), "h5, byte 0: not a whole HDF5 file"),
    ("modelnet40_hdf5", _write("shape_names.txt", b"airplane\n"), "h5, byte 0: labels that are not between 0 and 0"),
    ("modelnet40_hdf5", lambda root: (root / "ply_data_test0.h5").unlink(), "ply_data_test0.h5: not there; put"),
    ("image_files", _cut("1/7.png", 60), r"7.png, byte 60: not a whole image"),
    ("lsun", _cut("bedroom_train_lmdb/data.mdb", 8192), r"data.mdb, byte 8192: cut short: it should have \d+ bytes"),
    ("lsun", _write("bedroom_val_lmdb/data.mdb", b"x" * 5000), "data.mdb, byte 5000: not a whole LMDB file"),
    ("shapenet_part", _write("train_test_split/shuffled_val_file_list.json", b'["a",'), "json, byte 5: not JSON"),
    ("shapenet_part", _write("02691156/a1.txt", b"1 2 3 4 5 6 0.5\n"), "a part that is not a whole number"),
    ("wikitext", _write("wikitext-2/wiki.valid.tokens", b"good \xff\xfe bad"), "tokens, byte 5: not UTF-8"),
    ("wikitext", _write("wikitext-2/wiki.valid.tokens", b"few words"), "fewer than 65 words; got 3"),
    (
        "criteo",
        _write("day_1", day("1").encode() + b"1\t2\n"),
        r"day_1, byte \d+: 2 fields where an impression has 40",
    ),
    ("criteo", _write("day_1", day("2").encode()), "day_1, byte 0: not an impression"),
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


def test_points_lie_evenly_on_the_surface(made: Callable[[str], Path]) -> None:
    root = made("modelnet40_off")
    corners, triangles = read_off(root / "ModelNet40" / "chair" / "train" / "chair_0001.off")
    assert (corners.shape, triangles.shape) == ((8, 3), (12, 3))  # the polygon became two
    again, _ = read_off(root / _OFF)
    assert torch.equal(again, corners)
    usual = root / "usual.off"  # triangles alone, which are read in one go
    lines = CUBE.splitlines()
    usual.write_text("\n".join([lines[0], "8 12 0", *lines[3:11], "3 4 5 6", "3 4 6 7", *lines[12:]]) + "\n")
    assert _triangles_only(usual.read_bytes()) is not None
    assert _triangles_only((root / _OFF).read_bytes()) is None
    assert all(torch.equal(a, b) for a, b in zip(read_off(usual), (corners, triangles), strict=True))
    cloud = sampled(corners, triangles, 60_000, 0)
    place, normal = cloud[:, :3], cloud[:, 3:]
    assert torch.equal(sampled(corners, triangles, 60_000, 0), cloud)
    inner = place - 0.5
    assert torch.allclose(inner.abs().amax(1), torch.tensor(0.5).double())  # on a side of the cube
    torch.testing.assert_close((inner * normal).sum(1), torch.full((60_000,), 0.5).double())  # normals point outwards
    sides = (normal * torch.tensor([1.0, 2.0, 3.0]).double()).sum(1).round()
    counts = torch.stack([(sides == side).sum() for side in (-3, -2, -1, 1, 2, 3)])
    assert (counts - 10_000).abs().max() < 500  # 5.5 standard deviations
    quarter = ((inner[:, 0] > 0) & (inner[:, 1] > 0) & (sides == 3)).sum()
    assert abs(int(quarter) - 2500) < 275
    # One large and one small triangle: by area.
    flat = torch.tensor([[0, 0, 0], [3, 0, 0], [0, 1, 0], [-1, 0, 0]]).double()
    cloud = sampled(flat, torch.tensor([[0, 1, 2], [0, 2, 3]]), 10_000, 1)
    assert abs(int((cloud[:, 0] > 0).sum()) - 7500) < 240


def test_several_categories_of_lsun_are_told(made: Callable[[str], Path]) -> None:
    root = made("lsun")
    (root / "bedroom_train_lmdb").rename(root / "church_train_lmdb")
    with pytest.raises(DataError, match=r"church_val_lmdb: not there; put"):
        data.load.__wrapped__(f"lsun:{root}")
    (root / "bedroom_train_lmdb").mkdir()
    (root / "bedroom_train_lmdb" / "data.mdb").write_bytes(b"")
    with pytest.raises(DataError, match=r"several categories; got .*give each a directory of its own"):
        data.load.__wrapped__(f"lsun:{root}")


@pytest.mark.parametrize(("kind", "package"), [("modelnet40_hdf5", "h5py"), ("lsun", "lmdb")])
def test_packages_that_are_optional(
    kind: str, package: str, made: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = made(kind)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(DataError, match=rf'{package} is needed to read .*pip install "hfta_nb\[data\]"'):
        data.load.__wrapped__(f"{kind}:{root}")


def test_directories_that_are_there_are_found(
    made: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HFTA_NB_DATA", str(tmp_path))
    assert data.found() == []
    made("mnist")
    made("wikitext")
    assert data.found() == ["mnist", "wikitext"]
    assert data.found(["language_model"]) == ["wikitext"]
    assert data.names_for(["click"]) == ["clicks", "criteo"]


def test_tasks_by_name() -> None:
    for name in ("digits", "breast_cancer", "diabetes"):  # of the others `test_data_sets` tells
        assert data.task_of(name) == data.load(name).task
    assert data.task_of("cifar10:/somewhere") == "classification"
    assert data.task_of("nothing") is None


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


def _numbered(index: int) -> bytes:
    """A value that is kept under a number, for which a reader may make room."""
    return b"K\x01r" + index.to_bytes(4, "little") + b"."


def _doubled(times: int) -> bytes:
    """A list of the same list twice, which holds the same list twice, and so on."""
    return b"]q\x00" + b"".join(b"0](h%ch%ceq%c" % (k, k, k + 1) for k in range(times)) + b"."


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"cbuiltins\nprint\n(S'x'\ntR.", "calls a function, which is not run; got 'builtins print'"),
        (b"(S'x'\nibuiltins\nprint\n.", "calls a function, which is not run; got 'builtins print'"),
        (b"\x80\x02cbuiltins\nprint\n)\x81.", "not a whole pickle"),  # NEWOBJ
        (b"cnumpy\ndtype\n}S'name'\nS'builtins print'\nsb.", "not a whole pickle"),  # BUILD of a name
        (b"]}S'x'\nK\x01sb.", "not a whole pickle"),  # BUILD of a list
        (b"\x80\x02\x82\x01.", "extension 1"),
        (b"Pan id\n.", "not a whole pickle"),
        (b"\x80\x05\x97.", "not a whole pickle"),  # a buffer from outside
        (b"\x80\x04\x8e" + (1 << 40).to_bytes(8, "little") + b"x.", "not a whole pickle"),  # a terabyte of bytes
    ],
)
def test_what_pickles_may_not_do(content: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "harm").write_bytes(content)
    with pytest.raises(DataError, match=words):
        read_pickle(tmp_path / "harm")


def test_pickles_take_no_more_room_than_they_have(tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(_numbered(2**32 - 1))
    assert read_pickle(tmp_path / "one") == 1
    (tmp_path / "many").write_bytes(_doubled(60))
    assert len(read_pickle(tmp_path / "many")) == 2


def test_one_day_is_split_and_a_study_names_the_directory(made: Callable[[str], Path], tmp_path: Path) -> None:
    root = made("criteo")
    (root / "day_1").unlink()
    (root / "day_0").write_text(day("01" * 20))
    study = hfta.Study("dlrm", {"lr": [0.1, 0.01]}, f"criteo:{root}", epochs=1, directory=tmp_path / "run", width=2)
    assert (len(study.data), study.data.held_out) == (36, 4)
    list(study.run())
    assert not (tmp_path / "run" / "data.safetensors").exists()
    assert hfta.Study.load(tmp_path / "run").data.name == study.data.name
    assert repr(f"criteo:{root}") in study.to_code()
