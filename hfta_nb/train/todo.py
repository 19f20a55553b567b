"""An array that is to be trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hfta_nb.plan import Group
from hfta_nb.train.settings import End


@dataclass(frozen=True)
class Todo:
    """An array that is to be trained.

    Attributes:
        run: how far it is; None where it has not begun.
        end: where it trains on after its end.
    """

    group: Group
    run: Mapping[str, Any] | None = None
    end: End | None = None
