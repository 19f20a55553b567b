"""Where Optuna keeps the trials of a search: in memory, or in a storage of the user's that processes share."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hfta_nb.errors import SearchError
from hfta_nb.search import methods
from hfta_nb.search.mirror import NAME

if TYPE_CHECKING:
    import optuna


class Home:
    """The home of Optuna's study.

    Args:
        storage: a URL, or an object of Optuna's; None for memory. Whatever else is in it stays: processes that name the
            same storage and study try one search together, each with its own number of trials.
        name: of the study in it.

    Attributes:
        salt: added to the seed of a sampler. In a shared storage each process draws its own numbers: two that begin at
            the same time would try the same configurations.

    Raises:
        SearchError: the storage can't be opened.
    """

    def __init__(self, storage: Any = None, name: str = NAME) -> None:
        self.given, self.name = storage, name
        self.salt = 0 if storage is None else secrets.randbits(32)
        self._storage: Any = None

    @property
    def shared(self) -> bool:
        """Whether other processes may add trials."""
        return self.given is not None

    def kept_as(self, choice: Any) -> Any:
        """A choice as the storage gives it back: a shared one keeps JSON, which has no tuples."""
        return [self.kept_as(one) for one in choice] if self.shared and isinstance(choice, tuple | list) else choice

    def study(self, sampler: Any, pruner: Any, directions: Sequence[str]) -> optuna.Study:
        """The Optuna study: a new one in memory, or that of the storage, which is created where it is missing.

        Raises:
            SearchError: the storage can't be opened, or its study has other objectives.
        """
        package = methods.optuna()
        how = {"study_name": self.name, "sampler": sampler, "pruner": pruner, "directions": list(directions)}
        with methods.quiet():
            if not self.shared:
                made: optuna.Study = package.create_study(**how)
                return made
            try:
                self._storage = self._storage or package.storages.get_storage(self.given)
                made = package.create_study(**how, storage=self._storage, load_if_exists=True)
            except Exception as error:  # a URL, a driver, a database, a file: whatever may be wrong with one
                accepted = "a URL such as sqlite:///trials.db, or a storage object of Optuna's"
                raise SearchError(f"can't be opened ({_line(error)})", where="storage", got=_shown(self.given),
                                  accepted=accepted) from error  # fmt: skip
        theirs = [one.name.lower() for one in made.directions]
        if theirs != list(directions):
            what, remedy = (
                f"the study {self.name!r} there has other objectives",
                "take another name: Study(name=...)",
            )
            raise SearchError(what, where="storage", got=theirs, accepted=", ".join(directions), remedy=remedy)
        return made

    def to_json(self) -> dict[str, Any] | None:
        """What is saved of it with a study: nothing of an object, nor of a URL with a password."""
        if not self.shared:
            return {}
        if not isinstance(self.given, str) or "@" in self.given:
            return None
        return {"storage": self.given, "study_name": self.name}


def _line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__


def _shown(given: Any) -> Any:
    """A URL without what may be a password."""
    return f"{given.partition('://')[0]}://..." if isinstance(given, str) and "@" in given else given
