"""One array on several devices: data-parallel training over `torch.distributed`.

`DataParallel` is for loops of one's own, under torchrun. `leader.lead` and `followers.Followers` are for studies: rank
0 trains as ever and tells the other ranks, which are processes of its own, what to do.

| file | what is in it |
|---|---|
| `data_parallel`, `rows`, `outputs`, `gradients` | `DataParallel`: shares of a mini-batch, its loss, sums |
| `ranks` | the processes, and what they exchange |
| `batch_norm` | synchronised statistics |
| `followers`, `batches` | the processes of a study, and what goes to them |
| `leader`, `follower`, `follower_main`, `recipe` | the step of rank 0, and that of the others |
"""

from hfta_nb.workers.distributed.data_parallel import DataParallel

__all__ = ["DataParallel"]
