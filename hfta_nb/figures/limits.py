"""What part of the values an axis shows, the same in figures and in the live view (`ui/front/limits.js`)."""

from __future__ import annotations

from collections.abc import Sequence


def extent(curves: Sequence[tuple[bool, Sequence[float]]]) -> tuple[float, float]:
    """The values that are shown of some curves: all of the best member's, and of the others those that lie near.

    A member at 1e12 must not flatten the others. The range begins with the best member's (of the middle one where none
    is the best yet) and a quarter of the curves, and grows by the next curve as long as that is not far: not beyond
    the size of the range so far, or of the values, and not beyond four times that of the beginning.

    Args:
        curves: for each, whether it is the best member's, and its finite values.
    """
    ends = [(min(values), max(values), best, values[-1]) for best, values in curves if len(values)]
    if not ends:
        return 0.0, 1.0
    best = [e for e in ends if e[2]] or [sorted(ends, key=lambda e: e[3])[(len(ends) - 1) // 2]]
    quarter = (len(ends) - 1) // 4
    bottom = min([sorted((e[0] for e in ends), reverse=True)[quarter], *(e[0] for e in best)])
    top = max([sorted(e[1] for e in ends)[quarter], *(e[1] for e in best)])
    unit = max(abs(bottom), abs(top)) or 1.0
    far = 4 * max(top - bottom, unit)
    first = bottom - far, top + far
    for low, high, *_ in sorted(ends, key=lambda e: max(bottom - e[0], e[1] - top)):
        reach = max(top - bottom, unit)
        if low >= max(first[0], bottom - reach) and high <= min(first[1], top + reach):
            bottom, top = min(bottom, low), max(top, high)
    return bottom, top
