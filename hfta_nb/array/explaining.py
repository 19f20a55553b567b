"""The table that tells how an array runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas

    from hfta_nb.array.fused import FusedArray


def table(array: FusedArray) -> pandas.DataFrame:
    """See `FusedArray.explain`."""
    import pandas

    rows = [("the whole array", note) for note in array.notes]
    if array.engine.across is not None:
        count = len(array.engine.across.blueprint.templates)
        rows.append(("the whole array", f"{count} architectures, {array.waste():.0%} of the parameters are padding"))
    if array.block_size < len(array):
        rows.append(("the whole array", f"in blocks of {array.block_size} of {len(array)} members"))
    capturing = (("backward", array._steps), ("array(x)", array._forwards), ("without gradients", array._results))
    for what, captured in capturing:
        rows += [(what, note) for note in [*captured.notes(), *captured.layouts()]]
    rows += [("backward", note) for note in array._steps.decisions()]
    choices = {c.what: c for _, captured in capturing for c in captured.choices()}
    rows += [(what, f"measured: {choice}") for what, choice in choices.items()]
    rows += [("training step", note) for note in array.step_notes]
    how = "each architecture by itself" if array.settings.unlike else "one member at a time, as vmap can't run it"
    for path, reason in array.settings.paths.items():
        rows.append((f"submodule {path}", f"{how}: {reason}"))
    rows += sorted(array.engine.used.items())
    return pandas.DataFrame(rows, columns=["function", "how"])
