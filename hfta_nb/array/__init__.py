"""`FusedArray`: M plain modules as one, with a leading member axis on everything they hold."""

from hfta_nb.array.compare import difference
from hfta_nb.array.fused import FusedArray, fuse
from hfta_nb.array.generators import MemberGenerators
from hfta_nb.array.per_member import PerMember, per_member

__all__ = ["FusedArray", "MemberGenerators", "PerMember", "difference", "fuse", "per_member"]
