"""CIFAR-10 and CIFAR-100: the "python" version."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from hfta_nb.data.readers.files import damaged, present
from hfta_nb.data.readers.pickles import read_pickle
from hfta_nb.data.samples import Data, standard_of

TEN = "data_batch_1 to data_batch_5 and test_batch (of cifar-10-python.tar.gz, unpacked)"
HUNDRED = "train and test (of cifar-100-python.tar.gz, unpacked)"


def _batches(paths: Sequence[Path], labels: str, classes: int) -> tuple[Tensor, Tensor]:
    images, numbers = [], []
    for path in paths:
        found = read_pickle(path)
        held = {k: v for k, v in found.items() if k in ("data", labels)} if isinstance(found, dict) else {}
        x, y = held.get("data"), torch.as_tensor(held.get(labels, []), dtype=torch.long)
        if not isinstance(x, Tensor) or x.ndim != 2 or x.shape[1] != 3072 or len(x) != len(y) or not len(y):
            raise damaged(path, 0, f"not a batch of CIFAR: no images [N, 3072] with as many {labels}")
        if int(y.min()) < 0 or int(y.max()) >= classes:
            raise damaged(path, 0, f"{labels} that are not between 0 and {classes - 1}", y.aminmax())
        images.append(x.view(-1, 3, 32, 32))
        numbers.append(y)
    return torch.cat(images), torch.cat(numbers)


def _data(name: str, train: Sequence[Path], test: Sequence[Path], labels: str, classes: int) -> Data:
    (x, y), (xv, yv) = _batches(train, labels, classes), _batches(test, labels, classes)
    facts = {
        **{"in_features": 3072, "in_channels": 3, "image_size": 32},
        **{"num_classes": classes, "out_features": classes},
    }
    return Data(name, "classification", x, y, xv, yv, facts, standard_of(x))


def cifar10(name: str, directory: Path) -> Data:
    """Images ``[3, 32, 32]``, kept as bytes; a model gets each channel standardised over the training set.

    The test set is for validation.
    """
    train = [present(directory, TEN, [f"data_batch_{i}"]) for i in range(1, 6)]
    return _data(name, train, [present(directory, TEN, ["test_batch"])], "labels", 10)


def cifar100(name: str, directory: Path) -> Data:
    """As `cifar10`, with the hundred fine classes."""
    train, test = ([present(directory, HUNDRED, [split])] for split in ("train", "test"))
    return _data(name, train, test, "fine_labels", 100)
