"""An array as it is built, from nothing or from its checkpoint, and what of it is kept."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

from hfta_nb.errors import HftaError, StoreError, out_of_memory
from hfta_nb.errors.caught_warnings import caught_warnings
from hfta_nb.train.group_progress import Progress
from hfta_nb.train.members import begun
from hfta_nb.train.pending_group import End
from hfta_nb.train.plan import Group
from hfta_nb.train.step import ArrayStep, editing, states
from hfta_nb.train.step.accumulation import updates
from hfta_nb.train.step.choices import by_step, lr_scheduler_of


def build(run: Progress) -> None:
    """Build the members of an array and their records, and take up what was left off."""
    s = run.settings
    group = run.group if run.resume is None else _with_rows(run, run.resume)
    with run.meter or nullcontext():
        step = run.trainer.build(group)
    if isinstance(step, ArrayStep):
        step.plan(s.compiling, float(s.epochs * (run.length or 0)), brief=s.slots is None)
    if run.trainer.prepare is not None:
        step = run.trainer.prepare(step)
    run.begin(step, group.ids)
    if run.resume is None:
        put_values(run)
    else:
        load(run, run.resume)


def load(run: Progress, state: Mapping[str, Any]) -> None:
    """Carry on from what `Progress.state` gave, with the members that are in it.

    Raises:
        StoreError: it is not of this array, or was changed.
    """
    try:
        _load(run, state)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, RuntimeError) as error:
        if out_of_memory(error) or isinstance(error, HftaError):
            raise
        words = f"the checkpoint does not fit array {run.group.index} ({type(error).__name__}: {error})"
        raise StoreError(words, remedy="has the family changed since?") from error


def _load(run: Progress, state: Mapping[str, Any]) -> None:
    held = list(state.get("held", state["ids"]))
    there = _with_rows(run, state)
    run.choose([there.ids.index(variant) for variant in held], state.get("rows", range(len(held))), held)
    run.step.load_state(_replanned(run, state, held))
    run.take_up(state, dict(zip(there.ids, there.rows, strict=True)))
    if "wide" in state and run.settings.deterministic:
        _widen(run, state["ids"], **state["wide"])
    put_values(run, int(state.get("epochs", run.settings.epochs)))


def _with_rows(run: Progress, state: Mapping[str, Any]) -> Group:
    """The array with the variants that it has no more, and that rows of nobody in this state are built as."""
    gone = dict.fromkeys(variant for variant in state.get("held", ()) if variant not in run.group.ids)
    return run.group.beside([run.trainer.find(variant) for variant in gone])


def _widen(run: Progress, ids: Sequence[int], rows: Sequence[int], members: int, block_size: int) -> None:
    """Put members back into the rows that they had in their array; the other rows are copies of the first member."""
    chosen = [rows.index(row) if row in rows else 0 for row in range(members)]
    run.choose(chosen, rows, [ids[place] for place in chosen])
    if isinstance(run.step, ArrayStep):
        run.step.array.block_size = block_size


def put_values(run: Progress, epochs: int = 0) -> None:
    """Give members of an array that was just built what was asked for while they waited.

    Args:
        epochs: that their lr schedules span, where they have no budget of their own; 0 for members that begin.
    """
    trainer = run.trainer
    replanned = trainer.requested.budgets.keys() if epochs != run.settings.epochs else set()
    for place, member in zip(run.rows, run.members.active, strict=True):
        if member.id in trainer.requested.changed or member.id in replanned:
            span = trainer.span(run.group, member.id)
            names = trainer.requested.changed.pop(member.id, ())
            editing.set_values(run.step, place, member.row, span, names)


def keep_end(run: Progress) -> None:
    """Keep how far an array is at its end, so that its members can train on; their best weights are kept elsewhere."""
    trainer, ids = run.trainer, list(run.members.ids)
    if trainer.ends is None or not ids:
        return
    state = run.state()
    index = run.group.index
    trainer.ended[index] = End(index, trainer.ends.write_end(index, state), run.epoch, ids, run.steps)


def end_of(run: Progress, done: Sequence[int]) -> Callable[[int], None]:
    """Take down how far members are that end before the others of their array, as if they had begun with it.

    Args:
        done: members that have begun at the same time.

    Returns:
        A function that keeps it, as an array of this number.
    """
    trainer = run.trainer
    if trainer.ends is None:
        return lambda index: None
    ends, first, state = trainer.ends, next(m for m in run.members.active if m.id == done[0]), run.state(done)
    records = {**state["members"], "begun": [[0, 0, 0, 0.0]] * len(done)}
    before = {"epoch": first.start, "steps": first.first_step, "pass": first.first_pass, "judged": first.start}
    state |= {"members": records, **{name: state[name] - done_before for name, done_before in before.items()}}

    def keep(index: int) -> None:
        name = ends.write_end(index, state)
        trainer.ended[index] = End(index, name, int(state["epoch"]), list(done), int(state["steps"]))

    return keep


def _replanned(run: Progress, state: Mapping[str, Any], held: Sequence[int]) -> Mapping[str, Any]:
    """The state of the step, with the lr schedules of a run of as many epochs as are wanted now.

    A schedule that spans the run (cosine without t_max, say) goes on as if so many had been planned from the start. Any
    other is left alone.

    Args:
        held: per row of the step, its variant.
    """
    epochs, before = run.settings.epochs, int(state.get("epochs", run.settings.epochs))
    phases = run.settings.family.phases
    rows = [phase.row(row) for row in run.group.rows for phase in phases] if phases else run.group.rows
    step: Mapping[str, Any] = state["step"]
    length, renewed = run.trainer.batches(run.group), state.get("renewed", ())
    if not renewed and all(
        lr_scheduler_of(row, before, length) == lr_scheduler_of(row, epochs, length) for row in rows
    ):
        return step
    with caught_warnings():  # torch's own: no optimizer has stepped
        warnings.simplefilter("ignore")
        _go_on(run, state, held, "steps" if by_step(rows[0]) else "epoch")
    fresh = run.step.state(states.MEMBERS in step) if isinstance(run.step, ArrayStep) else run.step.state()
    return states.planned_anew(step, fresh, bool({"optimizer", "decay_on"} & set(renewed)))


def _go_on(run: Progress, state: Mapping[str, Any], held: Sequence[int], unit: str) -> None:
    """Let lr schedules that are at their start go as far as the members have trained.

    Args:
        held: per row of the step, its variant.
        unit: what they count, "steps" or "epoch".
    """
    done, which = int(state[unit]), 1 if unit == "steps" else 0
    trained = {variant: done - first[which] for variant, first in begun(state["members"]).items()}
    counts = [trained.get(variant, 0) for variant in held]  # rows of nobody stay where they begin
    if unit == "steps":
        counts = [updates(run.group.rows[0], count, run.trainer.batches(run.group)) for count in counts]
    for number in range(max(counts)):
        due = [place for place, count in enumerate(counts) if count > number]
        if len(due) < len(counts) and isinstance(run.step, ArrayStep):
            run.step.step_lr_schedulers(due)
        else:
            run.step.step_lr_schedulers()
