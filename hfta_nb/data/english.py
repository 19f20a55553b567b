"""English text for language models: the topics of Python's language reference, which every CPython includes."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

import torch
from torch import Tensor

from hfta_nb.data.order import SPLIT_SEED
from hfta_nb.data.samples import Data

CONTEXT = {"bytes": 64, "words": 32}
"""Tokens in a sample."""

WORDS = 2048
"""Size of the vocabulary of words: the most frequent of the training topics, and "unknown"."""

HELD_OUT = 0.15
"""The share of the text that is held out for validation, in whole topics."""

MASKED, MASKINGS = 0.15, 4
"""The share of tokens that is masked, and how often each training sample appears with a different mask."""

UNKNOWN, MASK = "<unk>", "<mask>"
"""Names of the special tokens: a word outside the vocabulary, and a masked word."""

IGNORED = -100
"""The target of unmasked tokens, which losses ignore."""


@dataclass(frozen=True)
class Text:
    """Tokens of a text: training and validation ``[tokens]``, size of the vocabulary, tokens in a sample, and the word
    of each token (empty for bytes)."""

    training: Tensor
    validation: Tensor
    vocabulary: int
    context: int
    words: tuple[str, ...] = ()


def topics() -> tuple[str, str]:
    """The training topics and the validation topics, each as one text. They differ a little between Python versions."""
    from pydoc_data.topics import topics as texts

    names = sorted(texts)
    order = torch.randperm(len(names), generator=torch.Generator().manual_seed(SPLIT_SEED)).tolist()
    left, held = HELD_OUT * sum(map(len, texts.values())), set()
    for name in (names[i] for i in order):
        if len(texts[name]) <= left:
            held.add(name)
            left -= len(texts[name])
    training = "\n".join(texts[n] for n in names if n not in held)
    return training, "\n".join(texts[n] for n in names if n in held)


def text(level: str) -> Text:
    """The topics as tokens: "bytes" of UTF-8, or "words" (with punctuation marks and line ends; 0 is any other)."""
    training, validation = topics()
    if level == "bytes":
        parts = [torch.tensor(list(t.encode("utf-8"))) for t in (training, validation)]
        return Text(parts[0], parts[1], 256, CONTEXT[level])
    split = [re.findall(r"\w+|[^\w\s]|\n", t) for t in (training, validation)]
    # Ordered by frequency, then alphabetically.
    ranked = sorted(Counter(split[0]).items(), key=lambda item: (-item[1], item[0]))
    numbers = {word: i + 1 for i, (word, _) in enumerate(ranked[: WORDS - 1])}
    parts = [torch.tensor([numbers.get(word, 0) for word in words]) for words in split]
    return Text(parts[0], parts[1], WORDS, CONTEXT[level], (UNKNOWN, *numbers))


def next_tokens(name: str, source: Text) -> Data:
    """Samples for a language model: tokens ``[N, context]``, and the next tokens."""

    def samples(tokens: Tensor) -> tuple[Tensor, Tensor]:
        count = (len(tokens) - 1) // source.context
        end = count * source.context
        return tokens[:end].view(count, -1), tokens[1 : end + 1].view(count, -1)

    (x, y), (xv, yv) = samples(source.training), samples(source.validation)
    facts = {"vocab_size": source.vocabulary, "context": source.context}
    return Data(name, "language_model", x, y, xv, yv, facts, words=source.words)


def masked_tokens(name: str, source: Text) -> Data:
    """Samples for a masked language model: 15% of the tokens are targets; of these, 80% are replaced by a mask (the
    last number of the vocabulary), 10% by a random token, and 10% are kept (Devlin et al. 2019). Masks are drawn
    once."""
    generator = torch.Generator().manual_seed(SPLIT_SEED)

    def masked(tokens: Tensor, times: int) -> tuple[Tensor, Tensor]:
        count = len(tokens) // source.context
        whole = tokens[: count * source.context].view(count, -1).repeat(times, 1)
        chosen = torch.rand(whole.shape, generator=generator) < MASKED
        fate = torch.rand(whole.shape, generator=generator)
        other = torch.randint(0, source.vocabulary, whole.shape, generator=generator)
        x = torch.where(chosen & (fate < 0.8), torch.full_like(whole, source.vocabulary), whole)
        x = torch.where(chosen & (fate >= 0.9), other, x)
        return x, torch.where(chosen, whole, torch.full_like(whole, IGNORED))

    (x, y), (xv, yv) = masked(source.training, MASKINGS), masked(source.validation, 1)
    facts = {"vocab_size": source.vocabulary + 1, "context": source.context}
    words = (*source.words, MASK) if source.words else ()
    return Data(name, "masked_language_model", x, y, xv, yv, facts, words=words)


def english() -> Data:
    """Bytes of Python's language reference, split by topic."""
    return next_tokens("english", text("bytes"))


def english_words() -> Data:
    """Words of Python's language reference, split by topic."""
    return next_tokens("english_words", text("words"))


def english_masked() -> Data:
    """Bytes of Python's language reference, some masked."""
    return masked_tokens("english_masked", text("bytes"))


def english_words_masked() -> Data:
    """Words of Python's language reference, some masked."""
    return masked_tokens("english_words_masked", text("words"))
