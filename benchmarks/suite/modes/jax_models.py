"""The architectures of the suite in plain jax.numpy, for one member, with the torch modules' parameters.

Each is ``(convert, apply)``: `convert` turns a member's `state_dict` (numpy arrays) into the first argument of
``apply(parameters, x, half)``; `half` is the dtype of matrix products and convolutions, or None. As under torch's
autocast, norms, softmax and the loss are in float32.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Parameters = dict[str, Any]
Apply = Callable[[Parameters, Any, Any], Any]


def cross_entropy(logits: Any, y: Any) -> Any:
    """The mean over all targets."""
    logits = logits.astype(jnp.float32).reshape(-1, logits.shape[-1])
    each = jax.nn.log_softmax(logits)
    return -jnp.take_along_axis(each, y.reshape(-1, 1), 1).mean()


def _dense(p: Parameters, name: str, x: Any, half: Any) -> Any:
    weight, bias = p[f"{name}weight"], p[f"{name}bias"]
    if half is not None:
        x, weight, bias = x.astype(half), weight.astype(half), bias.astype(half)
    return x @ weight.T + bias


def _mlp(p: Parameters, x: Any, half: Any) -> Any:
    for name in ("0.", "2."):
        x = jax.nn.relu(_dense(p, name, x, half))
    return _dense(p, "4.", x, half)


def _cnn_converted(state: dict[str, np.ndarray]) -> Parameters:
    """Channels last, which is faster with XLA: kernels in HWIO, the linear layer's columns in the new order."""
    found = dict(state)
    for name in ("0.weight", "4.weight"):
        found[name] = state[name].transpose(2, 3, 1, 0)
    out, flat = state["9.weight"].shape
    channels = state["4.weight"].shape[0]
    side = math.isqrt(flat // channels)
    found["9.weight"] = state["9.weight"].reshape(out, channels, side, side).transpose(0, 2, 3, 1).reshape(out, flat)
    return found


def _cnn(p: Parameters, x: Any, half: Any) -> Any:
    x = x.transpose(0, 2, 3, 1)
    for conv, norm in (("0.", "1."), ("4.", "5.")):
        weight, bias = p[f"{conv}weight"], p[f"{conv}bias"]
        if half is not None:
            x, weight, bias = x.astype(half), weight.astype(half), bias.astype(half)
        axes = ("NHWC", "HWIO", "NHWC")
        x = jax.lax.conv_general_dilated(x, weight, (1, 1), "SAME", dimension_numbers=axes) + bias
        x = jax.nn.relu(_group_norm(x.astype(jnp.float32), 4, p[f"{norm}weight"], p[f"{norm}bias"]))
        n, h, w, c = x.shape
        x = x[:, : h // 2 * 2, : w // 2 * 2].reshape(n, h // 2, 2, w // 2, 2, c).max((2, 4))
    return _dense(p, "9.", x.reshape(x.shape[0], -1), half)


def _group_norm(x: Any, groups: int, weight: Any, bias: Any) -> Any:
    n, h, w, c = x.shape
    parts = x.reshape(n, h, w, groups, c // groups)
    mean = parts.mean((1, 2, 4), keepdims=True)
    variance = jnp.square(parts - mean).mean((1, 2, 4), keepdims=True)
    return ((parts - mean) * jax.lax.rsqrt(variance + 1e-5)).reshape(x.shape) * weight + bias


def _layer_norm(p: Parameters, name: str, x: Any, eps: float = 1e-5) -> Any:
    x = x.astype(jnp.float32)
    mean = x.mean(-1, keepdims=True)
    variance = jnp.square(x - mean).mean(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + eps) * p[f"{name}weight"] + p[f"{name}bias"]


def _lstm(p: Parameters, tokens: Any, half: Any) -> Any:
    x = p["embedding.weight"][tokens.T]
    into, within = p["recurrent.weight_ih_l0"], p["recurrent.weight_hh_l0"]
    bias = p["recurrent.bias_ih_l0"] + p["recurrent.bias_hh_l0"]
    if half is not None:
        x, into, within, bias = (t.astype(half) for t in (x, into, within, bias))
    start = jnp.zeros((tokens.shape[0], within.shape[1]), x.dtype)

    def step(carried: Any, part: Any) -> Any:
        state, cell = carried
        i, f, g, o = jnp.split(part + state @ within.T, 4, -1)
        cell = jax.nn.sigmoid(f) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
        state = jax.nn.sigmoid(o) * jnp.tanh(cell)
        return (state, cell), state

    _, states = jax.lax.scan(step, (start, start), x @ into.T + bias)
    return _dense(p, "head.", states, half).transpose(1, 0, 2)


def _transformer(heads: int) -> Apply:
    def apply(p: Parameters, tokens: Any, half: Any) -> Any:
        wide, length = p["embedding.weight"].shape[1], tokens.shape[1]
        x = p["embedding.weight"][tokens] * math.sqrt(wide) + p["positions"][:length]
        causal = jnp.tril(jnp.ones((length, length), bool))
        return _dense(p, "decoder.", _encoded(p, x, causal, heads, jax.nn.relu, 1e-5, half), half)

    return apply


def _bert(p: Parameters, tokens: Any, half: Any) -> Any:
    wide, length = p["tokens.weight"].shape[1], tokens.shape[1]
    x = p["tokens.weight"][tokens] + p["positions.weight"][:length] + p["segments.weight"][0]
    gelu = functools.partial(jax.nn.gelu, approximate=False)
    seen, heads = jnp.ones((length, length), bool), 8 if wide == 512 else 2  # as the task's
    x = _encoded(p, _layer_norm(p, "norm.", x, 1e-12), seen, heads, gelu, 1e-12, half)
    x = _layer_norm(p, "transform.2.", gelu(_dense(p, "transform.0.", x, half)), 1e-12)
    return _dense({"weight": p["tokens.weight"], "bias": p["head.bias"]}, "", x, half)  # the head is tied


def _encoded(p: Parameters, x: Any, seen: Any, heads: int, activation: Any, eps: float, half: Any) -> Any:
    depth = 1 + max(int(k.split(".")[2]) for k in p if k.startswith("encoder.layers."))
    for i in range(depth):
        layer = f"encoder.layers.{i}."
        x = _layer_norm(p, f"{layer}norm1.", x + _attention(p, f"{layer}self_attn.", x, seen, heads, half), eps)
        inner = activation(_dense(p, f"{layer}linear1.", x, half))
        x = _layer_norm(p, f"{layer}norm2.", x + _dense(p, f"{layer}linear2.", inner, half), eps)
    return x


def _attention(p: Parameters, name: str, x: Any, seen: Any, heads: int, half: Any) -> Any:
    n, length, wide = x.shape
    joint = {"weight": p[f"{name}in_proj_weight"], "bias": p[f"{name}in_proj_bias"]}
    q, k, v = (
        part.reshape(n, length, heads, wide // heads).transpose(0, 2, 1, 3)
        for part in jnp.split(_dense(joint, "", x, half), 3, -1)
    )
    scores = (q @ k.transpose(0, 1, 3, 2)).astype(jnp.float32) / math.sqrt(wide // heads)
    shares = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf))
    out = (shares.astype(v.dtype) @ v).transpose(0, 2, 1, 3).reshape(n, length, wide)
    return _dense(p, f"{name}out_proj.", out, half)


MODELS: dict[str, tuple[Callable[[dict[str, np.ndarray]], Parameters], Apply]] = {
    "mlp": (dict, _mlp),
    "cnn": (_cnn_converted, _cnn),
    "lstm": (dict, _lstm),
    "transformer": (dict, _transformer(2)),
    "bert": (dict, _bert),
}
