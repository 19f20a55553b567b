"""Python source of a search: its space, methods and numbers, as arguments of `Study`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hfta_nb.search import Searcher, Uniform
from hfta_nb.search.grid import Integers

_HERE = "to be defined in this notebook"


def imports(searcher: Searcher) -> list[str]:
    """Imports that the source of a search needs."""
    axes = searcher.space.values() if isinstance(searcher.space, Mapping) else ()
    return ["import optuna"] if any(_of_optuna(axis) for axis in axes) else []


def space(searcher: Searcher) -> str:
    """The space as the argument in a grid's place."""
    if callable(searcher.space):
        return f"    {_name(searcher.space, 'space')},  # a function of an Optuna trial, {_HERE}"
    axes = [f"{name!r}: {_axis(axis)}" for name, axis in searcher.space.items()]
    axes += [f"'seed': {list(searcher.seeds)!r}"] if searcher.seeds else []
    return f"    {{{', '.join(axes)}}},"


def methods(searcher: Searcher) -> list[str]:
    """The numbers and methods, an argument a line; what is an object is named only."""
    lines = [f"    trials={searcher.trials},", f"    slots={searcher.slots},"]
    for name in ("sampler", "pruner"):
        given = getattr(searcher, name)
        named = isinstance(given, str)
        lines.append(f"    {name}={given!r}," if named else f"    {name}={name},  # {type(given).__name__}, {_HERE}")
    if searcher.constraint is not None:
        lines.append(f"    constraint={_name(searcher.constraint, 'constraint')},  # {_HERE}")
    if searcher.seeds_by != "mean":
        lines.append(f"    seeds_by={searcher.seeds_by!r},")
    if searcher.home.shared:
        saved = searcher.home.to_json()
        lines.append(f"    storage={saved['storage']!r}," if saved else f"    storage=storage,  # {_HERE}")
    lines += ["    skip_duplicates=True,"] * searcher.skip_duplicates
    lines += [] if searcher.timeout_s is None else [f"    timeout={searcher.timeout_s!r},"]
    return lines


def _name(function: Any, default: str) -> str:
    name = str(getattr(function, "__name__", ""))
    return name if name.isidentifier() else default


def _axis(axis: Any) -> str:
    if isinstance(axis, Uniform):
        more = [", log=True"] * axis.log + ([] if axis.step is None else [f", step={axis.step!r}"])
        return f"hfta.uniform({axis.low!r}, {axis.high!r}{''.join(more)})"
    if isinstance(axis, Integers):
        return f"hfta.integers({axis[0]}, {axis[-1]}{f', {axis.step}' if axis.step != 1 else ''})"
    return f"optuna.distributions.{axis!r}" if _of_optuna(axis) else repr(list(axis))


def _of_optuna(axis: Any) -> bool:
    return hasattr(axis, "to_internal_repr")
