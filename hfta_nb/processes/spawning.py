"""Starting a worker process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from hfta_nb.errors import WorkerError


def spawn(command: Sequence[str], own: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a worker process without forking, in the same session, with interrupts blocked from the beginning.

    Args:
        command: its program; the id of this process is added.
        own: environment variables that differ from those of this process.

    Raises:
        WorkerError: the system refuses.
    """
    # The package may be on sys.path only; the worker restores PYTHONPATH before any job.
    package = str(Path(__file__).parents[2])
    path = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, **own, "PYTHONPATH": path}
    # Signals blocked here stay blocked in the new process; an interrupt of the kernel reaches the process group.
    masks = hasattr(signal, "pthread_sigmask")
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}) if masks else set()
    try:
        process = subprocess.Popen(
            (*command, str(os.getpid())),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            bufsize=0,
        )
    except OSError as error:
        raise WorkerError(
            f"the worker process can't be started ({error})",
            where=sys.executable,
            remedy='free memory or files, or run in this process with kind="inline"',
        ) from error
    finally:
        if masks:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return process
