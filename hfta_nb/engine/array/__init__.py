"""`FusedArray`: M plain modules as one module, with a leading member axis on all tensors.

Input: plain modules (`fuse`). Output: an array, which can be called, differentiated, tuned, saved and divided. Eager
execution is in `eager/`, recording and replay in `replay/`, fusion of different architectures in `padded/`.

Open `fused.py` first. `access.py` contains what other parts use of an array besides its public face.

| file | what is in it |
|---|---|
| `fused`, `answers`, `array_settings`, `saving`, `extra_states` | `FusedArray`: calls, members, settings, saved state |
| `fusing`, `stack`, `lazy`, `tensor_storage` | an array made from modules, and the memory layout of its tensors |
| `state_code` | models with code of their own for what they save and load |
| `held_once` | frozen parameters that are equal in all members, held once |
| `surgery`, `initialising` | taking out, copying, loading and initialising members |
| `own_losses`, `fused_losses` | `array.losses` |
| `execution_schedule`, `schedule_trial`, `schedule_tuner`, `self_tuning` | the fastest block size and threads |
| `native_libraries` | which compiled kernels its replayed steps may use |
| `inspect`, `explaining`, `access` | how calls run now, for people and for other parts |
"""

from hfta_nb.engine.array.access import owner
from hfta_nb.engine.array.fused import FusedArray
from hfta_nb.engine.array.fusing import fuse, join, why_not
from hfta_nb.engine.array.lazy import has_lazy, take_shapes
from hfta_nb.engine.array.stack import blueprint
from hfta_nb.engine.eager.contexts import not_compiled
from hfta_nb.engine.eager.current_member import member
from hfta_nb.engine.eager.ownership import Follower
from hfta_nb.engine.members.arena import Arena, Span
from hfta_nb.engine.members.generators import MemberGenerators
from hfta_nb.engine.members.per_member import PerMember, in_full, per_member
from hfta_nb.engine.padded.blueprint import Blueprint
from hfta_nb.engine.padded.compare import difference
from hfta_nb.engine.padded.why import Why

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
    "in_full",
    "join",
    "member",
    "not_compiled",
    "owner",
    "per_member",
    "take_shapes",
    "why_not",
]
