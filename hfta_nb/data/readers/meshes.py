"""ModelNet40 as published: a mesh in an OFF file per object."""

from __future__ import annotations

import itertools
import math
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from hfta_nb.data.readers.clouds import POINTS, classified, scaled
from hfta_nb.data.readers.files import contents, damaged, present
from hfta_nb.data.samples import Data
from hfta_nb.errors.caught_warnings import caught_warnings

FILES = "<class>/train/<object>.off and <class>/test/<object>.off (of ModelNet40.zip)"


def read_off(path: Path) -> tuple[Tensor, Tensor]:
    """Corners ``[V, 3]`` and triangles ``[F, 3]`` (polygons are cut into some) of a mesh.

    Some of ModelNet40's files have the counts on the line of the word OFF; both ways are read. What stands behind the
    corners of a face (a colour) is left out.

    Raises:
        DataError: it is not such a file, or it is cut short.
    """
    data = contents(path)
    quick = _triangles_only(data)
    if quick is not None:
        return quick
    rows = _rows(data)
    offset, head = next(rows, (0, b""))
    if not head.startswith(b"OFF"):
        raise damaged(path, 0, "not an OFF file", head[:20].decode("latin-1"))
    offset, counts = (offset, head[3:]) if head[3:].strip() else next(rows, (offset, b""))
    try:
        corners, faces = (int(v) for v in counts.split()[:2])
    except ValueError as error:
        raise damaged(path, offset, "not the numbers of corners and faces", counts.decode("latin-1")) from error
    places = []
    for offset, line in rows:
        try:
            x, y, z = map(float, line.split()[:3])
        except ValueError as error:
            raise damaged(path, offset, f"not a corner ({error})", line.decode("latin-1")) from error
        if not math.isfinite(x + y + z):
            raise damaged(path, offset, "not a corner (not finite)", line.decode("latin-1"))
        places.append((x, y, z))
        if len(places) == corners:
            break
    triangles = []
    count = 0
    for offset, line in rows if faces else ():
        try:
            size, *numbers = map(int, line.split()[: 1 + int(line.split()[0])])
        except (ValueError, IndexError) as error:
            raise damaged(path, offset, f"not a face ({error})", line.decode("latin-1")) from error
        if len(numbers) != size or size < 3 or min(numbers) < 0 or max(numbers) >= corners:
            raise damaged(path, offset, f"not a face of these {corners} corners", line.decode("latin-1"))
        triangles += [(numbers[0], a, b) for a, b in itertools.pairwise(numbers[1:])]
        count += 1
        if count == faces:
            break
    if len(places) != corners or count != faces or not triangles:
        what = f"ends after {len(places)} of {corners} corners and {count} of {faces} faces"
        raise damaged(path, path.stat().st_size, what)
    return torch.tensor(places, dtype=torch.float64), torch.tensor(triangles)


def _triangles_only(data: bytes) -> tuple[Tensor, Tensor] | None:
    """Fast path for files of numbers only in which every face is a triangle; None for other files."""
    with caught_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # that the text ends in something else is seen below
        try:
            numbers = np.fromstring(data[3:].decode("ascii"), dtype=np.float64, sep=" ")
        except ValueError:
            return None
    if not data.startswith(b"OFF") or len(numbers) < 3 or not (np.isfinite(numbers[:2]).all() and numbers[1] > 0):
        return None
    corners, faces = int(numbers[0]), int(numbers[1])
    if len(numbers) != 3 + 3 * corners + 4 * faces:
        return None
    places = torch.from_numpy(numbers[3 : 3 + 3 * corners]).view(-1, 3)
    table = torch.from_numpy(numbers[3 + 3 * corners :]).view(-1, 4)
    triangles = table[:, 1:].long()
    whole = bool((table[:, 0] == 3).all()) and torch.equal(triangles.double(), table[:, 1:])
    if not whole or int(triangles.min()) < 0 or int(triangles.max()) >= corners or not places.isfinite().all():
        return None
    return places.contiguous(), triangles


def _rows(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Lines that say something, each with the byte at which it begins."""
    offset = 0
    for line in data.split(b"\n"):
        kept = line.split(b"#")[0].strip()
        if kept:
            yield offset, kept
        offset += len(line) + 1


def sampled(corners: Tensor, triangles: Tensor, points: int, seed: int) -> Tensor:
    """Points drawn uniformly from the surface, and the normals of their faces: ``[points, 6]``.

    Args:
        corners: ``[V, 3]``.
        triangles: ``[F, 3]``, numbers of corners.
        points: how many.
        seed: seed of the drawn points.

    Source: Osada et al. 2002, Shape distributions, section 3.1 (a triangle by its area, then a place in it).
    """
    generator = torch.Generator().manual_seed(seed)
    a, b, c = corners[triangles].unbind(1)
    across = torch.linalg.cross(b - a, c - a)
    areas = across.norm(dim=1)
    chosen = torch.multinomial(areas, points, replacement=True, generator=generator)
    u, v = torch.rand(2, points, 1, generator=generator, dtype=corners.dtype)
    root = u.sqrt()
    place = (1 - root) * a[chosen] + root * (1 - v) * b[chosen] + root * v * c[chosen]
    normals = across[chosen] / areas[chosen].clamp(min=1e-300).unsqueeze(1)
    return torch.cat([place, normals], 1)


def modelnet40_off(name: str, directory: Path) -> Data:
    """Clouds ``[1024, 6]`` of points drawn from meshes and their normals; the test set is for validation.

    An object's points depend on its name alone. Classes are the directories, in alphabetical order.
    """
    root = present(directory, FILES, ["chair", "airplane", "bathtub"]).parent
    classes = sorted(p.name for p in root.iterdir() if (p / "train").is_dir())
    parts = []
    for split in ("train", "test"):
        x, y = [], []
        for number, kind in enumerate(classes):
            for path in sorted((root / kind / split).glob("*.off")):
                corners, triangles = read_off(path)
                seed = zlib.crc32(f"{kind}/{split}/{path.name}".encode())
                try:
                    x.append(scaled(sampled(corners, triangles, POINTS, seed)))
                except RuntimeError as error:  # no face has an area
                    raise damaged(path, 0, f"no surface to draw points from ({error})") from error
                y.append(number)
        if not x:
            present(root / classes[0] / split if classes else root, FILES, ["*.off"])
        parts.append((torch.stack(x), torch.tensor(y)))
    return classified(name, parts, len(classes))
