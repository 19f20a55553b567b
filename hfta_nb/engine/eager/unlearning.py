"""Calls after which an array knows no more than before: its next call is verified as if it were the first."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hfta_nb.engine.eager.handlers import install
from hfta_nb.engine.eager.state import ArrayState
from hfta_nb.engine.eager.user_warnings import silenced
from hfta_nb.engine.members.process_streams import set_stream_states, stream_states


@contextmanager
def unlearned(state: ArrayState) -> Iterator[None]:
    """Forget on exit what calls in the context have found out about the model, and changed in the settings.

    They warn of nothing: the caller's own call does.

    What was found decides which later calls are verified and recorded, and so how they round. Tensors and the members'
    random streams are restored elsewhere (`ArrayState.snapshot`), those of Python and NumPy here.
    """
    settings, engine = state.settings.copy(), state.engine
    known = [dict(state.verified), dict(state.awaited), {kind: set(found) for kind, found in state.paths.items()}]
    proven, met, rewrites = set(state.proven), state.met.copy(), state.rewrites
    unsettled, touched, used = dict(state.unsettled), set(engine.usage.touched), set(engine.usage.used)
    architectures, drawn, streams = engine.architectures, engine.process_streams.drawn, stream_states()
    axes_known = state.axes_known, state.sums_reported, state.shared
    preallocated = None if architectures is None else architectures.preallocated
    try:
        with silenced():
            yield
    finally:
        state.axes_known, state.sums_reported, state.shared = axes_known
        if engine.process_streams.drawn:
            set_stream_states(streams)
        engine.process_streams.drawn = drawn
        if architectures is not None and architectures.preallocated != preallocated:
            architectures.set_preallocated(state.generators.device if preallocated else None)
        state.verified, state.awaited, state.paths = known
        state.proven, state.met = proven, met
        state.rewrites, state.unsettled = rewrites, unsettled
        engine.usage.touched, engine.usage.used = touched, used
        state.settings = settings
        install(state)
