"""The live view in JupyterLab: rendering, themes, synchronization with the kernel, reload."""

from __future__ import annotations

from typing import Any

import pytest

from tests.polling import eventually

pytestmark = pytest.mark.browser

SETUP = """
import sys
sys.path.insert(0, {tests!r})
from run_events import epoch_done, learning, whole_run
from hfta_nb.ui.live_view import LiveView
view = LiveView()
for event in whole_run({{"lr": [1e-3, 1e-2], "width": [8, 16]}}):
    view.add(event)
view.flush()
view
"""
LABEL = "() => document.querySelector('canvas[data-panel=curves]')?.getAttribute('aria-label') ?? ''"
FRAMES = "document.querySelector('.hfta-live').hfta.frames"
CORNER = """() => {
  const canvas = document.querySelector("canvas[data-panel=curves]");
  return [...canvas.getContext("2d").getImageData(1, 1, 1, 1).data];
}"""


@pytest.fixture
def shown(notebook: Any, request: pytest.FixtureRequest) -> Any:
    """A notebook with a view in which a run was shown."""
    tests = str(request.config.rootpath / "tests")
    notebook.open(notebook.lab.write("live/live.ipynb", [SETUP.format(tests=tests)]))
    notebook.run_all()
    eventually(lambda: "for 4 members" in notebook.page.evaluate(LABEL), "the curves")
    return notebook


@pytest.mark.long
def test_view_lives_in_jupyterlab(shown: Any) -> None:
    notebook, page = shown, shown.page
    output = notebook.output()
    assert "last values from" in page.evaluate(LABEL)

    # Traits, both ways.
    output.get_by_label("metric").select_option("accuracy")
    eventually(lambda: notebook.kernel("view.metric") == "accuracy", "the metric in the kernel")
    notebook.kernel("view.log_y = True\nNone")
    eventually(
        lambda: output.get_by_role("button", name="log y").get_attribute("aria-pressed") == "true", "log y on the page"
    )
    output.locator(".hfta-chip").nth(2).click()
    eventually(lambda: notebook.kernel("view.selected") == [2], "the selection in the kernel")

    # Keys pressed on the view are the view's: elsewhere d twice deletes the cell.
    for control in (output.locator(".hfta-chip").first, output.locator("canvas[data-panel=curves]")):
        control.focus()
        page.keyboard.press("d")
        page.keyboard.press("d")
    page.keyboard.press("ArrowLeft")
    eventually(lambda: output.locator(".hfta-tip").is_visible(), "the tooltip of the last point")
    assert "LiveView" in notebook.cells()[0]["source"]

    # New points only.
    frames = page.evaluate(FRAMES)
    notebook.kernel("view.add(epoch_done(21, 4, learning)); view.flush()\nNone")
    eventually(lambda: page.evaluate(FRAMES) > frames, "a frame with the new points")

    # Both themes.
    light = page.evaluate(CORNER)
    notebook.theme(dark=True)
    eventually(lambda: page.evaluate(CORNER) != light, "the dark theme on the canvas")
    assert max(page.evaluate(CORNER)[:3]) < 90
    notebook.screenshot("live-view-dark", output)
    notebook.theme(dark=False)
    eventually(lambda: page.evaluate(CORNER) == light, "the light theme on the canvas")
    notebook.screenshot("live-view-light", output)
    assert notebook.faults() == []


def test_reloaded_page_gets_the_whole_state_from_the_living_kernel(shown: Any) -> None:
    notebook, page = shown, shown.page
    before = page.evaluate(LABEL)
    notebook.save()
    notebook.open(notebook.path)
    eventually(lambda: page.evaluate(LABEL) == before, "the curves after the reload")
    assert notebook.faults() == []
