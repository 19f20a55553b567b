"""Transformers whose matrices lie in blocks on a square of processes: what one of the processes computes."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

import hfta_nb as hfta
from hfta_nb.models.model_zoo.transformer_lm import TransformerLM
from hfta_nb.workers.distributed.grid_products import (
    Grid,
    Product,
    product,
    product_with_transposed,
    transposed_product,
)
from hfta_nb.workers.distributed.transformer_mesh import TransformerMesh

LRS, DECAYS, MEMBERS = [1e-2, 1e-3], [0.0, 0.1], 2
VOCABULARY, CONTEXT, WIDTH, HEADS, HIDDEN, DEPTH = 24, 6, 32, 4, 48, 2


def members() -> list[TransformerLM]:
    """Two members."""
    torch.manual_seed(0)
    return [TransformerLM(VOCABULARY, CONTEXT, WIDTH, HEADS, HIDDEN, DEPTH, 0.0).double() for _ in range(MEMBERS)]


def batches(steps: int) -> Iterable[tuple[Tensor, Tensor]]:
    """Tokens and the next ones."""
    draw = torch.Generator().manual_seed(1)
    for _ in range(steps):
        text = torch.randint(0, VOCABULARY, (4, CONTEXT + 1), generator=draw)
        yield text[:, :-1], text[:, 1:]


def _loss(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def alone(steps: int) -> tuple[Tensor, dict[str, Tensor]]:
    """The losses of one device, and its parameters in the end."""
    array, losses = hfta.fuse(list(members())), []
    optimizer = hfta.optim.AdamW(array, lr=LRS, weight_decay=DECAYS)
    for x, y in batches(steps):
        found: Any = array.backward(_loss, x, y)
        losses.append(found)
        optimizer.step()
        optimizer.zero_grad()
    return torch.stack(losses), {name: p.detach() for name, p in array.named_parameters()}


def meshed(steps: int) -> dict[str, Any]:
    """The same, of one of several processes, and what it holds, in bytes."""
    mesh, losses, saved = TransformerMesh(members()), [], dict[int, int]()
    optimizer = hfta.optim.AdamW(mesh.array, lr=LRS, weight_decay=DECAYS)

    def pack(tensor: Tensor) -> Tensor:
        if tensor.requires_grad and tensor.is_leaf:
            return tensor
        saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    sizes: dict[str, int] = {}
    for x, y in batches(steps):
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            losses.append(mesh.backward(x, y))
        parameters = list(mesh.array.parameters())
        blocks = {p.untyped_storage().data_ptr() for p in parameters}
        sizes["activations"] = sum(size for place, size in saved.items() if place not in blocks)
        saved.clear()
        sizes["parameters"] = sum(p.nbytes for p in parameters)
        sizes["gradients"] = sum(p.grad.nbytes for p in parameters if p.grad is not None)
        optimizer.step()
        state = [v for p in parameters for v in optimizer.state[p].values() if v.ndim > 1]
        sizes["state"] = sum(v.nbytes for v in state)
        optimizer.zero_grad()
    held_out = mesh.evaluate(*next(iter(batches(1))))
    return {"losses": torch.stack(losses), "weights": mesh.weights(), "sizes": sizes, "held_out": held_out}


def products() -> dict[str, Tensor]:
    """Products of matrices in blocks, and their gradients: the largest differences from whole ones."""
    torch.manual_seed(2)
    grid, size = Grid.of_torch(torch.device("cpu")), 12
    a, b = (torch.randn(2, size, size, dtype=torch.float64) for _ in range(2))

    def block(whole: Tensor) -> Tensor:
        return whole.chunk(grid.q, 1)[grid.row].chunk(grid.q, 2)[grid.column].contiguous()

    own = [block(v).requires_grad_() for v in (a, b)]
    wholes = [v.clone().requires_grad_() for v in (a, b)]
    Product.apply(*own, grid).sin().sum().backward()  # type: ignore[no-untyped-call]
    (wholes[0] @ wholes[1]).sin().sum().backward()  # type: ignore[no-untyped-call]
    found = {
        "AB": product(grid, block(a), block(b)) - block(a @ b),
        "AB'": product_with_transposed(grid, block(a), block(b)) - block(a @ b.mT),
        "A'B": transposed_product(grid, block(a), block(b)) - block(a.mT @ b),
    }
    for name, one, whole in zip(("dA", "dB"), own, wholes, strict=True):
        assert one.grad is not None
        assert whole.grad is not None
        found[name] = one.grad - block(whole.grad)
    return {name: v.abs().max() for name, v in found.items()}


def main(rank: int, count: int, store: str, result: str, steps: int) -> None:
    """A process of so many; without steps, products alone."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    torch_dist: Any = dist  # not all of it is typed
    dist.init_process_group("gloo", store=torch_dist.FileStore(store, count), rank=rank, world_size=count)
    try:
        found = {"products": products(), **(meshed(steps) if steps else {})}
    finally:
        dist.destroy_process_group()
    torch.save(found, result)
