"""One whole run in a process of its own, for `benchmarks/whole_runs.py`: fused, serial, or a plain loop.

The plain loop imports nothing of hfta_nb. The process prints a line of JSON: seconds by phase, peak memory, and what
the run came to.

    python -m benchmarks.one_run NAME WAY BEGAN [--quick]
"""

from __future__ import annotations

import json
import resource
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.small_models import MODELS

Samples = tuple[Tensor, Tensor, Tensor, Tensor]
"""Inputs and targets of training, then of validation."""


@dataclass(frozen=True)
class Job:
    """What is trained: members that differ in their learning rate, or a search.

    Attributes:
        build: makes a member; of a search with the proposed width.
        data: draws the samples.
        task: of the data; see `hfta_nb.data.Data`.
        members: how many; of a search, trials.
        slots: members at a time of a search; 0 for no search.
    """

    build: Callable[..., nn.Module]
    data: Callable[[], Samples]
    members: int
    epochs: int
    batch_size: int
    task: str = "classification"
    loss: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy
    slots: int = 0

    @property
    def rates(self) -> list[float]:
        """The learning rate of each member."""
        return [1e-4 * 30 ** (i / max(1, self.members - 1)) for i in range(self.members)]


def word_loss(out: Tensor, y: Tensor) -> Tensor:
    """Of one language model's output."""
    return F.cross_entropy(out.flatten(0, 1), y.flatten())


class LanguageModel(nn.Module):
    """Two causal Transformer layers over 64 words."""

    def __init__(self, vocab_size: int = 64, context: int = 32) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(vocab_size, 64), nn.Parameter(torch.zeros(context, 64))
        layer = nn.TransformerEncoderLayer(64, 2, 128, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.last = nn.Linear(64, vocab_size)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(context))

    def forward(self, x: Tensor) -> Tensor:
        out = self.layers(self.words(x) + self.places, mask=self.mask, is_causal=True)
        return self.last(out)  # type: ignore[no-any-return]


class Block(nn.Module):
    """Two convolutions and a way past them."""

    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(inner, outer, 3, stride, 1, bias=False), nn.BatchNorm2d(outer), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(outer, outer, 3, 1, 1, bias=False), nn.BatchNorm2d(outer))
        short = nn.Sequential(nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer))
        self.short = short if stride > 1 or inner != outer else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.second(self.first(x)) + self.short(x))


def _resnet18() -> nn.Module:
    wide, layers = 16, []
    for stage in range(4):
        outer = wide << stage
        layers += [Block(wide if stage == 0 else outer // 2, outer, 2 if stage else 1), Block(outer, outer, 1)]
    stem = [nn.Conv2d(3, wide, 3, 1, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU()]
    return nn.Sequential(*stem, *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(wide << 3, 10))


def _perceptron(width: int = 32) -> nn.Module:
    return nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))


def _digits() -> Samples:
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    rows = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    images, labels = torch.tensor(x, dtype=torch.float32)[rows] / 16, torch.tensor(y)[rows]
    return images[360:], labels[360:], images[:360], labels[:360]


def _drawn(count: int, held_out: int, *shape: int) -> Callable[[], Samples]:
    """Ten classes of noise around a centre each."""

    def draw() -> Samples:
        numbers = torch.Generator().manual_seed(0)
        y = torch.randint(0, 10, (count + held_out,), generator=numbers)
        x = torch.randn(count + held_out, *shape, generator=numbers) + torch.randn(10, *shape, generator=numbers)[y]
        return x[:count], y[:count], x[count:], y[count:]

    return draw


def _text(count: int, held_out: int, length: int = 32) -> Callable[[], Samples]:
    """Sequences of words that count up by one of four numbers."""

    def draw() -> Samples:
        numbers = torch.Generator().manual_seed(0)
        first, by = torch.randint(0, 64, (2, count + held_out, 1), generator=numbers)
        words = (first + (1 + by % 4) * torch.arange(length + 1)) % 64
        x, y = words[:, :-1].contiguous(), words[:, 1:].contiguous()
        return x[:count], y[:count], x[count:], y[count:]

    return draw


_MLP, _CNN, _LSTM = (MODELS[name][0] for name in ("mlp", "cnn", "lstm"))
JOBS = {
    "mlp": Job(_MLP, _digits, 16, 10, 64),
    "cnn": Job(_CNN, _drawn(3840, 960, 1, 28, 28), 8, 8, 32),
    "lstm": Job(_LSTM, _drawn(4096, 1024, 20, 32), 8, 12, 32),
    "transformer_lm": Job(LanguageModel, _text(1024, 256), 4, 8, 16, "language_model", word_loss),
    "resnet18": Job(_resnet18, _drawn(768, 192, 3, 32, 32), 4, 4, 32),
    "search": Job(_perceptron, _digits, 64, 27, 64, slots=16),
}
QUICK = {
    "cnn": _drawn(64, 32, 1, 28, 28),
    "lstm": _drawn(64, 32, 20, 32),
    "transformer_lm": _text(32, 16),
    "resnet18": _drawn(32, 16, 3, 32, 32),
}
"""Data of a quick run, where the usual ones take long."""


def job_of(name: str, quick: bool) -> Job:
    """The job of this name."""
    job = JOBS[name]
    if not quick:
        return job
    slots = min(2, job.slots)
    members, epochs = (4, 3) if slots else (2, 2)
    return replace(job, data=QUICK.get(name, job.data), members=members, epochs=epochs, slots=slots)


class Phases:
    """Seconds by phase: everything since the last mark belongs to the phase that is named."""

    def __init__(self, began: float) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.at = began

    def end(self, phase: str, least: float = 0.0, rest: str = "") -> None:
        """A phase ends now; of it, all but `least` seconds belong to `rest`, if there is one."""
        now = time.time()
        lap, self.at = now - self.at, now
        own = min(lap, least) if rest else lap
        self.seconds[phase] += own
        if rest:
            self.seconds[rest] += lap - own


# A plain loop.


def plain(job: Job, phases: Phases) -> dict[str, Any]:
    """Train members one after another, or a search's trials, as a script does."""
    data = job.data()
    phases.end("data")
    if job.slots:
        return _searched(job, data, phases)
    with tempfile.TemporaryDirectory() as place:
        values = []
        for number, rate in enumerate(job.rates):
            torch.manual_seed(0)
            module, losses, best, weights = job.build(), [], float("inf"), {}
            phases.end("plan")
            for loss in _epochs(job, module, rate, data, phases):
                losses.append(loss)
                if loss < best:
                    best, weights = loss, {k: v.clone() for k, v in module.state_dict().items()}
            torch.save(weights, f"{place}/{number}.pt")
            phases.end("checkpoints")
            values.append(losses[-1])
    return {"loss": sum(values) / len(values)}


def _epochs(job: Job, module: nn.Module, rate: float, data: Samples, phases: Phases) -> Iterator[float]:
    """Train; gives the validation loss of every epoch."""
    x, y, x_held_out, y_held_out = data
    optimizer = torch.optim.Adam(module.parameters(), lr=rate, fused=True)
    numbers = torch.Generator().manual_seed(0)
    for _ in range(job.epochs):
        module.train()
        total, fresh = torch.zeros(()), "first step" not in phases.seconds
        for rows in torch.randperm(len(x), generator=numbers).split(job.batch_size):
            optimizer.zero_grad()
            loss = job.loss(module(x[rows]), y[rows])
            loss.backward()
            optimizer.step()
            total += loss.detach() * len(rows)
            if fresh:
                phases.end("first step")
                fresh = False
        float(total)
        phases.end("steps")
        module.eval()
        found = total_right = 0.0
        with torch.no_grad():
            for part, labels in zip(x_held_out.split(job.batch_size), y_held_out.split(job.batch_size), strict=True):
                out = module(part)
                found += float(job.loss(out, labels)) * len(part)
                total_right += float((out.argmax(-1) == labels).double().mean()) * len(part)
        phases.end("validation")
        yield found / len(x_held_out)


def _searched(job: Job, data: Samples, phases: Phases) -> dict[str, Any]:
    """A search by Optuna, one trial after another."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    pruner = optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=3)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0), pruner=pruner)
    phases.end("plan")

    def objective(trial: Any) -> float:
        rate, width = trial.suggest_float("lr", 1e-4, 1e-1, log=True), trial.suggest_int("width", 8, 64)
        torch.manual_seed(0)
        module, best = job.build(width), float("inf")
        for epoch, loss in enumerate(_epochs(job, module, rate, data, phases)):
            best = min(best, loss)
            trial.report(loss, epoch + 1)
            if epoch + 1 < job.epochs and trial.should_prune():
                raise optuna.TrialPruned
        return best

    study.optimize(objective, n_trials=job.members)
    return {"loss": study.best_value}


# A study.


def studied(job: Job, phases: Phases, serial: bool) -> dict[str, Any]:
    """Train as a study, and read the phases off its events."""
    import hfta_nb as hfta

    phases.end("import")
    data = hfta.data.from_tensors(*job.data(), task=job.task)
    phases.end("data")
    how: dict[str, Any] = {"epochs": job.epochs, "batch_size": job.batch_size, "device": "cpu", "loss": job.loss}
    grid: dict[str, Any] = {"lr": job.rates}
    if job.slots:
        grid = {"lr": hfta.uniform(1e-4, 1e-1, log=True), "width": hfta.integers(8, 64)}
        how |= {"trials": job.members, "slots": 1 if serial else job.slots, "sampler": "tpe", "pruner": "asha"}
        how["monitor"] = "val_loss"
    with tempfile.TemporaryDirectory() as place:
        study = hfta.Study(job.build, grid, data, serial=serial, optimizer="adam", directory=f"{place}/run", **how)
        laps = _followed(study, phases)
        history = study.history
        losses = [m.at_best("val_loss") if job.slots else m.last("val_loss") for m in history.leaderboard()]
        told: dict[str, Any] = {"loss": min(losses) if job.slots else sum(losses) / len(losses)}
        if history.speeds:
            told |= study.speedup().loc["all", ["speedup", "step_speedup"]].astype(float).to_dict()
    _share_out([] if serial else laps, phases)  # nothing is tried where members train one after another
    return told


def _followed(study: Any, phases: Phases) -> list[tuple[float, int]]:
    """Run a study; gives the laps between its reports of steps, in seconds and member-steps."""
    from hfta_nb import events as ev

    done: dict[int, int] = {}
    laps: list[tuple[float, int]] = []
    first = "plan"
    for event in study.run():
        if isinstance(event, ev.PhaseChanged) and event.phase == "building":
            phases.end("plan" if first == "plan" else "end")
            first = "first step"
        elif isinstance(event, ev.StepsDone):
            made = sum(max(0, event.step - done.get(v, 0)) for v in event.variants)
            done |= dict.fromkeys(event.variants, event.step)
            before = phases.seconds["training"]
            phases.end("training" if first == "steps" else first)
            if first == "steps":
                laps.append((phases.seconds["training"] - before, made))
            first = "steps"
        elif isinstance(event, ev.EpochDone):
            phases.end("validation")
        elif isinstance(event, ev.CheckpointSaved):
            phases.end("checkpoints", study.run_state.trainer.save_s, "training" if first == "steps" else "end")
    return laps


def _share_out(laps: list[tuple[float, int]], phases: Phases) -> None:
    """Of the time of training, what steps take at the pace of the quicker laps; what is beyond went into trials."""
    training = phases.seconds.pop("training", 0.0)
    paces = sorted(seconds / made for seconds, made in laps if made)
    usual = paces[len(paces) // 4] * sum(made for _, made in laps) if paces else training
    phases.seconds["steps"] = min(training, usual)
    phases.seconds["trials"] = training - phases.seconds["steps"]


def main(arguments: list[str]) -> None:
    name, way, began = arguments[:3]
    torch.set_num_threads(1)
    phases, job = Phases(float(began)), job_of(name, "--quick" in arguments)
    if way == "plain":
        phases.end("import")
    told = plain(job, phases) if way == "plain" else studied(job, phases, way == "serial")
    phases.end("end")
    used = resource.getrusage(resource.RUSAGE_SELF)
    spent = {"peak_bytes": used.ru_maxrss * 1024, "cpu_s": used.ru_utime + used.ru_stime}
    print(json.dumps({**told, **spent, "phases": dict(phases.seconds)}))


if __name__ == "__main__":
    main(sys.argv[1:])
