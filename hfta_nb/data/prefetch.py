"""Prepares batches in a thread while the previous step still computes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")

DEPTH = 2
"""The most batches that are ready at a time."""

_END = object()


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
        self._items = items
        self._thread: ThreadPoolExecutor | None = ThreadPoolExecutor(1, "hfta_nb data")
        self._coming: deque[Future[Any]] = deque(self._thread.submit(next, items, _END) for _ in range(depth))

    def __iter__(self) -> Iterator[Item]:
        return self

    def __next__(self) -> Item:
        """The next item; waits for it.

        Raises:
            Exception: the iterator's error, after all items before it.
        """
        item: Any = self._coming.popleft().result() if self._coming else _END
        if self._thread is None or item is _END:
            self.close()
            raise StopIteration
        self._coming.append(self._thread.submit(next, self._items, _END))
        return item  # type: ignore[no-any-return]

    def close(self) -> None:
        """Drop items that are ready, and wait for the thread to end."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        while self._coming:
            self._coming.pop().cancel()
        if hasattr(self._items, "close"):
            thread.submit(self._items.close)
        thread.shutdown()
