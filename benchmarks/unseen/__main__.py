"""Models of packages that no test uses, trained in an array and as plain modules.

Each model runs in a separate process: three members in float64, two training steps and an evaluation, by
`array.backward` and by `array(x)`. Losses, gradients, buffers and outputs are compared with the members trained alone.

    python -m benchmarks.unseen [--json] [--only NAME ...] [--quick] [--python PYTHON]

The packages named in this folder are no dependencies of the project: install them with `pip install --no-deps` into a
separate environment with torch, and pass its interpreter. Missing packages are skipped and listed.
"""

from __future__ import annotations

import argparse
import copy
import importlib.metadata
import json
import random
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.common import write
from benchmarks.unseen import attention, flows, habits, numerics, others, signals, transformers, ways  # noqa: F401
from benchmarks.unseen.models import MODELS, Model

ROOT = Path(__file__).resolve().parents[2]
MEMBERS, STEPS, RATE = 3, 2, 1e-2
LIMIT_S = 240
EQUAL, MENDED, REFUSED, DIFFERENT = (
    "equal",
    "mended, with a warning",
    "refused with a typed error",
    "silently different",
)
FAILS, ABSENT, RAISES = "the plain module fails", "not installed", "an error of no type of ours"


def leaves(tree: Any) -> list[Tensor]:
    from hfta_nb.engine.members.tree import flatten

    found = [v for v in flatten(tree)[0] if isinstance(v, Tensor)]
    return [torch.view_as_real(v) if v.is_complex() else v for v in found if v.is_floating_point() or v.is_complex()]


def loss_of(out: Any, y: Any) -> Tensor:
    """A number that depends on every entry of what a model returns."""
    total = torch.zeros((), dtype=torch.float64)
    for i, v in enumerate(leaves(out)):
        weights = torch.linspace(-1, 1, max(2, v.numel()), dtype=v.dtype)[: v.numel()].view(v.shape)
        total = total + ((v - 0.1 * (i + 1)) ** 2).mean() + (v * weights).mean()
    return total


def seeded_inputs(model: Model) -> tuple[Any, ...]:
    torch.manual_seed(100)
    return tuple(v.double() if isinstance(v, Tensor) and v.is_floating_point() else v for v in model.inputs())


def members(model: Model, like: Sequence[nn.Module] = ()) -> list[nn.Module]:
    """The members; with the weights of others, as not every package makes the same ones from the same seed.

    These are not copies of the others, which may hold hooks that refer to the original.
    """
    made = []
    for seed in range(MEMBERS):
        begin(seed)
        module = model.build().double().train()
        for t in [*module.parameters(), *module.buffers()]:
            t.data = t.data.to(torch.cdouble) if t.is_complex() else t.data
        made.append(module)
    for module, other in zip(made, like, strict=False):
        pairs = zip([*module.parameters(), *module.buffers()], [*other.parameters(), *other.buffers()], strict=True)
        for own, given in pairs:
            own.data.copy_(given.data)
    return made


def begin(seed: int) -> None:
    """Set all random streams; those of Python and NumPy are the same for all members."""
    torch.manual_seed(seed)
    np.random.seed(0)
    random.seed(0)


def descend(tensors: Any) -> None:
    with torch.no_grad():
        for p in tensors:
            if p.grad is not None:
                p -= RATE * p.grad


def alone(module: nn.Module, seed: int, inputs: tuple[Any, ...]) -> dict[str, Any]:
    """The outcome of training a plain module."""
    found: dict[str, Any] = {}
    begin(seed)
    for step in range(STEPS):
        for p in module.parameters():
            p.grad = None
        loss = loss_of(module(*inputs), None)
        loss.backward()
        found[f"loss {step}"] = loss.detach()
        found |= {f"gradient {step} of {n}": copy.deepcopy(p.grad) for n, p in module.named_parameters()}
        descend(module.parameters())
    found |= {f"buffer {n}": b.detach().clone() for n, b in module.named_buffers()}
    with torch.no_grad():
        found["evaluation"] = loss_of(module.eval()(*inputs), None)
    return found


def together(array: Any, split: bool, inputs: tuple[Any, ...]) -> dict[str, Any]:
    """The same outcome of an array, with a member axis."""
    from hfta_nb.engine.members.tree import tensor_map

    found: dict[str, Any] = {}
    for step in range(STEPS):
        for p in array.parameters():
            p.grad = None
        if split:
            out = array(*inputs)
            losses = torch.stack([loss_of(tensor_map(lambda t: t[i], out), None) for i in range(MEMBERS)])  # noqa: B023
            losses.sum().backward()
        else:
            losses = array.backward(loss_of, inputs, torch.zeros(1))
        found[f"loss {step}"] = losses.detach()
        found |= {f"gradient {step} of {n}": copy.deepcopy(p.grad) for n, p in array.named_parameters()}
        descend(array.parameters())
    plain = [dict(array[i].named_buffers()) for i in range(MEMBERS)]  # the model may create buffers in its forward
    found |= {f"buffer {n}": [own.get(n) for own in plain] for n in plain[0]}
    array.eval()
    found["evaluation"] = array.evaluate(loss_of, inputs, torch.zeros(1))
    return found


def off(own: Any, other: Any) -> float:
    """The relative difference of two results; 0 within rounding."""
    if own is None or other is None:
        value = other if own is None else own
        return 0.0 if value is None else float(value.abs().max())
    if own.shape != other.shape:
        return float("inf")
    if other.numel() == 0 or torch.equal(own, other) or not bool(other.double().isfinite().all()):
        return 0.0
    return float((own.double() - other.double()).abs().max()) / max(1.0, float(other.double().abs().max()))


def judged(model: Model, split: bool) -> tuple[str, str]:
    """The verdict on a model in a form, with an explanation."""
    import hfta_nb as hfta
    from hfta_nb.errors import ArrayWarning, HftaError

    inputs, modules = seeded_inputs(model), members(model)
    try:
        wanted = [alone(m, i, copy.deepcopy(inputs)) for i, m in enumerate(members(model, modules))]
    except Exception as error:
        return FAILS, f"{type(error).__name__}: {error}"[:200]
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        begin(0)
        try:
            array = hfta.fuse(modules, list(range(MEMBERS)))
            found = together(array, split, copy.deepcopy(inputs))
        except HftaError as error:
            return REFUSED, str(error)[:300]
        except Exception as error:
            return RAISES, f"{type(error).__name__}: {error}"[:300]
    told = [str(w.message) for w in heard if issubclass(w.category, ArrayWarning)]
    worst, where = 0.0, ""
    for i, one in enumerate(wanted):
        for key, value in one.items():
            own = found.get(key)
            far = off(None if own is None else own[i], value)
            if far > worst:
                worst, where = far, f"member {i}, {key}"
    if worst > 1e-9:
        return DIFFERENT, f"{worst:.1e} in {where}"
    how = [*array.settings.notes, *(f"{path}: {why}" for path, why in array.settings.paths.items())]
    if any("than alone" in text for text in told):
        return MENDED, "; ".join(told)[:300]
    return EQUAL, "; ".join(how)[:300]


def one(name: str) -> dict[str, Any]:
    """A row, measured in this process."""
    torch.set_num_threads(1)
    model = MODELS[name]
    torch.set_default_dtype(model.dtype)
    row: dict[str, Any] = {"model": name, "package": model.package}
    try:
        row["version"] = importlib.metadata.version(model.package)
        model.build()
    except (ImportError, importlib.metadata.PackageNotFoundError) as error:
        return row | {"backward": ABSENT, "array(x)": ABSENT, "note": str(error)[:200]}
    except Exception as error:
        return row | {"backward": FAILS, "array(x)": FAILS, "note": f"{type(error).__name__}: {error}"[:200]}
    notes = []
    for form, split in (("backward", False), ("array(x)", True)):
        row[form], note = judged(model, split)
        notes.append(note)
    return row | {"note": "; ".join(dict.fromkeys(n for n in notes if n))}


def in_child(name: str, python: str) -> dict[str, Any]:
    command = [python, "-m", "benchmarks.unseen", "--one", name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, cwd=ROOT, check=False)
        row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return row
    except (subprocess.TimeoutExpired, IndexError, json.JSONDecodeError) as error:
        return {
            "model": name,
            "package": MODELS[name].package,
            "backward": RAISES,
            "array(x)": RAISES,
            "note": f"the process gave no answer: {error}"[:200],
        }


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """How many models have each verdict; the worse one of a model's two forms counts."""
    order = [EQUAL, MENDED, REFUSED, RAISES, DIFFERENT, FAILS, ABSENT]
    counts = Counter(max((row["backward"], row["array(x)"]), key=order.index) for row in rows)
    tried = sum(n for verdict, n in counts.items() if verdict not in (FAILS, ABSENT))
    right = counts[EQUAL] + counts[MENDED]
    return {"models": tried, "as_alone": right, "share": round(right / max(1, tried), 4), **dict(counts)}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="rows as JSON on the standard output, and no words")
    parser.add_argument("--only", nargs="+", choices=list(MODELS), metavar="NAME", help="these models")
    parser.add_argument("--python", default=sys.executable, help="the interpreter that has the packages")
    parser.add_argument("--quick", action="store_true", help="two models, to see that it works")
    parser.add_argument("--one", choices=list(MODELS), metavar="NAME", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one is not None:
        print(json.dumps(one(given.one)))
        return 0
    names = given.only or list(MODELS)[: 2 if given.quick else None]
    rows = []
    for name in names:
        rows.append(in_child(name, given.python))
        if not given.json:
            print(f"{name:44} {rows[-1]['backward']:28} {rows[-1]['array(x)']:28} {rows[-1]['note'][:90]}", flush=True)
    content = {"what": (__doc__ or "").partition("\n")[0], "summary": summary(rows), "rows": rows}
    path = None if given.quick or given.only else write("unseen_models", content)
    print(json.dumps(content, indent=2) if given.json else f"{content['summary']} {path or ''}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
