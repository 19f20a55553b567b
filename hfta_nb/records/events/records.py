"""The events of a run: frozen records with units in their names."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hfta_nb.records.events.variants import GroupRecord, Json, VariantRecord


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened.

    Attributes:
        time_s: time of the event, in seconds since the epoch (`time.time`).
    """

    time_s: float


@dataclass(frozen=True, slots=True)
class RunStarted(Event):
    """The first event of a run: everything a view needs to lay itself out.

    `metrics` are the names in `EpochDone.metrics`, "train_loss" and "val_loss" among them; `monitor` is the one that
    decides which epoch is best, in `direction` ("minimize" or
    "maximize"). `axes` holds the values of each swept axis in order.
    """

    run_id: str
    family: str
    data: str
    device: str
    device_name: str
    dtype: str
    epochs: int
    threads: int
    directory: str
    axes: dict[str, tuple[Json, ...]]
    variants: tuple[VariantRecord, ...]
    metrics: tuple[str, ...]
    monitor: str
    direction: str
    resumed: bool = False
    precision: str = "fp32"


@dataclass(frozen=True, slots=True)
class PlanMade(Event):
    """How the variants were grouped."""

    groups: tuple[GroupRecord, ...]


@dataclass(frozen=True, slots=True)
class PhaseChanged(Event):
    """The run's current activity: "measuring memory", "measuring capacity", "building", "tuning", "training"."""

    group: int
    phase: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class SpeedMeasured(Event):
    """Speed of a group relative to training its members one after another, on a short sample.

    Attributes:
        members: number of members of the group.
        steps: number of timed steps of each kind.
        step_s: one training step of the whole array, in seconds; the fastest of those that were timed.
        serial_step_s: one step of every member, one after another, as plain modules; the fastest likewise.
        speedup: `serial_step_s / step_s`.
        strategy: the choice, in words.
        serial_validation_s: one validation of every member, one after another, in batches of the training's size; NaN
            where the number of validation samples is not known.
    """

    group: int
    members: int
    steps: int
    step_s: float
    serial_step_s: float
    speedup: float
    strategy: str
    serial_validation_s: float = math.nan


@dataclass(frozen=True, slots=True)
class MemoryMeasured(Event):
    """Peak memory of a group's first training step, with the prediction.

    Attributes:
        members: number of members of the group.
        peak_bytes: the measured peak.
        predicted_bytes: the plan's prediction.
        free_bytes: free memory of the device, less a margin.
    """

    group: int
    members: int
    peak_bytes: int
    predicted_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True)
class ArrayHalved(Event):
    """Memory ran out: an array continues as two, one after the other, from the step that failed.

    Attributes:
        group: the array's number, which its first half keeps.
        phase: its activity when memory ran out.
        members: number of members before.
        into: number of members of each half.
        groups: the halves' numbers.
        needed_bytes: memory of the array by the plan.
        free_bytes: free memory of the device, less a margin, after the array was released.
        reason: the error in words.
    """

    group: int
    phase: str
    members: int
    into: tuple[int, ...]
    groups: tuple[int, ...]
    needed_bytes: int
    free_bytes: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ArrayPlaced(Event):
    """A worker begins to train an array, or no longer trains it. Runs in one process have no such events.

    Attributes:
        group: the array's number.
        worker: the worker's name.
        slots: its places among those of the run, from 0; empty where it no longer trains the array.
        of: number of places of the run.
        complete: whether the array is done.
    """

    group: int
    worker: str
    slots: tuple[int, ...]
    of: int
    complete: bool = False


@dataclass(frozen=True, slots=True)
class DifferenceFound(Event):
    """A member of an array came to something else than its plain module alone; the array runs differently from now on.

    The call was made again, so that nothing of the difference is in the results.

    Attributes:
        group: the array's number.
        submodule: path of the part of the model that now runs member by member; empty for the whole model.
        reason: what differed, and by how much.
    """

    group: int
    submodule: str
    reason: str


@dataclass(frozen=True, slots=True)
class StepsDone(Event):
    """Progress within an epoch, at most a few times a second.

    Attributes:
        step: optimizer steps of this group so far, of `steps_total`.
        epochs_done: epochs so far as a fraction, of the epochs planned.
        samples_per_s: training samples a second, summed over members, since the last such event.
        elapsed_s: seconds of training so far, pauses left out, over all groups and resumptions.
        remaining_s: estimate of the seconds left for the whole run at the measured rate; NaN until the rate has been
            measured after tuning.
        variants: ids of the members still training.
        train_loss: for each of them, the mean training loss over the steps since the last such event.
        waiting_share: the share of the time since the last such event in which training waited for data, from 0 to 1.
    """

    group: int
    step: int
    steps_total: int
    epochs_done: float
    samples_per_s: float
    elapsed_s: float
    remaining_s: float
    variants: tuple[int, ...]
    train_loss: tuple[float, ...]
    waiting_share: float = 0.0


@dataclass(frozen=True, slots=True)
class EpochDone(Event):
    """Metrics at the end of an epoch (counted from 1), each with one value per variant."""

    group: int
    epoch: int
    step: int
    variants: tuple[int, ...]
    metrics: dict[str, tuple[float, ...]]


@dataclass(frozen=True, slots=True)
class SlotsFreed(Event):
    """An array of a search is between two epochs and has room for other members, which join before its next step.

    Attributes:
        group: the array.
        members: that go on.
        free: how many more may join.
    """

    group: int
    members: int
    free: int


@dataclass(frozen=True, slots=True)
class MemberImproved(Event):
    """A variant reached a new best of the monitored metric; its weights of that epoch are kept."""

    variant: int
    epoch: int
    metric: str
    value: float


@dataclass(frozen=True, slots=True)
class MemberChanged(Event):
    """A variant entered a state; `reason` says why if it ended early, `detail` is a traceback."""

    variant: int
    state: str
    reason: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class MemberEdited(Event):
    """A member was cloned or changed while the run trained; together these are the lineage of the members.

    Attributes:
        variant: the member that is new, or was changed.
        how: "cloned"; "set", in place; "copied", over what the member was before; "extended"; or "led", where it begins
            to lead others that are pulled toward it.
        parent: the member whose state or configuration it took; None for "set", "extended" and "led".
        warm: whether it has the state of its parent; of a change in place, True.
        epoch: epochs that the member had done.
        step: optimizer steps that it had made.
        changes: the values that differ from its parent's, or from its own before; "epochs" is the new budget,
            "leads" says whom: "all", or "group 1".
        reason: why.
    """

    variant: int
    how: str
    parent: int | None
    warm: bool
    epoch: int
    step: int
    changes: dict[str, Json]
    reason: str = ""


@dataclass(frozen=True, slots=True)
class RequestRefused(Event):
    """A request was not answered, and nothing was changed.

    Attributes:
        request: its kind, as "Clone".
        variant: of which member it was; None for the whole run.
        reason: why it was not.
    """

    request: str
    variant: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class RunChanged(Event):
    """The run entered a state; on FAILED, `reason` is the error in words and `detail` its traceback."""

    state: str
    reason: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class DeviceSampled(Event):
    """How busy the device is.

    `values` maps a name to a number. Fractions in 0..1: "sm_active", "sm_occupancy",
    "tensor_active", "dram_active", "gpu_utilization", "core0", "core1", ...; others carry their unit:
    "memory_bytes", "memory_total_bytes", "process_memory_bytes", "power_w". `note` says why values are missing, if
    known.
    """

    device: str
    values: dict[str, float]
    note: str = ""


@dataclass(frozen=True, slots=True)
class CheckpointSaved(Event):
    """The run can be resumed from here."""

    group: int
    epoch: int
    path: str


@dataclass(frozen=True, slots=True)
class MemberChecked(Event):
    """A variant was retrained alone as a plain module and compared with what the run recorded.

    Attributes:
        epochs: how many epochs were compared.
        differences: per metric, the largest absolute difference of the two curves.
        tolerance: the largest difference of losses that rounding may make, for this dtype and member.
        equal: whether the losses' differences are within the tolerance, and the tolerance is below the loss.
        decided: False if the differences are within the tolerance, but the tolerance exceeds the loss itself.
    """

    variant: int
    epochs: int
    differences: dict[str, float]
    tolerance: float
    equal: bool
    decided: bool = True

    @property
    def verdict(self) -> str:
        """In words: "equal", "differs" or "can't tell"."""
        return "equal" if self.equal else "differs" if self.decided else "can't tell"


@dataclass(frozen=True, slots=True)
class ForwardTried(Event):
    """A variant's forward and loss were called with one batch, before anything trained. Not stored.

    Attributes:
        reason: the error in words; empty if there was none.
        file, line, function, source: the innermost line of the user's own code in its traceback; empty and 0 if there
            is none. The source is empty if it can't be read.
        detail: the traceback.
    """

    variant: int
    reason: str = ""
    file: str = ""
    line: int = 0
    function: str = ""
    source: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class RateMeasured(Event):
    """An array trained on a few batches, to measure how fast it is; nothing of that is kept. Not stored.

    Attributes:
        members: of the array; fewer than planned where not all fit a device.
        samples_per_s: samples of the data that the whole array trains on in a second, on 1, 2, ... devices.
        memory_bytes: the most that training takes on a device, of each of these.
    """

    group: int
    members: int
    samples_per_s: tuple[float, ...]
    memory_bytes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Heartbeat(Event):
    """The run is alive, but nothing happened, for example while paused. Not stored."""
