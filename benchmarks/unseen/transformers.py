"""Transformers, and what is to replace them."""

from __future__ import annotations

import torch

from benchmarks.unseen.models import Then, add, drawn, get, made, tokens

# fmt: off
add("x-transformers", "Encoder", made("x_transformers.Encoder", dim=16, depth=2, heads=2, attn_dim_head=8),
     drawn((2, 6, 16)))
add("x-transformers", "Decoder rotary", lambda: get("x_transformers.TransformerWrapper")(num_tokens=20,
     max_seq_len=8, attn_layers=get("x_transformers.Decoder")(dim=16, depth=2, heads=2, attn_dim_head=8,
     rotary_pos_emb=True, ff_glu=True)), tokens(2, 8))
add("x-transformers", "memory, alibi", lambda: get("x_transformers.TransformerWrapper")(num_tokens=20,
     max_seq_len=8, num_memory_tokens=2, attn_layers=get("x_transformers.Encoder")(dim=16, depth=1, heads=2,
     attn_dim_head=8, alibi_pos_bias=True, use_rmsnorm=True)), tokens(2, 8))
add("vit-pytorch", "ViT", made("vit_pytorch.ViT", image_size=16, patch_size=4, num_classes=3, dim=16, depth=2,
     heads=2, mlp_dim=16, dropout=0.1), drawn((2, 3, 16, 16)))
add("vit-pytorch", "SimpleViT", made("vit_pytorch.simple_vit.SimpleViT", image_size=16, patch_size=4, num_classes=3,
     dim=16, depth=1, heads=2, mlp_dim=16), drawn((2, 3, 16, 16)))
add("vit-pytorch", "CaiT", made("vit_pytorch.cait.CaiT", image_size=16, patch_size=4, num_classes=3, dim=16,
     depth=1, cls_depth=1, heads=2, mlp_dim=16, layer_dropout=0.1), drawn((2, 3, 16, 16)))
add("vit-pytorch", "DeepViT", made("vit_pytorch.deepvit.DeepViT", image_size=16, patch_size=4, num_classes=3,
     dim=16, depth=1, heads=2, mlp_dim=16), drawn((2, 3, 16, 16)))
add("vit-pytorch", "T2TViT", made("vit_pytorch.t2t.T2TViT", image_size=16, num_classes=3, dim=16, depth=1, heads=2,
     mlp_dim=16, t2t_layers=((3, 2), (3, 2))), drawn((2, 3, 16, 16)))
add("vit-pytorch", "CCT", made("vit_pytorch.cct.CCT", img_size=(16, 16), embedding_dim=16, n_conv_layers=1,
     num_layers=1, num_heads=2, mlp_ratio=1.0, num_classes=3), drawn((2, 3, 16, 16)))
add("vit-pytorch", "MobileViT", made("vit_pytorch.mobile_vit.MobileViT", image_size=(32, 32), dims=[8, 8, 8],
     channels=[4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 8], num_classes=3), drawn((2, 3, 32, 32)))
add("vit-pytorch", "PatchMerger", made("vit_pytorch.vit_with_patch_merger.ViT", image_size=16, patch_size=4,
     num_classes=3, dim=16, depth=2, heads=2, mlp_dim=16, patch_merge_layer=1, patch_merge_num_tokens=4), drawn((2,
     3, 16, 16)))
add("linformer", "Linformer", made("linformer.Linformer", dim=16, seq_len=8, depth=1, heads=2, k=4), drawn((2, 8,
     16)))
add("performer-pytorch", "Performer", made("performer_pytorch.Performer", dim=16, depth=1, heads=2, dim_head=8),
     drawn((2, 8, 16)))
add("reformer-pytorch", "Reformer", made("reformer_pytorch.Reformer", dim=16, depth=1, heads=2, bucket_size=4,
     n_hashes=2), drawn((2, 8, 16)))
add("reformer-pytorch", "LSHAttention", lambda: Then(get("reformer_pytorch.LSHSelfAttention")(dim=16, heads=2,
     bucket_size=4, n_hashes=2), 4, 16, 16), drawn((2, 8, 4)))
add("nystrom-attention", "Nystromformer", made("nystrom_attention.Nystromformer", dim=16, dim_head=8, heads=2,
     depth=1, num_landmarks=4), drawn((2, 8, 16)))
add("sinkhorn-transformer", "SinkhornTransformer", made("sinkhorn_transformer.SinkhornTransformer", dim=16, heads=2,
     depth=1, bucket_size=4), drawn((2, 8, 16)))
add("routing-transformer", "RoutingTransformer", made("routing_transformer.RoutingTransformer", dim=16, heads=2,
     depth=1, max_seq_len=8, window_size=4), drawn((2, 8, 16)))
add("perceiver-pytorch", "Perceiver", made("perceiver_pytorch.Perceiver", input_channels=3, input_axis=2,
     num_freq_bands=2, max_freq=4.0, depth=2, num_latents=4, latent_dim=16, cross_dim_head=8, latent_heads=2,
     latent_dim_head=8, num_classes=3), drawn((2, 6, 6, 3)))
add("g-mlp-pytorch", "gMLP", made("g_mlp_pytorch.gMLP", num_tokens=20, dim=16, depth=2, seq_len=8), tokens(2, 8))
add("mlp-mixer-pytorch", "MLPMixer", made("mlp_mixer_pytorch.MLPMixer", image_size=16, channels=3, patch_size=4,
     dim=16, depth=1, num_classes=3), drawn((2, 3, 16, 16)))
add("axial-attention", "AxialAttention", made("axial_attention.AxialAttention", dim=8, dim_index=1, heads=2),
     drawn((2, 8, 6, 6)))
add("local-attention", "LocalTransformer", made("local_attention.LocalTransformer", num_tokens=20, dim=16, depth=1,
     max_seq_len=8, local_attn_window_size=4, dim_head=8, heads=2), tokens(2, 8))
add("mambapy", "Mamba", lambda: get("mambapy.mamba.Mamba")(get("mambapy.mamba.MambaConfig")(d_model=8, n_layers=1,
     d_state=4)), drawn((2, 8, 8)))
add("mambapy", "Mamba sequential", lambda: get("mambapy.mamba.Mamba")(get("mambapy.mamba.MambaConfig")(d_model=8,
     n_layers=1, d_state=4, pscan=False)), drawn((2, 8, 8)))
add("tab-transformer-pytorch", "FTTransformer", made("tab_transformer_pytorch.FTTransformer", categories=(3, 4),
     num_continuous=2, dim=16, depth=1, heads=2, dim_out=1), lambda: (torch.randint(0, 3, (5, 2)), torch.randn(5, 2)))
add("conformer", "Conformer", made("conformer.Conformer", dim=16, depth=1, dim_head=8, heads=2), drawn((2, 8, 16)))
add("titans-pytorch", "NeuralMemory", made("titans_pytorch.NeuralMemory", dim=16, chunk_size=4), drawn((2, 8, 16)))
# fmt: on
