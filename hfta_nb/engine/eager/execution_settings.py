"""How an array runs, and what an error changes."""

from __future__ import annotations

import copy

from torch import nn

from hfta_nb.engine.eager.fallback import path_of
from hfta_nb.engine.rules.rule_mode import SharedWrite


class ExecutionSettings:
    """How an array runs. If no change lets a call succeed, the previous settings are restored.

    Attributes:
        block_size: how many members run at once; one if they run `as_plain`.
        as_plain: members run one by one on tensors that are no views, and what their backward changes is taken over.
        threads: see `FusedArray.threads`.
        checkpointed: activations are recomputed in the backward (see `checkpointing`).
        private, fast_rng: see `Engine`.
        strategy: how kernels are chosen; see `FusedArray.strategy`.
        compiling: whether replayed steps are compiled; see `FusedArray.compiling`.
        planned_steps: the expected number of further steps.
        brief: there are too few steps for recording to pay; see `schedule_tuner.foresee`.
        recorded_from: the fewest for which it does, on a CPU and without convolutions.
        verify: when calls are compared with the plain module; see `FusedArray.verify`.
        self_tuning: find the fastest schedule in the first calls; see `FusedArray.self_tuning`.
        tuned: how the block size was found, for people; empty if it was not tuned.
        paths: submodules that run one member at a time, with reasons.
        notes: remarks about the whole array, for people.
        differences: differences from the plain module, by the path that runs member by member because of them.
        several_architectures: members have different architectures; then `paths` run each architecture at true sizes.
        separate_reason: why the whole model runs each architecture separately; empty if it does not.
    """

    self_tuning = True
    recorded_from = 40
    verify = "first"

    def __init__(self, block_size: int) -> None:
        self.as_plain = False
        self.block_size, self.threads = block_size, "kernels"
        self.several_architectures = False
        self.separate_reason = ""
        self.checkpointed = False
        self.private = False
        self.fast_rng = False
        self.strategy = "measured"
        self.compiling, self.planned_steps, self.brief = "never", 0.0, False
        self.tuned = ""
        self.paths: dict[str, str] = {}
        self.notes: list[str] = []
        self.differences: dict[str, str] = {}

    @property
    def block_size(self) -> int:
        return 1 if self.as_plain else self._block_size

    @block_size.setter
    def block_size(self, size: int) -> None:
        self._block_size = size

    @property
    def padded(self) -> bool:
        """True if members run padded."""
        return self.several_architectures and not self.separate_reason and self.block_size > 1 and not self.fast_rng

    def copy(self) -> ExecutionSettings:
        other = copy.copy(self)
        other.paths, other.notes = dict(self.paths), list(self.notes)
        other.differences = dict(self.differences)
        return other

    def react(self, error: Exception, root: nn.Module) -> None:
        """Change the settings after an error: private tensors first, then a submodule member by member, then the whole
        model."""
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        if isinstance(error, SharedWrite) and not self.private:
            self.private = True
            self.remark(f"members get copies of what they share: {reason}")
            return
        # A proof by execution names the submodule where the difference begins.
        path = error.path if hasattr(error, "path") else path_of(error, root)
        while path and (path in self.paths or not _is_called(root, path)):
            path = path.rpartition(".")[0]
        if path:
            self.paths = {other: why for other, why in self.paths.items() if not other.startswith(f"{path}.")}
            self.paths[path] = reason
            return
        if self.several_architectures and not self.separate_reason:
            self.separate_reason = reason
            self.remark(f"members of each architecture by themselves: {reason}")
            return
        self.block_size = 1
        self.remark(f"one member at a time, as vmap can't run it: {reason}")

    def run_as_plain(self, error: Exception) -> None:
        """Let members run one by one, as their plain modules do, after an error where they already run one by one."""
        self.as_plain = True
        self.remark(
            f"one member at a time, on tensors of its own: {(str(error).strip() or 'no message').splitlines()[0]}"
        )

    def remark(self, text: str) -> bool:
        """Add a remark, once: while schedules are tried, a function that vmap can't run fails in several calls.

        Returns:
            True if it is new.
        """
        if text in self.notes:
            return False
        self.notes.append(text)
        return True


def _is_called(root: nn.Module, path: str) -> bool:
    """True if the module defines a forward; a list of modules cannot run by itself."""
    return type(root.get_submodule(path)).forward is not nn.Module.forward
