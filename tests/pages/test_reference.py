"""The reference has an entry for each public name, and its tables agree with the code."""

from __future__ import annotations

import importlib
import inspect
import re

import pytest

import hfta_nb as hfta
from docs._site import api, sources, tables
from docs._site.layout import ROOT
from docs._site.meanings import MEANINGS, OF_FAMILY, meaning
from hfta_nb.cli.options import parse
from hfta_nb.data.augment import AXES
from hfta_nb.data.readers import READERS
from hfta_nb.models.training_axes import OPTIMIZERS, TRAINING_AXES

REFERENCE = {p.name: p.read_text(encoding="utf-8") for p in (ROOT / "docs" / "reference").glob("*.md")}
WRITTEN = [found for text in REFERENCE.values() for found in tables.MARK.findall(text)]


@pytest.mark.parametrize("module", api.MODULES)
def test_every_public_name_has_an_entry(module: str) -> None:
    asked = f"api {module}" in WRITTEN
    lacking = [] if asked else api.rest(module)
    assert lacking == []


def test_every_module_of_the_face_is_documented() -> None:
    modules = {getattr(hfta, n).__name__ for n in hfta.__all__ if inspect.ismodule(getattr(hfta, n))}
    assert modules <= set(api.MODULES)


@pytest.mark.parametrize("module", api.MODULES)
def test_every_public_name_has_a_docstring(module: str) -> None:
    found = importlib.import_module(module)
    things = {name: getattr(found, name) for name in api.public(module)}
    described = {n: inspect.getdoc(v) for n, v in things.items() if inspect.isclass(v) or inspect.isroutine(v)}
    assert [name for name, text in described.items() if not text] == []


def test_every_entry_is_a_name_and_none_is_given_twice() -> None:
    named = [name for text in REFERENCE.values() for name in api._ENTRY.findall(text)]
    assert len(named) == len(set(named))
    for name in named:
        assert api.resolve(name) is not None


def test_every_public_method_of_the_face_has_a_docstring() -> None:
    classes = (hfta.Study, hfta.FusedArray, hfta.Control, hfta.Grid, hfta.Family, hfta.Result)
    plain = {"pause", "resume", "train"}  # as their names say, or as torch's
    lacking = [
        f"{c.__name__}.{name}"
        for c in classes
        for name, thing in vars(c).items()
        if not name.startswith("_") and inspect.isfunction(thing) and not thing.__doc__ and name not in plain
    ]
    assert lacking == []


def test_every_table_that_a_page_asks_for_is_made_and_every_table_is_asked_for() -> None:
    makers = {*tables.MAKERS, "api", "source_map"}
    assert {found.split()[0] for found in WRITTEN} == makers


def test_the_axes_of_a_study_are_all_listed_with_type_default_and_meaning() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \| (.+?) \| (.+?) \| (.+?) \|$", tables.axes(), re.M)
    assert [row[0] for row in rows] == list(TRAINING_AXES)
    by_name = {name: rest for name, *rest in rows}
    assert by_name["lr"] == ["float, ≥ 0", "`0.001`", "Learning rate.", "always"]
    assert by_name["momentum"][3] == "if `optimizer` is `rmsprop`, `sgd`"
    assert all(f"`{name}`" in by_name["optimizer"][0] for name in OPTIMIZERS)
    listed = re.findall(r"^\| `(\w+)` \|", tables.augmentation(), re.M)
    assert listed == list(AXES)


def test_the_families_and_the_meaning_of_their_axes_are_listed() -> None:
    text = tables.all_families()
    built_in = [name for name in hfta.families() if hfta.family(name).function.__module__.startswith("hfta_nb.")]
    for name in built_in:
        section = text.partition(f"## `{name}`\n")[2].partition("\n## ")[0]
        assert re.findall(r"^\| `(\w+)` \|", section, re.M) == list(hfta.family(name).axes)
        assert [axis for axis in hfta.family(name).axes if not meaning(name, axis)] == []


def test_no_meaning_is_of_an_axis_that_is_gone() -> None:
    found = {(name, axis) for name in hfta.families() for axis in hfta.family(name).axes}
    assert set(OF_FAMILY) <= found
    assert set(MEANINGS) <= {axis for _, axis in found}


def test_the_data_sets_are_listed() -> None:
    assert re.findall(r"^\| `(\w+)` \|", tables.data_sets(), re.M) == hfta.data.names()
    assert re.findall(r"^\| `(\w+)` \|", tables.directories(), re.M) == list(READERS)


@pytest.mark.parametrize("command", ["run", "plan", "families", "results"])
def test_the_help_of_each_command_is_that_of_the_command(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = tables.command_line()
    section = text.partition(f"## `hfta-nb {command}`\n")[2].partition("\n## ")[0]
    with pytest.raises(SystemExit):
        parse([command, "--help"])
    told = capsys.readouterr().out
    assert f"usage: hfta-nb {command}" in section
    assert set(re.findall(r"--[a-z-]+", told)) == set(re.findall(r"--[a-z-]+", section))


def test_the_source_map_says_what_each_file_is_for() -> None:
    lacking = [p for p in sources.package_files() if p.name != "__init__.py" and not sources.summary(p)]
    assert lacking == []
    assert "batch and group norm" in sources.source_map()


def test_what_a_page_asks_for_is_put_in_its_place() -> None:
    text = "before\n\n<!-- generated: table of.contents -->\n\nafter\n"
    assert tables.filled(text, {"table": lambda name: f"[{name}]"}) == "before\n\n[of.contents]\n\nafter\n"
    with pytest.raises(KeyError):
        tables.filled("<!-- generated: unknown -->", {})
