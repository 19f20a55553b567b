"""Diffusion, operators, Bayesian and invertible networks, equilibria, processes, policies, tables and signals."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.unseen.attention import Called
from benchmarks.unseen.models import By, add, drawn, get, made


def _steps() -> tuple[Any, ...]:
    return torch.randn(2, 3, 8, 8), torch.tensor([3, 7])


def _unet() -> nn.Module:
    module: nn.Module = get("diffusers.UNet2DModel")(
        sample_size=8, block_out_channels=(8, 16), norm_num_groups=4, layers_per_block=1, attention_head_dim=4,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"), dropout=0.1,
    )  # fmt: skip
    return Called(module, return_dict=False)


def _conditional() -> nn.Module:
    module: nn.Module = get("diffusers.UNet2DConditionModel")(
        sample_size=8, in_channels=3, out_channels=3, block_out_channels=(8, 16), norm_num_groups=4,
        layers_per_block=1, cross_attention_dim=8, attention_head_dim=4,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
    )  # fmt: skip
    module.enable_gradient_checkpointing()  # type: ignore[operator]
    return Called(module)


def _diffusion() -> nn.Module:
    package: Any = importlib.import_module("denoising_diffusion_pytorch")
    unet = package.Unet(8, dim_mults=(1, 2), attn_dim_head=4, attn_heads=2, self_condition=True, dropout=0.1)
    module: nn.Module = package.GaussianDiffusion(unet, image_size=8, timesteps=10)
    return module


class _Process(nn.Module):
    """A deep kernel: the likelihood of a Gaussian process on the features of a network."""

    def __init__(self, exact: bool) -> None:
        super().__init__()
        gp: Any = importlib.import_module("gpytorch")
        self.net, self.noise = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)), gp.likelihoods
        self.noise = gp.likelihoods.GaussianLikelihood()
        self.mean = gp.means.LinearMean(2)
        self.kernel = gp.kernels.ScaleKernel(gp.kernels.MaternKernel(nu=2.5, ard_num_dims=2) + gp.kernels.RBFKernel())
        self.exact = exact

    def forward(self, x: Tensor) -> Any:
        gp: Any = importlib.import_module("gpytorch")
        features = self.net(x)
        prior = gp.distributions.MultivariateNormal(self.mean(features), self.kernel(features))
        seen = self.noise(prior)
        return seen.log_prob(x.sum(-1)) if self.exact else (seen.mean, seen.variance)


class _Variational(nn.Module):
    """A variational Gaussian process with learned inducing points."""

    def __init__(self) -> None:
        super().__init__()
        gp: Any = importlib.import_module("gpytorch")

        class Inner(gp.models.ApproximateGP):  # type: ignore[misc]
            def __init__(self, points: Tensor) -> None:
                spread = gp.variational.CholeskyVariationalDistribution(len(points))
                super().__init__(gp.variational.VariationalStrategy(self, points, spread))
                self.mean, self.kernel = gp.means.ConstantMean(), gp.kernels.ScaleKernel(gp.kernels.RBFKernel())

            def forward(self, x: Tensor) -> Any:
                return gp.distributions.MultivariateNormal(self.mean(x), self.kernel(x))

        self.inner, self.first = Inner(torch.randn(3, 2)), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Any:
        found = self.inner(torch.tanh(self.first(x)))
        return found.mean, found.variance, self.inner.variational_strategy.kl_divergence()


class _Equilibrium(nn.Module):
    """A deep equilibrium model, solved by the solver of a package."""

    def __init__(self, solver: str, **keywords: Any) -> None:
        super().__init__()
        self.inner, self.outer, self.last = nn.Linear(6, 6), nn.Linear(4, 6), nn.Linear(6, 2)
        with torch.no_grad():
            self.inner.weight.mul_(0.5)
        self.deq = get("torchdeq.get_deq")(f_solver=solver, b_solver=solver, f_max_iter=8, b_max_iter=8, **keywords)

    def forward(self, x: Tensor) -> Any:
        given = self.outer(x)
        found, _ = self.deq(lambda z: torch.tanh(self.inner(z) + given), torch.zeros_like(given))
        return self.last(found[-1])


def _net(before: int, after: int) -> nn.Module:
    return nn.Sequential(nn.Linear(before, 8), nn.ReLU(), nn.Linear(8, after))


def _invertible(kind: str, **keywords: Any) -> nn.Module:
    framework: Any = importlib.import_module("FrEIA.framework")
    block = getattr(importlib.import_module("FrEIA.modules"), kind)
    module: nn.Module = framework.SequenceINN(4)
    for _ in range(2):
        module.append(block, **keywords)  # type: ignore[operator]
    return module


def _reversible() -> nn.Module:
    memcnn: Any = importlib.import_module("memcnn")
    inner = memcnn.AdditiveCoupling(nn.Sequential(nn.Conv2d(2, 2, 3, padding=1), nn.BatchNorm2d(2), nn.ReLU()))
    return nn.Sequential(nn.Conv2d(3, 4, 1), memcnn.InvertibleModuleWrapper(inner), nn.Conv2d(4, 2, 1))


def _lora(kind: str) -> nn.Module:
    """A small transformer with the adapters of a package."""
    peft, hub = importlib.import_module("peft"), importlib.import_module("transformers")
    config = hub.GPT2Config(vocab_size=20, n_positions=8, n_embd=16, n_layer=1, n_head=2)
    model = hub.GPT2Model(config)
    config = {
        "LoRA": lambda: peft.LoraConfig(r=2, lora_dropout=0.1, target_modules=["c_attn"], init_lora_weights=False),
        "DoRA": lambda: peft.LoraConfig(r=2, use_dora=True, target_modules=["c_attn"], init_lora_weights=False),
        "IA3": lambda: peft.IA3Config(target_modules=["c_attn", "c_proj"], feedforward_modules=["c_proj"]),
        "VeRA": lambda: peft.VeraConfig(r=2, target_modules=["c_attn"]),
        "AdaLoRA": lambda: peft.AdaLoraConfig(r=2, init_r=4, total_step=10, target_modules=["c_attn"]),
    }[kind]()
    return Called(peft.get_peft_model(model, config), use_cache=False)


def _tokens() -> tuple[Any, ...]:
    return (torch.randint(0, 20, (2, 8)),)


class _Path(nn.Module):
    """A neural controlled differential equation along a spline."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.field, self.last = nn.Linear(3, 4), nn.Linear(4, 12), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Any:
        cde: Any = importlib.import_module("torchcde")
        path = cde.CubicSpline(cde.hermite_cubic_coefficients_with_backward_differences(x))
        begin = self.first(path.evaluate(path.interval[0]))
        found = cde.cdeint(path, _Field(self.field), begin, path.interval, adjoint=False, method="rk4")
        return self.last(found[:, -1])


class _Field(nn.Module):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, t: Tensor, z: Tensor) -> Any:
        return torch.tanh(self.net(z)).view(*z.shape, 3)


class _Pyro(nn.Module):
    """A stochastic function of pyro: the evidence of a Bayesian regression under a learned guide."""

    def __init__(self) -> None:
        super().__init__()
        self.mean, self.scale = nn.Parameter(torch.randn(4)), nn.Parameter(torch.zeros(4))

    def forward(self, x: Tensor) -> Any:
        d: Any = importlib.import_module("pyro.distributions")
        guide = d.Normal(self.mean, self.scale.exp()).to_event(1)
        weights = guide.rsample()
        prior = d.Normal(torch.zeros_like(weights), 1.0).to_event(1)
        seen = d.StudentT(5.0, x @ weights, 1.0).log_prob(x.sum(-1))
        return guide.log_prob(weights) - prior.log_prob(weights) - seen.sum()


class _Nested(nn.Module):
    """A module of pyro whose parameters and samples are attributes."""

    def __init__(self) -> None:
        super().__init__()
        p: Any = importlib.import_module("pyro.nn")
        self.net = p.PyroModule[nn.Linear](4, 2)
        self.net.scale = p.PyroParam(torch.ones(2), constraint=torch.distributions.constraints.positive)

    def forward(self, x: Tensor) -> Any:
        return self.net(x) * self.net.scale


def _bayes(kind: str) -> nn.Module:
    layers: Any = importlib.import_module("bayesian_torch.layers")
    build = getattr(layers, f"Linear{kind}")
    return nn.Sequential(Only(build(4, 8)), nn.Tanh(), Only(build(8, 2)))


class Only(nn.Module):
    """The first of a module's results, and the others in an attribute."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module, self.rest = module, None

    def forward(self, x: Any) -> Any:
        out, self.rest = self.module(x)
        return out


# fmt: off
add("diffusers", "UNet2DModel", _unet, _steps)
add("diffusers", "UNet2DConditionModel, checkpoints", _conditional, lambda: (*_steps(), torch.randn(2, 5, 8)))
add("diffusers", "AutoencoderKL", lambda: Called(get("diffusers.AutoencoderKL")(block_out_channels=(8, 8),
     down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2, norm_num_groups=4,
     latent_channels=2), sample_posterior=True), drawn((2, 3, 8, 8)))
add("diffusers", "VQModel", lambda: Called(get("diffusers.VQModel")(block_out_channels=(8,), norm_num_groups=4,
     latent_channels=2, num_vq_embeddings=8)), drawn((2, 3, 8, 8)))
add("diffusers", "AutoencoderTiny", lambda: Called(get("diffusers.AutoencoderTiny")(encoder_block_out_channels=(4, 4),
     decoder_block_out_channels=(4, 4), num_encoder_blocks=(1, 1), num_decoder_blocks=(1, 1))), drawn((2, 3, 8, 8)),
     torch.float64)
add("diffusers", "DiTTransformer2DModel", lambda: Called(get("diffusers.DiTTransformer2DModel")(num_attention_heads=2,
     attention_head_dim=8, in_channels=3, num_layers=1, sample_size=8, norm_num_groups=4, num_embeds_ada_norm=10),
     class_labels=torch.tensor([1, 2])), _steps)
add("diffusers", "PriorTransformer", lambda: Called(get("diffusers.PriorTransformer")(num_attention_heads=2,
     attention_head_dim=4, num_layers=1, embedding_dim=8, num_embeddings=5, additional_embeddings=4)),
     lambda: (torch.randn(2, 8), torch.tensor([3, 4]), torch.randn(2, 8), torch.randn(2, 5, 8)))
add("denoising-diffusion-pytorch", "GaussianDiffusion", _diffusion, drawn((2, 3, 8, 8)),
     torch.float64)
add("denoising-diffusion-pytorch", "KarrasUnet", made("denoising_diffusion_pytorch.KarrasUnet", image_size=8, dim=8,
     dim_max=16, channels=3, num_downsamples=1, num_blocks_per_stage=1, attn_res=(4,), fourier_dim=4, attn_dim_head=4),
     _steps)
add("denoising-diffusion-pytorch", "Unet1D", made("denoising_diffusion_pytorch.Unet1D", dim=8, dim_mults=(1, 2),
     channels=3), lambda: (torch.randn(2, 3, 16), torch.tensor([3, 7])), torch.float64)
add("pykan", "MultKAN", lambda: get("kan.MultKAN")(width=[4, [3, 1], 2], grid=3, k=3, seed=int(torch.randint(99, ())),
     auto_save=False, sparse_init=False), drawn((6, 4)))
add("pykan", "KANLayer", lambda: get("kan.KANLayer.KANLayer")(4, 2), drawn((6, 4)))
add("neuraloperator", "FNO", made("neuralop.models.FNO", n_modes=(4, 4), in_channels=1, out_channels=1,
     hidden_channels=4, n_layers=2, projection_channel_ratio=1), drawn((2, 1, 8, 8)), torch.float64)
add("neuraloperator", "FNO, Tucker", made("neuralop.models.FNO", n_modes=(4, 4), in_channels=1, out_channels=1,
     hidden_channels=4, n_layers=1, factorization="tucker", rank=0.5, norm="instance_norm"),
     drawn((2, 1, 8, 8)), torch.float64)
add("neuraloperator", "UNO", made("neuralop.models.UNO", in_channels=1, out_channels=1, hidden_channels=4,
     lifting_channels=4, projection_channels=4, n_layers=3,
     channel_mlp_skip="linear", uno_out_channels=[4, 4, 4], uno_n_modes=[[4, 4], [4, 4],
     [4, 4]], uno_scalings=[[1, 1], [0.5, 0.5], [2, 2]]), drawn((2, 1, 8, 8)), torch.float64)
add("tensorly-torch", "FactorizedLinear", lambda: get("tltorch.FactorizedLinear")((2, 4), (2, 3), rank=0.5,
     factorization="blocktt"), drawn((5, 8)))
add("torch-harmonics", "spherical spectrum", lambda: nn.Sequential(nn.Conv2d(1, 2, 3, padding=1),
     get("torch_harmonics.RealSHT")(8, 16), get("torch_harmonics.InverseRealSHT")(8, 16), nn.Conv2d(2, 1, 1)),
     drawn((2, 1, 8, 16)))
add("torchdyn", "NeuralODE", lambda: By(get("torchdyn.core.NeuralODE")(_net(4, 4), solver="rk4",
     sensitivity="autograd", return_t_eval=False), "forward", t_span=torch.linspace(0, 1, 3)), drawn((5, 4)))
add("torchdyn", "NeuralODE adjoint", lambda: By(get("torchdyn.core.NeuralODE")(_net(4, 4), solver="euler",
     sensitivity="adjoint", return_t_eval=False), "forward", t_span=torch.linspace(0, 1, 3)), drawn((5, 4)))
add("torchcde", "neural CDE", _Path, drawn((2, 6, 3)))
add("gpytorch", "deep kernel, likelihood", lambda: _Process(True), drawn((6, 4)))
add("gpytorch", "deep kernel, posterior", lambda: _Process(False), drawn((6, 4)))
add("gpytorch", "variational", _Variational, drawn((6, 4)))
add("pyro-ppl", "evidence", _Pyro, drawn((6, 4)))
add("pyro-ppl", "PyroModule", _Nested, drawn((6, 4)))
for _kind in ("LoRA", "DoRA", "IA3", "VeRA", "AdaLoRA"):
    add("peft", _kind, lambda k=_kind: _lora(k), _tokens)
for _kind, _more in (("GLOWCouplingBlock", {}), ("NICECouplingBlock", {}), ("GINCouplingBlock", {}),
                     ("AllInOneBlock", {"permute_soft": True, "learned_householder_permutation": 2})):
    add("FrEIA", _kind, lambda k=_kind, m=_more: _invertible(k, subnet_constructor=_net, **m), drawn((6, 4)))
add("FrEIA", "OrthogonalTransform", lambda: _invertible("OrthogonalTransform", correction_interval=2), drawn((6, 4)))
add("FrEIA", "ActNorm", lambda: _invertible("ActNorm"), drawn((6, 4)))
add("memcnn", "reversible", _reversible, drawn((2, 3, 8, 8)))
add("torchdeq", "fixed point", lambda: _Equilibrium("fixed_point_iter"), drawn((6, 4)))
add("torchdeq", "Anderson, implicit", lambda: _Equilibrium("anderson", ift=True), drawn((6, 4)))
add("torchdeq", "Broyden, hook", lambda: _Equilibrium("broyden", hook_ift=True), drawn((6, 4)))
add("blitz-bayesian-pytorch", "BayesianLinear", lambda: nn.Sequential(get("blitz.modules.BayesianLinear")(4, 8),
     nn.ReLU(), get("blitz.modules.BayesianLinear")(8, 2)), drawn((6, 4)))
add("blitz-bayesian-pytorch", "BayesianLSTM", made("blitz.modules.BayesianLSTM", 4, 6), drawn((3, 5, 4)),
     torch.float64)
add("blitz-bayesian-pytorch", "BayesianConv2d", made("blitz.modules.BayesianConv2d", 1, 3, (3, 3)), drawn((2, 1, 6, 6)))
for _kind in ("Reparameterization", "Flipout"):
    add("bayesian-torch", _kind, lambda k=_kind: _bayes(k), drawn((6, 4)))
add("torchbnn", "BayesLinear", lambda: nn.Sequential(get("torchbnn.BayesConv2d")(0, 0.1, 1, 3, 3), nn.ReLU(),
     nn.Flatten(), get("torchbnn.BayesLinear")(0, 0.1, 48, 2)), drawn((2, 1, 6, 6)))
# fmt: on
