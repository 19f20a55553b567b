"""Compares members with plain modules that are trained alone."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from hfta_nb.data import AnyData, Data, Stream
from hfta_nb.engine.comparison import nudge
from hfta_nb.engine.distances import measure
from hfta_nb.errors import DataError, StudyError, out_of_memory
from hfta_nb.models.recipes.preserve_rng import apart as set_apart
from hfta_nb.records import events as ev
from hfta_nb.records.events import Event
from hfta_nb.records.history import Member
from hfta_nb.search.grid import Grid, Variant
from hfta_nb.study import adding, noting
from hfta_nb.study.arguments import positive
from hfta_nb.study.planning import settings_of
from hfta_nb.study.study_state import StudyState
from hfta_nb.study.users_loop import Curves, UsersLoop
from hfta_nb.train import Settings
from hfta_nb.train.plan import Group
from hfta_nb.train.step.choices import lr_scheduler_of

TOLERANCES = {"float64": 1e-8, "float32": 1e-5} | dict.fromkeys(("tf32", "bf16", "fp16", "bfloat16", "float16"), 1e-3)
"""Largest difference of two loss curves that counts as equal, whatever the model; by precision, or by dtype in fp32."""

NOISE_RUNS, NOISE_FACTOR = 2, 10
"""Training amplifies rounding, behind batch norm and Adam by orders of magnitude. Where two curves are further apart
than the tolerance, the member is trained alone again, twice, with every weight changed in its last bit (that of the
precision) after every step: up to ten times the difference that this alone makes is rounding too. Where that is more
than the loss itself, curves within it say nothing: any other training would be within it as well."""

EPS = {"tf32": 2.0**-10, "bf16": torch.finfo(torch.bfloat16).eps, "fp16": torch.finfo(torch.float16).eps}
"""How far apart neighbouring numbers are, relative to them, where it is not as the dtype has it."""

COMPARED_EPOCHS = 5

METRICS = {"float64": 1e-6, "float32": 0.02}
"""The largest difference of a metric that counts as equal, times its size where that is above 1. Objects of
torchmetrics sum up in float32, and in float32 rounding turns some predictions."""


def check_member(study: StudyState, variant: Variant, epochs: int | None) -> Iterator[Event]:
    """Retrain a variant alone and compare; see `Study.check_events`."""
    if study.leader is not None:
        raise StudyError("its member was pulled toward others, and has no training alone to compare with",
                         where=variant.label, remedy="check a study without population=hfta.Leader(...)")  # fmt: skip
    member = study.history.members.get(variant.id)
    done = unchanged(study, member, variant) if member else 0
    name = str(study.dtype).removeprefix("torch.") if study.precision == "fp32" else study.precision
    most = done if name == "float64" else min(done, COMPARED_EPOCHS)
    count = most if epochs is None else min(positive("epochs", epochs), done)
    if member is None or not count:
        raise StudyError("has no epoch to compare yet", where=variant.label, remedy="run the study first")
    noting.warn_of_other_choices(study)
    stretch = first_stretch(study, member, variant)
    count = min(count, stretch or count)
    alone = _alone(*planned(study, variant))
    recorded = _up_to(member, study.metrics, count)
    longest = max(count, member.planned if stretch else study.epochs)
    settings = replace(settings_of(study), epochs=longest, data=_as_given(study.data))
    twin, dtype = yield from _train_alone(study, settings, alone, count)
    if study.precision == "fp32":
        name = str(dtype).removeprefix("torch.")
    differences = _largest(recorded, twin)
    tolerance, noise, last_bit = TOLERANCES[name], dict[str, float](), EPS.get(study.precision, torch.finfo(dtype).eps)
    if _loss(differences) > tolerance or _metrics_off(differences, twin, name, noise):
        for seed in range(NOISE_RUNS):
            generator = torch.Generator().manual_seed(seed)
            nudging = functools.partial(nudge, rounding=lambda _: last_bit, generator=generator)
            nudged, _ = yield from _train_alone(study, settings, alone, count, nudging)
            apart = _largest(twin, nudged)
            noise = {metric: max(noise.get(metric, 0.0), value) for metric, value in apart.items()}
            tolerance = max(tolerance, NOISE_FACTOR * _loss(apart))
    within = _loss(differences) <= tolerance and not _metrics_off(differences, twin, name, noise)
    decided = not within or tolerance <= max(TOLERANCES[name], _size(twin))
    yield ev.MemberChecked(time.time(), variant.id, count, differences, tolerance, within and decided, decided)


def _as_given(data: AnyData) -> AnyData:
    """The data as in a loop of one's own: a dataset that was read into memory is read batch by batch.

    Raises:
        StudyError: samples can't be read again alike.
    """
    if isinstance(data, Data):
        found: Stream | None = data.as_given()
        if found is None:
            return data
        return replace(found.dropping_last() if data.drop_last else found, standard=data.standard, kept=data)
    if data.held.entropy:
        what = f"the data is not the same when it is read again: {data.held.entropy}"
        remedy = "draw from a generator that is seeded, such as torch's"
        raise StudyError(what, where=data.name, remedy=remedy)
    return data


def unchanged(study: StudyState, member: Member, variant: Variant) -> int:
    """Epochs of a member before it was changed while it trained; all where it was not.

    Raises:
        StudyError: it has none, as it was changed in its first epoch, or began with the weights of another member.
    """
    edits = [edit for edit in study.history.edits if edit.variant == variant.id and _matters(study, variant, edit)]
    if any(edit.how == "cloned" and edit.warm for edit in edits):
        remedy = "check its source, or clone it cold: control.clone(..., warm=False)"
        raise StudyError("began with the weights of its source", where=variant.label, remedy=remedy)
    first = next((edit for edit in edits if edit.how != "cloned"), None)
    if first is None:
        return member.epoch
    if not first.epoch:
        what = "was changed in its first epoch, and has none to compare"
        raise StudyError(what, where=variant.label, remedy="study.lineage() says how")
    return min(member.epoch, first.epoch)


def _matters(study: StudyState, variant: Variant, edit: ev.MemberEdited) -> bool:
    """Whether a member that was changed in this way trains otherwise than it was planned.

    One that trains longer does where its lr schedule spans its training; that all do is known to `first_stretch`.
    """
    if edit.how != "extended":
        return True
    budget = edit.changes.get("epochs")
    if not isinstance(budget, int) or budget <= study.epochs:
        return False
    planned, longer = _spans(study, variant, (study.epochs, budget))
    return planned != longer


def planned(study: StudyState, variant: Variant) -> tuple[Group, int]:
    """A variant's group and its place there, as it was planned, before it was changed."""
    if not any(edit.variant == variant.id and edit.how in ("set", "copied") for edit in study.history.edits):
        return next((g, g.variants.index(v)) for g in study.plan_groups for v in g.variants if v.id == variant.id)
    [group] = adding.planned(study, Grid.of([variant.config]))
    return replace(group, variants=(variant,)), 0


def first_stretch(study: StudyState, member: Member, variant: Variant) -> int:
    """The epoch after which a longer run has changed a member's lr schedule; 0 if none has."""
    before, now = _spans(study, variant, (member.planned or study.epochs, study.epochs))
    return 0 if before == now and study.validate_every == 1 else member.replanned


def _spans(study: StudyState, variant: Variant, epochs: Sequence[int]) -> list[list[Any]]:
    """A member's lr schedules, were it to train for so many epochs."""
    group, place = planned(study, variant)
    row, phases = group.rows[place], study.family.phases
    rows = [phase.row(row) for phase in phases] if phases else [row]
    length = study.steps_per_epoch or study.data.batches_for(row)
    return [[lr_scheduler_of(one, count, length) for one in rows] for count in epochs]


def _size(curves: Curves) -> float:
    """The size of the losses: the smallest mean absolute value of a loss curve; infinite for members that were lost."""
    losses = [values for name, values in curves.items() if name.endswith("_loss")]
    means = [sum(map(abs, values)) / len(values) for values in losses]
    return min((mean for mean in means if math.isfinite(mean)), default=math.inf)


def _train_alone(
    study: StudyState,
    settings: Settings,
    group: Group,
    epochs: int,
    after_step: Callable[[Iterable[Tensor]], None] = lambda weights: None,
) -> Generator[Event, None, tuple[Curves, torch.dtype]]:
    """The curves of a group of one, trained as a plain module, and the dtype in which it was; see `UsersLoop`."""
    # Lengths of lr schedules are those of the whole run, so the twin is stopped after some epochs instead.
    try:
        loop = UsersLoop(settings, study.handed, group, after_step)
        yield from set_apart(loop.epochs(epochs), settings.repeats)
    except Exception as error:
        if out_of_memory(error) or isinstance(error, DataError):
            raise
        what = f"failed when it was trained alone ({type(error).__name__}: {error})"
        raise StudyError(what, where=group.variants[0].label) from error
    return {name: loop.curves[name] for name in study.metrics if name in loop.curves}, loop.dtype


def _up_to(member: Member, metrics: Sequence[str], epochs: int) -> Curves:
    """The member's curves in the first epochs; not every epoch need have been validated."""
    known = {name: member.curves[name] for name in metrics if name in member.curves}
    cut = {name: sum(epoch <= epochs for epoch in curve.epochs) for name, curve in known.items()}
    return {name: curve.values[: cut[name]] for name, curve in known.items() if cut[name]}


def _largest(a: Curves, b: Curves) -> dict[str, float]:
    """Per metric, the largest difference of two curves; infinite where one of them was lost and the other not."""
    columns = [torch.tensor([*zip(values, b[name], strict=True)], dtype=torch.float64) for name, values in a.items()]
    return {name: one.off[0] for name, one in zip(a, measure([(c[:, 0], c[:, 1]) for c in columns]), strict=True)}


def _metrics_off(
    differences: Mapping[str, float], twin: Curves, precision: str, noise: Mapping[str, float]
) -> list[str]:
    """The curves beside the losses that differ by more than rounding.

    Args:
        differences: of all curves.
        twin: the curves of the member alone.
        precision: of the study.
        noise: what changed last bits make of each.
    """
    off = []
    for name, difference in differences.items():
        if name.endswith(("_loss", "_loss_scale")):
            continue
        size = max([1.0, *(abs(value) for value in twin[name] if math.isfinite(value))])
        allowed = METRICS.get(precision, METRICS["float32"]) * size
        if not difference <= max(allowed, NOISE_FACTOR * noise.get(name, 0.0)):
            off.append(name)
    return off


def _loss(differences: dict[str, float]) -> float:
    """The larger of the losses' differences; infinite where one curve was lost and the other not."""
    return max(d for m, d in differences.items() if m.endswith("_loss") or d == math.inf)


def row_of(found: ev.MemberChecked) -> dict[str, Any]:
    """What was found, as a row of a table."""
    ends = {"tolerance": found.tolerance, "equal": found.equal, "verdict": found.verdict}
    return {"member": found.variant, "epochs": found.epochs, **found.differences, **ends}


def _alone(group: Group, index: int) -> Group:
    """A group of one of the group's variants, to be trained as a plain module."""
    return Group(
        0,
        (group.variants[index],),
        (group.rows[index],),
        (group.arguments[index],),
        "",
        group.parameters,
        group.memory_bytes,
        serial=True,
    )
