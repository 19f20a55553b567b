"""User settings of how an array runs."""

from __future__ import annotations

from hfta_nb.engine.array.own_losses import OwnLosses
from hfta_nb.engine.array.self_tuning import SelfTuning
from hfta_nb.engine.eager.execution_settings import ExecutionSettings
from hfta_nb.engine.eager.state import ArrayState
from hfta_nb.engine.eager.verification import VERIFY_MODES
from hfta_nb.engine.kernels.strategy.autotune import STRATEGIES
from hfta_nb.engine.members import threads
from hfta_nb.engine.replay.calls import Calls
from hfta_nb.engine.replay.inductor.decide import COMPILE_MODES
from hfta_nb.errors import FusionError

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
        """How many members run at once: all, or fewer if that is faster.

        The first calls (`self_tuning`) or `tune` find the fastest value. A value that is set is kept for all kinds of
        calls.
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
        """Whether the first calls of `backward`, `array(x)` and `evaluate` find the fastest schedule for each.

        These calls give the usual results, up to rounding; `explain` shows what was found. Tuning is off after
        `block_size` or `threads` was set, and while `strategy` is "fixed", where nothing is timed.
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
        """The threads of training steps, found by `tune`: "kernels" uses all of torch's threads in each kernel; "one",
        a single thread; "blocks", one thread per block of members in replayed steps."""
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
        """Whether calls may be recorded and replayed if the results are the same; `explain` shows which calls are."""
        return self._state.capture

    @capture.setter
    def capture(self, on: bool) -> None:
        if not isinstance(on, bool):
            raise FusionError("neither on nor off", where="capture", got=on, accepted="True or False")
        self._state.capture = on

    @property
    def strategy(self) -> str:
        """How kernels are chosen: "measured" uses the fastest on this machine, which in float32 differ from the plain
        module's by rounding; "fixed" uses those of the plain module and times nothing."""
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
        """Whether replayed steps are compiled: "never"; "auto", if that is faster and pays within the expected steps;
        or "always". Compiling takes seconds to minutes; `explain` shows the outcome."""
        return self.settings.compiling

    @compiling.setter
    def compiling(self, way: str) -> None:
        if way not in COMPILE_MODES:
            raise FusionError("unknown choice", where="compiling", got=way, accepted=", ".join(COMPILE_MODES))
        self.settings.compiling = way
        self._calls.steps.clear()

    @property
    def verify(self) -> str:
        """When a member is compared with its plain module: "first", in the first call of each kind; "always", in every
        call, none of which is then replayed; or "never".

        A comparison costs one training step of one plain module. If the results differ, the array runs the submodule
        member by member and warns, and `explain` shows it.
        """
        return self.settings.verify

    @verify.setter
    def verify(self, when: str) -> None:
        if when not in VERIFY_MODES:
            raise FusionError("unknown choice", where="verify", got=when, accepted=", ".join(VERIFY_MODES))
        self.settings.verify = when

    @property
    def notes(self) -> list[str]:
        """Why the array does not run as one call; empty if it does."""
        return self.settings.notes
