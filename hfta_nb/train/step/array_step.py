"""The training step of an array."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor

from hfta_nb import optim
from hfta_nb.engine.array import FusedArray, per_member
from hfta_nb.engine.array.access import (
    Inputs,
    Program,
    extra_states,
    foresee,
    functions_of,
    kept_by,
    saved_functions,
    snapshot,
)
from hfta_nb.engine.array.inspect import program_of
from hfta_nb.engine.array.saving import tensors_of
from hfta_nb.engine.array.schedule_tuner import ended
from hfta_nb.errors import out_of_memory
from hfta_nb.models.metrics import Metric
from hfta_nb.optim.lr_scheduler import ReduceLROnPlateau
from hfta_nb.train.step import states
from hfta_nb.train.step.choices import by_step, check_scaled
from hfta_nb.train.step.devices import SeveralDevices
from hfta_nb.train.step.extras import Extras
from hfta_nb.train.step.graph import Epilogue, StepGraph, graph_of
from hfta_nb.train.step.graph_fast_path import FastPath
from hfta_nb.train.step.metric_calls import measuring
from hfta_nb.train.step.precision import Precision, whole
from hfta_nb.train.step.rollback import OptimizerMemoryError
from hfta_nb.train.step.step_protocol import (
    Objective,
    Row,
    Scores,
    ScoreSink,
    called,
    in_phase,
    losses_of,
    metrics_alone,
    phases_of,
    scorer,
    summed,
)
from hfta_nb.train.step.tuned_step import TunedStep
from hfta_nb.train.step.update import Update, evaluated, updates_of


class ArrayStep(TunedStep):
    """Forward, loss, backward and optimizer of all members at once; see `Step`.

    Args:
        array: the members.
        rows: per member, the values of all training axes.
        objective: the loss of one member, or the phases of a step.
        metrics: of one member.
        epochs: of the whole run, for lr schedulers that need it.
        precision: that of forward, loss and backward; the array's dtype without.
        steps_per_epoch: for lr schedulers that go on with every step.

    Raises:
        FamilyError: the phases do not share out the parameters.
    """

    def __init__(
        self,
        array: FusedArray,
        rows: Sequence[Row],
        objective: Objective,
        metrics: Mapping[str, Metric],
        epochs: int,
        precision: Precision | None = None,
        steps_per_epoch: int | None = None,
    ) -> None:
        self.array = array
        array.self_tuning = False  # a study says when, by whole steps
        array.axes_known = True  # which axes batches have is known
        functions_of(array).shows = False  # the loss is as the user has given it
        self.precision = precision or Precision()
        self.scaler = self.precision.array_scaler(array)
        self.phases = phases_of(objective)
        self.steps, self.planned, self.brief = 0, 0.0, False
        self.whole = True  # whether what failed has left all as it was before
        self.done = 0  # updates of the step under way: one that ran out of memory goes on with the next
        self.last: Scores = {}  # of each phase, its latest loss
        self.due: Sequence[int] | None = None  # members whose lr schedules go on; all without
        self._metrics, self.alone = metrics, metrics_alone(metrics, held_out=True)
        self.held_out = scorer(objective, metrics, held_out=True) if callable(objective) else None
        self.graph = graph_of(array, self.tensors)
        self.fast_path: FastPath | None = None
        self.tuning = None
        self.devices: SeveralDevices | None = None
        self.definition = list(rows), objective, metrics, epochs, steps_per_epoch
        self.updates = updates_of(array, rows, objective, metrics, epochs, steps_per_epoch)
        check_scaled(rows, self.scaler is not None)
        self.by_step = by_step(rows[0])
        self.extras = Extras.of(array, rows, self.phases)

    def __len__(self) -> int:
        return len(self.array)

    def measuring(self, member: int, function: Any) -> AbstractContextManager[None]:
        return measuring(functions_of(self.array), self.array.generators, self._lasting(), member, function)

    def _lasting(self) -> tuple[Any, ...]:
        """What keeps the same in training and validation: the losses, and the code of the models."""
        return *losses_of(self.definition[1]), *kept_by(self.array)

    def _called(self) -> tuple[Any, ...]:
        return *called(*self.definition[1:3]), *kept_by(self.array)

    def train(self, x: Any, y: Any, keep: ScoreSink | None = None) -> Scores:
        if not self.array.training:
            self.array.train()
        ended(self.choose_schedule(x, y))
        graph = self.graph if self.extras.accumulation is None else None  # else steps are not alike
        scores = self._made(x, y, keep) if graph is None else self._in_graph(graph, x, y, keep)
        self.steps, self.done = self.steps + 1, 0
        if self.extras.accumulation is None:
            self._updated()
        return scores

    def _updated(self) -> None:
        """What follows an optimizer step."""
        self.extras.updated()
        if self.by_step:
            self.step_lr_schedulers(self.due)

    def _made(self, x: Any, y: Any, keep: ScoreSink | None) -> Scores:
        """A step, and its scores where they are wanted."""
        scores = self._advance(x, y)
        if keep is None:
            return scores
        self.hand(keep, scores, y)
        return {}

    def hand(self, keep: ScoreSink, scores: Scores, y: Any) -> None:
        """Let the scores of a step that is done be kept."""
        self.whole = False  # the optimizers have stepped
        keep.take(scores, y)
        self.whole = True

    def _advance(self, x: Any, y: Any) -> Scores:
        """One step: the scores; of phases that are not due, the losses of the last time."""
        if self.extras.accumulation is not None:
            full, found = self.extras.accumulate(self.array, self.updates, lambda u: self._differentiated(u, x, y), y)
            if full:
                self._step_accumulated()
            return found
        scores: Scores = {}
        stepped = False
        for number, update in enumerate(self.updates):
            phase = update.phase
            if number < self.done or (phase is not None and not phase.due(self.steps)):
                continue
            stepped = True
            if update.follows:
                self._follow(update)
                self.done = number + 1
                continue
            for other in self.updates:
                if other is update or (other.follows and other.phase is phase):
                    other.optimizer.zero_grad()
            restore = snapshot(self.array)
            evaluates = isinstance(update.optimizer, optim.LBFGS)
            losses, found = (None, {}) if evaluates else self._differentiated(update, x, y)
            try:
                if losses is None:
                    losses, found = evaluated(update, functools.partial(self._differentiated, update, x, y))
                else:
                    update.step(self.scaler, restore)
            except Exception as error:  # where a later step of an optimizer fails, some of it may be done
                self.whole = isinstance(error, OptimizerMemoryError) or not update.settled
                raise
            if phase is None:
                scores = {"loss": losses, **found}
            else:
                self._remember(phase.score, losses)
            self.done = number + 1
        if self.scaler is not None and stepped:
            self.scaler.update()
        return {k: v.clone() for k, v in summed(self.last).items()} if self.phases else scores

    def _step_accumulated(self) -> None:
        self.whole = False  # from here on there is no way back
        self.extras.step(self.array, self.updates, self.scaler)
        self.whole = True
        self._updated()

    def _differentiated(self, update: Update, x: Any, y: Any) -> Any:
        """The losses of an update, and the scores beside them; the gradients are in place."""
        (given, target), scale = update.batch(x, y), self.scales()
        # One per update: autocast keeps the weights that it has cast for as long as it lasts.
        with self.precision.products(), self.precision.autocast():
            array = self.devices or self.array
            losses, found = array.backward(update.score, given, target, has_aux=True, scale=scale, only=update.only)
        return whole(losses), found

    def _follow(self, update: Update) -> None:
        """An update by the gradients of the one before it."""
        self.whole = False  # the one before has stepped
        update.step(self.scaler, lambda: None)
        self.whole = True

    def _remember(self, name: str, losses: Tensor) -> None:
        """Keep the latest loss of a phase, in memory that a captured step finds again."""
        room = self.last.get(name)
        if room is None:
            self.last[name] = losses.clone()
        else:
            room.copy_(losses)

    def _in_graph(self, graph: StepGraph, x: Any, y: Any, keep: ScoreSink | None) -> Scores:
        """A step that is captured where it can be."""
        again = None if self.fast_path is None else self.fast_path.run(self, x, y, keep)
        if again is not None:
            return again
        inputs = Inputs.of((x, y), len(self))
        due = self._due()
        shapes = [(v.shape, v.stride(), v.dtype) if isinstance(v, Tensor) else v for v in inputs.leaves]
        kind = repr((shapes, inputs.per_member, [u.phase and u.phase.name for u in due], self.done))
        done, progress = self.done, None if self.scaler is None else self.scaler.progress()

        def given(leaves: list[Any]) -> tuple[Any, Any]:
            marked = [per_member(v) if m else v for v, m in zip(leaves, inputs.per_member, strict=True)]
            pair: tuple[Any, Any] = inputs.structure(marked)
            return pair

        def action(leaves: list[Any]) -> Scores:
            return self._advance(*given(leaves))

        def rewind() -> None:
            self.done, self.whole = done, True
            if self.scaler is not None and progress is not None:
                self.scaler.set_progress(progress)

        after = None if keep is None else Epilogue(lambda v, scores: self.hand(keep, scores, given(v)[1]), keep)
        guards = self._guards(due, x, y)
        programs = [guard for guard in guards or () if isinstance(guard, Program)]
        draws, half = any(p.draws for p in programs), next((p.half for p in programs if p.half), None)
        scores = graph.run(kind, inputs.leaves, guards, action, rewind, after, draws, half)
        notes = graph.notes()
        if notes != self.array.step_notes:
            self.array.step_notes = notes
        self.fast_path = None if done else FastPath.of(self, graph, kind, x, y, keep)
        return scores

    def _guards(self, due: Sequence[Update], x: Any, y: Any) -> list[Any] | None:
        """What a captured step would depend on; None where this one is not certain to be the same again."""
        guards: list[Any] = [*self.last.values(), *(self.scaler.tensors() if self.scaler is not None else ())]
        for update in due:
            (given, target), scale = update.batch(x, y), self.scales()
            with self.precision.products(), self.precision.autocast():
                program = program_of(self.array, update.score, given, target, scale=scale, only=update.only)
            bound = update.optimizer.ready()
            if program is None or bound is None:
                return None
            guards += [program, program.decision.compiled, *bound]
        return guards

    def tensors(self) -> dict[str, Tensor]:
        """What a step changes, by name, but for the random streams."""
        array, scaler = self.array, self.scaler
        found = {f"{kind} {span.name}": arena.view(span.name)
                 for kind, arenas in (("parameter", array.arenas), ("buffer", array.buffer_arenas))
                 for arena in arenas for span in arena.spans}  # fmt: skip
        found |= {f"latest {name}": value for name, value in self.last.items()}
        found |= {f"scale {i}": value for i, value in enumerate(() if scaler is None else scaler.tensors())}
        for i, update in enumerate(self.updates):
            found |= {f"optimizer {i}, {name}": value for name, value in update.optimizer.tensors().items()}
        return found

    def plan(self, compiling: str, steps: float, brief: bool) -> None:
        """Say how many steps there will be in all, 0 if unknown, whether the array ends with them, and whether
        they may be compiled; see `FusedArray.compiling`."""
        self.array.compiling, self.planned, self.brief = compiling, steps, brief
        self._foresee()

    def _foresee(self) -> None:
        foresee(self.array, self.planned, self.steps, self.brief)

    def end_epoch(self) -> None:
        if self.extras.pending:
            self._step_accumulated()
        if not self.by_step:
            self.step_lr_schedulers(self.due)

    def end_validation(self, values: Sequence[float], due: Sequence[int] | None = None) -> None:
        """See `Step`; of the members at these places alone, where some are named."""
        for update in self.updates:
            if isinstance(update.lr_scheduler, ReduceLROnPlateau):
                update.lr_scheduler.step_some(range(len(self)) if due is None else due, list(values))

    def step_lr_schedulers(self, due: Sequence[int] | None = None) -> None:
        """See `Step`; of the members at these places alone, where some are named."""
        for update in self.updates:
            if isinstance(update.lr_scheduler, ReduceLROnPlateau | None):
                continue
            if due is None:
                update.lr_scheduler.step()
            else:
                update.lr_scheduler.step_some(due)

    def evaluate(self, x: Any, y: Any) -> Scores:
        self.array.eval()
        with self.extras.validating():
            try:
                return self._evaluated(x, y)
            except Exception as error:
                if not out_of_memory(error) or self.graph is None or not self.graph.release():
                    raise
            return self._evaluated(x, y)

    def _evaluated(self, x: Any, y: Any) -> Scores:
        array, apart = self.devices or self.array, functions_of(self.array).validating(self._lasting())
        with self.precision.products(), self.precision.autocast(), apart:
            if self.held_out is not None:
                losses, scores = array.evaluate(self.held_out, x, y)
                return {"loss": whole(losses), **scores}
            found: Scores = {}
            leading = [update for update in self.updates if not update.follows]
            for update, phase in zip(leading, self.phases, strict=True):
                found[phase.score] = whole(array.evaluate(update.score, in_phase(x, phase), y)[0])
            metrics = array.evaluate(self.alone, x, y) if self._metrics else {}
        return {**summed(found), **metrics}

    def scales(self) -> Tensor | None:
        """What each member's loss is multiplied by, ``[M]``; None for nothing."""
        return None if self.scaler is None else self.scaler.scales

    def spread(self, devices: SeveralDevices) -> None:
        """Compute on several devices from now on."""
        self.devices, self.graph, self.fast_path, self.tuning = devices, None, None, None

    def select(self, indices: Sequence[int]) -> ArrayStep:
        other = object.__new__(ArrayStep)
        other.__dict__.update(self.__dict__)
        other.array, other.due, other.tuning = self.array.select(indices), None, None
        other.scaler = None if self.scaler is None else self.scaler.select(indices, other.array)
        other._foresee()
        other.devices = None if self.devices is None else self.devices.of(other.array)
        other.graph = graph_of(other.array, other.tensors) if self.devices is None else None
        other.extras = self.extras.select(indices, other.array)
        other.updates = [update.select(indices, other.array) for update in self.updates]
        other.last = {name: losses[list(indices)] for name, losses in self.last.items()}
        return other

    def weights(self) -> dict[str, Tensor]:
        beside = {key: states.packed(values, key) for key, values in extra_states(self.array).items()}
        return self.extras.weights(tensors_of(self.array)) | beside

    def unpad(self, index: int) -> Callable[[Mapping[str, Tensor]], dict[str, Tensor]]:
        return self.array.unpad(index)

    def count_as(self, other: ArrayStep) -> None:
        """Go on to count steps as this one does."""
        self.steps, self.planned, self.brief = other.steps, other.planned, other.brief

    def state(self, by_member: bool | None = None) -> dict[str, Any]:
        return {
            **states.state_of(self.array, self.updates, by_member),
            "generators": self.array.generators.state_dict(),
            "lr_schedulers": [u.lr_scheduler.state_dict() if u.lr_scheduler else None for u in self.updates],
            "steps": self.steps,
            "done": self.done,
            "functions": saved_functions.state_of(functions_of(self.array), self._called()),
            "last": dict(self.last),
            "scaler": None if self.scaler is None else self.scaler.state_dict(),
            **self.extras.state(self.array),
            "block_size": self.array.block_size,
            "threads": self.array.threads,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        states.load(self.array, self.updates, state)
        self.array.generators.load_state_dict(state["generators"])
        kept = state.get("functions", {})
        saved_functions.load_state(functions_of(self.array), self._called(), kept)
        for update, schedule in zip(self.updates, state["lr_schedulers"], strict=True):
            if update.lr_scheduler is not None:
                update.lr_scheduler.load_state_dict(schedule)
        if self.scaler is not None:
            self.scaler.load_state_dict(state["scaler"])
        device = self.array.generators.device
        self.extras.load_state(state, self.array)
        self.steps, self.last = int(state["steps"]), {k: v.to(device, copy=True) for k, v in state["last"].items()}
        self._foresee()
        self.done = int(state.get("done", 0))
        self.tuning = None
        self.array.block_size = min(int(state["block_size"]), len(self))
        self.array.threads = str(state.get("threads", "kernels"))
