"""One array on several devices over `torch.distributed`: parts of the mini-batch, of tables, or of every matrix.

`DataParallel` is for loops of one's own, under torchrun. `leader.lead` and `followers.Followers` are for studies: rank
0 trains as ever and tells the other ranks, which are children of its own, what to do.

| file | what is in it |
|---|---|
| `data_parallel`, `rank_rows`, `outputs`, `summed_gradients` | `DataParallel`: shares of a mini-batch, its loss, sums |
| `ranks` | what the ranks exchange, and how they meet |
| `batch_norm` | synchronised statistics |
| `followers`, `batch_parts` | the children of rank 0, and what goes to them |
| `table_placement`, `sharded_tables` | embedding tables over devices: where they lie, and looking them up |
| `grid_products`, `transformer_mesh` | matrices in blocks on a square of processes, and a Transformer of them |
| `mesh_step`, `mesh_leader` | the step of every rank of such a square, and that of rank 0 |
| `leader`, `rank_follower`, `step_recipe` | the step of rank 0, and that of the others |
"""

from hfta_nb.workers.distributed.data_parallel import DataParallel
from hfta_nb.workers.distributed.sharded_tables import ShardedTables
from hfta_nb.workers.distributed.table_placement import Piece, Placement, place_tables
from hfta_nb.workers.distributed.transformer_mesh import TransformerMesh

__all__ = ["DataParallel", "Piece", "Placement", "ShardedTables", "TransformerMesh", "place_tables"]
