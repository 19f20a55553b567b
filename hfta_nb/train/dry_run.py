"""Each architecture's forward, tried on one batch before anything trains: a bug in it shows at once."""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hfta_nb.data.augment import Augmenting
from hfta_nb.engine.array.access import FunctionStates, call_module, kept_by, of_member, seeded_state, streams_apart
from hfta_nb.errors import HftaError, out_of_memory
from hfta_nb.errors.user_frames import user_frame
from hfta_nb.models.recipes.preserve_rng import preserve_rng
from hfta_nb.records import events as ev
from hfta_nb.records.events import Control
from hfta_nb.train.batches import Batch
from hfta_nb.train.plan import Group
from hfta_nb.train.schedule import Schedule
from hfta_nb.train.settings import Settings
from hfta_nb.train.step import call_all

MOST = 32
"""So many architectures are tried at most, spread over all that there are."""


def examples(groups: Sequence[Group], most: int = MOST) -> list[tuple[Group, int]]:
    """One member of each architecture, as its array and its place there.

    Members whose arguments differ in real numbers alone (a dropout rate, say) are taken for one architecture.
    """
    found: dict[str, tuple[Group, int]] = {}
    for group in groups:
        for place, arguments in enumerate(group.arguments):
            found.setdefault(_kind(arguments), (group, place))
    chosen = list(found.values())
    return chosen if len(chosen) <= most else [chosen[i * len(chosen) // most] for i in range(most)]


def tried(settings: Settings, groups: Sequence[Group]) -> Iterator[ev.ForwardTried]:
    """Build a member of each architecture, and call it and its loss with one batch; nothing is trained."""
    trainer = Schedule(settings, groups, Control())
    for group, place in examples(groups):
        error = _try(trainer, group, place)
        variant = group.variants[place].id
        if error is None:
            yield ev.ForwardTried(time.time(), variant)
            continue
        line = user_frame(error)
        message = error.message if isinstance(error, HftaError) else str(error)
        reason = " ".join(f"{type(error).__name__}: {message}".split())
        detail = "".join(traceback.format_exception(error))
        where = ("", 0, "", "") if line is None else (line.file, line.line, line.function, line.code)
        yield ev.ForwardTried(time.time(), variant, reason, *where, detail)


def _try(trainer: Schedule, group: Group, place: int) -> Exception | None:
    """What one member raises; lack of memory is no fault of its code."""
    s, device = trainer.settings, trainer.settings.device
    try:
        with preserve_rng(), streams_apart(device, seeded_state(group.variants[place].seed, device)):
            module = trainer.module(group, group.arguments[place]).train()
            x, y = _batch(trainer, group.rows[place])
            loss = None if s.family.phases else s.family.loss_for(s.data)
            apart = FunctionStates(1, shows=False).of_one((loss, *kept_by(module)))
            with s.precision.products(), s.precision.autocast(), apart:
                if loss is None:
                    call_all(module, x, s.family.phases)
                else:
                    of_member(loss, module)(call_module(module, x), y)
    except Exception as error:
        return None if out_of_memory(error) else error
    return None


def _batch(trainer: Schedule, row: Mapping[str, Any]) -> tuple[Any, Any]:
    """A batch as the member trains on."""
    s, size = trainer.settings, int(row["batch_size"])
    x, y = trainer.data.sample_batch(size, s.device, s.dtype)
    prepare = Augmenting(trainer.data, s.device, s.dtype).of([row], [s.seed])
    own = False
    if prepare is not None:
        x, y, own = prepare.training(x, y, own, 0, 0)
    return Batch(x, y, size, own).first


def _kind(arguments: Mapping[str, Any]) -> str:
    return repr(sorted((name, value) for name, value in arguments.items() if not isinstance(value, float)))
