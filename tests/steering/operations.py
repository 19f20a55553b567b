"""Random operations on the members of a study that trains."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

from steering.twins import Twins, data, net

import hfta_nb as hfta
from hfta_nb import events as ev
from hfta_nb.errors import HftaError
from hfta_nb.records.events import Request

MOST = 8
"""More members than these aren't made."""


class Operator(hfta.Control):
    """A mailbox into which operations fall between the steps of a run.

    Args:
        seed: of what is asked.
        operations: how many.
        often: how many at a time, at most.

    Attributes:
        study: whose members they concern.
        asked: how many of each kind were posted.
        refused: how many of each kind raised.
    """

    study: hfta.Study

    def __init__(self, seed: int, operations: int, often: int = 2) -> None:
        super().__init__()
        self.chance, self.left, self.often = random.Random(seed), operations, often
        self.asked: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()

    def poll(self) -> list[Request]:
        for _ in range(min(self.left, self.chance.choice([0, *range(self.often + 1)]))):
            self.operate()
        return super().poll()

    def wait(self, timeout_s: float) -> list[Request]:
        """Nothing is left to train but paused members: they go on."""
        for variant in self._in(ev.PAUSED):
            self.resume(variant)
        return super().poll()

    def _in(self, *states: str) -> list[int]:
        return [m.id for m in self.study.history.members.values() if m.state in states]

    def operate(self) -> None:
        """Post one request; one that can't be answered may raise."""
        self.left -= 1
        members = self.study.history.members
        if not members:
            return
        kinds = [name for name, weight in WEIGHTS.items() for _ in range(weight)]
        kind = self.chance.choice(kinds)
        crowd = len(self._in(ev.RUNNING, ev.WAITING, ev.PAUSED))
        if crowd >= MOST and kind in ("warm", "cold", "apart", "add"):
            kind = self.chance.choice(("stop", "delete"))
        if crowd <= 2 and kind in ("stop", "delete"):
            kind = "warm"
        try:
            getattr(self, f"_{kind}")(self._someone(kind))
            self.asked[kind] += 1
        except HftaError:
            self.refused[kind] += 1

    def _someone(self, kind: str) -> int:
        running, paused = self._in(ev.RUNNING), self._in(ev.PAUSED)
        if kind == "resume" and paused:
            return self.chance.choice(paused)
        if running and self.chance.random() < 0.85:
            return self.chance.choice(running)
        return self.chance.choice(list(self.study.history.members))

    def _values(self) -> dict[str, Any]:
        draw = self.chance
        every: dict[str, Any] = {
            "lr": 10 ** draw.uniform(-4, -1.5),
            "weight_decay": draw.choice([0.0, 1e-3, 1e-2]),
            "max_norm": draw.choice([None, 0.5, 5.0]),
            "beta1": draw.choice([0.8, 0.9]),
        }
        return {name: every[name] for name in draw.sample(list(every), draw.choice([1, 1, 2]))}

    def _pause(self, member: int) -> None:
        self.pause(member)

    def _resume(self, member: int) -> None:
        self.resume(member)

    def _stop(self, member: int) -> None:
        self.stop(member)

    def _delete(self, member: int) -> None:
        self.delete(member)

    def _pin(self, member: int) -> None:
        self.pin(member, self.chance.random() < 0.5)

    def _set(self, member: int) -> None:
        self.set(member, **self._values())

    def _warm(self, member: int) -> None:
        streams = self.chance.choice([{}, {}, {"seed": self.chance.randrange(99)}, {"data_seed": 7}])
        self.clone(member, **self._values(), **streams)

    def _apart(self, member: int) -> None:
        self.clone(member, **self.chance.choice([{"batch_size": 12}, {"optimizer": "sgd"}, {"p": 0.4}, {"p": 0.0}]))

    def _cold(self, member: int) -> None:
        self.clone(member, warm=False, **self.chance.choice([{}, {"width": 4}, self._values()]))

    def _add(self, member: int) -> None:
        self.add({"lr": 10 ** self.chance.uniform(-4, -2)})

    def _extend(self, member: int) -> None:
        self.extend(1, None if self.chance.random() < 0.3 else member)

    def _wrong(self, member: int) -> None:
        """What can't be answered."""
        what: list[Any] = [
            lambda: self.pause(10_000),
            lambda: self.set(member, width=9),
            lambda: self.set(member, lr="fast"),
            lambda: self.clone(member, sped=1),
            lambda: self.clone(member, width=9),  # other shapes: known between two steps only
            lambda: self.post(ev.Set(member, {"lr": -1.0}, f"own {self.left}")),
            lambda: self.put(ev.Clone(10_000, {}, True, f"own {self.left}")),
            lambda: self.put(ev.Pause(10_000, f"own {self.left}")),
        ]
        self.chance.choice(what)()


WEIGHTS = {"pause": 4, "resume": 4, "stop": 1, "delete": 1, "pin": 1, "set": 6, "warm": 4, "apart": 1, "cold": 1}
WEIGHTS |= {"add": 1, "extend": 1, "wrong": 3}
"""How often each kind is asked for."""


def steered(directory: Any, seed: int, operations: int, epochs: int, **options: Any) -> tuple[hfta.Study, Operator]:
    """A study that was operated on until it was complete."""
    study = hfta.Study(
        net,
        {"lr": [1e-3, 1e-2, 3e-3]},
        data(),
        epochs=epochs,
        batch_size=16,
        dtype="float64",
        device="cpu",
        deterministic=True,
        verify="never",
        directory=directory,
        **options,
    )
    control = Operator(seed, operations)
    control.study = study
    list(study.run(control))
    return study, control


def worst(study: hfta.Study) -> float:
    """The largest difference of a member's curves from its twin's."""
    return max(Twins(study).differences().values())
