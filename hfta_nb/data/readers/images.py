"""Images in directories: ImageFolder trees and Tiny ImageNet."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from hfta_nb.data.readers.files import damaged, lines, present
from hfta_nb.data.samples import Data
from hfta_nb.errors import DataError
from hfta_nb.records import regular_files

SIZE = 64
"""Images are brought to 64x64: scaled until the shorter side fits, then cut to the middle."""

ENDINGS = frozenset({".jpeg", ".jpg", ".png", ".bmp", ".gif", ".webp", ".ppm"})
FOLDER = "train/<class>/<image> and val/<class>/<image>"
TINY = "train/<wnid>/images/*.JPEG, val/images/*.JPEG and val/val_annotations.txt (of tiny-imagenet-200.zip)"


def read_image(path: Path | io.BytesIO, shown: str = "") -> Tensor:
    """An image as uint8 ``[3, SIZE, SIZE]``, scaled until its shorter side fits, then cut to the middle.

    Args:
        path: its file, or what is in it.
        shown: where it is from, where it has no path.

    Raises:
        DataError: it can't be decoded.
    """
    from PIL import Image, ImageOps

    try:
        if isinstance(path, Path):
            regular_files.check(path)
        with Image.open(path) as image:
            fitted = ImageOps.fit(image.convert("RGB"), (SIZE, SIZE))
            pixels = fitted.tobytes()
    except (OSError, ValueError, SyntaxError) as error:
        held = path.stat().st_size if isinstance(path, Path) and path.exists() else 0
        length = len(path.getbuffer()) if isinstance(path, io.BytesIO) else held
        raise damaged(shown or str(path), length, f"not a whole image ({error})") from error
    image_bytes = torch.frombuffer(bytearray(pixels), dtype=torch.uint8).view(SIZE, SIZE, 3)
    return image_bytes.movedim(2, 0).contiguous()


def _stacked(found: Sequence[tuple[Path, int]], where: Path) -> tuple[Tensor, Tensor]:
    if not found:
        raise DataError("holds no images", where=str(where), accepted=", ".join(sorted(ENDINGS)))
    return torch.stack([read_image(path) for path, _ in found]), torch.tensor([number for _, number in found])


def listed(directory: Path) -> list[Path]:
    return sorted(p for p in directory.rglob("*") if p.suffix.lower() in ENDINGS)


def _classes(train: Path) -> list[str]:
    found = sorted(p.name for p in train.iterdir() if p.is_dir())
    if not found:
        raise DataError("holds no directory per class", where=str(train), remedy=f"the form is {FOLDER}")
    return found


def _data(name: str, train: tuple[Tensor, Tensor], held: tuple[Tensor, Tensor], classes: int) -> Data:
    facts = {
        **{"in_features": 3 * SIZE**2, "in_channels": 3, "image_size": SIZE},
        **{"num_classes": classes, "out_features": classes},
    }
    return Data(name, "classification", *train, *held, facts)


def image_folder(name: str, directory: Path) -> Data:
    """Images ``[3, 64, 64]``, kept as bytes; classes are the directories in ``train``, in alphabetical order."""
    train = present(directory, FOLDER, ["train"])
    held = present(train.parent, FOLDER, ["val", "test", "validation"])
    classes = _classes(train)
    parts = []
    for place in (train, held):
        unknown = sorted(p.name for p in place.iterdir() if p.is_dir() and p.name not in classes)
        if unknown:
            raise DataError("a class that training has not", where=str(place / unknown[0]), accepted=", ".join(classes))
        parts.append(_stacked([(p, i) for i, c in enumerate(classes) for p in listed(place / c)], place))
    return _data(name, parts[0], parts[1], len(classes))


def tiny_imagenet(name: str, directory: Path) -> Data:
    """Images ``[3, 64, 64]``, kept as bytes, 200 classes."""
    train = present(directory, TINY, ["train"])
    notes = present(train.parent, TINY, ["val/val_annotations.txt"])
    classes = _classes(train)
    found = []
    for offset, line in lines(notes):
        fields = line.split("\t")
        if len(fields) < 2 or fields[1] not in classes:
            raise damaged(notes, offset, "not an image and its class", line)
        found.append((notes.parent / "images" / fields[0], classes.index(fields[1])))
    training = [(p, i) for i, c in enumerate(classes) for p in listed(train / c)]
    return _data(name, _stacked(training, train), _stacked(found, notes.parent), len(classes))
