"""What is known of an argument of `hfta_nb.Study`: a row of the table in `study_config`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

ALWAYS, CHANGED, ELSEWHERE = "always", "changed", "elsewhere"

FIELD, SEARCH = "field", "search"
"""Parts of the Workbench's form: fields of every study, the rare ones of which are folded, and of a search."""


@dataclass(frozen=True)
class Argument:
    """What is known of an argument of a study.

    Attributes:
        default: where nothing is given.
        saved: among a study's options ("always"), there if it differs from the default ("changed"), or "elsewhere":
            with the data, the search or the family, or not at all, as it is code.
        hint: what it is, in few words: the help of its option on the command line. Empty where it has no option.
        metavar: what the help calls the option's value.
        basic: whether most studies may want it; those come first wherever arguments are listed.
        low: the least number, where it is one.
        above: the number that it has to be more than, where it is one.
        choices: the words that it may be, where it is one of some.
        form: the part of the Workbench's form with a field for it, with the same hint; empty for none. It is a number
            then, or has choices; `ui/search_fields.py` makes the others.
        none: what None means, in a word, which an empty field shows.
        free: whether a run may go on with another value.
        speed: whether it matters to how fast arrays train.
        aliases: what is said of the names that other libraries have for it, and these names, with spaces between.
        key: whether `hfta-nb tune` takes it from a file. Each option is a key as well.
        search: whether it belongs to a search, and is refused without one.
        type: as in the signature.
    """

    default: Any
    saved: str
    hint: str
    metavar: str | None
    basic: bool = False
    low: int | None = None
    above: int | None = None
    choices: tuple[str, ...] = ()
    form: str = ""
    none: str = ""
    free: bool = False
    speed: bool = True
    aliases: Mapping[str, str] = field(default_factory=dict)
    key: bool = False
    search: bool = False
    type: str = ""

    @property
    def bare_type(self) -> str:
        """The type of what is not None."""
        return self.type.removesuffix(" | None")

    @property
    def range(self) -> str:
        """Which numbers it may be, in words; empty where any."""
        return f"above {self.above}" if self.above is not None else f"from {self.low}" if self.low is not None else ""

    def has_in_range(self, value: float) -> bool:
        """Whether it may be this number."""
        low = -math.inf if self.low is None else self.low
        return low <= value < math.inf and (self.above is None or value > self.above)


def advanced(default: Any, saved: str = ELSEWHERE, hint: str = "", metavar: str | None = None, **more: Any) -> Any:
    """A field of `StudyConfig`."""
    return field(default=default, metadata={"argument": Argument(default, saved, hint, metavar, **more)})


def basic(*given: Any, **more: Any) -> Any:
    """A field that most studies may want."""
    return advanced(*given, basic=True, **more)
