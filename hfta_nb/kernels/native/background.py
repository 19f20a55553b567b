"""Compiles in the background, in a shell process that is not waited for."""

from __future__ import annotations

import contextlib
import shlex
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from hfta_nb.kernels.native import alive

_STALE_S = 300.0
"""A compiler that was started longer ago than this has ended."""


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
