"""Compiled steps: equal results, used if they are faster or requested, otherwise a reason is given."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hfta_nb as hfta
from hfta_nb.engine.array import FusedArray
from hfta_nb.engine.array.access import fuse_preallocated
from hfta_nb.engine.kernels.strategy.timing_cache import kept
from hfta_nb.engine.padded import unlike
from hfta_nb.engine.replay.inductor import compile as compiling
from hfta_nb.engine.replay.inductor import decide as deciding
from hfta_nb.engine.replay.source import Source
from hfta_nb.errors import FusionError
from tests.training import train

MEMBERS = 3
needs_compiler = pytest.mark.skipif(not any(map(shutil.which, ("g++", "clang++", "c++"))), reason="no compiler")
quiet = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


@pytest.fixture(autouse=True)
def _own_times(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HFTA_NB_CACHE", str(tmp_path))


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 4))


def _cnn() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 2, 3)), nn.Conv2d(1, 4, 2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(48, 4)
    )


def _array(build: Any = _mlp, dtype: torch.dtype = torch.float64) -> FusedArray:
    torch.manual_seed(0)
    return hfta.fuse([build().to(dtype) for _ in range(MEMBERS)], [1, 2, 3])


def _batch(number: int, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(number)
    return torch.randn(5, 6, generator=generator, dtype=dtype), torch.randint(0, 4, (5,), generator=generator)


def _train(array: FusedArray, steps: int) -> torch.Tensor:
    return train(array, map(_batch, range(steps)))


def _notes(array: FusedArray) -> list[str]:
    table = array.explain()
    return [how for how in table["how"][table["function"] == "backward"] if "compiled" in how]


class Drawing(nn.Module):
    """Draws by shape alone, and into a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 4)
        self.noise: torch.Tensor
        self.register_buffer("noise", torch.zeros(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.dropout(self.first(x), 0.2)
        self.noise.normal_()
        x = x + torch.randn_like(x) * 0.1 + self.noise
        found: torch.Tensor = self.last(nn.functional.dropout(x, 0.3))
        return found


class Counting(nn.Module):
    """Writes to parts of a buffer that overlap."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(6, 4)
        self.sums: torch.Tensor
        self.register_buffer("sums", torch.zeros(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.sums[:4] += x.detach().mean(0)[:4]
        self.sums[2:] *= 0.5
        found: torch.Tensor = self.last(x + self.sums)
        return found


class Frozen(nn.Module):
    """Batch norm that keeps its statistics in training, and one without any."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.fixed = nn.Linear(6, 8), nn.BatchNorm1d(8)
        self.free, self.last = nn.BatchNorm1d(8, track_running_stats=False), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        norm = self.fixed
        x = nn.functional.batch_norm(self.first(x), norm.running_mean, norm.running_var, norm.weight, norm.bias)
        found: torch.Tensor = self.last(self.free(x))
        return found


def _norms() -> nn.Module:
    images = nn.Unflatten(1, (1, 2, 3)), nn.Conv2d(1, 4, 2, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout2d(0.4)
    vectors = nn.Flatten(), nn.Linear(48, 8), nn.BatchNorm1d(8, affine=False), nn.ReLU(), nn.Dropout(0.5)
    return nn.Sequential(*images, *vectors, nn.Linear(8, 4))


def _attention() -> nn.Module:
    block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, batch_first=True)
    return nn.Sequential(nn.Unflatten(1, (2, 3)), nn.Linear(3, 8), block, nn.Flatten(), nn.Linear(16, 4))


def _same(array: FusedArray, other: FusedArray) -> None:
    """Parameters and buffers to rounding, the members' random streams to the bit."""
    for mine, theirs in ((array.arenas, other.arenas), (array.buffer_arenas, other.buffer_arenas)):
        for a, b in zip(mine, theirs, strict=True):
            assert torch.allclose(a.data, b.data, rtol=0, atol=1e-12)
    for state, expected in zip(array.generators.states, other.generators.states, strict=True):
        assert torch.equal(state["cpu"], expected["cpu"])


def _alone(build: Any, member: int, steps: int) -> tuple[torch.Tensor, nn.Module]:
    """What a member does by itself: its losses, and what it is then."""
    torch.manual_seed(0)
    model = [build().double() for _ in range(MEMBERS)][member]
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1), []
    torch.manual_seed(member + 1)
    for number in range(steps):
        x, y = _batch(number)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        losses.append(loss.detach())
        optimizer.step()
    return torch.stack(losses), model


@pytest.mark.each("build")
@pytest.mark.parametrize("build", [_mlp, _cnn, _norms, _attention, Drawing, Counting, Frozen])
@pytest.mark.parametrize("block_size", [MEMBERS, 2])
def test_a_recorded_step_is_a_graph_of_the_same_numbers(
    build: Any, block_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The graph runs as it is: what is compiled is another test's."""
    monkeypatch.setattr(compiling, "_compiled", lambda module, examples: module)
    array, plain = _array(build), _array(build)
    array.compiling = "always"
    array.block_size = plain.block_size = block_size
    losses = _train(array, 8)
    assert torch.allclose(losses, _train(plain, 8), rtol=0, atol=1e-12)
    _same(array, plain)
    assert next(iter(array._calls.steps)).program.decision.compiled is not None
    for member in range(MEMBERS):
        expected, model = _alone(build, member, 8)
        assert torch.allclose(losses[:, member], expected, rtol=0, atol=1e-12)
        mine = [rows[member] for rows in array.buffers()]
        for buffer, value in zip(mine, model.buffers(), strict=True):
            assert torch.allclose(buffer, value, rtol=0, atol=1e-12)


class Choosing(nn.Module):
    """Draws from what it has computed."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.last(x)
        return found * torch.bernoulli(torch.sigmoid(found).detach())


def test_a_step_that_draws_from_what_it_has_computed_is_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling.shutil, "which", lambda name: name)
    array, plain = _array(Choosing), _array(Choosing)
    array.compiling = "always"
    assert torch.equal(_train(array, 6), _train(plain, 6))
    _same(array, plain)
    assert _notes(array) == ["not compiled: it draws random numbers from what it has computed"]


def _kinds() -> list[nn.Module]:
    """Members of several widths, of which each has its own activation."""
    torch.manual_seed(0)
    made = [(8, nn.ReLU()), (6, nn.Tanh()), (8, nn.GELU())]
    return [nn.Sequential(nn.Linear(6, width), kind, nn.Linear(width, 4)).double() for width, kind in made]


@pytest.mark.long
@needs_compiler
@quiet
def test_members_with_their_own_activations_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds: list[str] = []
    asked = unlike.by_kind
    monkeypatch.setattr(unlike, "by_kind", lambda x, own, names: (kinds.append(names), asked(x, own, names))[1])
    compiled, plain = (fuse_preallocated(_kinds(), [1, 2, 3], "first") for _ in range(2))
    compiled.compiling = "always"
    assert torch.allclose(_train(compiled, 8), _train(plain, 8), rtol=0, atol=1e-12)
    program = next(iter(compiled._calls.steps)).program
    assert program.decision.compiled is not None
    assert set(kinds) == {"relu,tanh,gelu"}


@pytest.mark.long
@needs_compiler
@quiet
def test_always_compiles_and_is_what_it_would_be() -> None:
    compiled, plain = _array(), _array()
    compiled.compiling = "always"
    expected = _train(plain, 12)
    assert torch.allclose(_train(compiled, 12), expected, rtol=0, atol=1e-12)
    program = next(iter(compiled._calls.steps)).program
    assert program.decision.compiled is not None
    assert len(_notes(compiled)) == 1
    assert _notes(compiled)[0].startswith("compiled in ")
    # What was measured is known to the next array, which decides by it.
    other = _array()
    other.compiling, other.settings.planned_steps = "auto", 1e12
    assert torch.allclose(_train(other, 12), expected, rtol=0, atol=1e-12)
    note = _notes(other)[0]
    assert note.startswith(("not compiled: compiled it took", "compiled in", "not compiled: compiled in"))


@pytest.mark.long
@needs_compiler
@quiet
def test_gradients_that_are_there_are_added_to() -> None:
    compiled, plain = _array(), _array()
    compiled.compiling = "always"
    for array in (compiled, plain):
        _train(array, 4)
        for number in (7, 8):  # nobody forgets the gradients in between
            array.backward(nn.functional.cross_entropy, *_batch(number))
    for p, q in zip(compiled.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(p.grad, q.grad, rtol=0, atol=1e-12)


@pytest.mark.parametrize("build", [_mlp, _norms, _attention])
def test_on_a_cpu_nothing_is_compiled_unless_it_was_found_to_be_faster(build: Any) -> None:
    array = _array(build)
    array.compiling, array.settings.planned_steps = "auto", 1e12
    _train(array, 5)
    assert _notes(array) == ['not compiled: on a cpu most steps are slower compiled; "always" measures this one']


KNOWN = {"replayed": 2e-3, "compiled": 1e-3, "compiling": 10.0}


@pytest.mark.parametrize(
    ("times", "steps", "pays", "why"),
    [
        (KNOWN, 10_001, True, ""),
        (KNOWN, 9_999, False, "it takes about 10 s, more than 9999 steps would save"),
        ({**KNOWN, "compiled": 3e-3}, 1e9, False, "compiled it took 3 ms, not compiled 2 ms"),
        ({**KNOWN, "compiled": None}, 1e9, False, "it gave other numbers when it was tried"),
    ],
)
def test_what_was_measured_decides(times: dict, steps: float, pays: bool, why: str) -> None:
    array = _array()
    _train(array, 4)
    source = next(iter(array._calls.steps)).program.source
    assert deciding._pays(source, times, lambda: 0.0, steps) == (pays, why)


def test_what_is_usual_on_a_device_decides_where_nothing_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(deciding.USUAL, "cpu", deciding.Usual(0.1, 0.15, 5.0))
    array = _array()
    _train(array, 4)
    source = next(iter(array._calls.steps)).program.source
    cost = 0.15 * len(source.calls)
    assert deciding._pays(source, None, lambda: 1e-2, cost / 1e-3 + 1) == (True, "")
    assert not deciding._pays(source, None, lambda: 1e-2, cost / 1e-3 - 1)[0]


def test_without_a_compiler_there_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hfta_nb.engine.replay.inductor.compile.shutil.which", lambda name: None)
    array = _array()
    array.compiling = "always"
    _train(array, 5)
    assert _notes(array) == ["not compiled: there is no C++ compiler"]


def test_on_a_gpu_without_triton_there_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch.utils._triton as triton

    monkeypatch.setattr(triton, "has_triton", lambda: False)
    monkeypatch.delattr(torch.utils, "_triton")  # as after `import torch`, which does not load it
    monkeypatch.setattr(Source, "device", torch.device("cuda", 0))
    array, plain = _array(), _array()
    array.compiling = "auto"
    assert torch.equal(_train(array, 6), _train(plain, 6))
    assert _notes(array) == ["not compiled: there is no Triton"]
    assert "recorded" in set(array.explain()["how"])


def test_a_decision_that_fails_is_not_to_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> str:
        raise RuntimeError("the driver is gone\nat line 3")

    monkeypatch.setattr(deciding, "why_not", fails)
    array, plain = _array(), _array()
    array.compiling = "always"
    assert torch.equal(_train(array, 6), _train(plain, 6))
    assert _notes(array) == ["not compiled: the driver is gone"]


@pytest.mark.long
@needs_compiler
@quiet
def test_masks_are_drawn_and_statistics_kept_as_without_a_compiler() -> None:
    compiled, plain = _array(_norms), _array(_norms)
    compiled.compiling = "always"
    assert torch.allclose(_train(compiled, 8), _train(plain, 8), rtol=0, atol=1e-12)
    _same(compiled, plain)
    assert _notes(compiled)[0].startswith("compiled in ")


@pytest.mark.parametrize("steps", [9_999, 10_001])
def test_a_run_that_is_too_short_compiles_nothing(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(compiling, "_compiled", lambda module, examples: asked.append(1) or module)
    array = _array(_norms)
    _train(array, 4)
    times = kept(torch.device("cpu"))
    times.put(f"compiled step {next(iter(array._calls.steps)).program.source.digest()}", KNOWN)
    other = _array(_norms)
    other.compiling, other.settings.planned_steps = "auto", float(steps)
    _train(other, 4)
    short = steps < KNOWN["compiling"] / (KNOWN["replayed"] - KNOWN["compiled"])
    assert bool(asked) is not short
    assert _notes(other)[0].startswith(
        f"not compiled: it takes about 10 s, more than {steps} steps would save" if short else ("compiled", "not")
    )


@pytest.mark.parametrize("trouble", ["numbers", "error", "draws", "statistics"])
def test_a_compiled_step_that_is_wrong_or_fails_is_not_used(trouble: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrong(compiling.Compiled):
        def __init__(self, source: Any) -> None:
            if trouble == "error":
                raise RuntimeError("no such kernel\nat line 3")
            super().__init__(source)
            self.source = source

        def __call__(self) -> list[torch.Tensor]:
            found = super().__call__()
            if trouble == "statistics":
                for buffer in deciding._changed(self.source):
                    buffer.add_(1)
            if trouble == "draws":
                gradients = [room.clone() for _, room in self.source.gradients]
                super().__call__()
                torch._foreach_copy_([room for _, room in self.source.gradients], gradients)
            if trouble == "numbers":
                for _, room in self.source.gradients:
                    room.add_(1.0)
            return found

    monkeypatch.setattr(compiling, "_compiled", lambda module, examples: module)
    monkeypatch.setattr(deciding, "Compiled", Wrong)
    monkeypatch.setattr(deciding, "why_not", lambda source, device: "")
    build = _norms if trouble == "statistics" else lambda: nn.Sequential(nn.Linear(6, 4), nn.Dropout(0.5))
    array, plain = _array(build), _array(build)
    array.compiling = "always"
    assert torch.equal(_train(array, 8), _train(plain, 8))
    _same(array, plain)
    what = "draws other random numbers" if trouble == "draws" else "gives other numbers"
    reason = "no such kernel" if trouble == "error" else f"compiled, the step {what}"
    [note] = _notes(array)
    assert note.startswith(f"not compiled: {reason}")


def test_an_unknown_choice_is_refused() -> None:
    with pytest.raises(FusionError, match="auto, never, always"):
        _array().compiling = "sometimes"
