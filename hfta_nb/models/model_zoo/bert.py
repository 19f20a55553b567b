"""BERT: a bidirectional Transformer that fills in masked tokens."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hfta_nb.models.recipes import from_function
from hfta_nb.search.grid import Depth, Size

SIZES = {"tiny": (128, 2), "mini": (256, 4), "small": (512, 4), "medium": (512, 8), "base": (768, 12)}
"""Width and depth of the published sizes; heads have 64 channels each."""


class Bert(nn.Module):
    """Tokens ``[N, T]`` to logits of what stood there ``[N, T, vocab_size]``; the head is tied to the embedding.

    Source: Devlin et al. 2019 (arXiv 1810.04805), the sizes of Turc et al. 2019 (arXiv 1908.08962). It learns to
    fill in masked tokens only: all tokens are of the first segment, and the pooler, for the next sentence, is left out.
    """

    def __init__(self, vocab_size: int, context: int, width: int, heads: int, depth: int, dropout: float) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, width)
        self.positions = nn.Embedding(context, width)
        self.segments = nn.Embedding(2, width)
        self.norm, self.dropout = nn.LayerNorm(width, eps=1e-12), nn.Dropout(dropout)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout, F.gelu, 1e-12, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.transform = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width, eps=1e-12))
        self.head = nn.Linear(width, vocab_size)
        self.head.weight = self.tokens.weight
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                nn.init.trunc_normal_(parameter, 0.0, 0.02, -0.04, 0.04)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, tokens: Tensor) -> Tensor:
        positions = self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        x = self.tokens(tokens) + positions + self.segments.weight[0]
        return self.head(self.transform(self.encoder(self.dropout(self.norm(x)))))


def build(
    size: Literal["tiny", "mini", "small", "medium", "base", "own"] = "tiny",
    width: Size = 128,
    depth: Depth = 2,
    heads: Size = 2,
    dropout: float = 0.1,
    vocab_size: int = 256,
    context: int = 64,
) -> nn.Module:
    """BERT: fills in masked tokens.

    Args:
        size: one of the published ones; "own" for `width`, `depth` and `heads`, which do nothing otherwise.
    """
    if size != "own":
        width, depth = SIZES[size]
        heads = width // 64
    return Bert(vocab_size, context, width, heads, depth, dropout)


bert = from_function(build, name="bert", data=("english_masked", "english_words_masked"), inputs="tokens")
