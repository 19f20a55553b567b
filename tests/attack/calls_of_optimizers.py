"""Calls of optimizers, clipping, scalers and lr schedulers; see `calls`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import hfta_nb as hfta
from hfta_nb.optim import lr_scheduler as schedules
from tests.attack.right_calls import MEMBERS, Call, array, loss, made_optimizer, values, x, y


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
    optimizer = made_optimizer(owner)
    owner.backward(loss, x, y)

    def write(value: Any, name: str = "lr") -> None:
        optimizer.param_groups[0][name] = value
        optimizer.step()

    return Call(write, {"value": 0.5}, watched=values(owner))


def _of_optimizer(method: str, **given: Any) -> Callable[[Path], Call]:
    def make(place: Path) -> Call:
        owner = array()
        optimizer = made_optimizer(owner, "Adam")
        owner.backward(loss, x, y)
        optimizer.step()
        usual = dict(given)
        for name, value in (("state_dict", optimizer.state_dict), ("array", lambda: owner)):
            usual |= {name: value()} if name in given else {}
        if method == "load_state_of":
            usual["state_dict"] = optimizer.state_of(0)
        return Call(getattr(optimizer, method), usual, watched=values(owner, optimizer))

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
        optimizer = made_optimizer(owner)
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
        optimizer = made_optimizer(owner)

        def stepped(scheduler: Any) -> None:
            owner.backward(loss, x, y)
            for step in range(4):
                optimizer.step()
                scheduler.step([float(step)] * MEMBERS) if name == "ReduceLROnPlateau" else scheduler.step()
            scheduler.get_last_lr()

        usual = {"optimizer": optimizer, **SCHEDULERS[name]}
        usual |= {} if name == "ReduceLROnPlateau" else {"last_epoch": -1}
        return Call(getattr(schedules, name), usual, stepped, values(optimizer))

    return make


def _composed(name: str) -> Callable[[Path], Call]:
    def make(place: Path) -> Call:
        optimizer = made_optimizer(array())
        parts = [schedules.ConstantLR(optimizer, 0.5, 2), schedules.ExponentialLR(optimizer, 0.9)]
        more = {"milestones": [2]} if name == "SequentialLR" else {}
        return Call(getattr(schedules, name), {"schedulers": parts, "optimizer": optimizer, **more},
                    lambda made: [made.step() for _ in range(4)])  # fmt: skip

    return make


def _by_member(place: Path) -> Call:
    optimizer = made_optimizer(array())
    factory = functools.partial(torch.optim.lr_scheduler.ExponentialLR, gamma=0.9)
    return Call(schedules.ByMember, {"optimizer": optimizer, "factories": [factory] * MEMBERS},
                lambda made: [made.step() for _ in range(2)])  # fmt: skip


def _of_scheduler(method: str, **given: Any) -> Callable[[Path], Call]:
    def make(place: Path) -> Call:
        optimizer = made_optimizer(array())
        scheduler = schedules.StepLR(optimizer, 1)
        usual = {"state_dict": scheduler.state_dict()} if "state_dict" in given else given
        return Call(getattr(scheduler, method), usual, watched=values(optimizer, scheduler))

    return make


OPTIMIZERS = ("ASGD", "LBFGS", "SGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam",
              "RMSprop", "Rprop", "SparseAdam")  # fmt: skip

OF_OPTIMIZERS: dict[str, Callable[[Path], Call]] = {
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
}
