"""`FusedArray`: M plain modules as one, with a leading member axis on everything they hold.

In go plain modules (`fuse`); out comes an array, which is called, differentiated, tuned, saved and cut up. How calls
run is in `eager/`, how they are recorded and replayed in `replay/`, how unlike members fit in `padded/`.

Open `fused.py` first. `access.py` is what other parts ask of an array beside its public face.

| file | what is in it |
|---|---|
| `fused`, `answers`, `settings`, `saving` | `FusedArray`: calls, members, settings, what is saved |
| `fusing`, `stack`, `lazy`, `storage` | an array made of plain modules, and its tensors laid out in memory |
| `surgery` | members taken out, copied and loaded |
| `own_losses` | `array.losses` |
| `schedule`, `schedule_trial`, `schedule_tuner`, `self_tuning` | which block size and threads are fastest |
| `inspect`, `explaining`, `access` | how calls run now, for people and for other parts |
"""

from hfta_nb.array.access import owner
from hfta_nb.array.fused import FusedArray
from hfta_nb.array.fusing import fuse, join, why_not
from hfta_nb.array.lazy import has_lazy, take_shapes
from hfta_nb.array.stack import blueprint
from hfta_nb.eager.ownership import Follower
from hfta_nb.members.arena import Arena, Span
from hfta_nb.members.generators import MemberGenerators
from hfta_nb.members.per_member import PerMember, per_member
from hfta_nb.padded.blueprint import Blueprint
from hfta_nb.padded.compare import difference
from hfta_nb.padded.why import Why

__all__ = [
    "Arena",
    "Blueprint",
    "Follower",
    "FusedArray",
    "MemberGenerators",
    "PerMember",
    "Span",
    "Why",
    "blueprint",
    "difference",
    "fuse",
    "has_lazy",
    "join",
    "owner",
    "per_member",
    "take_shapes",
    "why_not",
]
