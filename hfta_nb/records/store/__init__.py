"""A run on disk: one SQLite file and safetensors, no pickle.

| module | what it does |
|---|---|
| `connections` | connections: each for a piece of work, and one for as long as the run is claimed |
| `store` | `Store`: what a study, its loop and those who look on ask of a run's directory |
| `database` | ``study.sqlite``: its tables, connections, the sum of each row, SQLite's errors as typed ones |
| `facts` | what is known once: what was asked, in which environment |
| `journal` | events: appended, read from a number on, left out where damaged or gone back behind |
| `mailbox` | requests of other processes to the one that runs the study |
| `checkpoints` | checkpoints and best weights: committed, verified, kept by policy |
| `tensor_files` | files of tensors: written whole or not at all, with their sums |
| `trees` | trees of tensors and plain data, taken apart and put together |
| `locks` | who runs a study |
| `run_copy` | a copy of all that can be read |
| `removal` | deletes a run |
"""

from hfta_nb.records.store.removal import remove
from hfta_nb.records.store.store import Store
from hfta_nb.records.store.tensor_files import is_full

__all__ = ["Store", "is_full", "remove"]
