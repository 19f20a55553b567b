"""What M members share: their tensors in one block of memory, their random streams, the module that they run through.

In goes a plain module, or tensors with a leading member axis; out come an `Arena` of flat tensors ``[M, P]``, the
streams of `MemberGenerators`, `Slots` into which one member's tensors are put, and trees taken apart and put together.
Nothing in here knows of `vmap`, kernels or arrays.

Open `arena.py` first, then `generators.py`.

| file | what is in it |
|---|---|
| `arena` | parameters of all members in one tensor ``[M, P]``, each a view of some columns |
| `generators` | a random stream for each member |
| `slots` | the places in a module where its tensors sit |
| `per_member`, `tree` | inputs marked as per member; nested tuples, lists and dicts of tensors |
| `threads` | on which threads of the CPU work runs |
| `untraced`, `views` | code that a recording leaves out; the part of a padded tensor that is a member's own |
"""
