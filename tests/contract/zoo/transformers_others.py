"""Unmodified models of transformers for images and sound, and encoder-decoder models, at small sizes."""

from __future__ import annotations

import torch

from tests.contract.zoo.agree import Sample
from tests.contract.zoo.transformers_language import WORDS, row, tokens


def _images() -> Sample:
    pixels = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    return Sample(kwargs={"pixel_values": pixels, "labels": torch.tensor([1, 0])})


def _sound() -> Sample:
    return Sample(kwargs={"input_values": torch.randn(2, 200, dtype=torch.float64), "labels": torch.tensor([1, 0])})


def _spectrum() -> Sample:
    features = torch.randn(2, 8, 16, dtype=torch.float64)
    return Sample(kwargs={"input_features": features, "labels": torch.randint(3, WORDS, (2, 5))})


_T5 = {"vocab_size": WORDS, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2,
       "decoder_start_token_id": 0}  # fmt: skip
_PAIR = {"vocab_size": WORDS, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
         "decoder_attention_heads": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "pad_token_id": 0,
         "bos_token_id": 1, "eos_token_id": 2}  # fmt: skip
_LAYERS = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}

# fmt: off
MODELS = [
    row("T5", "T5:ForConditionalGeneration", _T5, core=True),
    row("BART", "Bart:ForConditionalGeneration", {
        **_PAIR, "max_position_embeddings": 16, "decoder_start_token_id": 2, "forced_eos_token_id": 2}),
    row("Switch", "SwitchTransformers:ForConditionalGeneration", {
        **_T5, "num_sparse_encoder_layers": 1, "num_decoder_layers": 2, "num_sparse_decoder_layers": 1,
        "num_experts": 4, "pad_token_id": 0}, dtype=torch.float32, apart=("*.mlp.experts",)),
    row("XLNet", "XLNet:ForSequenceClassification", {
        "vocab_size": WORDS, "d_model": 16, "n_layer": 2, "n_head": 2, "d_inner": 24}, tokens("class")),
    row("ViT", "ViT:ForImageClassification", {
        **_LAYERS, "image_size": 16, "patch_size": 4, "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1}, _images),
    row("Swin", "Swin:ForImageClassification", {
        "image_size": 16, "patch_size": 2, "embed_dim": 8, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4,
        "drop_path_rate": 0.4}, _images),
    row("SegFormer", "Segformer:ForImageClassification", {
        "depths": [1, 1], "hidden_sizes": [8, 16], "num_attention_heads": [1, 2], "num_encoder_blocks": 2,
        "sr_ratios": [2, 1], "patch_sizes": [3, 3], "strides": [2, 2], "mlp_ratios": [2, 2],
        "decoder_hidden_size": 8}, _images),
    row("Wav2Vec2", "Wav2Vec2:ForSequenceClassification", {
        **_LAYERS, "conv_dim": (8, 8), "conv_stride": (4, 2), "conv_kernel": (8, 4), "num_feat_extract_layers": 2,
        "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "classifier_proj_size": 8, "layerdrop": 0.0,
        "mask_time_prob": 0.0, "apply_spec_augment": False}, _sound),
    row("Whisper", "Whisper:ForConditionalGeneration", {
        **_PAIR, "num_mel_bins": 8, "max_source_positions": 8, "max_target_positions": 8, "decoder_start_token_id": 1,
        "suppress_tokens": None, "begin_suppress_tokens": None}, _spectrum),
]
# fmt: on
