"""The sources of the kernels."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path


@cache
def sources_digest(folder: Path = Path(__file__).parent) -> str:
    """A hash of all sources, of which one may include another."""
    sources = (path.read_bytes() for path in sorted(folder.glob("*.[ch]")))
    return hashlib.sha256(b"\n".join(sources)).hexdigest()[:16]
