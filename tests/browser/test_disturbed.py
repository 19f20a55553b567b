"""Runs that are disturbed again and again: they end as if nobody had disturbed them, and the screen shows it.

A run is disturbed many times while its process is slowed down from outside, so that there is time for that.
"""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest
from playwright.sync_api import WebSocketRoute, expect

import hfta_nb as hfta
from tests.polling import gone

from .jupyter import Lab
from .notebook import Notebook
from .screen import Screen
from .test_workbench import shown

pytestmark = [pytest.mark.browser, pytest.mark.long]

EPOCHS = 300
MADE = f'Workbench("mlp", "digits", {{"lr": [1e-3, 1e-2], "width": [8, 16]}}, epochs={EPOCHS})'
SHOWN_S = 3.0
"""How long the curves may take once the Workbench is on the page, on a machine with nothing else to do."""


@contextmanager
def slowed(pid: int) -> Iterator[None]:
    """Let a process run 3% of the time."""
    over = threading.Event()

    def hold() -> None:
        while not over.wait(0.015) and not gone(pid):
            os.kill(pid, signal.SIGSTOP)
            over.wait(0.48)
            os.kill(pid, signal.SIGCONT)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def curves(directory: object) -> dict[int, object]:
    """Everything that was recorded of the members of a run."""
    history = hfta.Study.load(str(directory)).history
    assert history.state == "COMPLETE"
    return {i: {name: (c.epochs, c.values) for name, c in m.curves.items()} for i, m in history.members.items()}


def shows_all(screen: Screen) -> None:
    """See that the Workbench shows all curves soon, and that the run is still on."""
    busy = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
    expect(screen.curves).to_have_attribute(
        "aria-label", re.compile("for 4 members; last"), timeout=1000 * SHOWN_S * busy
    )
    expect(screen.board.locator("tbody tr")).to_have_count(4)
    assert screen.state == "running"


def disturb(notebook: Notebook, lab: Lab, path: str, disturbances: list[Callable[[Screen], Screen]]) -> None:
    """Train undisturbed, then train and disturb; see that each disturbance ends with all curves on the screen, and that
    both runs have the same results."""
    (screen,) = shown(notebook, lab, path, MADE)
    screen.train()
    screen.wait_state("finished", timeout_s=300)
    calm = screen.ask("str(wb.study.directory.absolute())")
    screen.train()
    directory, pid = screen.ask("str(wb.study.directory.absolute())"), int(str(screen.ask("wb.handle.pid")))
    notebook.save()
    with slowed(pid):
        for disturbance in disturbances:
            screen = disturbance(screen)
            shows_all(screen)
    screen.wait_state("finished", timeout_s=300)
    assert curves(directory) == curves(calm)


def reload_page(screen: Screen) -> Screen:
    notebook = screen.notebook
    notebook.open(notebook.path)
    return Screen(notebook)


def lose_connection(sockets: list[WebSocketRoute], screen: Screen) -> Screen:
    """Close all connections of the page; JupyterLab connects again by itself."""
    notebook = screen.notebook
    while sockets:
        sockets.pop().close(code=1011)
    notebook.page.wait_for_timeout(100)
    notebook.wait_idle()
    return screen


def way_back(screen: Screen) -> Screen:
    """Press *Reattach* in a Workbench that has lost its kernel; that below it, in the only cell that is left."""
    notebook = screen.notebook
    screen.root.locator(".hfta-gone button").click()
    below = notebook.page.locator(".hfta-workbench:not(.hfta-lost)")
    below.wait_for(timeout=90_000)
    notebook.delete_cells(keep=1)
    return Screen(notebook)


def restart(screen: Screen) -> Screen:
    screen.notebook.restart()
    return way_back(screen)


def shut_down(screen: Screen) -> Screen:
    """End the kernel, and begin another one."""
    screen.notebook.shut_down()
    expect(screen.root.locator(".hfta-gone button")).to_be_visible()
    screen.notebook.start_kernel()
    return way_back(screen)


def test_thirty_reloads_and_five_lost_connections(notebook: Notebook, lab: Lab) -> None:
    sockets: list[WebSocketRoute] = []

    def connect(socket: WebSocketRoute) -> None:
        sockets.append(socket)
        socket.connect_to_server()

    notebook.page.route_web_socket(re.compile(r"/api/kernels/.*/channels"), connect)
    turn: list[Callable[[Screen], Screen]] = [*[reload_page] * 6, partial(lose_connection, sockets)]
    disturb(notebook, lab, "disturbed/reloads.ipynb", turn * 5)


def test_ten_restarts_and_five_shutdowns_of_the_kernel(notebook: Notebook, lab: Lab) -> None:
    disturb(notebook, lab, "disturbed/restarts.ipynb", [restart, restart, shut_down] * 5)
