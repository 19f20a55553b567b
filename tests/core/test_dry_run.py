"""A plan tries a forward on one batch: bugs show before training, with the user's own line first."""

from __future__ import annotations

import copy
import random
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import hfta_nb as hfta
from hfta_nb import events as ev
from hfta_nb.errors import FamilyError
from hfta_nb.errors.user_frames import UserFrame, user_frame
from hfta_nb.study import executors
from hfta_nb.train.dry_run import MOST, examples
from tests.call_log import CallLog

calls = CallLog()


class Wrong(nn.Module):
    """Right for a width of 4 alone."""

    def __init__(self, width: int = 4, rate: float = 0.1, in_features: int = 4, num_classes: int = 3) -> None:
        super().__init__()
        self.first, self.drop = nn.Linear(in_features, width), nn.Dropout(rate)
        self.last = nn.Linear(4, num_classes)
        self.width = width

    def forward(self, x: Tensor) -> Tensor:
        calls.note(self.width)
        return self.last(self.drop(self.first(x)))  # type: ignore[no-any-return]  # the line that is blamed


class Careless(Wrong):
    """Leaves settings and random streams as they should not be."""

    def forward(self, x: Tensor) -> Tensor:
        torch.set_default_dtype(torch.float64)
        torch.set_num_threads(1 + torch.get_num_threads())
        random.random()
        np.random.rand(3)
        torch.rand(3)
        return super().forward(x)


LINE = next(n for n, text in enumerate(Path(__file__).read_text().splitlines(), 1) if "the line that is blamed" in text)


@pytest.fixture(autouse=True)
def _none_called() -> None:
    calls.clear()


def study(place: Path, grid: Any, family: Any = Wrong, **more: Any) -> hfta.Study:
    return hfta.Study(family, grid, "iris", epochs=1, directory=place / "run", device="cpu", **more)


def test_a_plan_names_the_persons_own_line_first(tmp_path: Path) -> None:
    made = study(tmp_path, {"width": [4, 5], "lr": [1e-3, 1e-2]})
    made.plan(measure=False)
    assert list(calls) == []  # nor by `Study` itself
    with pytest.raises(FamilyError) as found:
        made.plan()
    message = found.value.message
    assert message.split(": ")[0].endswith(f"test_dry_run.py:{LINE}")
    assert message.split(": ", 1)[1].startswith("return self.last(self.drop(self.first(x)))")
    assert "RuntimeError: mat1 and mat2 shapes cannot be multiplied" in message
    assert "#2 width=5, lr=0.001" in message
    assert list(calls) == [4, 5]
    assert not (tmp_path / "run").exists()


def test_a_plan_of_what_is_right_is_made(tmp_path: Path) -> None:
    table = study(tmp_path, {"width": [4], "lr": [1e-3, 1e-2]}).plan()
    assert list(table["members"]) == [2]


def test_one_member_of_each_architecture_is_tried() -> None:
    def groups(*arguments: dict[str, Any]) -> Any:
        return [SimpleNamespace(arguments=arguments[:10]), SimpleNamespace(arguments=arguments[10:])]

    rates = [{"rate": i / 1000, "width": 3 + i % 2, "bias": True} for i in range(400)]
    assert [group.arguments[place]["width"] for group, place in examples(groups(*rates))] == [3, 4]
    wide = examples(groups(*({"width": i} for i in range(1, 200))))
    widths = [group.arguments[place]["width"] for group, place in wide]
    assert len(widths) == MOST
    assert widths == sorted(set(widths))
    assert (widths[0], widths[-1] > 190) == (1, True)


def test_what_a_forward_does_to_the_process_is_undone(tmp_path: Path) -> None:
    made = study(tmp_path, {"width": [4, 5]}, family=Careless)
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    before = torch.get_default_dtype(), torch.get_num_threads()
    events = list(made.forward_events())
    assert (torch.get_default_dtype(), torch.get_num_threads()) == before
    drawn = random.random(), float(np.random.rand()), float(torch.rand(1))
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    assert drawn == (random.random(), float(np.random.rand()), float(torch.rand(1)))
    assert [bool(e.reason) for e in events] == [False, True]


def test_as_a_job_it_is_told_by_events_and_nothing_is_kept(tmp_path: Path) -> None:
    handle = executors.start(study(tmp_path, {"width": [4, 5]}), kind="inline", job="try")
    assert handle.wait(60) == ev.COMPLETE
    right, wrong = handle.history.tried
    assert (right.variant, right.reason, right.file, right.line) == (0, "", "", 0)
    assert (wrong.variant, wrong.file, wrong.line, wrong.function) == (1, __file__, LINE, "forward")
    assert wrong.source.startswith("return self.last(")
    assert wrong.detail.rstrip().splitlines()[-1] == wrong.reason
    assert not (tmp_path / "run").exists()


def test_an_excerpt_has_one_batch_of_the_data_and_says_the_same(tmp_path: Path) -> None:
    whole = study(tmp_path, {"width": [4, 5], "batch_size": [8, 16]})
    part = whole.excerpt()
    assert (part.data.samples, whole.data.samples) == (16, 120)
    assert part.data.x.untyped_storage().nbytes() == 16 * 4 * 4  # type: ignore[union-attr]  # nothing else is sent
    assert [e.reason for e in part.forward_events()] == [e.reason for e in whole.forward_events()]


def test_an_excerpt_is_sent_while_its_study_runs(tmp_path: Path) -> None:
    whole = hfta.Study("mlp", {"width": [4]}, "iris", epochs=1, device="cpu", directory=tmp_path / "run")
    for _ in whole.run():
        if whole.run_state.running:
            assert not copy.deepcopy(whole.excerpt()).run_state.running
            return
    pytest.fail("the study never ran")


def test_a_loss_that_is_wrong_is_told_as_well(tmp_path: Path) -> None:
    def loss(output: Tensor, target: Tensor) -> Tensor:
        return (output - target).square().mean()

    [event] = study(tmp_path, {"width": [4]}, loss=loss).forward_events()
    assert event.function == "loss"
    assert event.source == "return (output - target).square().mean()"


def test_a_fault_within_a_library_is_told_of_the_line_that_called_it() -> None:
    assert all(not e.reason for e in hfta.Study("mlp", {"width": [4, 8]}, "iris", device="cpu").forward_events())
    module = hfta.family("mlp").build()
    with pytest.raises(RuntimeError) as error:
        module(torch.rand(1, 3, 5))
    found = user_frame(error.value)
    assert found is not None
    assert (found.file, found.source) == (__file__, "module(torch.rand(1, 3, 5))")


def test_a_line_of_a_cell_is_named_by_its_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    line = UserFrame("/somewhere/ipykernel_1/23.py", 12, "forward", "x = self.fc(x)")
    assert str(line).startswith("/somewhere/ipykernel_1/23.py:12: x = self.fc(x)")
    cells = {"/somewhere/ipykernel_1/23.py": ("Cell", "In[3]")}
    shell = SimpleNamespace(compile=SimpleNamespace(format_code_name=cells.get))
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))  # type: ignore[arg-type]
    assert str(line) == "cell In[3], line 12: x = self.fc(x)"
    assert str(UserFrame("lost.py", 3, "forward")) == "lost.py:3, in forward"
