"""Images to learn to generate: a folder of them, and LSUN (which needs lmdb)."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from hfta_nb.data.readers.files import damaged, optional, present
from hfta_nb.data.readers.images import ENDINGS, listed, read_image
from hfta_nb.data.samples import Data
from hfta_nb.data.tensors import split_rows
from hfta_nb.errors import DataError

HELD_OUT = 0.1
"""The part that is kept for validation where there is no directory of its own."""

MOST = 50_000
"""Images of LSUN that are kept, the first ones: its categories have up to 10 million."""

IMAGES = "images, in any directories; or train/ and val/ with images in them"
LSUN = "<category>_train_lmdb/data.mdb and <category>_val_lmdb/data.mdb (of <category>_train_lmdb.zip, ...)"


def _pictures(name: str, x: Tensor, held: Tensor) -> Data:
    """Images of bytes; a model gets them in [-1, 1]. There are no targets."""
    facts = {"in_channels": x.shape[1], "image_size": x.shape[-1]}
    targets = (torch.zeros(len(t), dtype=torch.long) for t in (x, held))
    half = torch.full((x.shape[1],), 0.5)
    y, yv = targets
    return Data(name, "generation", x, y, held, yv, facts, (half, half))


def image_files(name: str, directory: Path) -> Data:
    """Images ``[3, 64, 64]``; a tenth is for validation where there is no directory ``val``."""
    present(directory, IMAGES, ["."])
    train = directory / "train"
    paths = listed(train if train.is_dir() else directory)
    if not paths:
        raise DataError("not there", where=str(directory), remedy=f"put {IMAGES} into {directory}")
    x = torch.stack([read_image(path) for path in paths])
    if train.is_dir() and (directory / "val").is_dir():
        held = listed(directory / "val")
        if not held:
            raise DataError("holds no images", where=str(directory / "val"), accepted=", ".join(sorted(ENDINGS)))
        return _pictures(name, x, torch.stack([read_image(path) for path in held]))
    rows, aside = split_rows(len(x), HELD_OUT)
    return _pictures(name, x[rows], x[aside])


def read_lmdb(path: Path) -> Iterator[Tensor]:
    """The first images of a category of LSUN, each uint8 ``[3, 64, 64]``.

    Raises:
        DataError: lmdb is not installed, or the file or an image in it is damaged.
    """
    lmdb = optional("lmdb", "data", "read LSUN")
    file = path / "data.mdb"
    size = file.stat().st_size
    try:
        with lmdb.open(str(path), readonly=True, lock=False, readahead=False, meminit=False) as env:
            # The file is mapped into memory: reading beyond its end would end this process.
            end = (env.info()["last_pgno"] + 1) * env.stat()["psize"]
            if size < end:
                raise damaged(file, size, f"cut short: it should have {end} bytes")
            with env.begin(buffers=False) as transaction:
                for number, (key, value) in enumerate(transaction.cursor()):
                    if number == MOST:
                        return
                    shown = f"{file}, key {key.decode('latin-1')}"
                    yield read_image(io.BytesIO(value), shown=shown)
    except lmdb.Error as error:
        raise damaged(file, size, f"not a whole LMDB file ({error})") from error


def lsun(name: str, directory: Path) -> Data:
    """Images ``[3, 64, 64]`` of one category, the first 50,000; its validation set is for validation."""
    places = [directory, *(p for p in sorted(directory.glob("*")) if p.is_dir())] if directory.is_dir() else []
    found = [p for place in places for p in sorted(place.glob("*_train_lmdb")) if (p / "data.mdb").is_file()]
    if not found:
        present(directory, LSUN, ["bedroom_train_lmdb"])
    if len(found) != 1:
        raise DataError(
            "several categories",
            where=str(directory),
            got=[p.name for p in found],
            remedy="give each a directory of its own, lsun:<directory>",
        )
    held = present(found[0].parent, LSUN, [found[0].name.replace("_train_", "_val_")])
    parts = []
    for path in (found[0], held):
        images = list(read_lmdb(path))
        if not images:
            raise damaged(path / "data.mdb", 0, "holds no images")
        parts.append(torch.stack(images))
    return _pictures(name, parts[0], parts[1])
