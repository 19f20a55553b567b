"""The linked figures: what they show of a run, and when they are drawn."""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any

import pytest
from matplotlib.image import imread
from run_events import epoch_done, folded, learning, run_started

from hfta_nb import figures
from hfta_nb.errors import StudyError
from hfta_nb.figures import colors
from hfta_nb.figures.linked import MOST_VALUES
from hfta_nb.study import linked
from hfta_nb.ui.figure_box import FigureBox

AXES = {"lr": [1e-3, 1e-2, 1e-1], "act": ["relu", "gelu"], "seed": [0, 1]}


def learnt(epoch: int, member: int) -> float:
    return math.nan if member == 1 else learning(epoch, member)


def study_of(axes: dict[str, Any], epochs: int = 6, directory: Path = Path()) -> Any:
    """A study that has run: members learn, but for member 1, which has no finite loss."""
    start = run_started(axes, epochs)
    members = len(start.variants)
    events = [start, *(epoch_done(e, members, learnt) for e in range(1, epochs + 1))]
    made = SimpleNamespace(history=folded(events), searcher=None, data=None, directory=directory)
    made.family = SimpleNamespace(metrics_for=lambda data: {})
    made.slices = lambda: figures.slices(made.history)
    made.parallel_coordinates = lambda: figures.parallel_coordinates(made.history)
    return made


def shown(study: Any, kind: str, x: str = "", y: str = "", color_by: str = "") -> dict[str, Any]:
    return linked(study, kind, x, y, color_by)


def best(study: Any, *ids: int) -> float:
    return statistics.fmean(study.history.members[i].at_best("val_loss") for i in ids)


def test_a_line_is_a_configuration_and_the_best_is_marked() -> None:
    study = study_of(AXES)
    found = shown(study, "parallel_coordinates")
    assert [ruler["name"] for ruler in found["rulers"]] == ["lr", "act", "validation loss"]
    assert found["rulers"][0]["few"] == [[0.0, "0.001"], [0.5, "0.01"], [1.0, "0.1"]]
    assert sorted(i for line in found["lines"] for i in line["ids"]) == list(range(12))
    (line,) = (line for line in found["lines"] if line["best"])
    means = {tuple(one["ids"]): best(study, *(i for i in one["ids"] if i != 1)) for one in found["lines"]}
    assert means[tuple(line["ids"])] == min(means.values())
    assert line["at"][-1] == 0.0
    assert shown(study_of({"lr": AXES["lr"], "act": AXES["act"]}), "parallel_coordinates")["note"] == (
        "1 without a finite validation loss"
    )


def test_lines_have_the_colours_of_the_curves() -> None:
    study = study_of({"lr": AXES["lr"], "act": AXES["act"]})
    by_member = {line["ids"][0]: line["light"] for line in shown(study, "parallel_coordinates")["lines"]}
    assert by_member == {i: colors.member(i).light for i in (0, 2, 3, 4, 5)}
    by_act = {line["light"] for line in shown(study, "parallel_coordinates", color_by="act")["lines"]}
    assert by_act == {stroke.light for stroke in colors.axis("act", AXES["act"]).strokes}


def test_a_cell_is_the_mean_of_what_it_has() -> None:
    study = study_of(AXES)
    found = shown(study, "heat_map", "lr", "act")
    assert (found["columns"], found["rows"]) == (["0.001", "0.01", "0.1"], ["gelu", "relu"])
    cells = {tuple(cell["ids"]): cell for cell in found["cells"]}
    assert sorted(i for ids in cells for i in ids) == list(range(12))
    assert cells[4, 5]["text"] == f"{best(study, 4, 5):.3g}"
    assert (cells[4, 5]["column"], cells[4, 5]["row"]) == (1, 1)
    assert sum(cell["best"] for cell in found["cells"]) == 1
    with pytest.raises(StudyError, match="axis of the other direction"):
        shown(study, "heat_map", "lr", "lr")
    with pytest.raises(StudyError, match="only one axis varies"):
        shown(study_of({"lr": AXES["lr"]}), "heat_map", "lr", "lr")


def test_shares_add_up_and_the_values_of_an_axis_have_all_members() -> None:
    found = shown(study_of(AXES), "importances")
    assert sum(axis["share"] for axis in found["axes"]) == pytest.approx(1.0)
    for axis in found["axes"]:
        assert sorted(i for value in axis["values"] for i in value["ids"]) == list(range(12))


def test_neighbours_of_many_values_are_put_together() -> None:
    study = study_of({"lr": [0.001 * 1.3**i for i in range(40)], "act": AXES["act"]})
    (lr,) = (axis for axis in shown(study, "importances")["axes"] if axis["name"] == "lr")
    assert len(lr["values"]) <= MOST_VALUES
    assert " to " in lr["values"][0]["label"]
    assert len(shown(study, "heat_map", "lr", "act")["columns"]) == len(lr["values"])


def test_a_band_is_mean_and_deviation_over_seeds() -> None:
    found = shown(study_of(AXES), "curves")
    assert len(found["bands"]) == 6
    band = found["bands"][2]
    assert (band["ids"], band["label"], band["of"]) == ([4, 5], "lr=0.01, act=relu", 2)
    values = [learning(3, 4), learning(3, 5)]
    assert band["means"][2] == pytest.approx(statistics.fmean(values))
    assert band["deviations"][2] == pytest.approx(statistics.stdev(values))
    with pytest.raises(StudyError, match="one seed"):
        shown(study_of({"lr": [0.1, 0.2]}), "curves")


def test_the_box_links_draws_again_and_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = {"study": study_of(AXES, 3, tmp_path)}
    box = FigureBox(lambda: now["study"])
    box.kind.value = "heat_map"
    assert (box.first.value, box.second.value) == ("lr", "act")  # not the seed
    assert (box.linked.layout.display, box.image.layout.display) == ("", "none")
    before = box.linked.data
    now["study"] = study_of(AXES, 6, tmp_path)
    box.follow()
    assert box.linked.data["kind"] == "heat_map" != before
    assert box.linked.data != before
    path = box.save()
    assert path == tmp_path / "figure_heat_map.png"
    assert imread(path)[0, 0, :3].tolist() == [1.0, 1.0, 1.0]  # a white ground
    assert 'download="figure_heat_map.png"' in box.written.value
    box.kind.value = "slices"
    assert (box.linked.layout.display, box.image.layout.display, box.linked.data) == ("none", "", {})
    box.kind.value = "parallel_coordinates"
    drawn, box.color_by = box.linked.data, "act"
    box.follow()  # sooner than the next time, since colours differ
    assert box.linked.data != drawn


def test_what_was_chosen_last_is_shown_though_another_thread_draws(tmp_path: Path) -> None:
    began, chosen = Event(), Event()
    study = study_of(AXES, 3, tmp_path)

    def slow() -> Any:
        began.set()
        chosen.wait(0.3)  # so long as the choice does not wait
        return figures.slices(study.history)

    study.slices = slow
    box = FigureBox(lambda: study)
    thread = Thread(target=setattr, args=(box.kind, "value", "slices"))
    thread.start()
    began.wait()
    box.kind.value = "parallel_coordinates"
    chosen.set()
    thread.join()
    assert (box.linked.layout.display, box.image.layout.display) == ("", "none")


def test_what_cannot_be_drawn_or_written_says_why(tmp_path: Path) -> None:
    box = FigureBox(lambda: study_of({"lr": AXES["lr"], "act": AXES["act"]}, 3, tmp_path / "gone"))
    box.kind.value = "curves"
    assert "one seed" in box.note.value
    assert box.linked.layout.display == "none"
    box.kind.value = "parallel_coordinates"
    assert box.note.value == ""
    assert box.save() is None
    assert 'role="alert"' in box.note.value
