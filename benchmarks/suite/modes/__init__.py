"""Modes of training the members, by name."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.suite.job import Job
from benchmarks.suite.modes.base import Mode


def _serial(job: Job) -> Mode:
    from benchmarks.suite.modes.serial import Serial

    return Serial(job)


def _compiled(job: Job) -> Mode:
    from benchmarks.suite.modes.serial import Compiled

    return Compiled(job)


def _processes(job: Job) -> Mode:
    from benchmarks.suite.modes.processes import Processes

    return Processes(job)


def _mps(job: Job) -> Mode:
    from benchmarks.suite.modes.processes import ProcessesMps

    return ProcessesMps(job)


def _vmap(job: Job) -> Mode:
    from benchmarks.suite.modes.stacked import Stacked

    return Stacked(job)


def _vmap_compiled(job: Job) -> Mode:
    from benchmarks.suite.modes.stacked import StackedCompiled

    return StackedCompiled(job)


def _jax(job: Job) -> Mode:
    from benchmarks.suite.modes.jaxed import Jax

    return Jax(job)


def _ours(job: Job) -> Mode:
    from benchmarks.suite.modes.ours import Ours

    return Ours(job)


def _ours_compiled(job: Job) -> Mode:
    from benchmarks.suite.modes.ours import OursCompiled

    return OursCompiled(job)


def _ours_together(job: Job) -> Mode:
    from benchmarks.suite.modes.ours import Together

    return Together(job)


def _ours_compiled_together(job: Job) -> Mode:
    from benchmarks.suite.modes.ours import CompiledTogether

    return CompiledTogether(job)


def _ours_split(job: Job) -> Mode:
    from benchmarks.suite.modes.ours import OursSplit

    return OursSplit(job)


MODES: dict[str, Callable[[Job], Mode]] = {
    "serial": _serial,
    "compiled": _compiled,
    "processes": _processes,
    "mps": _mps,
    "vmap": _vmap,
    "vmap_compiled": _vmap_compiled,
    "jax": _jax,
    "ours": _ours,
    "ours_compiled": _ours_compiled,
    "ours_together": _ours_together,
    "ours_compiled_together": _ours_compiled_together,
    "ours_split": _ours_split,
}
"""From a job to the mode. A maker raises `UnavailableError` if the mode cannot run."""

SERIAL = ("serial", "compiled")
"""The modes that train one member after another in one process."""


def default(device: str) -> list[str]:
    """The modes that are measured by default."""
    left_out = {name for name in MODES if name.endswith(("_compiled", "_together"))}
    if device == "cpu":
        left_out.add("mps")
    return [name for name in MODES if name not in left_out]
