"""Augmentation of point clouds ``[N, P, 3]`` (positions) or ``[N, P, 6]`` (with normals)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hfta_nb.data.augment.random_numbers import Draws

LIMIT = 5.0
"""Noise is clipped beyond this many standard deviations (Qi et al. 2017: deviation 0.01, limit 0.05)."""

UP = {"z": (0.0, 0.0, 1.0), "y": (0.0, 1.0, 0.0)}


def point_jitter(clouds: Tensor, deviation: float, draws: Draws) -> Tensor:
    """Positions with noise from N(0, deviation^2); normals stay (Qi et al. 2017, section 5.1)."""
    places = clouds[..., :3]
    moved = places + deviation * draws.noise("jitter", places).clamp(-LIMIT, LIMIT)
    return torch.cat([moved, clouds[..., 3:]], -1)


def point_rotation(clouds: Tensor, degrees: float, axis: str, draws: Draws) -> Tensor:
    """Clouds, normals too, turned by an angle from ``-degrees`` to ``degrees``.

    Args:
        clouds: ``[N, P, 3]`` or ``[N, P, 6]``.
        degrees: from 0 to 180.
        axis: "z" or "y", or "all" for one of any direction, drawn for each cloud.
        draws: of the batch.
    """
    angle = math.radians(degrees) * (2 * draws.uniform("angle", 1)[0] - 1)
    about = torch.tensor(UP[axis], dtype=angle.dtype).expand(len(angle), 3) if axis in UP else draws.directions("axis")
    turn = draws.send(_matrices(about, angle), clouds.dtype)
    vectors = clouds.reshape(len(clouds), -1, 3)
    return torch.bmm(vectors, turn.transpose(1, 2)).view_as(clouds)


def _matrices(about: Tensor, angle: Tensor) -> Tensor:
    """Rotations by angles ``[N]`` about unit vectors ``[N, 3]`` (Rodrigues), ``[N, 3, 3]``."""
    x, y, z = about.unbind(1)
    none = torch.zeros_like(x)
    cross = torch.stack([none, -z, y, z, none, -x, -y, x, none], 1).view(-1, 3, 3)
    sine, cosine = angle.sin().view(-1, 1, 1), angle.cos().view(-1, 1, 1)
    return torch.eye(3, dtype=angle.dtype) + sine * cross + (1 - cosine) * (cross @ cross)
