"""A search as JSON, for the study's file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from hfta_nb.records.events import tuples
from hfta_nb.search.grid import Integers, integers
from hfta_nb.search.searcher import Searcher
from hfta_nb.search.spaces import Uniform
from hfta_nb.search.storage import Home


def searcher_to_json(searcher: Searcher) -> dict[str, Any] | None:
    """A search as JSON; None where a part of it is code, or may run some when it is loaded."""
    names = {"sampler": searcher.sampler, "pruner": searcher.pruner}
    if searcher.sampler == "cmaes":  # Optuna keeps its state as a pickle, which nothing may load unasked
        return None
    home = searcher.home.to_json()
    if callable(searcher.space) or searcher.constraint or not all(isinstance(v, str) for v in names.values()):
        return None
    if home is None:
        return None
    more: dict[str, Any] = {"skip_duplicates": True} if searcher.skip_duplicates else {}
    more |= {} if searcher.timeout_s is None else {"timeout": searcher.timeout_s}
    space = {name: _axis_to_json(axis) for name, axis in searcher.space.items()}
    if searcher.seeds:
        space["seed"] = {"choices": list(searcher.seeds)}
    more |= {"folds": list(searcher.folds)} if searcher.folds else {}
    numbers = {"trials": searcher.trials, "slots": searcher.slots, "seed": searcher.seed}
    return {"space": space, **numbers, **names, "seeds_by": searcher.seeds_by, **home, **more}


def searcher_from_json(
    saved: Mapping[str, Any], epochs: int, monitor: tuple[str, bool], others: Sequence[tuple[str, bool]] = ()
) -> Searcher:
    """The search that `searcher_to_json` gave."""
    space = {name: _axis_from_json(axis) for name, axis in saved["space"].items()}
    names = ("trials", "slots", "sampler", "pruner", "seed")
    given = {name: saved[name] for name in names} | {"seeds_by": saved.get("seeds_by", "mean")}
    given |= {"skip_duplicates": bool(saved.get("skip_duplicates")), "timeout_s": saved.get("timeout")}
    given["folds"] = tuple(saved.get("folds", ()))
    if "storage" in saved:
        given["home"] = Home(saved["storage"], saved["study_name"])
    return Searcher(space, epochs=epochs, monitor=monitor, others=others, **given)


def _axis_to_json(axis: Any) -> dict[str, Any]:
    if isinstance(axis, Uniform):
        return {"uniform": [axis.low, axis.high, axis.log, axis.step]}
    if isinstance(axis, Integers):
        return {"integers": [axis[0], axis[-1], axis.step]}
    if isinstance(axis, Sequence):
        return {"choices": list(axis)}
    from optuna.distributions import distribution_to_json

    return {"optuna": json.loads(distribution_to_json(axis))}


def _axis_from_json(saved: Mapping[str, Any]) -> Any:
    [(kind, value)] = saved.items()
    if kind == "uniform":
        return Uniform(*value)
    if kind == "integers":
        return integers(*value)
    if kind == "choices":
        return tuples(value)
    from optuna.distributions import json_to_distribution

    return json_to_distribution(json.dumps(value))
