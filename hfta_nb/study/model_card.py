"""A model card: what one has to know of an exported module, in Markdown."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from hfta_nb.data import Data, leaves
from hfta_nb.data.augment import Setting
from hfta_nb.errors import StoreError
from hfta_nb.errors.plain_text import visible
from hfta_nb.search.grid import Variant, show
from hfta_nb.study import noting
from hfta_nb.study.check import planned
from hfta_nb.study.module_files import Checked
from hfta_nb.study.study_state import StudyState

_LOADED = {
    "onnx": """import onnxruntime

session = onnxruntime.InferenceSession("{name}")
outputs = session.run(None, inputs)  # arrays by name""",
    "torch.export": """import torch

model = torch.export.load("{name}").module()""",
    "safetensors": """from safetensors.torch import load_file

model.load_state_dict(load_file("{name}"))""",
}


def write(
    study: StudyState, variant: Variant, at: str | int, path: Path, format: str, checked: Checked, x: Any
) -> Path:
    """Write the card of a file beside it.

    Args:
        study, variant: the member.
        at: the moment of its weights.
        path: of the file.
        format, checked: see `module_files.write`.
        x: inputs of one sample, as the module gets them.

    Raises:
        StoreError: it can't be written.
    """
    card, spare = path.with_suffix(".md"), path.with_suffix(".md.tmp")
    try:
        spare.write_text(text(study, variant, at, path.name, format, checked, x), encoding="utf-8")
        os.replace(spare, card)
    except OSError as error:
        raise StoreError(f"can't be written ({error.strerror or error})", where=str(card)) from error
    return card


def text(study: StudyState, variant: Variant, at: str | int, name: str, format: str, checked: Checked, x: Any) -> str:
    """The card."""
    group, place = planned(study, variant)
    row, member = group.rows[place], study.history.members[variant.id]
    data, found = study.data, noting.found(study)
    metrics = {metric: f"{member.at_best(metric):.6g}" for metric in study.metrics if metric in member.curves}
    own = {key: show(value) for key, value in {**group.arguments[place], **variant.config}.items()}
    training = {key: show(row[key]) for key in ("optimizer", "lr", "batch_size", "lr_scheduler", "weight_decay")}
    samples = f"{data.samples} for training, {data.held_out} held out" if isinstance(data, Data) else "read as a stream"
    seeds = {"seed": variant.seed, "data_seed": study.seed if row["data_seed"] is None else row["data_seed"]}
    versions = {key: found[key] for key in (noting.PACKAGE, "torch", "python", "device_name") if found[key]}
    size = "" if checked.difference != checked.difference else f": the largest difference is {checked.difference:.2g}"
    parts = [
        f"# {visible(study.family.name)} on {visible(data.name)}, member #{variant.id}",
        f"`{name}` ({format}): {group.parameters:,} parameters, {_epochs(member.epoch)} by {noting.PACKAGE}; "
        f"{_moment(at, member.best_epoch)}. Compared with the module by {checked.by}{size}.",
        "## Load it",
        f"```python\n{_LOADED[format].format(name=name)}\n```",
        "## Inputs",
        *_inputs(x),
        *_prepared(study, row),
        "## Metrics",
        f"At epoch {member.best_epoch}, the best by {visible(study.monitor)}.",
        _table(metrics.items()),
        "## Configuration",
        _table({**training, **own}.items()),
        "## Data",
        _table({"name": data.name, "task": data.task, "samples": samples, **seeds}.items()),
        "## Versions",
        _table(versions.items()),
    ]
    return "\n\n".join(parts) + "\n"


def _epochs(count: int) -> str:
    return "1 epoch" if count == 1 else f"{count} epochs"


def _moment(at: str | int, best: int) -> str:
    named = {"best": f"the weights are those of epoch {best}, its best", "last": "the weights are its last ones"}
    return named.get(str(at), f"the weights are those after epoch {at}")


def _inputs(x: Any) -> list[str]:
    names = list(x) if isinstance(x, dict) else [f"{i}" for i in range(len(leaves(x)))]
    rows = {}
    for name, t in zip(names, leaves(x), strict=True):
        rows[name] = f"{str(t.dtype).removeprefix('torch.')} {['batch', *t.shape[1:]]}".replace("'", "")
    return [_table(rows.items())]


def _prepared(study: StudyState, row: Any) -> list[str]:
    """How inputs come from the samples, where that is more than a change of their dtype."""
    said = []
    if isinstance(study.data, Data) and any(t.dtype == torch.uint8 for t in leaves(study.data.x)):
        said.append("images of bytes are divided by 255")
    if study.data.standard is not None:
        mean, deviation = (", ".join(f"{v:.6g}" for v in part.tolist()) for part in study.data.standard)
        said.append(f"each channel is made (value - mean) / deviation, with mean {mean} and deviation {deviation}")
    if Setting.of(row).normalize:
        said.append("each channel has mean 0 and deviation 1 over the training data: `member.inputs(x)` does it")
    return [f"Before the module: {'; '.join(said)}."] if said else []


def _table(rows: Iterable[tuple[str, Any]]) -> str:
    cells = [f"| {visible(str(key))} | {visible(str(value)).replace('|', chr(92) + '|')} |" for key, value in rows]
    return "\n".join(["| | |", "|---|---|", *cells])
