"""The frozen prefix of a model: submodules whose outputs depend on a sample alone, in every step of every member.

Such outputs can be computed once per sample. A forward with `Featured` inputs takes them from its inputs.
`find_prefix` says which they are.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from hfta_nb.engine.eager.intercept import forwards_replaced
from hfta_nb.engine.members.tree import Rebuild, flatten, unflatten

Forward = Callable[..., Any]


class Featured(NamedTuple):
    """Inputs of a model, and the outputs of its frozen prefix for the same samples; see `Prefix.featured`.

    Attributes:
        inputs: as `call_module` accepts them.
        features: tensors ``[N, ...]``.
        prefix: of the class, which belongs to one prefix.
    """

    inputs: Any
    features: tuple[Tensor, ...]


@dataclass(frozen=True)
class Output:
    """What a submodule returns.

    Attributes:
        leaves: of it, with `...` in the place of each tensor.
        rebuild: puts leaves together.
        tensors: shape without the samples' axis, and dtype, of each tensor.
    """

    leaves: tuple[Any, ...]
    rebuild: Rebuild
    tensors: tuple[tuple[tuple[int, ...], torch.dtype], ...]

    def of(self, tensors: Iterator[Tensor]) -> Any:
        """The output with these tensors."""
        return unflatten(self.rebuild, [next(tensors) if leaf is ... else leaf for leaf in self.leaves])


@dataclass(frozen=True, eq=False)
class Prefix:
    """The frozen prefix of a model.

    Attributes:
        kept: by path, submodules whose outputs the rest of the model uses.
        skipped: by path, further submodules, which need not run where those outputs are known.
        reads: the names of parameters and buffers that the outputs depend on.
        written: the submodules into whose outputs others write, such as ``ReLU(inplace=True)``.
    """

    kept: Mapping[str, Output]
    skipped: Mapping[str, Output]
    reads: tuple[str, ...]
    written: frozenset[str] = frozenset()

    @property
    def paths(self) -> list[str]:
        """Of all submodules that need not run."""
        return [*self.kept, *self.skipped]

    @property
    def sample_bytes(self) -> int:
        """The size of one sample's features."""
        return sum(math.prod(shape) * dtype.itemsize for o in self.kept.values() for shape, dtype in o.tensors)

    @property
    def sample_numbers(self) -> int:
        """How many numbers one sample's features are."""
        return sum(math.prod(shape) for o in self.kept.values() for shape, _ in o.tensors)

    def featured(self) -> type[Featured]:
        """A class of inputs that hold these outputs. Signatures of calls distinguish classes."""
        return type("Featured", (_Featured,), {"prefix": self})

    def features_of(self, module: nn.Module, call: Callable[[nn.Module, Any], Any], given: Any) -> tuple[Tensor, ...]:
        """The outputs for some samples, in the order of `kept`; the rest of the forward is left out.

        Args:
            module: plain.
            call: calls it with inputs.
            given: its inputs.
        """
        found: dict[str, list[Tensor]] = {}

        def observed(path: str, module: nn.Module) -> Forward:
            forward = module.forward

            def run(*args: Any, **kwargs: Any) -> Any:
                result = forward(*args, **kwargs)
                found[path] = [leaf.detach().clone() for leaf in flatten(result)[0] if isinstance(leaf, Tensor)]
                if len(found) == len(self.kept):
                    raise _EnoughError
                return result

            return run

        with forwards_replaced(module, {path: partial(observed, path) for path in self.kept}), suppress(_EnoughError):
            call(module, given)
        return tuple(tensor for path in self.kept for tensor in found[path])

    def forwards(self, features: Sequence[Tensor]) -> dict[str, Callable[[nn.Module], Forward]]:
        """What takes the place of the submodules' `forward`, as `forwards_replaced` takes it."""
        left, first = iter(features), features[0]
        made: dict[str, Any] = {}
        for path, output in self.kept.items():
            own = itertools.islice(left, len(output.tensors))
            made[path] = output.of(map(torch.clone, own) if path in self.written else own)
        for path, output in self.skipped.items():  # has the right shape, and is not used
            made[path] = output.of(self._empty(first, path, *tensor) for tensor in output.tensors)
        return {path: partial(_Given, result) for path, result in made.items()}

    def _empty(self, like: Tensor, path: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Zeros for the samples of a feature, without memory where nothing writes to them."""
        shape = like.shape[0], *shape
        return like.new_zeros(shape if path in self.written else (), dtype=dtype).expand(shape)


class _Featured(Featured):
    prefix: ClassVar[Prefix]


class _Given:
    """Takes the place of a submodule's `forward`: returns what is known already."""

    def __init__(self, result: Any, module: nn.Module) -> None:
        self.result = result

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.result


class _EnoughError(BaseException):
    """All features are there. Not an `Exception`, which a forward may catch."""


def has_given_parts(module: nn.Module) -> bool:
    """Whether the outputs of some submodules are taken from the inputs of the call under way."""
    return any(isinstance(inner.__dict__.get("forward"), _Given) for inner in module.modules())


def call_featured(call: Callable[[nn.Module, Any], Any], module: nn.Module, given: Featured) -> Any:
    """Call a module with inputs, of which it takes the outputs of its prefix.

    Args:
        call: calls the module with the inputs alone.
        module: an array's, or a plain one.
        given: of a class that `Prefix.featured` has made.
    """
    assert isinstance(given, _Featured)
    with forwards_replaced(module, given.prefix.forwards(given.features)):
        return call(module, given.inputs)
