"""The front end's modules: their own tests in Node.js, and how they are joined for a browser."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hfta_nb.ui.front_end import imported, source
from tests.node import FRONT, node

TESTS = Path(__file__).parent / "front"
SCRIPTS = sorted(path.name for path in FRONT.glob("*.js") if "export default" in path.read_text("utf-8"))


def test_what_needs_no_page_passes_its_tests() -> None:
    tests = sorted(map(str, TESTS.glob("*.test.js")))
    assert tests
    node("--test", *tests)


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_joined_script_is_one_module(script: str) -> None:
    text = source(script)
    node("--check", "--input-type=module", "-", given=text)
    assert not re.search(r"^import ", text, re.MULTILINE)
    assert re.findall(r"^export (\w+)", text, re.MULTILINE) == ["default"]


@pytest.mark.parametrize("script", SCRIPTS)
def test_modules_that_are_joined_share_no_name(script: str) -> None:
    names = re.findall(r"^(?:async )?(?:class|function|const|let) (\w+)", source(script), re.MULTILINE)
    assert names
    assert sorted(names) == sorted(set(names))


def test_a_module_comes_once_and_after_what_it_imports() -> None:
    order = imported("live_view.js")
    assert order[-1] == "live_view.js"
    assert len(order) == len(set(order))
    assert order.index("page.js") < order.index("tooltip.js") < order.index("view.js")


def test_every_module_is_part_of_a_script() -> None:
    used = {module for script in SCRIPTS for module in imported(script)}
    assert used == {path.name for path in FRONT.glob("*.js")}
