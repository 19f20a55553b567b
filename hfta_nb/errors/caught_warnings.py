"""Warnings of others that are kept from the user, or looked at, by one thread at a time."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_LOCK = threading.RLock()


@contextmanager
def caught_warnings(record: bool = False) -> Iterator[list[warnings.WarningMessage] | Any]:
    """`warnings.catch_warnings`, which saves and restores what all threads share.

    Two threads that leave it in the order in which they entered would leave the filters of one of them behind for good.

    Args:
        record: see `warnings.catch_warnings`.
    """
    with _LOCK, warnings.catch_warnings(record=record) as caught:
        yield caught
