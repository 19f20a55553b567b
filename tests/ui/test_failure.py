"""An error on the screen: what happened, what to do, the user's own lines; the rest is folded."""

from __future__ import annotations

import traceback
from pathlib import Path

import torch

from hfta_nb.ui.failure import MOST_CALLS, failure, mend, own_frames


def loss(output: torch.Tensor) -> torch.Tensor:
    return output + torch.zeros(3)  # [2] and [3]


def raised() -> str:
    """The traceback of an error in a loss of the user's that torch's and our functions lie around."""
    try:
        try:
            torch.nn.Sequential(Own())(torch.zeros(2))
        except RuntimeError as error:
            raise ValueError("in ours") from error
    except ValueError as error:
        return "".join(traceback.format_exception(error))


class Own(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return loss(x)


def test_own_lines_are_those_of_the_cause_without_torch_s() -> None:
    found = own_frames(raised())
    assert {Path(frame.file).name for frame in found} == {Path(__file__).name}
    assert [frame.function for frame in found] == ["raised", "forward", "loss"]
    assert found[-1].code == "return output + torch.zeros(3)  # [2] and [3]"
    assert own_frames("ValueError: no") == []
    gone = own_frames('  File "/gone/a.py", line 3, in f\n  File "/gone/b.py", line 4, in g\nE: e')
    assert [(frame.line, frame.code) for frame in gone] == [(3, ""), (4, "")]


def test_first_what_and_what_to_do_then_the_source_then_the_rest_folded() -> None:
    own = own_frames(raised())
    made = failure("The run failed.", "E: <b>", mend(own), own, raised())
    texts = ["The run failed.", "E: &lt;b&gt;", "Change this line, and run", "return loss(x)", "in loss"]
    places = [made.index(text) for text in [*texts, "torch.zeros(3)", "<details><summary>", "torch/nn/modules"]]
    assert places == sorted(places)
    assert made.count("hfta-source-raised") == 1
    assert "<details open" not in made


def test_an_error_elsewhere_has_no_source_and_long_ones_show_the_last_calls() -> None:
    assert mend([]) == ""
    assert (
        failure("The run failed.", "E", "", [], "")
        == '<div role="alert"><div><strong>The run failed.</strong> E</div></div>'
    )
    many = failure("", "", "", own_frames(raised()) * 5, "")
    assert many.count("<code>") == MOST_CALLS - 1
