"""Kernel variants, and the measurement of which one is fastest for a shape on this machine.

Input: an operator of torch with the shapes, strides and dtypes of its operands. Output: the function to call: torch's
own, a variant built from other functions of torch, or a kernel in C. A variant that might end the process is tried in a
child process first. Variants are compared with torch's numbers, and their times are kept on disk.

Open `strategy/autotune.py` first, then `strategy/variants.py`, the table of variants.

| folder | what is in it |
|---|---|
| `strategy/` | variants by operator, their measurement, and the file of times |
| `native/` | kernels in C, compiled on first use, and their bindings to tensors |
| `capture` | what is captured as a graph, compared, and dropped |
| `triton_kernels` | kernels in Triton, for GPUs: cross entropy over many classes, maxima with their places |
| `cuda_graphs` | capturing work as a CUDA graph |
"""
