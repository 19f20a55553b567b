"""The table that tells how an array runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from hfta_nb.html import pairs

if TYPE_CHECKING:
    import pandas

    from hfta_nb.array.capture.forward import CapturedForwards
    from hfta_nb.array.capture.results import CapturedResults
    from hfta_nb.array.capture.steps import CapturedSteps
    from hfta_nb.array.fused import FusedArray


_RECURRENT = {
    "hfta_nb::lstm": "by the compiled kernel of this package",
    "aten::mkldnn_rnn_layer": "by oneDNN's kernel",
}
"""By a kernel in what is replayed, how a recurrent layer is computed."""
_PLAIN = {True: "batched products", False: "torch's kernels"}
"""The same without such a kernel, by whether there are several members."""


WHOLE = "the whole array"
"""Stands in place of a function's name."""


def recurrent(array: FusedArray) -> list[tuple[str, str]]:
    """How the recurrent layers of what is replayed run."""
    kinds = {type(m).__name__ for m in array._skeleton.modules() if isinstance(m, nn.RNNBase | nn.RNNCellBase)}
    rows = []
    for names in array._steps.kernels() if kinds else ():
        several = array.block_size > 1
        who = "all members of a block at once" if several else "one member after another"
        ways = [f"{who}, {how}" for name, how in _RECURRENT.items() if name in names]
        plain = f"{who}, by {_PLAIN[several]}, step by step"
        others = kinds - {"LSTM"} if ways else kinds
        rows += [("LSTM", how) for how in ways] + [(kind, plain) for kind in sorted(others)]
    return list(dict.fromkeys(rows))


def table(array: FusedArray) -> pandas.DataFrame:
    """See `FusedArray.explain`."""
    import pandas

    return pandas.DataFrame(rows_of(array), columns=["function", "how"])


def shown(array: FusedArray) -> str:
    """The array as an HTML table: what it holds, and what of `FusedArray.explain` concerns all of it."""
    parameters = list(array.parameters())
    of_one = sum(p.numel() for p in parameters) // max(1, len(array))
    kinds = sorted({str(p.dtype).removeprefix("torch.") for p in parameters})
    rows: list[tuple[str, object]] = [
        ("members", len(array)),
        ("parameters of a member", f"{of_one:,}"),
        ("device", ", ".join([str(array.generators.device), *kinds])),
        ("mode", "training" if array.training else "evaluation"),
    ]
    rows += [("runs", how) for what, how in rows_of(array) if what == WHOLE]
    return pairs(f"FusedArray of {type(array._skeleton).__name__}", rows)


def rows_of(array: FusedArray) -> list[tuple[str, str]]:
    """The rows of the table."""
    rows = [(WHOLE, note) for note in array.notes]
    if array.engine.across is not None:
        count = len(array.engine.across.blueprint.templates)
        rows.append((WHOLE, f"{count} architectures, {array.waste():.0%} of the parameters are padding"))
    if array.settings.checkpointed:
        rows.append((WHOLE, _checkpointed(array)))
    if array.block_size < len(array):
        beside = ", replayed side by side on streams" if array.generators.device.type == "cuda" else ""
        rows.append((WHOLE, f"in blocks of {array.block_size} of {len(array)} members{beside}"))
    on = {"one": "on one thread", "blocks": "blocks of members side by side, a thread each"}
    rows += [(WHOLE, on[array.threads])] if array.threads in on else []
    if array.settings.tuned:
        rows.append((WHOLE, array.settings.tuned))
    capturing: list[tuple[str, CapturedSteps | CapturedForwards | CapturedResults]]
    capturing = [("backward", array._steps), ("array(x)", array._forwards), ("without gradients", array._results)]
    capturing += [("losses", captured) for a in array._losses for captured in (a._forwards, a._results)]
    for what, captured in capturing:
        rows += [(what, note) for note in [*captured.notes(), *captured.layouts()]]
    if array._forwards.postpones():
        rows.append(("array(x), losses, sum, backward", "put off until the backward, then one step"))
    rows += [("backward", note) for note in array._steps.decisions()]
    rows += recurrent(array)
    choices = {c.what: c for _, captured in capturing for c in captured.choices()}
    for what, choice in choices.items():
        rows.append((what, f"{'measured by an earlier process' if choice.kept else 'measured'}: {choice}"))
    rows += [("training step", note) for note in array.step_notes]
    how = "each architecture by itself" if array.settings.unlike else "one member at a time, as vmap can't run it"
    for path, reason in array.settings.paths.items():
        rows.append((f"submodule {path}", f"{how}: {reason}"))
    return rows + sorted(array.engine.used.items())


def _checkpointed(array: FusedArray) -> str:
    if array.engine.across is not None:
        return "activations are kept, as members are of different architecture"
    if not array.engine.segments:
        return "activations are kept, as the model has no segments to compute again"
    paths = ", ".join(path or "the model" for path in array.engine.segments)
    replayed = "" if array.capture else "; not replayed, as recording holds what this lets go of"
    return f"activations within {paths} are computed again in the backward{replayed}"
