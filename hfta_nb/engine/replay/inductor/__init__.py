"""A back end that compiles a step by inductor, `torch.compile`'s compiler, instead of calling kernels one by one.

Input: a program (`Source`). Output: a decision, with the compiled step if that is faster. Open `decide.py` first.

| file | what is in it |
|---|---|
| `decide` | whether compiling pays, and whether the compiled step gives the same numbers |
| `compile` | a compiled step: random numbers are drawn first, then one graph runs |
| `early_draws` | which draws can run first |
| `to_fx`, `norm_overloads` | recorded calls as a `torch.fx` graph |
| `view_chain` | strided views of memory as view operations, through which a compiler fuses |
"""
