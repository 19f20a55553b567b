"""The requests to a run."""

from __future__ import annotations

from dataclasses import dataclass, field

from hfta_nb.records.events.variants import Json


@dataclass(frozen=True, slots=True)
class Request:
    """A request to a run. A `key` identifies one that has an effect only once, however often it arrives."""


@dataclass(frozen=True, slots=True)
class Pause(Request):
    """Pause between two steps, keeping everything: one member, or the whole run when `variant` is None."""

    variant: int | None = None
    key: str = ""


@dataclass(frozen=True, slots=True)
class Resume(Request):
    """Continue after a pause: one member, or the whole run when `variant` is None."""

    variant: int | None = None
    key: str = ""


@dataclass(frozen=True, slots=True)
class Stop(Request):
    """Stop one variant, or the whole run when `variant` is None. What was learnt so far is kept."""

    variant: int | None = None


@dataclass(frozen=True, slots=True)
class Delete(Request):
    """End one variant and leave it out of the results."""

    variant: int
    key: str = ""


@dataclass(frozen=True, slots=True)
class Prune(Request):
    """End one variant as not worth its time, unless it is pinned."""

    variant: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Pin(Request):
    """Keep one variant from being pruned; or let it be pruned again."""

    variant: int
    pinned: bool = True


@dataclass(frozen=True, slots=True)
class Add(Request):
    """Train further variants.

    Attributes:
        variants: the values per axis of each variant.
    """

    variants: tuple[dict[str, Json], ...] = field(hash=False)
    key: str = ""


@dataclass(frozen=True, slots=True)
class Clone(Request):
    """Train a new variant beside an existing one.

    Attributes:
        variant: the one to clone.
        changes: the values per axis that differ from its own.
        warm: begin with its state, instead of anew.
    """

    variant: int
    changes: dict[str, Json] = field(hash=False)
    warm: bool = True
    key: str = ""


@dataclass(frozen=True, slots=True)
class Set(Request):
    """Change hyperparameters of one variant in place.

    Attributes:
        changes: the new values per axis.
    """

    variant: int
    changes: dict[str, Json] = field(hash=False)
    key: str = ""


@dataclass(frozen=True, slots=True)
class Extend(Request):
    """Train longer: one variant, or all when `variant` is None.

    Attributes:
        epochs: how many more.
    """

    epochs: int
    variant: int | None = None
    key: str = ""
