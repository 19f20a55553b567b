"""Modules without memory, of which a plan sees how they are made."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakIdKeyDictionary

from hfta_nb.data import AnyData
from hfta_nb.data.reading_state import Held
from hfta_nb.data.values_in_places import same
from hfta_nb.engine.array import has_lazy, take_shapes
from hfta_nb.engine.array.access import plain_copy, warn, warn_of_changing, warn_of_copies
from hfta_nb.errors import FamilyError, HftaError, out_of_memory
from hfta_nb.models.phases import split
from hfta_nb.models.recipes import Family
from hfta_nb.models.recipes.preserve_rng import preserve_rng
from hfta_nb.search.grid import Variant
from hfta_nb.train.step import call_all

MOST_BYTES = 2**30
"""A model that allocates more is looked at on the device "meta", without memory."""

OWN_BYTES = 2**26
"""Likewise for a model of the package. To fill as much takes less time than to import torch's compiler, as it does for
what is calculated on "meta"."""


COMPLEX = torch.complex128.itemsize


def parameters_of(module: nn.Module) -> int:
    """How many a module has, those left out whose shapes are not known yet."""
    return sum(p.numel() for p in module.parameters() if not is_lazy(p))


class _TooMuchError(BaseException):
    """Not an `Exception`, which a build function may catch."""


class _Limited(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Stops a build function that allocates more than so many bytes, before it does."""

    def __init__(self, most: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.left = most

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch imports its compiler here, which takes a second

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if "device" not in kwargs or any(isinstance(a, torch.Tensor) for a in args):
            return func(*args, **kwargs)
        if _most_bytes(args) > self.left:  # only then, as to ask for `arange` imports the compiler's shapes as well
            asked = func(*args, **{**kwargs, "device": torch.device("meta"), "pin_memory": None})
            if asked.nbytes > self.left:
                raise _TooMuchError
        made = func(*args, **kwargs)
        self.left -= made.nbytes
        return made


def _most_bytes(args: Sequence[Any]) -> float:
    """More than a tensor takes that is made of these sizes, or from these numbers."""
    numbers = [n for a in args for n in (a if isinstance(a, list | tuple) else [a]) if isinstance(n, int | float)]
    return COMPLEX * math.prod(max(1, abs(n)) for n in numbers)


class Builder:
    """Modules without memory, to look at; one per set of arguments.

    A build function is called as a loop of the user's own calls it, because it may keep what it has made (a pretrained
    trunk in a cache); too large models are built on the device "meta".

    Args:
        family: whose build function is called.
        data: of the study.
        shaped: whether lazy modules get their shapes, for which the module's forward runs.
    """

    def __init__(self, family: Family, data: AnyData, shaped: bool = False) -> None:
        self.family, self.data, self.shaped = family, data, shaped
        self._built: dict[str, nn.Module] = {}
        self._counts: dict[int, int] = {}
        self._modules: WeakSet[nn.Module] = WeakSet()  # of all that was built, as long as the user keeps it
        self._parameters: Any = WeakIdKeyDictionary()
        self._builds, self._warned = 0, False
        users = not str(getattr(family.function, "__module__", "")).startswith("hfta_nb.")
        self._held = Held({family.name: family.function}) if users else None

    def count(self, module: nn.Module) -> int:
        """Parameters of a module that was built here."""
        if id(module) not in self._counts:
            self._counts[id(module)] = parameters_of(module)
        return self._counts[id(module)]

    def build(self, variant: Variant, arguments: dict[str, Any]) -> nn.Module:
        key, users = repr(sorted(arguments.items())), self._held is not None
        self._builds += 1
        pair = users and self._builds == 2
        if key not in self._built or pair:
            with self._put_back():
                module = self._new(variant, arguments)
                if users:
                    self._warn_of_shared(module)
                if pair:  # what is kept from build to build is seen in two of them
                    second = self._new(variant, arguments)
                    self._warn_of_shared(second)
                    if not self._warned:
                        self._warn_of_changes(module, second)
                if key not in self._built:
                    self._built[key] = self._shaped(_without_memory(module))
                    if self.family.phases:
                        split(self.family.phases, self._built[key], f"{self.family.name}, {variant.label}")
        return self._built[key]

    @contextmanager
    def _put_back(self) -> Iterator[None]:
        """The context of builds that nobody has asked for: what the function keeps is as before, where it is found."""
        before = None if self._held is None else self._held.look()
        try:
            yield
        finally:
            if self._held is not None and before is not None:
                self._held.put(before)

    def _new(self, variant: Variant, arguments: dict[str, Any]) -> nn.Module:
        limited = _Limited(OWN_BYTES if self._held is None else MOST_BYTES)
        ways: list[AbstractContextManager[Any]] = [limited, torch.device("meta"), nullcontext()]
        # Random numbers drawn here must not be missed by the notebook; some models can't be built on "meta".
        with preserve_rng() as drawn:
            for way in ways:
                drawn.manual_seed(variant.seed)  # what the build function keeps begins as in a loop of its own
                try:
                    with way:
                        return self.family.member(**arguments)
                except _TooMuchError:
                    continue
                except Exception as error:
                    if _overflowed(error):  # with memory it would fail as well, after taking all that there is
                        raise self._too_large(variant, arguments) from error
                    if way is ways[-1] or isinstance(error, FamilyError):  # said on purpose, of weights that don't fit
                        raise self._unbuilt(variant, arguments, error) from error
        raise AssertionError

    def _unbuilt(self, variant: Variant, arguments: dict[str, Any], error: Exception) -> HftaError:
        if isinstance(error, HftaError):
            return error
        if out_of_memory(error):
            return self._too_large(variant, arguments)
        return FamilyError(
            f"can't build this variant ({type(error).__name__}: {error})",
            where=f"{self.family.name}, {variant.label}",
            got=arguments,
            remedy='a list of a grid is a tuple here; annotate the parameter as a list, "name: list"'
            if isinstance(error, TypeError) and "tuple" in str(error)
            else "",
        )

    def _warn_of_shared(self, module: nn.Module) -> None:
        """Warn, once, if this module trains what one that was built before has, as fusing warns within an array."""
        if not self._warned:
            paths = [
                path
                for path, inner in module.named_modules()
                if inner in self._modules and any(p.requires_grad for p in inner.parameters())
            ]
            names = [name for name, p in module.named_parameters() if p.requires_grad and p in self._parameters]
            if names:
                self._warned = True
                path = (paths or names)[0]
                warn_of_copies(f"members share `{path}`" if path else "members are one module")
            statistics = [
                f"{path}.running_mean".lstrip(".")
                for path, inner in module.named_modules()
                if inner in self._modules and isinstance(inner, _NormBase) and inner.running_mean is not None
            ]
            if statistics and not names:  # what is trained is told with all that is around it
                self._warned = True
                warn_of_changing(statistics[0])
        self._modules.update(module.modules())
        self._parameters.update(dict.fromkeys(module.parameters()))

    def _warn_of_changes(self, first: nn.Module, second: nn.Module) -> None:
        """Warn if two modules that were built from one seed begin with unlike values."""
        values, others = first.state_dict(), second.state_dict()
        tensors = {name: v for name, v in values.items() if isinstance(v, Tensor) and not is_lazy(v) and not v.is_meta}
        unlike = [name for name, v in tensors.items() if not same(v, others.get(name))]
        if unlike:
            warn(
                f"{self.family.name} builds modules from one seed that begin with unlike values (`{unlike[0]}`): it "
                "keeps a random stream or a counter, or asks for a clock. What a member begins with depends on what "
                "was built before it, in a check and in a run that goes on as well; draw from torch's own stream, "
                "which each member's seed sets, or make the generator where the module is built"
            )

    def _too_large(self, variant: Variant, arguments: dict[str, Any]) -> FamilyError:
        return FamilyError(
            "this variant is too large to be built",
            where=f"{self.family.name}, {variant.label}",
            got=arguments,
            accepted="a module that the machine's memory holds",
            remedy="choose smaller sizes",
        )

    def _shaped(self, module: nn.Module) -> nn.Module:
        """The module, with shapes from a sample where its own wait for one."""
        if self.shaped and has_lazy(module):
            like = next(module.parameters())
            sample = self.data.sample(2, like.device, like.dtype)
            take_shapes(module, lambda m: call_all(m, sample, self.family.phases))
        return module


def _without_memory(module: nn.Module) -> nn.Module:
    """A module with the same attributes, whose parameters and buffers are on the device "meta".

    The user may keep parts of the module, which must not change. One that has no shapes yet stays as it is.
    """
    if has_lazy(module) or any(isinstance(m, torch.jit.ScriptModule) for m in module.modules()):
        return plain_copy(module)
    known: dict[int, Any] = {}
    for tensor in (*module.parameters(), *module.buffers()):
        known[id(tensor)] = like = _like(tensor)
        if isinstance(tensor, nn.Parameter):
            known[id(tensor)] = nn.Parameter(like, tensor.requires_grad)
    inner = list(module.modules())
    known.update((id(m), type(m).__new__(type(m))) for m in inner)
    for m in inner:
        for name, value in vars(m).items():
            if name in ("_parameters", "_buffers", "_modules"):
                value = {k: known.get(id(v), v) for k, v in value.items()}
            elif isinstance(value, list):  # torch's recurrent modules list their weights
                value = [known.get(id(v), v) for v in value]
            known[id(m)].__dict__[name] = value
    found: nn.Module = known[id(module)]
    return found


def _like(tensor: Tensor) -> Tensor:
    """A tensor without memory; by its strides, as for `empty_like` on "meta" torch imports its compiler's shapes."""
    if tensor.layout is not torch.strided:
        return torch.empty_like(tensor, device="meta")
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def _overflowed(error: Exception) -> bool:
    """Whether a tensor would have more bytes than can be counted."""
    return isinstance(error, RuntimeError) and "overflow" in str(error).lower()
