"""A notebook open in JupyterLab in a browser, with its kernel, for tests."""

from __future__ import annotations

import ast
import json
import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from playwright.sync_api import ConsoleMessage, Locator, Page
from playwright.sync_api import Error as PlaywrightError

from tests.pictures import artifacts

from .jupyter import Lab

SETTLE_S = 60.0  # JupyterLab itself takes seconds to load on a busy machine

# What JupyterLab and Chromium say of themselves. Everything else on the console is ours, and a fault.
NOISE = (
    r"Failed to load resource",
    r"\[Violation\]",
)

_PANEL = """
const app = window.jupyterapp;
const panel = [...app.shell.widgets('main')].find(w => w.context && w.context.path === path);
const late = (promise, seconds, what) => Promise.race([promise, new Promise(
    (_, reject) => setTimeout(() => reject(new Error(`no end of ${what} after ${seconds} s`)), seconds * 1000))]);
"""


class KernelError(AssertionError):
    """Code in the kernel, or a cell, raised; the message is its traceback."""


def plain(text: str) -> str:
    """Text without a terminal's colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


class Notebook:
    """Drives one notebook.

    Args:
        page: a page of Playwright.
        lab: the JupyterLab to talk to.

    Attributes:
        path: of the notebook that is open.
        console: what the page wrote on its console as warning or error, and exceptions nobody caught.
    """

    def __init__(self, page: Page, lab: Lab) -> None:
        self.page = page
        self.lab = lab
        self.path = ""
        self.console: list[str] = []
        page.on("console", self._heard)
        page.on("pageerror", lambda error: self.console.append(f"exception: {error}"))

    def _heard(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.console.append(f"{message.type}: {message.text} ({message.location.get('url', '')})")

    def faults(self) -> list[str]:
        """Errors on the page's console, without those that JupyterLab makes on its own."""
        return [m for m in self.console if not m.startswith("warning") and not any(re.search(n, m) for n in NOISE)]

    def open(self, path: str) -> Notebook:
        """Open a notebook of the server in JupyterLab, and wait until its kernel is idle."""
        self.path = path
        self.page.goto(self.lab.address(f"lab/tree/{path}", reset="1"), wait_until="domcontentloaded")
        found = "path => " + "{" + _PANEL + "return panel && panel.sessionContext.isReady; }"
        self.page.wait_for_function(_guarded(found), arg=path, timeout=SETTLE_S * 1000)
        self.wait_idle()
        return self

    def _do(self, body: str, seconds: float = SETTLE_S, **arguments: Any) -> Any:
        """Run JavaScript that sees `app`, `panel`, `late`, `seconds` and the arguments, and may await."""
        names = ", ".join(["path", "seconds", *arguments])
        script = f"async ({{{names}}}) => {{ {_PANEL} {body} }}"
        return self.page.evaluate(script, {"path": self.path, "seconds": seconds, **arguments})

    def wait_idle(self, timeout_s: float = SETTLE_S) -> None:
        """Wait until the kernel is connected and has nothing to do."""
        idle = """path => { %s
            const session = panel.sessionContext.session;
            return session && session.kernel && session.kernel.connectionStatus === 'connected'
                && session.kernel.status === 'idle' && !panel.sessionContext.pendingInput; }"""
        self.page.wait_for_function(idle % _PANEL, arg=self.path, timeout=timeout_s * 1000)

    def command(self, name: str, timeout_s: float = SETTLE_S, **arguments: Any) -> Any:
        """Run one of JupyterLab's commands, as its menus do."""
        body = "await late(app.commands.execute(name, args), seconds, name);"
        return self._do(body, timeout_s, name=name, args=arguments)

    def run_all(self, timeout_s: float = 120.0) -> None:
        """Run all cells.

        Raises:
            KernelError: a cell raised.
        """
        self.command("notebook:run-all-cells", timeout_s)
        self.wait_idle(timeout_s)
        self._raise_errors(range(len(self.cells())))

    def run_cell(self, source: str, timeout_s: float = SETTLE_S) -> list[dict[str, Any]]:
        """Add a cell at the end and run it; its outputs, in nbformat.

        Raises:
            KernelError: it raised.
        """
        index = self.add_cell(source)
        self.command("notebook:run-cell", timeout_s)
        self._raise_errors([index])
        outputs: list[dict[str, Any]] = self.cells()[index]["outputs"]
        return outputs

    def start_cell(self, source: str) -> None:
        """Add a cell at the end and start it, without waiting for its end."""
        self.add_cell(source)
        self._do("app.commands.execute('notebook:run-cell');")

    def add_cell(self, source: str) -> int:
        """Add a cell at the end and make it the active one; its index."""
        body = """
            const shared = panel.content.model.sharedModel;
            shared.insertCell(shared.cells.length, {cell_type: 'code', source});
            panel.content.activeCellIndex = shared.cells.length - 1;
            return shared.cells.length - 1;"""
        return int(self._do(body, source=textwrap.dedent(source).strip()))

    def delete_cells(self, keep: int) -> None:
        """Delete all cells but so many at the end."""
        self._do("const s = panel.content.model.sharedModel; s.deleteCellRange(0, s.cells.length - keep);", keep=keep)

    def cells(self) -> list[dict[str, Any]]:
        """All cells as nbformat has them."""
        cells: list[dict[str, Any]] = self._do("return panel.content.model.toJSON().cells;")
        return cells

    def _raise_errors(self, indices: Sequence[int]) -> None:
        cells = self.cells()
        for index in indices:
            for output in cells[index].get("outputs", []):
                if output["output_type"] == "error":
                    raise KernelError(f"cell {index}:\n" + plain("\n".join(output["traceback"])))

    def output(self, index: int = -1) -> Locator:
        """The outputs of a code cell, as they stand on the page."""
        cells = self.page.locator(".jp-NotebookPanel:visible .jp-CodeCell")
        return (cells.last if index < 0 else cells.nth(index)).locator(".jp-OutputArea-output")

    def kernel(self, code: str, timeout_s: float = SETTLE_S) -> Any:
        """Run code in the kernel, beside the notebook's cells; the value of its last line, through JSON.

        Raises:
            KernelError: the code raised, or its last line has no JSON.
        """
        statements, expression = _split(code)
        body = """
            const future = panel.sessionContext.session.kernel.requestExecute({
                code, silent: false, store_history: false, stop_on_error: false, user_expressions: {value}});
            const reply = (await late(future.done, seconds, 'code in the kernel')).content;
            return reply;"""
        value = f"__import__('json').dumps({expression})"
        reply = self._do(body, timeout_s, code=statements, value=value)
        if reply["status"] == "ok":
            reply = reply["user_expressions"]["value"]
        if reply["status"] != "ok":
            trace = reply.get("traceback") or [f"{reply.get('ename')}: {reply.get('evalue')}"]
            raise KernelError(f"{code}\n" + plain("\n".join(trace)))
        return json.loads(ast.literal_eval(reply["data"]["text/plain"]))

    def interrupt(self) -> None:
        """Interrupt the kernel, as the button with the square does."""
        self._do("await late(panel.sessionContext.session.kernel.interrupt(), seconds, 'interrupt');")

    def restart(self) -> None:
        """Restart the kernel by its menu, confirming the question; wait until the new one is idle."""
        self._do("app.commands.execute('kernelmenu:restart');")
        self.page.locator(".jp-Dialog").get_by_role("button", name="Confirm Kernel Restart").click()
        self.page.locator(".jp-Dialog").wait_for(state="detached")
        self.wait_idle()

    def shut_down(self) -> None:
        """Shut the kernel down, as its menu does; the notebook has none then."""
        self._do("await late(panel.sessionContext.shutdown(), seconds, 'the shutdown');")

    def start_kernel(self) -> None:
        """Begin a kernel in a notebook that has none, and wait until it is idle."""
        self._do("await late(panel.sessionContext.startKernel(), seconds, 'the start');")
        self.wait_idle()

    def save(self) -> Path:
        """Save the notebook; where it lies."""
        self.command("docmanager:save")
        return self.lab.root / self.path

    def theme(self, dark: bool) -> None:
        """Switch to JupyterLab's dark or light theme."""
        self.command("apputils:change-theme", theme="JupyterLab Dark" if dark else "JupyterLab Light")
        light = "false" if dark else "true"
        self.page.locator(f"body[data-jp-theme-light={light}]").wait_for(state="attached")
        self.page.locator("#jupyterlab-splash").wait_for(state="detached")

    def viewport(self, width: int, height: int = 900) -> None:
        """Make the window so many CSS pixels wide and high."""
        self.page.set_viewport_size({"width": width, "height": height})

    def focus_mode(self) -> None:
        """Hide JupyterLab's sidebar, so that the notebook has the width of the window."""
        self._do("app.shell.collapseLeft(); app.shell.collapseRight();")

    def screenshot(self, name: str, of: Locator | None = None) -> Path:
        """Keep a picture of the page, or of a part of it, as an artefact."""
        path = artifacts() / f"{re.sub(r'[^A-Za-z0-9_.-]+', '-', name)}.png"
        if of is None:
            self.page.screenshot(path=path)
        else:
            of.screenshot(path=path)
        return path

    def evidence(self, name: str) -> str:
        """What to look at after a failure: a screenshot is kept; the text says where, and what the page said."""
        try:
            shot = str(self.screenshot(f"failed-{name}"))
        except PlaywrightError as error:
            shot = f"none: {error}"
        return "\n".join([f"screenshot: {shot}", "console of the page:", *(self.console or ["(empty)"])])


def pixels(canvas: Locator) -> str:
    """What is drawn on a canvas, as a data URL: two that differ were drawn differently."""
    return str(canvas.evaluate("canvas => canvas.toDataURL()"))


def ink(canvas: Locator) -> float:
    """The fraction of a canvas's pixels that differ from its most frequent colour; 0 for one that is blank."""
    script = """canvas => {
        const { width, height } = canvas;
        if (!width || !height) return 0;
        const words = new Uint32Array(canvas.getContext('2d').getImageData(0, 0, width, height).data.buffer);
        const counts = new Map();
        for (const word of words) counts.set(word, (counts.get(word) || 0) + 1);
        return 1 - Math.max(...counts.values()) / words.length;
    }"""
    return float(canvas.evaluate(script))


def _guarded(function: str) -> str:
    """A predicate that is false, rather than an exception, while the application is still loading."""
    return f"path => {{ try {{ return ({function})(path); }} catch {{ return false; }} }}"


def _split(code: str) -> tuple[str, str]:
    """Statements, and the last line's expression ("None" where it is none)."""
    tree = ast.parse(textwrap.dedent(code))
    if not tree.body or not isinstance(tree.body[-1], ast.Expr):
        return ast.unparse(tree) or "pass", "None"
    last = tree.body.pop()
    assert isinstance(last, ast.Expr)
    return ast.unparse(tree) or "pass", ast.unparse(last.value)
