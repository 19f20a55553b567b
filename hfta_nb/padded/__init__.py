"""Fusing members of different architecture: they run through one skeleton, padded with zeros to the largest of them.

In go plain modules that differ in width, depth, activations or rates; out come a `Blueprint` (how they fit into one
skeleton) and `PaddedArchitectures`, which makes the modules that the engine runs. Padding rules keep padded entries at
zero, a function without one runs at true sizes, and each array proves once, by running members alone, that nothing has
changed.

Open `blueprint.py` first, then `runtime.py`.

| file | what is in it |
|---|---|
| `compare`, `align`, `why` | what keeps two modules apart, in words |
| `merge`, `blueprint`, `values` | the skeleton, and where members find their place in it |
| `runtime`, `unlike`, `groups` | the modules that an engine runs; members of each kind by themselves |
| `mode`, `rules/`, `tags`, `numbers` | keeping track of padding while a model runs |
| `proof` | comparing members with what they come to alone |
"""
