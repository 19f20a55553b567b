"""The arrays of a run: which there are, which are still to be trained, and how each is built and kept."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any

from torch import nn

from hfta_nb.data import AnyData, placed
from hfta_nb.engine.array import MemberGenerators, fuse, has_lazy, take_shapes
from hfta_nb.engine.array.access import checkpoint, fuse_preallocated, plain_copy, seeded_state, untimed_block_size
from hfta_nb.errors import DataError, MemberError, StoreError, StudyError, out_of_memory
from hfta_nb.models import imbalance
from hfta_nb.models.recipes.preserve_rng import preserve_rng
from hfta_nb.models.recipes.sample_checks import check_taken
from hfta_nb.records.events import Add, CheckpointSaved, Control, Event, GroupRecord, PhaseChanged, Pin
from hfta_nb.train.clock import Clock
from hfta_nb.train.memory import MemoryModel, free_bytes, shown
from hfta_nb.train.pending_group import End, Ends, Joining, PendingGroup, Save, Training, WeightsOf
from hfta_nb.train.plan import Builder, Group
from hfta_nb.train.plan.group import planned
from hfta_nb.train.requested import Owner, Requested
from hfta_nb.train.settings import Settings
from hfta_nb.train.step import ArrayStep, PlainStep, Step, call_all
from hfta_nb.train.step.editing import Span

CHECKPOINT_SHARE = 0.05
"""The largest share of a run's time that checkpoints take, but for those that are asked for."""


class Schedule:
    """The arrays of a run: those that train, those that wait, and how far they are. See `Trainer`, which trains them.

    Args:
        settings: of the run.
        groups: what to train.
        control: requests.
        save: keeps checkpoints; None to keep nothing.
        resume: the state of a checkpoint, to carry on from there.
        prepare: puts something around each group's step.
        checkpoint_every_s: seconds between two checkpoints, more where one takes long (see `CHECKPOINT_SHARE`); one is
            also made on a pause, a stop and a group's end.
        ends: keeps how far arrays are that are done, so that they can train on; None to keep nothing.
        take: plans variants that a request asks for, and calls `add`; says why not, where they can't be.
        owner: what the run belongs to, which plans clones and knows how long all train.

    Attributes:
        ended: by array, what is kept of its end.
        stopped: whether the run was asked to stop.
        error: the first that a member's own code has raised.
        early_stops: variants that were stopped before their group began.
        pinned: variants that are not to be pruned.
        joiner: finds what may join the array that trains, while it has room and is between two epochs.
        requested: what was asked of single members.
        arrays: all arrays of the run in the order of training, done ones as well; more where memory makes it so.
        least_index: new arrays have this number or a higher one.
        training: the arrays that take turns on the device at present.
        alone: numbers of arrays that do not take turns any more.
        unsaved: weights of variants that the next checkpoint keeps.
    """

    def __init__(
        self,
        settings: Settings,
        groups: Sequence[Group],
        control: Control,
        save: Save | None = None,
        resume: Mapping[str, Any] | None = None,
        prepare: Callable[[Step], Step] | None = None,
        checkpoint_every_s: float = 10.0,
        ends: Ends | None = None,
        take: Callable[[Add], str] | None = None,
        owner: Owner | None = None,
    ) -> None:
        self.settings, self.control, self.save, self.ends = settings, control, save, ends
        self.take, self.owner, self.requested = take, owner, Requested()
        self.prepare, self.checkpoint_every_s = prepare, checkpoint_every_s
        self.stopped = False
        self.error: Exception | None = None
        self.data = self.placed()
        self.lengths: dict[int, int] = {}  # by batch size, of the passes of a stream, once known
        self.arrays = list(groups)
        self.waiting: deque[PendingGroup] = deque()
        self.ended: dict[int, End] = {}
        self.least_index = 0
        self.clock = Clock()
        self.joiner: Joining | None = None
        self.builder = Builder(settings.family, settings.data)
        self.features: dict[str, Any] = {}  # kept by `FeatureCache`
        self.early_stops: set[int] = set()
        self.pinned: set[int] = set()
        self.training: list[Training] = []
        self.alone: set[int] = set()
        self.unsaved: dict[WeightsOf, Any] = {}
        self.last_save, self.save_s = time.perf_counter(), 0.0  # when there was a checkpoint, and how long it took
        if resume is None:
            self.requested.clones = {} if owner is None else owner.unmade([v for g in groups for v in g.ids])
            self.waiting.extend(PendingGroup(g) for g in groups if g.ids[0] not in self.requested.clones)
        else:
            try:
                self._take_up(resume)
            except (KeyError, TypeError, ValueError, IndexError, StopIteration) as error:
                words = f"the checkpoint does not fit the study ({type(error).__name__}: {error})"
                raise StoreError(words, remedy="has the study changed since?") from error

    def placed(self) -> AnyData:
        """The data on the device of the members."""
        return placed(self.settings.data, self.settings.device, self.settings.dtype)

    def added(self, request: Add) -> Iterator[Event]:
        """Take in variants that a request asks for."""
        why = "nothing takes it in" if self.take is None else self.take(request)
        if why:
            yield PhaseChanged(time.time(), self.arrays[0].index, "training", f"not added: {why}")

    def stop(self) -> None:
        """Let the run end after what is under way."""
        self.stopped = True

    def pin(self, request: Pin) -> None:
        """Keep a variant from being pruned, or no longer."""
        (self.pinned.add if request.pinned else self.pinned.discard)(request.variant)

    def budget(self, variant: int) -> int:
        """Epochs that a variant trains."""
        return max(self.settings.epochs, self.requested.budgets.get(variant, 0))

    def span(self, group: Group, variant: int) -> Span:
        """How long a member of an array trains."""
        return Span(self.budget(variant), self.batches(group))

    def extend(self, epochs: int) -> list[End]:
        """Let all train so many epochs, those as well that are done and have trained fewer; which these are."""
        self.settings = replace(self.settings, epochs=epochs)
        there = {pending.end.array for pending in self.waiting if pending.end is not None}
        ends = [e for e in self.ended.values() if e.epochs < self.settings.epochs and e.array not in there]
        by_index = {g.index: g for g in self.arrays}
        self.waiting.extend(PendingGroup(by_index[end.array], end=end) for end in ends)
        return ends

    def add(self, groups: Sequence[Group]) -> None:
        """Train these arrays as well, after all others."""
        self.arrays.extend(groups)
        self.waiting.extend(map(PendingGroup, groups))

    def put_first(self, groups: Sequence[Group], runs: Sequence[Mapping[str, Any] | None]) -> None:
        """Train these arrays next, in this order, from where they are."""
        self.waiting.extendleft(reversed([PendingGroup(g, r) for g, r in zip(groups, runs, strict=True)]))

    def put_last(self, group: Group) -> None:
        """Train this array after all others."""
        self.waiting.append(PendingGroup(group))

    def withdraw(self, pending: PendingGroup, by: PendingGroup | None = None) -> None:
        """Let an array wait no longer, or another one in its place."""
        place = next(i for i, other in enumerate(self.waiting) if other is pending)
        if by is None:
            del self.waiting[place]
        else:
            self.waiting[place] = by

    def opened(self, pending: PendingGroup) -> PendingGroup:
        """With its state where it trains on after its end."""
        if pending.end is None or self.ends is None:
            return pending
        self.ended.pop(pending.group.index, None)
        return PendingGroup(pending.group, self.ends.read_end(pending.end.file))

    def measured(self, group: Group, peak_bytes: int, held_bytes: int) -> Group:
        """Take in what an array took in its first steps, where that is more than planned or nothing was measured yet.

        Arrays like it that wait are divided if they would not fit now.

        Args:
            peak_bytes: the most that it took.
            held_bytes: what it holds between two steps, which is not free now.

        Returns:
            The array with its new figures.
        """
        members = len(group.variants)
        model = MemoryModel(group.fixed_bytes, group.memory_bytes)
        if group.measured and peak_bytes <= model.bytes(members):
            return group
        model = model.corrected(members, peak_bytes)
        free = free_bytes(self.settings.device) + held_bytes
        known: dict[str, Any] = {"memory_bytes": model.member_bytes, "fixed_bytes": model.fixed_bytes, "measured": True}
        known["too_large"] = False  # it has trained
        if group.capacity and self.settings.capacity is None:
            known["capacity"] = model.capacity(free)
        found = replace(group, **known)
        self.replace(group, [found])
        waiting = list(self.waiting)
        self.waiting.clear()
        for pending in waiting:
            if pending.begun or not (pending.group.fitted and pending.group.divided_with(group)):
                self.waiting.append(pending)
                continue
            other = replace(pending.group, **known)
            parts = [other]
            fits = max(1, model.capacity(free))
            if fits < len(other.variants):
                why = f"{fits} members fit in {shown(free)}, as measured in array {group.index}"
                parts = other.divided(fits, why, self.free_index)
            self.replace(pending.group, parts)
            self.waiting.extend(map(PendingGroup, parts))
        return found

    def replace(self, group: Group, by: Sequence[Group]) -> None:
        """Put these arrays in the place of another."""
        place = next(i for i, g in enumerate(self.arrays) if g.index == group.index)
        self.arrays[place : place + 1] = by

    def find(self, variant: int) -> tuple[Group, int]:
        """A variant's array, and its place there.

        Raises:
            StudyError: there is no such variant.
        """
        for group in self.arrays:
            if variant in group.ids:
                return group, group.ids.index(variant)
        most = max(v for group in self.arrays for v in group.ids)
        raise StudyError("no such variant", got=variant, accepted=f"0 to {most}")

    def renew(self, group: Group) -> None:
        """Put an array with changed values in the place of the one of its number."""
        self.replace(group, [group])
        for place, pending in enumerate(self.waiting):
            if pending.group.index == group.index:
                self.waiting[place] = replace(pending, group=group)

    @contextmanager
    def joined_by(self, joiner: Joining) -> Iterator[None]:
        """While the array that trains has room: who plans trials asks it what may join."""
        self.joiner = joiner
        try:
            yield
        finally:
            self.joiner = None

    def records(self) -> tuple[GroupRecord, ...]:
        """All arrays, as records."""
        return tuple(g.record() for g in self.arrays)

    @property
    def free_index(self) -> int:
        """A number that no array has."""
        return max(self.least_index, max(g.index for g in self.arrays) + 1)

    # Checkpoints.

    def checkpoint(self, group: Group, run: Mapping[str, Any] | None, weights: Mapping[WeightsOf, Any]) -> str:
        """Keep where the run is.

        Args:
            group, run: the array that trains, and how far it is; None where it is done.
            weights: the best weights of variants, which are kept beside it.
        """
        pending = [] if run is None else [PendingGroup(group, run)]
        for other in self.training:
            if other.group.index != group.index:
                how_far, its_weights = other.kept()
                pending.append(PendingGroup(other.group, how_far))
                self.unsaved |= its_weights
        return self.keep([*pending, *self.waiting], weights)

    def keep(self, pending: Sequence[PendingGroup], weights: Mapping[WeightsOf, Any]) -> str:
        """Keep where the run is.

        Args:
            pending: all arrays that are not done.
            weights: as for `checkpoint`.
        """
        assert self.save is not None  # asked before
        self.clock.tick()
        self.unsaved |= weights
        state = {
            "elapsed_s": self.clock.elapsed_s,
            "work_done": self.clock.work_done,
            "arrays": [g.state() for g in self.arrays],
            "todo": [{"array": t.group.index, "run": t.run} for t in pending if t.end is None and t.ids],
            "ends": [asdict(end) for end in self.ended.values()],
            "asked": self.requested.state(),
            "early_stops": sorted(self.early_stops),
            "pinned": sorted(self.pinned),
        }
        begin_s = time.perf_counter()
        path = self.save(state, self.unsaved)
        self.unsaved = {}
        self.last_save = time.perf_counter()
        self.save_s = self.last_save - begin_s
        return path

    def take_weights(self, weights: Mapping[WeightsOf, Any]) -> None:
        """Keep weights of variants with the next checkpoint."""
        self.unsaved |= weights

    def save_after(self, group: Group, weights: Mapping[WeightsOf, Any], epoch: int = 0) -> Iterator[Event]:
        """A checkpoint, where any are kept, of what is left to do after an array; see `checkpoint`."""
        if self.save is not None:
            yield CheckpointSaved(time.time(), group.index, epoch, self.checkpoint(group, None, weights))

    @property
    def save_due(self) -> bool:
        """Whether the last checkpoint is long ago."""
        if self.save is None:
            return False
        wanted_s = max(self.checkpoint_every_s, self.save_s / CHECKPOINT_SHARE)
        return time.perf_counter() - self.last_save > wanted_s

    def _take_up(self, state: Mapping[str, Any]) -> None:
        self.clock.elapsed_s, self.clock.work_done = float(state["elapsed_s"]), float(state["work_done"])
        if "todo" not in state:  # written before arrays could be divided while they train
            first = int(state["group"])
            self.waiting.extend(PendingGroup(g) for g in self.arrays[first:])
            if state["run"] is not None:
                self.waiting[0] = PendingGroup(self.arrays[first], state["run"])
            return
        plan = self.arrays
        if "asked" in state:
            self.requested.load(state["asked"])
            self.early_stops, self.pinned = set(state["early_stops"]), set(state["pinned"])
        self.arrays = [self.requested.edited(planned(saved, plan)) for saved in state["arrays"]]
        by_index = {g.index: g for g in self.arrays}
        self.waiting.extend(PendingGroup(by_index[t["array"]], t["run"]) for t in state["todo"])
        self.ended = {saved["array"]: End(**saved) for saved in state.get("ends", ())}
        self.extend(self.settings.epochs)
        known = {id for group in self.arrays for id in group.ids}
        later = [group for group in plan if not known.issuperset(group.ids)]  # added since
        unmade = {} if self.owner is None else self.owner.unmade([v for group in later for v in group.ids])
        for group in later:
            group = replace(group, index=self.free_index)
            if unmade.keys() & set(group.ids):
                self.arrays.append(group)
            else:
                self.add([group])
        self.requested.clones |= unmade

    def batches(self, group: Group) -> int | None:
        """Steps in an epoch of this group; None while that is not known."""
        size = int(group.rows[0]["batch_size"])
        return self.settings.steps_per_epoch or self.data.batches_for(group.rows[0]) or self.lengths.get(size)

    def learn(self, batch_size: int, length: int) -> None:
        """So many batches a pass through a stream has."""
        self.lengths[batch_size] = length

    def module(self, group: Group, arguments: Mapping[str, Any]) -> nn.Module:
        """A plain module of a group."""
        s = self.settings
        module = s.family.member(**arguments).to(s.device, s.dtype)
        check_taken(module, self.data, bool(s.family.phases))
        if has_lazy(module):
            sample = self.data.sample(int(group.rows[0]["batch_size"]), s.device, s.dtype)
            take_shapes(module, lambda m: call_all(m, sample, s.family.phases))
        return module

    def build(self, group: Group) -> Step:
        """The step of a group, each member initialised and seeded as it would be alone."""
        s = self.settings
        modules, states = [], []
        with preserve_rng() as drawn:
            for variant, arguments in [*zip(group.variants, group.arguments, strict=True), *group.likes]:
                drawn.manual_seed(variant.seed)
                try:
                    modules.append(imbalance.let_mix(self.module(group, arguments), group.rows[0]))
                except Exception as error:
                    if out_of_memory(error) or isinstance(error, DataError):
                        raise
                    words, place = f"can't be built ({type(error).__name__}: {error})", len(modules)
                    raise MemberError(words, where=f"member {place}, {variant.label}").of(place) from error
                # The CPU's stream goes on from where building left it; a GPU's has not been drawn from yet.
                states.append(seeded_state(variant.seed, s.device) | {"cpu": drawn.get_state()})
        s.precision.check_modules(modules)
        generators = MemberGenerators(states, s.device)
        objective, metrics = s.family.objective_for(s.data), s.family.metrics_for(s.data)
        steps = self.batches(group)
        if group.serial:
            alone = plain_copy(modules[0])
            return PlainStep(alone, group.rows[0], objective, metrics, s.epochs, generators, s.precision, steps)
        seeds = [v.seed for v in (*group.variants, *(v for v, _ in group.likes))]
        array = (
            fuse(modules, seeds, verify=s.verify) if s.slots is None else fuse_preallocated(modules, seeds, s.verify)
        )
        array.generators.states = generators.states
        if group.likes:
            array = array.select(range(len(group.variants)))
        array.strategy = s.strategy
        if s.deterministic:
            array.block_size = untimed_block_size(array)
        array.capture = group.captured and not group.checkpointed  # recording holds what checkpointing lets go of
        if group.checkpointed:
            checkpoint(array, True)
        return ArrayStep(array, group.rows, objective, metrics, s.epochs, s.precision, steps)
