"""Stores images channel by channel between products of channels, which then need no copies.

A convolution of 1 x 1 is a product with ``[M, C, N * P]``, which has the points of all samples of a channel beside each
other. The recorded call copies images to this order, and its results back to torch's, ``[N, M * C, P]``. Where only
elementwise kernels, batch norms and reductions are in between, a program keeps the order of the products. A batch norm
then has one sample of ``N * P`` points, and the same entries in each channel.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from hfta_nb.engine.kernels.strategy.kernel_variants import PRODUCTS
from hfta_nb.engine.replay.fused_kernel import Uses
from hfta_nb.engine.replay.out_variants import KERNELS
from hfta_nb.engine.replay.restride import Layout, entries, layout_of, may_have, moved, restrided
from hfta_nb.engine.replay.trace import BufferView, Instruction, places, with_views

_aten = torch.ops.aten
_CLONE, _CAST = _aten.clone.default, _aten._to_copy.default
_NORMS = {
    _aten.native_batch_norm.default: 1,
    _aten.cudnn_batch_norm.default: 1,
    _aten.native_batch_norm_backward.default: 2,
    _aten.cudnn_batch_norm_backward.default: 2,
}
"""Batch norms, and how many of their first arguments are images; the first result is one too."""
_READERS = {_aten.sum.dim_IntList, _aten.mean.dim, _aten.amax.default, _aten.amin.default, _aten.cat.default}
"""Further kernels that read memory of any strides."""


def channel_major(uses: Uses) -> tuple[list[Instruction], list[int]]:
    """The calls with images in the order of products, and for each its former index."""
    layouts = _shrunk(uses, _spread(uses, _seeds(uses)))
    if not layouts:
        return list(uses.calls), list(range(len(uses.calls)))
    return _without_copies(uses, layouts, [_one_sample(c, layouts) for c in restrided(uses.calls, layouts)])


# Which storages.


def _seeds(uses: Uses) -> dict[int, Layout]:
    """Layouts of images that are copied to the order of a product, or from there."""
    found: dict[int, Layout] = {}
    for call in uses.calls:
        if call.function is not _CLONE or call.results[0] is None:
            continue
        source, copy = call.args[0], call.results[0]
        maker = uses.made_by(source.storage)
        if maker is not None and maker.function in PRODUCTS:
            _add(uses, found, copy, source.stride)
        elif any(c.function in PRODUCTS for c in uses.touching(copy.storage)):
            _add(uses, found, source, copy.stride)
    return found


def _add(uses: Uses, layouts: dict[int, Layout], image: BufferView, stride: Sequence[int]) -> bool:
    """Give a storage without a layout the one in which this view of it has these strides; False if it gets none.

    None is given in float64, which is for comparisons: other strides change the order of sums.
    """
    whole = not image.offset and math.prod(image.size) * image.dtype.itemsize == uses.sizes[image.storage]
    if not whole or image.storage in layouts or image.dtype is torch.float64:
        return False
    layout = layout_of(image.size, image.stride, stride)
    # Points stay beside each other.
    if layout is None or layout[-1].new != 1 or entries(layout) != math.prod(image.size):
        return False
    if not may_have(uses, image.storage, layout) or not all(_takes(c, image) for c in uses.touching(image.storage)):
        return False
    layouts[image.storage] = layout
    return True


def _spread(uses: Uses, layouts: dict[int, Layout]) -> dict[int, Layout]:
    """Give the same order to the images that elementwise kernels and batch norms compute from these, or these from."""
    calls, again = [c for c in uses.calls if _any_order(c)], bool(layouts)
    while again:
        again = False
        for call in (*calls, *reversed(calls)):
            images = places([call.args, call.results])
            for known in [p for p in images if p.storage in layouts]:
                there = moved(known, layouts[known.storage])
                for other in images:
                    if there is not None and other.size == there.size:
                        again |= _add(uses, layouts, other, there.stride)
    return layouts


def _shrunk(uses: Uses, layouts: dict[int, Layout]) -> dict[int, Layout]:
    """Those that do not leave a batch norm with images in both orders."""
    norms = [_images(c) for c in uses.calls if c.function in _NORMS]
    while True:
        mixed = [images for images in norms if not all(_fits(p, layouts.get(p.storage)) for p in images)]
        refused = {p.storage for images in mixed for p in images} & layouts.keys()
        if not refused:
            return layouts
        layouts = {s: layout for s, layout in layouts.items() if s not in refused}


def _any_order(call: Instruction) -> bool:
    """True for kernels whose result may be stored in any order."""
    kernel = KERNELS.get(call.function)
    if kernel is not None and kernel.pointwise:
        return True
    return call.function in (_CLONE, _CAST) or call.function in _NORMS


def _takes(call: Instruction, image: BufferView) -> bool:
    """True if a call can make or read the storage of an image in another order."""
    if call.function in _NORMS:
        return image.storage in {p.storage for p in _images(call)}
    return _any_order(call) or (call.function in _READERS and image.storage not in call.makes)


def _images(norm: Instruction) -> list[BufferView]:
    """The images among the arguments and results of a batch norm."""
    found = [*norm.args[: _NORMS[norm.function]], norm.results[0]]
    return [p for p in found if p is not None]


# The calls.


def _fits(image: BufferView, layout: Layout | None) -> bool:
    there = None if layout is None else moved(image, layout)
    return there is not None and _by_channel(there)


def _by_channel(image: BufferView) -> bool:
    """True for ``[N, C, ...]`` in the order of a product."""
    return len(image.size) > 2 and image.permuted((1, 0, *range(2, len(image.size)))).operand.contiguous


def _one_sample(call: Instruction, layouts: Mapping[int, Layout]) -> Instruction:
    """A batch norm of images that have a layout, with all points in one sample; other calls as they are."""

    def joined(image: Any) -> Any:
        if image is None:
            return None
        channels = image.size[1]
        points = math.prod(image.size) // channels
        return image._replace(size=(1, channels, points), stride=(channels * points, points, 1))

    count = _NORMS.get(call.function, 0)
    if not count or call.args[0].storage not in layouts:
        return call
    args = *map(joined, call.args[:count]), *call.args[count:]
    return replace(call, args=args, results=(joined(call.results[0]), *call.results[1:]))


def _without_copies(
    uses: Uses, layouts: Mapping[int, Layout], calls: Sequence[Instruction]
) -> tuple[list[Instruction], list[int]]:
    """The calls without those that copy an image to the same order."""
    names: dict[int, int] = {}
    left, numbers = [], []

    def named(place: BufferView) -> BufferView:
        return place._replace(storage=names.get(place.storage, place.storage))

    for i, call in enumerate(calls):
        if not names.keys().isdisjoint(call.reads()):
            args, kwargs = with_views((call.args, call.kwargs), named)
            call = replace(call, args=args, kwargs=kwargs)
        if call.function is _CLONE and not layouts.keys().isdisjoint(uses.calls[i].reads() | set(call.makes)):
            source, copy = call.args[0], call.results[0]
            same = copy is not None and source[1:] == copy[1:] and uses.unchanged(source, copy)
            if copy is not None and same and copy.storage not in uses.wanted:
                names[copy.storage] = source.storage
                continue
        left.append(call)
        numbers.append(i)
    return left, numbers
