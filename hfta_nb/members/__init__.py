"""What M members share: their tensors in one block of memory, their random streams, the module that they run through.

Input: a plain module, or tensors with a leading member axis. Output: an `Arena` of flat tensors ``[M, P]``, the
streams of `MemberGenerators`, `TensorSlots` that hold one member's tensors, and flattened trees.
Nothing here depends on `vmap`, kernels or arrays.

Open `arena.py` first, then `generators.py`.

| file | what is in it |
|---|---|
| `arena` | parameters of all members in one tensor ``[M, P]``, each a view of some columns |
| `generators` | a random stream for each member |
| `process_streams` | random streams of Python and NumPy, which belong to the process |
| `tensor_slots` | the places in a module where its tensors sit |
| `per_member`, `tree` | inputs marked as per member; nested tuples, lists and dicts of tensors |
| `threads` | on which threads of the CPU work runs |
| `untraced`, `views` | code that a recording leaves out; the part of a padded tensor that is a member's own |
"""
