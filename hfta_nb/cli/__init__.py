"""The command `hfta-nb`, which runs studies without a notebook."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TextIO

from hfta_nb.cli.options import UsageError, parse
from hfta_nb.cli.text import clean
from hfta_nb.errors import HftaError

__all__ = ["main"]

WRONG_INPUT = 2
INTERRUPTED = 130
BROKEN_PIPE = 141


WITHOUT_TORCH = ("results", "runs", "attach", "stop")
"""Commands that don't need torch."""


def main(arguments: Sequence[str] | None = None, ready: Callable[[], None] | None = None) -> int:
    """Run the command.

    Args:
        arguments: the arguments after the command's name; by default those of this process.
        ready: called after the slow imports.

    Returns:
        The exit code: 0; 1 for a run that failed or a check that did not find all equal; 2 for wrong input; 130 after
        an interrupt.
    """
    for stream in (sys.stdout, sys.stderr):
        _never_fail_on_a_letter(stream)
    as_json = "--json" in (sys.argv[1:] if arguments is None else arguments)
    try:
        given = parse(arguments)
        # Imported here, so that --help answers before torch is imported.
        command = import_module(f"hfta_nb.cli.{given.command}")
        if ready is not None:
            if given.command not in WITHOUT_TORCH:
                import_module("hfta_nb").Study  # noqa: B018 - the names of the face are imported when used
            ready()
        code: int = command.main(given)
        sys.stdout.flush()
        return code
    except UsageError as error:
        fail(error.message, WRONG_INPUT, error if as_json else None)
        raise
    except HftaError as error:
        return fail(error.message, WRONG_INPUT, error if as_json else None)
    except KeyboardInterrupt as error:
        return fail("interrupted", INTERRUPTED, error if as_json else None)
    except BrokenPipeError:
        # The reader (such as `head`) is gone. Without this, Python reports another error when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE


def fail(message: str, code: int = WRONG_INPUT, error: BaseException | None = None) -> int:
    """Print an error in one line on standard error, and on standard output as JSON if it is given; returns the exit
    code."""
    print(f"hfta-nb: error: {clean(message)}", file=sys.stderr)
    if error is not None:
        from hfta_nb.cli import json_lines

        json_lines.error(error, message, code)
    return code


def _never_fail_on_a_letter(stream: TextIO | None) -> None:
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="replace")
