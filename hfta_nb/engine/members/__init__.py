"""Building blocks that M members share: memory for their tensors, random streams, and the module that they run through.

Input: a plain module, or tensors with a leading member axis. Output: an `Arena` of flat tensors ``[M, P]``, the
streams of `MemberGenerators`, `TensorSlots` that hold one member's tensors, and flattened trees.
Nothing here depends on `vmap`, kernels or arrays.

Open `arena.py` first, then `generators.py`.

| file | what is in it |
|---|---|
| `arena` | parameters of all members in one tensor ``[M, P]``, each a view of some columns |
| `in_common` | which parameters are frozen and equal in all members |
| `generators` | a random stream for each member |
| `own_draws` | random numbers that a thread draws from a generator of its own |
| `process_streams` | random streams of Python and NumPy, which belong to the process, and its other threads |
| `tensor_slots` | where a module stores its tensors, so that they can be replaced |
| `per_member`, `tree` | inputs marked as per member; nested tuples, lists and dicts of tensors |
| `scratch` | memory for intermediate values of programs |
| `threads` | the CPU threads that steps run on |
| `untraced`, `views` | code that a recorder ignores; a member's own part of a padded tensor |
"""
