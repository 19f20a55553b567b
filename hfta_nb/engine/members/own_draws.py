"""Random numbers of torch that a thread draws on the CPU from a generator of its own, not from the process's.

Torch's functions draw from the process's default generator where they are given none. Whatever another thread draws
meanwhile would change the numbers, and ours would change its own. Within `drawing_from`, this thread's functions are
therefore given a generator, below every module and function of the user's: torch's dispatcher calls the functions here
for operators that draw, and no others, while a key is set for the thread. The numbers equal those of
``torch.manual_seed(seed)`` and the same functions. Functions of `torch.random`, such as `torch.manual_seed` and
`torch.get_rng_state`, act on the thread's generator too.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

_KEY_NAME = "TESTING_ONLY_GenericMode"
_KEY: Any = torch._C._parse_dispatch_key(_KEY_NAME)
"""A key of the dispatcher, above autograd and `vmap`, that torch itself has no use for."""

_SET = torch._C.DispatchKeySet(_KEY)
_AFTER = torch._C._dispatch_keyset_full_after(_KEY)
_set_included = torch._C._dispatch_tls_set_dispatch_key_included
_included = torch._C._dispatch_tls_is_dispatch_key_included

DRAWING = (
    *("_sample_dirichlet", "_standard_gamma", "bernoulli", "bernoulli_", "binomial", "cauchy", "cauchy_"),
    *("exponential", "exponential_", "geometric", "geometric_", "log_normal", "log_normal_", "multinomial", "normal"),
    *("normal_", "poisson", "rand", "rand_like", "randint", "randint_like", "randn", "randn_like", "randperm"),
    *("random", "random_", "rrelu_with_noise", "rrelu_with_noise_", "rrelu_with_noise_functional", "uniform"),
    *("uniform_",),
)
"""Operators of aten that draw on a CPU; others draw by calling these."""


class _Here(threading.local):
    """The generators of this thread's contexts, the innermost last."""

    def __init__(self) -> None:
        self.stack: list[torch.Generator | None] = []


_here = _Here()


def own_generator() -> torch.Generator | None:
    """The generator that this thread draws from on the CPU; None for the process's default one."""
    if _here.stack:
        return _here.stack[-1]
    return _Backward.generator if _included(_KEY) else None


def generator_here() -> torch.Generator:
    """The generator that this thread draws from on the CPU."""
    return own_generator() or torch.default_generator


def restored(state: torch.Tensor) -> torch.Generator:
    """A generator on the CPU with this state."""
    generator = torch.Generator()
    generator.set_state(state)
    return generator


class _Backward:
    """What threads of autograd draw from, which run the backward of a GPU's operators for a thread that waits."""

    generator: torch.Generator | None = None


def in_backward(generator: torch.Generator | None) -> None:
    """Set what threads of autograd draw from. Requires that one thread at a time uses the GPU's default generator."""
    _Backward.generator = generator


def for_another_thread() -> bool:
    """True in a thread of autograd that runs a backward for a thread in `drawing_from`."""
    return not _here.stack and bool(_included(_KEY))


def turn_to(generator: torch.Generator | None) -> None:
    """Draw from another generator until the end of the innermost context; None: from that of the context around it."""
    stack = _here.stack
    stack[-1] = generator if generator is not None or len(stack) < 2 else stack[-2]


@contextmanager
def drawing_from(generator: torch.Generator | None) -> Iterator[None]:
    """Draw from this generator in this thread within the context.

    Args:
        generator: on the CPU; None for that of the context around it, until `turn_to`.
    """
    stack = _here.stack
    depth = len(stack)
    included = True if depth else _included(_KEY)
    if not depth:
        _StandIn.come()
        _set_included(_KEY, True)
    stack.append(generator if generator is not None or not depth else stack[-1])
    try:
        yield
    finally:
        del stack[depth:]
        if not depth:
            _set_included(_KEY, included)
            _StandIn.go()


@contextmanager
def alone() -> Iterator[bool]:
    """Whether no other thread is in a context of `drawing_from`; then none enters one until the end of this context."""
    with _StandIn.lock:
        here = _StandIn.count <= bool(_here.stack)
        if here:
            yield True
    if not here:
        yield False


# What the dispatcher calls.

WITH: dict[Any, Any] = {}
"""The overload that takes a generator, by the overload that takes none: ``rand`` has both."""

WITHOUT: dict[Any, Any] = {}
"""The inverse of `WITH`."""


def takes_generator(function: Any) -> bool:
    """True if an overload of an operator has an argument for a generator."""
    return any(a.name == "generator" for a in function._schema.arguments)


def same(a: Any, b: Any) -> bool:
    """True for the same generator, of which the dispatcher makes a new object for each call."""
    return bool(a._cdata == b._cdata)


def given_generator(args: Any, kwargs: Any) -> Any:
    """The generator among the arguments of a call; None if there is none."""
    if args and isinstance(args[-1], torch.Generator):  # no argument by position comes after it
        return args[-1]
    return kwargs.get("generator")


def without_generator(function: Any, args: Any, kwargs: Any) -> tuple[Any, Any, Any]:
    """A call of an overload as it is without the generator that it was given here."""
    if args and isinstance(args[-1], torch.Generator):
        args = args[:-1]
    return WITHOUT.get(function, function), args, {k: v for k, v in kwargs.items() if k != "generator"}


def with_generator(function: Any, kwargs: Any, generator: torch.Generator) -> tuple[Any, Any]:
    """The inverse of `without_generator`: an overload, and its arguments by name."""
    function = WITH.get(function, function)
    return function, {**kwargs, "generator": generator} if takes_generator(function) else kwargs


def _drawn(function: Any, target: Any) -> Callable[..., Any]:
    """The function for an overload that is called while the key is set."""
    of_all = all("Tensor" not in str(a.type) for a in function._schema.arguments)  # it makes a tensor

    def draw(keys: Any, *args: Any, **kwargs: Any) -> Any:
        if torch._C._functorch.peek_interpreter_stack() is not None:  # it calls the operator again, for all samples
            return function.redispatch(keys & _AFTER, *args, **kwargs)
        own, called = own_generator(), function
        if own is not None and _on_cpu(of_all, args, kwargs) and not _traced():
            given = given_generator(args, kwargs)
            if given is None or same(given, torch.default_generator):
                _, args, kwargs = without_generator(function, args, kwargs)
                called, kwargs = target, {**kwargs, "generator": own}
        with torch._C._ExcludeDispatchKeyGuard(_SET):
            return called(*args, **kwargs)

    return draw


def _on_cpu(of_all: bool, args: Any, kwargs: Any) -> bool:
    out = kwargs.get("out")
    if out is None and of_all:
        device = kwargs.get("device")
        return device is None or device.type == "cpu"
    first = out if out is not None else next((v for v in args if isinstance(v, torch.Tensor)), None)
    return first is None or first.device.type == "cpu"


def _traced() -> bool:
    """True while a compiler traces, which refuses generators; what it makes draws by operators that come here."""
    fake = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE)
    return fake is not None or torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY) is not None


def _arguments(function: Any) -> list[tuple[str, str]]:
    return [(a.name, str(a.type)) for a in function._schema.arguments if a.name != "generator"]


def _overloads(name: str) -> list[Any]:
    packet = getattr(torch.ops.aten, name, None)
    return [] if packet is None else [getattr(packet, overload) for overload in packet.overloads()]


def _registered() -> list[Any]:
    """Register all functions; they are called in threads that have set the key."""
    library: Any = torch.library.Library
    every, aten = (library(namespace, "IMPL", _KEY_NAME) for namespace in ("_", "aten"))
    every.fallback(torch.library.fallthrough_kernel)
    by_python: Any = torch._ops  # dispatches these itself; `autograd.Function` is one
    for operator in by_python._higher_order_ops.values():
        operator.fallthrough(_KEY)
    by_python._HIGHER_ORDER_OP_DEFAULT_FALLTHROUGH_DISPATCH_KEYS.append(_KEY)  # of those that are made later
    for name in DRAWING:
        overloads = _overloads(name)
        givens = [f for f in overloads if takes_generator(f)]
        for function in overloads:
            target = function
            if not takes_generator(function):
                target = next(f for f in givens if _arguments(f) == _arguments(function))
                WITH[function], WITHOUT[target] = target, function
            aten.impl(function, _drawn(function, target), with_keyset=True)
    return [every, aten]


# The functions of `torch.random`.


class _StandIn:
    """Stands for the default generator in `torch.random`, whose functions then act on that of their thread."""

    count = 0
    lock = threading.RLock()
    true: Any = None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(own_generator() or self.true, name)

    @classmethod
    def come(cls) -> None:
        with cls.lock:
            cls.count += 1
            if cls.count == 1:
                cls.true, _random.default_generator = _random.default_generator, _stand_in

    @classmethod
    def go(cls) -> None:
        with cls.lock:
            cls.count -= 1
            if cls.count == 0:
                _random.default_generator = cls.true


def _forget() -> None:
    """A forked process has one thread."""
    _StandIn.lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)

_random: Any = torch.random
_stand_in = _StandIn()
_libraries = _registered()
