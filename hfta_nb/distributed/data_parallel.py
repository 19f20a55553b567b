"""One array on several devices: each rank holds all members and computes a part of every mini-batch."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from hfta_nb.array import FusedArray
from hfta_nb.array.access import snapshot, untimed_block_size
from hfta_nb.distributed.batch_norm import Noticed, Synced
from hfta_nb.distributed.gathered import Gathered
from hfta_nb.distributed.gradients import Aside, sum_gradients
from hfta_nb.distributed.ranks import Ranks, of_torch
from hfta_nb.distributed.rows import samples_in, share, sizes_of
from hfta_nb.errors import DistributedError, out_of_memory
from hfta_nb.members.generators import seeded_state

BATCH_NORM = ("sync", "local")
"""Whose samples a batch norm takes its statistics of."""

_KINDS = 8
"""Losses and sizes of mini-batches whose functions are kept; as many as an array keeps recordings of."""


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
        self.verify = array.verify
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
            DistributedError: an input or output has no row per sample, or a rank is lost.
        """
        sizes, rows = self._rows(x)
        self._stale = True
        aside = Aside(self.array, only)

        def run(function: Any, y: Any) -> Any:
            return self.array.backward(function, rows, y, has_aux=has_aux, scale=scale, only=only)

        try:
            self._try("backward", loss_fn, y, sizes, run, aside.clear)
            with self._norms(sizes):
                result = run(self._gathered(loss_fn, sizes), y)
            sum_gradients(self.array, self.ranks, only)
        finally:
            aside.add()
        return result

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

        def run(function: Any, y: Any) -> Any:
            return self.array.evaluate(function, rows, y)

        self._try("evaluate", function, y, sizes, run, lambda: None)
        with self._norms(sizes):
            return run(self._gathered(function, sizes), y)

    def select(self, indices: Sequence[int]) -> DataParallel:
        """These members alone, on the same ranks."""
        return self.of(self.array.select(indices))

    def of(self, array: FusedArray) -> DataParallel:
        """The same ranks with another array, of members of this one."""
        other = copy.copy(self)
        other._take(array)
        other._tried, other._norm = set(self._tried), self._norm
        return other

    def share_state(self) -> None:
        """Give the parameters, buffers and random streams of rank 0 to the other ranks."""
        with torch.no_grad():
            for arena in [*self.array.arenas, *self.array.buffer_arenas]:
                self.ranks.broadcast_(arena.data)
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
        for arena in self.array.arenas:
            sums = torch.nan_to_num(arena.data.detach().double(), 0.0, 0.0, 0.0).sum(1)
            if any(not torch.equal(sums, other) for other in self.ranks.gather(sums)):
                raise DistributedError(
                    "the ranks' parameters are not the same any more",
                    where=f"rank {self.rank} of {self.size}",
                    remedy="every rank must make the same calls, on machines with the same kernels",
                )

    def settle(self) -> None:
        """Run as every rank does: nothing that exchanges may depend on what a rank has timed."""
        array = self.array
        size = array.block_size
        array.self_tuning, array.compiling, array.threads = False, "never", "kernels"
        array.block_size, array.verify = min(size, untimed_block_size(array)), "never"
        notes = [f"rank {self.rank} of {self.size}, {self.batch_norm} batch norm"]
        if array.generators.device.type == "cuda":
            array.capture = False
            notes.append("on several GPUs steps are neither replayed nor captured as graphs")
        array.step_notes = notes

    # Within.

    def _take(self, array: FusedArray) -> None:
        self.array = array
        self._functions: dict[Any, Gathered] = {}
        self._tried: set[Any] = set()
        self._norm: bool | None = None  # whether the model has batch norms; None while that is not known
        self._stale = True
        self.settle()

    def _alike(self) -> None:
        """See that the ranks have arrays of the same shape."""
        told = [len(self.array)] + [arena.data.shape[1] for arena in [*self.array.arenas, *self.array.buffer_arenas]]
        numbers = torch.zeros(8, dtype=torch.int64)
        numbers[: len(told)] = torch.tensor(told[:8])
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

    def _gathered(self, function: Callable[..., Any], sizes: Sequence[int]) -> Gathered:
        key = _identity(function), tuple(sizes)
        found = self._functions.get(key)
        if found is None:
            while len(self._functions) >= _KINDS:
                del self._functions[next(iter(self._functions))]
            found = self._functions[key] = Gathered(function, sizes, self.rank, self.ranks.name)
        return found

    def _norms(self, sizes: Sequence[int]) -> AbstractContextManager[Any]:
        if self.batch_norm == "local" or self._norm is False:
            return nullcontext()
        return Synced(self.ranks.name, sum(sizes), sizes[self.rank])

    def _try(
        self,
        what: str,
        function: Callable[..., Any],
        y: Any,
        sizes: Sequence[int],
        run: Callable[[Any, Any], Any],
        clear: Callable[[], None],
    ) -> None:
        """Make the first call of a kind without any exchange, on this rank's rows.

        It is compared with the plain module, and finds out how the array can run the model. Where ranks find different
        things, all run as the one that runs the fewest members at once.
        """
        kind = what, self.array.training
        if kind in self._tried or min(sizes) < 2:
            return
        self._tried.add(kind)
        with self._alone() as noticed:
            try:
                run(function, share(y, self.rank, sizes))
            except Exception as error:  # if it is no matter of the rows, the call itself raises it again
                if out_of_memory(error):
                    raise
            clear()
        self.array.block_size = self.ranks.least(self.array.block_size)
        if what == "backward":
            self._norm = bool(self.ranks.least(-noticed.count))

    @contextmanager
    def _alone(self) -> Iterator[Noticed]:
        """Within, the array runs as on one device; what is changed but for gradients is put back."""
        array = self.array
        restore, told = snapshot(array), array.told
        array.verify, array.told = self.verify, True
        try:
            with Noticed() as noticed:
                yield noticed
        finally:
            restore()
            array.verify, array.told = "never", told


def _identity(function: Callable[..., Any]) -> Any:
    """The same for functions that are the same but for having been made twice, as a lambda in a loop is."""
    code = getattr(function, "__code__", None)
    if code is None:
        return id(function)
    cells = tuple(id(cell.cell_contents) for cell in getattr(function, "__closure__", None) or ())
    return id(code), cells, tuple(map(id, getattr(function, "__defaults__", None) or ()))


def _other(state: Tensor, rank: int) -> int:
    """The seed of a rank's stream, from the state of the stream of rank 0."""
    told = hashlib.sha256(state.cpu().numpy().tobytes() + rank.to_bytes(4, "little")).digest()
    return int.from_bytes(told[:8], "little") >> 1
