"""Fusion of members with different architectures: one skeleton, padded with zeros to the largest member.

Input: plain modules that differ in width, depth, activations or rates. Output: a `Blueprint` (how they fit into one
skeleton) and `PaddedArchitectures`, which creates the modules that the engine runs. Padding rules keep padded entries
at zero; a function without a rule runs at true sizes. Each array proves once, by running members alone, that the
results are unchanged (`eager/verification.py`).

Open `blueprint.py` first, then `runtime.py`.

| file | what is in it |
|---|---|
| `compare`, `align`, `why` | the difference that prevents two modules from being fused, in words |
| `merge`, `blueprint`, `attribute_values` | the skeleton, and the positions of members in it |
| `records`, `absent_adapters` | what members with unlike adapters of peft have in common |
| `runtime`, `unlike`, `size_groups` | the modules that an engine runs; members of one architecture by themselves |
| `preallocated` | members of other sizes in the places of those that leave |
| `mode`, `rules/`, `tags`, `member_numbers` | tracking of padding while a model runs |
"""
