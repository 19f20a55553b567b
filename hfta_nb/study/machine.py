"""What this machine has that runs, their display and exports use, and what it costs where something is missing."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from hfta_nb.engine.array.access import own_kernels
from hfta_nb.records import telemetry

ROOM_BYTES = 2**30
"""With less room on a disk, a run of many members may not be able to keep its weights."""

_NO_KERNELS = (
    "results are right and some models slower: in loops of 8 members on a CPU, a CNN was 1.9 instead of 3.0 times as "
    "fast as training in turn, an LSTM 1.4 instead of 2.4; an MLP and a Transformer nearly as fast as with them"
)
_PACKAGES = {
    "notebook widgets": (("ipywidgets", "anywidget"), "the Workbench can't be shown", "pip install hfta_nb"),
    "JupyterLab": (("jupyterlab", "jupyterlab_widgets"), "no notebook server of this environment; the command line and "
                   "another server work", "pip install 'hfta_nb[lab]'"),
    "Optuna": (("optuna",), "no searches (trials=..., samplers, pruners); grids work", "pip install 'hfta_nb[search]'"),
    "Ray": (("ray",), 'no executor="ray"', "pip install 'hfta_nb[ray]'"),
    "ONNX": (("onnx", "onnxscript"), 'no export(path, format="onnx")', "pip install 'hfta_nb[export]'"),
}  # fmt: skip


@dataclass(frozen=True)
class Part:
    """A part of the machine.

    Attributes:
        part: its name.
        found: whether it is there; None where this machine has no use for it.
        has: what there is, or why there is nothing.
        costs: what its lack costs; empty where it is there.
        remedy: what to do about it; empty where nothing is to be done.
    """

    part: str
    found: bool | None
    has: str
    costs: str = ""
    remedy: str = ""


def parts_of_machine(folder: Path) -> Iterator[Part]:
    """All parts; the package's own kernels are compiled first, as a first run does.

    Args:
        folder: where runs are to be kept.
    """
    gpu = torch.cuda.is_available()
    device = "cuda" if gpu else "cpu"
    yield Part("Python", True, f"{platform.python_version()}, {sys.executable}")
    yield Part("torch", True, f"{torch.__version__}, {torch.get_num_threads()} threads")
    costs = "" if gpu else "arrays train on the processor"
    remedy = "" if gpu else "a GPU needs a driver and torch built for CUDA"
    yield Part("device", True, f"{device}: {telemetry.device_name(device)}", costs, remedy)
    yield _kernels()
    yield _triton(gpu)
    yield _gpm(gpu)
    yield _disk("disk", folder, "runs can't be kept here", "give another --output or directory=")
    for part, (names, lack, remedy) in _PACKAGES.items():
        yield _installed(part, names, lack, remedy)


def _kernels() -> Part:
    found, name = own_kernels(), "own CPU kernels"
    has = f"{len(found.available)} of {len(found.available) + len(found.missing)} libraries, {found.source}"
    if not found.missing:
        return Part(name, True, has)
    return Part(name, False, has, _NO_KERNELS, "gcc or clang, or the wheel for this platform")


def _triton(gpu: bool) -> Part:
    version = _version("triton")
    if not gpu:
        return Part("Triton", None, "for GPUs only")
    lack = "on a GPU, optimizers and some losses run torch's kernels, and steps can't be compiled"
    return Part("Triton", version is not None, version or "not installed", "" if version else lack,
                "" if version else "pip install triton")  # fmt: skip


def _gpm(gpu: bool) -> Part:
    name = "GPM counters"
    if not gpu:
        return Part(name, None, "of NVIDIA GPUs only")
    with telemetry.sampler("cuda") as counters:
        counters.sample()
        trouble = counters.note
    if not trouble:
        return Part(name, True, "SM, tensor and DRAM activity")
    return Part(name, False, trouble, "the live view shows the GPU's utilization, not how busy its SMs are")


def _disk(name: str, folder: Path, lack: str, remedy: str) -> Part:
    place = next(p for p in (folder.absolute(), *folder.absolute().parents) if p.is_dir())
    if not os.access(place, os.W_OK):
        return Part(name, False, f"{place} can't be written to", lack, remedy)
    free = shutil.disk_usage(place).free
    has = f"{free / 2**30:,.1f} GiB free in {place}"
    return Part(name, True, has) if free >= ROOM_BYTES else Part(name, False, has, lack, remedy)


def _installed(part: str, names: tuple[str, ...], lack: str, remedy: str) -> Part:
    versions = {name: _version(name) for name in names}
    absent = [name for name, version in versions.items() if version is None]
    if absent:
        return Part(part, False, f"{', '.join(absent)} not installed", lack, remedy)
    return Part(part, True, ", ".join(f"{name} {version}" for name, version in versions.items()))


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
