"""ModelNet40 as point clouds in HDF5 files; needs h5py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hfta_nb.data.readers.clouds import POINTS, scaled
from hfta_nb.data.readers.files import damaged, lines, optional, present
from hfta_nb.data.samples import Data
from hfta_nb.records import regular_files

FILES = "train_files.txt, test_files.txt, shape_names.txt and ply_data_*.h5 (of modelnet40_ply_hdf5_2048.zip)"


def read_clouds(path: Path) -> tuple[Tensor, Tensor]:
    """Points ``[N, P, 3]``, with normals ``[N, P, 6]`` where the file has them, and class numbers ``[N]``.

    Raises:
        DataError: h5py is not installed, or the file is damaged or another one.
    """
    h5py = optional("h5py", "data", "read HDF5 files")
    size = path.stat().st_size if path.exists() else 0
    try:
        regular_files.check(path)
        with h5py.File(path, "r") as file:
            held: dict[str, Any] = {k: torch.as_tensor(file[k][()]) for k in ("data", "label", "normal") if k in file}
    except (OSError, RuntimeError, KeyError, TypeError) as error:
        raise damaged(path, size, f"not a whole HDF5 file ({error})") from error
    points, labels = held.get("data"), held.get("label")
    if points is None or labels is None or points.ndim != 3 or points.shape[2] != 3 or len(points) != len(labels):
        shapes = {k: tuple(v.shape) for k, v in held.items()}
        raise damaged(path, 0, "no data [N, P, 3] with as many labels", shapes)
    parts = [points, held["normal"]] if "normal" in held and held["normal"].shape == points.shape else [points]
    clouds = torch.cat(parts, 2).double()
    if not torch.isfinite(clouds).all():
        raise damaged(path, 0, "points that are not finite")
    return clouds, labels.reshape(-1).long()


def modelnet40_hdf5(name: str, directory: Path) -> Data:
    """Clouds ``[1024, 3]`` of points (``[1024, 6]`` with normals); the test set is for validation."""
    names = present(directory, FILES, ["shape_names.txt"])
    classes = sum(1 for _ in lines(names))
    parts = []
    for split in ("train", "test"):
        listed = present(names.parent, FILES, [f"{split}_files.txt"])
        x, y = [], []
        for _, line in lines(listed):  # "data/modelnet40_ply_hdf5_2048/ply_data_train0.h5"
            path = names.parent / Path(line.strip()).name
            clouds, labels = read_clouds(present(names.parent, FILES, [path.name]))
            if len(labels) and (int(labels.min()) < 0 or int(labels.max()) >= classes):
                raise damaged(path, 0, f"labels that are not between 0 and {classes - 1}", labels.aminmax())
            x += [scaled(cloud[torch.arange(POINTS) % len(cloud)]) for cloud in clouds]
            y.append(labels)
        if not x:
            raise damaged(listed, 0, "lists no clouds")
        parts.append((torch.stack(x), torch.cat(y)))
    channels = parts[0][0].shape[2]
    facts = {
        **{"in_features": channels * POINTS, "in_channels": channels},
        **{"num_classes": classes, "out_features": classes},
    }
    return Data(name, "classification", *parts[0], *parts[1], facts)
