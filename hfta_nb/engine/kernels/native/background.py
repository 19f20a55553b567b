"""Compiles in a shell process of its own, which goes on if this process ends."""

from __future__ import annotations

import contextlib
import logging
import shlex
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from hfta_nb.engine.kernels.native import alive

_STALE_S = 300.0
"""A compiler that was started longer ago than this has ended."""
_LOOK_S = 0.02
_TOLD_S = 0.5
"""Seconds until a waiting person is told why."""
_told = False


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
    try:
        room.mkdir()
    except FileExistsError:
        try:
            age = time.time() - room.stat().st_mtime
        except FileNotFoundError:  # it has finished
            return
        if age < _STALE_S:
            return
    made = shlex.quote(str(room / "library.so"))
    check = f"{shlex.join(alive.command())} {made}"
    tries = " || ".join(f"{{ {shlex.join(command)} -o {made} && {check}; }}" for command in commands)
    after = f"mv -f {made} {shlex.quote(str(kept))}"
    script = f"({{ {tries}; }} && {after} || : > {shlex.quote(str(failed))}; rm -rf {shlex.quote(str(room))}) &"
    command = [shell, "-c", script]
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
        )


def wait_for(kept: Path) -> None:
    """Wait until a library is there, or nobody compiles it; tell people so, once.

    Args:
        kept: as for `compile_into`.
    """
    global _told
    begin, room = time.monotonic(), kept.with_suffix(".making")
    while not kept.is_file():
        try:
            if time.time() - room.stat().st_mtime > _STALE_S:
                return
        except OSError:  # it has ended
            return
        if not _told and time.monotonic() - begin > _TOLD_S:
            _told = True
            # Without any configuration, this is shown on the standard error stream.
            logging.getLogger("hfta_nb").warning("compiling kernels, once on this machine (10 to 20 s)")
        time.sleep(_LOOK_S)
