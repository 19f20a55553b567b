"""`python -m hfta_nb` is the command `hfta-nb`. Imports nothing slow, so that interrupts are handled from the start."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import NoReturn

INTERRUPTED = 130

_interrupted = False


def main() -> int:
    """Run the command in this process; returns the exit code.

    Ctrl-C while modules are being imported ends the process at once, with one line. An import can't be interrupted
    safely: packages catch the exception and raise others, or can't be imported again.
    """
    minded = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # not one that is ignored, as under nohup
    if minded:
        signal.signal(signal.SIGINT, _end)
    from hfta_nb import cli

    try:
        return cli.main(ready=_imported if minded else None)
    except Exception:
        if not _interrupted:
            raise
        return cli.fail("interrupted", INTERRUPTED)  # the interrupt raised another error in a later import


def _end(number: int, frame: FrameType | None) -> NoReturn:
    os.write(2, b"hfta-nb: error: interrupted\n")
    os._exit(INTERRUPTED)


def _imported() -> None:
    """From here on an interrupt is Python's own exception."""
    signal.signal(signal.SIGINT, _raise)


def _raise(number: int, frame: FrameType | None) -> NoReturn:
    global _interrupted
    _interrupted = True
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
