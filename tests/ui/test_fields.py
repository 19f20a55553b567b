"""The fields of Define that are no axes: typed text, its meaning, and error messages."""

from __future__ import annotations

import html

import pytest
from ui.bench import Make

from hfta_nb.ui import fields


def test_a_precision_that_does_not_go_with_the_dtype_is_said(make: Make) -> None:
    bench = make(precision="bf16")
    assert bench.study.precision == "bf16"
    bench.define.fields["dtype"].value = "float64"
    assert "precision: bf16 is a precision of float32 models" in bench.define.fields_problem.value
    assert "hfta-wrong" in bench.define.fields["precision"]._dom_classes
    assert bench.plan_view.sentence.value == '<span class="hfta-error">No plan yet: see precision above.</span>'
    bench.define.fields["precision"].value = "fp32"
    assert bench.define.fields_problem.value == ""
    assert "hfta-wrong" not in bench.define.fields["precision"]._dom_classes
    assert str(bench.study.dtype) == "torch.float64"


def test_batch_size_as_an_axis_takes_the_place_of_the_field(make: Make) -> None:
    bench = make()
    bench.define.fields["batch_size"].value = "32"
    assert bench.define.definition().options["batch_size"] == 32
    bench.define.add_axis("batch_size", [16, 32])
    assert bench.define.fields["batch_size"].disabled
    assert bench.define.definition().options["batch_size"] is None
    assert len(bench.study.groups()) == 2


def test_every_field_has_a_label_and_a_hint(make: Make) -> None:
    bench = make()
    labels = {w.description for w in bench.define.fields.values()} | {"kind of lr", "values of lr"}
    assert labels <= bench.bar.hints.keys()
    assert all(bench.bar.hints.values())
    assert not any(getattr(w, "description_allow_html", False) for w in bench.define.fields.values())


def test_capacity_is_a_number_auto_or_nothing(make: Make) -> None:
    bench = make(grid={"lr": [1e-3, 1e-2, 1e-1]}, capacity=2, checkpointing="never")
    define = bench.define
    assert (define.fields["capacity"].value, define.fields["checkpointing"].value) == ("2", "never")
    assert define.definition().options["capacity"] == 2
    assert "2 arrays" in bench.plan_view.sentence.value
    for text, meant in (("", None), (" auto ", "auto"), ("3", 3)):
        define.fields["capacity"].value = text
        assert define.definition().options["capacity"] == meant


@pytest.mark.parametrize(
    ("label", "typed_text", "said"),
    [
        ("epochs", "1.5", "epochs: not a whole number; got '1.5'; accepted: 1 to 1,000,000,000"),
        ("epochs", "", "epochs: not a whole number"),
        ("epochs", "0", "epochs: out of bounds; got '0'"),
        ("epochs", "two", "epochs: not a whole number"),
        ("batch_size", "-3", "batch size: out of bounds"),
        ("batch_size", "9" * 5000, "batch size: not a whole number"),
        ("patience", "nan", "patience: not a whole number"),
        ("patience", "-1", "or nothing for never"),
        (
            "steps_per_epoch",
            "0",
            "steps per epoch: out of bounds; got '0'; accepted: 1 to 1,000,000,000, or nothing for",
        ),
        ("validate_every", "", "validate every: not a whole number"),
        ("seed", "-1", "data seed: out of bounds"),
        ("seed", "1e400", "data seed: not a whole number"),
        ("capacity", "most", "members per array: not a number of members; got 'most'; accepted: 1, 2, 3, ..., auto"),
        ("capacity", "0", "members per array: not a number of members"),
        ("capacity", "2.5", "members per array: not a number of members"),
    ],
)
def test_what_a_field_can_not_read_stays_there_and_is_told(make: Make, label: str, typed_text: str, said: str) -> None:
    bench = make()
    define, field = bench.define, bench.define.fields[label]
    before = {name: widget.value for name, widget in define.fields.items()}
    field.value = typed_text
    assert html.escape(said) in define.fields_problem.value
    assert field.value == typed_text
    assert "hfta-wrong" in field._dom_classes
    assert bench.train_view.buttons["train"].disabled
    assert bench.plan_view.sentence.value.endswith(f"No plan yet: see {field.description} above.</span>")
    assert "= " not in define.summary("")  # which is asked for all the same
    field.value = before[label]
    assert define.fields_problem.value == ""
    assert {name: widget.value for name, widget in define.fields.items()} == before
    assert not bench.train_view.buttons["train"].disabled


def test_several_wrong_fields_are_all_told(make: Make) -> None:
    define = make().define
    define.fields["epochs"].value, define.fields["seed"].value = "x", "y"
    assert define.fields_problem.value.count("role=") == 2
    define.fields["epochs"].value = " 1e3 "
    assert define.definition().options["epochs"] == 1000
    assert define.fields_problem.value.count("role=") == 1


@pytest.mark.parametrize("way", ["auto", "always", "never"])
def test_compiling_is_chosen_beside_precision(make: Make, way: str) -> None:
    bench = make(compile=way)
    assert bench.define.fields["compile"].value == way
    assert bench.study.compile == way
    bench.define.fields["compile"].value = "never"
    assert bench.study.compile == "never"
    first = [w.description for w in bench.define.children[0].children]
    assert first == ["family", "data", "epochs", "batch size", "patience", "folds", "data seed", "device", "precision"]


def test_rare_fields_are_folded_and_their_line_says_what_is_not_usual(make: Make) -> None:
    bench = make()
    advanced = bench.define.advanced
    assert not advanced.head.unfolded
    assert advanced.head.summary == "all as usual"
    bench.define.fields["dtype"].value = "float64"
    bench.define.fields["validate_every"].value = "5"
    assert advanced.head.summary == "validate every 5, dtype float64, the rest as usual"
    bench.define.fields["capacity"].value = "most"
    bench.planned()
    assert advanced.head.unfolded, "a field that is wrong is to be seen"
    assert make(dtype="float64").define.advanced.head.summary == "dtype float64, the rest as usual"
    rare = {w.description for w in bench.define.advanced.children[1].children[0].children}
    assert {"dtype", "padding", "members per array", "checkpointing", "compile"} <= rare


def test_a_number_is_read_in_any_notation_and_refused_out_of_its_range() -> None:
    field = fields.number("x", 2.5, lambda v: v > 0, "numbers above 0", "A hint", "none")
    assert field.meaning == 2.5
    field.value = "1e-1"
    assert (field.meaning, field.error) == (0.1, "")
    field.value = ""
    assert (field.meaning, field.error) == (None, "")
    for text in ("0", "nan", "inf", "much"):
        field.value = text
        assert field.error == f"not a number; got '{text}'; accepted: numbers above 0, or nothing for none"
