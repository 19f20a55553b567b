"""The text of a script's training loop."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hfta_nb.data import Data, leaves
from hfta_nb.study.scripts import optimizers
from hfta_nb.study.scripts.optimizers import Update
from hfta_nb.train import Settings
from hfta_nb.train.step.accumulation import every_of

_OPTIMIZERS = {f"{part}{name}" for part in ("", "other_") for name in ("optimizer", "schedule", "rising", "falling")}
_SAMPLES = {"data", "x", "y", "held_x", "held_y", "samples", "inputs", "target", "rows", "generator", "prepared"}
_COUNTS = {"epoch", "step", "steps", "number", "taken", "seen", "sums", "values", "latest", "found", "name", "loss"}
LOCALS = (
    _OPTIMIZERS | _SAMPLES | _COUNTS | {"model", "average", "parameters", "batches", "inputs_of", "validated", "output"}
)
"""Names of the loop's own variables, which no function that it calls may have."""


@dataclass(frozen=True)
class Loop:
    """What a member's loop consists of.

    Attributes:
        settings: of the study.
        data: of the study.
        row: the values of the member's training axes.
        seed: of the member.
        epochs: that it trained.
        model: the expression that builds its module.
        losses: for each update, the name of its loss.
        updates: of a step.
        accuracy: the expression of right predictions; None where they are not counted.
        metrics: whether the module of a family with phases is called once more in validation, for metrics.
    """

    settings: Settings
    data: Data
    row: Mapping[str, Any]
    seed: int
    epochs: int
    model: str
    losses: list[str]
    updates: list[Update]
    accuracy: str | None
    metrics: bool

    @property
    def text(self) -> str:
        """The definition of ``train_member``."""
        body = "\n".join([*self._beginning(), *self._order(), *self._validation(), *self._epochs()])
        return f"def train_member():\n{textwrap.indent(body, '    ')}\n"

    @property
    def _phased(self) -> bool:
        return self.updates[0].phase is not None

    def _beginning(self) -> list[str]:
        made = {name: text for u in self.updates for one in (u.optimizers, u.schedulers) for name, text in one.items()}
        listed = any(re.search(r"(?<!\.)parameters\b", text) for text in made.values())
        average = optimizers.averaged(self.row)
        x = _tree("x", self.data.x)
        lines = [
            '"""Train the member and print the losses of each epoch; returns the model as it is at the end."""',
            "torch.use_deterministic_algorithms(True)" if self.settings.repeats else "",
            'data = load_file(Path(__file__).with_suffix(".safetensors"))',
            f"x, y = {x}, {_tree('y', self.data.y)}",
            f"held_x, held_y = {_tree('x_validation', self.data.x_validation)}, "
            f"{_tree('y_validation', self.data.y_validation)}",
            "",
            f"torch.manual_seed({self.seed})",
            f"model = {self.model}.to(DEVICE, DTYPE)",
            f"average = {average}" if average else "",
            "parameters = dict(model.named_parameters())" if listed else "",
            *(f"{name} = {text}" for name, text in made.items()),
        ]
        return [line for i, line in enumerate(lines) if line or i == 5]

    def _order(self) -> list[str]:
        own = self.row["data_seed"]
        seed, size = self.settings.seed if own is None else int(own), int(self.row["batch_size"])
        rows = f"rows.split({size})"
        if self.data.drop_last:
            rows = f"[chosen for chosen in {rows} if len(chosen) == {size}]"
        return [
            "",
            "def batches(number):",
            '    """Numbers of the samples of each mini-batch in a pass through the training data."""',
            f'    generator = torch.Generator().manual_seed(zlib.crc32(f"{seed}/{{number}}".encode()))',
            "    rows = torch.randperm(len(x_rows), generator=generator)".replace("x_rows", _first("y", self.data.y)),
            f"    return {rows}",
            "",
            "def prepared(samples, rows):",
            "    found = samples[rows].to(DEVICE)",
            "    return found.to(DTYPE) if found.is_floating_point() else found",
            *self._images(),
            *self._endless(),
        ]

    def _images(self) -> list[str]:
        bytes_in = any(t.dtype == torch.uint8 for t in leaves(self.data.x))
        if not bytes_in and self.data.standard is None:
            return []
        lines = ["", "def inputs_of(samples, rows):", "    found = prepared(samples, rows)"]
        if bytes_in:
            lines.append("    found = found.to(DTYPE) / 255 if found.dtype == torch.uint8 else found")
        if self.data.standard is not None:
            parts = (f'data["standard.{name}"].to(found).view(-1, 1, 1)' for name in ("mean", "deviation"))
            lines.append("    found = (found - {}) / {}".format(*parts))
        return [*lines, "    return found"]

    def _endless(self) -> list[str]:
        if self.settings.steps_per_epoch is None:
            return []
        return ["", "steps = (rows for number in itertools.count() for rows in batches(number))"]

    def _batch(self, prefix: str = "") -> list[str]:
        """Lines that make ``inputs`` and ``target``."""
        of = "inputs_of" if self._images() else "prepared"
        x = _each(of, f"{prefix}x", self.data.x)
        return [f"inputs, target = {x}, {_each('prepared', f'{prefix}y', self.data.y)}"]

    def _call(self, model: str, phase: str | None = None) -> str:
        x = self.data.x
        inputs = "*inputs" if isinstance(x, tuple) else "**inputs" if isinstance(x, dict) else "inputs"
        return f"{model}({inputs}" + (f', phase="{phase}")' if phase else ")")

    def _validation(self) -> list[str]:
        size = self.settings.validation_batch_size or int(self.row["batch_size"])
        tested = "average.module" if optimizers.averaged(self.row) else "model"
        count = f"len({_first('held_y', self.data.y_validation)})"
        lines = ["", "@torch.no_grad()", "def validated():", f"    {tested}.eval()", "    sums = Counter()"]
        lines += [f"    for rows in torch.arange({count}).split({size}):"]
        inner = self._batch("held_")
        if self._phased:
            for update, loss in zip(self.updates, self.losses, strict=True):
                assert update.phase is not None
                value = f"{loss}({self._call(tested, update.phase.name)}, target).item()"
                inner += [f'sums["val_{update.phase.score}"] += {value} * len(rows)']
            if self.metrics:
                inner.append(f"{self._call(tested)}  # a metric's call, which draws random numbers as well")
        else:
            inner.append(f"output = {self._call(tested)}")
            inner.append(f'sums["val_loss"] += {self.losses[0]}(output, target).item() * len(rows)')
            if self.accuracy:
                inner.append(f'sums["val_accuracy"] += {self.accuracy}.sum().item()')
        lines += [f"        {line}" for line in inner]
        lines.append(f"    found = {{name: total / {count} for name, total in sums.items()}}")
        return [*lines, "    return " + ('{**found, "val_loss": sum(found.values())}' if self._phased else "found")]

    def _epochs(self) -> list[str]:
        steps, every = self.settings.steps_per_epoch, every_of(self.row)
        taken = "batches(epoch - 1)" if steps is None else f"itertools.islice(steps, {steps})"
        lines = ["", f"for epoch in range(1, {self.epochs + 1}):", "    model.train()", "    sums, seen = Counter(), 0"]
        if self._phased:
            lines.insert(1, "latest, step = {}, 0")
        if every > 1:
            lines.append(f"    taken = list({taken})")
        walk = f"for rows in {taken}:" if every == 1 else "for number, rows in enumerate(taken, 1):"
        lines.append(f"    {walk}")
        lines += [f"        {line}" for line in [*self._batch(), *self._step(every), "seen += len(rows)"]]
        lines += ["    values = {name: total / seen for name, total in sums.items()}"]
        lines += ['    values["train_loss"] = sum(values.values())'] if self._phased else []
        lines += [f"    {name}.step()" for name in self._schedules("epoch")]
        lines += self._validates()
        return [*lines, '    print(json.dumps({"epoch": epoch, **values}))', "return model"]

    def _validates(self) -> list[str]:
        every, planned = self.settings.validate_every, self.settings.epochs
        inner = ["values |= validated()"]
        sign = "-" if self.settings.maximize else ""
        inner += [f'{name}.step({sign}values["{self.settings.monitor}"])' for name in self._schedules("validation")]
        if every == 1:
            return [f"    {line}" for line in inner]
        return [f"    if epoch % {every} == 0 or epoch == {planned}:", *(f"        {line}" for line in inner)]

    def _schedules(self, moment: str) -> list[str]:
        mine = optimizers.when(self.row) == moment
        return [name for u in self.updates for name in u.schedules] if mine else []

    def _step(self, every: int) -> list[str]:
        after = ["average.update_parameters(model)"] if optimizers.averaged(self.row) else []
        after += [f"{name}.step()" for name in self._schedules("step")]
        if self._phased:
            return [*self._phases(), *after]
        update, names = self.updates[0], list(self.updates[0].optimizers)
        zero = [f"{name}.zero_grad()" for name in names]
        begin = zero if every == 1 else [f"if number % {every} == 1:", *(f"    {line}" for line in zero)]
        step = [*_clipped(update), *(f"{name}.step()" for name in names), *after]
        if every > 1:
            step = [f"if number % {every} == 0 or number == len(taken):", *(f"    {line}" for line in step)]
        backward = "loss.backward()" if every == 1 else f"(loss / {every}).backward()"
        loss = f"loss = {self.losses[0]}({self._call('model')}, target)"
        return [*begin, loss, backward, *step, 'sums["train_loss"] += loss.item() * len(rows)']

    def _phases(self) -> list[str]:
        lines: list[str] = []
        for update, loss in zip(self.updates, self.losses, strict=True):
            phase, names = update.phase, list(update.optimizers)
            assert phase is not None
            inner = [f"{name}.zero_grad()" for name in names]
            inner += [f"loss = {loss}({self._call('model', phase.name)}, target)", "loss.backward()"]
            inner += [*_clipped(update), *(f"{name}.step()" for name in names)]
            inner += [f'latest["train_{phase.score}"] = loss.item()']
            often = phase.every == 1
            lines += inner if often else [f"if step % {phase.every} == 0:", *(f"    {line}" for line in inner)]
        return [*lines, "step += 1", "sums.update({name: value * len(rows) for name, value in latest.items()})"]


def values_of(updates: Sequence[Update], accuracy: str | None) -> list[str]:
    """The names of what an epoch of the loop gives."""
    scores = ["loss", *(u.phase.score for u in updates if u.phase)]
    names = [f"{part}_{score}" for part in ("train", "val") for score in scores]
    return [*names, *(["val_accuracy"] if accuracy else [])]


def _clipped(update: Update) -> list[str]:
    if update.max_norm is None:
        return []
    groups = " + ".join(f"{name}.param_groups" for name in update.optimizers)
    trained = f'[p for group in {groups} for p in group["params"]]' if update.phase else "model.parameters()"
    return [f"torch.nn.utils.clip_grad_norm_({trained}, {update.max_norm!r})"]


def _tree(name: str, samples: Any) -> str:
    """Samples as they are in the file: a tensor, a tuple or a dict of tensors."""
    if isinstance(samples, Tensor):
        return f'data["{name}"]'
    if isinstance(samples, dict):
        return "{" + ", ".join(f'"{key}": {_tree(f"{name}.{key}", value)}' for key, value in samples.items()) + "}"
    return "(" + "".join(f"{_tree(f'{name}.{i}', value)}, " for i, value in enumerate(samples)).rstrip() + ")"


def _each(function: str, name: str, samples: Any) -> str:
    if isinstance(samples, Tensor):
        return f"{function}({name}, rows)"
    if isinstance(samples, dict):
        return f"{{name: {function}(part, rows) for name, part in {name}.items()}}"
    return f"tuple({function}(part, rows) for part in {name})"


def _first(name: str, samples: Any) -> str:
    if isinstance(samples, Tensor):
        return name
    return f"next(iter({name}.values()))" if isinstance(samples, dict) else f"{name}[0]"
