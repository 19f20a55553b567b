"""Transformer language model: an encoder with a causal mask."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from hfta_nb.models.recipes import from_function
from hfta_nb.search.grid import Depth, Factor, Size


class TransformerLM(nn.Module):
    """Tokens ``[N, T]`` to logits of the next ones ``[N, T, vocab_size]``.

    Source: Vaswani et al. 2017 (arXiv 1706.03762), the encoder alone with a causal mask, sine positions, and the
    initialisation of PyTorch's word language model, HFTA's example.
    """

    def __init__(
        self, vocab_size: int, context: int, width: int, heads: int, hidden: int, depth: int, dropout: float
    ) -> None:
        super().__init__()
        self.width = width
        self.embedding = nn.Embedding(vocab_size, width)
        self.dropout = nn.Dropout(dropout)
        layer = nn.TransformerEncoderLayer(width, heads, hidden, dropout, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.decoder = nn.Linear(width, vocab_size)
        self.register_buffer("positions", sines(context, width), persistent=False)
        mask = nn.Transformer.generate_square_subsequent_mask(context)
        self.register_buffer("mask", mask, persistent=False)
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        nn.init.uniform_(self.decoder.weight, -0.1, 0.1)
        nn.init.zeros_(self.decoder.bias)

    positions: Tensor
    mask: Tensor

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        x = self.embedding(tokens) * math.sqrt(self.width) + self.positions[:length]
        out = self.encoder(self.dropout(x), mask=self.mask[:length, :length], is_causal=True)
        return self.decoder(out)


def sines(context: int, width: int) -> Tensor:
    """Positions ``[context, width]``: sines and cosines of falling frequency (section 3.5 of the paper)."""
    position = torch.arange(context).unsqueeze(1)
    frequency = torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))
    table = torch.zeros(context, width)
    table[:, 0::2] = torch.sin(position * frequency)
    table[:, 1::2] = torch.cos(position * frequency)[:, : width // 2]
    return table


def build(
    width: Size = 128,
    depth: Depth = 2,
    heads: Size = 4,
    mlp_ratio: Factor = 2.0,
    dropout: float = 0.1,
    vocab_size: int = 256,
    context: int = 64,
) -> nn.Module:
    """Transformer language model: an encoder with a causal mask."""
    return TransformerLM(vocab_size, context, width, heads, max(1, int(width * mlp_ratio)), depth, dropout)


transformer_lm = from_function(build, name="transformer_lm", data=("english", "english_words"), inputs="tokens")
