"""Small models of transformers with random weights, saved as pretrained ones are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

import hfta_nb as hfta
from tests.contract.zoo.packages import package

SIZES = {"vocab_size": 13, "hidden_size": 8, "intermediate_size": 16, "num_attention_heads": 2,
         "num_hidden_layers": 2, "max_position_embeddings": 16}  # fmt: skip


def bert(folder: Path, kind: str = "BertModel", **settings: Any) -> Path:
    """A saved BERT.

    Args:
        folder: is made.
        kind: its class.
        settings: of its configuration.
    """
    transformers = package("transformers")
    config = transformers.BertConfig(**{**SIZES, **settings})
    with torch.random.fork_rng([]):
        torch.manual_seed(7)
        getattr(transformers, kind)(config).save_pretrained(folder)
    return folder


def tokens(count: int = 24, length: int = 6, classes: int = 3) -> hfta.Data:
    """Tokenised texts with masks of unlike length, and classes."""
    drawn = torch.Generator().manual_seed(0)
    ids = torch.randint(1, 13, (count, length), generator=drawn)
    lengths = torch.randint(2, length + 1, (count, 1), generator=drawn)
    mask = (torch.arange(length) < lengths).long()
    return hfta.data.from_tensors(
        {"input_ids": ids * mask, "attention_mask": mask}, torch.arange(count) % classes, name="texts"
    )
