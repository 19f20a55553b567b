"""A context for code that a recorder ignores: checks and probes that a replayed step does differently or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Protocol, runtime_checkable

from torch.utils._python_dispatch import _get_current_dispatch_mode_stack


@runtime_checkable
class Pausable(Protocol):
    """A dispatch mode that can be paused."""

    def paused(self) -> AbstractContextManager[None]:
        """Record nothing within the context."""


@contextmanager
def untraced() -> Iterator[None]:
    """Pause active recorders within the context, for checks that a recorded step does differently."""
    recorders = [m for m in _get_current_dispatch_mode_stack() if isinstance(m, Pausable)]
    with ExitStack() as stack:
        for recorder in recorders:
            stack.enter_context(recorder.paused())
        yield
