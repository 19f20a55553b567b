"""`Store`: the directory of one run.

``study.sqlite`` says what was asked, what happened and which files belong to the last checkpoints. Files of tensors are
safetensors: ``weights/`` has a member's best weights as a plain state dict, ``checkpoints/`` all that resuming needs,
and ``ends/`` what an array that is done needs to train on.
"""

from __future__ import annotations

import contextlib
import sqlite3
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from hfta_nb.errors import StoreError, StoreWarning
from hfta_nb.errors.plain_text import encodes, visible
from hfta_nb.records.events import Event
from hfta_nb.records.store import checkpoints, database, facts, journal, run_copy, tensor_files, trees
from hfta_nb.records.store.checkpoints import Checkpoint
from hfta_nb.records.store.connections import Access
from hfta_nb.records.store.mailbox import Requests
from hfta_nb.records.store.tensor_files import Entry

_STUDY, _FILE = "study", "file"


class Store:
    """The directory of one run.

    Args:
        directory: where it lies; made when something is first written.

    Raises:
        StoreError: the path is not UTF-8, as the database and what reads it want it.

    Attributes:
        requests: of other processes to the one that runs the study.
        unwritten: ends of arrays, by name, since the directory is gone.
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        if not encodes(self.directory):
            raise StoreError("not UTF-8", where=str(self.directory), accepted="a path that is", remedy="rename it")
        self._access = Access(self.directory)
        self.requests = Requests(self._access)
        self._staged: dict[str, tuple[Entry, Any]] = {}  # ends that the next checkpoint commits
        self._reported: set[str] = set()  # damage that was told of
        self.unwritten: dict[str, Mapping[str, Any]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.directory,)  # connections and locks belong to this process

    @property
    def path(self) -> Path:
        """Of the database."""
        return self.directory / database.NAME

    # Who is at it.

    @property
    def exists(self) -> bool:
        """Whether there is a study."""
        return self._access.exists

    @contextlib.contextmanager
    def claimed(self, patience_s: float = 5.0) -> Iterator[None]:
        """Keep others from running this study, in this process or in another, until the block is left.

        Args:
            patience_s: how long another one, which may be about to end, is waited for.

        Raises:
            StoreError: another one runs it, the directory can't be written to, or the database is damaged.
        """
        with self._access.claimed(patience_s):
            yield

    @property
    def running(self) -> bool | None:
        """Whether the study is being run now, here or elsewhere; None where the system can't tell."""
        return self._access.running

    @property
    def written_s(self) -> float:
        """When something was last written, in seconds since the epoch; 0 where nothing was."""
        return self._access.written_s

    # What was asked.

    def write_study(self, study: Mapping[str, Any], tensors: Mapping[str, Mapping[str, Tensor]] = {}) -> None:
        """Write what was asked, in one go.

        Args:
            study: plain data.
            tensors: by the name of a file, named tensors that belong to it.

        Raises:
            StoreError: the directory can't be written to.
        """
        entries = {name: tensor_files.write(self.directory, name, one) for name, one in tensors.items()}

        def put(connection: sqlite3.Connection) -> None:
            facts.put(connection, _STUDY, "", study)
            for name, entry in entries.items():
                facts.put(connection, _FILE, name, entry.to_json())

        if not self.exists:
            with database.making(self.path) as made, database.transaction(made):
                put(made)
        with self._access.writing() as connection:  # as well where another process was faster
            put(connection)

    def read_study(self) -> dict[str, Any]:
        """What was asked.

        Raises:
            StoreError: there is no run here, or it is of a later version or damaged.
        """
        with self._access.reading() as connection:
            _, found = facts.get(connection, _STUDY, "")
        if found is None:
            remedy = "its weights are plain state dicts, in weights/"
            raise StoreError("what was asked is damaged", where=str(self.path), remedy=remedy)
        return found

    def note(self, kind: str, bodies: Mapping[str, Mapping[str, Any]], lasting: bool = True) -> None:
        """Write down what is known of a study beside what was asked: of a kind, by keys, plain data.

        What is not `lasting` a power cut may take with the events before and after it, a killed process not.
        """
        with self._access.writing(lasting) as connection:
            for key, body in bodies.items():
                facts.put(connection, kind, key, body)

    def notes(self, kind: str) -> dict[str, dict[str, Any]]:
        """What `note` wrote, by key; what is damaged is told of and left out."""
        with self._access.reading() as connection:
            found = dict(facts.all_of(connection, kind))
        for key in [key for key, body in found.items() if body is None]:
            self._warn(f"the {kind} {key} is damaged and left out")
        return {key: body for key, body in found.items() if body is not None}

    # What happened.

    @property
    def has_events(self) -> bool:
        """Whether anything has happened."""
        if not self.exists:
            return False
        with self._access.reading() as connection:
            return journal.last(connection) > 0

    def append(self, event: Event) -> int:
        """Add an event; returns its number. It is written when this returns, so that a killed process loses none."""
        decisive = isinstance(event, journal.DECISIVE)
        if not self.exists:
            self.write_study({})
        with self._access.writing(lasting=decisive) as connection:
            return journal.append(connection, event)

    def events(self, offset: int = 0) -> Iterator[tuple[Event, int]]:
        """Events after a number, each with its own; those that a resumed run repeats are there once.

        What is damaged is left out and told of by a `StoreWarning`, events of a later version are passed over.

        Raises:
            StoreError: there is nothing that can be read.
        """
        for row in self.rows(offset):
            found = journal.record(row)
            if found is not None:
                yield found, row.number

    def rows(self, offset: int = 0) -> Iterator[journal.Row]:
        """The same as they were written, those of later versions as well."""
        more = self.exists
        while more:
            with self._access.reading() as connection:
                listed = journal.rows(connection, offset)
                ranges = journal.left_out(connection)
            more = len(listed) == journal.AT_ONCE
            offset = listed[-1].number if listed else offset
            damaged = [row.number for row in listed if row.body is None]
            if damaged:
                numbers = ", ".join(map(str, damaged[:5])) + (", ..." if len(damaged) > 5 else "")
                some = f"{len(damaged)} event{'s' * (len(damaged) > 1)}"
                self._warn(f"{some} of {listed[0].number} to {offset} can't be read and are left out: {numbers}")
            yield from (row for row in journal.kept(listed, ranges) if row.body is not None)

    # Weights, checkpoints and other tensors.

    def write_checkpoint(
        self, state: Mapping[str, Any], weights: Mapping[int | str, Mapping[str, Tensor]] = {}
    ) -> Path:
        """Write a tree of tensors and plain data, and members' best weights, in one go.

        Args:
            state: all that resuming needs.
            weights: by variant (3, or "3@9" for others than its best), a plain state dict; what is not given stays.

        Returns:
            The file of the tensors, or the database where there are none.

        Raises:
            StoreError: there is no room, or it can't be written; the checkpoint before is whole.
        """
        self._access.check()
        tensors: dict[str, Tensor] = {}
        plain = trees.take_tensors(state, tensors)
        if not self.exists:
            self.write_study({})
        with self._access.writer() as connection:
            number, before = checkpoints.next_number(connection), self._newest(connection)
            best = {} if before is None else checkpoints.there(self.directory, before.weights, self._warn, weights)
            for variant, one in weights.items():
                best[str(variant)] = tensor_files.write(self.directory, f"weights/{variant}.{number}.safetensors", one)
            entry = (
                tensor_files.write(self.directory, f"checkpoints/{number}.safetensors", tensors) if tensors else None
            )
            ends, plain_ends = self._ends(before, state)
            event = journal.last(connection)
            with database.transaction(connection):
                checkpoints.insert(connection, Checkpoint(number, event, plain, entry, best, ends, plain_ends))
            self._access.check()
            self._staged.clear()
            database.fold_in(connection)
            checkpoints.tidy(connection, self.directory, [entry for entry, _ in self._staged.values()])
        return self.path if entry is None else self.directory / entry.path

    @property
    def has_checkpoint(self) -> bool:
        if not self.exists:
            return False
        with self._access.reading() as connection:
            return bool(checkpoints.listed(connection, 1))

    def go_back(self) -> Any:
        """Go back to the last checkpoint that is whole, to carry on from there; to the start where there is none yet.

        Returns:
            Its state, or None. Events of progress after it, which come again, are left out from now on.

        Raises:
            StoreError: there are checkpoints, and all are damaged.
        """
        self._staged.clear()
        found = self._best_of() if self.has_checkpoint else None
        state = None if found is None else checkpoints.tree(self.directory, found)
        with self._access.writing() as connection:
            if found is not None:
                connection.execute("DELETE FROM checkpoints WHERE number > ?", (found.number,))
            journal.go_back(connection, 0 if found is None else found.event)
        with self._access.writer() as connection:
            checkpoints.tidy(connection, self.directory, [entry for entry, _ in self._staged.values()])
        return state

    def write_end(self, array: int, state: Mapping[str, Any]) -> str:
        """Write how far an array has come that is done; the next checkpoint commits it. Returns its name."""
        if not self.exists:
            self.write_study({})
        with self._access.writer() as connection:
            number = checkpoints.next_number(connection)
        name = f"ends/{array}.{number}.safetensors"
        try:
            self._access.check()
        except StoreError:  # which the next checkpoint says: with it go the weights
            self.unwritten[name] = state
        else:
            self.stage(name, state)
        return name

    def stage(self, name: str, state: Mapping[str, Any]) -> None:
        """Write what `write_end` named, for the next checkpoint."""
        tensors: dict[str, Tensor] = {}
        plain = trees.take_tensors(state, tensors)
        self._staged[name] = tensor_files.write(self.directory, name, tensors), plain

    def read_end(self, name: str) -> Any:
        """What `write_end` was given.

        Raises:
            StoreError: the file is missing or damaged.
        """
        if name in self._staged:
            entry, plain = self._staged[name]
            return trees.put_tensors(plain, tensor_files.read(self.directory, entry))
        with self._access.reading() as connection:
            found = self._newest(connection)
        return checkpoints.end(self.directory, found, name)

    def weights_path(self, variant: int | str) -> Path:
        """The file of a member's best weights, or of others by their name; where it would be if there is none."""
        found = self._weights().get(str(variant))
        return self.directory / (f"weights/{variant}.safetensors" if found is None else found.path)

    def read_weights(self, variant: int | str) -> dict[str, Tensor]:
        """A member's best weights, or others by their name.

        Raises:
            StoreError: none were written (yet), or the file is damaged.
        """
        for last in (False, True):
            entry = self._weights().get(str(variant))
            if entry is None:
                why = "was the run stopped before it was saved, or its directory deleted?"
                raise StoreError("no such file in the run", where=str(self.weights_path(variant)), remedy=why)
            try:
                return tensor_files.read(self.directory, entry)
            except StoreError:
                if last or entry == self._weights().get(str(variant)):
                    raise  # else a run that goes on has written better ones between the two looks
        raise AssertionError  # the loop returns or raises

    def weights_of(self, variant: int) -> list[str]:
        """The moments of which other weights of a member are kept than its best ones."""
        names = (name.partition("@") for name in self._weights())
        return [moment for own, _, moment in names if own == str(variant) and moment]

    def read_tensors(self, name: str) -> dict[str, Tensor]:
        """Tensors that `write_study` was given.

        Raises:
            StoreError: the file is missing or damaged.
        """
        with self._access.reading() as connection:
            there, found = facts.get(connection, _FILE, name)
        if found is None:
            what = "what is known of this file is damaged" if there else "no such file in the run"
            raise StoreError(what, where=str(self.directory / name))
        return tensor_files.read(self.directory, Entry.from_json(found))

    def copy_to(self, directory: Path) -> None:
        """Copy the whole run: all of it that can be read, into a database of its own.

        Raises:
            StoreError: another run is there, or the directory can't be written to.
        """
        if Store(directory).exists:
            raise StoreError("a run is already there", where=str(directory), remedy="choose another directory")
        with self._access.reading() as connection:
            for found in run_copy.copy(connection, self._access.source, directory):
                self._warn(found)

    def warn_of_lost_files(self) -> None:
        """Warn of files of the last checkpoint that are there no more."""
        with self._access.reading() as connection, contextlib.suppress(StoreError):
            if found := self._newest(connection):
                checkpoints.there(self.directory, {entry.path: entry for entry in found.files}, self._warn)

    # Within.

    def _warn(self, what: str) -> None:
        """Warn of what is damaged, once."""
        if what not in self._reported:
            self._reported.add(what)
            warnings.warn(StoreWarning(visible(f"{self.path}: {what}")), stacklevel=3)

    def _newest(self, connection: sqlite3.Connection) -> Checkpoint | None:
        """The last checkpoint's row.

        Raises:
            StoreError: it is damaged. The one before may have other weights, which nobody is to take for these.
        """
        rows = checkpoints.listed(connection, 1)
        if rows and rows[0][1] is None:
            remedy = "run(resume=True) goes back to the one before; all weights are plain state dicts, in weights/"
            raise StoreError("the last checkpoint is damaged", where=str(self.path), remedy=remedy)
        return rows[0][1] if rows else None

    def _best_of(self) -> Checkpoint:
        """The last checkpoint that is whole."""
        with self._access.reading() as connection:
            return checkpoints.last_whole(connection, self.directory, self._warn)

    def _weights(self) -> Mapping[str, Entry]:
        if not self.exists:
            return {}
        with self._access.reading() as connection:
            found = self._newest(connection)
        return {} if found is None else found.weights

    def _ends(self, before: Checkpoint | None, state: Any) -> tuple[dict[str, Entry], dict[str, Any]]:
        """The ends that a state names, with what is in them beside tensors."""
        names = [str(one["file"]) for one in state.get("ends", ())]
        earlier = {} if before is None else {n: e for n, e in before.ends.items() if n in names}
        kept = checkpoints.there(self.directory, earlier, self._warn)
        known = ({} if before is None else {n: (kept[n], before.trees[n]) for n in kept}) | self._staged
        found = {name: known[name] for name in names if name in known}
        return {n: entry for n, (entry, _) in found.items()}, {n: plain for n, (_, plain) in found.items()}
