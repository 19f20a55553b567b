"""All public callables, each with arguments that are right, of which a test replaces some."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import hfta_nb as hfta
from hfta_nb.data import from_batches, from_dataset, from_loader, from_tensors
from hfta_nb.optim import lr_scheduler as schedules

MEMBERS = 3
generator = torch.Generator().manual_seed(0)
x = torch.randn(40, 3, generator=generator)
y = (x[:, 0] > 0).long()


def build(hidden: int = 4) -> nn.Module:
    return nn.Sequential(nn.Linear(3, hidden), nn.Tanh(), nn.Linear(hidden, 2))


@dataclass
class Call:
    """A call that is right.

    Attributes:
        function: what is called.
        given: its arguments by name; ``*`` of what is given by position.
        then: what is done with what it returns, before it counts as done.
        watched: what an error may not have changed.
    """

    function: Callable[..., Any]
    given: Mapping[str, Any]
    then: Callable[[Any], Any] = lambda found: None
    watched: Callable[[], Any] = lambda: None

    def __call__(self, given: Mapping[str, Any]) -> Any:
        named = dict(given)
        found = self.function(*named.pop("*", ()), **named)
        self.then(found)
        return found


def array() -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        found = hfta.fuse([build() for _ in range(MEMBERS)], seeds=range(MEMBERS))
    return found


def _values(*things: Any) -> Callable[[], list[Any]]:
    """What the tensors and numbers of arrays, optimizers and schedulers are."""

    def look() -> list[Any]:
        found: list[Any] = []
        for thing in things:
            state = thing.state_dict()
            found.append([(k, v.tolist()) for k, v in state.items()] if isinstance(thing, nn.Module) else repr(state))
        return found

    return look


def loss(out: Tensor, target: Tensor) -> Tensor:
    return nn.functional.cross_entropy(out, target)


def _optimizer(owner: Any, name: str = "SGD") -> Any:
    return getattr(hfta.optim, name)(owner, lr=0.1)


# Studies.


def _study_arguments(place: Path) -> dict[str, Any]:
    """Each of a study's arguments, with a value that it takes."""
    return {
        **{"family": build, "grid": {"lr": [0.1, 0.01]}, "data": (x, y), "epochs": 1, "batch_size": 20},
        **{"patience": 3, "min_delta": 0.0, "monitor": "val_loss", "device": "cpu", "dtype": "float32"},
        **{"precision": "fp32", "directory": place / "run", "serial": False, "across": "auto", "capacity": None},
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
    for _ in itertools.islice(study.run(), 8):
        pass


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
        return Call(getattr(owner, method), usual, watched=_values(owner))

    return make


def _join(place: Path) -> Call:
    return Call(hfta.join, {"a": array(), "b": array()})


def _forward(place: Path) -> Call:
    owner = array()
    return Call(owner, {"*": (x,)}, watched=_values(owner))


def _per_member(place: Path) -> Call:
    owner = array()
    return Call(hfta.per_member, {"value": torch.stack([x] * MEMBERS)}, lambda found: owner(found))


def _index(place: Path) -> Call:
    owner = array()
    return Call(lambda index: owner[index], {"index": 1})


def _loaded(place: Path) -> Call:
    owner = array()
    return Call(owner.load_state_dict, {"state_dict": owner.state_dict(), "strict": True}, watched=_values(owner))


# Optimizers.


def _optimizer_of(name: str) -> Callable[[Path], Call]:
    usual: dict[str, Any] = {"lr": [0.1, 0.2, 0.3]}
    usual |= {} if name in ("SparseAdam", "LBFGS", "Rprop") else {"weight_decay": 0.0}
    usual |= {"betas": (0.9, 0.99)} if name in ("Adam", "AdamW", "NAdam", "RAdam", "Adamax") else {}
    usual |= {"Rprop": {"etas": (0.5, 1.2), "step_sizes": (1e-6, 50)}, "Adafactor": {"eps": (None, 1e-3), "d": 1.0},
              "LBFGS": {"max_iter": 3, "max_eval": None, "history_size": 5, "line_search_fn": None},
              "SGD": {"momentum": 0.9, "nesterov": True, "maximize": False, "foreach": None},
              "RMSprop": {"alpha": 0.9, "momentum": 0.1, "centered": True},
              "ASGD": {"lambd": 1e-4, "alpha": 0.75, "t0": 1e6},
              "Adam": {"amsgrad": True, "eps": 1e-8}}.get(name, {})  # fmt: skip

    def make(place: Path) -> Call:
        owner = array()

        def stepped(optimizer: Any) -> None:
            for _ in range(2):
                optimizer.zero_grad()
                optimizer.step(lambda: owner.backward(loss, x, y))

        return Call(getattr(hfta.optim, name), {"params": owner, **usual}, stepped)

    return make


def _live(place: Path) -> Call:
    """A value that is written into a group."""
    owner = array()
    optimizer = _optimizer(owner)
    owner.backward(loss, x, y)

    def write(value: Any, name: str = "lr") -> None:
        optimizer.param_groups[0][name] = value
        optimizer.step()

    return Call(write, {"value": 0.5}, watched=_values(owner))


def _of_optimizer(method: str, **given: Any) -> Callable[[Path], Call]:
    def make(place: Path) -> Call:
        owner = array()
        optimizer = _optimizer(owner, "Adam")
        owner.backward(loss, x, y)
        optimizer.step()
        usual = dict(given)
        for name, value in (("state_dict", optimizer.state_dict), ("array", lambda: owner)):
            usual |= {name: value()} if name in given else {}
        if method == "load_state_of":
            usual["state_dict"] = optimizer.state_of(0)
        return Call(getattr(optimizer, method), usual, watched=_values(owner, optimizer))

    return make


def _clip(name: str, **given: Any) -> Callable[[Path], Call]:
    def make(place: Path) -> Call:
        owner = array()
        owner.backward(loss, x, y)
        return Call(getattr(hfta.optim, name), {"parameters": owner, **given})

    return make


def _scaler(place: Path) -> Call:
    given = {"init_scale": 2.0, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 2, "enabled": True}
    owner = array()

    def used(scaler: Any) -> None:
        optimizer = _optimizer(owner)
        scaler.scale(owner.losses(loss, owner(x), y)).sum().backward()
        scaler.step(optimizer)
        scaler.update()

    return Call(hfta.optim.GradScaler, {"array": owner, **given}, used)


def _of_scaler(method: str, **given: Any) -> Callable[[Path], Call]:
    def make(place: Path) -> Call:
        scaler = hfta.optim.GradScaler(array())
        usual = {"state_dict": scaler.state_dict()} if "state_dict" in given else given
        return Call(getattr(scaler, method), usual, watched=lambda: repr(scaler.state_dict()))

    return make


# Schedulers.

SCHEDULERS: dict[str, dict[str, Any]] = {
    "LambdaLR": {"lr_lambda": lambda epoch: 0.5},
    "MultiplicativeLR": {"lr_lambda": lambda epoch: 0.5},
    "StepLR": {"step_size": [1, 2, 3], "gamma": 0.1},
    "MultiStepLR": {"milestones": [1, 2], "gamma": 0.1},
    "ConstantLR": {"factor": 0.5, "total_iters": 2},
    "LinearLR": {"start_factor": 0.5, "end_factor": 1.0, "total_iters": 2},
    "ExponentialLR": {"gamma": [0.9, 0.8, 0.7]},
    "PolynomialLR": {"total_iters": 2, "power": 1.0},
    "CosineAnnealingLR": {"T_max": 3, "eta_min": 0.0},
    "CosineAnnealingWarmRestarts": {"T_0": 2, "T_mult": 1, "eta_min": 0.0},
    "CyclicLR": {"base_lr": 0.1, "max_lr": 0.2, "step_size_up": 2, "step_size_down": 2, "mode": "triangular",
                 "gamma": 1.0, "scale_fn": None, "scale_mode": "cycle", "cycle_momentum": False},
    "OneCycleLR": {"max_lr": 0.5, "total_steps": 9, "pct_start": 0.3, "anneal_strategy": "cos",
                   "cycle_momentum": False, "div_factor": 25.0, "final_div_factor": 1e4, "three_phase": False},
    "ReduceLROnPlateau": {"mode": "min", "factor": 0.1, "patience": 0, "threshold": 1e-4, "threshold_mode": "rel",
                          "cooldown": 0, "min_lr": 0.0, "eps": 1e-8},
}  # fmt: skip


def _scheduler(name: str) -> Callable[[Path], Call]:
    def make(place: Path) -> Call:
        owner = array()
        optimizer = _optimizer(owner)

        def stepped(scheduler: Any) -> None:
            owner.backward(loss, x, y)
            for step in range(4):
                optimizer.step()
                scheduler.step([float(step)] * MEMBERS) if name == "ReduceLROnPlateau" else scheduler.step()
            scheduler.get_last_lr()

        usual = {"optimizer": optimizer, **SCHEDULERS[name]}
        usual |= {} if name == "ReduceLROnPlateau" else {"last_epoch": -1}
        return Call(getattr(schedules, name), usual, stepped, _values(optimizer))

    return make


def _composed(name: str) -> Callable[[Path], Call]:
    def make(place: Path) -> Call:
        optimizer = _optimizer(array())
        parts = [schedules.ConstantLR(optimizer, 0.5, 2), schedules.ExponentialLR(optimizer, 0.9)]
        more = {"milestones": [2]} if name == "SequentialLR" else {}
        return Call(getattr(schedules, name), {"schedulers": parts, "optimizer": optimizer, **more},
                    lambda made: [made.step() for _ in range(4)])  # fmt: skip

    return make


def _by_member(place: Path) -> Call:
    optimizer = _optimizer(array())
    factory = functools.partial(torch.optim.lr_scheduler.ExponentialLR, gamma=0.9)
    return Call(schedules.ByMember, {"optimizer": optimizer, "factories": [factory] * MEMBERS},
                lambda made: [made.step() for _ in range(2)])  # fmt: skip


def _of_scheduler(method: str, **given: Any) -> Callable[[Path], Call]:
    def make(place: Path) -> Call:
        optimizer = _optimizer(array())
        scheduler = schedules.StepLR(optimizer, 1)
        usual = {"state_dict": scheduler.state_dict()} if "state_dict" in given else given
        return Call(getattr(scheduler, method), usual, watched=_values(optimizer, scheduler))

    return make


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

    return lambda place: Call(kind, {"every": 1, "perturb": {"lr": (0.5, 2.0)}, **given}, used)


def _grid(place: Path) -> Call:
    return Call(hfta.Grid, {"axes": {"lr": [0.1, 0.2], "seed": [1]}}, lambda grid: list(grid.variants()))


def _of_grid(method: str) -> Callable[[Path], Call]:
    return lambda place: Call(getattr(hfta.Grid({"lr": [0.1]}), method), {"listed": [{"lr": 0.3}]})


def _family(place: Path) -> Call:
    return Call(hfta.family, {"*": (build,), "name": "some", "loss": "cross_entropy"})


def _phase(place: Path) -> Call:
    return Call(hfta.Phase, {"name": "a", "trains": ["b"], "loss": loss, "every": 1})


OPTIMIZERS = ("ASGD", "LBFGS", "SGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam",
              "RMSprop", "Rprop", "SparseAdam")  # fmt: skip

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
    **{f"optim.{name}": _optimizer_of(name) for name in OPTIMIZERS},
    "optim, a live value": _live,
    "optimizer.load_state_dict": _of_optimizer("load_state_dict", state_dict=None),
    "optimizer.load_state_of": _of_optimizer("load_state_of", index=0, state_dict=None),
    "optimizer.state_of": _of_optimizer("state_of", index=0),
    "optimizer.copy_member": _of_optimizer("copy_member", src=0, dst=1),
    "optimizer.reset_member": _of_optimizer("reset_member", index=0),
    "optimizer.select": _of_optimizer("select", indices=[0, 1, 2], array=None),
    "optimizer.step": _of_optimizer("step", closure=None, skip=[1]),
    "optimizer.zero_grad": _of_optimizer("zero_grad", set_to_none=True),
    "clip_grad_norm_": _clip("clip_grad_norm_", max_norm=[1.0, 2.0, 3.0], norm_type=2.0, error_if_nonfinite=False),
    "clip_grad_value_": _clip("clip_grad_value_", clip_value=0.5),
    "clip_grads_with_norm_": _clip("clip_grads_with_norm_", max_norm=1.0, total_norm=torch.ones(MEMBERS)),
    "GradScaler": _scaler,
    "scaler.update": _of_scaler("update", new_scale=3.0),
    "scaler.scale": _of_scaler("scale", outputs=torch.ones(MEMBERS)),
    "scaler.load_state_dict": _of_scaler("load_state_dict", state_dict=None),
    "param_groups": lambda place: Call(hfta.optim.param_groups, {"module": array(), "choose": lambda n, p: {}}),
    **{f"lr_scheduler.{name}": _scheduler(name) for name in SCHEDULERS},
    "lr_scheduler.SequentialLR": _composed("SequentialLR"),
    "lr_scheduler.ChainedScheduler": _composed("ChainedScheduler"),
    "lr_scheduler.ByMember": _by_member,
    "scheduler.step": _of_scheduler("step", metrics=None, epoch=3),
    "scheduler.load_state_dict": _of_scheduler("load_state_dict", state_dict=None),
    "scheduler.copy_member": _of_scheduler("copy_member", src=0, dst=1),
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
    "PBT": _population(hfta.PBT, exploit=0.25),
    "Halving": _population(hfta.Halving, factor=2),
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
