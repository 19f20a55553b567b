"""Records whole calls as a list of kernel calls, and replays them without Python, autograd and `vmap`.

Input: a call of an array (`calls.py`). The first call of a kind runs eagerly, the next two are recorded. If both made
the same kernel calls on the same memory, they become a program, which is compared with them and replayed from then on.
Output: the same results as in eager execution.

Open `array_call.py` and `calls.py` first, then `program_cache.py`, `recording.py`, `record.py` and `build_program.py`.

| file | what is in it |
|---|---|
| `array_call` | a call as data: `backward`, ``array(x)`` with gradients, or without |
| `calls` | replays a call, or runs it eagerly and records it |
| `program_cache`, `cache_entry`, `signature` | the state of calls by signature: recorded, refused, replayed |
| `guards`, `attribute_guards` | values that the model's code can read, which must not change |
| `recording`, `recorded_backward`, `recorded_forward` | one call while it is recorded: in general, and by kind |
| `record`, `trace`, `storage_refs` | the recorder, which writes a trace of kernels and their memory |
| `liveness`, `fuse_relu`, `fuse_image_norms`, `stacking`, `select_kernels` | passes over a trace |
| `fused_kernel`, `fuse_maxima`, `fuse_losses` | passes that replace patterns of calls by one kernel |
| `restride`, `channel_major`, `pad_logits` | passes that store values with other strides |
| `build_program`, `memory_layout` | creates a program from a trace |
| `program`, `source`, `parallel_branches`, `dynamic_call`, `delivery` | the program, and how its gradients arrive |
| `out_variants`, `native_calls`, `image_norm_kernels` | kernels that write into given memory |
| `program_graphs` | programs as CUDA graphs, where launching their kernels takes longer than the kernels do |
| `verify` | the comparison of a program with the recorded call |
| `split_program`, `node` | a forward and its backward as two halves of a program |
| `layouts` | images with channels last |
| `inductor/` | programs compiled by `torch.compile`'s compiler |
"""
