"""How many members of a group train together: as many as fit, as were asked for, or as are fastest."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Generator
from dataclasses import replace

import torch

from hfta_nb.data import Stream
from hfta_nb.engine.array.access import kept_times, tensor_map
from hfta_nb.errors import out_of_memory
from hfta_nb.records import events as ev
from hfta_nb.records.events import Event
from hfta_nb.train import checkpoint
from hfta_nb.train.batches import Batch
from hfta_nb.train.group_progress import Progress
from hfta_nb.train.members import kept_bytes
from hfta_nb.train.memory import MemoryModel, Meter, can_record, free_bytes, release, shown
from hfta_nb.train.plan import Group, reckoned
from hfta_nb.train.schedule import Schedule
from hfta_nb.train.step import ArrayStep

EASY = 4
"""Where the estimate times this fits, nothing is measured before training."""

WORTH = 0.9
"""Computing activations again must bring a member's share down to this, to be chosen."""

GROWTH = 1.03
"""Twice the members must be faster by this factor, or no more are tried."""

LEAST = 3
"""Times its parameters that a member takes at least in training: they, gradients, and what an optimizer keeps."""

TUNING_S = 0.1
LAPS = 5
RECORDING = 4
"""Steps until one is replayed."""

_SAMPLE = "a sample"

FitEvents = Generator[Event, None, list[Group]]


def fit(trainer: Schedule, group: Group, measure: bool = False) -> FitEvents:
    """Divide a group into arrays that fit the device and are as large as asked for.

    Args:
        trainer: whose settings hold, and who builds the members that are tried.
        group: not fitted yet.
        measure: measure memory also where the estimate leaves no doubt.

    Returns:
        The arrays, fitted.
    """
    s, members = trainer.settings, len(group.variants)
    group = reckoned(group, s.family, s.data)
    group = replace(group, fitted=True, checkpointed=s.checkpointing == "always" and not group.serial)
    free = free_bytes(s.device)
    if group.serial:
        return [replace(group, too_large=group.memory_bytes + group.fixed_bytes > free)]
    requested = s.capacity if isinstance(s.capacity, int) else members
    easy = (group.memory_bytes * members + group.fixed_bytes) * EASY < free and s.checkpointing != "always"
    fastest = s.capacity == "auto" and members > 1
    if easy and not measure and not fastest:
        return [group]
    why, most = "", members
    if not easy or measure:
        yield ev.PhaseChanged(time.time(), group.index, "measuring memory", "steps of two members and of three")
        group, model = _chosen(trainer, group, free)
        group = replace(group, memory_bytes=model.member_bytes, fixed_bytes=model.fixed_bytes, measured=True)
        capacity = model.capacity(free)
        group = replace(group, capacity=min(requested, capacity) if isinstance(s.capacity, int) else capacity)
        group = replace(group, too_large=not capacity)
        most = max(1, min(members, requested, capacity))
        takes = shown(model.bytes(members))
        why = f"{most} members fit in {shown(free)}, {members} would take {takes}"
        group = replace(group, captured=can_record(s.device, model.bytes(most), free))
    if fastest:
        most, why = yield from _fastest(trainer, group, most, why)
        group = replace(group, capacity=most)
    if most >= members:
        return [group]
    return [replace(part, capacity=group.capacity) for part in group.divided(most, why, trainer.free_index)]


def _chosen(trainer: Schedule, group: Group, free: int) -> tuple[Group, MemoryModel]:
    """The model of the group's memory; with activations computed again, if only so more members fit."""
    model = model_of(trainer, group)
    members, how = len(group.variants), trainer.settings.checkpointing
    if how == "auto" and model.capacity(free) < members:
        again = replace(group, checkpointed=True)
        other = model_of(trainer, again)
        if other.member_bytes <= WORTH * model.member_bytes and other.capacity(free) > model.capacity(free):
            return again, other
    return group, model


def model_of(trainer: Schedule, group: Group, validation: bool = True) -> MemoryModel:
    """Through two members and three: one alone takes less than its share, as it runs as the plain module that it is.

    Where there are not so many, or no memory for them, through what there is.
    """
    peaks: list[int] = []
    for members in (2, 3):
        peak = peak_of(trainer, group, members, validation) if members <= len(group.variants) else None
        if peak is None:
            break
        peaks.append(peak)
    if len(peaks) == 2:
        return MemoryModel.of_points(2, peaks[0], 3, peaks[1])
    one = peak_of(trainer, group, 1, validation)
    if one is None:
        return MemoryModel(0, max(group.memory_bytes, 2 * free_bytes(trainer.settings.device)))  # not even one fits
    return MemoryModel.of_points(1, one, 2, peaks[0]) if peaks else MemoryModel(0, one)


def peak_of(trainer: Schedule, group: Group, members: int, validation: bool = True) -> int | None:
    """The peak of two training steps of so many members, and of validation; None if it fails for lack of memory."""
    s, meter = trainer.settings, Meter(trainer.settings.device)
    least = LEAST * members * group.parameters * s.dtype.itemsize
    if s.device.type == "cpu" and least > free_bytes(s.device):
        return None  # to try it may end the process: a system gives memory out before it has it
    with meter:
        peak = _tried(trainer, group, members, lambda run: _scale(run, group) * _steps(run, meter, validation))
    return None if peak is None else int(peak)


def sample(run: Progress) -> Batch:
    """A batch as the members train on, to try something with."""
    x, y = run.data.sample_batch(run.batch_size, run.settings.device, run.settings.dtype)
    run.prepare()
    own = False
    if run.source.prepare is not None:
        x, y, own = run.source.prepare.training(x, y, own, 0, 0)
    return Batch(x, y, run.batch_size, own)


def _tried(trainer: Schedule, group: Group, members: int, measure: Callable[[Progress], float]) -> float | None:
    """What is measured with an array of so many members; None if it fails for lack of memory."""
    part = group.part(group.ids[:members], group.index, group.reason)
    try:
        run = Progress(trainer, part, None)
        checkpoint.build(run)
        try:
            return measure(run)
        finally:
            run.source.close()
    except Exception as error:
        if not out_of_memory(error):
            raise
        return None
    finally:
        release(trainer.settings.device)


def _steps(run: Progress, meter: Meter, validation: bool) -> int:
    batch = sample(run)
    for _ in range(2):  # the second has the optimizer's state beside its activations
        run.step.train(*batch.inputs)
    if validation and not isinstance(run.data, Stream):
        held_out = next(iter(run.source.validation()), None)
        if held_out is not None:
            run.step.evaluate(*held_out.inputs)
    best = kept_bytes(run.step.weights())
    meter.see()
    return meter.peak_bytes + best


def _scale(run: Progress, group: Group) -> float:
    """How much larger members are in an array of all architectures, which pads them."""
    if group.architectures == 1:
        return 1.0
    own = sum(v[0].numel() for v in run.step.weights().values())
    return max(1.0, group.parameters / max(1, own))


def _fastest(trainer: Schedule, group: Group, most: int, why: str) -> Generator[Event, None, tuple[int, str]]:
    """1, 2, 4, ... members at once while that makes the array faster; the number, and why it is that."""
    yield ev.PhaseChanged(time.time(), group.index, "measuring capacity", f"up to {most} members")
    best, rate, size = 0, 0.0, 1
    # What a machine has measured once holds: in arrays of other sizes members round otherwise.
    times, what = kept_times(trainer.settings.device), _what(trainer, group)
    while True:
        known = times.get(f"{size} members, {what}")
        if known is None:
            measured = _rate(trainer, group, size)
            if measured is None:
                return max(1, best), f"{size} members ran out of memory"
            known = times.put(f"{size} members, {what}", {_SAMPLE: 1 / measured})
        found = 1 / (known.get(_SAMPLE) or math.inf)
        yield ev.PhaseChanged(time.time(), group.index, "measuring capacity", f"{size}: {found:,.0f} samples/s")
        if best and found < GROWTH * rate:
            return best, f"{best} members are fastest: {rate:,.0f} samples/s, {size} give {found:,.0f}"
        best, rate = size, found
        if size >= most:
            return best, why
        size = min(2 * size, most)


def _what(trainer: Schedule, group: Group) -> str:
    """What the speed of an array depends on, beside its size."""
    s, batch_size = trainer.settings, int(group.rows[0]["batch_size"])
    sample = tensor_map(lambda t: (t.shape, t.dtype), s.data.sample(batch_size, s.device, s.dtype))
    how = s.family.name, s.dtype, s.precision, s.strategy, s.checkpointing, group.rows[0]["optimizer"]
    text = repr((trainer.module(group, group.arguments[0]), sample, how, group.architectures))
    return f"of {s.family.name} {hashlib.sha256(text.encode()).hexdigest()[:24]}"


def _rate(trainer: Schedule, group: Group, members: int) -> float | None:
    """Samples a second of an array of so many members, summed over them; None if they don't fit."""
    return _tried(trainer, group, members, lambda run: _timed(run, trainer.settings.device))


def _timed(run: Progress, device: torch.device) -> float:
    batch = sample(run)
    if isinstance(run.step, ArrayStep) and len(run.step) > 1:
        run.step.tune(*batch.inputs, TUNING_S)
    for _ in range(RECORDING):
        run.step.train(*batch.inputs)
    laps = []
    for _ in range(LAPS):
        begin = _now(device)
        run.step.train(*batch.inputs)
        laps.append(_now(device) - begin)
    return len(run.step) * batch.size / max(1e-9, sorted(laps)[LAPS // 2])


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif torch.get_num_threads() == 1:
        return time.process_time()  # other processes leave it alone
    return time.perf_counter()
