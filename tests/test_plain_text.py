"""Text from outside can't steer a terminal, mislead a reader or be computed by a spreadsheet."""

from __future__ import annotations

import copy
import csv
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

import hfta_nb as hfta
from hfta_nb import events as ev
from hfta_nb.cli import main
from hfta_nb.errors import HftaError, StoreError, StudyError
from hfta_nb.errors.plain_text import cell, visible, visible_lines
from hfta_nb.study import saved_runs

EVIL = ["\x1b[2J\x1b]0;owned\x07", "\x9b31m", "a\rb", "a\x08\x08", "\u202egnp.exe", "zero\u200bwidth", "nul\0", "a\nb"]


def is_plain(text: str) -> bool:
    return all(line.isprintable() for line in text.split("\n"))


@pytest.mark.parametrize("evil", EVIL)
def test_what_can_not_be_seen_is_made_visible(evil: str) -> None:
    assert visible(evil).isprintable()
    assert is_plain(visible_lines(f"one\ntwo {evil}"))
    assert visible("größe 数 =1 é") == "größe 数 =1 é"


@pytest.mark.parametrize("evil", EVIL)
def test_errors_are_one_plain_line(evil: str) -> None:
    class Odd:
        def __repr__(self) -> str:
            return evil

    error = HftaError(f"what {evil}", where=evil, got=Odd(), accepted=evil, remedy=evil)
    assert str(error).isprintable()
    assert error.at(f"elsewhere {evil}").message.isprintable()
    assert str(copy.copy(error)).isprintable()


def net(kind: str = "relu", n: float = 0.0) -> torch.nn.Module:
    return torch.nn.Linear(4, 3)


def ran(place: Path, kinds: list[str], name: str = "plain") -> hfta.Study:
    study = hfta.Study(net, {"kind": kinds, "n": [-0.5, 2]}, "iris", epochs=1, device="cpu", directory=place, name=name)
    list(study.run())
    study.run_state.history.members[0].reason = "it said \x1b[31m=cmd|' /C calc'!A0"
    return study


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> hfta.Study:
    return ran(tmp_path_factory.mktemp("plain") / "run", EVIL)


def test_members_tables_and_pages_are_plain(study: hfta.Study, capsys: pytest.CaptureFixture[str]) -> None:
    table = study.results()
    for variant in study.variants:
        member = study.member(variant.id)
        assert repr(member).isprintable()
        assert is_plain(member._repr_html_())
        assert variant.label.isprintable()
    for text in (repr(table), table._repr_html_(), repr(study), study._repr_html_(), repr(study.results(over="n"))):
        assert is_plain(text)
    assert all(str(reason).isprintable() for reason in table["reason"])
    assert set(table["kind"]) == set(EVIL)  # what it is stays what it is
    assert main(["results", str(study.directory)]) == 0
    assert is_plain(capsys.readouterr().out)


FORMULAS = ["=1+1", "+1+1", "-1+1", "@SUM(A1)", "\t=1+1", " =1+1", "\r=1", '=HYPERLINK("http://x")', "＝1+1"]


@pytest.mark.parametrize("formula", FORMULAS)
def test_a_formula_is_a_text(formula: str) -> None:
    assert cell(formula).startswith("'")
    assert cell(formula).isprintable()


def test_numbers_stay_numbers_and_words_words() -> None:
    for value in (-1, -0.5, 2.5e-7, True, None, "relu", "a=b", "1e-3", "-", "", "it's"):
        assert cell(value) is value or cell(value) == value


@pytest.mark.parametrize("way", ["command", "export", "workbench"])
def test_tables_for_spreadsheets_have_no_formulas(way: str, tmp_path: Path) -> None:
    study = ran(tmp_path / "run", FORMULAS, name="=1+1")
    path = tmp_path / "table.csv"
    if way == "command":
        assert main(["results", str(study.directory), "--csv", str(path)]) == 0
    elif way == "export":
        study.export(path)
    else:
        from hfta_nb.ui import exports

        path = exports.write_csv(study)
    with open(path, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * len(FORMULAS)
    for row in rows:
        assert row["kind"].startswith("'")
        assert float(row["n"]) in (-0.5, 2.0)  # a number below zero is no formula
        float(row["train_loss"])
        for text in row.values():
            assert text.isprintable()
            assert not text.startswith(("=", "+", "@", "\t", "\r"))


BAD = os.fsdecode(b"not-\xff-utf8")


def test_a_path_that_is_not_utf8_is_refused_before_training(
    study: hfta.Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / BAD
    given: dict[str, Any] = {"family": "mlp", "grid": {"lr": [0.1]}, "data": "iris", "epochs": 1}
    with pytest.raises(HftaError, match="not UTF-8"):
        hfta.Study(**given, directory=bad)
    for use in (study.save, study.export, hfta.Study.load):
        with pytest.raises(HftaError, match="not UTF-8"):
            use(bad)  # type: ignore[operator]
    run = ["run", "--family", "mlp", "--grid", "lr=0.1", "--epochs", "1"]
    for command in ([*run, "--output", str(bad)], [*run, "--csv", str(bad)], ["results", str(bad)], ["tune", str(bad)]):
        with pytest.raises(SystemExit):
            main(command)
        told = capsys.readouterr().err
        assert "is not UTF-8" in told
        assert is_plain(told)
    bad.mkdir()
    monkeypatch.chdir(bad)
    with pytest.raises(StoreError, match="not UTF-8"):
        hfta.Study(**given)
    assert list(bad.iterdir()) == []
    assert list(saved_runs(tmp_path)) == []


@pytest.mark.parametrize("way", [copy.deepcopy, copy.copy, pickle.dumps])
def test_a_copy_of_a_running_study_says_what_to_do(way: Any, tmp_path: Path) -> None:
    study = hfta.Study("mlp", {"lr": [0.1]}, "iris", epochs=2, device="cpu", directory=tmp_path / "run")
    assert copy.deepcopy(study).variants == study.variants
    asked = 0
    for event in study.run():
        if isinstance(event, ev.EpochDone):
            asked += 1
            with pytest.raises(StudyError, match=r"while it runs.*Study\.load"):
                way(study)
            assert len(hfta.Study.load(study.directory).results()) == 1
    assert asked == 2
    assert copy.deepcopy(study).results().equals(study.results())
