"""An error as markup: what happened and what to do, then the user's own source lines, and our frames folded away."""

from __future__ import annotations

import linecache
import re

from hfta_nb.errors.user_frames import UserFrame, is_own
from hfta_nb.ui.text import escape, shorten

AROUND = 2
"""Lines shown before and after the innermost line of the user's own."""

MOST_CALLS = 4
_FRAME = re.compile(r'^ +File "([^"\n]+)", line (\d+), in (.+)\n(?: {4}(\S.*)\n)?', re.M)
_PLACE = re.compile(r"(\S+\.py):(\d+)")
_CHAINED = re.compile(r"^(?:The above exception was the direct cause|During handling of the above exception)", re.M)


def failure(what: str, reason: str, todo: str, own: list[UserFrame], detail: str) -> str:
    """The markup.

    Args:
        what: what happened, in a sentence.
        reason: the error in words.
        todo: what to do, in a sentence; may be empty.
        own: the user's own calls, the innermost last.
        detail: the traceback.
    """
    said = f"<div><strong>{escape(what)}</strong> {escape(shorten(in_cells(reason), 1000))}</div>"
    said += f'<div class="hfta-todo">{escape(todo)}</div>' if todo else ""
    trace = f"<details><summary>Whole traceback</summary>{_lines('traceback', escape(detail[-6000:]))}</details>"
    return f'<div role="alert">{said}</div>{source(own)}{trace if detail else ""}'


def in_cells(reason: str) -> str:
    """An error in words, with the notebook's cells in place of their files: a worker does not know of them."""
    return _PLACE.sub(lambda found: UserFrame(found[1], int(found[2]), "").place, reason)


def source(own: list[UserFrame]) -> str:
    """The user's own lines: the calls that led to the error, and the lines around the innermost one."""
    if not own:
        return ""
    *calls, last = own[-MOST_CALLS:]
    led = "".join(f"<div>{escape(call.place)} <code>{escape(call.code)}</code></div>" for call in calls)
    around = [
        f'<span class="hfta-source-line{" hfta-source-raised" if number == last.line else ""}">'
        f"{number:>4}  {escape(text)}</span>"
        for number, text in _around(last)
    ]
    place = f"<div>{escape(last.place)}, in {escape(last.function)}</div>"
    code = _lines("your source", "".join(around)) if around else ""
    return f'<div class="hfta-source">{led}{place}{code}</div>'


def _lines(what: str, markup: str) -> str:
    """Lines of text that scroll, by the keyboard as well."""
    return f'<pre tabindex="0" role="region" aria-label="{what}">{markup}</pre>'


def own_frames(detail: str) -> list[UserFrame]:
    """The user's own calls in the text of a traceback, the innermost last: of the first cause that has any."""
    for part in _CHAINED.split(detail):
        frames = [UserFrame(f, int(n), name, code or "") for f, n, name, code in _FRAME.findall(part) if is_own(f)]
        if frames:
            return frames
    return []


def mend(own: list[UserFrame]) -> str:
    """What to do about an error in the user's own code; empty where it is elsewhere."""
    return "Change this line, and run the cells from it on again." if own else ""


def _around(frame: UserFrame) -> list[tuple[int, str]]:
    """Numbered lines around a frame's, without the indent that all have; its own line alone where the file is gone."""
    lines = linecache.getlines(frame.file)
    if not 0 < frame.line <= len(lines):
        return [(frame.line, frame.code)] if frame.code else []
    begin = max(1, frame.line - AROUND)
    shown = [line.rstrip() for line in lines[begin - 1 : frame.line + AROUND]]
    indent = min((len(line) - len(line.lstrip()) for line in shown if line), default=0)
    return [(begin + i, shorten(line[indent:], 200)) for i, line in enumerate(shown)]
