"""GPT: a decoder-only Transformer language model."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hfta_nb.models.recipes import from_function
from hfta_nb.search.grid import Depth, Size


class Attention(nn.Module):
    """Causal attention of several heads."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        samples, length, width = x.shape
        parts = self.qkv(x).view(samples, length, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)
        rate = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=rate, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(samples, length, width))


class Block(nn.Module):
    """Attention and a two-layer perceptron, each after a layer norm and around a shortcut."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, dropout)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.norm1(x)))
        hidden = F.gelu(self.widen(self.norm2(x)), approximate="tanh")
        return x + self.dropout(self.narrow(hidden))


class GPT(nn.Module):
    """Tokens ``[N, T]`` to logits of the next ones ``[N, T, vocab_size]``; the head is tied to the embedding.

    Source: Radford et al. 2019 (GPT-2): layer norm first, learned positions, GELU by tanh, weights from N(0, 0.02),
    those that end a shortcut divided by the root of their number.
    """

    def __init__(self, vocab_size: int, context: int, width: int, heads: int, depth: int, dropout: float) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocab_size, width), nn.Embedding(context, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.Sequential(*(Block(width, heads, dropout) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab_size, bias=False)
        self.head.weight = self.tokens.weight
        for name, parameter in self.named_parameters():
            if name.endswith(("out.weight", "narrow.weight")):
                nn.init.normal_(parameter, 0.0, 0.02 / math.sqrt(2 * depth))
            elif parameter.ndim == 2:
                nn.init.normal_(parameter, 0.0, 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, tokens: Tensor) -> Tensor:
        positions = self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        return self.head(self.norm(self.blocks(self.dropout(self.tokens(tokens) + positions))))


def build(
    width: Size = 128, depth: Depth = 2, heads: Size = 4, dropout: float = 0.1, vocab_size: int = 256, context: int = 64
) -> nn.Module:
    """GPT: a decoder-only Transformer; small is width 768, depth 12, heads 12, vocab_size 50257, context 1024."""
    return GPT(vocab_size, context, width, heads, depth, dropout)


gpt = from_function(build, name="gpt", data=("english", "english_words"), inputs="tokens")
