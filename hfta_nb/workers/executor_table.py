"""The executors that have a name, in one table: where a study trains its arrays. A new one is its file and a row here.

Imports nothing slow, so that `hfta-nb --help` answers at once.
"""

from __future__ import annotations

from dataclasses import dataclass

INLINE = "inline"
"""The name of training in the process that runs the study, one array after another."""


@dataclass(frozen=True)
class Named:
    """An executor that has a name.

    Attributes:
        module, made_by: its class; see `hfta_nb.workers.pools.Executor`.
        text: what trains the arrays, in words.
        takes: arguments of `Study.run` that it is made with.
    """

    module: str
    made_by: str
    text: str
    takes: tuple[str, ...]


EXECUTORS = {
    "processes": Named("hfta_nb.workers.pools.processes", "Processes", "processes of this machine", ("workers",)),
    "ray": Named("hfta_nb.workers.pools.on_ray", "OnRay", "actors of Ray", ("workers", "address")),
}

NAMES = (INLINE, *EXECUTORS)
