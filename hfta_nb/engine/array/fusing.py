"""Creates an array from plain modules, or from two arrays."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn

from hfta_nb.engine.array.fused import FusedArray
from hfta_nb.engine.array.lazy import check_settled, copied, has_lazy
from hfta_nb.engine.array.stack import blueprint, check_members, stack_members
from hfta_nb.engine.array.tensor_storage import take
from hfta_nb.engine.eager.function_states import FunctionStates
from hfta_nb.engine.eager.handlers import install
from hfta_nb.engine.eager.model_hooks import check_hooks
from hfta_nb.engine.eager.shared_modules import views_in, warn_of_shared
from hfta_nb.engine.eager.state import ArrayState
from hfta_nb.engine.members.generators import MemberGenerators
from hfta_nb.engine.padded.merge import ApartError
from hfta_nb.engine.padded.runtime import architectures_of
from hfta_nb.engine.padded.why import Why
from hfta_nb.errors import FusionError
from hfta_nb.errors.border import ITEMS, bounded, one_of


def fuse(
    modules: Iterable[nn.Module], seeds: Iterable[int] | None = None, *, rng: str = "exact", verify: str = "first"
) -> FusedArray:
    """Fuse plain modules into one array that computes all of them.

    Args:
        modules: M plain modules. They are copied, not changed. They may differ in width, in depth (blocks of an
            `nn.Sequential` or `nn.ModuleList`), in activations, rates and other numbers: then they are padded with
            zeros to the largest, and every member computes what its plain module computes. `why_not` tells what
            cannot differ. Parameters that are frozen and equal in all are held once. Of another module or parameter
            that several of them share, each gets a copy of its own, with an `ArrayWarning` if it is trained or a call
            changes it.
        seeds: one per member, for its random numbers (dropout masks, ...), which equal those of the plain module after
            ``torch.manual_seed(seed)``. By default, seeds are drawn from torch's default generator.
        rng: "exact", or "fast" to draw all members' random numbers at once: these differ from the plain module's and
            depend on the other members.
        verify: when a member is compared with its plain module: "first" for the first call of each kind, which costs
            about one training step of one member, "always" or "never"; see `FusedArray.verify`.

    Returns:
        The array; ``array(x)`` has a leading member axis M on every output.

    Raises:
        FusionError: the list is empty, contains anything but modules or contains a module twice, or two modules differ
            in a property that cannot be fused.

    Example:
        >>> array = fuse([nn.Linear(4, 2) for _ in range(3)])
        >>> array(torch.zeros(5, 4)).shape
        torch.Size([3, 5, 2])
    """
    # The layers of a single `Sequential` are no members.
    single = isinstance(modules, nn.Module) and not isinstance(modules, nn.ModuleList | FusedArray)
    if single or not ITEMS.accepts(modules):
        accepted = "a list of modules, one per member, such as [build() for _ in range(4)]"
        raise FusionError("not a list of modules", where="fuse", got=type(modules).__name__, accepted=accepted)
    members = bounded(modules, FusionError, "modules")
    for i, module in enumerate(members):
        if isinstance(module, FusedArray):
            remedy = "join arrays with hfta_nb.join(a, b), or fuse their members: fuse([*a, *b])"
            raise FusionError("an array, not a plain module", where=f"fuse, member {i}", remedy=remedy)
    check_members(members, seeds := None if seeds is None else _seeds(seeds))
    check_hooks(members)
    if seeds is None:
        seeds = torch.randint(2**62, (len(members),)).tolist()
    if not one_of("exact", "fast").accepts(rng):
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


def _seeds(given: Any) -> list[int]:
    if not ITEMS.accepts(given):
        raise FusionError("not a list of seeds", where="seeds", got=given, accepted="a list with one per member")
    return bounded(given, FusionError, "seeds")


def fuse_preallocated(modules: Sequence[nn.Module], seeds: Sequence[int], verify: str) -> FusedArray:
    """See `access.fuse_preallocated`."""
    if any(has_lazy(m) for m in modules):
        return fuse(modules, seeds, verify=verify)
    check_members(modules, seeds)
    device = next((t.device for m in modules for t in [*m.parameters(), *m.buffers()]), torch.device("cpu"))
    array = _array(modules, MemberGenerators.seeded(seeds, device), preallocated=True)
    if verify != "first":
        array.verify = verify
    return array


def _array(members: Sequence[nn.Module], generators: MemberGenerators, preallocated: bool = False) -> FusedArray:
    shared = warn_of_shared(members)
    state = ArrayState(generators)
    take(state, *stack_members(members, preallocated))
    architectures = architectures_of(state)
    first = (
        {} if architectures is None else {own: name for n in architectures.blueprint.names for own, name in n.items()}
    )
    state.shared = frozenset(first.get(name, name) for name in shared)
    state.viewed = {a: [first.get(name, name) for name in others] for a, others in views_in(members[0]).items()}
    if preallocated and state.engine.architectures is not None:
        state.engine.architectures.set_preallocated(generators.device)
    return FusedArray(state)


def why_not(a: nn.Module, b: nn.Module) -> Why | None:
    """The first difference that prevents two modules from being members of one array.

    Widths, depths (in `nn.Sequential` and `nn.ModuleList`), activations, rates and other numbers may differ. This
    function does not examine what a model computes from its sizes outside of tensors: an array checks that in its first
    call, and runs members of each architecture separately if necessary.

    Args:
        a, b: plain modules, which may be on the device "meta".

    Returns:
        The difference as text, with its location `where` and a `remedy`; None if the modules can be fused.

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
        FusionError: their members have different architectures that cannot be fused.
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
    state.functions = state.engine.functions = FunctionStates.joined(a._state.functions, b._state.functions)
    state.settings = a.settings.copy()
    size = a._tuning.home.block_size
    state.settings.block_size = len(array) if size == len(a) else size
    install(state)
    return array
