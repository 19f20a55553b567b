"""Text for the screen: few digits, units, and no markup."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence

from hfta_nb.errors import HftaError

_LIMIT = 500


def escape(text: object) -> str:
    """Escape text for an HTML widget."""
    return html.escape(str(text), quote=True)


def shorten(text: str, limit: int = _LIMIT) -> str:
    """At most `limit` characters, with an ellipsis if some were dropped."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def number(value: float | None, digits: int = 4) -> str:
    """A number with few digits: ``0.984``, ``1.2e-05``, ``nan``; a dash for None."""
    if value is None:
        return "-"
    return f"{value:.{digits}g}"


def score(name: str, value: float | None) -> str:
    """A metric with a fixed number of digits, for columns.

    Losses have four significant digits (``0.05700``), scores four decimals (``0.9861``, ``1.0000``).
    """
    if value is None:
        return "-"
    if not math.isfinite(value) or (value and not 1e-4 <= abs(value) < 1e6):
        return number(value)
    return f"{value:#.4g}".rstrip(".") if name.endswith("loss") else f"{value:.4f}"


def count(n: int, noun: str, plural: str = "") -> str:
    """``1 variant``, ``24 variants``, ``1,000 variants``."""
    return f"{n:,} {noun if n == 1 else plural or noun + 's'}"


def clock(seconds: float) -> str:
    """A duration as ``0:41``, ``12:07`` or ``1:02:03``; a dash if unknown."""
    if not math.isfinite(seconds) or seconds < 0:
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def memory(size_bytes: float) -> str:
    """``512 B``, ``41 MiB``, ``1.5 GiB``."""
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1000 or unit == "TiB":
            break
        size /= 1024
    return f"{size:.0f} {unit}" if size >= 10 or unit == "B" else f"{size:.1f} {unit}"


def amount(n: float) -> str:
    """A large number in words of few digits: ``320``, ``4.7 k``, ``0.6 M`` is written ``600 k``."""
    for size, unit in ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(n) >= size:
            return f"{n / size:.3g}{unit}"
    return f"{n:.0f}"


def rate(samples_per_s: float) -> str:
    """``184,000 samples/s``, with three significant digits."""
    if not math.isfinite(samples_per_s) or samples_per_s <= 0:
        return ""
    step = 10 ** max(0, math.floor(math.log10(samples_per_s)) - 2)
    return f"{round(samples_per_s / step) * step:,.0f} samples/s"


def listing(names: Iterable[str]) -> str:
    """``lr``, ``lr and width``, ``lr, width and activation``."""
    found = list(names)
    return " and ".join([", ".join(found[:-1]), found[-1]]) if len(found) > 1 else "".join(found)


def metric(name: str) -> str:
    """A metric as text: ``val_accuracy`` is ``val accuracy``."""
    return name.replace("_", " ")


def words(error: BaseException, where: str = "") -> str:
    """An error in words: what went wrong, what was got, what is accepted, and what to do.

    Args:
        error: any exception; of an `HftaError` its parts are used, of others the type and the message.
        where: the field beside which the text is shown; it is not repeated.
    """
    if not isinstance(error, HftaError):
        return shorten(f"{type(error).__name__}: {error}")
    place = f"{error.where}: " if error.where and error.where != where else ""
    parts = [place + error.what]
    if error.got:
        parts.append(f"got {error.got}")
    if error.accepted:
        parts.append(error.accepted if error.accepted.startswith("for example") else f"accepted: {error.accepted}")
    if error.remedy:
        parts.append(error.remedy)
    return shorten("; ".join(parts))


def table(head: Sequence[str], rows: Iterable[Sequence[object]], css: str, numbers: Iterable[int] = ()) -> str:
    """An HTML table of escaped text, which the keyboard reaches: where it is wider than the page, arrow keys scroll it.

    Args:
        head: the heads of the columns.
        rows: the cells of each row.
        css: class of the table.
        numbers: columns that are aligned right.
    """
    right = set(numbers)

    def cell(tag: str, place: int, value: object) -> str:
        mark = ' class="hfta-number"' if place in right else ""
        scope = ' scope="col"' if tag == "th" else ""
        return f"<{tag}{mark}{scope}>{escape(value)}</{tag}>"

    top = "".join(cell("th", i, h) for i, h in enumerate(head))
    body = "".join("<tr>" + "".join(cell("td", i, v) for i, v in enumerate(row)) + "</tr>" for row in rows)
    return f'<table tabindex="0" class="{escape(css)}"><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>'
