"""WikiText-2 and WikiText-103: words."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import torch

from hfta_nb.data.english import Text, next_tokens
from hfta_nb.data.readers.files import damaged, lines, present
from hfta_nb.data.samples import Data

FILES = "wiki.train.tokens and wiki.valid.tokens"
CONTEXT = 64


def wikitext(name: str, directory: Path) -> Data:
    """Words and the next ones ``[64]``; the vocabulary is that of the training text, most frequent first."""
    words = []
    for split in ("train", "valid"):
        path = present(directory, FILES, [f"wiki.{split}.tokens", f"wiki.{split}.raw"])
        words.append([word for _, line in lines(path) for word in [*line.split(), "<eos>"]])
        if len(words[-1]) <= CONTEXT:
            raise damaged(path, 0, f"fewer than {CONTEXT + 1} words", len(words[-1]))
    ranked = sorted(Counter([*words[0], "<unk>"]).items(), key=lambda item: (-item[1], item[0]))
    numbers = {word: i for i, (word, _) in enumerate(ranked)}
    unknown = numbers["<unk>"]
    training, held = (torch.tensor([numbers.get(w, unknown) for w in part]) for part in words)
    return next_tokens(name, Text(training, held, len(numbers), CONTEXT, tuple(numbers)))
