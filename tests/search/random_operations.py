"""A search on which random operations fall: prune, stop, pause, resume, clone, add, extend, leave, kill, train on."""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import optuna
import torch
from steering.twins import CLASSES, FEATURES, Twins, data
from torch import nn

import hfta_nb as hfta
from hfta_nb import events as ev
from hfta_nb.errors import HftaError
from hfta_nb.records.events import Request

MOST = 9
"""More members than these are not cloned or added."""


def net(
    width: int = 6, depth: int = 1, p: float = 0.0, norm: bool = False, inputs: int = FEATURES, classes: int = CLASSES
) -> nn.Module:
    """A sequence whose length and kinds of modules depend on its arguments."""
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Linear(inputs, width), *([nn.BatchNorm1d(width)] if norm else []), nn.Tanh()]
        layers += [nn.Dropout(p)] if p else []
        inputs = width
    return nn.Sequential(*layers, nn.Linear(inputs, classes))


class RandomPruner(optuna.pruners.BasePruner):
    """Prunes a trial after an epoch as its number and the epoch say."""

    def __init__(self, seed: int, share: float) -> None:
        self.seed, self.share = seed, share

    def prune(self, study: optuna.Study, trial: optuna.trial.FrozenTrial) -> bool:
        return random.Random(f"{self.seed} {trial.number} {trial.last_step}").random() < self.share


class Operator(hfta.Control):
    """A mailbox into which operations fall between the steps of a run.

    Args:
        chance: what is asked.
        operations: how many at most.

    Attributes:
        study: whose members they concern.
        asked: how many of each kind were posted.
    """

    study: hfta.Study

    def __init__(self, chance: random.Random, operations: int) -> None:
        super().__init__()
        self.chance, self.left, self.asked = chance, operations, Counter[str]()
        self.polls, self.how = -1, ""

    def end(self, polls: int, how: str) -> None:
        """After so many looks into the mailbox stop the run, or kill the process."""
        self.polls, self.how = polls, how

    def poll(self) -> list[Request]:
        self.polls -= 1
        if self.polls == 0:
            if self.how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            self.stop()
        elif self.how == "kill" and self.chance.random() < 0.1 and self.study.run_state.trainer is not None:
            self.study.run_state.trainer.last_save = -1e9  # type: ignore[union-attr]  # a checkpoint is due
        if self.left and self.chance.random() < 0.15:
            self.left -= 1
            self._operate()
        return super().poll()

    def wait(self, timeout_s: float) -> list[Request]:
        """Nothing is left to train but paused members: they go on."""
        for variant in self._in(ev.PAUSED):
            self.resume(variant)
        return super().poll()

    def _in(self, *states: str) -> list[int]:
        return [m.id for m in self.study.history.members.values() if m.state in states]

    def _operate(self) -> None:
        running, paused = self._in(ev.RUNNING), self._in(ev.PAUSED)
        if not running:
            return
        someone, few = self.chance.choice(running), len(self.study.history.members) < MOST
        lr = 10 ** self.chance.uniform(-3, -1.5)
        ways: dict[str, Any] = {
            "pause": lambda: self.pause(someone),
            "prune": lambda: self.put(ev.Prune(someone, "at random")),
            "set": lambda: self.set(someone, lr=lr),
        }
        if len(running) > 1:
            ways["stop"] = lambda: self.stop(someone)
        if paused:
            ways |= dict.fromkeys(("resume", "resume again"), lambda: self.resume(self.chance.choice(paused)))
        if few:
            ways["warm"] = lambda: self.clone(someone, **self.chance.choice([{"lr": lr}, {"batch_size": 12}]))
            ways["cold"] = lambda: self.clone(someone, warm=False, **self.chance.choice([{"lr": lr}, {"width": 5}]))
            ways["add"] = lambda: self.add({"lr": lr, "width": 7})
            ways["extend"] = lambda: self.extend(1, self.chance.choice([someone, None]))
        kind = self.chance.choice(list(ways))
        try:
            ways[kind]()
            self.asked[kind] += 1
        except HftaError:
            self.asked[f"{kind} refused"] += 1


def options(chance: random.Random) -> tuple[dict[str, Any], dict[str, Any]]:
    """A search space, and the other arguments of a study."""
    every: dict[str, list[Any]] = {
        "width": [4, 6, 9],
        "depth": [1, 2, 3],
        "p": [0.0, 0.3],
        "norm": [False, True],
        "optimizer": chance.sample(["sgd", "adam", "adamw", "nadam", "rmsprop"], 2),
        "data_seed": [0, 1],
        "max_norm": [None, 0.5],
        "seed": [0, 1],
    }
    chosen = chance.sample(list(every), chance.choice([1, 2, 2, 3, 4]))
    space: dict[str, Any] = {name: every[name] for name in every if name in chosen}
    space["lr"] = hfta.uniform(1e-3, 3e-2, log=True)
    given: dict[str, Any] = {
        "slots": chance.randint(1, 5),
        "trials": chance.randint(2, 6),
        "epochs": chance.randint(2, 4),
        "seed": chance.randrange(1000),
        "strategy": "measured" if chance.random() < 0.1 else "fixed",
        "lr_scheduler": chance.choice(["none", "cosine", "step"]),
        "sampler": "random",
        "pruner": chance.choice(["none", "asha", "random"]),
        "padding": chance.choice([0.9, 0.9, 0.25]),
        "verify": chance.choice(["never", "first"]),
    }
    given |= {"step_size": 2} if given["lr_scheduler"] == "step" else {}
    if given["pruner"] == "random":
        given["pruner"] = RandomPruner(given["seed"], 0.3)
    return space, given


class Search:
    """One search, its operations, and what comes of it.

    Args:
        seed: of everything that is drawn.
        directory: of the run.
        kills: whether processes may be killed.
    """

    def __init__(self, seed: int, directory: Path, kills: bool) -> None:
        self.chance, self.directory, self.kills = random.Random(seed), directory, kills
        self.space, self.given = options(self.chance)
        if random.Random(f"accumulation {seed}").random() < 0.4:
            self.space["accumulate_grad_batches"] = [1, 2]
        if random.Random(f"averages {seed}").random() < 0.3:
            self.space["ema_decay"] = [None, 0.8]
        self.told: Counter[str] = Counter()
        self.study = self.made()

    def made(self) -> hfta.Study:
        return hfta.Study(net, self.space, data(), directory=self.directory, batch_size=16, dtype="float64",
                          device="cpu", **self.given)  # fmt: skip

    def run(self) -> hfta.Study:
        """Train to the end, and further, whatever happens on the way."""
        for _ in range(self.chance.choice([0, 1, 1, 2, 3])):
            self._cut_short()
        if not self._complete:
            self._to_end()
        for _ in range(self.chance.choice([0, 1, 1, 2])):
            if not any(m.state == ev.COMPLETE for m in self.study.history.members.values()):
                break
            self.given["epochs"], self.study = self.study.epochs + self.chance.randint(1, 2), self.made()
            if self.chance.random() < 0.3 and self.given["lr_scheduler"] != "cosine":
                self._cut_short(self.given["epochs"])
            if not self._complete or self.study.epochs < self.given["epochs"]:
                self._to_end(self.given["epochs"])
            self.told["trained on"] += 1
        return self.study

    @property
    def _complete(self) -> bool:
        return self.study.store.has_events and self.study.history.state == ev.COMPLETE

    def _operator(self) -> Operator:
        operator = Operator(random.Random(self.chance.random()), self.chance.choice([0, 2, 4, 8]))
        operator.study = self.study
        return operator

    def _to_end(self, epochs: int | None = None) -> None:
        operator = self._operator()
        self.study.fit(epochs, resume=self.study.store.has_events, progress=False, control=operator)
        self.told += operator.asked

    def _cut_short(self, epochs: int | None = None) -> None:
        """Leave the loop after some events, or kill the process that is in it."""
        if self._complete and epochs is None:
            return
        how = self.chance.choice(["leave", "stop", "kill", "kill"] if self.kills else ["leave", "stop"])
        operator, count = self._operator(), self.chance.randint(1, 12)
        if how != "leave":
            operator.end(self.chance.randint(1, 40), how)
        child = os.fork() if how == "kill" else 0
        if child:
            os.waitpid(child, 0)
        else:
            try:
                for event in self.study.run(operator, resume=self.study.store.has_events, epochs=epochs):
                    count -= isinstance(event, ev.EpochDone | ev.MemberChanged)
                    if how == "leave" and count <= 0:
                        break
            finally:
                if how == "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
        self.told[how] += 1
        self.study = self.made()


def differences(study: hfta.Study) -> dict[int, float]:
    """By member, how far its curves and its best weights are from those of its twin."""
    found = Twins(study, net).differences()
    source = study.data
    for variant, member in study.history.members.items():
        if not member.best_epoch:
            continue
        module, curve = study.member(variant).module(), member.curves["val_loss"]
        with torch.no_grad():
            loss = nn.functional.cross_entropy(module(source.x_validation.double()), source.y_validation)
        found[variant] = max(found[variant], abs(float(loss) - curve.values[curve.epochs.index(member.best_epoch)]))
    return found


def accounted_for(study: hfta.Study, trials: int) -> bool:
    """Whether the run is complete, every trial was tried, and every member of one has ended."""
    members = study.history.members
    assert study.history.state == ev.COMPLETE
    assert all(m.state in ev.FINAL_STATES for m in members.values()), {m.id: m.state for m in members.values()}
    assert not study.history.count(ev.FAILED, ev.DIVERGED), [m.reason for m in members.values()]
    assert len(study.optuna.trials) == trials
    assert all(trial.state.is_finished() for trial in study.optuna.trials)
    assert study.searcher is not None
    assert set(study.searcher.numbers) <= set(members)
    assert len(study.results()) == len(members)
    return True
