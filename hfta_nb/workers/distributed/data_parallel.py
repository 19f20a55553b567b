"""One array on several devices: each rank holds all members and computes a part of every mini-batch."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from hfta_nb.engine.array import FusedArray
from hfta_nb.engine.array.access import call_module, functions_of, parameter_arenas, snapshot, untimed_block_size
from hfta_nb.engine.members.generators import seeded_state
from hfta_nb.errors import DistributedError, out_of_memory
from hfta_nb.workers.distributed.batch_norm import Noticed, Synced
from hfta_nb.workers.distributed.outputs import Outputs, Part, marked, through
from hfta_nb.workers.distributed.rank_rows import samples_in, share, sizes_of
from hfta_nb.workers.distributed.ranks import Ranks, of_torch
from hfta_nb.workers.distributed.summed_gradients import Aside, sum_gradients

BATCH_NORM = ("sync", "local")
"""Whose samples a batch norm takes its statistics of."""

_KINDS = 8
"""Losses whose parts are kept; as many as an array keeps recordings of."""


class DataParallel:
    """An array that several processes train together, each on a part of every mini-batch.

    Each process has the whole array and calls the same methods with the same mini-batch. It computes its share of the
    samples. Outputs are gathered before the loss, gradients are summed after the backward, and so losses, gradients and
    parameters are the same on all ranks, and those of one device on the whole mini-batch up to rounding.

    A dropout draws other masks than one device does: rank 0 draws from the members' streams, each other rank from
    streams of its own.

    Args:
        array: the members; the parameters, buffers and random streams of rank 0 replace those of the other ranks.
        batch_norm: "sync" takes the statistics of all ranks' samples, as one device does; "local" those of a rank's
            samples, as torch's `DistributedDataParallel` does, with the running statistics of rank 0.
        group: of `torch.distributed`; by default all processes.

    Raises:
        DistributedError: there is no process group, or the ranks' arrays are not alike.
    """

    def __init__(self, array: FusedArray, *, batch_norm: str = "sync", group: Any = None) -> None:
        if batch_norm not in BATCH_NORM:
            raise DistributedError("unknown choice", where="batch_norm", got=batch_norm, accepted=", ".join(BATCH_NORM))
        device = array.generators.device
        self.ranks = group if isinstance(group, Ranks) else of_torch(group, device)
        self.batch_norm = batch_norm
        self.samples: int | None = None  # of mini-batches of which this rank is given its rows
        self._take(array)
        self._alike()
        self.share_state()

    @property
    def rank(self) -> int:
        """The number of this process, from 0."""
        return self.ranks.rank

    @property
    def size(self) -> int:
        """The number of processes."""
        return self.ranks.size

    def __len__(self) -> int:
        return len(self.array)

    def backward(
        self,
        loss_fn: Callable[..., Any],
        x: Any,
        y: Any = None,
        *,
        has_aux: bool = False,
        scale: Tensor | None = None,
        only: Collection[str] | None = None,
    ) -> Any:
        """As `FusedArray.backward` of the whole mini-batch, computed by all ranks together; adds to `.grad`.

        Args:
            loss_fn, has_aux, scale, only: as for `FusedArray.backward`; the same on all ranks.
            x, y: the whole mini-batch, the same on all ranks. Every tensor in `x` and in the output has the samples in
                its first axis.

        Returns:
            As `FusedArray.backward`, the same on all ranks.

        Raises:
            DistributedError: an input or output has no row per sample, a rank is lost, or the loss has parameters or
                keeps something between calls.
        """
        if isinstance(loss_fn, FusedArray) or hasattr(loss_fn, "of_module"):
            raise _one_device("has parameters")
        sizes, rows = self._rows(x)
        self._stale = True
        self._try(sizes, rows)
        aside = Aside(self.array, only)
        try:
            with torch.enable_grad():
                with self._norms(sizes):
                    outputs = Outputs(call_module(self.array, rows), sizes, self.ranks)
                losses = self.array.losses(self._part(loss_fn, 0) if has_aux else loss_fn, outputs.whole, y)
                kept = functions_of(self.array).remember((loss_fn,))
                if kept:  # it is called once more for what is beside the loss
                    raise _one_device(f"keeps a value between calls, {kept}")
                torch.autograd.backward((losses if scale is None else losses * scale.to(losses)).sum())
                with self._norms(sizes):
                    outputs.backward(aside.inputs)
            sum_gradients(self.array, self.ranks, only)
        finally:
            aside.add()
        shared = losses.detach().clone()
        self.ranks.broadcast_(shared)  # a rank's kernels may round otherwise, and a line search decides by losses
        if not has_aux:
            return shared
        with torch.no_grad():
            return shared, self._through.evaluate(self._part(loss_fn, 1), marked(outputs.whole), y)

    @torch.no_grad()
    def evaluate(self, function: Callable[..., Any], x: Any, y: Any = None) -> Any:
        """As `FusedArray.evaluate` of the whole mini-batch, computed by all ranks together.

        The buffers of rank 0 replace those of the other ranks first, where there was training since.
        """
        if self._stale:
            self._stale = False
            for arena in self.array.buffer_arenas:
                self.ranks.broadcast_(arena.data)
        sizes, rows = self._rows(x)
        self._try(sizes, rows)
        with self._norms(sizes):
            outputs = Outputs(call_module(self.array, rows), sizes, self.ranks)
        return self._through.evaluate(function, marked(outputs.whole), y)

    def select(self, indices: Sequence[int]) -> DataParallel:
        """These members alone, on the same ranks."""
        return self.of(self.array.select(indices))

    def of(self, array: FusedArray) -> DataParallel:
        """The same ranks with another array, of members of this one."""
        other = copy.copy(self)
        other._take(array)
        other._normed = dict(self._normed)
        return other

    def share_state(self) -> None:
        """Give the parameters, buffers and random streams of rank 0 to the other ranks."""
        with torch.no_grad():
            for arena in [*parameter_arenas(self.array), *self.array.buffer_arenas]:
                self.ranks.broadcast_(arena.stored)
        streams = self.array.generators.state_dict()
        for kind in sorted(streams):
            self.ranks.broadcast_(streams[kind])
        self.array.generators.load_state_dict(streams)
        self.part_streams()

    def part_streams(self) -> None:
        """Let the members on this rank draw other random numbers than on rank 0, from whose streams theirs follow."""
        if self.rank:
            generators = self.array.generators
            generators.states = [
                seeded_state(_other(s["cpu"], self.rank), generators.device) for s in generators.states
            ]

    def check(self) -> None:
        """See that all ranks have the same parameters.

        Raises:
            DistributedError: they have not.
        """
        for arena in parameter_arenas(self.array):
            sums = torch.nan_to_num(arena.stored.detach().double(), 0.0, 0.0, 0.0).sum(1)
            if any(not torch.equal(sums, other) for other in self.ranks.gather(sums)):
                raise DistributedError(
                    "the ranks' parameters are not the same any more",
                    where=f"rank {self.rank} of {self.size}",
                    remedy="every rank must make the same calls, on machines with the same kernels",
                )

    # Within.

    def _take(self, array: FusedArray) -> None:
        self.array, self._through = array, through(array)
        self._parts: dict[Any, Part] = {}
        self._normed: dict[bool, bool] = {}  # by training, whether the model has batch norms
        self._stale = True
        self._through.generators.to(array.generators.device)
        array.step_notes = [f"rank {self.rank} of {self.size}, {self.batch_norm} batch norm"]

    def _alike(self) -> None:
        """See that the ranks have arrays of the same shape."""
        sizes = [len(self.array)] + [arena.data.shape[1] for arena in [*self.array.arenas, *self.array.buffer_arenas]]
        numbers = torch.zeros(8, dtype=torch.int64)
        numbers[: len(sizes)] = torch.tensor(sizes[:8])
        if any(not torch.equal(numbers, other.cpu()) for other in self.ranks.gather(numbers)):
            raise DistributedError(
                "the ranks have unlike arrays", where=f"rank {self.rank} of {self.size}", got=self.array,
                remedy="fuse the same modules on every rank",
            )  # fmt: skip

    def _rows(self, x: Any) -> tuple[list[int], Any]:
        """How many samples each rank has, and this rank's."""
        if self.samples is not None:
            return sizes_of(self.samples, self.size), x
        sizes = sizes_of(samples_in(x), self.size)
        return sizes, share(x, self.rank, sizes)

    def _part(self, function: Callable[..., Any], index: int) -> Part:
        """The same object for the same function, so that what is computed by it is replayed."""
        key = _identity(function), index
        found = self._parts.get(key)
        if found is None:
            while len(self._parts) >= _KINDS:
                del self._parts[next(iter(self._parts))]
            found = self._parts[key] = Part(function, index)
        return found

    # Batch norms.

    def _norms(self, sizes: Sequence[int]) -> AbstractContextManager[Any]:
        """Around what exchanges statistics: then nothing that a rank has found out alone may decide how it runs."""
        if self.batch_norm == "local" or self._normed.get(self.array.training) is False:
            return nullcontext()
        return self._synced(sizes)

    @contextmanager
    def _synced(self, sizes: Sequence[int]) -> Iterator[None]:
        array = self.array
        verify, array.verify = array.verify, "never"
        try:
            with Synced(self.ranks, sum(sizes), sizes[self.rank]):
                yield
        finally:
            array.verify = verify

    def _try(self, sizes: Sequence[int], rows: Any) -> None:
        """In training and in evaluation, make the first call of a model twice: at first without exchanges.

        It shows whether there are batch norms. If there are, it is compared with the plain module, and finds out how
        the array can run the model; all ranks then run as the one that runs the fewest members at once.
        """
        array = self.array
        if self.batch_norm == "local" or array.training in self._normed or min(sizes) < 2:
            return
        restore, known = snapshot(array), array.axes_known
        array.axes_known = True
        with Noticed() as noticed:
            try:
                call_module(array, rows)
            except Exception as error:  # if it is no matter of these rows, the call itself raises it again
                if out_of_memory(error):
                    raise
            finally:
                restore()
                array.axes_known = known
        found = self._normed[array.training] = bool(self.ranks.least(-noticed.count))
        if found:
            array.block_size = self.ranks.least(min(array.block_size, untimed_block_size(array)))


def _identity(function: Callable[..., Any]) -> Any:
    """The same for functions that are the same but for having been made twice, as a lambda in a loop is."""
    code = getattr(function, "__code__", None)
    if code is None:
        return id(function)
    cells = tuple(id(cell.cell_contents) for cell in getattr(function, "__closure__", None) or ())
    return id(code), cells, tuple(map(id, getattr(function, "__defaults__", None) or ()))


def _other(state: Tensor, rank: int) -> int:
    """The seed of a rank's stream, from the state of the stream of rank 0."""
    digest = hashlib.sha256(state.cpu().numpy().tobytes() + rank.to_bytes(4, "little")).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def _one_device(what: str) -> DistributedError:
    return DistributedError(f"a loss that {what} can't be trained on several devices", where="loss_fn",
                            remedy="train it on one device")  # fmt: skip
