"""Compiling while other things go on: a shell that nobody waits for."""

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
"""A compiler that has begun so long ago has come to an end, in whatever way."""


def compile_into(kept: Path, commands: Sequence[Sequence[str]], awaited: bool = False) -> None:
    """Start what makes a library, and return; nothing happens where that is under way already or has failed before.

    Args:
        kept: the library to be; it is there as a whole or not at all.
        commands: compilers with their arguments but for ``-o``, to be tried in turn, until what one makes is `alive`.
        awaited: this process will use it. Then the compiler has as much of a processor as anything else: with what is
            left over it would not end while this process keeps the only one busy.

    Raises:
        OSError: its folder can't be written to.
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
        except FileNotFoundError:  # it is done
            return
        if age < _STALE_S:
            return
    made = shlex.quote(str(room / "library.so"))
    check = f"{shlex.join(alive.command())} {made}"
    tries = " || ".join(f"{{ {shlex.join(command)} -o {made} && {check}; }}" for command in commands)
    after = f"mv -f {made} {shlex.quote(str(kept))}"
    script = f"({{ {tries}; }} && {after} || : > {shlex.quote(str(failed))}; rm -rf {shlex.quote(str(room))}) &"
    nice = None if awaited else shutil.which("nice")
    command = [*([nice, "-n", "15"] if nice else []), shell, "-c", script]
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
