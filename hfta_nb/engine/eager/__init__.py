"""Eager execution of an array's calls: blocks of members under `vmap`, or one member at a time.

Input: an `ArrayState` (what an array consists of), a function of a module, and its inputs. Output: the results and
gradients of all members. If `vmap` fails in a submodule, that submodule runs once per member; the last resort is to
run the whole model once per member.

Open `state.py` first, then `engine.py`.

| file | what is in it |
|---|---|
| `state`, `padding`, `ownership` | what an array consists of, and which array a parameter belongs to |
| `placement` | tensors that the caller puts in place of an array's |
| `execution_settings` | how an array runs, and what an error changes |
| `engine`, `executable_module`, `blocks` | runs a block of members under `vmap`, or one member as its plain module |
| `gradients`, `differentiate`, `hooks_in_backward` | block-wise differentiation; writes gradients into the arena |
| `retry`, `fallback`, `handlers`, `held_once_writes` | after an error, changes the settings and repeats the call |
| `contexts` | calls within `torch.inference_mode` and `torch.jit.trace` |
| `shared_input_warning` | the warning about an input that looks as if it were per member |
| `verification`, `verified_kinds`, `plain_run` | compare one member with its plain module in the first calls |
| `caller_backward`, `member_gradients` | its gradients by `array(x)`, in the caller's backward or at once |
| `member_outcome`, `compare_outcomes`, `divergence` | what is compared, and where a difference begins |
| `intercept`, `member_modules`, `plain_copies` | replacements of a submodule's `forward`; a member's copy of a module |
| `find_prefix`, `frozen_prefix` | outputs of frozen submodules that depend on a sample alone, taken from the inputs |
| `call_inputs`, `given_objects` | what members are given, and what of their copies the caller's objects get back |
| `attributes`, `mutable_values` | attributes that members set on themselves, and values that change in place |
| `checkpointing`, `recomputation` | activations that are recomputed in the backward: in the model, around the array |
"""
