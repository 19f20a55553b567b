"""More transformers: sparse, reversible, recurrent, routed, of images and of tables."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.unseen.models import add, drawn, get, made, tokens


class Called(nn.Module):
    """A module called with the same keywords always, or after its inputs were put in a list."""

    def __init__(self, module: nn.Module, listed: bool = False, **keywords: Any) -> None:
        super().__init__()
        self.module, self.listed, self.keywords = module, listed, keywords

    def forward(self, *inputs: Any) -> Any:
        return self.module(list(inputs), **self.keywords) if self.listed else self.module(*inputs, **self.keywords)


class Carried(nn.Module):
    """A recurrent transformer that is given in the second segment what it returned in the first."""

    def __init__(self, path: str, name: str, **keywords: Any) -> None:
        super().__init__()
        self.module, self.name = get(path)(**keywords), name

    def forward(self, x: Tensor) -> Any:
        first = self.module(x)
        return first[0], self.module(x.flip(1), **{self.name: first[1]})[0]


def _mixed() -> tuple[Any, ...]:
    return torch.randint(0, 3, (4, 2)), torch.randn(4, 3)


# fmt: off
add("reformer-pytorch", "ReformerLM", made("reformer_pytorch.ReformerLM", num_tokens=20, dim=16, depth=2,
     max_seq_len=16, heads=2, bucket_size=4, n_hashes=2, ff_chunks=1, causal=True, lsh_dropout=0.1), tokens(2, 16))
add("routing-transformer", "RoutingTransformerLM", made("routing_transformer.RoutingTransformerLM", num_tokens=20,
     dim=16, depth=1, max_seq_len=16, heads=2, dim_head=8, window_size=4, causal=True), tokens(2, 16))
add("routing-transformer", "experts, reversible", made("routing_transformer.RoutingTransformerLM", num_tokens=20,
     dim=16, depth=2, max_seq_len=16, heads=2, dim_head=8, window_size=4, reversible=True, moe_layers=(1,)),
     tokens(2, 16))
add("h-transformer-1d", "HTransformer1D", made("h_transformer_1d.HTransformer1D", num_tokens=20, dim=16, depth=1,
     max_seq_len=16, heads=2, dim_head=8, block_size=4, causal=True), tokens(2, 16))
add("h-transformer-1d", "reversible, shifted", made("h_transformer_1d.HTransformer1D", num_tokens=20, dim=16, depth=2,
     max_seq_len=16, heads=2, dim_head=8, block_size=4, reversible=True, shift_tokens=True), tokens(2, 16))
add("titans-pytorch", "NeuralMemory", lambda: _Memory(), drawn((2, 8, 16)))
add("titans-pytorch", "MemoryAsContext", made("titans_pytorch.MemoryAsContextTransformer", num_tokens=20, dim=16,
     depth=2, segment_len=4, heads=2, dim_head=8, neural_memory_layers=(2,)), tokens(2, 8))
add("soft-moe-pytorch", "SoftMoE", made("soft_moe_pytorch.SoftMoE", dim=16, seq_len=8, num_experts=2,
     is_distributed=False), drawn((2, 8, 16)))
add("soft-moe-pytorch", "DynamicSlotsSoftMoE", made("soft_moe_pytorch.DynamicSlotsSoftMoE", dim=16, num_experts=2),
     drawn((2, 8, 16)))
add("st-moe-pytorch", "MoE", made("st_moe_pytorch.MoE", dim=16, num_experts=3, gating_top_n=2, is_distributed=False),
     drawn((2, 8, 16)))
add("st-moe-pytorch", "noisy gates", lambda: Called(get("st_moe_pytorch.MoE")(dim=16, num_experts=4,
     is_distributed=False), noise_gates=True), drawn((2, 8, 16)))
add("mixture-of-experts", "MoE", made("mixture_of_experts.MoE", dim=16, num_experts=4), drawn((2, 8, 16)))
add("tab-transformer-pytorch", "TabTransformer", made("tab_transformer_pytorch.TabTransformer", categories=(3, 3),
     num_continuous=3, dim=16, depth=1, heads=2, dim_head=8, mlp_act=nn.ReLU()), _mixed)
add("tab-transformer-pytorch", "FTTransformer", made("tab_transformer_pytorch.FTTransformer", categories=(3, 3),
     num_continuous=3, dim=16, depth=1, heads=2, dim_head=8, attn_dropout=0.1), _mixed)
add("product-key-memory", "PKM", made("product_key_memory.PKM", 16, heads=2, num_keys=8, topk=4, dim_head=8),
     drawn((2, 8, 16)))
add("CoLT5-attention", "routed block", made("colt5_attention.ConditionalRoutedTransformerBlock", 16,
     num_heavy_attn_tokens_q=4, num_heavy_attn_tokens_kv=4, num_heavy_ff_tokens=4, light_dim_head=8, light_heads=2,
     light_window_size=4, heavy_dim_head=8, heavy_heads=2), drawn((2, 16, 16)))
add("sinkhorn-transformer", "SinkhornTransformerLM", made("sinkhorn_transformer.SinkhornTransformerLM", num_tokens=20,
     dim=16, max_seq_len=16, depth=1, heads=2, bucket_size=4, reversible=True), tokens(2, 16))
add("iTransformer", "iTransformer", made("iTransformer.iTransformer", num_variates=3, lookback_len=8, depth=1, dim=16,
     pred_length=(2, 4), dim_head=8, heads=2, use_reversible_instance_norm=True), drawn((2, 8, 3)))
add("axial-attention", "AxialAttention", made("axial_attention.AxialAttention", dim=8, dim_index=1, heads=2),
     drawn((2, 8, 4, 4)))
add("axial-attention", "reversible", made("axial_attention.AxialImageTransformer", dim=8, depth=2, heads=2,
     reversible=True, axial_pos_emb_shape=(4, 4)), drawn((2, 8, 4, 4)))
add("halonet-pytorch", "HaloAttention", made("halonet_pytorch.HaloAttention", dim=8, block_size=4, halo_size=2,
     dim_head=4, heads=2), drawn((2, 8, 8, 8)))
add("bottleneck-transformer-pytorch", "BottleStack", made("bottleneck_transformer_pytorch.BottleStack", dim=8,
     fmap_size=8, dim_out=16, num_layers=2, heads=2, dim_head=4, rel_pos_emb=True), drawn((2, 8, 8, 8)))
add("lambda-networks", "LambdaLayer", made("lambda_networks.LambdaLayer", dim=8, dim_out=8, r=3, dim_k=4, heads=2),
     drawn((2, 8, 8, 8)))
add("se3-transformer-pytorch", "SE3Transformer", made("se3_transformer_pytorch.SE3Transformer", dim=8, heads=2,
     dim_head=4, depth=1, num_degrees=2, valid_radius=10), drawn((1, 6, 8), (1, 6, 3)))
add("equiformer-pytorch", "Equiformer", lambda: _equiformer(), drawn((1, 6, 8), (1, 6, 3)))
add("block-recurrent-transformer-pytorch", "two segments", lambda: _Segments(), tokens(2, 8))
add("taylor-series-linear-attention", "attention", made("taylor_series_linear_attention.TaylorSeriesLinearAttn",
     16, dim_head=4, heads=2, gate_value_heads=True, prenorm=True, shift_tokens=True), drawn((2, 8, 16)))
add("mega-pytorch", "Mega", made("mega_pytorch.Mega", num_tokens=20, dim=16, depth=1, ema_heads=2, attn_dim_qk=8,
     attn_dim_value=16, laplacian_attn_fn=True), tokens(2, 8))
add("gateloop-transformer", "Transformer", made("gateloop_transformer.Transformer", dim=16, num_tokens=20, depth=1,
     dim_head=8, heads=2), tokens(2, 8))
add("gateloop-transformer", "SimpleGateLoopLayer", made("gateloop_transformer.SimpleGateLoopLayer", 16),
     drawn((2, 8, 16)))
add("linear-attention-transformer", "LM", made("linear_attention_transformer.LinearAttentionTransformerLM",
     num_tokens=20, dim=16, depth=1, max_seq_len=8, heads=2, causal=True, reversible=True, blindspot_size=2),
     tokens(2, 8))
add("compressive-transformer-pytorch", "two segments", lambda: Carried(
     "compressive_transformer_pytorch.CompressiveTransformer", "memories", num_tokens=20, dim=16, depth=2, seq_len=8,
     mem_len=8, heads=2, memory_layers=[1, 2], mogrify_gru=True), tokens(2, 8))
add("feedback-transformer-pytorch", "FeedbackTransformer", made("feedback_transformer_pytorch.FeedbackTransformer",
     num_tokens=20, dim=16, depth=2, seq_len=2, mem_len=4, dim_head=8, heads=2), tokens(2, 8))
add("isab-pytorch", "ISAB", made("isab_pytorch.ISAB", dim=16, heads=2, num_latents=4), drawn((2, 8, 16)))
add("slot-attention", "SlotAttention", made("slot_attention.SlotAttention", num_slots=3, dim=16, hidden_dim=16),
     drawn((2, 8, 16)))
add("slot-attention", "adaptive", lambda: get("slot_attention.AdaptiveSlotWrapper")(
     get("slot_attention.MultiHeadSlotAttention")(num_slots=3, dim=16, heads=2, dim_head=8)), drawn((2, 8, 16)))
add("rtdl-revisiting-models", "FTTransformer", lambda: get("rtdl_revisiting_models.FTTransformer")(n_cont_features=3,
     cat_cardinalities=[3, 3], n_blocks=1, d_block=16, attention_n_heads=2, attention_dropout=0.1,
     ffn_d_hidden_multiplier=2.0, ffn_dropout=0.1, residual_dropout=0.1, d_out=2), lambda: _mixed()[::-1])
add("rtdl-revisiting-models", "ResNet", made("rtdl_revisiting_models.ResNet", d_in=4, d_out=2, n_blocks=2, d_block=8,
     d_hidden=None, d_hidden_multiplier=2.0, dropout1=0.2, dropout2=0.1), drawn((6, 4)))
add("hyper-connections", "two branches", lambda: _Streams(), drawn((2, 8, 16)))
add("rotary-embedding-torch", "rotated, cached", lambda: _Rotated(), drawn((2, 2, 8, 8)))
add("vit-pytorch", "ATS, adaptive tokens", made("vit_pytorch.ats_vit.ViT", image_size=16, patch_size=4,
     num_classes=3, dim=16, depth=2, max_tokens_per_depth=(8, 4), heads=2, mlp_dim=16, dim_head=8),
     drawn((2, 3, 16, 16)))
add("vit-pytorch", "MaxViT", made("vit_pytorch.max_vit.MaxViT", num_classes=3, dim=8, depth=(1, 1), dim_head=4,
     window_size=2, dim_conv_stem=8), drawn((2, 3, 16, 16)))
add("vit-pytorch", "NViT, normalised weights", made("vit_pytorch.normalized_vit.nViT", image_size=16, patch_size=4,
     num_classes=3, dim=16, depth=1, heads=2, mlp_dim=16, dim_head=8), drawn((2, 3, 16, 16)))
add("vit-pytorch", "LookViT", made("vit_pytorch.look_vit.LookViT", dim=16, image_size=24, num_classes=3, depth=1,
     patch_size=8, heads=2, mlp_factor=2, dim_head=8, highres_patch_size=6, highres_mlp_factor=2, cross_attn_heads=2,
     cross_attn_dim_head=8, patch_conv_kernel_size=3), drawn((2, 3, 24, 24)))
add("vit-pytorch", "NaViT, images of two sizes", lambda: Called(get("vit_pytorch.na_vit.NaViT")(image_size=16,
     patch_size=4, num_classes=3, dim=16, depth=1, heads=2, mlp_dim=16, dim_head=8, token_dropout_prob=0.25),
     listed=True, group_images=True, group_max_seq_len=16), drawn((3, 16, 16), (3, 8, 16), (3, 8, 8)))
add("vit-pytorch", "RegionViT", made("vit_pytorch.regionvit.RegionViT", dim=(8, 8, 8, 8), depth=(1, 1, 1, 1),
     window_size=2, num_classes=3), drawn((1, 3, 64, 64)))
add("vit-pytorch", "LoopedViT", made("vit_pytorch.LoopedViT", num_classes=3, dim=16, patch_size=4, image_size=16,
     pre_loop_depth=1, num_looped_blocks=1, post_loop_depth=1, loop_depth=2, heads=2, dim_head=8, mlp_dim=16),
     drawn((2, 3, 16, 16)))
add("vit-pytorch", "SimpleViT with FFT", made("vit_pytorch.simple_vit_with_fft.SimpleViT", image_size=16, patch_size=4,
     freq_patch_size=4, num_classes=3, dim=16, depth=1, heads=2, mlp_dim=16, dim_head=8), drawn((2, 3, 16, 16)))
add("vit-pytorch", "JumboViT", made("vit_pytorch.jumbo_vit.JumboViT", image_size=16, patch_size=4, num_classes=3,
     dim=16, depth=1, heads=2, mlp_dim=16, num_jumbo_cls=1, jumbo_cls_k=2, dim_head=8), drawn((2, 3, 16, 16)))
add("vit-pytorch", "LeViT", made("vit_pytorch.levit.LeViT", image_size=64, num_classes=3, stages=2, dim=(8, 16),
     depth=1, heads=(2, 2), mlp_mult=2, dim_key=4, dim_value=8, dropout=0.1), drawn((2, 3, 64, 64)))
add("vit-pytorch", "CaiT, layers left out", made("vit_pytorch.cait.CaiT", image_size=16, patch_size=4, num_classes=3,
     dim=16, depth=3, cls_depth=1, heads=2, mlp_dim=16, dim_head=8, layer_dropout=0.5), drawn((2, 3, 16, 16)))
add("vit-pytorch", "Recorder, hooks", lambda: get("vit_pytorch.recorder.Recorder")(_vit()), drawn((2, 3, 16, 16)))
# fmt: on


def _vit() -> Any:
    return get("vit_pytorch.ViT")(
        image_size=16, patch_size=4, num_classes=3, dim=16, depth=2, heads=2, mlp_dim=16, dim_head=8
    )


def _equiformer() -> nn.Module:
    build = get("equiformer_pytorch.Equiformer")
    module = build(dim=8, num_degrees=2, heads=2, dim_head=4, depth=1, radial_hidden_dim=8, num_neighbors=3)
    return Called(module)


class _Memory(nn.Module):
    """Weights that a step of gradient descent within the forward changes."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = get("titans_pytorch.NeuralMemory")(dim=16, chunk_size=4, heads=2, dim_head=8)

    def forward(self, x: Tensor) -> Any:
        return self.memory(x)[0]


class _Segments(nn.Module):
    """Two segments, the second with the memories and states of the first."""

    def __init__(self) -> None:
        super().__init__()
        self.module = get("block_recurrent_transformer_pytorch.BlockRecurrentTransformer")(
            num_tokens=20, dim=16, depth=2, dim_head=8, heads=2, max_seq_len=8, block_width=4, recurrent_layers=(1,)
        )

    def forward(self, x: Tensor) -> Any:
        first, memories, states = self.module(x)
        return first, self.module(x.flip(1), xl_memories=memories, states=states)[0]


class _Streams(nn.Module):
    """Two branches around which hyper-connections lie."""

    def __init__(self) -> None:
        super().__init__()
        package: Any = importlib.import_module("hyper_connections")
        wrap, self.expand, self.reduce = package.get_init_and_expand_reduce_stream_functions(2)
        self.branches = nn.ModuleList(
            wrap(dim=16, branch=nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 16), nn.GELU())) for _ in range(2)
        )

    def forward(self, x: Tensor) -> Any:
        x = self.expand(x)
        for branch in self.branches:
            x = branch(x)
        return self.reduce(x)


class _Rotated(nn.Module):
    """Rotary embeddings with learned frequencies, and with cached ones."""

    def __init__(self) -> None:
        super().__init__()
        build = get("rotary_embedding_torch.RotaryEmbedding")
        self.learned, self.cached = build(dim=8, learned_freq=True), build(dim=4, use_xpos=True)
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Any:
        q, k = self.cached.rotate_queries_and_keys(self.linear(x), x)
        return self.learned.rotate_queries_or_keys(self.linear(x)) * q, k
