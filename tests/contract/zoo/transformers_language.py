"""Unmodified language models of transformers at small sizes: named inputs, masks, labels, dataclass outputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.contract.zoo.agree import Sample
from tests.contract.zoo.model import Model
from tests.contract.zoo.packages import package

WORDS = 23
SMALL = {
    "vocab_size": WORDS,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 16,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def model(name: str, kind: str, **settings: Any) -> Callable[[], nn.Module]:
    """A model by the names of its configuration and class."""

    def build() -> nn.Module:
        transformers = package("transformers")
        return getattr(transformers, kind)(getattr(transformers, f"{name}Config")(**settings))

    return build


def tokens(labels: str = "words", **more: Any) -> Callable[[], Sample]:
    """Two sequences of words, the second padded; labels for every word or, "class", for every sequence."""

    def make() -> Sample:
        words = torch.randint(3, WORDS, (2, 7))
        mask = torch.ones(2, 7, dtype=torch.long)
        words[1, 5:], mask[1, 5:] = 0, 0
        target = torch.tensor([1, 0]) if labels == "class" else words.masked_fill(mask == 0, -100)
        return Sample(kwargs={"input_ids": words, "attention_mask": mask, "labels": target, **more})

    return make


_IDS = {"vocab_size": WORDS, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_LAYERS = {**_IDS, "hidden_size": 16, "num_hidden_layers": 2}
_DECODER = {**SMALL, "attention_dropout": 0.1}
_OPT = {**_DECODER, "ffn_dim": 24, "word_embed_proj_dim": 16}
_LLAMA = {**_DECODER, "num_key_value_heads": 1}
_EXPERTS = {**_LLAMA, "experts_implementation": "eager", "num_experts_per_tok": 2, "output_router_logits": True}


def row(
    name: str, kind: str, settings: dict[str, Any], sample: Callable[[], Sample] | None = None, **more: Any
) -> Model:
    """A row of the tables; `kind` is the model's class, its configuration's name before a colon."""
    config, _, rest = kind.partition(":")
    return Model(f"transformers {name}", model(config, config + rest, **settings), sample or tokens(), **more)


# fmt: off
MODELS = [
    row("BERT", "Bert:ForSequenceClassification", SMALL, tokens("class"), core=True),
    row("RoBERTa", "Roberta:ForMaskedLM", {**SMALL, "max_position_embeddings": 20}),
    row("DistilBERT", "DistilBert:ForSequenceClassification", {
        "vocab_size": WORDS, "dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24, "max_position_embeddings": 16,
        "pad_token_id": 0}, tokens("class")),
    row("ALBERT", "Albert:ForMaskedLM", {
        **SMALL, "embedding_size": 8, "inner_group_num": 1, "attention_probs_dropout_prob": 0.1,
        "hidden_dropout_prob": 0.1}),
    row("Electra", "Electra:ForTokenClassification", {**SMALL, "embedding_size": 8, "num_labels": WORDS}),
    row("DeBERTa v2", "DebertaV2:ForMaskedLM", {
        **SMALL, "relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_buckets": 4}),
    row("ModernBERT", "ModernBert:ForMaskedLM", {
        **SMALL, "cls_token_id": 1, "sep_token_id": 2, "local_attention": 4, "attention_dropout": 0.1}),
    row("GPT-2", "GPT2:LMHeadModel", {
        "vocab_size": WORDS, "n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 2, "bos_token_id": 1,
        "eos_token_id": 2}, core=True),
    row("OPT", "OPT:ForCausalLM", {**_OPT, "layerdrop": 0.0}),
    row("OPT, layer drop", "OPT:ForCausalLM", {**_OPT, "layerdrop": 0.5, "use_cache": False},
        apart=("model.decoder",)),
    row("Llama", "Llama:ForCausalLM", _LLAMA, core=True),
    row("Mistral", "Mistral:ForCausalLM", {**_LLAMA, "sliding_window": 4}),
    row("Qwen3", "Qwen3:ForCausalLM", {**_LLAMA, "head_dim": 8}),
    row("Gemma 2", "Gemma2:ForCausalLM", {**_LLAMA, "head_dim": 8, "sliding_window": 4}),
    row("Mixtral", "Mixtral:ForCausalLM", {**_EXPERTS, "num_local_experts": 4, "router_jitter_noise": 0.1},
        core=True, apart=("model.layers.?.mlp.experts",)),
    row("Mixtral, grouped", "Mixtral:ForCausalLM", {
        **_EXPERTS, "experts_implementation": "grouped_mm", "num_local_experts": 4}, dtype=torch.float32),
    row("Qwen2 MoE", "Qwen2Moe:ForCausalLM", {
        **_EXPERTS, "num_experts": 4, "moe_intermediate_size": 8, "shared_expert_intermediate_size": 8},
        apart=("model.layers.?.mlp.experts",)),
    row("DeepSeek V3", "DeepseekV3:ForCausalLM", {
        **_EXPERTS, "num_key_value_heads": 2, "n_routed_experts": 4, "n_group": 2, "topk_group": 1,
        "moe_intermediate_size": 8, "first_k_dense_replace": 1, "kv_lora_rank": 8, "q_lora_rank": 8,
        "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 8}, apart=("model.layers.1.mlp.experts",)),
    row("Bloom", "Bloom:ForCausalLM", {
        **_IDS, "hidden_size": 16, "n_layer": 2, "n_head": 2, "hidden_dropout": 0.1, "attention_dropout": 0.1},
        apart=("transformer.h.?.mlp.gelu_impl",)),
    row("Falcon", "Falcon:ForCausalLM", {**_LAYERS, "num_attention_heads": 2}),
    row("Mamba", "Mamba:ForCausalLM", {**_LAYERS, "state_size": 4, "use_cache": False}, core=True),
    row("RWKV", "Rwkv:ForCausalLM", {
        "vocab_size": WORDS, "hidden_size": 16, "num_hidden_layers": 2, "use_cache": False, "context_length": 16,
        "bos_token_id": 1, "eos_token_id": 2}),
]
# fmt: on
