"""Point clouds: ModelNet40 (normals, resampled) and ShapeNet-part."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hfta_nb.data.readers.files import contents, damaged, lines, present
from hfta_nb.data.samples import Data
from hfta_nb.records import regular_files

POINTS = 1024
"""Points that are kept of a cloud: the first ones (ModelNet's are in random order); a smaller cloud repeats its own."""

MODELNET = (
    "modelnet40_shape_names.txt, modelnet40_train.txt, modelnet40_test.txt and <class>/<cloud>.txt "
    "(of modelnet40_normal_resampled.zip)"
)
SHAPENET = (
    "synsetoffset2category.txt, train_test_split/ and <synset>/<cloud>.txt "
    "(of shapenetcore_partanno_segmentation_benchmark_v0_normal.zip)"
)


def read_cloud(path: Path, columns: int, separator: str | None) -> Tensor:
    """Rows of numbers, ``[P, columns]``.

    Raises:
        DataError: a line has another number of them, or something else.
    """
    rows = []
    for offset, line in lines(path):
        fields = line.split(separator)
        try:
            rows.append([float(v) for v in fields])
        except ValueError as error:
            raise damaged(path, offset, f"not a point ({error})", line) from error
        if len(fields) != columns:
            raise damaged(path, offset, f"{len(fields)} numbers where a point has {columns}", line)
    cloud = torch.tensor(rows, dtype=torch.float64)
    if not rows or not torch.isfinite(cloud).all():
        raise damaged(path, 0, "no points, or some that are not finite")
    return cloud


def _kept(cloud: Tensor, spread: bool = False) -> Tensor:
    """`POINTS` of the rows: the first, or some from everywhere."""
    if spread and len(cloud) > POINTS:
        return cloud[torch.arange(POINTS) * len(cloud) // POINTS]
    return cloud[torch.arange(POINTS) % len(cloud)]


def scaled(points: Tensor) -> Tensor:
    """Centred, and scaled to radius 1; normals as they are."""
    place = points[:, :3] - points[:, :3].mean(0)
    return torch.cat([place / place.norm(dim=1).max().clamp(min=1e-12), points[:, 3:6]], 1).float()


def modelnet40(name: str, directory: Path) -> Data:
    """Clouds ``[1024, 6]`` of points and normals, 40 classes; the test set is for validation."""
    names = present(directory, MODELNET, ["modelnet40_shape_names.txt"])
    classes = [line.strip() for _, line in lines(names)]
    parts = []
    for split in ("train", "test"):
        listed = present(names.parent, MODELNET, [f"modelnet40_{split}.txt"])
        x, y = [], []
        for offset, line in lines(listed):
            kind = line.strip().rpartition("_")[0]
            if kind not in classes:
                raise damaged(listed, offset, "not a cloud of a known class", line)
            x.append(scaled(_kept(read_cloud(names.parent / kind / f"{line.strip()}.txt", 6, ","))))
            y.append(classes.index(kind))
        if not x:
            raise damaged(listed, 0, "lists no clouds")
        parts.append((torch.stack(x), torch.tensor(y)))
    return classified(name, parts, len(classes))


def classified(name: str, parts: Sequence[tuple[Tensor, Tensor]], classes: int) -> Data:
    """Clouds with normals, for training and for validation, each with the number of its class."""
    facts = {"in_features": 6 * POINTS, "in_channels": 6, "num_classes": classes, "out_features": classes}
    return Data(name, "classification", *parts[0], *parts[1], facts)


def _list(path: Path) -> list[str]:
    try:
        found: Any = regular_files.parsed(contents(path))
    except ValueError as error:
        raise damaged(path, getattr(error, "pos", 0), f"not JSON ({error})") from error
    if not isinstance(found, list) or not all(isinstance(v, str) for v in found) or not found:
        raise damaged(path, 0, "not a list of clouds")
    return found


def _parts(root: Path, listed: Sequence[str]) -> tuple[Tensor, Tensor]:
    x, y = [], []
    for entry in listed:  # "shape_data/02691156/1a04e3e..."
        path = root / Path(*Path(entry).parts[-2:]).with_suffix(".txt")
        cloud = _kept(read_cloud(path, 7, None), spread=True)
        labels = cloud[:, 6].long()
        if int(labels.min()) < 0 or not torch.equal(labels.double(), cloud[:, 6]):
            raise damaged(path, 0, "a part that is not a whole number")
        x.append(scaled(cloud))
        y.append(labels)
    return torch.stack(x), torch.stack(y)


def shapenet_part(name: str, directory: Path) -> Data:
    """Clouds ``[1024, 6]`` of points and normals, and the part of each point ``[1024]``, 50 parts of 16 categories."""
    root = present(directory, SHAPENET, ["synsetoffset2category.txt"]).parent
    parts = []
    for split in ("train", "val"):
        listed = present(root, SHAPENET, [f"train_test_split/shuffled_{split}_file_list.json"])
        parts.append(_parts(root, _list(listed)))
    (x, y), (xv, yv) = parts
    facts = {"in_channels": 6, "num_classes": max(int(y.max()), int(yv.max())) + 1}
    return Data(name, "segmentation", x, y, xv, yv, facts)
