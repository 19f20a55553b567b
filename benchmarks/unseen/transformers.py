"""Transformers and their alternatives."""

from __future__ import annotations

from benchmarks.unseen.models import add, drawn, get, made, tokens

# fmt: off
add("x-transformers", "Encoder", made("x_transformers.Encoder", dim=16, depth=2, heads=2, attn_dim_head=8),
     drawn((2, 6, 16)))
add("x-transformers", "Decoder rotary", lambda: get("x_transformers.TransformerWrapper")(num_tokens=20,
     max_seq_len=8, attn_layers=get("x_transformers.Decoder")(dim=16, depth=2, heads=2, attn_dim_head=8,
     rotary_pos_emb=True, ff_glu=True)), tokens(2, 8))
add("x-transformers", "memory, alibi", lambda: get("x_transformers.TransformerWrapper")(num_tokens=20,
     max_seq_len=8, num_memory_tokens=2, attn_layers=get("x_transformers.Encoder")(dim=16, depth=1, heads=2,
     attn_dim_head=8, alibi_pos_bias=True, use_rmsnorm=True)), tokens(2, 8))
add("linformer", "Linformer", made("linformer.Linformer", dim=16, seq_len=8, depth=1, heads=2, k=4), drawn((2, 8,
     16)))
add("performer-pytorch", "Performer", made("performer_pytorch.Performer", dim=16, depth=1, heads=2, dim_head=8),
     drawn((2, 8, 16)))
add("nystrom-attention", "Nystromformer", made("nystrom_attention.Nystromformer", dim=16, dim_head=8, heads=2,
     depth=1, num_landmarks=4), drawn((2, 8, 16)))
add("perceiver-pytorch", "Perceiver", made("perceiver_pytorch.Perceiver", input_channels=3, input_axis=2,
     num_freq_bands=2, max_freq=4.0, depth=2, num_latents=4, latent_dim=16, cross_dim_head=8, latent_heads=2,
     latent_dim_head=8, num_classes=3), drawn((2, 6, 6, 3)))
add("g-mlp-pytorch", "gMLP", made("g_mlp_pytorch.gMLP", num_tokens=20, dim=16, depth=2, seq_len=8), tokens(2, 8))
add("mlp-mixer-pytorch", "MLPMixer", made("mlp_mixer_pytorch.MLPMixer", image_size=16, channels=3, patch_size=4,
     dim=16, depth=1, num_classes=3), drawn((2, 3, 16, 16)))
add("local-attention", "LocalTransformer", made("local_attention.LocalTransformer", num_tokens=20, dim=16, depth=1,
     max_seq_len=8, local_attn_window_size=4, dim_head=8, heads=2), tokens(2, 8))
add("mambapy", "Mamba", lambda: get("mambapy.mamba.Mamba")(get("mambapy.mamba.MambaConfig")(d_model=8, n_layers=1,
     d_state=4)), drawn((2, 8, 8)))
add("mambapy", "Mamba sequential", lambda: get("mambapy.mamba.Mamba")(get("mambapy.mamba.MambaConfig")(d_model=8,
     n_layers=1, d_state=4, pscan=False)), drawn((2, 8, 8)))
add("conformer", "Conformer", made("conformer.Conformer", dim=16, depth=1, dim_head=8, heads=2), drawn((2, 8, 16)))
# fmt: on
