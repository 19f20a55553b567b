"""All public callables, each with arguments that are right, of which a test replaces some."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import hfta_nb as hfta
from hfta_nb.data import from_batches, from_dataset, from_loader, from_tensors
from tests.attack.calls_of_optimizers import OF_OPTIMIZERS
from tests.attack.right_calls import MEMBERS, Call, array, build, loss, values, x, y

# Studies.


def _study_arguments(place: Path) -> dict[str, Any]:
    """Each of a study's arguments, with a value that it takes."""
    return {
        **{"family": build, "grid": {"lr": [0.1, 0.01]}, "data": (x, y), "epochs": 1, "batch_size": 20},
        **{"patience": 3, "min_delta": 0.0, "monitor": "val_loss", "device": "cpu", "dtype": "float32"},
        **{"precision": "fp32", "directory": place / "run", "serial": False, "padding": "auto", "capacity": None},
        **{"checkpointing": "never", "compile": "never", "strategy": "fixed", "deterministic": False},
        **{"verify": "never", "devices": 1, "devices_batch_norm": "sync", "share_stream": True, "seed": 0},
        **{"name": "a study", "validate_every": 1, "steps_per_epoch": 2, "validation_batch_size": 8},
        **{"drop_last": False, "loss": None, "metrics": ["accuracy"], "param_groups": None, "member_steps": 9},
        **{"member_seconds": 9.0, "keep_checkpoints": ["best"], "seeds_by": "mean", "population": None},
        **{"optimizer": "sgd", "momentum": 0.5, "weight_decay": 0.0, "lr_scheduler": "none"},
    }


def _trained(study: Any) -> None:
    """Train a little of what was accepted: what is wrong is said before, or by a typed error."""
    list(study.variants), repr(study), study.plan(measure=False)
    list(itertools.islice(study.run(), 8))


def _study(place: Path) -> Call:
    watched = functools.partial(_made, place)
    return Call(hfta.Study, _study_arguments(place), _trained, watched)


def _search(place: Path) -> Call:
    more = {"trials": 2, "slots": 2, "sampler": "random", "pruner": "none", "constraint": lambda config: True}
    more |= {"storage": None, "skip_duplicates": False, "timeout": 60.0, "seeds_by": "mean"}
    base = {k: v for k, v in _study_arguments(place).items() if k in ("family", "data", "epochs", "directory")}
    grid = {"lr": hfta.uniform(0.01, 0.1), "seed": [0]}
    return Call(hfta.Study, {**base, "grid": grid, **more}, _trained, functools.partial(_made, place))


def _made(place: Path) -> list[str]:
    return sorted(str(p.relative_to(place)) for p in place.rglob("*"))


def _new(place: Path) -> Any:
    grid = {"lr": [0.1, 0.01], "weight_decay": [0.0, 0.1]}
    return hfta.Study(build, grid, (x, y), epochs=1, directory=place / "run", verify="never")


def _run(place: Path) -> Call:
    study = _new(place)
    given = {"control": None, "resume": False, "epochs": 1, "executor": "inline", "workers": None, "address": None}
    return Call(study.run, given, lambda events: list(itertools.islice(events, 8)))


def _fit(place: Path) -> Call:
    study = _new(place)
    given = {"epochs": 1, "resume": False, "on_event": (), "on_trial": (), "progress": False, "control": None}
    return Call(study.fit, {**given, "executor": "inline", "workers": None, "address": None})


_done: dict[str, Any] = {}


def _finished(place: Path) -> Any:
    """A study that has run, made once."""
    if "study" not in _done:
        _done["study"] = _new(Path(__import__("tempfile").mkdtemp()))
        _done["study"].fit(progress=False)
    return _done["study"]


def _of_finished(method: str, **given: Any) -> Callable[[Path], Call]:
    def make(place: Path) -> Call:
        study = _finished(place)
        usual = {k: place / v if k in ("path", "cache") else v for k, v in given.items()}
        then = list if method == "check_events" else (lambda found: None)
        return Call(getattr(study, method), usual, then)

    return make


def _result(method: str, **given: Any) -> Callable[[Path], Call]:
    return lambda place: Call(getattr(_finished(place).member(0), method), given)


def _load(place: Path) -> Call:
    given = {"path": _finished(place).directory, "family": build, "data": None, "trust": False}
    return Call(hfta.Study.load, given)


def _add(place: Path) -> Call:
    study = _new(place)
    return Call(study.add, {"variants": {"lr": 0.5}}, watched=lambda: [v.label for v in study.variants])


# Arrays.


def _fuse(place: Path) -> Call:
    return Call(hfta.fuse, {"modules": [build(), build()], "seeds": [0, 1], "rng": "exact", "verify": "never"},
                lambda found: found(x))  # fmt: skip


def _of_array(method: str, **given: Any) -> Callable[[Path], Call]:
    def make(place: Path) -> Call:
        owner = array()
        usual = {**given, "state_dict": owner[0].state_dict()} if method == "load_member" else given
        return Call(getattr(owner, method), usual, watched=values(owner))

    return make


def _join(place: Path) -> Call:
    return Call(hfta.join, {"a": array(), "b": array()})


def _forward(place: Path) -> Call:
    owner = array()
    return Call(owner, {"*": (x,)}, watched=values(owner))


def _per_member(place: Path) -> Call:
    owner = array()
    return Call(hfta.per_member, {"value": torch.stack([x] * MEMBERS)}, lambda found: owner(found))


def _index(place: Path) -> Call:
    owner = array()
    return Call(lambda index: owner[index], {"index": 1})


def _loaded(place: Path) -> Call:
    owner = array()
    return Call(owner.load_state_dict, {"state_dict": owner.state_dict(), "strict": True}, watched=values(owner))


# Data, grids, metrics, requests.


def _from_tensors(place: Path) -> Call:
    given = {"x": x, "y": y, "x_validation": x[:9], "y_validation": y[:9], "name": "n", "task": "classification"}
    return Call(from_tensors, {**given, "num_classes": 2}, _read)


def _split_tensors(place: Path) -> Call:
    return Call(from_tensors, {"x": x, "y": y, "validation": 0.2}, _read)


def _read(data: Any) -> None:
    hfta.Study(build, {"lr": [0.1]}, data, epochs=1, verify="never")


def _pairs() -> list[tuple[Tensor, int]]:
    return [(row, int(label)) for row, label in zip(x, y, strict=True)]


def _from_dataset(place: Path) -> Call:
    given = {"training": _pairs(), "validation": _pairs()[:9], "name": "n", "task": "classification"}
    return Call(from_dataset, {**given, "held_out": 0.2, "in_memory": True, "num_classes": 2}, _read)


def _from_batches(place: Path) -> Call:
    def batches() -> Any:
        yield x[:8], y[:8]

    given = {"training": batches, "validation": batches, "name": "n", "task": "classification", "num_classes": 2}
    return Call(from_batches, given, _read)


def _from_loader(place: Path) -> Call:
    loader: Any = torch.utils.data.DataLoader(_pairs(), batch_size=8)  # type: ignore[arg-type]
    given = {"training": loader, "validation": loader, "name": "n", "task": "classification", "num_classes": 2}
    return Call(from_loader, given, _read)


def _plain(function: Callable[..., Any], **given: Any) -> Callable[[Path], Call]:
    return lambda place: Call(function, given)


def _control(method: str, **given: Any) -> Callable[[Path], Call]:
    def make(place: Path) -> Call:
        control = hfta.Control()
        return Call(getattr(control, method), given, watched=control._box.qsize)

    return make


def _metric(place: Path) -> Call:
    def score(out: Tensor, target: Tensor) -> Tensor:
        return (out.argmax(-1) == target).float().mean()

    given = {"function": score, "maximize": True, "finish": None, "accumulator": None, "additive": False}

    def used(metric: Any) -> None:
        hfta.Study(build, {"lr": [0.1]}, (x, y), metrics={"score": metric}, epochs=1, verify="never")

    return Call(hfta.Metric, given, used)


def _population(kind: Any, **given: Any) -> Callable[[Path], Call]:
    def used(made: Any) -> None:
        hfta.Study(build, {"lr": [0.1, 0.2, 0.3, 0.4]}, (x, y), population=made, epochs=2, verify="never")

    return lambda place: Call(kind, {"every": 1, **given}, used)


def _grid(place: Path) -> Call:
    return Call(hfta.Grid, {"axes": {"lr": [0.1, 0.2], "seed": [1]}}, lambda grid: list(grid.variants()))


def _of_grid(method: str) -> Callable[[Path], Call]:
    return lambda place: Call(getattr(hfta.Grid({"lr": [0.1]}), method), {"listed": [{"lr": 0.3}]})


def _family(place: Path) -> Call:
    return Call(hfta.family, {"*": (build,), "name": "some", "loss": "cross_entropy"})


def _phase(place: Path) -> Call:
    return Call(hfta.Phase, {"name": "a", "trains": ["b"], "loss": loss, "every": 1})


CALLS: dict[str, Callable[[Path], Call]] = {
    **{f"Study {n}": _study for n in range(6)},  # it has the most arguments
    **{f"Study, search {n}": _search for n in range(3)},
    "Study.run": _run,
    "Study.fit": _fit,
    "Study.add": _add,
    "Study.load": _load,
    "Study.results": _of_finished("results", over="lr"),
    "Study.best": _of_finished("best", over="lr"),
    "Study.member": _of_finished("member", id=0),
    "Study.check": _of_finished("check", members=[0], epochs=1),
    "Study.plan": _of_finished("plan", measure=False),
    "Study.export": _of_finished("export", path="out.csv", what="results"),
    "Study.save": _of_finished("save", path="saved"),
    "Study.simulate": _of_finished("simulate", gpus=2, profile=None, price_per_device_h=1.0),
    "Study.curves": _of_finished("curves", metric="val_loss", over="lr"),
    "Study.slices": _of_finished("slices", metric="val_loss"),
    "Study.contour": _of_finished("contour", a="lr", b="weight_decay", metric="val_loss"),
    "Study.profile": _of_finished("profile", cache="cache.json", devices=1),
    "Result.module": _result("module", at="best"),
    "Result.inputs": _result("inputs", x=x),
    "Result.loss": _result("loss", at="best"),
    "fuse": _fuse,
    "join": _join,
    "why_not": lambda place: Call(hfta.why_not, {"a": build(), "b": build()}),
    "per_member": _per_member,
    "array()": _forward,
    "array[]": _index,
    "array.select": _of_array("select", indices=[0, 2]),
    "array.load_member": _of_array("load_member", index=0, state_dict=None, strict=True),
    "array.copy_member": _of_array("copy_member", src=0, dst=1),
    "array.load_state_dict": _loaded,
    "array.backward": _of_array("backward", loss_fn=loss, x=x, y=y, has_aux=False, scale=None, only=None),
    "array.losses": _of_array("losses", loss_fn=loss, output=torch.zeros(MEMBERS, 40, 2), y=y),
    "array.evaluate": _of_array("evaluate", function=loss, x=x, y=y),
    "array.train": _of_array("train", mode=True),
    "array.tune": _of_array("tune", loss_fn=loss, x=x, y=y, budget_s=0.01),
    **OF_OPTIMIZERS,
    "from_tensors": _from_tensors,
    "from_tensors, split": _split_tensors,
    "from_dataset": _from_dataset,
    "from_batches": _from_batches,
    "from_loader": _from_loader,
    "uniform": _plain(hfta.uniform, low=0.1, high=1.0, log=True, step=None),
    "integers": _plain(hfta.integers, start=1, stop=9, step=2),
    "linspace": _plain(hfta.linspace, start=0.0, stop=1.0, count=3),
    "logspace": _plain(hfta.logspace, start=0.1, stop=1.0, count=3),
    "seeds": _plain(hfta.seeds, count=3, start=0),
    "Grid": _grid,
    "Grid.of": _of_grid("of"),
    "Grid.plus": _of_grid("plus"),
    "Metric": _metric,
    "PBT": _population(hfta.PBT, exploit=0.25, perturb={"lr": (0.5, 2.0)}),
    "Halving": _population(hfta.Halving, factor=2, perturb={"lr": (0.5, 2.0)}),
    "Leader": _population(hfta.Leader, pull=0.1, global_pull=0.1, groups=2, leader="val_loss"),
    "Phase": _phase,
    "family": _family,
    "control.pause": _control("pause", variant=1),
    "control.resume": _control("resume", variant=1),
    "control.stop": _control("stop", variant=1),
    "control.delete": _control("delete", variant=1),
    "control.pin": _control("pin", variant=1, pinned=True),
    "control.clone": _control("clone", variant=1, warm=True, lr=0.3),
    "control.set": _control("set", variant=1, lr=0.3),
    "control.extend": _control("extend", epochs=3, variant=1),
    "control.add": _control("add", variants=[{"lr": 0.1}]),
    "control.wait": _control("wait", timeout_s=0.01),
    "control.post": _control("post", request=hfta.events.Stop(1) if hasattr(hfta, "events") else None),
}  # fmt: skip
