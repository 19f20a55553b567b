"""`jax.vmap` under `jax.jit`: gradients and Adam of all members in one compiled call."""

from __future__ import annotations

import importlib.util
import os
from typing import Any

import torch
from torch import Tensor

from benchmarks.suite.job import Job, UnavailableError
from benchmarks.suite.modes.base import Mode
from benchmarks.suite.tasks import Feed

PRODUCTS = {"float32": "highest", "tf32": "tensorfloat32", "bf16": "highest", "fp16": "highest"}


class Jax(Mode):
    """One jitted call per step: batch selection by index, vmapped loss and gradients, Adam; states are donated."""

    on_torch_stream = False
    note = "jit time is in prepare_s"

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        if importlib.util.find_spec("jax") is None:
            raise UnavailableError("jax is not installed")
        if job.precision == "fp16":
            raise UnavailableError("the suite has no gradient scaling for jax, which fp16 needs")
        _settle(job)
        import jax

        from benchmarks.suite.modes.jax_models import MODELS

        if job.model not in MODELS:
            raise UnavailableError(f"the suite has {job.model} in torch only; jax runs {', '.join(MODELS)}")
        self.jax = jax
        self.place = self._place()
        jax.config.update("jax_default_matmul_precision", PRODUCTS[job.precision])
        convert, self.apply = MODELS[job.model]
        feed = Feed(job.task, torch.device("cpu"))
        [x] = feed.x
        self.x, self.y = self._put(x), self._put(feed.y)
        self.rows = [self._put(rows) for rows in feed.rows]
        members = [convert(_arrays(job.task.member(i))) for i in range(job.members)]
        constants = {k for k in members[0] if k in ("positions",)}
        self.constants = {k: self._put(members[0][k]) for k in constants}
        stacked = {k: _stack([m[k] for m in members]) for k in members[0] if k not in constants}
        parameters = {k: self._put(v) for k, v in stacked.items()}
        self.state = (parameters, *({k: jax.numpy.zeros_like(v) for k, v in parameters.items()} for _ in range(2)))
        self.lrs = self._put(torch.tensor(job.lrs))
        self.step = self._jitted()

    def train(self, steps: int) -> list[Any]:
        held = []
        for number in range(self.done, self.done + steps):
            rows = self.rows[number % len(self.rows)]
            losses, self.state = self.step(self.state, self.lrs, float(number + 1), self.x, self.y, rows)
            held.append(losses)
        return held

    def losses(self, held: list[Any]) -> list[list[float]]:
        return [step.tolist() for step in self.jax.device_get(held)]

    def synchronise(self) -> None:
        self.jax.block_until_ready(self.state)

    def own_memory(self) -> int | None:
        if self.job.where.type == "cpu":
            return None
        counted = self.place.memory_stats() or {}
        found: int | None = counted.get("peak_bytes_in_use")
        return found

    def close(self) -> None:
        self.jax.clear_caches()

    def _place(self) -> Any:
        kind = "cpu" if self.job.where.type == "cpu" else "gpu"
        try:
            return self.jax.devices(kind)[0]
        except RuntimeError as error:
            raise UnavailableError(f"jax finds no {kind}: {str(error)[:200]}") from error

    def _put(self, value: Any) -> Any:
        return self.jax.device_put(value.numpy() if isinstance(value, Tensor) else value, self.place)

    def _jitted(self) -> Any:
        from benchmarks.suite.modes.jax_models import cross_entropy

        jax, jnp, apply, constants = self.jax, self.jax.numpy, self.apply, self.constants
        half = {torch.bfloat16: jnp.bfloat16}.get(self.job.half) if self.job.half is not None else None

        def loss(parameters: Any, x: Any, y: Any) -> Any:
            return cross_entropy(apply({**parameters, **constants}, x, half), y)

        gradients = jax.vmap(jax.value_and_grad(loss), in_axes=(0, None, None))

        def step(state: Any, lrs: Any, count: Any, xs: Any, ys: Any, rows: Any) -> Any:
            parameters, means, squares = state
            losses, found = gradients(parameters, xs[rows], ys[rows])
            slopes = 1 - 0.9**count, 1 - 0.999**count
            for name, g in found.items():
                mean = means[name] = 0.9 * means[name] + 0.1 * g
                square = squares[name] = 0.999 * squares[name] + 0.001 * g * g
                lr = lrs.reshape(-1, *(1,) * (g.ndim - 1))
                change = lr * (mean / slopes[0]) / (jnp.sqrt(square / slopes[1]) + 1e-8)
                parameters[name] = parameters[name] - change
            return losses, (parameters, means, squares)

        return jax.jit(step, donate_argnums=0)


def _settle(job: Job) -> None:
    """Settings before jax is imported: as many threads as torch, memory allocated on demand."""
    if job.where.type == "cpu":
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
        if torch.get_num_threads() == 1:
            flags = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
            os.environ.setdefault("XLA_FLAGS", flags)
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


def _arrays(module: torch.nn.Module) -> dict[str, Any]:
    """All tensors of a member except masks, as numpy arrays."""
    named = [*module.named_parameters(), *((k, b) for k, b in module.named_buffers() if k != "mask")]
    return {k: v.detach().numpy() for k, v in named}


def _stack(arrays: list[Any]) -> Any:
    import numpy as np

    return np.stack(arrays)
