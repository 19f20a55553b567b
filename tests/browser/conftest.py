"""Fixtures of the browser tests: one JupyterLab and one Chromium for all tests, one page for each."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from typing import Any

import pytest

from tests.pictures import artifacts

from . import chromium
from .live_page import opened

__all__ = ["opened"]

CHROMIUM_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
]
STEP_MS = 20_000


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a browser, where the person asked for none; nothing else skips it."""
    if chromium.Machine().skipped:
        for item in items:
            if item.get_closest_marker("browser"):
                item.add_marker(pytest.mark.skip(reason=f"{chromium.SKIP_VARIABLE} is set"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    """Keep a screenshot and the logs of a test that failed, while its page is still there."""
    report: Any = yield
    notebook = getattr(item, "funcargs", {}).get("notebook")
    if report.when == "call" and report.failed and notebook is not None:
        report.sections.append(("the page", notebook.evidence(item.name)))
        report.sections.append(("JupyterLab's log", notebook.lab.log_tail()))
    elif report.when == "call" and report.failed and "browser" in getattr(item, "fixturenames", ()):
        report.sections.append(("screenshots", "\n".join(_screenshots(item))))
    return report


def _screenshots(item: pytest.Item) -> list[str]:
    """Pictures of all pages that a test has open."""
    pages = [page for context in item.funcargs["browser"].contexts for page in context.pages]
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", item.name)
    paths = [str(artifacts() / f"failed-{name}-{number}.png") for number in range(len(pages))]
    for page, path in zip(pages, paths, strict=True):
        page.screenshot(path=path)
    return paths


@pytest.fixture(scope="package")
def lab() -> Iterator[Any]:
    """A JupyterLab for all tests."""
    from .jupyter import Lab

    with Lab() as lab:
        yield lab


@pytest.fixture(scope="package")
def browser() -> Iterator[Any]:
    """A headless Chromium for all tests; a failure, not a skip, where there is none.

    It ends with them: Playwright has an event loop running, which other tests would take for theirs.
    """
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        pytest.fail(f"The browser tests need Playwright: pip install playwright (extra dev). {chromium.ADVICE}")
    try:
        path = chromium.find()
    except chromium.ChromiumError as error:
        pytest.fail(str(error), pytrace=False)
    if path is None:
        pytest.fail(f"There is no Chromium. {chromium.ADVICE}", pytrace=False)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=CHROMIUM_FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A page of its own, with cookies and storage of its own; allowed to use the clipboard."""
    context = browser.new_context(
        viewport={"width": 1280, "height": 900},
        accept_downloads=True,
        permissions=["clipboard-read", "clipboard-write"],
        reduced_motion="reduce",
    )
    context.set_default_timeout(STEP_MS)
    yield context.new_page()
    context.close()


@pytest.fixture
def notebook(page: Any, lab: Any) -> Iterator[Any]:
    """A driver of notebooks on the page; its kernels end with the test."""
    from .notebook import Notebook

    yield Notebook(page, lab)
    lab.end_sessions()
