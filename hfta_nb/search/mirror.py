"""``optuna.log``: a copy of the trials in Optuna's own format, which `optuna-dashboard` opens while a search is on.

The trials themselves are in the study's database, which is written first. A process that is killed between the two
leaves a copy that lacks something; the next run adds it, or makes the copy anew where it isn't one.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import time
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hfta_nb.errors import StoreWarning
from hfta_nb.records import regular_files
from hfta_nb.search import methods

if TYPE_CHECKING:
    import optuna

NAME = "study"
"""Of the Optuna study."""

INTERVAL_S = 2.0
"""What is new is copied at most this often: each value is a line of its own."""


class Mirror:
    """A copy of a search in a file.

    Args:
        path: of the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._copy: optuna.Study | None = None
        self._broken = False
        self._due: set[int] = set()
        self._written_s = 0.0

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_copy": None}  # the process that runs the study writes to the file

    def begin(self, study: optuna.Study) -> None:
        """Bring the copy up to date. Only the process that runs the study may write to it."""
        for left in (f"{self.path.name}.lock", f"{self.path.name}.tmp"):  # of a process that was killed
            with contextlib.suppress(OSError):
                self.path.with_name(left).unlink(missing_ok=True)
        self._broken = False
        self._copy = self._there(study)
        if self._copy is None:
            with self._guarded(), methods.quiet():
                self._copy = self._made_anew(study)
        self._due.update(range(len(study.get_trials(deepcopy=False))))
        self.write(study)

    def follow(self, study: optuna.Study, numbers: Iterable[int]) -> None:
        """Copy what is new of these trials, some of it later. Where that fails, a warning says so, and the search goes
        on without it."""
        if self._copy is None or self._broken:
            return
        self._due.update(numbers)
        if time.monotonic() - self._written_s >= INTERVAL_S:
            self.write(study)

    def write(self, study: optuna.Study) -> None:
        """Copy what `follow` has put off."""
        if self._copy is None or self._broken or not self._due:
            return
        self._written_s = time.monotonic()
        trials = study.get_trials(deepcopy=False)
        with self._guarded():
            known = {t.number: t for t in self._copy.get_trials(deepcopy=False)}
            due, self._due = sorted(self._due), set()
            for number in due:
                if number not in known:
                    self._copy.add_trial(trials[number])
                else:
                    _update(self._copy, known[number], trials[number])

    def _there(self, study: optuna.Study) -> optuna.Study | None:
        """The copy that is there; None where it is damaged, or of other trials."""
        if not self.path.exists():
            return None
        try:
            found = _open(self.path)
            mine, theirs = study.get_trials(deepcopy=False), found.get_trials(deepcopy=False)
        except Exception:  # whatever a damaged file makes Optuna raise
            return None
        if found.directions != study.directions or len(theirs) > len(mine):
            return None
        return found if all(map(_before, theirs, mine)) else None

    def _made_anew(self, study: optuna.Study) -> optuna.Study:
        optuna = methods.optuna()
        spare = self.path.with_name(f"{self.path.name}.tmp")
        made = optuna.create_study(study_name=NAME, storage=_storage(spare), directions=study.directions)
        made.add_trials(study.get_trials(deepcopy=False))
        os.replace(spare, self.path)
        return _open(self.path)

    @contextlib.contextmanager
    def _guarded(self) -> Any:
        try:
            with methods.any_choices():
                yield
        except Exception as error:
            self._broken = True
            what = f"{self.path}: can't be written ({error}); the search itself is in the study's database"
            warnings.warn(StoreWarning(what), stacklevel=2)


def _storage(path: Path) -> Any:
    regular_files.check(path)
    optuna = methods.optuna()
    return optuna.storages.JournalStorage(_unsynced(optuna.storages.journal)(str(path)))


@functools.cache
def _unsynced(journal: Any) -> Any:
    """Optuna's file of a journal, without a sync of the disk after each value: a power cut may cost what is new in the
    copy, or the copy, which is then made anew."""

    class Unsynced(journal.JournalFileBackend):  # type: ignore[misc]
        def append_logs(self, logs: list[dict[str, Any]]) -> None:
            lines = "".join(json.dumps(log, separators=(",", ":")) + "\n" for log in logs)
            lock = self._lock
            lock.acquire()
            try:
                with open(self._file_path, "ab") as file:
                    file.write(lines.encode())
            finally:
                lock.release()

    return Unsynced


def _open(path: Path) -> optuna.Study:
    with methods.any_choices():
        found: optuna.Study = methods.optuna().load_study(study_name=NAME, storage=_storage(path))
    return found


def _before(copy: Any, trial: Any) -> bool:
    """Whether a trial may have been as the copy says."""
    steps = copy.intermediate_values.items() <= trial.intermediate_values.items()
    same = json.dumps(copy.params) == json.dumps(trial.params) and steps  # the file has lists for tuples
    return bool(same and (not copy.state.is_finished() or (copy.state, copy.values) == (trial.state, trial.values)))


def _update(study: optuna.Study, copy: Any, trial: Any) -> None:
    if copy.state.is_finished():
        return
    storage, id = study._storage, copy._trial_id
    for name, value in trial.user_attrs.items():
        if copy.user_attrs.get(name) != value:
            storage.set_trial_user_attr(id, name, value)
    for name, value in trial.system_attrs.items():
        if copy.system_attrs.get(name) != value:
            storage.set_trial_system_attr(id, name, value)
    for step, value in trial.intermediate_values.items():
        if step not in copy.intermediate_values:
            storage.set_trial_intermediate_value(id, step, value)
    if trial.state.is_finished():
        storage.set_trial_state_values(id, trial.state, trial.values)
