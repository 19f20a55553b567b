"""Normalising flows, differential equations, spiking and liquid networks."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.unseen.models import By, add, drawn, get, made


class Solved(nn.Module):
    """An ordinary differential equation, solved by the function of a package."""

    def __init__(self, package: str, function: str, **keywords: Any) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4))
        self.package, self.function, self.keywords = package, function, keywords

    def forward(self, x: Tensor) -> Any:
        class Right(nn.Module):
            def __init__(self, net: nn.Module) -> None:
                super().__init__()
                self.net = net

            def forward(self, t: Tensor, y: Tensor) -> Any:
                return self.net(y)

        solve = getattr(importlib.import_module(self.package), self.function)
        return solve(Right(self.net), x, torch.linspace(0, 1, 3, dtype=x.dtype), **self.keywords)[-1]


class Equation(nn.Module):
    """A stochastic differential equation, solved by torchsde."""

    noise_type, sde_type = "diagonal", "ito"

    def __init__(self) -> None:
        super().__init__()
        self.drift, self.noise = nn.Linear(4, 4), nn.Linear(4, 4)

    def f(self, t: Tensor, y: Tensor) -> Any:
        return torch.tanh(self.drift(y))

    def g(self, t: Tensor, y: Tensor) -> Any:
        return 0.1 * torch.sigmoid(self.noise(y))

    def forward(self, x: Tensor) -> Any:
        torchsde = importlib.import_module("torchsde")
        times = torch.linspace(0, 1, 3, dtype=x.dtype)
        return torchsde.sdeint(self, x, times, dt=0.1, method="euler")[-1]


def _nflow(kind: str) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        flow, base = get("nflows.flows.base.Flow"), get("nflows.distributions.normal.StandardNormal")
        made = {
            "maf": lambda: get("nflows.transforms.autoregressive.MaskedAffineAutoregressiveTransform")(4, 8),
            "spline": lambda: get(
                "nflows.transforms.autoregressive.MaskedPiecewiseRationalQuadraticAutoregressiveTransform"
            )(4, 8, tails="linear", tail_bound=3.0),
            "lu": lambda: get("nflows.transforms.lu.LULinear")(4),
            "actnorm": lambda: get("nflows.transforms.normalization.ActNorm")(4),
            "batchnorm": lambda: get("nflows.transforms.normalization.BatchNorm")(4),
            "svd": lambda: get("nflows.transforms.svd.SVDLinear")(4, 2),
            "qr": lambda: get("nflows.transforms.qr.QRLinear")(4, 2),
        }[kind]
        join = get("nflows.transforms.base.CompositeTransform")
        affine = get("nflows.transforms.autoregressive.MaskedAffineAutoregressiveTransform")
        module: nn.Module = flow(join([made(), affine(4, 8)]), base([4]))
        return By(module, "log_prob")

    return build


# fmt: off
for _kind in ("maf", "spline", "lu", "actnorm", "batchnorm", "svd", "qr"):
    add("nflows", _kind, _nflow(_kind), drawn((6, 4)))
# fmt: on


def _normflow(kind: str) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        nf: Any = importlib.import_module("normflows")
        steps: list[Any] = []
        for _ in range(2):
            if kind == "realnvp":
                steps += [nf.flows.AffineCouplingBlock(nf.nets.MLP([2, 8, 4], init_zeros=False)), nf.flows.Permute(4)]
            elif kind == "planar":
                steps.append(nf.flows.Planar((4,)))
            elif kind == "radial":
                steps.append(nf.flows.Radial((4,)))
            elif kind == "spline":
                steps += [nf.flows.CoupledRationalQuadraticSpline(4, 1, 8), nf.flows.LULinearPermute(4)]
            elif kind == "residual":
                net = nf.nets.LipschitzMLP([4, 8, 4], init_zeros=False, lipschitz_const=0.9)
                steps += [nf.flows.Residual(net, reduce_memory=False), nf.flows.ActNorm(4)]
            elif kind == "glow":
                steps += [nf.flows.ActNorm(4), nf.flows.AffineCouplingBlock(nf.nets.MLP([2, 8, 4], init_zeros=False))]
        model = nf.NormalizingFlow(nf.distributions.DiagGaussian(4), steps)
        return By(model, "forward" if kind in ("planar", "radial") else "log_prob")

    return build


# fmt: off
for _kind in ("realnvp", "planar", "radial", "spline", "residual", "glow"):
    add("normflows", _kind, _normflow(_kind), drawn((6, 4)))
add("zuko", "NSF", lambda: _ZukoFlow("NSF"), drawn((6, 3)))
add("zuko", "MAF", lambda: _ZukoFlow("MAF"), drawn((6, 3)))
add("zuko", "NAF", lambda: _ZukoFlow("NAF"), drawn((6, 3)))
add("zuko", "CNF", lambda: _ZukoFlow("CNF"), drawn((6, 3)))
add("zuko", "SOSPF", lambda: _ZukoFlow("SOSPF"), drawn((6, 3)))
add("zuko", "GMM", lambda: _ZukoFlow("GMM"), drawn((6, 3)))
# fmt: on


class _ZukoFlow(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        flows = importlib.import_module("zuko.flows")
        more = {} if kind == "GMM" else {"hidden_features": (8, 8)}
        self.flow = getattr(flows, kind)(features=3, context=0, **more)

    def forward(self, x: Tensor) -> Any:
        return self.flow().log_prob(x)


# fmt: off
for _method in ("dopri5", "rk4", "euler"):
    add("torchdiffeq", f"odeint {_method}", lambda m=_method: Solved("torchdiffeq", "odeint", method=m), drawn((5,
         4)))
add("torchdiffeq", "odeint_adjoint", lambda: _Adjoint(), drawn((5, 4)))
add("torchsde", "sdeint", Equation, drawn((5, 4)))
# fmt: on


class _Adjoint(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4))
        self.right = _Right(self.net)

    def forward(self, x: Tensor) -> Any:
        solve = get("torchdiffeq.odeint_adjoint")
        return solve(self.right, x, torch.linspace(0, 1, 3, dtype=x.dtype), method="rk4")[-1]


class _Right(nn.Module):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, t: Tensor, y: Tensor) -> Any:
        return self.net(y)


def _snn(kind: str) -> Callable[[], nn.Module]:
    return lambda: _Spiking(kind)


class _Spiking(nn.Module):
    """A spiking neuron of snntorch over four steps in time."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        snn: Any = importlib.import_module("snntorch")
        made = {
            "Leaky": lambda: snn.Leaky(beta=0.9, init_hidden=True, learn_beta=True),
            "Synaptic": lambda: snn.Synaptic(alpha=0.9, beta=0.8, init_hidden=True),
            "Alpha": lambda: snn.Alpha(alpha=0.9, beta=0.8, init_hidden=True),
            "RLeaky": lambda: snn.RLeaky(beta=0.9, linear_features=6, init_hidden=True),
        }
        self.first, self.neuron, self.last = nn.Linear(4, 6), made[kind](), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Any:
        reset = getattr(self.neuron, "reset_mem", None) or self.neuron.reset_hidden
        reset()
        return sum(self.last(self.neuron(self.first(x)).to(x.dtype)) for _ in range(4))


# fmt: off
for _kind in ("Leaky", "Synaptic", "Alpha", "RLeaky"):
    add("snntorch", _kind, _snn(_kind), drawn((5, 4)))
# fmt: on


class _Jelly(nn.Module):
    """A neuron of spikingjelly, in steps in time."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 2)
        self.neuron = get(f"spikingjelly.activation_based.neuron.{kind}")()

    def forward(self, x: Tensor) -> Any:
        get("spikingjelly.activation_based.functional.reset_net")(self)
        return sum(self.last(self.neuron(self.first(x))) for _ in range(4))


# fmt: off
for _kind in ("LIFNode", "IFNode", "ParametricLIFNode", "QIFNode"):
    add("spikingjelly", _kind, lambda k=_kind: _Jelly(k), drawn((5, 4)))
add("ncps", "CfC", made("ncps.torch.CfC", 4, 8), drawn((3, 6, 4)))
add("ncps", "LTC", made("ncps.torch.LTC", 4, 8), drawn((3, 6, 4)))
add("ncps", "CfC wired", lambda: get("ncps.torch.CfC")(4, get("ncps.wirings.AutoNCP")(12, 3)), drawn((3, 6, 4)))
add("ncps", "LTC wired", lambda: get("ncps.torch.LTC")(4, get("ncps.wirings.AutoNCP")(12, 3)), drawn((3, 6, 4)))
# fmt: on
