"""Recurrent language models: lstm_lm and gru_lm."""

from __future__ import annotations

from torch import Tensor, nn

from hfta_nb.models.recipes import Family, from_function
from hfta_nb.search.grid import Depth, Size


class RecurrentLM(nn.Module):
    """Tokens ``[N, T]`` to logits of the next ones ``[N, T, vocab_size]``; every sample begins with a state of zeros.

    Source: Zaremba et al. 2014 (arXiv 1409.2329), dropout between the layers only; tied weights as Press and Wolf 2017.
    """

    def __init__(
        self, kind: type[nn.LSTM] | type[nn.GRU], vocab: int, width: int, depth: int, dropout: float, tied: bool
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab, width)
        self.dropout = nn.Dropout(dropout)
        self.recurrent = kind(width, width, depth, dropout=dropout if depth > 1 else 0.0)
        self.head = nn.Linear(width, vocab)
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        if tied:
            self.head.weight = self.embedding.weight
        nn.init.zeros_(self.head.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        # Recurrent layers run along the first axis.
        states, _ = self.recurrent(self.dropout(self.embedding(tokens.t())))
        return self.head(self.dropout(states)).transpose(0, 1)


def _family(name: str, kind: type[nn.LSTM] | type[nn.GRU]) -> Family:
    def build(
        width: Size = 128, depth: Depth = 1, dropout: float = 0.1, tied: bool = False, vocab_size: int = 256
    ) -> nn.Module:
        return RecurrentLM(kind, vocab_size, width, depth, dropout, tied)

    data = ("english", "english_words")
    text = f"Language model of {kind.__name__} layers."
    return from_function(build, name=name, data=data, help=text, inputs="tokens")


lstm_lm = _family("lstm_lm", nn.LSTM)
gru_lm = _family("gru_lm", nn.GRU)
