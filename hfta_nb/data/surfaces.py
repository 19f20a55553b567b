"""Points sampled evenly from analytic surfaces, with their normals."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

Cloud = tuple[Tensor, Tensor]
"""Points ``[P, 3]`` and unit normals ``[P, 3]``."""


@dataclass(frozen=True)
class Patch:
    """A piece of a surface: its area, and a function that samples it evenly."""

    area: float
    sample: Callable[[int, Generator], Cloud]


def flat(corner: Sequence[float], u: Sequence[float], v: Sequence[float], triangle: bool = False) -> Patch:
    """A parallelogram, or the triangle that is half of it; the normal is u x v."""
    o, a, b = (torch.tensor(list(w), dtype=torch.float64) for w in (corner, u, v))
    normal = torch.linalg.cross(a, b)
    area = float(normal.norm())

    def sample(count: int, generator: Generator) -> Cloud:
        s, t = torch.rand(2, count, 1, generator=generator, dtype=torch.float64)
        if triangle:
            outside = s + t > 1
            s, t = torch.where(outside, 1 - s, s), torch.where(outside, 1 - t, t)
        return o + s * a + t * b, (normal / area).expand(count, 3)

    return Patch(area / 2 if triangle else area, sample)


def disk(radius: float, height: float, up: bool = True) -> Patch:
    """A horizontal disk around the axis."""

    def sample(count: int, generator: Generator) -> Cloud:
        around, out = torch.rand(2, count, generator=generator, dtype=torch.float64)
        r, angle = radius * out.sqrt(), 2 * math.pi * around
        points = torch.stack([r * angle.cos(), r * angle.sin(), torch.full_like(r, height)], 1)
        return points, torch.tensor([0.0, 0.0, 1.0 if up else -1.0], dtype=torch.float64).expand(count, 3)

    return Patch(math.pi * radius**2, sample)


def tube(bottom: float, top: float, low: float, high: float) -> Patch:
    """The side of a cylinder, cone or frustum: radius `bottom` at height `low`, `top` at `high`."""
    slant = math.hypot(high - low, bottom - top)

    def sample(count: int, generator: Generator) -> Cloud:
        around, along = torch.rand(2, count, generator=generator, dtype=torch.float64)
        # The radius' square is spread evenly where the radius changes.
        if bottom == top:
            t = along
        else:
            t = (bottom - (bottom**2 + along * (top**2 - bottom**2)).sqrt()) / (bottom - top)
        r, angle = bottom + t * (top - bottom), 2 * math.pi * around
        points = torch.stack([r * angle.cos(), r * angle.sin(), low + t * (high - low)], 1)
        out, rise = (high - low) / slant, (bottom - top) / slant
        return points, torch.stack([out * angle.cos(), out * angle.sin(), torch.full_like(r, rise)], 1)

    return Patch(math.pi * (bottom + top) * slant, sample)


def ellipsoid(a: float, b: float, c: float) -> Patch:
    """The surface with these half axes; the area is Thomsen's approximation (1.1% off at most)."""
    axes = torch.tensor([a, b, c], dtype=torch.float64)
    p = 1.6075
    mean = ((a * b) ** p + (a * c) ** p + (b * c) ** p) / 3

    def sample(count: int, generator: Generator) -> Cloud:
        ball = torch.randn(8 * count, 3, generator=generator, dtype=torch.float64)
        ball = ball / ball.norm(dim=1, keepdim=True)
        stretch = (ball / axes).norm(dim=1)  # of the area, up to a factor
        points = ball[_drawn(stretch, count, generator)] * axes
        normals = points / axes**2
        return points, normals / normals.norm(dim=1, keepdim=True)

    return Patch(4 * math.pi * mean ** (1 / p), sample)


def torus(large: float, small: float, turn: float = 2 * math.pi) -> Patch:
    """A ring around the z axis, or a part of one from angle 0 on."""

    def sample(count: int, generator: Generator) -> Cloud:
        around, inner = torch.rand(2, 8 * count, generator=generator, dtype=torch.float64)
        u, v = turn * around, 2 * math.pi * inner
        kept = _drawn(large + small * v.cos(), count, generator)
        u, v = u[kept], v[kept]
        normals = torch.stack([v.cos() * u.cos(), v.cos() * u.sin(), v.sin()], 1)
        centre = large * torch.stack([u.cos(), u.sin(), torch.zeros_like(u)], 1)
        return centre + small * normals, normals

    return Patch(turn * large * 2 * math.pi * small, sample)


def moved(patch: Patch, turn: Tensor, shift: Sequence[float]) -> Patch:
    """A patch turned by a matrix ``[3, 3]``, then shifted."""

    def sample(count: int, generator: Generator) -> Cloud:
        points, normals = patch.sample(count, generator)
        return points @ turn.T + torch.tensor(list(shift), dtype=torch.float64), normals @ turn.T

    return Patch(patch.area, sample)


def box(x: float, y: float, z: float, centre: Sequence[float] = (0.0, 0.0, 0.0)) -> list[Patch]:
    """The six sides of a box, normals outward."""
    cx, cy, cz = centre
    low = (cx - x / 2, cy - y / 2, cz - z / 2)
    high = (cx + x / 2, cy + y / 2, cz + z / 2)
    return [
        flat(low, (0, y, 0), (x, 0, 0)),
        flat(low, (0, 0, z), (0, y, 0)),
        flat(low, (x, 0, 0), (0, 0, z)),
        flat(high, (-x, 0, 0), (0, -y, 0)),
        flat(high, (0, -y, 0), (0, 0, -z)),
        flat(high, (0, 0, -z), (-x, 0, 0)),
    ]


def sampled(patches: Sequence[Patch], count: int, generator: Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Points spread over patches by area.

    Returns:
        Points ``[count, 3]``, normals ``[count, 3]``, and of which patch each is ``[count]``.
    """
    areas = torch.tensor([p.area for p in patches], dtype=torch.float64)
    chosen = torch.multinomial(areas, count, replacement=True, generator=generator).sort().values
    clouds = [p.sample(int((chosen == i).sum()), generator) for i, p in enumerate(patches)]
    return torch.cat([c[0] for c in clouds]), torch.cat([c[1] for c in clouds]), chosen


def _drawn(weights: Tensor, count: int, generator: Generator) -> Tensor:
    """Numbers drawn by weight."""
    if not count:
        return torch.zeros(0, dtype=torch.long)
    return torch.multinomial(weights, count, generator=generator)
