"""Trials that the user has enqueued with `optuna.Study.enqueue_trial`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from hfta_nb.errors import SearchError
from hfta_nb.records.events import tuples
from hfta_nb.search import methods
from hfta_nb.search.spaces import Space, choices_of, ends_of

if TYPE_CHECKING:
    import optuna

FIXED = "fixed_params"
"""The system attribute in which Optuna keeps the values of an enqueued trial."""

REASON = "reason"
"""The user attribute that says why a trial was not trained."""


def prepare(study: optuna.Study, space: Space) -> Iterator[SearchError]:
    """Give enqueued trials the values of the space that they mean: a list for a tuple, for example.

    Yields:
        An error for each that has an axis or a value that the space has not. It has failed.
    """
    if callable(space):
        return
    storage = study._storage
    for trial in study.get_trials(deepcopy=False, states=(methods.state("WAITING"),)):
        given: dict[str, Any] = trial.system_attrs.get(FIXED, {})
        try:
            meant = {name: _meant(space, name, value) for name, value in given.items()}
        except SearchError as error:
            storage.set_trial_user_attr(trial._trial_id, REASON, error.message)
            storage.set_trial_state_values(trial._trial_id, methods.state("RUNNING"))
            storage.set_trial_state_values(trial._trial_id, methods.state("FAIL"))
            yield error
            continue
        if any(meant[name] is not given[name] for name in given):
            storage.set_trial_system_attr(trial._trial_id, FIXED, meant)


def _meant(space: Any, name: str, value: Any) -> Any:
    if name not in space:
        raise SearchError("an enqueued trial has an axis that is not searched", where="enqueue_trial", got=name,
                          accepted=", ".join(space))  # fmt: skip
    axis = space[name]
    choices = choices_of(axis)
    if choices is not None:
        found = [choice for choice in choices if choice == value] or [c for c in choices if tuples(c) == tuples(value)]
        accepted = ", ".join(map(repr, choices))
    else:
        low, high = ends_of(axis)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        found, accepted = [value] if number and low <= value <= high else [], f"{low} to {high}"
    if not found:
        raise SearchError("an enqueued value is not in the space", where=f"enqueue_trial: {name}", got=value,
                          accepted=accepted)  # fmt: skip
    return found[0]
