"""A search with slots against Optuna alone: the same trials one after another, and how much of the slots is used.

`speed`: 64 trials with ASHA, as a fused study and as Optuna's loop over plain torch with the same sampler and pruner,
which trains the same family on the same data and reports after every epoch. The two take turns, seed by seed. `slots`:
a search with Hyperband of five rungs; which share of the steps of an array's slots trains a trial, and how many of the
slots that were asked for are occupied. An array that is cut down has fewer slots from then on.

    python -m benchmarks.search [--parts speed slots] [--models mlp cnn] [--rounds 5] [--trials 64] [--quick]
"""

from __future__ import annotations

import contextlib
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from torch import Tensor

import hfta_nb as hfta
from benchmarks.common import options, write
from hfta_nb import events as ev
from hfta_nb.data import order
from hfta_nb.search import Searcher
from hfta_nb.train.batches import Batch
from hfta_nb.train.group_run import GroupRun

LEAST_USEFUL = 0.9
"""The share of slot-steps that a search is to use."""


@dataclass(frozen=True)
class Task:
    """A search.

    Attributes:
        space: axes to what they may be.
        fixed: values of all other axes.
        most: the largest share of the serial time that the fused search may take on a CPU.
    """

    family: str
    data: str
    epochs: int
    space: Mapping[str, Any]
    most: float
    fixed: Mapping[str, Any] = field(default_factory=dict)


TASKS = {
    "mlp": Task(
        "mlp",
        "digits",
        27,
        {"lr": hfta.uniform(1e-4, 1e-1, log=True), "width": hfta.integers(8, 64), "activation": ["relu", "gelu"]},
        1 / 3,
    ),
    "cnn": Task(
        "cnn",
        "digits",
        9,
        {"lr": hfta.uniform(1e-4, 1e-1, log=True), "width": hfta.integers(4, 16), "activation": ["relu", "gelu"]},
        1 / 2,
    ),
}


def fused(task: Task, trials: int, slots: int, seed: int, pruner: str = "asha") -> tuple[float, float, Any]:
    """Seconds of a search with slots, its best value, and its events."""
    place = Path(tempfile.mkdtemp(prefix="search-"))
    try:
        begin = time.perf_counter()
        study = hfta.Study(
            task.family,
            dict(task.space),
            task.data,
            epochs=task.epochs,
            trials=trials,
            slots=slots,
            sampler="tpe",
            pruner=pruner,
            seed=seed,
            device="cpu",
            directory=place / "run",
            **task.fixed,
        )
        events = list(study.run())
        took = time.perf_counter() - begin
        return took, study.optuna.best_value, events
    finally:
        shutil.rmtree(place)


def serial(task: Task, trials: int, seed: int) -> tuple[float, float]:
    """Seconds and best value of the same search by Optuna alone, one trial after another."""
    data, family = hfta.data.load(task.data), hfta.family(task.family)
    study = hfta.Study(task.family, {"lr": [1e-3]}, task.data, epochs=1, device="cpu", **task.fixed)
    row = dict(study.plan_groups[0].rows[0])
    begin = time.perf_counter()
    monitor = study.monitor, study.maximize
    searcher = Searcher(dict(task.space), trials, 1, "tpe", "asha", task.epochs, monitor, seed)
    for number in range(trials):
        (trial,) = searcher.ask(1)
        searcher.started(trial, [number])
        _alone(task, trial, family, data, row, monitor)
    return time.perf_counter() - begin, float(searcher.optuna.best_value)


def _alone(task: Task, trial: Any, family: Any, data: Any, row: Mapping[str, Any], monitor: tuple[str, bool]) -> None:
    """Train one trial as a script would, with a report after every epoch."""
    values = {k: v for k, v in trial.config.items() if k != "lr"}
    torch.manual_seed(0)
    module = family.build(**family.arguments(values, data))
    optimizer = torch.optim.Adam(module.parameters(), lr=trial.config["lr"], fused=True)
    loss_fn, size = torch.nn.functional.cross_entropy, int(row["batch_size"])
    x, y = data.floats(data.x, torch.float32), data.y
    held_out = data.floats(data.x_validation, torch.float32), data.y_validation
    found: list[float] = []
    for epoch in range(task.epochs):
        module.train()
        total = torch.zeros(())
        for rows in order(len(data), 0, epoch).split(size):
            optimizer.zero_grad()
            loss = loss_fn(module(x[rows]), y[rows])
            loss.backward()
            optimizer.step()
            total += loss.detach() * len(rows)
        found.append(_validated(module, *held_out, monitor[0]))
        trial.handle.report(found[-1], epoch + 1)
        if epoch + 1 < task.epochs and trial.handle.should_prune():
            trial.handle.study.tell(trial.handle, state=_pruned())
            return
    trial.handle.study.tell(trial.handle, max(found) if monitor[1] else min(found))


@torch.no_grad()
def _validated(module: torch.nn.Module, x: Tensor, y: Tensor, monitor: str) -> float:
    """Loss and accuracy, of which a script would print both, and the one that counts."""
    module.eval()
    out = module(x)
    found = {
        "val_loss": float(torch.nn.functional.cross_entropy(out, y)),
        "val_accuracy": float((out.argmax(1) == y).double().mean()),
    }
    return found[monitor]


def _pruned() -> Any:
    import optuna

    return optuna.trial.TrialState.PRUNED


@contextlib.contextmanager
def slot_steps() -> Iterator[list[tuple[int, int]]]:
    """Within, each step of an array adds how many slots it computed, and how many of them have a trial."""
    found: list[tuple[int, int]] = []
    step = GroupRun._train_step

    def counted(run: GroupRun, batch: Batch) -> Iterator[ev.Event]:
        found.append((len(run.step), len(run.members.ids)))
        yield from step(run, batch)

    GroupRun._train_step = counted  # type: ignore[method-assign]
    try:
        yield found
    finally:
        GroupRun._train_step = step  # type: ignore[method-assign]


def useful(steps: Sequence[tuple[int, int]]) -> float:
    """The share of slot-steps that trained a trial; a slot of which an array was cut down is none."""
    return sum(trials for _, trials in steps) / max(1, sum(slots for slots, _ in steps))


def occupied(events: list[ev.Event], slots: int) -> dict[str, float]:
    """The share of the slots that were asked for in which a trial was trained, epoch by epoch of the arrays.

    Returns:
        ``until_last_asked``: while there were trials to refill slots with; ``whole``: with the end of the search as
        well, in which arrays shrink.
    """
    counts: list[int] = []
    open_: dict[int, set[int]] = {}
    until = asked = 0
    for event in events:
        if isinstance(event, ev.RunStarted) and len(event.variants) > asked:
            asked, until = len(event.variants), len(counts) + len(open_)
        elif isinstance(event, ev.EpochDone):
            there = open_.setdefault(event.group, set())
            if there & set(event.variants):  # the next epoch of this array
                counts.append(len(there))
                there.clear()
            there.update(event.variants)
    counts += [len(there) for there in open_.values()]
    shares = {"until_last_asked": counts[:until], "whole": counts}
    return {name: sum(found) / max(1, slots * len(found)) for name, found in shares.items()}


def main(arguments: list[str] | None = None) -> None:
    parser = options(__doc__, models=list(TASKS), rounds=5, quick=False)
    parser.add_argument("--parts", nargs="+", default=["speed", "slots"], choices=["speed", "slots"])
    parser.add_argument("--trials", type=int, default=64)
    parser.add_argument("--slots", type=int, default=16)
    given = parser.parse_args(arguments)
    rounds, trials, slots = (1, 8, 4) if given.quick else (given.rounds, given.trials, given.slots)
    figures: dict[str, Any] = {"trials": trials, "slots": slots}
    if "speed" in given.parts:
        figures["speed"] = [speed(TASKS[name], rounds, trials, slots) for name in given.models]
    if "slots" in given.parts:
        figures["useful"] = slots_used(TASKS["mlp"], trials if given.quick else 2 * trials, slots)
    print("written", write("search", figures, ("torch", "numpy", "optuna")))


def speed(task: Task, rounds: int, trials: int, slots: int) -> dict[str, Any]:
    """Both searches, seed by seed."""
    serial(task, 2, 99)  # what is imported or compiled once
    fused(task, 4, 2, 99)
    rows: list[dict[str, Any]] = []
    for seed in range(rounds):
        row: dict[str, Any] = {"seed": seed}
        for name in ("fused", "serial") if seed % 2 == 0 else ("serial", "fused"):
            if name == "fused":
                row["fused_s"], row["fused_best"], _ = fused(task, trials, slots, seed)
            else:
                row["serial_s"], row["serial_best"] = serial(task, trials, seed)
        row["share"] = row["fused_s"] / row["serial_s"]
        rows.append(row)
        print(f"{task.family} seed {seed}: fused {row['fused_s']:.2f} s, best {row['fused_best']:.4f}; serial "
              f"{row['serial_s']:.2f} s, best {row['serial_best']:.4f}; {row['share']:.2f}", flush=True)  # fmt: skip
    median = {name: statistics.median(row[name] for row in rows) for name in rows[0] if name != "seed"}
    return {"family": task.family, "epochs": task.epochs, "most": task.most, "median": median, "seeds": rows}


def slots_used(task: Task, trials: int, slots: int) -> dict[str, Any]:
    """A search with Hyperband of five rungs (1, 3, 9, 27 and 81 epochs)."""
    longer = replace(task, epochs=81)
    with slot_steps() as steps:
        took, best, events = fused(longer, trials, slots, 0, "hyperband")
    share, taken = useful(steps), occupied(events, slots)
    print(f"hyperband, {trials} trials: {took:.1f} s, useful {share:.3f}, occupied {taken}", flush=True)
    numbers = {"trials": trials, "epochs": 81, "slot_steps": sum(slots for slots, _ in steps)}
    return {**numbers, "least": LEAST_USEFUL, "took_s": took, "best": best, "useful": share, "occupied": taken}


if __name__ == "__main__":
    main()
