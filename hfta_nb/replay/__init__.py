"""Whole calls recorded once as a list of kernel calls, and replayed without Python, autograd and `vmap`.

In goes a call of an array (`calls.py`): the first of a kind runs as `eager/` runs it, the next two are recorded, and if
both made the same calls on the same memory, their program is compared with them and replayed from then on. Out come the
same numbers.

Open `calls.py` first, then `program_cache.py`, `steps.py`, `record.py` and `program.py`.

| file | what is in it |
|---|---|
| `calls` | replay a call, or run it eagerly and record it on the way |
| `program_cache`, `cache_entry`, `signature` | what is known of calls, by signature: recorded, refused, replayed |
| `guards` | what the model's code can see, which must not change |
| `steps`, `forward`, `results` | the calls of `backward`, of ``array(x)`` with gradients, and without |
| `recorded_step`, `recorded_forward` | one call of the first two while it is recorded |
| `record`, `storage_refs`, `overlap` | the recorder, which makes a trace: kernels, and the memory that they work on |
| `liveness`, `fuse_relu`, `fuse_image_norms`, `stacking`, `select_kernels` | passes over a trace |
| `program`, `source`, `parallel_lanes`, `dynamic_call`, `delivery` | the program, and where its gradients go |
| `out_variants`, `native_calls`, `image_norm_kernels` | kernels that write into memory that is given to them |
| `verify` | the comparison of a program with the call that it was made of |
| `halves`, `node`, `forward_entry` | a forward and its backward as two halves of a program |
| `layouts`, `halves_layout` | images with channels last |
| `inductor/` | programs compiled by `torch.compile`'s compiler |
"""
