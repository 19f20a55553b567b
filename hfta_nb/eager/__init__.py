"""Running an array's calls: members in blocks through `vmap`, or one by one where that can't follow.

In goes an `ArrayState` (what an array consists of), a function of a module and its inputs; out come every member's
results and gradients. Where `vmap` fails, the submodule that it failed in runs once per member, and at last the whole
model does.

Open `state.py` first, then `engine.py`.

| file | what is in it |
|---|---|
| `state`, `padding`, `ownership` | what an array consists of, and which array a parameter belongs to |
| `execution_settings` | how an array runs, and what an error changes of that |
| `engine`, `executable_module`, `blocks` | a block of members run through `vmap`, or a member as its plain module |
| `gradients` | block-wise differentiation, and where gradients go |
| `retry`, `fallback`, `handlers` | an error changes the settings, and the call runs again |
| `shared_input_warning` | the warning about an input that looks as if it were per member |
| `verification`, `plain_run`, `member_gradients` | one member is compared with its plain module |
| `outcome`, `compare_outcomes`, `divergence`, `tolerance` | what is compared, and where the difference begins |
| `intercept`, `member_modules`, `plain_copies` | what runs in place of a submodule; a member's own copy of a module |
| `attributes`, `mutable_values` | what members set on themselves, and values that change in place |
| `checkpointing` | activations that are computed again in the backward |
"""
