"""A plain PyTorch training script that reproduces a member's run, without this package."""

from __future__ import annotations

import itertools
import json
import os
import re
import zlib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch.optim import lr_scheduler, swa_utils

from hfta_nb.data import Data, leaves
from hfta_nb.data.augment import Setting
from hfta_nb.data.labels import IGNORED
from hfta_nb.engine.array import has_lazy
from hfta_nb.errors import StoreError, StudyError
from hfta_nb.models import imbalance
from hfta_nb.models.model_zoo import constructors, dotted
from hfta_nb.models.recipes import Family
from hfta_nb.models.recipes.lists import as_list
from hfta_nb.models.recipes.preserve_rng import preserve_rng
from hfta_nb.records.store import tensor_files
from hfta_nb.search.grid import Variant, show
from hfta_nb.study.check import first_stretch, planned, unchanged
from hfta_nb.study.planning import settings_of
from hfta_nb.study.scripts import losses, optimizers
from hfta_nb.study.scripts.loop import LOCALS, Loop, values_of
from hfta_nb.study.scripts.sources import Source
from hfta_nb.study.study_state import StudyState
from hfta_nb.train.step.accumulation import every_of

PACKAGE = __name__.partition(".")[0]
_USED = {
    **{"Counter": Counter, "Path": Path, "F": F, "itertools": itertools, "json": json, "load_file": load_file},
    **{"lr_scheduler": lr_scheduler, "swa_utils": swa_utils, "torch": torch, "zlib": zlib},
}
"""What the text of a loop may need, by its name there."""

_RESERVED = ("train_member", "DEVICE", "DTYPE")


def write(study: StudyState, variant: Variant, path: Path) -> Path:
    """Write the script, and its data beside it; see `Result.script`."""
    if path.suffix != ".py":
        raise StudyError("not the name of a script", where="path", got=str(path), accepted="a name that ends in .py")
    text = source(study, variant, path.name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        tensor_files.write(path.parent, path.with_suffix(".safetensors").name, _data(study).tensors())
        spare = path.with_name(path.name + ".tmp")
        spare.write_text(text, encoding="utf-8")
        os.replace(spare, path)
    except StoreError:
        raise
    except OSError as error:
        raise StoreError(f"can't be written ({error.strerror or error})", where=str(path)) from error
    return path


def source(study: StudyState, variant: Variant, name: str) -> str:
    """The text of the script.

    Args:
        study, variant: the member, which has trained.
        name: of the file, which the text mentions.

    Raises:
        StudyError: something in the member's run can't be written as a plain script; it says what.
    """
    where = f"script of #{variant.id}"
    try:
        return _source(study, variant, name)
    except StudyError as error:
        raise error.at(f"{where}: {error.where}" if error.where else where) from error


def _source(study: StudyState, variant: Variant, name: str) -> str:
    group, place = planned(study, variant)
    row, data = group.rows[place], _data(study)
    _refuse_otherwise_trained(study, row)
    family, settings = study.family, settings_of(study)
    with preserve_rng():
        module = family.member(**group.arguments[place]).to(study.dtype)
        if has_lazy(module):
            raise StudyError("has shapes that come from the first batch", where=family.name, got=type(module),
                             accepted="modules with their sizes given")  # fmt: skip
        objectives = [p.loss for p in family.phases] or [family.loss_for(data)]
        output = losses.outputs_of(module, data.sample(2, dtype=study.dtype)) if not family.phases else None
    known: dict[Any, str] = {}
    for loss in objectives:
        known |= losses.known_sources(loss, data, output)
    if every_of(row) > 1 and any(bool((t == IGNORED).any()) for t in leaves(data.y)):
        raise StudyError("weighs mini-batches by their known targets", where="accumulate_grad_batches")
    text = Source(known, _RESERVED)
    model = _model(text, study.family, group.arguments[place])
    own = [f"{phase.score}_of_member" for phase in family.phases] or ["loss_of_member"]
    names = [text.named(v, n, LOCALS, f"loss of {family.name}") for n, v in zip(own, objectives, strict=True)]
    length = settings.steps_per_epoch or data.batches(int(row["batch_size"]))
    updates = optimizers.updates_of(family, module, row, settings.epochs, length)
    measured = family.metrics_for(data)
    counted = None if family.phases or "accuracy" not in measured else measured["accuracy"]
    right = losses.accuracy(counted, data, output) if counted is not None else None
    values = values_of(updates, right)
    if optimizers.when(row) == "validation" and settings.monitor not in values:
        raise StudyError("its lr follows a metric that the script does not compute", where="lr_scheduler, plateau",
                         got=settings.monitor, accepted=", ".join(values))  # fmt: skip
    epochs = _epochs(study, variant)
    loop = Loop(settings, data, row, variant.seed, epochs, model, names, updates, right, bool(measured))
    return _assembled(study, variant, name, text, loop.text, epochs)


def _assembled(study: StudyState, variant: Variant, name: str, text: Source, loop: str, epochs: int) -> str:
    label = ", ".join(f"{k}={show(v)}" for k, v in variant.config.items())
    early = "" if epochs == study.epochs else f" It ended after {epochs} of {study.epochs} epochs."
    version = str(getattr(__import__(PACKAGE), "__version__", ""))
    lines = [
        f'"""Member #{variant.id} of {study.name} in plain PyTorch ({label or "no axes"}).{early}',
        "",
        f"Prints a line of JSON for each epoch. {Path(name).with_suffix('.safetensors').name} beside it has the data.",
        f'Written by {PACKAGE} {version}; trained with torch {torch.__version__}.\n"""',
        "",
        "from __future__ import annotations",
        "",
    ]
    constants = f'DEVICE, DTYPE = "{study.device}", {study.dtype}\n'
    body = "\n".join([*text.definitions, constants, loop])
    for used, value in _USED.items():
        if re.search(rf"(?<![\w.]){used}[.(]", body):
            text.bind(used, value, "the script")
    main = 'if __name__ == "__main__":\n    train_member()\n'
    return "\n".join([*lines, text.text.strip(), "", "", constants, "", loop, "", main])


def _model(text: Source, family: Family, arguments: Mapping[str, Any]) -> str:
    """The call that builds the member's module."""
    given = {k: as_list(v) if k in family.lists else v for k, v in arguments.items()}
    function: Any = family.function
    if isinstance(function, constructors.Constructor):
        several = ":" in function.path or function.path.startswith("timm.")
        recipe = None if several else constructors.recipe_of(function.path)
        inner = getattr(recipe.make, "func", recipe.make) if recipe else None
        if recipe is None or inner is not dotted.find(function.path):
            raise StudyError("is made by more than one call", where="family", got=family.name,
                             accepted="a constructor that takes its sizes as arguments")  # fmt: skip
        function, given = recipe.make, {recipe.facts.get(k, k): v for k, v in given.items()}
    called = text.named(function, "build_member", LOCALS, f"family {family.name}")
    shown = (f"{k}={text.expression(v, f'{family.name}, {k}')}" for k, v in given.items())
    return f"{called}({', '.join(shown)})"


def _data(study: StudyState) -> Data:
    data = study.data
    if not isinstance(data, Data):
        raise StudyError("is read batch by batch, and not kept", where="data", got=data.name,
                         accepted="samples in memory")  # fmt: skip
    for part in (data.x, data.y, data.x_validation, data.y_validation):
        inner = part.values() if isinstance(part, dict) else part if isinstance(part, tuple) else ()
        if any(not isinstance(value, torch.Tensor) for value in inner):
            raise StudyError("samples within samples", where="data", got=data.name, accepted="a tensor, tuple or dict")
    return data


def _epochs(study: StudyState, variant: Variant) -> int:
    """The epochs that the member trained, as it was planned.

    Raises:
        StudyError: it has none, or something else than its plan has changed it.
    """
    member = study.history.members.get(variant.id)
    if member is None or not member.epoch:
        raise StudyError("has not trained yet", remedy="run the study first")
    done = unchanged(study, member, variant)
    if done < member.epoch:
        edit = next(e for e in study.history.edits if e.variant == variant.id and e.epoch >= done)
        raise StudyError("was changed while it trained", where=f"{edit.how} after epoch {edit.epoch}",
                         got=edit.changes, remedy="study.lineage() says how")  # fmt: skip
    if first_stretch(study, member, variant):
        raise StudyError("a longer run has changed its lr schedule", where="epochs", got=study.epochs)
    return member.epoch


def _refuse_otherwise_trained(study: StudyState, row: Mapping[str, Any]) -> None:
    """See that the member's loop is a plain one."""
    how: dict[str, Any] = {name: value for name, value in vars(Setting.of(row)).items()
                           if value != getattr(Setting(), name)}  # fmt: skip
    how |= {name: row[name] for name in imbalance.AXES if imbalance.used(row) and name in row}
    how |= {} if row.get("sampling", "shuffle") == "shuffle" else {"sampling": row["sampling"]}
    how |= {} if study.folds is None else {"folds": study.folds}
    how |= {} if study.leader is None else {"population": study.population}
    how |= {} if study.precision == "fp32" else {"precision": study.precision}
    how |= {} if study.devices == 1 else {"devices": study.devices}
    for name, value in how.items():
        raise StudyError("trains in a way that has no plain script", where=name, got=value,
                         accepted="a study without this argument")  # fmt: skip
