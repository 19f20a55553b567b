"""What runs in place of an array's submodules, put in place anew when the way in which the array runs has changed."""

from __future__ import annotations

from hfta_nb.eager.checkpointing import handlers as checkpointing
from hfta_nb.eager.checkpointing import segments
from hfta_nb.eager.fallback import attention_handlers, one_by_one
from hfta_nb.eager.state import ArrayState


def install(state: ArrayState) -> None:
    """Let the engine run as the settings say."""
    engine, settings = state.engine, state.settings
    engine.private, engine.fast_rng, engine.plain = settings.private, settings.fast_rng, settings.strategy == "fixed"
    if engine.across is not None:
        settings.unlike = True
        engine.across.settle(settings.paths, settings.apart)
        return
    handlers = attention_handlers(state.skeleton)
    for path in settings.paths:
        handlers[path] = one_by_one(state.skeleton, path)
    engine.segments = segments(state.skeleton) if settings.checkpointed else []
    again = checkpointing(state.skeleton, handlers) if engine.segments else {}
    engine.handlers = handlers | {p: h for p, h in again.items() if p not in settings.paths}
