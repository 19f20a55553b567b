"""Pages with a live view of a made-up run, for the tests of its front end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from front_end import BrowserFrontEnd, open_page
from run_events import epoch_done, run_started

from hfta_nb import events as ev
from hfta_nb.ui.live_view import LiveView

FEW = {"lr": [1e-3, 1e-2], "width": [8, 16]}


MANY = {"lr": [1e-4, 1e-3, 1e-2, 1e-1], "width": [8, 16, 32, 64]}


# How many pixels of a canvas have about this colour.
COUNT = """
([panel, color]) => {
  const canvas = document.querySelector(`canvas[data-panel=${panel}]`);
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const wanted = [1, 3, 5].map((i) => parseInt(color.slice(i, i + 2), 16));
  let found = 0;
  for (let i = 0; i < data.length; i += 4) if (wanted.every((v, k) => Math.abs(data[i + k] - v) < 12)) found++;
  return found;
}
"""


# What a canvas shows, as a number that differs where the picture does.
PICTURE = """
(panel) => {
  const canvas = document.querySelector(`canvas[data-panel=${panel}]`);
  let hash = 0;
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  for (const v of data) hash = (hash * 31 + v) | 0;
  return hash;
}
"""


FRAMES = "document.querySelector('.hfta-live').hfta.frames"


HIDE = """
(hidden) => {
  Object.defineProperty(document, "hidden", { configurable: true, get: () => hidden });
  document.dispatchEvent(new Event("visibilitychange"));
}
"""


Open = Callable[..., BrowserFrontEnd]


@pytest.fixture
def opened(browser: Any) -> Iterator[Open]:
    """Opens pages with a view of a run; in the end none of them may have had an error."""
    fronts: list[BrowserFrontEnd] = []

    def make(events: Any = (), traits: dict[str, Any] | None = None, **page: Any) -> BrowserFrontEnd:
        fronts.append(BrowserFrontEnd(open_page(browser, **page), LiveView(**(traits or {}))))
        fronts[-1].show(events)
        return fronts[-1]

    yield make
    errors = [error for front in fronts for error in front.page.errors]
    for front in fronts:
        front.page.close()
    assert errors == []


def count(front: BrowserFrontEnd, color: str, panel: str = "curves") -> int:
    return int(front.page.evaluate(COUNT, [panel, color]))


def picture(front: BrowserFrontEnd, panel: str = "curves") -> int:
    return int(front.page.evaluate(PICTURE, panel))


def settle(front: BrowserFrontEnd) -> None:
    front.page.evaluate("settled()")


def place(front: BrowserFrontEnd, x: float, y: float, panel: str = "curves") -> tuple[float, float]:
    """A place on a canvas, from 0 to 1 of its plotting area."""
    box = front.page.locator(f"canvas[data-panel={panel}]").bounding_box()
    left, right = (52, 12) if panel == "curves" else (44, 50)
    return box["x"] + left + x * (box["width"] - left - right), box["y"] + 8 + y * (box["height"] - 8 - 34)


def hover(front: BrowserFrontEnd, x: float, y: float, panel: str = "curves") -> str:
    front.page.mouse.move(*place(front, x, y, panel))
    settle(front)
    tip = front.page.locator(".hfta-tip")
    return str(tip.inner_text()) if tip.is_visible() else ""


def zoom_in(front: BrowserFrontEnd) -> None:
    """Turn the wheel over the middle of the curves, and wait until the page has had it: the driver does not."""
    front.page.mouse.move(*place(front, 0.5, 0.5))
    front.page.mouse.wheel(0, -300)
    front.page.get_by_role("button", name="reset zoom").wait_for(state="visible")
    settle(front)


def flat(epoch: int, member: int) -> float:
    """Losses that tell the members apart: member 0 lowest."""
    return 1.0 + member + 0.001 * epoch


def flat_run(epochs: int = 10, axes: dict[str, Any] | None = None) -> list[ev.Event]:
    start = run_started(axes or FEW, epochs)
    return [start, *(epoch_done(e, len(start.variants), flat) for e in range(1, epochs + 1))]
