"""Steps that another process compiles while they are replayed, and that are swapped in then.

A device whose steps are compiled so is a GPU; here the CPU is one. Where no compiler is needed, the recorded graph
stands for the compiled one, and `Elsewhere` for the process.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

import hfta_nb as hfta
from hfta_nb.engine.array import FusedArray
from hfta_nb.engine.eager.state import ArrayState
from hfta_nb.engine.kernels.strategy.times import Kept
from hfta_nb.engine.kernels.strategy.timing_cache import kept
from hfta_nb.engine.replay import program_graphs
from hfta_nb.engine.replay.inductor import compile as compiling
from hfta_nb.engine.replay.inductor import decide as deciding
from hfta_nb.engine.replay.inductor.background import BackgroundCompile
from hfta_nb.train.step import ArrayStep
from tests.contract.captured_steps import CPU, MEMBERS, ROW, StandIn, assert_same, batch, graph_of

PLANNED = 1e12


class Elsewhere:
    """A process that compiles."""

    made: list[Elsewhere]

    def __init__(self, sources: Any) -> None:
        self.done, self.failure, self.seconds = False, "", 7.0
        self.count = len(sources)
        self.made.append(self)

    def is_done(self) -> bool:
        return self.done


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Elsewhere]:
    """The processes; a compiled step is the recorded graph, and looks faster."""
    monkeypatch.setenv("HFTA_NB_CACHE", str(tmp_path))
    monkeypatch.setattr(Elsewhere, "made", [], raising=False)
    monkeypatch.setattr(deciding, "BACKGROUND", {"cpu"})
    monkeypatch.setitem(deciding.USUAL, "cpu", deciding.Usual(0.5, 0.1, 1.0))
    monkeypatch.setattr(deciding, "why_not", lambda source, device: "")
    monkeypatch.setattr(deciding, "BackgroundCompile", Elsewhere)
    monkeypatch.setattr(compiling, "_compiled", lambda module, examples: module)
    monkeypatch.setattr(deciding, "_laps", lambda runs, source: [2e-3, 1e-3][: len(runs)])
    return Elsewhere.made


def _array() -> FusedArray:
    torch.manual_seed(0)
    return hfta.fuse(
        [nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, 4)).double() for _ in range(MEMBERS)],
        [1, 2, 3],
    )


def _step(compiled: bool, tuned: str = "") -> ArrayStep:
    step = ArrayStep(_array(), [ROW] * MEMBERS, nn.functional.cross_entropy, {}, 10)
    step.graph = graph_of(step)
    step.plan("auto" if compiled else "never", PLANNED, brief=False)
    step.array.settings.tuned = tuned
    return step


def _train(pair: list[ArrayStep], steps: range) -> None:
    for number in steps:
        losses = [step.train(*batch(number))["loss"] for step in pair]
        assert torch.allclose(*losses, rtol=0, atol=1e-12)


def _note(step: ArrayStep) -> str:
    [note] = step.array._calls.steps.decisions()
    return note


def test_a_captured_step_is_replayed_until_it_is_compiled_and_captured_again(elsewhere: list[Elsewhere]) -> None:
    pair = [_step(compiled=True), _step(compiled=False)]
    _train(pair, range(12))
    step, backend = pair[0], pair[0].graph.backend
    assert _note(step) == "not compiled yet: another process compiles it"
    assert step.graph.notes() == ["captured as one graph"]
    [process] = elsewhere
    [first] = backend.made
    before = first.runs
    process.done = True
    _train(pair, range(12, 24))
    assert _note(step).startswith("compiled in ")
    assert step.graph.notes() == ["captured as one graph"]
    assert len(backend.made) == 2
    assert first.runs == before
    assert backend.made[1].runs > 3
    program = next(iter(step.array._calls.steps)).program
    assert program.decision.compiled is not None
    assert len(elsewhere) == 1
    # Kept for later steps: how long the process took, and how long training waited.
    [times] = [t for t in kept(CPU).all_of("compiled step ") if "calls" in t]
    assert times["compiling"] == 7.0
    assert times["swapping"] is not None


def test_a_process_that_fails_leaves_the_step_as_it_is(elsewhere: list[Elsewhere]) -> None:
    pair = [_step(compiled=True), _step(compiled=False)]
    _train(pair, range(12))
    elsewhere[0].failure, elsewhere[0].done = "the process that compiled it ended with exit code 1", True
    _train(pair, range(12, 16))
    assert_same(*pair)
    assert _note(pair[0]) == "not compiled: the process that compiled it ended with exit code 1"
    assert len(pair[0].graph.backend.made) == 1


def test_a_compiled_step_that_gives_other_numbers_is_not_swapped_in(
    elsewhere: list[Elsewhere], monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = [_step(compiled=True), _step(compiled=False)]
    _train(pair, range(12))

    class Wrong(compiling.Compiled):
        def __call__(self) -> list[torch.Tensor]:
            return [value + 1 for value in super().__call__()]

    monkeypatch.setattr(deciding, "Compiled", Wrong)
    elsewhere[0].done = True
    _train(pair, range(12, 16))
    assert_same(*pair)
    assert _note(pair[0]).startswith("not compiled: compiled, the step gives other numbers")


def _race(monkeypatch: pytest.MonkeyPatch, **seconds: float) -> None:
    """What a compiled step takes in the blocks that are replayed, and in blocks of one; replayed, it takes 2."""

    def laps(runs: list[Any], source: Any) -> list[float]:
        return [2.0 if number == 0 else seconds[_blocks(run)] for number, run in enumerate(runs)]

    monkeypatch.setattr(deciding, "_laps", laps)


def _blocks(run: Any) -> str:
    """Of a compiled step: "one" if each product is a member's own."""
    names = {getattr(node.target, "__name__", "") for node in run._graph.graph.nodes}
    return "together" if any(name.startswith(("bmm", "baddbmm")) for name in names) else "one"


def _compiled_run(step: ArrayStep) -> Any:
    program = next(iter(step.array._calls.steps)).program
    assert program.decision.candidates == {}
    return program.decision.compiled


@pytest.mark.parametrize("fastest", ["one", "together"])
def test_blocks_of_one_and_of_all_members_are_compiled_and_the_fastest_is_used(
    elsewhere: list[Elsewhere], monkeypatch: pytest.MonkeyPatch, fastest: str
) -> None:
    _race(monkeypatch, **{"one": 1.5, "together": 1.5, fastest: 1.0})
    pair = [_step(compiled=True, tuned="measured"), _step(compiled=False)]
    _train(pair, range(12))
    [process] = elsewhere
    assert process.count == 2
    process.done = True
    _train(pair, range(12, 24))
    assert _blocks(_compiled_run(pair[0])) == fastest
    assert _note(pair[0]).endswith("(compiled in blocks of 1)") == (fastest == "one")
    assert pair[0].array.block_size == MEMBERS
    # A later run compiles the fastest alone, which the cache has.
    _race(monkeypatch, **{fastest: 1.0})
    pair = [_step(compiled=True, tuned="measured"), _step(compiled=False)]
    _train(pair, range(12))
    assert len(elsewhere) == 1
    assert _blocks(_compiled_run(pair[0])) == fastest


def test_blocks_that_were_set_are_not_raced(elsewhere: list[Elsewhere]) -> None:
    _train([_step(compiled=True), _step(compiled=False)], range(12))
    assert [process.count for process in elsewhere] == [1]


def test_all_members_together_race_blocks_of_one_that_were_faster_replayed(
    elsewhere: list[Elsewhere], monkeypatch: pytest.MonkeyPatch
) -> None:
    _race(monkeypatch, one=1.5, together=1.0)
    pair = [_step(compiled=True, tuned="measured"), _step(compiled=False)]
    pair[0].array.settings.block_size = 1
    _train(pair, range(12))
    elsewhere[0].done = True
    _train(pair, range(12, 24))
    assert _blocks(_compiled_run(pair[0])) == "together"
    assert _note(pair[0]).endswith(f"(compiled in blocks of {MEMBERS})")


@pytest.mark.parametrize("wrong", ["raises", "gives other numbers"])
def test_other_blocks_that_fail_are_left_out(
    elsewhere: list[Elsewhere], monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    _race(monkeypatch, one=1.0, together=1.5)
    pair = [_step(compiled=True, tuned="measured"), _step(compiled=False)]
    _train(pair, range(12))

    class Wrong(compiling.Compiled):
        def __call__(self) -> list[torch.Tensor]:
            found = super().__call__()
            if _blocks(self) == "one" and wrong == "raises":
                raise RuntimeError("out of memory")
            return [value + 1 for value in found] if _blocks(self) == "one" else found

    monkeypatch.setattr(deciding, "Compiled", Wrong)
    elsewhere[0].done = True
    _train(pair, range(12, 16))
    assert _blocks(_compiled_run(pair[0])) == "together"


@pytest.mark.parametrize(("steps", "count"), [(5_000, 1), (50_000, 2)])
def test_other_blocks_are_compiled_if_half_of_the_run_is_left_then(
    elsewhere: list[Elsewhere], steps: int, count: int
) -> None:
    step = _step(compiled=True, tuned="measured")
    step.array.settings.planned_steps = steps
    _train([step, _step(compiled=False)], range(12))
    assert [process.count for process in elsewhere] == [count]


def test_in_a_loop_of_ones_own_the_compiled_step_becomes_a_graph(
    elsewhere: list[Elsewhere], monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = StandIn(None)
    monkeypatch.setattr(ArrayState, "graphs", backend)
    monkeypatch.setattr(program_graphs, "PLAIN_RUNS", 2)
    array, plain = _array(), _array()
    array.compiling, array.settings.planned_steps = "auto", PLANNED
    for number in range(16):
        if number == 8:
            elsewhere[0].done = True
        losses = [a.backward(nn.functional.cross_entropy, *batch(number)) for a in (array, plain)]
        assert torch.allclose(*losses, rtol=0, atol=1e-12)
    entry = next(iter(array._calls.steps))
    assert entry.program.decision.compiled is not None
    assert entry.graphs.note == "captured as one graph"
    assert len(entry.program.graphs) == 1


def test_steps_are_timed_within_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = StandIn(None)
    monkeypatch.setattr(deciding, "backend_for", lambda source: backend)
    monkeypatch.setattr(deciding, "LAP_S", 1e-4)
    array = _array()
    for number in range(4):
        array.backward(nn.functional.cross_entropy, *batch(number))
    program = next(iter(array._calls.steps)).program
    laps = deciding._laps([program.kernel_by_kernel, program.launched], program.source)
    assert len(laps) == 2
    assert [graph.runs > 0 for graph in backend.made] == [True, True]
    assert backend.warmed == 2


def _known(tmp_path: Path) -> Iterator[tuple[Kept, dict[str, float]]]:
    times = Kept(tmp_path / "times.json", {"device": "a GPU"})
    for number, gain in enumerate((0.2, 0.4, 0.6)):
        yield times, {"replayed": 1.0, "compiled": 1 - gain, "compiling": 10.0 + number, "calls": 100.0,
                      "swapping": 1.0 + number}  # fmt: skip


def test_what_is_usual_on_a_device_is_measured_there(tmp_path: Path) -> None:
    device = torch.device("cuda", 0)
    times = Kept(tmp_path / "times.json", {"device": "a GPU"})
    assert deciding.usual(times, device) == deciding.USUAL["cuda"]
    for number, (known, one) in enumerate(_known(tmp_path)):
        known.put(f"compiled step {number}", one)
        known.put(f"compiled step {number}, in runs of about 2^9 steps", {"compiled": None})
    times.put("another thing", {"replayed": 1.0, "compiled": 0.1, "compiling": 1.0, "calls": 1.0})
    found = deciding.usual(times, device)
    assert found.gain == pytest.approx(0.4)
    assert found.compiling_s == pytest.approx(0.11)
    assert found.swapping_s == 2.0


def test_what_pays_counts_the_steps_after_compiling(elsewhere: list[Elsewhere]) -> None:
    step = _step(compiled=False)
    for number in range(5):
        step.train(*batch(number))
    source = next(iter(step.array._calls.steps)).program.source
    known = {"replayed": 2e-3, "compiled": 1e-3, "compiling": 10.0, "swapping": 1.0}
    assert deciding._pays(source, known, lambda: 0.0, 5_000 + 1_001) == (True, "")
    assert not deciding._pays(source, known, lambda: 0.0, 5_000 + 999)[0]


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.skipif(not any(map(shutil.which, ("g++", "clang++", "c++"))), reason="no compiler")
def test_a_child_process_compiles(monkeypatch: pytest.MonkeyPatch, elsewhere: list[Elsewhere], tmp_path: Path) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("HFTA_NB_CACHE", str(tmp_path / "times"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    step = _step(compiled=False)
    for number in range(5):
        step.train(*batch(number))
    source = next(iter(step.array._calls.steps)).program.source
    process = BackgroundCompile([source])
    until = time.monotonic() + 240
    while not process.is_done():
        assert time.monotonic() < until
        time.sleep(0.1)
    assert process.failure == ""
    assert process.seconds > 0
    assert any((tmp_path / "inductor").rglob("*.so"))
    counters["inductor"].clear()
    compiling.Compiled(source)()
    assert counters["inductor"]["fxgraph_cache_hit"] == 1
    assert not counters["inductor"]["fxgraph_cache_miss"]
