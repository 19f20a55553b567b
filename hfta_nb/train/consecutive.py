"""Batches of a stream where what is read depends on what was read before, as with a generator that a dataset holds."""

from __future__ import annotations

import warnings
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any

import torch

from hfta_nb.data import Data, Reading, Samples, Stream, is_resident, packed, shown, unpacked
from hfta_nb.errors import DataError, DataWarning
from hfta_nb.train.batches import Batch, Batches, Hosted, Resident, Streamed


class Consecutive(Streamed):
    """Of a stream that is read in the order of the reader's own loop: passes through training, validations in between.

    To go back, as after an interruption, what the data held when the pass began is put back, and what was read since is
    read again: a loader or generator that is in the midst of a pass can't be kept.
    """

    def __init__(self, data: Stream, batch_size: int, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(data, batch_size, device, dtype)
        self._reading = Reading(data.held)
        self._at = (0, 0)
        self._seed = 0
        self._anchor: dict[str, Any] = {}  # what was held before the pass, or before a validation that preceded it
        self._anchored = 0  # the number of that pass
        self._validated: list[int] = []  # the batches that were given since the anchor, at each validation since
        self._before: dict[str, Any] | None = None  # what was held before the validation after the latest batch
        self._resumed = False  # whether nothing was read yet of what a checkpoint says
        self._lost = False  # whether a checkpoint does not say what was held

    def state(self) -> dict[str, Any]:
        """See `Batches`."""
        if self._at[1] == 0 and self._before is None and not self._resumed:
            self._anchor_here()
        return {
            "held": packed(self._anchor),
            "pass": self._anchored,
            "given": self._at[1],
            "validated": list(self._validated),
            "seed": self._seed,
        }

    def load_state(self, state: Mapping[str, Any] | None) -> None:
        """See `Batches`; nothing is read before a batch is asked for."""
        held, name = self.data.held, self.data.name
        if held.entropy:
            words = f"{name}: {held.entropy}; so what is read now is not what would have been without the interruption"
            warnings.warn(DataWarning(words), stacklevel=2)
        self._lost = state is None
        if state is not None:
            self._anchor = unpacked(state["held"], held, name)
            self._anchored, self._at = int(state["pass"]), (int(state["pass"]), int(state["given"]))
            self._validated, self._seed = [int(n) for n in state["validated"]], int(state["seed"])
            self._resumed = True

    def epoch(self, epoch: int, start: int, seeds: Sequence[int], behind: Sequence[int] = ()) -> Iterator[Batch]:
        """See `Streamed`."""
        for batch in super().epoch(epoch, start, seeds, behind):
            self._before = None
            yield batch
        self._before = None

    def _begin(self, epoch: int, start: int, seed: int) -> Generator[tuple[Samples, Samples]]:
        if self._lost and (epoch, start) != (0, 0):
            what = "the checkpoint does not say what the data held, so it can't be gone on from"
            raise DataError(what, where=self.data.name, got=shown(self.data.held.names))
        self._seed = seed
        if start or self._resumed or self._at != (epoch, 0):
            if epoch != self._anchored:
                what = f"what is read depends on what was read before, so it can't go to pass {epoch + 1}"
                raise DataError(what, where=self.data.name, got=f"pass {self._anchored + 1}")
            return self._again(start, [n for n in self._validated if n <= start])
        self._anchor_here()
        return self._pass()

    def _anchor_here(self) -> None:
        self._anchor, self._anchored, self._validated = self._reading.taken(), self._at[0], []

    def _pass(self) -> Generator[tuple[Samples, Samples]]:
        batches = self.data.training.batches(self.batch_size, self._seed, self._anchored)
        return self._ahead(self._reading.items(batches))

    def _again(self, start: int, validated: list[int]) -> Generator[tuple[Samples, Samples]]:
        """The pass from number `start` on, after everything since the anchor is read again.

        Args:
            start: the number of a batch.
            validated: how many batches were given before each validation, up to that.
        """
        self._resumed, self._before = False, None
        self._reading.go_to(self._anchor)
        if 0 in validated:
            self._read_validation()
            self._at = self._anchored, 0
            self._anchor_here()
        reader = self._pass()
        for number in range(1, start + 1):
            next(reader, None)
            if number in validated:
                self._read_validation()
        self._validated = [n for n in validated if n]
        return reader

    def _read_validation(self) -> None:
        for _ in self._reading.items(self.data.validation.batches(self._evaluated, 0, 0)):
            pass

    def _begin_validation(self) -> Generator[tuple[Samples, Samples]]:
        given = self._at[1]
        if self._resumed and given:
            self._open = self._again(given, [n for n in self._validated if n < given])
            self._at = self._anchored, given
        elif self._resumed:
            self._resumed = False
            self._reading.go_to(self._anchor)
        elif self._before is not None:  # the latest one is made again
            self._reading.go_to(self._before)
        self._before = self._reading.taken()
        if not given:
            self._anchor_here()
        self._validated = [*(n for n in self._validated if n < given), given]
        return self._ahead(self._reading.items(self.data.validation.batches(self._evaluated, 0, 0)))

    def _ahead(self, batches: Generator[tuple[Samples, Samples]]) -> Generator[tuple[Samples, Samples]]:
        """On the device; nothing is read before the step that needs it, for a validation may come first."""
        for sent in self._transfer.sent(batches):
            yield sent.taken()


def batches_of(data: Data | Stream, batch_size: int, device: torch.device, dtype: torch.dtype) -> Batches:
    """The mini-batches of any data, as it asks for them; see `Batches`."""
    if isinstance(data, Stream):
        return (Consecutive if data.held.varies else Streamed)(data, batch_size, device, dtype)
    return (Resident if is_resident(data, device, dtype) else Hosted)(data, batch_size, device, dtype)
