"""Prepares batches in a thread while the previous step still computes."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar

Item = TypeVar("Item")

DEPTH = 2
"""The most batches that are ready at a time."""


class Ahead(Generic[Item]):
    """Iterates in a separate thread, some items ahead of the consumer.

    The iterator must not use shared random streams or change other state that threads share. The thread ends after the
    last item, after an error, on `close`, or when this object is garbage-collected.

    Args:
        items: the iterator; a generator is closed in the thread.
        depth: the most items that are ready at a time, at least 1.

    Example:
        >>> list(Ahead(iter("abc")))
        ['a', 'b', 'c']
    """

    def __init__(self, items: Iterator[Item], depth: int = DEPTH) -> None:
        self._shelf: _Shelf[Item] = _Shelf(depth)
        # The thread holds the shelf only, so that it does not keep this object alive.
        self._thread = threading.Thread(target=_fill, args=(items, self._shelf), name="hfta_nb data", daemon=True)
        self._thread.start()
        self._forgotten = weakref.finalize(self, self._shelf.close)

    def __iter__(self) -> Iterator[Item]:
        return self

    def __next__(self) -> Item:
        """The next item; waits for it.

        Raises:
            Exception: the iterator's error, after all items before it.
        """
        return self._shelf.take()

    def close(self) -> None:
        """Drop items that are ready, and wait for the thread to end."""
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
        """Wait for room; False if the consumer is gone."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or len(self._items) < self._depth)
            if self._ended:
                return False
            self._items.append(item)
            self._changed.notify_all()
            return True

    def end(self, error: BaseException | None = None) -> None:
        """Mark the end, or an error."""
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
