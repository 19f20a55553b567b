"""One array on several devices: data-parallel training over `torch.distributed`.

`DataParallel` is for loops of one's own, under torchrun. `leader.lead` and `followers.Followers` are for studies: rank
0 trains as ever and tells the other ranks, which are children of its own, what to do.

| file | what is in it |
|---|---|
| `data_parallel`, `rank_rows`, `outputs`, `summed_gradients` | `DataParallel`: shares of a mini-batch, its loss, sums |
| `ranks` | what the ranks exchange, and how they meet |
| `batch_norm` | synchronised statistics |
| `followers`, `batch_parts` | the children of rank 0, and what goes to them |
| `leader`, `rank_follower`, `step_recipe` | the step of rank 0, and that of the others |
"""

from hfta_nb.workers.distributed.data_parallel import DataParallel

__all__ = ["DataParallel"]
