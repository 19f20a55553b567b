"""The quickstart as a user runs it: open, run, change the grid, train, watch, pause, stop, export."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image
from playwright.sync_api import expect

from tests.pictures import REPOSITORY, artifacts
from tests.polling import eventually

from .jupyter import Lab
from .notebook import Notebook, pixels
from .screen import Screen

pytestmark = pytest.mark.browser

QUICKSTART = REPOSITORY / "notebooks" / "01_quickstart.ipynb"
FIND = """
from hfta_nb.ui import Workbench as _Workbench
shown = next(v for n, v in list(globals().items()) if isinstance(v, _Workbench) and not n.startswith("_"))
"""


@pytest.fixture
def screen(notebook: Notebook, lab: Lab) -> Screen:
    """The quickstart, open and run."""
    notebook.open(lab.copy(QUICKSTART, "quickstart"))
    notebook.focus_mode()
    notebook.run_all(timeout_s=240)
    notebook.kernel(FIND)
    return Screen(notebook, "shown")


def test_from_run_all_to_a_model_taken_home(screen: Screen) -> None:
    finished_by_itself(screen)
    saved_notebook_shows_it(screen)
    grid_is_changed(screen)
    keys_train(screen)
    curves_and_utilization_move(screen)
    pauses_and_resumes(screen)
    one_stops_then_all(screen)
    leaderboard_sorts(screen)
    exports(screen)
    taken_home(screen)
    refined_and_reverted(screen)
    saved_notebook_shows_it(screen)
    runs_are_compared_and_opened(screen)
    assert screen.notebook.faults() == []


def finished_by_itself(screen: Screen) -> None:
    """ "Run All" trains the whole sweep, and the best member is good."""
    screen.wait_state("finished")
    best = screen.ask("wb.study.best().metrics['val_accuracy']")
    assert float(str(best)) > 0.95
    variants = int(str(screen.ask("len(wb.study.variants)")))
    expect(screen.board.locator("tbody tr")).to_have_count(variants)
    expect(screen.status).to_contain_text("finished")
    screen.notebook.screenshot("quickstart-after-run-all")
    screen.picture("quickstart-finished-light")


def saved_notebook_shows_it(screen: Screen) -> None:
    """The saved notebook, turned into HTML with no kernel and no widget, shows the last run's curves and table."""
    run = str(screen.ask("wb.study.directory.name"))
    eventually(lambda: run in json.dumps(screen.notebook.cells()), "the run's picture and table in the notebook")
    import nbconvert  # seconds, which every process that collects this file would take
    import nbformat

    saved = nbformat.read(screen.notebook.save(), as_version=4)
    html, _ = nbconvert.HTMLExporter().from_notebook_node(saved)
    body = html[html.index("<body") :]
    assert 'src="data:image/png;base64,' in body
    assert run in body
    assert f"#{screen.ask('wb.study.best().variant.id')}" in body
    assert "Loading widget" not in body
    (artifacts() / f"quickstart-saved-{screen.state}.html").write_text(html)


def grid_is_changed(screen: Screen) -> None:
    """What is typed changes the plan at once, on the page and in the kernel."""
    screen.unfold("Define")
    screen.field("kind of lr").select_option("list")
    screen.type("values of lr", "1e-3, 3e-3, 1e-2")
    screen.type("values of width", "4, 8")
    screen.type("epochs", "300")
    expect(screen.plan).to_contain_text("6 variants")
    assert screen.ask("wb.define.definition().grid") == {"lr": [0.001, 0.003, 0.01], "width": [4, 8]}
    assert screen.ask("wb.define.definition().options['epochs']") == 300


def keys_train(screen: Screen) -> None:
    """Train is pressed by keys: Define folds and Train is off, and the focus is on what can be pressed now."""
    screen.button("Train").press("Enter")
    screen.button("Start a new run").press("Enter")
    screen.wait_state("running")
    expect(screen.button("Pause")).to_be_focused()


def curves_and_utilization_move(screen: Screen) -> None:
    screen.notebook.viewport(1400, 900)
    expect(screen.row(5)).to_be_visible()
    eventually(lambda: not screen.ask("wb.bar.reveal"), "the page to have scrolled to the run")
    screen.expect_one_screen()
    screen.expect_moving(screen.curves, "the curves")
    screen.expect_moving(screen.device, "the utilization")
    expect(screen.board.locator("tbody tr")).to_have_count(6)
    assert screen.ask("wb.state") == "running"
    assert screen.steps() > 0
    assert screen.samples() > 1
    expect(screen.root.locator(".hfta-details")).to_contain_text("samples/s")
    expect(screen.root.locator(".hfta-details")).to_contain_text("as fast as one after another")
    screen.expect_accessible()
    screen.notebook.screenshot("quickstart-training")
    screen.picture("quickstart-training-light")


def pauses_and_resumes(screen: Screen) -> None:
    """Nothing is trained while it is paused, though the device is still watched; then it goes on."""
    screen.button("Pause").click()
    screen.wait_state("paused")
    expect(screen.button("Pause")).to_be_disabled()
    drawn = pixels(screen.curves)
    screen.expect_still(screen.steps, screen.samples)
    assert pixels(screen.curves) == drawn
    screen.picture("quickstart-paused-light")
    before = screen.steps()
    screen.button("Resume").click()
    screen.wait_state("running")
    eventually(lambda: screen.steps() > before, "more steps after the pause")


def one_stops_then_all(screen: Screen) -> None:
    screen.tool("stop", 0).click()
    expect(screen.row(0)).to_have_attribute("data-state", "STOPPED")
    assert screen.ask("wb.history.members[0].state") == "STOPPED"
    assert screen.ask("wb.history.members[2].state") == "RUNNING"  # of the same width, so of the same array
    expect(screen.tool("stop", 0)).to_be_disabled()
    before = screen.steps()
    eventually(lambda: screen.steps() > before, "the others to go on")
    screen.button("Stop").click()
    screen.wait_state("stopped")
    eventually(lambda: set(screen.column("state")) == {"STOPPED"}, "the table to say that all were stopped")
    assert screen.ask("[m.state for m in wb.history.members.values()]") == ["STOPPED"] * 6


def leaderboard_sorts(screen: Screen) -> None:
    screen.sort("axis:lr")
    values = [float(text) for text in screen.column("axis:lr")]
    assert values == sorted(values)
    expect(screen.board.locator("th[data-key='axis:lr']")).to_have_attribute("aria-sort", "ascending")
    screen.sort("axis:lr")
    expect(screen.board.locator("th[data-key='axis:lr']")).to_have_attribute("aria-sort", "descending")
    assert [float(text) for text in screen.column("axis:lr")] == sorted(values, reverse=True)
    screen.sort("metric:val_accuracy")
    expect(screen.board.locator("th[data-key='metric:val_accuracy']")).to_have_attribute("aria-sort", "descending")
    texts = screen.column("metric:val_accuracy")
    scores = [float(text) for text in texts if text != "-"]  # the second array was not begun
    assert scores == sorted(scores, reverse=True)
    assert texts[len(scores) :] == ["-"] * (6 - len(scores))
    assert len(scores) >= 3
    screen.row(3).locator("td").nth(1).click()
    expect(screen.row(3)).to_have_attribute("aria-selected", "true")
    eventually(lambda: screen.ask("list(wb.live.selected)") == [3], "the selection to reach the curves")
    screen.picture("quickstart-stopped-light")


def exports(screen: Screen) -> None:
    written = download(screen, "leaderboard.csv", lambda: screen.button("CSV").click()).read_text()
    link = screen.root.get_by_role("link", name="download leaderboard.csv")
    assert download(screen, "leaderboard.csv", link.click).read_text() == written
    rows = list(csv.DictReader(io.StringIO(written)))
    assert [int(row["member"]) for row in rows] == screen.ask("[m.id for m in wb.history.leaderboard()]")
    assert {row["width"] for row in rows} == {"4", "8"}
    assert screen.ask("(wb.study.directory / 'leaderboard.csv').exists()") is True
    with Image.open(download(screen, "curves.png", lambda: screen.button("PNG").click())) as image:
        assert image.width > 600
        assert len(image.convert("RGB").getcolors(1 << 24) or []) > 10


def refined_and_reverted(screen: Screen) -> None:
    """A finer grid around the best stands in Define, whose line takes it back."""
    before = screen.ask("wb.define.definition().axes")
    best = int(str(screen.ask("wb.study.best().variant.id")))
    screen.tool("refine", best).click()
    head = screen.section("Define").locator(".hfta-section-head").first
    expect(head).to_contain_text("changed since this run")
    finer = screen.ask("wb.define.definition().axes")
    assert finer != before
    assert screen.ask(f"wb.history.members[{best}].config['lr'] in wb.define.definition().axes['lr']") is True
    screen.picture("quickstart-refined-light")
    head.get_by_role("button", name="revert").click()
    expect(head).not_to_contain_text("changed since this run")
    assert screen.ask("wb.define.definition().axes") == before


def runs_are_compared_and_opened(screen: Screen) -> None:
    """The two runs stand in a list: drawn over each other, tagged, one of them deleted, the other one shown."""
    last, runs = str(screen.ask("wb.study.directory.name")), screen.section("Runs")
    expect(runs.locator(".hfta-summary").first).to_contain_text("2 runs, best val accuracy 0.9")
    runs.locator(".hfta-fold").first.click()
    rows = runs.locator(".hfta-runs-table tbody tr")
    expect(rows).to_have_count(2)
    expect(rows.nth(0)).to_contain_text(last)
    expect(rows.nth(0)).to_contain_text("STOPPED")
    expect(screen.button(f"shown {last}")).to_be_disabled()
    for row in (0, 1):
        rows.nth(row).click()
    expect(runs.locator("canvas[data-panel=curves]")).to_have_attribute("aria-label", re.compile("Curves of accuracy"))
    expect(runs.locator(".hfta-scale .hfta-step")).to_have_count(2)
    expect(runs.locator(".hfta-runs-compare tr").filter(has_text="epochs")).to_contain_text("300")
    screen.type("tags", "baseline, paper")
    expect(rows.locator("td[data-key='tags']")).to_have_text(["baseline, paper"] * 2)
    screen.expect_accessible()
    screen.picture("quickstart-runs-light")
    screen.field("filter runs").fill("stopped")
    expect(rows).to_have_count(1)
    screen.field("filter runs").fill("")
    rows.nth(1).locator("button").click()
    screen.wait_state("finished")
    assert screen.ask("wb.study.directory.name") != last
    rows.nth(1).click()  # no longer chosen
    screen.button("Delete").click()
    screen.button("Delete from disk").click()
    expect(rows).to_have_count(1)
    expect(runs.locator(".hfta-note")).to_have_text("deleted 1 run")
    assert screen.ask(f"(wb.study.directory.parent / {last!r}).exists()") is False


def download(screen: Screen, name: str, click: Callable[[], None]) -> Path:
    with screen.notebook.page.expect_download() as waiting:
        click()
    assert waiting.value.suggested_filename == name
    return Path(waiting.value.path())


def taken_home(screen: Screen) -> None:
    """The member on the table, the module in the kernel and the code in the box are one and the same."""
    best = screen.ask("wb.study.best().variant.id")
    screen.tool(f"take #{best} home", int(str(best))).click()
    box = screen.root.locator(".hfta-code-text")
    expect(box).to_contain_text(f"member_{best}.safetensors")
    loads = screen.notebook.page.locator(".jp-Notebook .jp-CodeCell .cm-content").filter(has_text="load_file")
    expect(loads).to_have_count(1)
    expect(loads).to_contain_text("model.eval()")
    measured = """
import torch, hfta_nb
data = hfta_nb.data.load("digits")
with torch.no_grad():
    right = (shown.taken(data.x_validation).argmax(1) == data.y_validation).double().mean().item()
[right, shown.study.best().metrics["val_accuracy"], type(shown.taken).__module__.startswith("torch.")]
"""
    right, promised, plain = screen.notebook.kernel(measured)
    assert right == pytest.approx(promised, abs=1e-6)
    assert plain is True
    screen.root.get_by_role("button", name="copy", exact=True).click()
    copied = screen.notebook.page.evaluate("navigator.clipboard.readText()")
    assert copied == box.inner_text()
    same = "all((a == b).all() for a, b in zip(model.state_dict().values(), shown.taken.state_dict().values()))"
    assert screen.notebook.run_cell(f"{copied}\n{same}")[-1]["data"]["text/plain"] == "True"
    screen.picture("quickstart-taken-home-light")
