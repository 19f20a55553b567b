"""Ways to compute the same, and which of them is fastest for a shape on this machine.

In goes an operator of torch with the shapes, strides and dtypes of its operands; out comes the function to call:
torch's own, a variant by other functions of torch, or a kernel in C. Each way is tried in a child process first
where it may end the process, is compared with torch's numbers, and its times are kept on disk.

Open `strategy/autotune.py` first, then `strategy/variants.py`, the table of ways.

| folder | what is in it |
|---|---|
| `strategy/` | variants by operator, how they are measured, and the file of times |
| `native/` | kernels in C, compiled where they are first used, and what binds them to tensors |
| `cuda_graphs` | capturing work as a CUDA graph |
"""
