"""`FusedArray`: M plain modules as one, with a leading member axis on everything they hold."""

from hfta_nb.array.access import owner
from hfta_nb.array.fused import FusedArray
from hfta_nb.array.fusing import fuse, join, why_not
from hfta_nb.array.lazy import has_lazy, take_shapes
from hfta_nb.array.stack import blueprint
from hfta_nb.eager.owners import Follower
from hfta_nb.members.generators import MemberGenerators
from hfta_nb.members.per_member import PerMember, per_member
from hfta_nb.padded.blueprint import Blueprint
from hfta_nb.padded.compare import difference
from hfta_nb.padded.why import Why

__all__ = [
    "Blueprint",
    "Follower",
    "FusedArray",
    "MemberGenerators",
    "PerMember",
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
