"""Compiles in a shell process of its own, which goes on if this process ends."""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from hfta_nb.engine.kernels.native import alive

_STALE_S = 300.0
"""A compiler that was started longer ago than this has ended, on a disk without locks."""
_LOOK_S = 0.02
_ANNOUNCED_S = 0.5
"""Seconds until a waiting person is told why."""
_announced = False


def compile_into(kept: Path, commands: Sequence[Sequence[str]]) -> None:
    """Start the compilation of a library and return. Does nothing if it is already running or has failed before.

    The compiler runs at normal priority: at a low one it would not finish while training keeps the only processor busy.

    Args:
        kept: the path of the library; the file appears there only when it is complete.
        commands: compilers with their arguments, without ``-o``; tried in order until a result is `alive`.

    Raises:
        OSError: its folder cannot be written to.
    """
    failed, room = kept.with_suffix(".failed"), kept.with_suffix(".making")
    shell = shutil.which("sh")
    if shell is None or failed.exists():
        return
    kept.parent.mkdir(parents=True, exist_ok=True)
    new = False
    with contextlib.suppress(FileExistsError):
        room.mkdir()
        new = True
    with contextlib.suppress(FileNotFoundError), _opened(room) as file:  # otherwise it has finished
        if not _claimed(file, new):
            return
        if kept.is_file() or failed.exists():  # it finished since the caller looked
            room.rmdir()
        elif os.fstat(file).st_nlink:  # otherwise it has been removed since
            _started([shell, "-c", _script(kept, failed, room, commands)], file)


def _script(kept: Path, failed: Path, room: Path, commands: Sequence[Sequence[str]]) -> str:
    made = shlex.quote(str(room / "library.so"))
    check = f"{shlex.join(alive.command())} {made}"
    tries = " || ".join(f"{{ {shlex.join(command)} -o {made} && {check}; }}" for command in commands)
    after = f"mv -f {made} {shlex.quote(str(kept))}"
    return f"({{ {tries}; }} && {after} || : > {shlex.quote(str(failed))}; rm -rf {shlex.quote(str(room))}) &"


def _started(command: Sequence[str], held: int) -> None:
    """Start a command that holds a claimed room as long as it runs."""
    nothing = subprocess.DEVNULL
    with contextlib.suppress(subprocess.SubprocessError):
        subprocess.run(
            command,
            check=False,
            start_new_session=True,
            timeout=_STALE_S,
            stdin=nothing,
            stdout=nothing,
            stderr=nothing,
            pass_fds=(held,),
        )


@contextlib.contextmanager
def _opened(room: Path) -> Iterator[int]:
    file = os.open(room, os.O_RDONLY)
    try:
        yield file
    finally:
        os.close(file)


def _claimed(file: int, new: bool = False) -> bool:
    """True if nobody compiles in an opened room; then it is locked until the last process that has it open closes it.

    Args:
        file: the room.
        new: this process has made it.
    """
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (ImportError, OSError):  # a disk without locks
        return new or time.time() - os.fstat(file).st_mtime > _STALE_S
    return True


def wait_for(kept: Path) -> None:
    """Wait until a library is there, or nobody compiles it; tell people so, once.

    Args:
        kept: as for `compile_into`.
    """
    global _announced
    begin, room = time.monotonic(), kept.with_suffix(".making")
    while not kept.is_file():
        try:
            with _opened(room) as file:
                if _claimed(file):  # it was killed
                    return
        except OSError:  # it has ended
            return
        if not _announced and time.monotonic() - begin > _ANNOUNCED_S:
            _announced = True
            # Without any configuration, this is shown on the standard error stream.
            logging.getLogger("hfta_nb").warning("compiling kernels, once on this machine (10 to 20 s)")
        time.sleep(_LOOK_S)
