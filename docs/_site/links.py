"""Links of the repository's Markdown, which lead from file to file, as links of the site."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator

from docs._site import layout

_LINK = re.compile(r"(?<!\\)\]\(([^()\s]+)\)")
_CODE = re.compile(r"(^ *(`{3,}|~{3,}).*?^ *\2`*\s*?$|`[^`\n]+`)", re.M | re.S)
_ELSEWHERE = re.compile(r"[a-z]+:")


def outside_code(text: str, change: Callable[[str], str]) -> str:
    """The text with everything changed that is not code."""
    parts = _CODE.split(text)
    return "".join(change(p) if i % 3 == 0 else p for i, p in enumerate(parts) if i % 3 != 2)


def links(text: str) -> Iterator[str]:
    """The targets of a page's links that lead to files, anchors included."""
    found: list[str] = []

    def collect(part: str) -> str:
        found.extend(m[1] for m in _LINK.finditer(part))
        return part

    outside_code(text, collect)
    return (target for target in found if not _ELSEWHERE.match(target))


def split(target: str, path: str) -> tuple[str, str]:
    """The file in the repository to which a link of a file leads, and the anchor in it."""
    name, _, anchor = target.partition("#")
    if not name:
        return path, anchor
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), name)), anchor


def rewritten(text: str, path: str, page: str, used: set[str]) -> str:
    """A page's text with its links as they are on the site.

    Args:
        text: Markdown.
        path: of its file, relative to the repository's root.
        page: its place on the site.
        used: takes in every file to which a link leads.
    """

    def link(found: re.Match[str]) -> str:
        target = found[1]
        if _ELSEWHERE.match(target) or target.startswith("#"):
            return found[0]
        file, anchor = split(target, path)
        place = layout.place_of(file)
        if place is None:
            return found[0]  # which Sphinx then complains of
        used.add(file)
        return f"]({layout.relative(place, page)}{'#' + anchor if anchor else ''})"

    return outside_code(text, lambda part: _LINK.sub(link, part))
