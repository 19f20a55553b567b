"""Ctrl-C before a run has begun: one line and the usual exit code, also during imports."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import pytest

from tests.cli.test_end_to_end import run

PRESS = """
import os, runpy, signal, sys

signal.signal(signal.SIGINT, signal.default_int_handler)  # where tests run in the background it is ignored

class Presses:
    def find_spec(self, name, path=None, target=None):
        if name != {module!r}:
            return None
        sys.meta_path.remove(self)
        try:
            os.kill(os.getpid(), signal.SIGINT)
            for _ in range(1000): pass
        except KeyboardInterrupt:
            if {swallowed}:
                raise ImportError("cannot load module more than once per process") from None
            raise

sys.meta_path.insert(0, Presses())
sys.argv = ["hfta-nb", *{arguments!r}]
"""
MODULE = "runpy.run_module('hfta_nb', run_name='__main__')\n"
SCRIPT = "from hfta_nb.__main__ import main\nsys.exit(main())\n"

PLAN = ("plan", "--family", "mlp", "--data", "digits", "--set", "width=8")
MODULES = {
    "hfta_nb.cli": PLAN,
    "hfta_nb.cli.options": PLAN,
    "torch": PLAN,
    "hfta_nb.study": PLAN,
    "pandas": PLAN,
    "hfta_nb.records.history": ("results", "nowhere"),
}


def pressed(module: str, arguments: tuple[str, ...], start: str, folder: Path, swallowed: bool = False) -> str:
    code = PRESS.format(module=module, arguments=arguments, swallowed=swallowed) + start
    ran = run([sys.executable, "-c", code], folder)
    assert (ran.returncode, ran.stdout) == (130, "")
    return ran.stderr


@pytest.mark.each
@pytest.mark.parametrize("module", MODULES)
def test_an_interrupt_while_modules_are_imported_ends_in_one_line(module: str, tmp_path: Path) -> None:
    assert pressed(module, MODULES[module], MODULE, tmp_path) == "hfta-nb: error: interrupted\n"


def test_so_does_one_that_the_imported_package_turned_into_another_error(tmp_path: Path) -> None:
    assert pressed("pandas", PLAN, MODULE, tmp_path, swallowed=True) == "hfta-nb: error: interrupted\n"


def test_the_installed_command_minds_it_as_well(tmp_path: Path) -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["scripts"] == {"hfta-nb": "hfta_nb.__main__:main"}
    assert pressed("hfta_nb.cli", PLAN, SCRIPT, tmp_path) == "hfta-nb: error: interrupted\n"
