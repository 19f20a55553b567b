"""The table that describes how an array runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from torch import nn

from hfta_nb.engine.array.native_libraries import libraries_of
from hfta_nb.engine.array.own_losses import OwnLosses
from hfta_nb.engine.eager.state import ArrayState
from hfta_nb.engine.kernels.native import build
from hfta_nb.engine.padded.runtime import architectures_of
from hfta_nb.engine.replay.calls import Calls

if TYPE_CHECKING:
    import pandas

_RECURRENT = {
    "hfta_nb::lstm": "by the compiled kernel of this package",
    "aten::mkldnn_rnn_layer": "by oneDNN's kernel",
}
"""How a recurrent layer is computed, by a kernel in the replayed program."""
_PLAIN = {True: "batched products", False: "torch's kernels"}
"""The same without such a kernel, by whether there are several members."""


WHOLE = "the whole array"
"""Stands in place of a function's name."""


class Explained:
    """The part of `FusedArray` that tells how it runs."""

    _state: ArrayState
    _calls: Calls
    _losses: OwnLosses
    step_notes: list[str]

    def explain(self) -> pandas.DataFrame:
        """How each function that the model has called so far is fused, one row per function.

        Returns:
            Columns ``function`` and ``how``: "vmap", or the rule that was used. If the array does not run as one
            call, the first rows describe the whole array.
        """
        import pandas

        return pandas.DataFrame(self._rows(), columns=["function", "how"])

    def _repr_html_(self) -> str:
        return shown(self._state, self._rows())

    def _rows(self) -> list[tuple[str, str]]:
        return rows_of(self._calls, [of_one.calls for of_one in self._losses], self.step_notes)


def recurrent(calls: Calls) -> list[tuple[str, str]]:
    """How the recurrent layers of replayed programs run."""
    state = calls.state
    kinds = {type(m).__name__ for m in state.skeleton.modules() if isinstance(m, nn.RNNBase | nn.RNNCellBase)}
    rows = []
    for names in calls.steps.kernels() if kinds else ():
        several = state.settings.block_size > 1
        who = "all members of a block at once" if several else "one member after another"
        ways = [f"{who}, {how}" for name, how in _RECURRENT.items() if name in names]
        plain = f"{who}, by {_PLAIN[several]}, step by step"
        others = kinds - {"LSTM"} if ways else kinds
        rows += [("LSTM", how) for how in ways] + [(kind, plain) for kind in sorted(others)]
    return list(dict.fromkeys(rows))


def shown(state: ArrayState, explained: Sequence[tuple[str, str]]) -> str:
    """The array as an HTML table: its tensors, and the general rows of `FusedArray.explain`.

    Args:
        state: of the array.
        explained: the rows of `FusedArray.explain`.
    """
    from hfta_nb.figures.html import pairs

    parameters = list(state.tensors.parameters())
    of_one = sum(p.numel() for p in parameters) // max(1, len(state))
    kinds = sorted({str(p.dtype).removeprefix("torch.") for p in parameters})
    rows: list[tuple[str, object]] = [
        ("members", len(state)),
        ("parameters of a member", f"{of_one:,}"),
        ("device", ", ".join([str(state.generators.device), *kinds])),
        ("mode", "training" if state.skeleton.training else "evaluation"),
    ]
    rows += [("runs", how) for what, how in explained if what == WHOLE]
    return pairs(f"FusedArray of {type(state.skeleton).__name__}", rows)


def rows_of(calls: Calls, losses: Iterable[Calls], step_notes: Sequence[str]) -> list[tuple[str, str]]:
    """The rows of the table.

    Args:
        calls: of the array.
        losses: the calls of each loss that was passed to `FusedArray.losses`.
        step_notes: see `FusedArray`.
    """
    state = calls.state
    rows = [(WHOLE, note) for note in state.settings.notes]
    architectures = architectures_of(state)
    if architectures is not None:
        padding = f"{architectures.blueprint.waste():.0%} of the parameters are padding"
        rows.append((WHOLE, f"{len(architectures.templates)} architectures, {padding}"))
    if state.held_once:
        size = sum(arena.stored.nbytes for arena in state.held_once.values())
        count = len(list(state.tensors.parameters()))
        held = (
            f"{len(state.held_once)} of {count} parameters are frozen and equal, and held once: {size / 2**20:.3g} MiB"
        )
        rows.append((WHOLE, held))
    if state.settings.checkpointed:
        rows.append((WHOLE, _checkpointed(state)))
    if state.settings.block_size < len(state):
        beside = ", side by side on streams" if state.generators.device.type == "cuda" else ""
        rows.append((WHOLE, f"in blocks of {state.settings.block_size} of {len(state)} members{beside}"))
    on = {"one": "on one thread", "blocks": "blocks of members side by side, a thread each"}
    rows += [(WHOLE, on[state.settings.threads])] if state.settings.threads in on else []
    if state.settings.tuned:
        rows.append((WHOLE, state.settings.tuned))
    if libraries_of(state) and build.told().startswith("none"):
        rows.append((WHOLE, f"slower than it could be: kernels of this package: {build.told()}"))
    caches = [(kind.title, cache) for kind, cache in calls.caches.items()]
    caches += [("losses", cache) for a in losses for cache in a.caches.values()]
    for what, cache in caches:
        rows += [(what, note) for note in [*cache.notes(), *cache.layouts(), *cache.graphs()]]
    rows += [("backward", note) for note in calls.steps.decisions()]
    rows += recurrent(calls)
    choices = {c.what: c for _, cache in caches for c in cache.choices()}
    for what, choice in choices.items():
        rows.append((what, f"{'measured by an earlier process' if choice.kept else 'measured'}: {choice}"))
    rows += [("training step", note) for note in step_notes]
    for path, reason in state.settings.paths.items():
        how = "each architecture by itself" if state.settings.several_architectures else "one member at a time"
        if not state.settings.several_architectures and path not in state.settings.differences:
            how += ", as vmap can't run it"
        rows.append((f"submodule {path}", f"{how}: {reason}"))
    return rows + sorted(state.engine.used.items())


def _checkpointed(state: ArrayState) -> str:
    if state.engine.architectures is not None:
        return "activations are kept, as members are of different architecture"
    if not state.engine.segments:
        return "activations are kept, as the model has no segments to compute again"
    paths = ", ".join(path or "the model" for path in state.engine.segments)
    replayed = "" if state.capture else "; not recorded, as a recording holds what this lets go of"
    return f"activations within {paths} are computed again in the backward{replayed}"
