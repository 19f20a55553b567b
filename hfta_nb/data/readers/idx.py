"""MNIST and Fashion-MNIST: IDX files."""

from __future__ import annotations

import struct
from pathlib import Path

import torch
from torch import Tensor

from hfta_nb.data.readers.files import contents, damaged, present
from hfta_nb.data.samples import Data
from hfta_nb.data.tensors import facts_of

FILES = "train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte (or .gz)"


def read_idx(path: Path, axes: int) -> Tensor:
    """A file of bytes with this many axes, as a tensor of them.

    Source: the format as described by LeCun et al. at yann.lecun.com/exdb/mnist.

    Raises:
        DataError: it is not such a file, or it is cut short or too long.
    """
    data = contents(path)
    start = 4 + 4 * axes
    if len(data) < start:
        raise damaged(path, len(data), f"ends within its head of {start} bytes")
    if data[:4] != bytes((0, 0, 8, axes)):
        raise damaged(path, 0, f"not an IDX file of bytes with {axes} axes", data[:4].hex(" "))
    shape = struct.unpack(f">{axes}I", data[4:start])
    size = 1
    for length in shape:
        size *= length
    if len(data) != start + size:
        raise damaged(
            path, min(len(data), start + size), f"has {len(data) - start} bytes where {shape} asks for {size}"
        )
    return torch.frombuffer(bytearray(data[start:]), dtype=torch.uint8).view(shape) if size else torch.empty(shape)


def mnist(name: str, directory: Path) -> Data:
    """Images ``[1, 28, 28]``, kept as bytes, ten classes; the test set is for validation."""
    parts = []
    for split in ("train", "t10k"):
        paths = [
            present(directory, FILES, [f"{split}-{kind}{end}" for end in ("", ".gz")])
            for kind in ("images-idx3-ubyte", "labels-idx1-ubyte")
        ]
        images, labels = read_idx(paths[0], 3), read_idx(paths[1], 1).long()
        if len(images) != len(labels) or not len(images):
            raise damaged(paths[1], 4, f"{len(labels)} labels for {len(images)} images")
        if int(labels.max()) > 9:
            raise damaged(paths[1], 8 + int(labels.argmax()), "a label above 9", int(labels.max()))
        parts.append((images.unsqueeze(1), labels))
    (x, y), (xv, yv) = parts
    facts = facts_of("classification", x, y) | {"num_classes": 10, "out_features": 10}
    return Data(name, "classification", x, y, xv, yv, facts)
