"""docs/speed.md names all existing options, and no others."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import hfta_nb as hfta
from hfta_nb.models.study_config import ARGUMENTS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "speed.md").read_text(encoding="utf-8")


def test_every_environment_variable_is_told() -> None:
    sources = (ROOT / "hfta_nb").rglob("*.py")
    used = {name for path in sources for name in re.findall(r"HFTA_NB_[A-Z]+", path.read_text(encoding="utf-8"))}
    assert used == set(re.findall(r"HFTA_NB_[A-Z]+", PAGE))


def test_choices_and_defaults_are_those_of_a_study() -> None:
    defaults = {name: p.default for name, p in inspect.signature(hfta.Study).parameters.items()}
    table = dict(re.findall(r"^\| \[`(\w+)`\]\(#[\w-]+\) \| (.*?) \|", PAGE, re.M))
    assert table.keys() == {"precision", "capacity", "checkpointing", "compile"}
    assert {name: told.strip('`"') for name, told in table.items() if name != "capacity"} == {
        name: defaults[name] for name in table if name != "capacity"
    }
    assert defaults["capacity"] is None
    sections = {"Precision": "precision", "Activation checkpointing": "checkpointing", "Compiling": "compile"}
    for section, name in sections.items():
        text = PAGE.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
        assert [choice for choice in ARGUMENTS[name].choices if f'"{choice}"' not in text] == [], section


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", PAGE):
        assert (ROOT / "docs" / target).exists(), target
    heads = {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in re.findall(r"^## (.*)$", PAGE, re.M)}
    anchors = set(re.findall(r"\]\(#([^)]+)\)", PAGE))
    assert anchors
    assert anchors <= heads
