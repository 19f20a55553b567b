"""Batches made ready by a thread while the step before them still computes."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar

Item = TypeVar("Item")

DEPTH = 2
"""How many batches lie ready at most."""


class Ahead(Generic[Item]):
    """Goes through an iterator in a thread of its own, some items ahead of who takes them.

    What the thread runs must not draw from random streams that others draw from, nor change any other state that all
    threads have in common. The thread ends with the items, with an error, on `close`, or when nobody holds this any
    more.

    Args:
        items: what is gone through; a generator is closed in the thread.
        depth: how many items lie ready at most, from 1.

    Example:
        >>> list(Ahead(iter("abc")))
        ['a', 'b', 'c']
    """

    def __init__(self, items: Iterator[Item], depth: int = DEPTH) -> None:
        self._shelf: _Shelf[Item] = _Shelf(depth)
        # The thread holds the shelf alone, so that it does not keep this alive.
        self._thread = threading.Thread(target=_fill, args=(items, self._shelf), name="hfta_nb data", daemon=True)
        self._thread.start()
        self._forgotten = weakref.finalize(self, self._shelf.close)

    def __iter__(self) -> Iterator[Item]:
        return self

    def __next__(self) -> Item:
        """The next item; waits for it.

        Raises:
            Exception: what the iterator raised, when all items before it are taken.
        """
        return self._shelf.take()

    def close(self) -> None:
        """Let go of what lies ready, and wait until the thread has ended."""
        self._forgotten()
        if self._thread is not threading.current_thread():
            self._thread.join()


class _Shelf(Generic[Item]):
    """Items between the thread that makes them and the one that takes them."""

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._items: deque[Item] = deque()
        self._changed = threading.Condition()
        self._ended = False
        self._error: BaseException | None = None

    def put(self, item: Item) -> bool:
        """Wait for room; False where nobody wants the item any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or len(self._items) < self._depth)
            if self._ended:
                return False
            self._items.append(item)
            self._changed.notify_all()
            return True

    def end(self, error: BaseException | None = None) -> None:
        """There are no more; or there was an error."""
        with self._changed:
            self._ended, self._error = True, self._error or error
            self._changed.notify_all()

    def take(self) -> Item:
        with self._changed:
            self._changed.wait_for(lambda: self._items or self._ended)
            if self._items:
                item = self._items.popleft()
                self._changed.notify_all()
                return item
            error, self._error = self._error, None
            if error is not None:
                raise error
            raise StopIteration

    def close(self) -> None:
        with self._changed:
            self._items.clear()
            self._ended, self._error = True, None
            self._changed.notify_all()


def _fill(items: Iterator[Item], shelf: _Shelf[Item]) -> None:
    try:
        for item in items:
            if not shelf.put(item):
                break
        close = getattr(items, "close", None)
        if close is not None:
            close()
    except BaseException as error:
        shelf.end(error)
        return
    shelf.end()
