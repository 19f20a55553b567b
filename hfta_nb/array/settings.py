"""How an array runs, as its user sets it."""

from __future__ import annotations

from hfta_nb.array.own_losses import OwnLosses
from hfta_nb.array.self_tuning import SelfTuning
from hfta_nb.eager.execution_settings import ExecutionSettings
from hfta_nb.eager.state import ArrayState
from hfta_nb.eager.verification import VERIFY_MODES
from hfta_nb.errors import FusionError
from hfta_nb.kernels.strategy.autotune import STRATEGIES
from hfta_nb.members import threads
from hfta_nb.replay.calls import Calls
from hfta_nb.replay.inductor.decide import COMPILE_MODES

__all__ = ["COMPILE_MODES", "STRATEGIES", "VERIFY_MODES", "Adjustable"]


class Adjustable:
    """The settings of a `FusedArray`: read and written as attributes, checked when they are written."""

    _state: ArrayState
    _calls: Calls
    _losses: OwnLosses
    _tuning: SelfTuning

    @property
    def settings(self) -> ExecutionSettings:
        """How the array runs."""
        return self._state.settings

    @property
    def block_size(self) -> int:
        """How many members run at once: all, or fewer where that is faster.

        The first calls find out (`self_tuning`), or `tune` does. A value that is set stays, for all forms of calls.
        """
        return self.settings.block_size

    @block_size.setter
    def block_size(self, size: int) -> None:
        members = len(self._state)
        if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= members:
            raise FusionError("not a number of members", where="block_size", got=size, accepted=f"1 to {members}")
        self.self_tuning = False
        self.settings.block_size = size

    @property
    def self_tuning(self) -> bool:
        """Whether the first calls of `backward`, `array(x)` and `evaluate` find out in which way each is fastest.

        They run as ever, and what is computed differs by rounding at most; `explain` tells what was found. Off after
        `block_size` or `threads` was set by hand, and while `strategy` is "fixed", where nothing is timed.
        """
        return self.settings.self_tuning

    @self_tuning.setter
    def self_tuning(self, on: bool) -> None:
        if not isinstance(on, bool):
            raise FusionError("neither on nor off", where="self_tuning", got=on, accepted="True or False")
        if not on:
            self._tuning.stop()
        self.settings.self_tuning = on

    @property
    def threads(self) -> str:
        """What training steps run on (`tune` finds out): "kernels", each kernel on all threads that torch has; "one",
        all on one thread; "blocks", blocks of members side by side on a thread each, where a step is replayed."""
        return self.settings.threads

    @threads.setter
    def threads(self, way: str) -> None:
        if way not in threads.THREAD_MODES:
            raise FusionError("unknown choice", where="threads", got=way, accepted=", ".join(threads.THREAD_MODES))
        self.self_tuning = False
        self.settings.threads = way

    @property
    def fast_rng(self) -> bool:
        """Whether all members' random numbers are drawn at once; see `fuse`."""
        return self.settings.fast_rng

    @fast_rng.setter
    def fast_rng(self, on: bool) -> None:
        self.settings.fast_rng = self._state.engine.fast_rng = on

    @property
    def capture(self) -> bool:
        """Whether calls may be recorded and replayed, where that is sure to be the same; `explain` tells which are."""
        return self._state.capture

    @capture.setter
    def capture(self, on: bool) -> None:
        if not isinstance(on, bool):
            raise FusionError("neither on nor off", where="capture", got=on, accepted="True or False")
        self._state.capture = on

    @property
    def strategy(self) -> str:
        """How kernels are chosen: "measured", the fastest on this machine, which in float32 differ from the plain
        module's by rounding; or "fixed", those that the plain module calls, with nothing chosen by time."""
        return self.settings.strategy

    @strategy.setter
    def strategy(self, strategy: str) -> None:
        if strategy not in STRATEGIES:
            raise FusionError(
                "no way to choose kernels", where="strategy", got=strategy, accepted=" or ".join(STRATEGIES)
            )
        self._tuning.restart()
        self.settings.strategy, self._state.engine.plain = strategy, strategy == "fixed"
        self._calls.clear()
        self._losses.clear()

    @property
    def compiling(self) -> str:
        """Whether what is replayed is compiled: "never"; "auto", where that is faster and pays in the steps to come;
        or "always". It takes seconds to minutes; `explain` tells what came of it."""
        return self.settings.compiling

    @compiling.setter
    def compiling(self, way: str) -> None:
        if way not in COMPILE_MODES:
            raise FusionError("unknown choice", where="compiling", got=way, accepted=", ".join(COMPILE_MODES))
        self.settings.compiling = way
        self._calls.steps.cache.clear()

    @property
    def verify(self) -> str:
        """When a member is compared with the plain module alone: "first", at the first call of each kind; "always", at
        every call, none of which is replayed then; or "never".

        What is computed by the plain module is one training step of one member. Where it differs, the array runs the
        submodule member by member, warns, and `explain` tells.
        """
        return self.settings.verify

    @verify.setter
    def verify(self, when: str) -> None:
        if when not in VERIFY_MODES:
            raise FusionError("unknown choice", where="verify", got=when, accepted=", ".join(VERIFY_MODES))
        self.settings.verify = when

    @property
    def notes(self) -> list[str]:
        """Why the array does not run as one call, where it does not."""
        return self.settings.notes
