"""The features of a frozen prefix, computed once per sample for all arrays of a study.

Where a model begins with frozen submodules that all members of an array have in common, their outputs for data in
memory are kept, in memory or in a temporary file, and batches bring them along. See `frozen_prefix` for which these
are; `hindrance` says where nothing is kept.
"""

from __future__ import annotations

import hashlib
import math
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

import psutil
import torch
from torch import Tensor, nn, set_grad_enabled

from hfta_nb.data import Data, Samples, Stream, count, moved, take, tree_map
from hfta_nb.data.augment import Setting
from hfta_nb.engine.array import FusedArray
from hfta_nb.engine.array.access import (
    Featured,
    FunctionStates,
    Prefix,
    call_module,
    find_prefix,
    is_padded,
    kept_by,
    looked_at,
    streams_apart,
)
from hfta_nb.models import imbalance
from hfta_nb.models.recipes.preserve_rng import preserve_rng
from hfta_nb.train.memory import free_bytes, shown
from hfta_nb.train.settings import Settings

SHARE, DISK_SHARE = 0.25, 0.5
"""The largest shares of free memory and of free disk space that features take."""

CHUNK = 64
"""Samples whose features are computed at once."""

FEW = 3
"""Samples by which the prefix is found. All but the first are computed apart, too, to see that samples do not mix."""


@dataclass(frozen=True)
class Found:
    """The frozen prefix that several modules have in common.

    Attributes:
        prefix: of each.
        key: a hash of its tensors and of what it computes.
        probe: its outputs for the first samples.
    """

    prefix: Prefix
    key: str
    probe: tuple[Tensor, ...]

    def shown(self, data: Data) -> str:
        """What is kept of this data, in words."""
        first, *more = self.prefix.kept
        return f"outputs of `{first}`{f' and {len(more)} more' if more else ''}, {shown(bytes_of(self.prefix, data))}"


class FeaturedData(Data):
    """Data in memory whose inputs are `Featured`."""

    def floats(self, x: Samples, dtype: torch.dtype | None = None) -> Samples:
        """See `Inputs`; features are as the model gets them."""
        kind: type[Featured] = type(x)
        return kind(super().floats(x.inputs, dtype), x.features)


class FeatureCache:
    """The features of a run.

    Args:
        settings: of the run.
        known: features by key and part of the data, which is filled.
    """

    def __init__(self, settings: Settings, known: dict[str, dict[str, tuple[Tensor, ...]]]) -> None:
        self.settings, self._known = settings, known

    def found(self, array: FusedArray, data: Data) -> Found | str:
        """The prefix that all members of an array have in common; or why there is none."""
        if is_padded(array) or array.settings.checkpointed:
            return "members of several architectures" if is_padded(array) else "activations are computed again"
        return common_prefix((looked_at(array, i) for i in range(len(array))), data, self.settings)

    def data_for(self, found: Found, array: FusedArray, data: Data) -> FeaturedData | str:
        """The data with the features of a prefix; or why they are not kept.

        Args:
            found: of the array.
            data: as it is placed. What is kept in main memory beside a GPU is read ahead from there.
        """
        s = self.settings
        if found.key not in self._known:
            place = placed_where(found.prefix, data, s)
            if place == "":
                return no_room(found.prefix, data)
            self._known.clear()  # arrays train one after another: those of another base are not needed at once
            self._known[found.key] = self._computed(found.prefix, looked_at(array, 0), data, place)
        features = self._known[found.key]
        host = any(t.device.type != s.device.type for part in features.values() for t in part)
        source = s.data if host else data
        assert isinstance(source, Data)
        kind, given = found.prefix.featured(), {f.name: getattr(source, f.name) for f in fields(Data)}
        return FeaturedData(**given | {part: kind(given[part], features[part]) for part in features})

    def _computed(self, prefix: Prefix, module: nn.Module, data: Data, place: str) -> dict[str, tuple[Tensor, ...]]:
        """The features of all samples, by part of the data."""
        s, found = self.settings, dict[str, tuple[Tensor, ...]]()
        kinds = [kind for output in prefix.kept.values() for kind in output.tensors]
        for part, training in (("x", True), ("x_validation", False)):
            x = getattr(data, part)
            found[part] = tuple(_room((count(x), *shape), dtype, place) for shape, dtype in kinds)
            for start in range(0, count(x), CHUNK):
                rows = slice(start, start + CHUNK)
                with calling(module, s, training) as call:
                    few = inputs_of(data, take(x, rows), s)
                    for room, new in zip(found[part], prefix.features_of(module, call, few), strict=True):
                        room[rows].copy_(new)
        return found


def hindrance(s: Settings, rows: Sequence[Mapping[str, Any]]) -> str:
    """What, other than the model, keeps features from being computed once; empty for nothing.

    Args:
        rows: per member, the values of all training axes.
    """
    if s.cache_features == "never":
        return 'cache_features="never"'
    if isinstance(s.data, Stream):
        return "the data is read batch by batch"
    if s.family.phases:
        return "the family trains in phases"
    if any(Setting.of(row) != Setting() for row in rows):
        return "samples are augmented"
    if imbalance.form(rows[0])[1]:
        return "inputs are mixed (weaken)"
    return ""


def common_prefix(modules: Iterable[nn.Module], data: Data, s: Settings) -> Found | str:
    """The frozen prefix that modules have in common; or why there is none."""
    first: tuple[Found, dict[str, Tensor]] | None = None
    try:
        for module in modules:
            if first is None:
                found = _prefix_of(module, data, s)
                if isinstance(found, str):
                    return found
                tensors = _read_by(found[0], module)
                first = Found(found[0], _key(*found, tensors), found[1]), tensors
            elif not _is_alike(module, *first, data, s):
                return "the frozen submodules differ between members"
    except Exception as error:  # a model may do what can't be followed; it trains as it is
        return f"the forward can't be followed ({type(error).__name__}: {str(error).partition(chr(10))[0]})"
    return "there are no members" if first is None else first[0]


def _read_by(prefix: Prefix, module: nn.Module) -> dict[str, Tensor]:
    """What the outputs of a prefix depend on."""
    every = [*module.named_parameters(), *module.named_buffers()]
    return {name: tensor.detach() for name, tensor in every if name in prefix.reads}


def _is_alike(module: nn.Module, found: Found, tensors: Mapping[str, Tensor], data: Data, s: Settings) -> bool:
    """Whether another member has the same prefix; random numbers in it would show in its outputs."""
    own = _read_by(found.prefix, module)
    if any(p.requires_grad for name, p in module.named_parameters() if name in own) or own.keys() != tensors.keys():
        return False
    same = all(_same(value, tensors[name]) for name, value in own.items())
    return same and all(map(_same, probed(found.prefix, module, data, s), found.probe))


def _prefix_of(module: nn.Module, data: Data, s: Settings) -> tuple[Prefix, tuple[Tensor, ...]] | str:
    few = inputs_of(data, take(data.x, slice(FEW)), s)
    samples = count(few)
    if samples < 2:
        return "there is one sample"
    with calling(module, s, training=True) as call:
        prefix = find_prefix(module, call, few, samples)
    if isinstance(prefix, str):
        return prefix
    probe = probed(prefix, module, data, s)
    with calling(module, s, training=True) as call:
        fewer = prefix.features_of(module, call, take(few, slice(1, None)))
    if not all(a.shape[0] == samples - 1 and near(a, b[1:]) for a, b in zip(fewer, probe, strict=True)):
        return "the frozen submodules mix samples"
    with calling(module, s, training=False) as call:
        held_out = find_prefix(module, call, few, samples, among=prefix.paths)
    if isinstance(held_out, str):
        return held_out
    if not prefix.kept.keys() >= held_out.kept.keys() or set(prefix.paths) != set(held_out.paths):
        return "the frozen submodules are used otherwise in validation"
    return prefix, probe


def probed(prefix: Prefix, module: nn.Module, data: Data, s: Settings) -> tuple[Tensor, ...]:
    """The features of the first samples."""
    few = inputs_of(data, take(data.x, slice(FEW)), s)
    with calling(module, s, training=True) as call:
        return prefix.features_of(module, call, few)


@contextmanager
def calling(module: nn.Module, s: Settings, training: bool) -> Iterator[Callable[[nn.Module, Samples], Any]]:
    """The context in which a module is called as in a step, or in validation, without effects on random streams."""
    module.train(training)
    apart, ways = FunctionStates(1, shows=False).of_one(kept_by(module)), s.precision
    with preserve_rng(), streams_apart(s.device), ways.products(), ways.autocast(), apart, set_grad_enabled(training):
        yield _call_with_copies


def _call_with_copies(module: nn.Module, given: Samples) -> Any:
    return call_module(module, tree_map(torch.clone, given))  # it may write into what it is given


def inputs_of(data: Data, x: Samples, s: Settings) -> Samples:
    """Stored samples as a model gets them."""
    return data.floats(moved(x, s.device, s.dtype), s.dtype)


def bytes_of(prefix: Prefix, data: Data) -> int:
    """What the features of all samples take."""
    return prefix.sample_bytes * (len(data) + data.held_out)


def no_room(prefix: Prefix, data: Data) -> str:
    """Why features are not kept that `placed_where` finds no place for."""
    return f"there is no room for features of {shown(bytes_of(prefix, data))}"


def placed_where(prefix: Prefix, data: Data, s: Settings) -> str:
    """Where features are kept: "cuda" or "cpu", in a file ("disk"), or nowhere, as there is no room ("")."""
    size = bytes_of(prefix, data)
    if size <= SHARE * free_bytes(s.device):
        return str(s.device)
    # From main memory, batches are sent in the members' dtype; it must be that of the features.
    kinds = {dtype for output in prefix.kept.values() for _, dtype in output.tensors if dtype.is_floating_point}
    if s.device.type != "cpu" and kinds - {s.dtype}:
        return ""
    if s.device.type != "cpu" and size <= SHARE * psutil.virtual_memory().available:
        return "cpu"
    return "disk" if size <= DISK_SHARE * shutil.disk_usage(tempfile.gettempdir()).free else ""


def _room(shape: tuple[int, ...], dtype: torch.dtype, place: str) -> Tensor:
    if place != "disk":
        return torch.empty(shape, dtype=dtype, device=place)
    with tempfile.NamedTemporaryFile(prefix="hfta_nb_features_") as file:  # its space is given back with the tensor
        return torch.from_file(file.name, shared=True, size=math.prod(shape), dtype=dtype).view(shape)


def _key(prefix: Prefix, probe: Sequence[Tensor], tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256(repr(prefix.paths).encode())
    for tensor in (*tensors.values(), *probe):
        digest.update(repr((tensor.shape, tensor.dtype)).encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _same(a: Tensor, b: Tensor) -> bool:
    return a.data_ptr() == b.data_ptr() or (a.shape == b.shape and torch.equal(a, b))


def near(a: Tensor, b: Tensor) -> bool:
    """Whether two results differ by rounding alone, which is another one in batches of other sizes."""
    if not a.is_floating_point():
        return torch.equal(a, b)
    most = float(b.abs().amax()) if b.numel() else 0.0
    return bool(torch.allclose(a, b, rtol=0, atol=torch.finfo(a.dtype).eps ** 0.5 * most, equal_nan=True))
