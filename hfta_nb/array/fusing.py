"""Making an array out of plain modules, or of two arrays."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from hfta_nb.array.fused import FusedArray
from hfta_nb.array.lazy import check_settled, copied, has_lazy
from hfta_nb.array.stack import blueprint, check_members, stack_members
from hfta_nb.array.storage import take
from hfta_nb.eager.handlers import install
from hfta_nb.eager.state import ArrayState
from hfta_nb.errors import FusionError
from hfta_nb.members.generators import MemberGenerators
from hfta_nb.padded.merge import ApartError
from hfta_nb.padded.why import Why


def fuse(
    modules: Sequence[nn.Module], seeds: Sequence[int] | None = None, *, rng: str = "exact", verify: str = "first"
) -> FusedArray:
    """Fuse plain modules into one array that computes all of them.

    Args:
        modules: M plain modules. They are copied, not changed. They may differ in width, in depth (blocks of an
            `nn.Sequential` or `nn.ModuleList`), in activations, rates and other numbers: then they are padded with
            zeros to the largest, and every member computes what it would alone. `why_not` tells what can't differ.
        seeds: one per member, for the random numbers (dropout masks, ...) that it will draw: it draws what
            ``torch.manual_seed(seed)`` and the plain module would. Without, seeds are drawn from torch's
            default generator.
        rng: "exact", or "fast" to draw all members' random numbers at once: other numbers than a member would draw
            alone, which depend on its neighbours.
        verify: when a member is compared with its plain module: "first" for the first call of each kind, which costs
            about one training step of one member, "always" or "never"; see `FusedArray.verify`.

    Returns:
        The array; ``array(x)`` has a leading member axis M on every output.

    Raises:
        FusionError: the list is empty, holds something else than modules or one module twice, or two of them
            differ in what can't be fused.

    Example:
        >>> array = fuse([nn.Linear(4, 2) for _ in range(3)])
        >>> array(torch.zeros(5, 4)).shape
        torch.Size([3, 5, 2])
    """
    members = list(modules)
    check_members(members, seeds)
    if seeds is None:
        seeds = torch.randint(2**62, (len(members),)).tolist()
    if rng not in ("exact", "fast"):
        raise FusionError("unknown way to draw", where="rng", got=rng, accepted='"exact" or "fast"')
    device = next((t.device for m in members for t in [*m.parameters(), *m.buffers()]), torch.device("cpu"))
    generators = MemberGenerators.seeded(seeds, device)
    if any(has_lazy(m) for m in members):
        state = ArrayState(generators)
        state.pending = [copied(m) for m in members]
        take(state, copied(members[0]), {}, {})
        array = FusedArray(state)
    else:
        array = _array(members, generators)
    array.fast_rng = rng == "fast"
    if verify != "first":
        array.verify = verify
    return array


def fuse_roomy(modules: Sequence[nn.Module], seeds: Sequence[int], verify: str) -> FusedArray:
    """See `access.fuse_roomy`."""
    if any(has_lazy(m) for m in modules):
        return fuse(modules, seeds, verify=verify)
    check_members(modules, seeds)
    device = next((t.device for m in modules for t in [*m.parameters(), *m.buffers()]), torch.device("cpu"))
    array = _array(modules, MemberGenerators.seeded(seeds, device), roomy=True)
    if verify != "first":
        array.verify = verify
    return array


def _array(members: Sequence[nn.Module], generators: MemberGenerators, roomy: bool = False) -> FusedArray:
    state = ArrayState(generators)
    take(state, *stack_members(members, roomy))
    if roomy and state.engine.across is not None:
        state.engine.across.set_roomy(generators.device)
    return FusedArray(state)


def why_not(a: nn.Module, b: nn.Module) -> Why | None:
    """What keeps two modules from being members of one array.

    Widths, depths (in `nn.Sequential` and `nn.ModuleList`), activations, rates and other numbers may differ. What a
    model does with its sizes outside of tensors is not looked at here: an array sees to that when it first runs, and
    runs members of each architecture by themselves where it has to.

    Args:
        a, b: plain modules; on the device "meta" too.

    Returns:
        The first thing that keeps them apart, as text, with `where` it is and a `remedy`; None if they fuse.

    Example:
        >>> why_not(nn.Linear(4, 2), nn.Linear(4, 2)) is None
        True
        >>> why = why_not(nn.Linear(4, 2), nn.Linear(4, 3))
        >>> print(why)
        out_features: 2 and 3
        >>> why.remedy
        'members must have outputs of one size: make it the same'
    """
    for module in (a, b):
        if not isinstance(module, nn.Module):
            raise FusionError("not a module", where="why_not", got=module, accepted="torch.nn.Module")
    try:
        blueprint(a, b)
    except ApartError as error:
        return error.why
    except FusionError as error:
        return Why.of(error.where.removeprefix("fuse, "), error.what, error.remedy)
    return None


def join(a: FusedArray, b: FusedArray) -> FusedArray:
    """A new array of the members of both, those of `a` first, each with its random streams.

    Raises:
        FusionError: their members are not alike.
    """
    for array in (a, b):
        if not isinstance(array, FusedArray):
            raise FusionError("not an array", where="join", got=array, accepted="two FusedArrays")
        check_settled(array._state, "join")
    why = why_not(a[0], b[0])
    if why:
        raise FusionError(f"the arrays' members differ: {why}", where="join", remedy=why.remedy)
    generators = MemberGenerators([*a.generators.states, *b.generators.states], a.generators.device)
    array = _array([*(a[i] for i in range(len(a))), *(b[i] for i in range(len(b)))], generators)
    state = array._state
    state.settings = a.settings.copy()
    size = a._tuning.home.block_size
    state.settings.block_size = len(array) if size == len(a) else size
    install(state)
    return array
