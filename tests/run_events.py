"""Made-up runs for tests: the events of a grid whose members learn, one of which diverges."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

from hfta_nb import events as ev
from hfta_nb.records.history import History
from hfta_nb.search.grid import Grid

T0 = 1_700_000_000.0


def run_started(axes: dict[str, Any], epochs: int = 20, **changes: Any) -> ev.RunStarted:
    """The first event of a run over a grid."""
    grid = Grid(axes)
    variants = tuple(ev.VariantRecord(v.id, v.config, v.seed) for v in grid.variants())
    fields: dict[str, Any] = {
        "run_id": "r1",
        "family": "cnn",
        "data": "digits",
        "device": "cpu",
        "device_name": "a CPU",
        "dtype": "float32",
        "epochs": epochs,
        "threads": 1,
        "directory": "",
        "axes": grid.axes,
        "variants": variants,
        "metrics": ("train_loss", "val_loss", "train_accuracy", "val_accuracy"),
        "monitor": "val_loss",
        "direction": "minimize",
    }
    return ev.RunStarted(T0, **(fields | changes))


def epoch_done(
    epoch: int, members: int, values: Callable[[int, int], float], time_s: float | None = None
) -> ev.EpochDone:
    """An epoch whose validation loss of a member is `values(epoch, member)`; the other metrics follow from it."""
    losses = [values(epoch, m) for m in range(members)]
    metrics = {
        "train_loss": tuple(0.8 * v for v in losses),
        "val_loss": tuple(losses),
        "train_accuracy": tuple(math.exp(-0.7 * v) for v in losses),
        "val_accuracy": tuple(math.exp(-v) for v in losses),
    }
    return ev.EpochDone(
        T0 + 2.0 * epoch if time_s is None else time_s, 0, epoch, 23 * epoch, tuple(range(members)), metrics
    )


def learning(epoch: int, member: int) -> float:
    """A loss that falls, each member in its own way, with some noise that is the same each time."""
    rate = 0.06 + 0.035 * (member * 7 % 11)
    floor = 0.03 + 0.02 * (member % 5)
    return floor + 2.3 * math.exp(-rate * epoch) + 0.03 * math.sin(37.0 * epoch + 11.0 * member)


def gpu_sample(second: float) -> ev.DeviceSampled:
    """A device measured at that second of the run."""
    busy = 1 - math.exp(-second / 3)
    values = {
        "sm_active": busy * (0.92 + 0.05 * math.sin(second)),
        "sm_occupancy": busy * (0.41 + 0.04 * math.sin(second / 2)),
        "tensor_active": busy * (0.18 + 0.03 * math.sin(second / 3)),
        "dram_active": busy * (0.33 + 0.05 * math.cos(second / 2)),
        "memory_bytes": (6 + 35 * busy) * 2**30,
        "memory_total_bytes": 139 * 2**30,
        "power_w": 120 + 290 * busy,
    }
    return ev.DeviceSampled(T0 + second, "cuda:0", values)


def cpu_sample(second: float, cores: int = 2) -> ev.DeviceSampled:
    """Load of some cores at that second of the run."""
    values = {f"core{i}": 0.6 + 0.35 * math.sin(second / (2 + i) + i) for i in range(cores)}
    values |= {"memory_bytes": (5 + 0.05 * second) * 2**30, "process_memory_bytes": (0.8 + 0.01 * second) * 2**30}
    return ev.DeviceSampled(T0 + second, "cpu", values | {"memory_total_bytes": 15.6 * 2**30})


def whole_run(
    axes: dict[str, Any], epochs: int = 20, sample: Any = gpu_sample, pause: bool = True
) -> Iterator[ev.Event]:
    """The events of a run in order: members learn, one diverges, the device is measured, there is a pause."""
    start = run_started(axes, epochs, device=sample(0.0).device)
    members = len(start.variants)
    yield start
    yield from (ev.MemberChanged(T0, i, ev.RUNNING) for i in range(members))
    shift = 0.0
    for epoch in range(1, epochs + 1):
        if pause and epoch == epochs // 2:
            yield ev.RunChanged(T0 + 2.0 * epoch - 1, ev.PAUSED)
            shift = 7.0
            yield ev.RunChanged(T0 + 2.0 * epoch - 1 + shift, ev.RUNNING)
        for half in (0.0, 0.5, 1.0, 1.5):
            yield sample(2.0 * epoch - 1.9 + half + shift)
        now = T0 + 2.0 * epoch + shift
        losses = tuple(1.1 * learning(epoch, m) for m in range(members))
        yield ev.StepsDone(
            now - 0.1, 0, 23 * epoch - 3, 23 * epochs, epoch - 0.1, 1e5, 2.0 * epoch, 1.0, tuple(range(members)), losses
        )
        yield epoch_done(epoch, members, diverging if members > 2 else learning, now)
        if members > 2 and epoch == 8:
            yield ev.MemberChanged(now, 1, ev.DIVERGED, "the loss is not finite (nan at step 180)")


def diverging(epoch: int, member: int) -> float:
    """As `learning`, but member 1 blows up at epoch 6 and is NaN from epoch 8 on."""
    if member != 1 or epoch < 6:
        return learning(epoch, member)
    return math.nan if epoch >= 8 else 10.0 ** (epoch - 5)


def folded(events: Iterator[ev.Event] | list[ev.Event]) -> History:
    """The history that events add up to."""
    history = History()
    for event in events:
        history.add(event)
    return history
