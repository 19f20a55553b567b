"""The time of each kernel variant in the steps of the suite's models.

    OMP_NUM_THREADS=1 python benchmarks/kernels.py --out benchmarks/results/kernels_cpu.json

The times are those by which a training step chooses: medians of alternating laps, on the shapes and memory layouts of
the step; a norm of images includes the ReLU and max-pooling after it and all gradients. Earlier measurements are not
used; the package's own library is compiled first. Adam is not chosen by time and is measured separately: an optimizer
step by torch's fused kernel, and by the library. So is an LSTM of the suite's size, forward and backward: by torch's
kernel member by member, and by the library.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
from typing import Any

import torch
from torch import nn

import hfta_nb as hfta
from benchmarks.common import environment, laps, options
from benchmarks.suite.job import Job, numbers
from benchmarks.suite.modes.ours import Ours
from hfta_nb.engine.kernels.native import build
from hfta_nb.engine.rules.lstm import LSTM

ROUNDS, LAPS = 30, 20


def kernels(model: str, members: int) -> list[dict[str, Any]]:
    """Microseconds of each kernel with several variants, by variant."""
    job = Job(model=model, members=members)
    with numbers(job):
        ours = Ours(job)
        ours.lap(5)
        return [
            {
                "model": model,
                "members": members,
                "block_size": ours.array.block_size,
                "kernel": choice.what,
                "chosen": choice.chosen.name,
                "us": {name: None if s is None else round(s * 1e6, 2) for name, s in choice.seconds.items()},
            }
            for choice in ours.array._calls.steps.choices()
        ]


def adam(members: int) -> dict[str, Any]:
    """Microseconds of a step of Adam over the suite's multilayer perceptrons, by implementation."""
    sizes = [(64, 128), (128, 128), (128, 10)]
    steps: dict[str, Any] = {}
    for way in ("torch", "own kernel"):
        if way == "torch":
            os.environ[build.VARIABLE] = "off"
        else:
            os.environ.pop(build.VARIABLE, None)
        array = hfta.fuse([nn.Sequential(*(nn.Linear(*size) for size in sizes)) for _ in range(members)])
        optimizer = hfta.optim.Adam(array, lr=[1e-3] * members, fused=True)
        array.backward(lambda out, y: out.square().mean(), torch.randn(8, 64))
        for _ in range(3):  # this binds the calls
            optimizer.step()
        steps[way] = optimizer.step
    times = laps(steps, ROUNDS, calls=LAPS)
    return {"members": members, "us": {way: round(statistics.median(t) * 1e6, 2) for way, t in times.items()}}


def lstm(members: int) -> dict[str, Any]:
    """Microseconds of an LSTM from 64 to 64 over 32 steps of 16 samples, forward and backward, by implementation."""
    steps, samples, wide = 32, 16, 64
    x, by_out = torch.randn(steps, samples, wide, requires_grad=True), torch.randn(steps, samples, wide)
    modules = [nn.LSTM(wide, wide) for _ in range(members)]
    weights = [torch.stack(p).detach().requires_grad_() for p in zip(*(m.parameters() for m in modules), strict=True)]
    many, by_all = x.detach().expand(members, -1, -1, -1).requires_grad_(), by_out.expand(members, -1, -1, -1)
    start = torch.zeros(members, samples, wide)

    def torchs() -> None:
        for module in modules:
            torch.autograd.grad(module(x)[0], [x, *module.parameters()], by_out)

    def own() -> None:
        out = LSTM.apply(many, *weights, start, start, False)[0]
        torch.autograd.grad(out, [many, *weights], by_all)

    times = laps({"torch": torchs, "own kernel": own}, ROUNDS, calls=LAPS)
    return {"members": members, "us": {way: round(statistics.median(t) * 1e6, 2) for way, t in times.items()}}


def main() -> int:
    parser = options(__doc__, members=[1, 8], out=None)
    parser.add_argument("--models", nargs="+", default=["mlp", "cnn", "lstm", "transformer"])
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HFTA_NB_CACHE"] = folder
        libraries = build.make_all()
        rows = [row for model in given.models for members in given.members for row in kernels(model, members)]
        found = {**environment(), "libraries": libraries, "rows": rows}
        found |= {"adam": [adam(m) for m in given.members], "lstm": [lstm(m) for m in given.members]}
    for row in rows:
        told = ", ".join(f"{way} {us}" for way, us in row["us"].items())
        print(f"{row['model']} x {row['members']}: {row['kernel']}: {told}")
    for name in ("adam", "lstm"):
        for row in found[name]:
            print(f"{name} x {row['members']}: {row['us']}")
    if given.out is not None:
        given.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
