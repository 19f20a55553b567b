"""Whole calls recorded once as a list of kernel calls, and replayed without Python, autograd and `vmap`.

In goes a call of an array (`calls.py`): the first of a kind runs as `eager/` runs it, the next two are recorded, and if
both made the same calls on the same memory, their program is compared with them and replayed from then on. Out come the
same numbers.

Open `calls.py` first, then `steps.py`, `record.py` and `program.py`.

| file | what is in it |
|---|---|
| `calls` | replay, record, or run: what is done with a call |
| `steps`, `forward`, `results` | the calls of `backward`, of ``array(x)`` with gradients, and without |
| `kinds`, `reads`, `alive` | what tells kinds of calls apart; what the model's code can see, which must not change |
| `record`, `kernels`, `overlap` | the recorder, and kernels that can write into memory that is given to them |
| `needs`, `folding`, `chains`, `stacking`, `choosing`, `owned` | passes over a recording |
| `program`, `late`, `lanes`, `delivery`, `check` | the program, where its gradients go, and what proves it |
| `node`, `halves`, `recorded`, `seen_forward` | a forward and its backward as two halves of a program |
| `layouts`, `halves_layout` | images with channels last |
| `graphing`, `parts`, `norms`, `compiling`, `deciding` | programs compiled by `torch.compile`'s compiler |
"""
