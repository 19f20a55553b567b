"""Runs a user's code without side effects on the settings and random streams of the process, and unaffected by them.

Settings that belong to a thread (autocast, grad mode, torch's default device) are as a new thread has them. Those of
the process (the default dtype, deterministic kernels) are changed while any thread is in such a context, and restored
when none is.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from threading import RLock
from typing import Any, TypeVar, cast

import torch
from torch.utils._device import DeviceContext

from hfta_nb.engine.members.own_draws import drawing_from, generator_here, restored
from hfta_nb.engine.members.process_streams import streams_kept
from hfta_nb.errors import ArrayWarning

T = TypeVar("T")

_KINDS = ("cpu", "cuda")
_function_modes: Any = torch.overrides._get_current_function_mode_stack


class _Shared:
    """A setting of the process that threads change together: the first one sets it, the last one restores it.

    Args:
        get, put: read and set it.
        value: it has this value while a thread is in `held`, given that of before.
    """

    def __init__(self, get: Callable[[], Any], put: Callable[[Any], None], value: Callable[[Any], Any]) -> None:
        self._get, self._put, self._value = get, put, value
        self._lock, self._count = RLock(), 0
        self._before: Any = None

    @contextmanager
    def held(self) -> Iterator[None]:
        with self._lock:
            if not self._count:
                self._before = self._get()
            self._count += 1
            self._set(self._value(self._before))
        try:
            yield
        finally:
            with self._lock:
                self._count -= 1
                self._set(self._value(self._before) if self._count else self._before)

    def _set(self, value: Any) -> None:
        if self._get() != value:
            self._put(value)


class _DefaultDtype(_Shared):
    """The default dtype. What a thread outside of `held` sets meanwhile holds from the end of `held` on; it is told."""

    def __init__(self) -> None:
        super().__init__(torch.get_default_dtype, torch.set_default_dtype, lambda before: torch.float32)
        self._inside: ContextVar[int] = ContextVar("inside", default=0)  # of this thread

    @contextmanager
    def held(self) -> Iterator[None]:
        depth = self._inside.get()
        with super().held():
            self._inside.set(depth + 1)
            self._install(self._put, self._set_outside)
            try:
                yield
            finally:
                self._inside.set(depth)
                if self._count == 1:
                    self._install(self._set_outside, self._put)

    def _install(self, now: Any, then: Any) -> None:
        with self._lock:
            if torch.set_default_dtype == now:  # not what someone else has put there
                torch.set_default_dtype = then

    def _set_outside(self, d: torch.dtype) -> None:
        with self._lock:
            if not self._count or self._inside.get():
                return self._put(d)
            self._before = d
        what = "the default dtype is the process's, and float32 while models are built or train in another thread"
        warnings.warn(f"{what}; name the dtype where you make tensors meanwhile", ArrayWarning, stacklevel=2)


_default_dtype = _DefaultDtype()


@contextmanager
def settings_kept() -> Iterator[None]:
    """Restore torch's default dtype and number of threads after the block."""
    dtype, threads = torch.get_default_dtype(), torch.get_num_threads()
    try:
        yield
    finally:
        if torch.get_default_dtype() != dtype:
            torch.set_default_dtype(dtype)
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)


@contextmanager
def neutral() -> Iterator[None]:
    """Torch's settings as they are when a process begins; those of before are restored after the block.

    These are the default dtype and device, autocast and grad mode, and the number of threads, which is kept.
    """
    with ExitStack() as stack:
        stack.enter_context(_default_dtype.held())
        stack.enter_context(settings_kept())
        for kind in _KINDS:
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        if torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(False))
        if not torch.is_grad_enabled():
            stack.enter_context(torch.enable_grad())
        if any(isinstance(mode, DeviceContext) for mode in _function_modes()):
            stack.enter_context(torch.device("cpu"))
        yield


@contextmanager
def preserve_rng() -> Iterator[torch.Generator]:
    """Like `neutral`, with the random streams of torch (on the CPU), NumPy and Python as they were after the block.

    Returns:
        The generator that torch's functions draw from, which begins as a copy of the one of before.
    """
    own = restored(generator_here().get_state())
    with streams_kept(), neutral(), drawing_from(own):
        yield own


def _deterministic() -> tuple[Any, ...]:
    cudnn, filling = torch.backends.cudnn, cast(Any, torch.utils.deterministic)
    on, warns = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    return cudnn.deterministic, cudnn.benchmark, filling.fill_uninitialized_memory, on, warns


def _set_deterministic(given: tuple[Any, ...]) -> None:
    cudnn, filling = torch.backends.cudnn, cast(Any, torch.utils.deterministic)
    cudnn.deterministic, cudnn.benchmark, filling.fill_uninitialized_memory, on, warns = given
    torch.use_deterministic_algorithms(on, warn_only=warns)


def _repeating(before: tuple[Any, ...]) -> tuple[Any, ...]:
    *_, on, warns = before
    return True, False, False, True, warns or not on


_repeats = _Shared(_deterministic, _set_deterministic, _repeating)


@contextmanager
def repeatable() -> Iterator[None]:
    """Use kernels of torch and cuDNN that give the same bits in each run on a GPU within the block.

    Kernels without such a form run as they are, and torch warns once of each. cuBLAS reads ``CUBLAS_WORKSPACE_CONFIG``
    when it is first used; it is set if it is not.

    Source: "Reproducibility" in torch's notes.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    with _repeats.held():
        yield


def apart(events: Iterator[T], repeats: bool = False) -> Generator[T, None, Any]:
    """Iterate a generator that runs with its own random stream and neutral settings.

    Its stream (torch's on the CPU) starts as a copy of the process's stream, which the caller keeps unchanged. NumPy's
    and Python's streams are shared, because swapping them takes longer than many events.

    Args:
        events: the generator.
        repeats: it runs with the settings of `repeatable`.
    """
    own = restored(generator_here().get_state())
    try:
        while True:
            try:
                with drawing_from(own), neutral(), repeatable() if repeats else nullcontext():
                    event = next(events)
            except StopIteration as end:
                return end.value
            yield event
    finally:
        if isinstance(events, Generator):
            events.close()
