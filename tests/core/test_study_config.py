"""One table of a study's arguments, from which signature, docstring, options, keys and saving follow."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest

import hfta_nb as hfta
from hfta_nb.cli.options import parse
from hfta_nb.engine.array.array_settings import COMPILE_MODES, STRATEGIES, VERIFY_MODES
from hfta_nb.errors import StudyError
from hfta_nb.models.study_argument import ALWAYS, ELSEWHERE
from hfta_nb.models.study_config import ARGUMENTS, FLAGS, KEYS, StudyConfig, helps
from hfta_nb.study.definition_files import describe
from hfta_nb.study.keeping import KINDS
from hfta_nb.train.step.precision import PRECISIONS
from hfta_nb.workers.distributed.data_parallel import BATCH_NORM

GRID = {"lr": [1e-3]}

OTHERWISE: dict[str, Any] = {
    **{"epochs": 3, "patience": 2, "monitor": ["val_loss", "parameters"], "folds": 3, "seed": 4, "device": "cpu"},
    **{"precision": "bf16", "name": "mine", "min_delta": 0.5, "validate_every": 2, "steps_per_epoch": 7},
    **{"validation_batch_size": 8, "drop_last": True, "member_steps": 9, "member_seconds": 2.5},
    **{"keep_checkpoints": ["best", "last"], "padding": 0.5, "capacity": 2, "checkpointing": "never"},
    **{"compile": "never", "strategy": "fixed", "verify": "always", "devices": 2, "devices_batch_norm": "local"},
    **{"share_stream": False, "serial": True, "cache_features": "never"},
}


def test_the_signature_is_that_of_the_table() -> None:
    signature = inspect.signature(hfta.Study)
    named = {n: p for n, p in signature.parameters.items() if p.kind is inspect.Parameter.KEYWORD_ONLY}
    assert {n: (p.annotation, p.default) for n, p in named.items()} == {
        name: (known.type, known.default) for name, known in ARGUMENTS.items()
    }
    assert list(named) == list(ARGUMENTS)
    assert [n for n in signature.parameters if n not in named] == ["family", "grid", "data", "fixed"]


def test_each_argument_has_its_help_in_the_docstring_of_a_study_and_basic_ones_come_first() -> None:
    assert list(helps()) == list(ARGUMENTS)
    told = inspect.getdoc(hfta.Study) or ""
    places = [told.index(f"\n    {name}: ") for name in ("family", "grid", "data", *ARGUMENTS, "fixed")]
    assert places == sorted(places)
    assert all(text in " ".join(told.split()) for text in helps().values())
    basic = [known.basic for known in ARGUMENTS.values()]
    assert basic == sorted(basic, reverse=True)
    assert any(basic)


def test_choices_are_those_of_the_parts_that_take_them() -> None:
    wanted = {"compile": COMPILE_MODES, "strategy": STRATEGIES, "verify": VERIFY_MODES, "precision": PRECISIONS}
    wanted |= {"devices_batch_norm": BATCH_NORM, "keep_checkpoints": KINDS}
    assert {name: ARGUMENTS[name].choices for name in wanted} == {n: tuple(w) for n, w in wanted.items()}


def test_options_are_keys_of_a_file_and_what_is_no_text_is_neither() -> None:
    assert set(FLAGS) < set(KEYS)
    assert not {"loss", "metrics", "param_groups", "constraint", "population"} & set(KEYS)


def test_what_differs_from_the_defaults_is_saved_read_and_in_the_code(tmp_path: Path) -> None:
    study = hfta.Study("mlp", GRID, "digits", directory=tmp_path, **OTHERWISE)
    assert {name: study.options[name] for name in OTHERWISE} == OTHERWISE
    study.save(tmp_path)
    again = hfta.Study.load(tmp_path)
    assert again.options == study.options
    code = study.to_code()
    assert [name for name in OTHERWISE if f"    {name}=" not in code] == []


def test_every_saved_argument_is_tried_above() -> None:
    saved = {name for name, known in ARGUMENTS.items() if known.saved != ELSEWHERE}
    assert saved - OTHERWISE.keys() == {"dtype", "deterministic", "layout"}  # not with bf16, a strategy, an MLP


def test_of_the_defaults_only_those_are_saved_that_always_were() -> None:
    options = hfta.Study("mlp", GRID, "digits").options
    assert options.keys() == {name for name, known in ARGUMENTS.items() if known.saved == ALWAYS}
    assert json.loads(json.dumps(options)) == options


@pytest.mark.parametrize("name", [n for n, known in ARGUMENTS.items() if known.range])
def test_numbers_are_checked_by_their_range(name: str) -> None:
    known = ARGUMENTS[name]
    outside = known.above if known.low is None else known.low - 1
    for value in (outside, float("nan"), "1", *([None] if known.default is not None else [])):
        with pytest.raises(hfta.HftaError) as raised:
            hfta.Study("mlp", GRID, "digits", **{"trials": 2} | {name: value})
        assert raised.value.where == name


def test_what_is_saved_is_an_attribute_of_a_study() -> None:
    saved = {name for name, known in ARGUMENTS.items() if known.saved != ELSEWHERE}
    assert saved <= vars(hfta.Study("mlp", GRID, "digits")).keys()


def test_a_config_has_the_defaults() -> None:
    assert vars(StudyConfig()) == {name: known.default for name, known in ARGUMENTS.items()}


def test_an_argument_s_old_name_warns_for_one_release(tmp_path: Path) -> None:
    with pytest.warns(DeprecationWarning, match=r"Study\(across=...\) is Study\(padding=...\) now") as told:
        study = hfta.Study("mlp", {"width": [8, 9]}, "digits", across="never", directory=tmp_path)
    assert study.padding == "never"
    assert told[0].filename == __file__
    with pytest.raises(StudyError, match="across: is padding now, which is given too"):
        hfta.Study("mlp", across="never", padding="never")
    assert parse(["plan", "--family", "mlp", "--grid", "width=8,9", "--across", "0.5"]).padding == 0.5
    saved = describe(study)
    options = {"across" if name == "padding" else name: value for name, value in saved["options"].items()}
    study.store.write_study({**saved, "options": options | {"across": 0.4}}, {})
    assert hfta.Study.load(tmp_path).padding == 0.4
