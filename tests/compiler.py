"""A C compiler with a cache, which replaces the real one during tests, in all of their processes.

Most tests of kernels begin without a library, and so do processes that tests start. `install` sets ``CC`` to this
compiler. It starts the real one once for each source and set of arguments of a test run, whatever the number of
workers; later calls copy the result.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

STARTED = "started"
"""In the folder: a line for each time that the real compiler has started."""


def install(folder: Path) -> Path | None:
    """Write a command that runs this file, and keeps what it makes in the folder; None where there is no compiler."""
    real = next((found for c in (os.environ.get("CC"), "cc", "gcc", "clang") if c and (found := shutil.which(c))), None)
    if real is None or os.name != "posix":
        return None
    command = folder / "cc"
    # Without what a sanitizer preloads: neither Python nor the compiler needs it, and both are slower with it.
    script = f'#!/bin/sh\nunset LD_PRELOAD\nexec "{sys.executable}" -I -S "{__file__}" "{folder}" "{real}" "$@"\n'
    command.write_text(script)
    command.chmod(0o755)
    return command


def main(folder: Path, real: str, arguments: list[str]) -> int:
    """Do what the real compiler would do; gives its exit status."""
    sources = [Path(a) for a in arguments if a.endswith(".c")]
    if arguments[-2:-1] != ["-o"] or len(sources) != 1:
        return subprocess.run([real, *arguments], check=False).returncode
    *rest, _, out = arguments
    read = sorted(p for p in sources[0].parent.iterdir() if p.suffix in (".c", ".h"))  # one may include another
    key = hashlib.sha256("\n".join([real, sources[0].name, *(a for a in rest if not a.endswith(".c"))]).encode())
    for path in read:
        key.update(path.read_bytes())
    kept = folder / key.hexdigest()[:24]
    with kept.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.exists():
            with (folder / STARTED).open("a") as started:
                started.write(f"{sources[0].name} {' '.join(rest)}\n")
            made = kept.with_suffix(".making")
            status = subprocess.run([real, *rest, "-o", str(made)], check=False).returncode
            if status:
                return status
            made.rename(kept)
    shutil.copy(kept, out)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:]))
