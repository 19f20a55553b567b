"""Installs the replacements of submodules after a change of settings."""

from __future__ import annotations

from hfta_nb.engine.eager.checkpointing import checkpoint_handlers, segments
from hfta_nb.engine.eager.fallback import attention_handlers, one_by_one
from hfta_nb.engine.eager.state import ArrayState


def install(state: ArrayState) -> None:
    """Configure the engine according to the settings."""
    engine, settings = state.engine, state.settings
    engine.private, engine.fast_rng, engine.plain = settings.private, settings.fast_rng, settings.strategy == "fixed"
    engine.as_plain = settings.as_plain
    if engine.architectures is not None:
        settings.several_architectures = True
        engine.architectures.set_fallbacks(settings.paths, settings.separate_reason)
        return
    handlers = attention_handlers(state.skeleton, engine.member_modules)
    for path in settings.paths:
        handlers[path] = one_by_one(state.skeleton, path, engine.member_modules)
    engine.one_by_one = tuple(settings.paths)
    engine.segments = segments(state.skeleton) if settings.checkpointed else []
    again = checkpoint_handlers(state.skeleton, handlers) if engine.segments else {}
    engine.handlers = handlers | {p: h for p, h in again.items() if p not in settings.paths}
