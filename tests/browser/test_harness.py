"""The harness itself: a small notebook with widgets, driven and observed from the page and the kernel."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.polling import eventually, gone

from .jupyter import Lab
from .notebook import KernelError, Notebook, ink, pixels

pytestmark = pytest.mark.browser

COUNTER = """
import ipywidgets
count = 0
button = ipywidgets.Button(description="Count")
label = ipywidgets.Label("none yet")
def counted(_):
    global count
    count += 1
    label.value = f"counted {count}"
button.on_click(counted)
ipywidgets.HBox([button, label])
"""

DRAWING = """
import anywidget, traitlets
class Drawing(anywidget.AnyWidget):
    _esm = '''
    export default { render({ model, el }) {
        const canvas = document.createElement("canvas");
        canvas.className = "drawing"; el.append(canvas);
        const draw = () => canvas.getContext("2d").fillRect(0, 0, model.get("size"), 20);
        model.on("change:size", draw); draw();
    } }'''
    size = traitlets.Int(0).tag(sync=True)
drawing = Drawing()
drawing
"""


@pytest.mark.long
def test_widgets_answer_and_the_kernel_is_in_reach(notebook: Notebook, lab: Lab) -> None:
    notebook.open(lab.write("counter/counter.ipynb", [COUNTER, DRAWING]))
    notebook.run_all()
    output = notebook.output(0)
    output.get_by_role("button", name="Count").click()
    expect(output.get_by_text("counted 1")).to_be_visible()
    assert notebook.kernel("count") == 1

    canvas = notebook.page.locator("canvas.drawing")
    blank = pixels(canvas)
    assert ink(canvas) == 0
    notebook.kernel("drawing.size = 30")
    eventually(lambda: ink(canvas) > 0, "the canvas to be drawn on")
    assert pixels(canvas) != blank

    outputs = notebook.run_cell("print('hello'); count + 41")
    assert [o["output_type"] for o in outputs] == ["stream", "execute_result"]
    assert outputs[1]["data"]["text/plain"] == "42"
    expect(notebook.output(2).last).to_have_text("42")
    assert notebook.faults() == []


@pytest.mark.long
def test_values_come_back_from_the_kernel_as_they_are(notebook: Notebook, lab: Lab) -> None:
    notebook.open(lab.write("values/values.ipynb", ["x = {'a': [1, 2.5, None, True, 'ü\"\\'']}"]))
    notebook.run_all()
    assert notebook.kernel("x") == {"a": [1, 2.5, None, True, "ü\"'"]}
    assert notebook.kernel("print('not this')\ny = x['a']\nlen(y)") == 5
    assert notebook.kernel("y.clear()") is None
    with pytest.raises(KernelError, match="ZeroDivisionError"):
        notebook.kernel("1 / 0\n3")
    with pytest.raises(KernelError, match="NameError"):
        notebook.kernel("nobody")
    with pytest.raises(KernelError, match=r"(?s)cell 1.*KeyError"):
        notebook.run_cell("x['b']")


@pytest.mark.long
def test_the_kernel_can_be_interrupted_and_restarted(notebook: Notebook, lab: Lab) -> None:
    child = "import subprocess\nchild = subprocess.Popen(['cat'], stdin=subprocess.PIPE, start_new_session=True)"
    notebook.open(lab.write("restart/restart.ipynb", [child]))
    notebook.run_all()
    before, child_pid = notebook.kernel("import os\n[os.getpid(), child.pid]")
    assert child_pid in [p.pid for p in lab.processes()]

    # The kernel is busy before it runs the cell; an interrupt between the two would end what has not begun.
    notebook.start_cell("import threading\nstarted = True\nprint('it waits')\nthreading.Event().wait()")
    expect(notebook.output().get_by_text("it waits").first).to_be_visible()
    notebook.interrupt()
    notebook.wait_idle()
    expect(notebook.output().get_by_text("KeyboardInterrupt").first).to_be_visible()
    assert notebook.kernel("started") is True

    notebook.restart()
    assert notebook.kernel("import os\nos.getpid()") != before
    eventually(lambda: gone(before), "the old kernel to end")
    eventually(lambda: gone(child_pid), "its child, whose input closed, to end")


@pytest.mark.long
def test_themes_widths_and_pictures(
    notebook: Notebook, lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HFTA_NB_ARTIFACTS", str(tmp_path))
    notebook.open(lab.write("themes/themes.ipynb", [COUNTER]))
    notebook.run_all()
    background = "getComputedStyle(document.body).getPropertyValue('--jp-layout-color1').trim()"
    notebook.theme(dark=True)
    dark = notebook.page.evaluate(background)
    notebook.theme(dark=False)
    assert notebook.page.evaluate(background) != dark
    notebook.viewport(900, 700)
    assert notebook.page.evaluate("[innerWidth, innerHeight]") == [900, 700]
    shot = notebook.screenshot("a <strange> name", notebook.output(0))
    assert shot == tmp_path / "a-strange-name.png"
    assert shot.read_bytes().startswith(b"\x89PNG")
    assert "console of the page" in notebook.evidence("x")
    assert (tmp_path / "failed-x.png").exists()


@pytest.mark.long
def test_errors_of_a_widget_are_heard(notebook: Notebook, lab: Lab) -> None:
    broken = DRAWING.replace("const draw", "throw new Error('broken on purpose'); const draw")
    notebook.open(lab.write("broken/broken.ipynb", [broken]))
    notebook.run_all()
    eventually(lambda: any("broken on purpose" in fault for fault in notebook.faults()), "the error on the console")


@pytest.mark.long
def test_nothing_is_left_when_the_server_ends() -> None:
    with Lab() as lab:
        folder = lab.root.parent
        kernel = lab.api("kernels", "POST")
        assert lab.api(f"kernels/{kernel['id']}")["id"] == kernel["id"]
        before = {p.pid for p in lab.processes()}
        assert len(before) >= 2  # the server, the kernel
    assert not folder.exists()
    assert all(map(gone, before))
    assert lab.processes() == []
