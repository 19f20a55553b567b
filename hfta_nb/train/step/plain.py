"""The training step of one plain module, with torch's own optimizer and lr scheduler: what a member must equal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from hfta_nb.engine.array import MemberGenerators, PerMember
from hfta_nb.engine.array.access import (
    FunctionStates,
    Owned,
    alone,
    attribute_changes,
    call_module,
    check_leaves,
    flatten,
    kept_beside,
    kept_by,
    of_member,
    put_attributes,
    saved_functions,
    tensor_map,
    unflatten,
    unseen,
)
from hfta_nb.errors import StudyError
from hfta_nb.models import imbalance
from hfta_nb.models.losses import share_of_known
from hfta_nb.models.metrics import Metric
from hfta_nb.train.step.accumulation import check_accumulated, every_of, weight_of
from hfta_nb.train.step.choices import by_step, check_scaled
from hfta_nb.train.step.metric_calls import measuring
from hfta_nb.train.step.plain_updates import PlainUpdate, sparsify, updates_of
from hfta_nb.train.step.precision import Precision, whole
from hfta_nb.train.step.states import attributes_from_json, attributes_to_json, packed
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


class PlainStep:
    """One module trained as anyone would, behind the same face as `ArrayStep`; see `Step`.

    Args:
        module: the plain module.
        row: the values of all training axes.
        objective: its loss, or the phases of a step.
        metrics: as anywhere.
        epochs: of the whole run, for lr schedulers that need it.
        generators: its random streams (of one member), as `torch.manual_seed` and building the module left them.
        precision: that of forward, loss and backward; the module's dtype without.
        steps_per_epoch: for lr schedulers that go on with every step.

    Raises:
        FamilyError: the phases do not share out the parameters.
    """

    def __init__(
        self,
        module: nn.Module,
        row: Row,
        objective: Objective,
        metrics: Mapping[str, Metric],
        epochs: int,
        generators: MemberGenerators,
        precision: Precision | None = None,
        steps_per_epoch: int | None = None,
    ) -> None:
        self.module = module
        self.precision = precision or Precision()
        self.scaler = self.precision.plain_scaler()
        self.generators = generators
        self.settings = imbalance.settings_of([row], generators.device)
        self.phases = phases_of(objective)
        self.steps = 0
        self.last: Scores = {}  # of each phase, its latest loss
        self._metrics, self._objective = metrics, objective
        self._alone = metrics_alone(metrics, held_out=True)
        self._held_out = scorer(objective, metrics, held_out=True) if callable(objective) else None
        self._functions = FunctionStates(1, shows=False)
        check_scaled([row], self.scaler is not None)
        self.by_step = by_step(row)
        self.updates = updates_of(module, row, objective, metrics, epochs, steps_per_epoch)
        self._attributes = attribute_changes(module)
        check_accumulated(row, bool(self.phases))
        self.every, self.count = every_of(row), 0  # mini-batches of an optimizer step, and those since the last one
        self.shares: Tensor | None = None  # the sum of their shares of known targets, where the loss says them
        decay = row.get("ema_decay")
        mean: Any = get_ema_multi_avg_fn
        self.average = None if decay is None else AveragedModel(module, multi_avg_fn=mean(decay))

    def __len__(self) -> int:
        return 1

    def measuring(self, member: int, function: Any) -> AbstractContextManager[None]:
        return measuring(self._functions, self.generators, self._lasting(), member, function)

    def _lasting(self) -> tuple[Any, ...]:
        """What keeps the same in training and validation: the losses, and the code of the model."""
        return *losses_of(self._objective), *kept_by(self.module)

    def train(self, x: Any, y: Any, keep: ScoreSink | None = None) -> Scores:
        with unseen(self.module):
            self.module.train()
        scores: Scores = {}
        stepped = False
        for update in self.updates:
            phase = update.phase
            if phase is not None and not phase.due(self.steps):
                continue
            stepped = True
            if update.follows:
                if self.every == 1:
                    self._stepped(update)
                continue
            loss, found = self._evaluated(update, x, y)
            if phase is None:
                scores = {"loss": whole(loss.detach()), **found}
            else:
                self.last[phase.score] = whole(loss.detach())
        self.steps += 1
        if self.every == 1:
            self._updated(stepped)
        elif self.count == self.every:
            self._step_accumulated()
        named = _with_member_axis(summed(self.last) if self.phases else scores)
        if keep is None:
            return named
        keep.take(named, y)
        return {}

    def _updated(self, stepped: bool = True) -> None:
        """What follows an optimizer step."""
        if self.scaler is not None and stepped:
            self.scaler.update()
        if self.average is not None:
            self.average.update_parameters(self.module)
        if self.by_step:
            self.step_lr_schedulers()

    def _step_accumulated(self) -> None:
        if self.shares is not None:
            grads = [p.grad for p in self.module.parameters() if p.grad is not None]
            torch._foreach_mul_(grads, float(weight_of(self.shares, self.count)))
        for update in self.updates:
            self._stepped(update)
        self.count, self.shares = 0, None
        self._updated()

    def _evaluated(self, update: PlainUpdate, x: Any, y: Any) -> tuple[Tensor, Scores]:
        """An optimizer's step; the loss and the scores beside it, of the first evaluation where it makes several."""
        if self.every > 1:
            self.count += 1
            return self._differentiated(update, x, y, self.every, zero=self.count == 1)
        if not isinstance(update.optimizer, torch.optim.LBFGS):
            result = self._differentiated(update, x, y)
            self._stepped(update)
            return result
        first: list[tuple[Tensor, Scores]] = []

        def closure() -> float:
            loss, found = self._differentiated(update, x, y)
            self._clip(update)
            first.append((loss, found))
            return float(loss.detach())

        update.optimizer.step(closure)  # type: ignore[no-untyped-call]
        return first[0]

    def _differentiated(
        self, update: PlainUpdate, x: Any, y: Any, parts: int = 1, zero: bool = True
    ) -> tuple[Tensor, Scores]:
        for other in self.updates if zero else ():
            if other is update or (other.follows and other.phase is update.phase):
                other.optimizer.zero_grad()
        with self.generators.member(0), self.precision.products():
            with self.precision.autocast():
                given, target = _alone(x), _alone(y)
                if self.settings:
                    given = _alone(imbalance.weakened(given, target, self.settings))
                    target = _alone(imbalance.target_of(target, self.settings))
                loss, found = self._called(update.score, in_phase(given, update.phase), target)
            if not self.steps:  # the array would not train it either
                own = [*self.module.parameters(), *(v for v in flatten((x, y))[0] if isinstance(v, Tensor))]
                check_leaves([loss], Owned(own), (self.module, update.score))
            part = loss if parts == 1 else self._part(loss / parts, y)
            scaled = part if self.scaler is None else self.scaler.scale(part)
            scaled.backward()
        return loss, found

    def _part(self, loss: Tensor, y: Any) -> Tensor:
        """The loss of a mini-batch among several of a step, by its share of known targets; see `accumulation`."""
        y = _alone(y)
        if self.settings:
            share: Tensor | None = imbalance.share_of_weights(y, self.settings)[0]
        else:
            share = share_of_known(self._objective, y)
        if share is None:
            return loss
        self.shares = share if self.shares is None else self.shares + share
        return loss * share.to(loss.dtype)

    def _called(self, function: Callable[[Any, Any], Any], x: Any, y: Any, module: nn.Module | None = None) -> Any:
        """What a function gives of the module's output; what it keeps between calls is this member's."""
        with self._functions.of_one((function, *kept_by(self.module))):
            own = self.module if module is None else module
            given, output = of_member(function, own), call_module(own, x)
            with unseen(own), alone(own):
                return given(output, y)

    def watch(self) -> None:
        """What a step or a validation does beside what a loop of one's own does, without its computations."""
        for update in (u for u in self.updates if not u.follows):
            kept = self._functions.of_one((update.score, *kept_by(self.module)))
            with kept, unseen(self.module), alone(self.module):
                pass

    def _clip(self, update: PlainUpdate) -> None:
        if update.limit is not None:
            sharing = [u for u in self.updates if u is update or (u.follows and u.phase is update.phase)]
            trained = [p for u in sharing for group in u.optimizer.param_groups for p in group["params"]]
            nn.utils.clip_grad_norm_(trained, update.limit)

    def _stepped(self, update: PlainUpdate) -> None:
        """Clip, and step the optimizer."""
        if update.limit is not None and self.scaler is not None:
            self.scaler.unscale_(update.optimizer)
        self._clip(update)
        if isinstance(update.optimizer, torch.optim.SparseAdam):
            sparsify(update.optimizer)
        if self.scaler is None:
            update.optimizer.step()
        else:
            self.scaler.step(update.optimizer)

    def end_epoch(self) -> None:
        if self.count:
            self._step_accumulated()
        if not self.by_step:
            self.step_lr_schedulers()

    def end_validation(self, values: Sequence[float]) -> None:
        for update in self.updates:
            if isinstance(update.lr_scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
                update.lr_scheduler.step(values[0])

    def step_lr_schedulers(self) -> None:
        for update in self.updates:
            if not isinstance(update.lr_scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau | None):
                update.lr_scheduler.step()

    @torch.no_grad()
    def evaluate(self, x: Any, y: Any) -> Scores:
        module = self.module if self.average is None else self.average.module
        with unseen(module):
            module.eval()
        x, y = _alone(x), _alone(y)
        apart = self._functions.validating(self._lasting())
        with self.generators.member(0), self.precision.products(), self.precision.autocast(), apart:
            if self._held_out is not None:
                loss, scores = self._called(self._held_out, x, y, module)
                return _with_member_axis({"loss": whole(loss), **scores})
            found: Scores = {}
            leading = [update for update in self.updates if not update.follows]
            for update, phase in zip(leading, self.phases, strict=True):
                found[phase.score] = whole(self._called(update.score, in_phase(x, phase), y, module)[0])
            metrics = self._called(self._alone, x, y, module) if self._metrics else {}
        return _with_member_axis({**summed(found), **metrics})

    def scales(self) -> Tensor | None:
        return None if self.scaler is None else torch.tensor([self.scaler.get_scale()], device=self.generators.device)

    def select(self, indices: Sequence[int]) -> PlainStep:
        if list(indices) != [0]:
            raise StudyError("a plain step has one member", got=list(indices))
        return self

    def weights(self) -> dict[str, Tensor]:
        module = self.module if self.average is None else self.average.module
        beside = kept_beside(module)
        return {k: packed([v], k) if k in beside else v.detach().unsqueeze(0) for k, v in module.state_dict().items()}

    def unpad(self, index: int) -> Callable[[Mapping[str, Tensor]], dict[str, Tensor]]:
        return dict

    def state(self) -> dict[str, Any]:
        tensors = dict(self.module.named_parameters()) | dict(self.module.named_buffers())
        return {
            "module": {k: v.detach() for k, v in tensors.items()},
            "attributes": attributes_to_json(self._attributes()),
            "generators": self.generators.state_dict(),
            "optimizers": [_with_word_keys(update.optimizer.state_dict()) for update in self.updates],
            "lr_schedulers": [u.lr_scheduler.state_dict() if u.lr_scheduler else None for u in self.updates],
            "steps": self.steps,
            "functions": saved_functions.state_of(
                self._functions, (*called(self._objective, self._metrics), *kept_by(self.module))
            ),
            "count": self.count,
            "shares": self.shares,
            "grads": {k: p.grad for k, p in self.module.named_parameters() if self.count and p.grad is not None},
            "average": None if self.average is None else self.average.state_dict(),
            "last": dict(self.last),
            "scaler": None if self.scaler is None else self.scaler.state_dict(),
        }

    @torch.no_grad()
    def load_state(self, state: Mapping[str, Any]) -> None:
        tensors = dict(self.module.named_parameters()) | dict(self.module.named_buffers())
        for name, value in state["module"].items():
            tensors[name].copy_(value)
        put_attributes(self.module, attributes_from_json(state.get("attributes", ())))
        self.generators.load_state_dict(state["generators"])
        kept = state.get("functions", {})
        saved_functions.load_state(
            self._functions, (*called(self._objective, self._metrics), *kept_by(self.module)), kept
        )
        for update, optimizer, schedule in zip(self.updates, state["optimizers"], state["lr_schedulers"], strict=True):
            saved = {int(k): v for k, v in optimizer["state"].items()}
            update.optimizer.load_state_dict({"state": saved, "param_groups": optimizer["groups"]})
            if update.lr_scheduler is not None:
                update.lr_scheduler.load_state_dict(schedule)
        if self.scaler is not None:
            self.scaler.load_state_dict(state["scaler"])
        self.steps, self.count = int(state["steps"]), int(state.get("count", 0))
        shares = state.get("shares")
        self.shares = None if shares is None else shares.to(self.generators.device, copy=True)
        for name, p in self.module.named_parameters():
            p.grad = state["grads"][name].to(p.device, copy=True) if name in state.get("grads", {}) else None
        if self.average is not None and state.get("average") is not None:
            self.average.load_state_dict(state["average"])
        self.last = {k: v.to(self.generators.device) for k, v in state["last"].items()}


def _with_word_keys(optimizer: Mapping[str, Any]) -> dict[str, Any]:
    """An optimizer's state with words for keys: JSON has no keys that are numbers."""
    return {"state": {str(k): v for k, v in optimizer["state"].items()}, "groups": optimizer["param_groups"]}


def _alone(tree: Any) -> Any:
    leaves, rebuild = flatten(tree)
    return unflatten(rebuild, [v.value[0] if isinstance(v, PerMember) else v for v in leaves])


def _with_member_axis(scores: Scores) -> Scores:
    found: Scores = tensor_map(lambda v: v.unsqueeze(0), scores)
    return found
