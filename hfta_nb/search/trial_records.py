"""Trials as plain data, for the study's database, and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from hfta_nb.search import methods

if TYPE_CHECKING:
    import optuna

STUDY = "study"
"""The key of what samplers keep of a search as a whole; trials have their numbers as keys."""


def key_of(number: int) -> str:
    """The key of a trial; keys sort as numbers do."""
    return f"{number:06d}"


def to_json(trial: optuna.trial.FrozenTrial) -> dict[str, Any]:
    """A trial as plain data."""
    to_json = methods.optuna().distributions.distribution_to_json
    return {
        "state": trial.state.name,
        "values": trial.values,
        "params": {name: _marked(value) for name, value in trial.params.items()},
        "distributions": {name: json.loads(to_json(one)) for name, one in trial.distributions.items()},
        "choices": {n: _marked(list(d.choices)) for n, d in trial.distributions.items() if hasattr(d, "choices")},
        "intermediate": {str(step): value for step, value in trial.intermediate_values.items()},
        "user": dict(trial.user_attrs),
        "system": dict(trial.system_attrs),
        "times": [None if t is None else t.isoformat() for t in (trial.datetime_start, trial.datetime_complete)],
    }


def from_json(body: Mapping[str, Any]) -> optuna.trial.FrozenTrial:
    """The trial of `to_json`.

    Raises:
        KeyError, TypeError, ValueError, AttributeError: it is not one.
    """
    package = methods.optuna()
    distributions = {name: _distribution(body, name) for name in body["distributions"]}
    found: optuna.trial.FrozenTrial = package.trial.create_trial(
        state=package.trial.TrialState[body["state"]],
        values=body["values"],
        params={name: _unmarked(value) for name, value in body["params"].items()},
        distributions=distributions,
        intermediate_values={int(step): float(value) for step, value in body["intermediate"].items()},
        user_attrs=body["user"],
        system_attrs=body["system"],
    )
    began, ended = (None if t is None else datetime.fromisoformat(t) for t in body["times"])
    found.datetime_start, found.datetime_complete = began, ended
    return found


def _distribution(body: Mapping[str, Any], name: str) -> Any:
    choices = body.get("choices", {}).get(name)
    package = methods.optuna().distributions
    if choices is not None:
        with methods.any_choices():
            return package.CategoricalDistribution(_unmarked(choices))
    return package.json_to_distribution(json.dumps(body["distributions"][name]))


def _marked(value: Any) -> Any:
    """A choice as JSON, in which tuples can be told from lists."""
    if isinstance(value, tuple):
        return {"tuple": [_marked(one) for one in value]}
    return [_marked(one) for one in value] if isinstance(value, list) else value


def _unmarked(value: Any) -> Any:
    if isinstance(value, dict):
        return tuple(_unmarked(one) for one in value["tuple"])
    return [_unmarked(one) for one in value] if isinstance(value, list) else value


def lost() -> optuna.trial.FrozenTrial:
    """What stands in the place of a trial that can't be read: the numbers of the others stay theirs."""
    package = methods.optuna()
    found: optuna.trial.FrozenTrial = package.trial.create_trial(state=package.trial.TrialState.FAIL)
    return found


def in_order(bodies: Mapping[str, Mapping[str, Any]]) -> list[optuna.trial.FrozenTrial]:
    """All trials by their numbers; damaged and missing ones as failed ones."""
    numbers = {int(key): body for key, body in bodies.items() if key.isdecimal()}
    found = []
    for number in range(1 + max(numbers, default=-1)):
        try:
            found.append(from_json(numbers[number]))
        except (KeyError, TypeError, ValueError, AttributeError):
            found.append(lost())
    return found
