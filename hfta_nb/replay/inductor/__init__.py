"""A back end: steps compiled by `torch.compile`'s compiler, inductor, in place of calling recorded kernels one by one.

In goes a program (`Source`), out comes a decision on it, with what runs in its place where that is faster. Open
`decide.py` first.

| file | what is in it |
|---|---|
| `decide` | whether compiling pays, and that the compiled step gives the same numbers |
| `compile` | a compiled step: random numbers are drawn first, then one graph runs |
| `draws` | which draws can be made first |
| `to_fx`, `norms` | recorded calls as a `torch.fx` graph |
"""
