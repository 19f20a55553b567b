"""Faults in rules, in the fallback and in blocks of members."""

from __future__ import annotations

from tests.mutations.fault import Fault

RULES = "hfta_nb/engine/rules"

FAULTS = (
    Fault(
        "convolution-stride",
        f"{RULES}/convolution.py",
        'settings = (("stride", 1), ("padding", 0), ("groups", 1))',
        'settings = (("padding", 0), ("groups", 1))',
        "a strided 1x1 convolution with channels last is computed without its stride",
        ("tests/contract/test_convolutions.py",),
    ),
    Fault(
        "embedding-padding",
        f"{RULES}/embedding.py",
        "still = own.eq(padding % rows).unsqueeze(-1)",
        "still = own.eq(padding).unsqueeze(-1)",
        "a padding row counted from the end learns",
        ("tests/contract/test_precision.py",),
    ),
    Fault(
        "group-norm-groups",
        f"{RULES}/norm.py",
        "out = function(together, members * groups, *flat,",
        "out = function(together, groups, *flat,",
        "members are normalized together",
        ("tests/contract/test_modules.py",),
    ),
    Fault(
        "attention-causal",
        f"{RULES}/attention.py",
        "rest = {k: v for k, v in given.items() if k not in _NAMES[:3]}",
        'rest = {k: v for k, v in given.items() if k not in (*_NAMES[:3], "is_causal")}',
        "attention looks into the future",
        ("tests/contract/test_families.py",),
    ),
    Fault(
        "lstm-dropout-layers",
        f"{RULES}/recurrent.py",
        "if self.dropout and layer < self.layers - 1:",
        "if self.dropout and layer < self.layers:",
        "dropout between layers is applied after the last one, too",
        ("tests/contract/test_recurrent.py",),
    ),
    Fault(
        "likelihood-mean",
        f"{RULES}/likelihood.py",
        "return total / (target != ignored).sum(-1) if mean else total",
        "return total / target.shape[-1] if mean else total",
        "the mean counts targets that are ignored",
        ("tests/contract/test_likelihood.py",),
    ),
    Fault(
        "fallback-usage",
        "hfta_nb/engine/eager/unused.py",
        "{(name, index) for name, node in wanted.items() if node in seen}",
        "{(name, index) for name, node in wanted.items()}",
        "a parameter that a member did not use has a gradient of zero, and is decayed",
        ("tests/contract/test_whatever_models_do.py",),
    ),
    Fault(
        "blocks-frozen",
        "hfta_nb/engine/eager/blocks.py",
        "if block is not None and all(p.requires_grad == named[k].requires_grad for k, p in block.parameters.items()):",
        "if block is not None:",
        "a parameter that is frozen or thawed after the first step goes on as before",
        ("tests/contract/test_array.py",),
    ),
)
