"""Code that a recording leaves out: checks and probes that a replayed step makes in another way, or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Protocol, runtime_checkable

from torch.utils._python_dispatch import _get_current_dispatch_mode_stack


@runtime_checkable
class Pausable(Protocol):
    """A dispatch mode that can look away for a while."""

    def paused(self) -> AbstractContextManager[None]:
        """Within, it notes nothing."""


@contextmanager
def untraced() -> Iterator[None]:
    """Within, a recorder at work notes nothing: for checks that a recorded step makes in another way."""
    recorders = [m for m in _get_current_dispatch_mode_stack() if isinstance(m, Pausable)]
    with ExitStack() as stack:
        for recorder in recorders:
            stack.enter_context(recorder.paused())
        yield
