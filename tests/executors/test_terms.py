"""Executors and terms that can't be: told when they are made."""

from __future__ import annotations

from typing import Any

import pytest

from hfta_nb.errors import FleetError, WorkerError
from hfta_nb.workers.pools import OnRay, Processes, Terms


@pytest.mark.parametrize(
    "given",
    [
        {"rates": 5},
        {"rates": {"array 0": [-1.0]}},
        {"paradigm": "best"},
        {"most": 0},
        {"most": "2"},
        {"restarts": -1},
        {"delta": -1},
        {"alpha": 2},
        {"checkpoint_every_s": "often"},
        {"silent_s": None},
    ],
    ids=str,
)
def test_terms_that_can_t_be(given: dict[str, Any]) -> None:
    with pytest.raises(FleetError, match=next(iter(given))):
        Terms(**given)


@pytest.mark.parametrize(
    ("kind", "given", "what"),
    [
        (Processes, {"terms": 5}, "not terms"),
        (OnRay, {"terms": "global"}, "not terms"),
        (OnRay, {"address": 6379}, "not the address"),
        (OnRay, {"resources": 5}, "not resources"),
        (OnRay, {"resources": {"disk": "much"}}, "not resources"),
        (OnRay, {"resources": {"CPU": 2}}, "not resources"),
        (OnRay, {"cpus": 0.5}, "not a positive whole number"),
    ],
)
def test_executors_of_what_can_t_be(kind: Any, given: dict[str, Any], what: str) -> None:
    pytest.importorskip("ray")
    with pytest.raises(WorkerError, match=what):
        kind(**given)
