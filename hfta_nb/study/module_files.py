"""A member's module as a file for other programs: ONNX, torch.export or safetensors, compared with the module."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from hfta_nb.engine.array.access import call_module, flatten
from hfta_nb.errors import StoreError, StudyError
from hfta_nb.errors.caught_warnings import caught_warnings
from hfta_nb.records.store import tensor_files

FORMATS = {"onnx": ".onnx", "torch.export": ".pt2", "safetensors": ".safetensors"}
"""By the name of a format, the end of its files' names."""

SIZES = (2, 5)
"""Samples of the batch with which a module is traced, and of one that the file must take as well."""

_WITHIN = {torch.float64: 1e-8, torch.float32: 1e-4}
_COARSE = 0.05  # of half precision


class Checked(NamedTuple):
    """How a file compares with the module: by what it was run, and the largest difference, relative above 1."""

    by: str
    difference: float


def format_of(path: Path, name: str | None) -> str:
    """The format that was asked for, or that the end of the path says.

    Raises:
        StudyError: there is none such, or a package that it needs is not installed.
    """
    found = name or next((key for key, end in FORMATS.items() if path.suffix == end), "")
    if found not in FORMATS:
        raise StudyError("not a format of a module", where="format", got=name or path.name,
                         accepted=", ".join(f"{key} ({end})" for key, end in FORMATS.items()))  # fmt: skip
    lacking = [p for p in ("onnx", "onnxscript") if found == "onnx" and importlib.util.find_spec(p) is None]
    if lacking:
        raise StudyError(f"ONNX needs {' and '.join(lacking)}, which is not installed", where="format", got=found,
                         remedy="pip install 'hfta_nb[export]'")  # fmt: skip
    return found


def write(
    build: Callable[[], nn.Module], module: nn.Module, batch: Callable[[int], Any], path: Path, name: str
) -> Checked:
    """Write a module and compare the file with it, on batches of unlike size.

    Args:
        build: makes an untrained module, for safetensors.
        module: in eval mode.
        batch: makes inputs of so many samples.
        path: of the file, which is replaced once it is right.
        name: of the format.

    Raises:
        StudyError: the module can't be written in this format, or what was written gives other outputs.
        StoreError: the file can't be written.
    """
    spare = path.with_name(f".{path.stem}.tmp{FORMATS[name]}")
    writer = {"onnx": _onnx, "torch.export": _program, "safetensors": _weights}[name]
    inputs = [batch(size) for size in SIZES]
    wanted = [_run(module, x) for x in inputs]
    if any(_apart(a, _run(module, x)) for a, x in zip(wanted, inputs, strict=True)):
        raise StudyError("draws random numbers, so that no file can be compared with it", where=type(module).__name__,
                         accepted="a module that gives the same outputs twice")  # fmt: skip
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _failing(name), caught_warnings():
            warnings.simplefilter("ignore")  # of exporters about themselves
            by, run = writer(build, module, inputs[0], spare)
            found = [(run(x), a) for x, a in zip(inputs, wanted, strict=True)] if run else []
        dtype = next((t.dtype for t in wanted[0] if t.is_floating_point()), torch.float32)
        difference = max((_apart(a, b) for a, b in found), default=float("nan"))
        if difference > _WITHIN.get(dtype, _COARSE):
            raise StudyError("gives other outputs than the module", where=f"{name}, by {by}", got=difference,
                             accepted=f"a difference up to {_WITHIN.get(dtype, _COARSE):g}")  # fmt: skip
        os.replace(spare, path)
    except StoreError:
        raise
    except OSError as error:
        raise StoreError(f"can't be written ({error.strerror or error})", where=str(path)) from error
    finally:
        spare.unlink(missing_ok=True)
    return Checked(by, difference)


_Run = Callable[[Any], list[Tensor]]


def _weights(build: Callable[[], nn.Module], module: nn.Module, x: Any, path: Path) -> tuple[str, _Run]:
    state = module.state_dict()
    unfit = [key for key, value in state.items() if not isinstance(value, Tensor) or value.is_complex()]
    if unfit:
        raise StudyError("is no tensor of real numbers", where=unfit[0], accepted="weights that are")
    tensor_files.write(path.parent, path.name, state)
    again = build()
    again.load_state_dict(load_file(path))
    return "a module that was built anew", lambda given: _run(again.eval(), given)


def _program(build: Callable[[], nn.Module], module: nn.Module, x: Any, path: Path) -> tuple[str, _Run]:
    torch.export.save(_exported(module, x), path)
    again = torch.export.load(path).module()
    return f"torch {torch.__version__}", lambda given: _run(again, given)


def _onnx(build: Callable[[], nn.Module], module: nn.Module, x: Any, path: Path) -> tuple[str, _Run | None]:
    torch.onnx.export(_exported(module, x), (), path, dynamo=True, verbose=False, external_data=False)
    if importlib.util.find_spec("onnxruntime") is None:
        return "nothing, as onnxruntime is not installed", None
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_inputs()]

    def run(given: Any) -> list[Tensor]:
        inner = given.items() if isinstance(given, dict) else zip(names, flatten(given)[0], strict=True)
        return [torch.from_numpy(found) for found in session.run(None, {k: v.numpy() for k, v in inner})]

    return f"onnxruntime {onnxruntime.__version__}", run


def _exported(module: nn.Module, x: Any) -> Any:
    """The module as torch exports it; the first axis of its inputs may have any length."""
    batch = torch.export.Dim("batch")
    if isinstance(x, dict):
        return torch.export.export(module, (), x, dynamic_shapes={name: {0: batch} for name in x}, strict=False)
    given = x if isinstance(x, tuple) else (x,)
    return torch.export.export(module, given, dynamic_shapes=tuple({0: batch} for _ in given), strict=False)


@torch.no_grad()
def _run(module: Any, x: Any) -> list[Tensor]:
    return [value for value in flatten(call_module(module, x))[0] if isinstance(value, Tensor)]


def _apart(a: list[Tensor], b: list[Tensor]) -> float:
    """The largest difference, relative where numbers are larger than 1; infinite for unlike shapes."""
    if [v.shape for v in a] != [v.shape for v in b]:
        return float("inf")
    pairs = [(v.double(), w.double()) for v, w in zip(a, b, strict=True) if v.numel()]
    return max((float(((v - w).abs() / w.abs().clamp(min=1)).nan_to_num(float("inf")).max()) for v, w in pairs),
               default=0.0)  # fmt: skip


@contextlib.contextmanager
def _failing(name: str) -> Iterator[None]:
    """What an exporter raises, as an error of this package."""
    try:
        yield
    except (StudyError, StoreError, OSError):
        raise
    except Exception as error:
        words = str(error).strip().partition("\n")[0]
        raise StudyError(f"can't be exported ({type(error).__name__}: {words})", where=f"format {name}",
                         remedy="x.shape[0] in place of len(x) in a forward keeps the batch's size open; "
                         "or another format") from error  # fmt: skip
