"""Where a random stream is, of every kind: torch's, NumPy's and Python's."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

STREAMS = (torch.Generator, random.Random, np.random.RandomState, np.random.Generator)
"""The kinds of random streams."""


def position_of(stream: Any) -> Any:
    """Where a stream is."""
    if isinstance(stream, torch.Generator):
        return stream.get_state()
    if isinstance(stream, random.Random):
        return stream.getstate()
    return stream.get_state(legacy=False) if isinstance(stream, np.random.RandomState) else stream.bit_generator.state


def go_to(stream: Any, position: Any) -> None:
    """Let a stream go on from a position, which may have been saved: its tuples may be lists."""
    if isinstance(stream, random.Random):
        version, numbers, spare = position
        stream.setstate((version, tuple(numbers), spare))
    elif isinstance(stream, np.random.Generator):
        stream.bit_generator.state = position
    else:
        stream.set_state(position)
