"""Made-up sweeps of any size for tests of analysis: configurations with a result that follows from them."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hfta_nb import events as ev
from hfta_nb.records.events import Json
from hfta_nb.records.history import History
from tests.run_events import T0, folded, run_started

ACTIVATIONS = ("relu", "gelu", "tanh")


def loss(config: dict[str, Any], seed: int) -> float:
    """Least at a learning rate of 1e-2 and a large width; activations differ a little."""
    lr, width = float(config.get("lr", 1e-2)), float(config.get("width", 32))
    off = 0.25 * (math.log10(lr) + 2) ** 2 + 0.2 * (64 - width) / 64
    return 0.1 + off + 0.05 * ACTIVATIONS.index(config.get("activation", "relu")) + 0.02 * math.sin(7 * seed + width)


def random_configs(count: int) -> list[dict[str, Json]]:
    """As a search draws them."""
    draw = random.Random(2)
    return [
        {
            "lr": 10 ** draw.uniform(-4, -1),
            "width": draw.randint(8, 64),
            "activation": draw.choice(ACTIVATIONS),
            "dropout": draw.uniform(0, 0.5),
        }
        for _ in range(count)
    ]


def swept(
    configs: Sequence[dict[str, Json]], epochs: int = 6, seeds: Sequence[int] = (), pruned: float = 0.0, bad: int = 0
) -> History:
    """A run of these configurations.

    Args:
        epochs: of those that aren't pruned.
        seeds: each configuration once for each.
        pruned: the share that ended early.
        bad: how many diverged before their first epoch, from the first on.
    """
    every = [config | {"seed": seed} for config in configs for seed in seeds] if seeds else list(configs)
    axes = {name: tuple(dict.fromkeys(config[name] for config in every)) for name in every[0]}
    variants = tuple(ev.VariantRecord(i, config, int(config.get("seed", 0) or 0)) for i, config in enumerate(every))
    events: list[ev.Event] = [replace(run_started({"lr": [0.1]}, epochs), axes=axes, variants=variants)]
    group = ev.GroupRecord(0, tuple(range(len(every))), "", 1000, 4000, fixed_bytes=8000)
    events.append(ev.PlanMade(T0, (group,)))
    last = [max(1, epochs // 3) if (i % 10) / 10 < pruned else epochs for i in range(len(every))]
    for epoch in range(1, epochs + 1):
        there = tuple(i for i in range(bad, len(every)) if last[i] >= epoch)
        events.append(ev.StepsDone(T0, 0, epoch, epochs, epoch, 100.0, float(epoch), 0.0, there, (0.5,) * len(there)))
        values = tuple(loss(every[i], variants[i].seed) + 1.5 * math.exp(-0.8 * epoch) for i in there)
        scores = tuple(math.exp(-v) for v in values)
        metrics = {"train_loss": values, "val_loss": values, "train_accuracy": scores, "val_accuracy": scores}
        events.append(ev.EpochDone(T0, 0, epoch, epoch, there, metrics))
        events += [ev.MemberImproved(T0, i, epoch, "val_loss", v) for i, v in zip(there, values, strict=True)]
    for i in range(len(every)):
        state = ev.DIVERGED if i < bad else ev.PRUNED if last[i] < epochs else ev.COMPLETE
        events.append(ev.MemberChanged(T0, i, state))
    return folded([*events, ev.RunChanged(T0, ev.COMPLETE)])


def grid(**axes: Sequence[Json]) -> list[dict[str, Json]]:
    """The product of axes."""
    found: list[dict[str, Json]] = [{}]
    for name, values in axes.items():
        found = [one | {name: value} for one in found for value in values]
    return found
