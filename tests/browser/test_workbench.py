"""The Workbench in a page, beyond the usual path: wrong input, themes, hostile names, lost kernels."""

from __future__ import annotations

import re
from pathlib import Path

import psutil
import pytest
from playwright.sync_api import expect

from tests.polling import eventually, gone

from .jupyter import Lab
from .notebook import Notebook
from .screen import RUN_S, Screen

pytestmark = pytest.mark.browser

LONG = 'Workbench("mlp", "digits", {"lr": [1e-3, 3e-3], "width": [16, 32]}, epochs=2000)'

BROKEN = """
import torch
import hfta_nb as hfta

@hfta.family
class net(torch.nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.first = torch.nn.Linear(64, width)
        self.head = torch.nn.Linear(7, 10)

    def forward(self, x):
        x = torch.relu(self.first(x.flatten(1)))
        return self.head(x)
"""

HOSTILE = """
import torch
import hfta_nb as hfta
from hfta_nb.ui import Workbench

BOLD = "<b>bold</b>"
SCRIPT = "<script>window.harmed = 'script'</script>"
IMAGE = "<img src=x onerror=\\"window.harmed = 'image'\\">"

@hfta.family
def own(head: str = BOLD) -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))

digits = hfta.data.load("digits")
data = hfta.data.from_tensors(digits.x, digits.y, name="<i>mine</i>" + IMAGE)
wb = Workbench(own, data, {"head": [BOLD, SCRIPT, IMAGE], "lr": [1e-3, 1e-2]}, epochs=3)
wb
"""


def shown(notebook: Notebook, lab: Lab, path: str, *workbenches: str) -> list[Screen]:
    """A notebook with Workbenches, run; they are ``wb``, ``wb1``, ... in the kernel."""
    names = ["wb", *(f"wb{i}" for i in range(1, len(workbenches)))]
    cells = [f"{name} = {made}\n{name}" for name, made in zip(names, workbenches, strict=True)]
    notebook.open(lab.write(path, ["from hfta_nb.ui import Workbench", *cells]))
    notebook.focus_mode()
    notebook.run_all()
    return [Screen(notebook, name, place) for place, name in enumerate(names)]


def workers(lab: Lab) -> list[psutil.Process]:
    """The processes in which runs are trained."""
    return [p for p in lab.processes() if any("hfta_nb.workers.processes" in part for part in p.cmdline())]


@pytest.mark.long
def test_what_is_typed_wrong_is_told_beside_its_field(notebook: Notebook, lab: Lab) -> None:
    (screen,) = shown(notebook, lab, "typed/typed.ipynb", LONG)
    error = screen.axis("lr").locator(".hfta-error [role=alert]")
    for text, said in [("1e", "write 1e-3"), ("0.1, banana", "banana"), ("__import__('os')", ""), ("", "no values")]:
        screen.field("values of lr").fill(text)
        expect(error).to_be_visible()
        expect(error).to_contain_text(said)
        expect(screen.button("Train")).to_be_disabled()
        expect(screen.button("Train")).to_have_attribute("title", re.compile("lr", re.IGNORECASE))
        assert screen.ask("wb.define.definition().problems['lr'] != ''") is True
    told = screen.section("Define").locator(".hfta-problem [role=alert]")
    screen.unfold("Advanced")
    for label, text, right in [
        ("epochs", "1.5", "2000"),
        ("batch size", "-3", "64"),
        ("members per array", "most", ""),
    ]:
        screen.type(label, text)
        expect(told.filter(has_text=f"{label}: ")).to_contain_text(f"got '{text}'")
        assert screen.field(label).input_value() == text
        screen.type(label, right)
        expect(told).to_have_count(0)
    field, words = screen.field("values of lr").bounding_box(), error.bounding_box()
    assert field is not None
    assert words is not None
    assert 0 <= words["y"] - field["y"] < 60
    screen.picture("workbench-wrong-axis-light")
    assert notebook.faults() == []


@pytest.mark.long
def test_a_model_that_can_t_run_shows_its_line_and_other_plans_can_be_clicked(notebook: Notebook, lab: Lab) -> None:
    """First what happened and what to do, then the user's own lines; Train is off until the model runs."""
    cells = [
        "from hfta_nb.ui import Workbench",
        BROKEN,
        'wb = Workbench("net", "digits", {"width": [8, 48]}, epochs=3)\nwb',
    ]
    notebook.open(lab.write("broken/broken.ipynb", cells))
    notebook.focus_mode()
    notebook.run_all()
    screen = Screen(notebook, "wb")
    wrong = screen.section("Plan").locator(".hfta-failed")
    expect(wrong).to_contain_text("fails on one batch", timeout=1000 * RUN_S)
    expect(wrong.locator(".hfta-source-raised")).to_have_text(re.compile(r"\d+ +return self\.head\(x\)"))
    expect(wrong.locator("details")).not_to_have_attribute("open", "")
    expect(screen.button("Train")).to_be_disabled()
    expect(screen.button("Train")).to_have_attribute("title", re.compile("Not now: .*self.head"))
    expect(screen.button("Resume from checkpoint")).to_be_hidden()
    wrong.locator("summary").click()
    screen.expect_accessible()
    screen.picture("workbench-broken-model-light")
    notebook.run_cell(BROKEN.replace("Linear(7,", "Linear(width,"))
    expect(screen.section("Plan")).to_contain_text("ran on one batch", timeout=1000 * RUN_S)
    expect(screen.button("Train")).to_be_enabled()

    told = screen.section("Define").locator(".hfta-notices [role=status]")
    screen.unfold("Advanced")
    for label, text, said, right in [
        ("patience", "0", "patience: 0 means never", ""),
        ("batch size", "9999", "batch size: 9,999 is more than the 1,437 samples of training", "64"),
        ("validate every", "4", "validate every: 4 is more than 3 epochs", "1"),
    ]:
        screen.type(label, text)
        expect(told.filter(has_text=said)).to_have_count(1)
        expect(screen.button("Train")).to_be_enabled()
        screen.type(label, right)
        expect(told).to_have_count(0)

    expect(screen.plan).to_have_text("2 variants in 2 arrays of 1: split by width")
    screen.button("estimate times").click()
    expect(screen.section("Plan")).to_contain_text("This plan takes about", timeout=2000 * RUN_S)
    expect(screen.section("Plan")).to_contain_text(
        re.compile(r"1 array, \d+% padding, about [\d.]+ .iB, about [\d.:]+")
    )
    screen.button("pad to one array").click()
    expect(screen.plan).to_have_text("2 variants in 1 array of 2: differing in width")
    expect(screen.button("split by width")).to_be_visible()


@pytest.mark.long
def test_names_with_markup_are_text_in_light_dark_and_narrow(notebook: Notebook, lab: Lab) -> None:
    notebook.open(lab.write("hostile/hostile.ipynb", [HOSTILE]))
    notebook.focus_mode()
    notebook.run_all()
    screen = Screen(notebook)
    screen.button("Train").click()
    screen.wait_state("finished")
    expect(screen.board.locator("tbody tr")).to_have_count(6)
    assert "<script>window.harmed = 'script'</script>" in screen.column("axis:head")
    foreign = "table b, table i:not(.hfta-runs-swatch), table img, .hfta-legend i img, script"
    assert screen.root.locator(foreign).count() == 0
    screen.tool("take #0 home", 0).click()
    expect(screen.root.locator(".hfta-code-text")).to_contain_text("load_file(")
    screen.button("code").click()
    expect(screen.root.locator(".hfta-code-text")).to_contain_text("hfta.Study(")
    screen.curves.hover()
    screen.picture("workbench-names-light")
    for width in (1280, 900):
        notebook.viewport(width)
        for dark in (True, False):
            notebook.theme(dark)
            screen.expect_fits()
            frame = screen.root.locator(".hfta-board-frame").bounding_box()
            button = screen.button("take #0 home").bounding_box()
            assert frame is not None
            assert button is not None
            assert button["x"] + button["width"] <= frame["x"] + frame["width"] + 1, f"cut off at {width} px"
            screen.picture(f"workbench-{width}-{'dark' if dark else 'light'}")
    assert notebook.page.evaluate("window.harmed") is None
    assert notebook.faults() == []


@pytest.mark.long
def test_a_run_outlives_an_interrupt_and_its_worker_and_ends_with_its_kernel(notebook: Notebook, lab: Lab) -> None:
    (screen,) = shown(notebook, lab, "lost/lost.ipynb", LONG.replace(")", ", detach=False)"))
    screen.train()
    found = workers(lab)
    assert len(found) == 1
    notebook.start_cell("import time\nwhile True: time.sleep(0.01)")
    notebook.page.locator(".jp-Notebook-ExecutionIndicator[data-status=busy]").wait_for()
    notebook.interrupt()
    notebook.wait_idle()
    before = screen.steps()
    eventually(lambda: screen.steps() > before, "the run to go on after the interrupt")
    assert screen.state == "running"
    assert [p.pid for p in workers(lab)] == [p.pid for p in found]

    eventually(lambda: screen.ask("wb.study.store.has_checkpoint"), "a checkpoint")
    for worker in found:
        worker.kill()
    screen.wait_state("interrupted")
    expect(screen.root.locator(".hfta-failed [role=alert]")).to_be_visible()
    expect(screen.button("Retry")).to_be_visible()
    screen.picture("workbench-failed-light")
    epochs = int(str(screen.ask("wb.history.members[0].epoch")))
    screen.button("Resume").click()
    screen.wait_state("running")
    eventually(lambda: int(str(screen.ask("wb.history.members[0].epoch"))) > epochs, "epochs after the checkpoint")
    assert notebook.faults() == []

    found = workers(lab)
    directory = str(screen.ask("str(wb.study.directory)"))
    notebook.restart()
    expect(screen.root.locator(".hfta-connection")).to_have_text("disconnected")
    expect(screen.root.locator(".hfta-gone")).to_contain_text(directory)
    screen.picture("workbench-disconnected-light")
    eventually(lambda: all(gone(p.pid) for p in found), "the worker to end with its kernel")
    assert workers(lab) == []
    assert Path(directory, "study.sqlite").stat().st_size > 0
    screen.root.locator(".hfta-gone").get_by_role("button", name="Reattach").click()
    notebook.page.locator(".hfta-workbench").nth(1).wait_for(timeout=90_000)  # the new kernel imports torch
    back = Screen(notebook, "wb", 1)
    back.wait_state("interrupted")  # as its worker ended
    expect(back.root.locator(".hfta-failed [role=alert]")).to_contain_text("ended before the run did")


@pytest.mark.long
def test_two_workbenches_in_one_kernel_leave_each_other_alone(notebook: Notebook, lab: Lab) -> None:
    short = 'Workbench("mlp", "breast_cancer", {"lr": [1e-3, 1e-2]}, epochs=3)'
    first, second = shown(notebook, lab, "two/two.ipynb", LONG, short)
    first.train()
    second.button("Train").click()
    second.wait_state("finished")
    assert first.state == "running"
    expect(first.board.locator("tbody tr")).to_have_count(4)
    expect(second.board.locator("tbody tr")).to_have_count(2)
    first.button("Stop").click()
    first.wait_state("stopped")
    assert second.state == "finished"
    assert second.ask("wb.study.data_name") == "breast_cancer"
    assert notebook.faults() == []


@pytest.mark.long
def test_arrays_on_workers_are_drawn_at_a_readable_size(notebook: Notebook, lab: Lab) -> None:
    """Three arrays that don't fuse, simulated, then run on two processes; beside it the chart of a plan."""
    made = (
        'Workbench("mlp", "iris", {"width": [8, 16, 64], "lr": [1e-3, 3e-3]}, epochs=30,'
        ' padding="never", executor="processes", workers=2)'
    )
    plan = """
import hfta_nb as hfta
from hfta_nb import figures

rates = {"small": [100, 190], "medium": [80, 150], "wide": [80, 150], "deep": [40, 75, 105]}
epochs = {"small": 20, "medium": 30, "wide": 10, "deep": 20}
figures.gantt(hfta.fleet.plan(rates, 4, epochs, samples_per_epoch=50_000, gpus_per_node=2, method="global"))
"""
    notebook.open(lab.write("workers/workers.ipynb", ["from hfta_nb.ui import Workbench", f"wb = {made}\nwb", plan]))
    notebook.focus_mode()
    notebook.run_all()
    screen = Screen(notebook, "wb", 0)
    simulated(screen)
    screen.train()
    screen.wait_state("finished")
    screen.field("figure").select_option("arrays on workers")
    image = screen.root.locator(".hfta-figures img")
    expect(image).to_be_visible()
    eventually(lambda: image.evaluate("i => i.complete && i.naturalWidth > 600 && i.clientWidth > 600"), "the figure")
    screen.picture("workbench-arrays-on-workers-light")
    notebook.screenshot("plan-gantt-light", notebook.page.locator(".jp-OutputArea-output img").last)
    assert notebook.faults() == []


def simulated(screen: Screen) -> None:
    """The planned arrays on other devices: with assumed rates, measured, with wrong input, dark and narrow."""
    part = screen.section("Simulate")
    chart, rates = part.locator(".hfta-simulate-chart img"), part.locator(".hfta-simulate-rates")
    expect(chart).to_have_count(0)
    part.get_by_role("button", name="Simulate section").click()
    expect(rates).to_contain_text("assumed")
    expect(chart).to_have_attribute("alt", re.compile("^Gantt chart, .*: 3 arrays on 2 devices$"))
    screen.button("measure").click()
    expect(rates).to_contain_text("were measured", timeout=RUN_S * 1000)
    screen.type("devices", "many")
    expect(part.get_by_role("alert")).to_contain_text("devices: not a whole number")
    expect(chart).to_have_count(0)
    screen.type("devices", "3")
    screen.type("price per device-hour", "2.5")
    screen.field("chart of").select_option("FLEET-G")
    expect(chart).to_have_attribute("alt", re.compile("^Gantt chart, FLEET-G: 3 arrays on 3 devices in "))
    expect(part.locator("table")).to_contain_text("cost")
    for width in (1280, 900):
        screen.notebook.viewport(width)
        eventually(lambda: chart.evaluate("i => i.naturalWidth > 1200 && i.clientWidth > 600"), "the chart")
        screen.expect_fits()
        for dark in (True, False):
            screen.notebook.theme(dark)
            screen.picture(f"workbench-simulate-{width}-{'dark' if dark else 'light'}")
    screen.notebook.viewport(1280)
