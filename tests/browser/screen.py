"""The Workbench as users see it: by the names of its controls and the text on the page."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Locator, expect

from tests.polling import eventually

from .notebook import Notebook, ink, pixels

RUN_S = 90.0  # a worker that starts on a busy machine of two cores takes most of it


class Screen:
    """One Workbench on a page.

    Args:
        notebook: the notebook that it is in.
        name: the variable that holds it in the kernel.
        place: which Workbench of the page it is, from 0.
    """

    def __init__(self, notebook: Notebook, name: str = "wb", place: int = 0) -> None:
        self.notebook, self.name = notebook, name
        self.root = notebook.page.locator(".hfta-workbench").nth(place)
        self.root.wait_for()

    # What is on the page.

    def button(self, name: str) -> Locator:
        """A button that does something; those that fold a section have `section`."""
        buttons = self.root.locator("button:not(.hfta-fold)")
        return buttons.and_(self.notebook.page.get_by_role("button", name=name, exact=True))

    def field(self, label: str) -> Locator:
        return self.root.get_by_label(label, exact=True)

    def section(self, title: str) -> Locator:
        return self.root.locator(f".hfta-section.hfta-{title.lower()}")

    def axis(self, name: str) -> Locator:
        """The row of an axis."""
        kind = self.notebook.page.get_by_label(f"kind of {name}", exact=True)
        return self.root.locator(".hfta-axis").filter(has=kind)

    @property
    def status(self) -> Locator:
        return self.root.locator(".hfta-bar .hfta-status")

    @property
    def plan(self) -> Locator:
        return self.root.locator(".hfta-plan-sentence")

    @property
    def bar(self) -> Locator:
        return self.root.get_by_role("progressbar", name="progress of the run")

    @property
    def curves(self) -> Locator:
        return self.root.locator("canvas[data-panel=curves]")

    @property
    def device(self) -> Locator:
        return self.root.locator("canvas[data-panel=device]")

    @property
    def board(self) -> Locator:
        return self.root.locator("table.hfta-leaderboard")

    @property
    def state(self) -> str:
        return self.bar.get_attribute("data-state") or ""

    def row(self, member: int) -> Locator:
        return self.board.locator(f"tr[data-member='{member}']")

    def column(self, key: str) -> list[str]:
        """The texts of a column of the leaderboard, from top to bottom."""
        return self.board.locator(f"tbody td[data-key='{key}']").all_inner_texts()

    # What a person does.

    def type(self, label: str, text: str) -> None:
        """Replace what stands in a field, and leave it."""
        self.field(label).fill(text)
        self.field(label).press("Tab")

    def unfold(self, title: str) -> None:
        """Open a section that is folded."""
        head = self.root.get_by_role("button", name=f"{title} section", exact=True)
        if head.get_attribute("aria-expanded") == "false":
            head.click()

    def tool(self, name: str, *members: int) -> Locator:
        """A button of the tools of selected rows, after these have been selected."""
        for i, member in enumerate(members):
            if self.row(member).get_attribute("aria-selected") != "true":
                self.row(member).click(modifiers=["Shift"] if i else [])
        return self.root.locator(".hfta-row-tools").get_by_role("button", name=name, exact=True)

    def sort(self, key: str) -> None:
        self.board.locator(f"th[data-key='{key}'] button").click()

    def train(self) -> None:
        """Press Train, and agree to a new run where it asks."""
        again = self.state in ("finished", "stopped", "failed")
        self.button("Train").click()
        if again:
            self.button("Start a new run").click()
        self.wait_state("running")

    # What is waited for and asserted.

    def wait_state(self, *states: str, timeout_s: float = RUN_S) -> str:
        """Wait until the page says that the run is in one of these states."""
        return eventually(lambda: self.state if self.state in states else "", f"state {' or '.join(states)}", timeout_s)

    def ask(self, expression: str) -> object:
        """The value of an expression in the kernel, in which ``wb`` is this Workbench."""
        return self.notebook.kernel(f"(lambda wb: {expression})({self.name})")

    def steps(self) -> int:
        """Optimizer steps that the kernel knows of."""
        return int(str(self.ask("sum(len(m.step_loss.steps) for m in wb.history.members.values())")))

    def samples(self) -> int:
        """Measurements of the device that the kernel knows of."""
        return int(str(self.ask("len(wb.history.samples)")))

    def expect_moving(self, canvas: Locator, what: str, times: int = 3) -> None:
        """Wait until a canvas has been drawn anew some times, and see that it is not blank."""
        for _ in range(times):
            before = pixels(canvas)
            eventually(lambda before=before: pixels(canvas) != before, f"{what} to move")  # type: ignore[misc]
        assert ink(canvas) > 0.002, f"{what} is blank"

    def expect_still(self, progress: Callable[[], int], over: Callable[[], int], count: int = 3) -> None:
        """See that `progress` stands still while `over` goes on by `count`."""
        begin, still = over(), progress()
        eventually(lambda: over() >= begin + count, "signs of life of a run that rests")
        assert progress() == still

    def expect_fits(self) -> None:
        """See that nothing of it is cut off or runs out of its cell at the right."""
        script = """root => {
            const cell = root.closest('.jp-OutputArea-output') || root;
            const right = cell.getBoundingClientRect().right + 1;
            const clipped = node => {  // scrolls, or cuts off, within the Workbench
                for (let n = node.parentElement; n && n !== root.parentElement; n = n.parentElement)
                    if (getComputedStyle(n).overflowX !== 'visible') return true;
                return false;
            };
            return [...root.querySelectorAll('button, input, select, canvas, table, label')]
                .filter(n => n.offsetParent && n.getBoundingClientRect().right > right && !clipped(n))
                .map(n => `${n.tagName} ${n.className} ${n.textContent.slice(0, 40)}`);
        }"""
        assert self.root.evaluate(script) == []
        expect(self.root).to_be_visible()

    def expect_accessible(self) -> None:
        """See that axe-core finds no serious barrier in it."""
        page = self.notebook.page
        if not page.evaluate("'axe' in window"):
            [axe] = Path(sys.prefix).glob("axe-core-*/node_modules/axe-core/axe.min.js")  # `make pytest` puts it there
            page.evaluate(axe.read_text("utf-8"))
        script = """async root => (await axe.run(root, { resultTypes: ['violations'] })).violations
            .filter(v => ['serious', 'critical'].includes(v.impact))
            .map(v => [v.id, ...v.nodes.map(n => n.html.slice(0, 200))])"""
        barriers = self.root.evaluate(script)
        assert not barriers, barriers

    def expect_one_screen(self, rows: int = 8) -> None:
        """See that the window shows what belongs to a run: the bar, both plots, and room for so many rows."""
        script = """(root, rows) => {
            const panel = root.closest('.jp-WindowedPanel-outer').getBoundingClientRect();
            const parts = ['.hfta-bar', '.hfta-track', 'canvas[data-panel=curves]', 'canvas[data-panel=device]'];
            const boxes = parts.map(p => root.querySelector(p).getBoundingClientRect());
            const body = root.querySelector('.hfta-leaderboard tbody');
            const row = body.querySelector('tr[data-member]').getBoundingClientRect();
            boxes.push({ top: row.top, bottom: row.top + rows * row.height });
            return boxes.map(b => [b.top - panel.top, panel.bottom - b.bottom].map(Math.round));
        }"""
        places = self.root.evaluate(script, rows)
        assert all(above >= 0 and below >= 0 for above, below in places), places

    def picture(self, name: str) -> Path:
        """Keep a picture of the whole Workbench, however long it is: the window is made high enough for it."""
        page = self.notebook.page
        size = page.viewport_size or {"width": 1280, "height": 900}
        box = self.root.bounding_box() or {"height": 0.0}
        self.notebook.viewport(size["width"], size["height"] + int(box["height"]))
        try:
            self.root.scroll_into_view_if_needed()
            return self.notebook.screenshot(name, self.root)
        finally:
            self.notebook.viewport(size["width"], size["height"])
