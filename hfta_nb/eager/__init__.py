"""Running an array's calls: members in blocks through `vmap`, or one by one where that can't follow.

In goes an `ArrayState` (what an array consists of), a function of a module and its inputs; out come every member's
results and gradients. Where `vmap` fails, the submodule that it failed in runs once per member, and at last the whole
model does.

Open `state.py` first, then `engine.py`.

| file | what is in it |
|---|---|
| `state`, `padding`, `owners` | what an array consists of, and which array a parameter belongs to |
| `engine`, `body`, `blocks` | a block of members run through `vmap`, or a member as the plain module that it is |
| `gradients` | block-wise differentiation, and where gradients go |
| `attempt`, `fallback`, `handlers`, `hints` | running again in another way where one fails, and what a person is told |
| `intercept`, `attributes` | what runs in place of a submodule; what members set on themselves |
| `checkpointing` | activations that are computed again in the backward |
"""
