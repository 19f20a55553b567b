"""Data sets that users have in directories, one reader each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hfta_nb.data.readers.cifar import cifar10, cifar100
from hfta_nb.data.readers.clouds import modelnet40, shapenet_part
from hfta_nb.data.readers.criteo import criteo
from hfta_nb.data.readers.files import directory_of
from hfta_nb.data.readers.generation import image_files, lsun
from hfta_nb.data.readers.hdf5 import modelnet40_hdf5
from hfta_nb.data.readers.idx import mnist
from hfta_nb.data.readers.images import image_folder, tiny_imagenet
from hfta_nb.data.readers.meshes import modelnet40_off
from hfta_nb.data.readers.wikitext import wikitext
from hfta_nb.data.samples import Data

READERS: dict[str, Callable[[str, Path], Data]] = {
    "mnist": mnist,
    "fashion_mnist": mnist,
    "cifar10": cifar10,
    "cifar100": cifar100,
    "tiny_imagenet": tiny_imagenet,
    "image_folder": image_folder,
    "image_files": image_files,
    "lsun": lsun,
    "modelnet40": modelnet40,
    "modelnet40_off": modelnet40_off,
    "modelnet40_hdf5": modelnet40_hdf5,
    "shapenet_part": shapenet_part,
    "wikitext": wikitext,
    "criteo": criteo,
}


def read(kind: str, directory: str | Path | None = None) -> Data:
    """Read a data set of one of these kinds; its name contains the directory.

    Raises:
        DataError: it is missing, or a file is damaged.
    """
    place = directory_of(kind, directory).absolute()
    return READERS[kind](f"{kind}:{place}", place)


__all__ = ["READERS", "read"]
