"""Synthetic point clouds for PointNet: classification of shapes and segmentation of objects into parts."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Generator, Tensor

from hfta_nb.data.order import SPLIT_SEED
from hfta_nb.data.samples import Data
from hfta_nb.data.surfaces import Patch, box, disk, ellipsoid, flat, moved, sampled, torus, tube

POINTS, NOISE = 256, 0.01
"""Points of a cloud, and the deviation of the noise on them (the cloud has radius 1)."""

TRAINING, VALIDATION = 100, 25
"""Clouds per class."""

Draw = Callable[[float, float], float]
"""A number between two."""


def _pyramid(side: float, height: float) -> list[Patch]:
    h = side / 2
    corners = [(-h, -h, 0.0), (h, -h, 0.0), (h, h, 0.0), (-h, h, 0.0)]
    sides = []
    for (ax, ay, _), (bx, by, _) in zip(corners, corners[1:] + corners[:1], strict=True):
        sides.append(flat((ax, ay, 0), (bx - ax, by - ay, 0), (-ax, -ay, height), triangle=True))
    return [flat((-h, -h, 0), (0, side, 0), (side, 0, 0)), *sides]


def _cylinder(radius: float, height: float) -> list[Patch]:
    return [tube(radius, radius, 0, height), disk(radius, 0, up=False), disk(radius, height)]


SHAPES: dict[str, Callable[[Draw], list[Patch]]] = {
    "sphere": lambda d: [ellipsoid(1.0, 1.0, 1.0)],
    "ellipsoid": lambda d: [ellipsoid(1.0, d(0.6, 0.8), d(0.3, 0.5))],
    "cube": lambda d: box(1.0, 1.0, 1.0),
    "cylinder": lambda d: _cylinder(1.0, d(1.5, 3.0)),
    "cone": lambda d: [tube(1.0, 0.0, 0, d(1.5, 3.0)), disk(1.0, 0, up=False)],
    "torus": lambda d: [torus(1.0, d(0.2, 0.4))],
    "plane": lambda d: [flat((0, 0, 0), (1, 0, 0), (0, d(0.5, 1.0), 0))],
    "pyramid": lambda d: _pyramid(1.0, d(0.7, 1.2)),
}
"""By name, the surfaces of a shape, some of its proportions drawn."""


def _turn_x(angle: float) -> Tensor:
    c, s = math.cos(angle), math.sin(angle)
    return torch.tensor([[1, 0, 0], [0, c, -s], [0, s, c]], dtype=torch.float64)


def _turn_z(angle: float) -> Tensor:
    c, s = math.cos(angle), math.sin(angle)
    return torch.tensor([[c, -s, 0], [s, c, 0], [0, 0, 1]], dtype=torch.float64)


def _lamp(d: Draw) -> list[tuple[str, list[Patch]]]:
    height = d(1.5, 2.2)
    shade = tube(d(0.6, 0.8), d(0.2, 0.4), height - 0.6, height)
    return [
        ("lamp base", _cylinder(d(0.4, 0.6), 0.1)),
        ("lamp pole", [tube(0.06, 0.06, 0.1, height - 0.3)]),
        ("lamp shade", [shade]),
    ]


def _table(d: Draw) -> list[tuple[str, list[Patch]]]:
    x, y, height = d(1.4, 2.0), d(0.8, 1.2), d(0.7, 1.0)
    spots = [(a * (x / 2 - 0.08), b * (y / 2 - 0.08)) for a in (-1, 1) for b in (-1, 1)]
    legs = [p for a, b in spots for p in box(0.12, 0.12, height, (a, b, height / 2))]
    return [("table top", box(x, y, 0.1, (0, 0, height + 0.05))), ("table leg", legs)]


def _rocket(d: Draw) -> list[tuple[str, list[Patch]]]:
    height, nose = d(1.4, 2.0), d(0.5, 0.9)
    fin = flat((0.4, 0, 0), (d(0.3, 0.5), 0, 0), (0, 0, 0.5), triangle=True)
    fins = [moved(fin, _turn_z(i * 2 * math.pi / 3), (0, 0, 0)) for i in range(3)]
    body = [tube(0.4, 0.4, 0, height), disk(0.4, 0, up=False)]
    return [("rocket body", body), ("rocket nose", [tube(0.4, 0.0, height, height + nose)]), ("rocket fin", fins)]


def _mug(d: Draw) -> list[tuple[str, list[Patch]]]:
    height, ring = d(0.9, 1.3), d(0.25, 0.35)
    # A half ring, standing beside the body.
    handle = moved(torus(ring, 0.07, math.pi), _turn_z(-math.pi / 2), (0, 0, 0))
    handle = moved(handle, _turn_x(math.pi / 2), (0.5, 0, height / 2))
    return [("mug body", [tube(0.5, 0.5, 0, height), disk(0.5, 0, up=False)]), ("mug handle", [handle])]


OBJECTS: tuple[Callable[[Draw], list[tuple[str, list[Patch]]]], ...] = (_lamp, _table, _rocket, _mug)
PARTS = (
    *("lamp base", "lamp pole", "lamp shade", "table top", "table leg"),
    *("rocket body", "rocket nose", "rocket fin", "mug body", "mug handle"),
)
"""Names of the parts; a part's number is its index."""


def _finished(points: Tensor, normals: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
    """Centred, scaled to radius 1, turned about the upright axis, with noise, in random order.

    Returns:
        Points and normals ``[P, 6]``, and the order that they were put into ``[P]``.
    """
    points = points - points.mean(0)
    points = points / points.norm(dim=1).max()
    turn = _turn_z(float(torch.rand((), generator=generator)) * 2 * math.pi)
    order = torch.randperm(len(points), generator=generator)
    noise = NOISE * torch.randn(points.shape, generator=generator, dtype=torch.float64)
    cloud = torch.cat([points @ turn.T + noise, normals @ turn.T], 1)
    return cloud[order].float(), order


def _draw(generator: Generator) -> Draw:
    return lambda low, high: low + (high - low) * float(torch.rand((), generator=generator))


def shapes() -> Data:
    """1,000 point clouds of 8 shapes (sphere, ellipsoid, cube, cylinder, cone, torus, plane, pyramid), made here:
    256 points with normals ``[P, 6]``, proportions, noise and the turn about the upright axis drawn."""
    generator = torch.Generator().manual_seed(SPLIT_SEED)

    def clouds(count: int) -> tuple[Tensor, Tensor]:
        x, y = [], []
        for number, surfaces in enumerate(SHAPES.values()):
            for _ in range(count):
                points, normals, _ = sampled(surfaces(_draw(generator)), POINTS, generator)
                x.append(_finished(points, normals, generator)[0])
                y.append(number)
        return torch.stack(x), torch.tensor(y)

    (x, y), (xv, yv) = clouds(TRAINING), clouds(VALIDATION)
    facts = {"in_channels": 6, "num_classes": len(SHAPES), "out_features": len(SHAPES), "in_features": 6 * POINTS}
    return Data("shapes", "classification", x, y, xv, yv, facts)


def shape_parts() -> Data:
    """500 point clouds of lamps, tables, rockets and mugs, made here: 256 points with normals ``[P, 6]``, and for each
    which of ten parts it belongs to ``[P]``."""
    generator = torch.Generator().manual_seed(SPLIT_SEED)

    def clouds(count: int) -> tuple[Tensor, Tensor]:
        x, y = [], []
        for build in OBJECTS:
            for _ in range(count):
                named = [(name, patch) for name, patches in build(_draw(generator)) for patch in patches]
                points, normals, chosen = sampled([patch for _, patch in named], POINTS, generator)
                cloud, order = _finished(points, normals, generator)
                labels = torch.tensor([PARTS.index(name) for name, _ in named])
                x.append(cloud)
                y.append(labels[chosen][order])
        return torch.stack(x), torch.stack(y)

    (x, y), (xv, yv) = clouds(TRAINING), clouds(VALIDATION)
    return Data("shape_parts", "segmentation", x, y, xv, yv, {"in_channels": 6, "num_classes": len(PARTS)})
