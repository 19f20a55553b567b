"""A member's weights as a file, and the Python source that loads them into a plain module."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hfta_nb.models.recipes import Family
from hfta_nb.models.recipes.lists import as_list
from hfta_nb.records.store import tensor_files
from hfta_nb.study import code

if TYPE_CHECKING:
    from hfta_nb.study.result import Result

_TYPED = (int, float, str, bool, type(None))


def write(result: Result) -> Path | None:
    """The best weights as ``member_3.safetensors`` in the run's directory; None where they are not tensors alone.

    Raises:
        StoreError: no weights were saved yet, or the file can't be written.
    """
    state = result.module().state_dict()
    if not all(isinstance(value, Tensor) and not value.is_complex() for value in state.values()):
        return None
    study = result.study
    name = f"member_{result.variant.id}.safetensors"
    tensor_files.write(study.directory, name, state)
    return study.directory / name


def source(result: Result, weights: Path | None) -> str:
    """Python source that loads a file that `write` has written; of the run itself where that can't be typed.

    Args:
        result: the member's.
        weights: the file, which is named from the working directory if it is below; None where there is none.
    """
    study = result.study
    group, place = result._place()
    built = _built(study.family, group.arguments[place])
    if weights is None or built is None:
        return result.to_code()
    file = weights.relative_to(here) if weights.is_relative_to(here := Path.cwd()) else weights
    double = study.dtype != torch.float32
    named = code.by_name(study)
    lines = ["import torch"] * double + ["import hfta_nb as hfta"] * (not study.family.direct)
    lines += ["from safetensors.torch import load_file", ""]
    lines += [] if named else [f"# {study.family.name} as it is defined in the notebook of the run"]
    lines += [f"model = {built}" + f".to({study.dtype})" * double]
    lines += [f"model.load_state_dict(load_file({str(file)!r}))", "model.eval()"]
    return "\n".join(lines) + "\n"


def _built(family: Family, arguments: Mapping[str, Any]) -> str | None:
    """The call that builds the module; None where an argument can't be typed."""
    given = {k: as_list(v) if k in family.lists else v for k, v in arguments.items()}
    if not all(_typed(value) for value in given.values()):
        return None
    call = ", ".join(f"{name}={value!r}" for name, value in given.items())
    return f"{family.name}({call})" if family.direct else f"hfta.family({family.name!r}).build({call})"


def _typed(value: Any) -> bool:
    """Whether its representation is Python source: numbers, text, and lists of these."""
    if isinstance(value, list | tuple):
        return all(map(_typed, value))
    return type(value) in _TYPED and not (isinstance(value, float) and value - value != 0)
