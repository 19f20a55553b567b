"""M Transformer language models whose every matrix lies in blocks on a square of processes."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from hfta_nb.engine.array import FusedArray, fuse
from hfta_nb.errors import DistributedError
from hfta_nb.models.model_zoo.transformer_lm import TransformerLM
from hfta_nb.workers.distributed.grid_products import Grid, Lookup, Product, RowSum, Shared
from hfta_nb.workers.distributed.rank_rows import sizes_of

IGNORED = -100
"""A target that does not count, as in `torch.nn.functional.cross_entropy`."""


class TransformerMesh:
    """Members of the family transformer_lm on q x q processes, each of which holds a q x q-th of every matrix.

    Parameters, gradients, the optimizer's state and activations of a process are a q²-th of the whole; vectors (biases,
    layer norms) are a q-th. Members lie side by side in each block and exchange nothing with each other. All processes
    make it and call it with the same mini-batches.

    This is for models that don't fit one device. It was checked for its numbers and its memory; no speed is claimed.

    Args:
        members: of one architecture, each of the family transformer_lm, without dropout; only this process's blocks are
            kept.
        grid: the processes; by default those of `torch.distributed`.
        device: of this process's blocks; by default that of the members.

    Attributes:
        array: this process's blocks, for an elementwise optimizer of `hfta.optim` (SGD, Adam, ...) with a value per
            member. Norms of gradients would be those of the blocks.

    Raises:
        DistributedError: the processes make no square, the members are others, or q does not divide their sizes.

    Source: Xu et al. 2021 (Optimus, arXiv 2104.05343).
    """

    def __init__(
        self, members: Sequence[nn.Module], *, grid: Grid | None = None, device: torch.device | None = None
    ) -> None:
        at = device or next((p.device for member in members for p in member.parameters()), torch.device("cpu"))
        self.grid = grid or Grid.of_torch(at)
        models = self.check(members, self.grid.q)
        first = models[0]
        layer: Any = first.encoder.layers[0]
        self.width, self.heads, self.depth = first.width, layer.self_attn.num_heads, len(first.encoder.layers)
        self.buffers = {name: buffer.to(at) for name, buffer in first.named_buffers()}
        self.eps, self.positions = layer.norm1.eps, first.positions.to(at)
        self.shapes = {name: p.shape for name, p in first.named_parameters()}
        named = [
            {name: self.block(name, p.detach()).to(at) for name, p in model.named_parameters()} for model in models
        ]
        self.array = fuse([_Blocks(blocks) for blocks in named], verify="never")

    @staticmethod
    def check(members: Sequence[nn.Module], q: int) -> list[TransformerLM]:
        """The members, if they can be divided by a square of q x q processes.

        Raises:
            DistributedError: they can't.
        """
        models = [_checked(member, i, q) for i, member in enumerate(members)]
        if not models:
            raise DistributedError("no members", where="TransformerMesh", got=members, accepted="at least one")
        shapes = [{name: p.shape for name, p in model.named_parameters()} for model in models]
        for i, own in enumerate(shapes):
            if own != shapes[0]:
                raise DistributedError("members of unlike architecture", where=f"members, member {i}",
                                       accepted="one architecture")  # fmt: skip
        return models

    def backward(self, tokens: Int[Tensor, "N T"], targets: Int[Tensor, "N T"]) -> Float[Tensor, " M"]:
        """The members' mean cross entropies, and their gradients added to ``.grad`` of the blocks.

        Args:
            tokens: the whole mini-batch, the same on all processes.
            targets: likewise; those of -100 do not count.
        """
        return self.trained(tokens, targets)[0]

    def trained(self, tokens: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """As `backward`; and the block of logits, for `outputs`."""
        with torch.enable_grad():
            logits = self.logits(tokens)
            own = self._losses(logits, targets)
            own.sum().backward()  # type: ignore[no-untyped-call]
        return self.grid.in_column.total(own), logits.detach()

    @torch.no_grad()
    def evaluate(self, tokens: Int[Tensor, "N T"], targets: Int[Tensor, "N T"]) -> Float[Tensor, " M"]:
        """The members' mean cross entropies."""
        return self.grid.in_column.total(self._losses(self.logits(tokens), targets))

    @torch.no_grad()
    def outputs(self, logits: Tensor, samples: int) -> Float[Tensor, "M N T V"]:
        """Whole logits of all members, on all processes, from the blocks of a mini-batch of so many samples."""
        q, sizes = self.grid.q, sizes_of(samples, self.grid.q)
        members, rows, columns = logits.shape
        length = rows // max(1, sizes[self.grid.row])
        length = -self.grid.ranks.least(-length)  # a row of the grid may have no samples
        room = logits.new_zeros(members, max(sizes) * length, columns)
        room[:, :rows] = logits
        parts = self.grid.ranks.gather(room)
        lines = [torch.cat(parts[i * q : (i + 1) * q], 2)[:, : sizes[i] * length] for i in range(q)]
        return torch.cat(lines, 1).view(members, samples, length, -1)

    def weights(self) -> dict[str, Tensor]:
        """The whole parameters of all members, ``[M, *shape]`` by their names in the plain module, on all processes."""
        return {name: self.whole(name, self.array.get_parameter(key_of(name)).detach()) for name in self.shapes}

    @torch.no_grad()
    def whole(self, name: str, block: Tensor) -> Tensor:
        """The whole of what has a parameter's shape, from all processes' blocks."""
        return _joined(name, self.shapes[name], self.grid.ranks.gather(block.contiguous()), self.grid.q)

    def block(self, name: str, whole: Tensor) -> Tensor:
        """This process's block of what has a parameter's shape, with or without the member axis."""
        value = _laid(name, whole, len(self.shapes[name]), self.grid.q)
        if len(self.shapes[name]) == 2:
            value = value.chunk(self.grid.q, -2)[self.grid.row]
        return value.chunk(self.grid.q, -1)[self.grid.column]

    def of(self, array: FusedArray) -> TransformerMesh:
        """The same with another array, of some of the members."""
        other = copy.copy(self)
        other.array = array
        return other

    # The model, of the samples in this row of the grid and the features in this column.

    def logits(self, tokens: Tensor) -> Tensor:
        """The block of logits ``[M, n T, V / q]``."""
        length = tokens.shape[1]
        rows = self._rows(tokens)
        x = Lookup.apply(self._block("embedding.weight"), rows.reshape(-1), self.grid)  # type: ignore[no-untyped-call]
        own = self.positions[:length].chunk(self.grid.q, 1)[self.grid.column].to(x)
        x = x * math.sqrt(self.width) + own.repeat(len(rows), 1)
        for number in range(self.depth):
            x = self._layer(f"encoder.layers.{number}.", x, length)
        return self._linear("decoder.", x)

    def _rows(self, whole: Tensor) -> Tensor:
        return torch.split(whole, sizes_of(len(whole), self.grid.q))[self.grid.row]

    def _losses(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The part of each member's mean that this row's samples make."""
        own = self._rows(targets).reshape(-1)
        losses = self._cross_entropy(logits, own) * (own != IGNORED)
        return losses.sum(1) / (targets != IGNORED).sum().clamp(min=1)

    def _layer(self, name: str, x: Tensor, length: int) -> Tensor:
        attended = self._attention(self._linear(f"{name}self_attn.in_proj_", x), length)
        x = self._norm(f"{name}norm1.", x + self._linear(f"{name}self_attn.out_proj.", attended))
        hidden = F.relu(self._linear(f"{name}linear1.", x))
        return self._norm(f"{name}norm2.", x + self._linear(f"{name}linear2.", hidden))

    def _attention(self, packed: Tensor, length: int) -> Tensor:
        """Of the heads in this column, whose queries, keys and values lie side by side."""
        members, heads = packed.shape[0], self.heads // self.grid.q
        parts = packed.view(members, -1, length, 3, heads, self.width // self.heads).permute(3, 0, 1, 4, 2, 5)
        query, key, value = parts.flatten(1, 2).unbind(0)
        found = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return found.transpose(1, 2).reshape(members, -1, self.width // self.grid.q)

    def _linear(self, name: str, x: Tensor) -> Tensor:
        found: Tensor = Product.apply(x, self._block(f"{name}weight"), self.grid)  # type: ignore[no-untyped-call]
        return found + self._shared(f"{name}bias")

    def _norm(self, name: str, x: Tensor) -> Tensor:
        mean = self._sum(x.sum(2, keepdim=True)) / self.width
        apart = x - mean
        variance = self._sum(apart.square().sum(2, keepdim=True)) / self.width
        scaled: Tensor = apart * (variance + self.eps).rsqrt() * self._shared(f"{name}weight")
        return scaled + self._shared(f"{name}bias")

    def _cross_entropy(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Of each sample; the classes of a column are in one process of each row."""
        largest = logits.detach().amax(2, keepdim=True)
        self.grid.in_row.largest_(largest)
        apart = logits - largest
        at = targets - self.grid.column * logits.shape[2]
        here = (at >= 0) & (at < logits.shape[2])
        index = at.clamp(0, logits.shape[2] - 1).expand(len(logits), -1).unsqueeze(2)
        own = apart.gather(2, index).squeeze(2) * here
        return self._sum(apart.exp().sum(2), alike=True).log() - self._sum(own, alike=True)

    def _sum(self, part: Tensor, alike: bool = False) -> Tensor:
        return RowSum.apply(part, self.grid, alike)  # type: ignore[no-any-return, no-untyped-call]

    def _block(self, name: str) -> Tensor:
        found: Tensor = self.array.get_parameter(key_of(name))
        return found

    def _shared(self, name: str) -> Tensor:
        return Shared.apply(self._block(name), self.grid).unsqueeze(1)  # type: ignore[no-any-return, no-untyped-call]


class _Blocks(nn.Module):
    """The blocks of one member's parameters; it only holds them."""

    def __init__(self, blocks: Mapping[str, Tensor]) -> None:
        super().__init__()
        for name, block in blocks.items():
            self.register_parameter(key_of(name), nn.Parameter(block.clone()))


def key_of(name: str) -> str:
    """What a parameter's block is called in the array."""
    return name.replace(".", "__")


def _laid(name: str, value: Tensor, axes: int, q: int) -> Tensor:
    """A parameter as its blocks have it: a matrix of a linear layer transposed, and queries, keys and values of the
    same heads side by side."""
    value = value.mT if axes == 2 and name != "embedding.weight" else value
    return value[..., _order(value.shape[-1], q)] if "in_proj" in name else value


def _order(columns: int, q: int) -> Tensor:
    return torch.arange(columns).view(3, q, -1).transpose(0, 1).flatten()


def _joined(name: str, shape: torch.Size, parts: Sequence[Tensor], q: int) -> Tensor:
    """The whole ``[M, *shape]`` of all processes' blocks."""
    rows = [torch.cat(list(parts[i * q : (i + 1) * q]), -1) for i in range(q)]
    whole = torch.cat(rows, 1) if len(shape) == 2 else rows[0]
    if "in_proj" in name:
        whole = whole[..., _order(whole.shape[-1], q).argsort()]
    return whole.mT.contiguous() if len(shape) == 2 and name != "embedding.weight" else whole


def _checked(member: nn.Module, index: int, q: int) -> TransformerLM:
    """A member, if it can be divided.

    Raises:
        DistributedError: it can't.
    """
    where = f"members, member {index}"
    if not isinstance(member, TransformerLM):
        raise DistributedError("another family", where=where, got=type(member).__name__, accepted="transformer_lm")
    layer: Any = member.encoder.layers[0]
    if member.dropout.p:
        raise DistributedError("dropout draws otherwise in blocks", where=f"{where}, dropout", got=member.dropout.p,
                               accepted="0.0")  # fmt: skip
    sizes = {"vocab_size": member.embedding.num_embeddings, "width": member.width, "heads": layer.self_attn.num_heads,
             "hidden": layer.linear1.out_features}  # fmt: skip
    for name, size in sizes.items():
        if size % q:
            raise DistributedError(f"a size that {q} does not divide", where=f"{where}, {name}", got=size,
                                   accepted=f"a multiple of {q}")  # fmt: skip
    return member
