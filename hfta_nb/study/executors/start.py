"""Starting a run."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from hfta_nb.errors import HftaError, WorkerError
from hfta_nb.records.history import History
from hfta_nb.study import Study
from hfta_nb.study.executors import inline
from hfta_nb.study.executors.handle import OUTPUT, RunHandle
from hfta_nb.study.executors.jobs import JOBS, Runnable
from hfta_nb.study.executors.pool import POOL
from hfta_nb.study.steering import check
from hfta_nb.workers.processes import cores, pickling
from hfta_nb.workers.processes.child import surroundings


def start(
    study: Runnable,
    *,
    kind: str = "worker",
    resume: bool = False,
    job: str = "run",
    arguments: Mapping[str, Any] | None = None,
    detach: bool = False,
) -> RunHandle:
    """Start a study in a worker process or thread; returns at once.

    Args:
        study: the study, which is copied to the worker; read its results by ``study.reload()`` or from the handle's
            history.
        kind: "worker" for a separate process, "inline" for a thread of this process.
        resume: continue from the last checkpoint.
        job: "run" for ``study.run``, "check" for ``study.check_events``, "try" for ``study.forward_events``, "profile"
            for ``study.profile_events``, "speed" for ``study.speed_events``.
        arguments: arguments of that method.
        detach: let a run in a worker process go on when this process ends; `attach` follows it from another one. What
            it prints is in `OUTPUT`, in its directory.

    Raises:
        WorkerError: the kind or the job is unknown, or something in the study can't be sent to a process. The handle
            reports later errors.

    Example:
        >>> from hfta_nb import Study
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as place:
        ...     start(Study("mlp", {"lr": [0.1]}, epochs=1, directory=place), kind="inline").wait()
        'COMPLETE'
    """
    if kind not in KINDS:
        raise WorkerError("unknown kind of executor", where="kind", got=kind, accepted=", ".join(KINDS))
    if job not in JOBS:
        raise WorkerError("unknown job", where="job", got=job, accepted=", ".join(JOBS))
    given = dict(arguments or {})
    history = _recorded(study) if resume or job == "check" else History()
    handle = KINDS[kind](study, job, resume, given, history, detach and job == "run")
    if isinstance(study, Study):
        handle.control.attach(lambda request: check(study, request, handle.history))
    return handle


def _in_worker(
    study: Any, job: str, resume: bool, given: Mapping[str, Any], history: History, detach: bool
) -> RunHandle:
    header: dict[str, Any] = {"job": job, "resume": resume, "surroundings": surroundings(cores.threads())}
    if detach:
        header |= {"outlives": True, "output": str(study.directory / OUTPUT)}
    dumps = partial(pickling.dumps, study, given)
    payload = dumps()  # before there is a worker: an error is the caller's
    handle = RunHandle(history=history)
    POOL.take().begin(handle, header, payload, dumps)
    return handle


KINDS: dict[str, Callable[[Any, str, bool, Mapping[str, Any], History, bool], RunHandle]] = {
    "worker": _in_worker,
    "inline": inline.begin,
}
"""What begins a job of a study in a kind of place: of study, job, whether it resumes, arguments, history so far,
whether it goes on without this process."""


def _recorded(study: Any) -> History:
    """A copy of the run's history so far; the worker reads the same from disk."""
    try:
        return copy.deepcopy(study.reload().history) if hasattr(study, "reload") else History()
    except HftaError:
        return History()  # unreadable: the job will report it
