"""Adapters of peft over small models of transformers: what each member of an array gets, by row."""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.contract.zoo.packages import package

LRS = [1e-2, 3e-3, 2e-2]
SEEDS = [5, 6, 7]
TOKENS = torch.randint(1, 13, (6, 5), generator=torch.Generator().manual_seed(0))
MASK = (torch.arange(5) < torch.tensor([[5], [3], [5], [2], [4], [5]])).long()
CLASSES = torch.arange(6) % 3
X = {"input_ids": TOKENS, "attention_mask": MASK}


@dataclass(frozen=True)
class PeftRow:
    """A configuration of each member.

    Attributes:
        kind: name of the configuration's class in peft.
        common: arguments of all members.
        knobs: those of each.
        causal: a language model instead of a classifier.
        layers: of the model.
    """

    name: str
    kind: str
    common: dict[str, Any]
    knobs: tuple[dict[str, Any], ...] = ({}, {}, {})
    causal: bool = False
    layers: int = 1

    x = X

    def base(self) -> nn.Module:
        """The model without an adapter."""
        return copy.deepcopy(_base(self.causal, self.layers))

    def members(self, enable: Callable[[nn.Module], Any] = lambda module: None) -> list[nn.Module]:
        """Plain modules in float64 with equal bases; `enable` is called with each base."""
        found = []
        peft = package("peft")
        for i, knobs in enumerate(self.knobs):
            base = self.base()
            enable(base)
            torch.manual_seed(10 + i)
            task = "CAUSAL_LM" if self.causal else "SEQ_CLS"
            config = getattr(peft, self.kind)(task_type=task, **copy.deepcopy({**self.common, **knobs}))
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "fan_in_fan_out is set to False but the target module is `Conv1D`")
                found.append(peft.get_peft_model(base, config))
            for name, p in found[-1].named_parameters():
                if "lora_B" in name:  # begins with zeros, and so would the gradients of the others
                    nn.init.normal_(p, std=0.1)
        return found

    @property
    def y(self) -> Tensor:
        return TOKENS if self.causal else CLASSES

    def loss(self, output: Any, y: Tensor) -> Tensor:
        if not self.causal:
            return F.cross_entropy(output.logits, y)
        return F.cross_entropy(output.logits[:, -y.shape[1] : -1].flatten(0, 1), y[:, 1:].flatten())


@functools.cache
def _base(causal: bool, layers: int) -> nn.Module:
    transformers = package("transformers")
    sizes = {"vocab_size": 13, "bos_token_id": 0, "eos_token_id": 0}
    torch.manual_seed(0)
    if causal:
        config = transformers.GPT2Config(n_embd=8, n_layer=layers, n_head=2, n_positions=16, use_cache=False, **sizes)
        return transformers.GPT2LMHeadModel(config).double()  # type: ignore[no-any-return]
    config = transformers.BertConfig(hidden_size=8, intermediate_size=16, num_attention_heads=2, num_labels=3,
                                     num_hidden_layers=layers, max_position_embeddings=16, **sizes)  # fmt: skip
    return transformers.BertForSequenceClassification(config).double()  # type: ignore[no-any-return]


def _each(name: str, *values: Any) -> tuple[dict[str, Any], ...]:
    return tuple({name: value} for value in values)


_QV, _ALPHA = {"target_modules": ["query", "value"]}, {"lora_alpha": 16, "lora_dropout": 0.2}
_TARGETS = _each("target_modules", ["query"], ["query", "value"], ["key", "output.dense"])
_RANKS = _each("r", 2, 4, 3)
_MIXED = (
    {"r": 2, "lora_alpha": 8, "lora_dropout": 0.0, "target_modules": ["query"]},
    {"r": 4, "lora_alpha": 16, "lora_dropout": 0.2, "target_modules": ["query", "value"]},
    {"r": 3, "lora_alpha": 5, "lora_dropout": 0.3, "target_modules": "all-linear"},
)
ROWS = [
    PeftRow("lora", "LoraConfig", {}, _MIXED),
    PeftRow("rslora", "LoraConfig", _QV | _ALPHA | {"use_rslora": True}, _RANKS),
    PeftRow("dora", "LoraConfig", _QV | _ALPHA | {"use_dora": True}, _RANKS),
    PeftRow("ia3", "IA3Config", {"target_modules": ["key", "output.dense"], "feedforward_modules": ["output.dense"]}),
    PeftRow("prompt", "PromptTuningConfig", {"num_virtual_tokens": 3}),
    PeftRow("prefix", "PrefixTuningConfig", {"num_virtual_tokens": 3}),
    PeftRow("modules to save", "LoraConfig", {"modules_to_save": ["pooler"], "target_modules": ["query"]}, _RANKS),
]
LONG = [
    PeftRow("equal", "LoraConfig", _QV | _ALPHA),
    PeftRow("alpha", "LoraConfig", _QV, _each("lora_alpha", 8, 16, 5), layers=2),
    PeftRow("dropout", "LoraConfig", _QV, _each("lora_dropout", 0.1, 0.0, 0.3), layers=2),
    PeftRow("targets", "LoraConfig", _ALPHA, _TARGETS, layers=2),
    PeftRow("layers", "LoraConfig", _QV | _ALPHA, _each("layers_to_transform", None, [1], [0]), layers=2),
    PeftRow("kinds", "LoraConfig", _QV | _ALPHA, ({}, {"use_dora": True}, {"use_rslora": True}), layers=2),
    PeftRow("dora targets", "LoraConfig", _ALPHA | {"use_dora": True}, _TARGETS),
    PeftRow("ia3 targets", "IA3Config", {"feedforward_modules": []},
            _each("target_modules", ["key"], ["value"], ["key", "query"])),
    PeftRow("bias", "LoraConfig", _QV | {"bias": "lora_only"}, _RANKS),
    PeftRow("embeddings", "LoraConfig", {"target_modules": ["word_embeddings", "query"]}, _RANKS),
    PeftRow("language model", "LoraConfig", {"target_modules": ["c_attn"]}, _RANKS, causal=True, layers=2),
    PeftRow("language model targets", "LoraConfig", {}, _each("target_modules", ["c_attn"], ["c_proj"], "all-linear"),
            causal=True),
    PeftRow("language model prompt", "PromptTuningConfig", {"num_virtual_tokens": 3}, causal=True),
    PeftRow("language model prefix", "PrefixTuningConfig", {"num_virtual_tokens": 3}, causal=True),
]  # fmt: skip
