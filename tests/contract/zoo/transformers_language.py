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


_DECODER = {**SMALL, "attention_dropout": 0.1}
_LLAMA = {**_DECODER, "num_key_value_heads": 1}
_EXPERTS = {**_LLAMA, "experts_implementation": "eager", "num_experts_per_tok": 2, "output_router_logits": True}

MODELS = [
    Model("transformers BERT", model("Bert", "BertForSequenceClassification", **SMALL), tokens("class"), core=True),
    Model(
        "transformers RoBERTa",
        model("Roberta", "RobertaForMaskedLM", **{**SMALL, "max_position_embeddings": 20}),
        tokens(),
    ),
    Model(
        "transformers DistilBERT",
        model(
            "DistilBert",
            "DistilBertForSequenceClassification",
            vocab_size=WORDS,
            dim=16,
            n_layers=2,
            n_heads=2,
            hidden_dim=24,
            max_position_embeddings=16,
            pad_token_id=0,
        ),
        tokens("class"),
    ),
    Model(
        "transformers ALBERT",
        model(
            "Albert",
            "AlbertForMaskedLM",
            **{
                **SMALL,
                "embedding_size": 8,
                "inner_group_num": 1,
                "attention_probs_dropout_prob": 0.1,
                "hidden_dropout_prob": 0.1,
            },
        ),
        tokens(),
    ),
    Model(
        "transformers Electra",
        model("Electra", "ElectraForTokenClassification", **{**SMALL, "embedding_size": 8, "num_labels": WORDS}),
        tokens(),
    ),
    Model(
        "transformers DeBERTa v2",
        model(
            "DebertaV2",
            "DebertaV2ForMaskedLM",
            **{**SMALL, "relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_buckets": 4},
        ),
        tokens(),
    ),
    Model(
        "transformers ModernBERT",
        model(
            "ModernBert",
            "ModernBertForMaskedLM",
            **{**SMALL, "cls_token_id": 1, "sep_token_id": 2, "local_attention": 4, "attention_dropout": 0.1},
        ),
        tokens(),
    ),
    Model(
        "transformers GPT-2",
        model(
            "GPT2",
            "GPT2LMHeadModel",
            vocab_size=WORDS,
            n_positions=16,
            n_embd=16,
            n_layer=2,
            n_head=2,
            bos_token_id=1,
            eos_token_id=2,
        ),
        tokens(),
        core=True,
    ),
    Model(
        "transformers OPT",
        model("OPT", "OPTForCausalLM", **{**_DECODER, "ffn_dim": 24, "word_embed_proj_dim": 16, "layerdrop": 0.0}),
        tokens(),
    ),
    Model(
        "transformers OPT, layer drop",
        model(
            "OPT",
            "OPTForCausalLM",
            **{**_DECODER, "ffn_dim": 24, "word_embed_proj_dim": 16, "layerdrop": 0.5, "use_cache": False},
        ),
        tokens(),
        apart=("model.decoder",),
    ),
    Model("transformers Llama", model("Llama", "LlamaForCausalLM", **_LLAMA), tokens(), core=True),
    Model("transformers Mistral", model("Mistral", "MistralForCausalLM", **{**_LLAMA, "sliding_window": 4}), tokens()),
    Model("transformers Qwen3", model("Qwen3", "Qwen3ForCausalLM", **{**_LLAMA, "head_dim": 8}), tokens()),
    Model(
        "transformers Gemma 2",
        model("Gemma2", "Gemma2ForCausalLM", **{**_LLAMA, "head_dim": 8, "sliding_window": 4}),
        tokens(),
    ),
    Model(
        "transformers Mixtral",
        model("Mixtral", "MixtralForCausalLM", **{**_EXPERTS, "num_local_experts": 4, "router_jitter_noise": 0.1}),
        tokens(),
        core=True,
        apart=("model.layers.?.mlp.experts",),
    ),
    Model(
        "transformers Mixtral, grouped",
        model(
            "Mixtral",
            "MixtralForCausalLM",
            **{**_EXPERTS, "experts_implementation": "grouped_mm", "num_local_experts": 4},
        ),
        tokens(),
        dtype=torch.float32,
    ),
    Model(
        "transformers Qwen2 MoE",
        model(
            "Qwen2Moe",
            "Qwen2MoeForCausalLM",
            **{**_EXPERTS, "num_experts": 4, "moe_intermediate_size": 8, "shared_expert_intermediate_size": 8},
        ),
        tokens(),
        apart=("model.layers.?.mlp.experts",),
    ),
    Model(
        "transformers DeepSeek V3",
        model(
            "DeepseekV3",
            "DeepseekV3ForCausalLM",
            **{
                **_EXPERTS,
                "num_key_value_heads": 2,
                "n_routed_experts": 4,
                "n_group": 2,
                "topk_group": 1,
                "num_experts_per_tok": 2,
                "moe_intermediate_size": 8,
                "first_k_dense_replace": 1,
                "kv_lora_rank": 8,
                "q_lora_rank": 8,
                "qk_rope_head_dim": 4,
                "qk_nope_head_dim": 4,
                "v_head_dim": 8,
            },
        ),
        tokens(),
        apart=("model.layers.1.mlp.experts",),
    ),
    Model(
        "transformers Bloom",
        model(
            "Bloom",
            "BloomForCausalLM",
            vocab_size=WORDS,
            hidden_size=16,
            n_layer=2,
            n_head=2,
            hidden_dropout=0.1,
            attention_dropout=0.1,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
        ),
        tokens(),
        apart=("transformer.h.?.mlp.gelu_impl",),
    ),
    Model(
        "transformers Falcon",
        model(
            "Falcon",
            "FalconForCausalLM",
            vocab_size=WORDS,
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
        ),
        tokens(),
    ),
    Model(
        "transformers Mamba",
        model(
            "Mamba",
            "MambaForCausalLM",
            vocab_size=WORDS,
            hidden_size=16,
            num_hidden_layers=2,
            state_size=4,
            use_cache=False,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
        ),
        tokens(),
        core=True,
    ),
    Model(
        "transformers RWKV",
        model(
            "Rwkv",
            "RwkvForCausalLM",
            vocab_size=WORDS,
            hidden_size=16,
            num_hidden_layers=2,
            use_cache=False,
            context_length=16,
            bos_token_id=1,
            eos_token_id=2,
        ),
        tokens(),
    ),
]
