"""Starting a worker process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from hfta_nb.errors import WorkerError


def spawn(command: Sequence[str], own: Mapping[str, str], heard: bool = True) -> subprocess.Popen[bytes]:
    """Start a worker process without forking, in the same session, with interrupts blocked from the beginning.

    Args:
        command: its program; the id of this process is added.
        own: environment variables that differ from those of this process.
        heard: whether what it prints comes through a pipe; else it is printed where this process prints its errors.

    Raises:
        WorkerError: the system refuses.
    """
    # The package may be on sys.path only; the worker restores PYTHONPATH before any job.
    package = str(Path(__file__).parents[3])
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
            stderr=subprocess.PIPE if heard else None,
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


def pipes_of(process: subprocess.Popen[bytes]) -> tuple[int, ...]:
    """Descriptors of a process's pipes: its input, its output and, if it is heard, its errors.

    They are duplicates, because each is closed by the thread that owns it; those of `Popen` are closed here.
    """
    pipes = [pipe for pipe in (process.stdin, process.stdout, process.stderr) if pipe is not None]
    found = tuple(os.dup(pipe.fileno()) for pipe in pipes)
    for pipe in pipes:
        pipe.close()
    return found
