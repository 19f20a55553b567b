"""Whatever computes something in a second way is compared with the first: a fault in one tensor of one member is found.

The table is every fault by every use of `hfta_nb.engine.comparison`. Gradients of `quiet` are as large as others, or
eight orders of magnitude smaller. `Study.check` has a table of its own (`test_handed_check`), as have kernels by time
(`core/test_strategy`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hfta_nb as hfta
from hfta_nb.engine.array import FusedArray
from hfta_nb.engine.eager.caller_backward import CallerBackward
from hfta_nb.engine.eager.verification import MemberVerification
from hfta_nb.engine.kernels.capture import Part
from hfta_nb.engine.kernels.strategy import autotune
from hfta_nb.engine.kernels.strategy.kernel_variants import PLAIN, KernelVariant, Operand
from hfta_nb.engine.kernels.strategy.times import Kept
from hfta_nb.engine.replay import layouts
from hfta_nb.engine.replay.inductor import compile as compiling
from hfta_nb.engine.replay.inductor import decide as deciding
from hfta_nb.engine.replay.program import Program
from hfta_nb.engine.replay.split_program import SplitProgram
from hfta_nb.errors import FusionError
from hfta_nb.optim import Adam
from hfta_nb.optim.one_pass import Chain, _reason_against
from hfta_nb.train.step import ArrayStep
from tests.contract import test_program_graphs as by_graph
from tests.contract.captured_steps import ROW, Captured, graph_of
from tests.contract.channels_last import Net, faster, fused, layout, own_times, trained
from tests.contract.replay import REPLAYED, notes
from tests.contract.test_program_graphs import StandIn, graphs
from tests.training import train

__all__ = ["faster", "graphs", "own_times"]
pytestmark = pytest.mark.filterwarnings("ignore::hfta_nb.errors.ArrayWarning")
MEMBERS, SEEDS, LOST = 3, [1, 2, 3], 1
QUIET = "quiet.weight"
aten = torch.ops.aten


class Model(nn.Module):
    """Statistics, random numbers, and a layer of which the output sees little."""

    def __init__(self, size: float, width: int = 8) -> None:
        super().__init__()
        self.loud, self.norm, self.last = nn.Linear(6, width), nn.BatchNorm1d(width), nn.Linear(width, 4)
        self.quiet, self.size = nn.Linear(6, 4), size

    def forward(self, x: Tensor) -> Tensor:
        h = F.dropout(self.norm(self.loud(x)).relu(), 0.3, self.training)
        return self.last(h) + self.size * self.quiet(x)  # type: ignore[no-any-return]


def array_of(size: float, widths: tuple[int, ...] = (8, 8, 8), dtype: torch.dtype = torch.float32) -> FusedArray:
    torch.manual_seed(0)
    return hfta.fuse([Model(size, width).to(dtype) for width in widths], SEEDS)


def batch(number: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(number)
    return torch.randn(5, 6, generator=generator, dtype=dtype), torch.randint(0, 4, (5,), generator=generator)


def zeroed(gradient: Tensor) -> None:
    gradient.zero_()


def negated(gradient: Tensor) -> None:
    gradient.neg_()


def swapped(gradient: Tensor) -> None:
    gradient.copy_(gradient.flip(-1))


def scaled(gradient: Tensor) -> None:
    gradient.mul_(1.5)


GRADIENTS: dict[str, Callable[[Tensor], None]] = {f.__name__: f for f in (zeroed, negated, swapped, scaled)}
"""Of one member; `skipped` gives a member nothing of its own."""
STATES = "stale buffer", "lost draw"
FAULTS = [*GRADIENTS, "skipped member", *STATES]


def fault_of(array: FusedArray, what: str) -> Callable[[], None]:
    """Plants a fault in what has been computed since now."""
    buffers, states = [b.clone() for b in array.buffers()], array.generators.states

    @torch.no_grad()
    def plant() -> None:
        rows = array._state.arena_of(QUIET).grad_view(QUIET)
        if what == "stale buffer":
            for now, before in zip(array.buffers(), buffers, strict=True):
                now[LOST].copy_(before[LOST])
        elif what == "lost draw":
            array.generators.put([v for m in (*array.generators.states[:LOST], states[LOST],
                                              *array.generators.states[LOST + 1 :]) for v in m.values()])  # fmt: skip
        elif what == "skipped member":
            for now, before in zip(array.buffers(), buffers, strict=True):
                now[LOST].copy_(before[LOST])
            rows[LOST].zero_()
        else:
            GRADIENTS[what](rows[LOST])

    return plant


def spoilt(array: FusedArray, what: str, run: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(*args: Any, **more: Any) -> Any:
        plant = fault_of(array, what)
        result = run(*args, **more)
        plant()
        return result

    return wrapped


def backward(array: FusedArray, steps: int) -> None:
    for number in range(steps):
        array.zero_grad()
        array.backward(F.cross_entropy, *batch(number, next(array.parameters()).dtype))


# The uses. Each makes the second way do what it should not, and tells whether it is used all the same.


def verified(size: float, what: str, patch: pytest.MonkeyPatch, widths: tuple[int, ...] = (8, 8, 8)) -> bool:
    array, own = array_of(size, widths), MemberVerification._together
    array.verify = "first"
    stream = {i: {"cpu": torch.Generator().manual_seed(seed).get_state()} for i, seed in enumerate(SEEDS)}

    def together(self: MemberVerification, result: Any) -> Any:
        found = {key: value.clone() if isinstance(value, Tensor) else value for key, value in own(self, result).items()}
        if what in ("stale buffer", "skipped member"):
            found["buffer norm.running_mean"].zero_()
        if what in ("lost draw", "skipped member"):
            found["stream of random numbers (cpu)"] = stream[self.member]["cpu"]
        if what in GRADIENTS:
            GRADIENTS[what](found[f"gradient of {QUIET}"])
        return found

    patch.setattr(MemberVerification, "_together", together)
    try:
        backward(array, 1)
    except FusionError as error:
        return "comes to another" not in str(error)
    return True


def padded(size: float, what: str, patch: pytest.MonkeyPatch) -> bool:
    return verified(size, what, patch, (8, 5, 6))


def verified_later(size: float, what: str, patch: pytest.MonkeyPatch) -> bool:
    """In the caller's backward, where gradients alone are compared."""
    array, own, repeated = array_of(size), CallerBackward._of_member, list[int]()
    array.verify = "first"

    def of_member(self: CallerBackward, found: Any) -> Any:
        values = {key: None if v is None else v.clone() for key, v in own(self, found).items()}
        (zeroed if what == "skipped member" else GRADIENTS[what])(values[f"gradient of {QUIET}"])
        return values

    again = CallerBackward._of_repeated
    patch.setattr(CallerBackward, "_of_member", of_member)
    patch.setattr(CallerBackward, "_of_repeated", lambda self, grads: repeated.append(1) or again(self, grads))
    x, y = batch(0)
    torch.stack([F.cross_entropy(out, y) for out in array(x)]).sum().backward()
    return not repeated


def replayed(size: float, what: str, patch: pytest.MonkeyPatch) -> bool:
    array = array_of(size)
    own = Program.run
    patch.setattr(Program, "run", lambda self: spoilt(array, what, own)(self))
    backward(array, 4)
    return REPLAYED in notes(array, "backward").split("; ")


def replayed_in_halves(size: float, what: str, patch: pytest.MonkeyPatch) -> bool:
    array = array_of(size)
    own = SplitProgram.run
    patch.setattr(SplitProgram, "run", lambda self: spoilt(array, what, own)(self))
    for number in range(4):
        x, y = batch(number)
        array.zero_grad()
        torch.stack([F.cross_entropy(out, y) for out in array(x)]).sum().backward()
    return REPLAYED in notes(array).split("; ")


def compiled(size: float, what: str, patch: pytest.MonkeyPatch) -> bool:
    array = array_of(size, dtype=torch.float64)

    class Wrong(compiling.Compiled):
        def __call__(self) -> list[Tensor]:
            return spoilt(array, what, super().__call__)()  # type: ignore[no-any-return]

    patch.setattr(compiling, "_compiled", lambda module, examples: module)
    patch.setattr(deciding, "Compiled", Wrong)
    patch.setattr(deciding, "why_not", lambda source, device: "")
    array.compiling = "always"
    train(array, [batch(number, torch.float64) for number in range(6)])
    return "compiled, the step" not in notes(array, "backward")


def program_graph(size: float, what: str, patch: pytest.MonkeyPatch, graphs: StandIn) -> bool:
    array, capture = array_of(size), graphs.capture

    def wrong(part: Part) -> Captured:
        graph = capture(part)
        graph.action = spoilt(array, what, graph.action)
        return graph

    patch.setattr(graphs, "capture", wrong)
    backward(array, by_graph.STEPS)
    return "captured as one graph" in notes(array, "backward")


def whole_step(size: float, what: str, patch: pytest.MonkeyPatch) -> bool:
    array = array_of(size)
    step = ArrayStep(array, [{**ROW, "weight_decay": 0.0}] * MEMBERS, F.cross_entropy, {}, 10)
    step.graph = graph_of(step)
    capture, own = step.graph.backend.capture, Program.run

    @contextmanager
    def faulty() -> Iterator[None]:
        with pytest.MonkeyPatch.context() as within:
            within.setattr(Program, "run", lambda self: spoilt(array, what, own)(self))
            yield

    def wrong(part: Part) -> Captured:
        made = capture(part)
        run = made.run

        def other() -> Any:
            with faulty():
                return run()

        made.run = other
        return made

    patch.setattr(step.graph.backend, "capture", wrong)
    for number in range(12):
        step.train(*batch(number))
    return step.graph.notes() == ["captured as one graph"]


def channels_last(size: float, what: str, patch: pytest.MonkeyPatch) -> bool:
    array, own = fused(Net, torch.device("cpu")), layouts.choose
    name = next(name for name, p in array.named_parameters() if p.ndim > 2)
    patch.setattr(f"{__name__}.QUIET", name)

    def choose(state: Any, source: Any, inputs: Any, given: Any, make: Any, *more: Any) -> Any:
        return own(state, source, inputs, given, lambda other: spoilt(array, what, make(other)), *more)

    patch.setattr(layouts, "choose", choose)
    trained(array, torch.device("cpu"))
    return layout(array) == ["images channels last 1 ms; as given 2 ms"]


class _Kernels(NamedTuple):
    """What Triton's module offers, with a fault."""

    rule: Any
    what: str
    size: float

    def bind(self, kernel: str, p: Tensor, g: Tensor, state: dict[str, Tensor], *more: Any) -> Callable[[Tensor], None]:
        values = self.rule.trial
        chain = Chain(self.rule, p, g, state, values, more[1], more[2])

        def step(skip: Tensor) -> None:
            gradient, old = g.clone(), [t.clone() for t in (p, *state.values())]
            if self.what in GRADIENTS:
                GRADIENTS[self.what](g[LOST])
            chain(skip)
            g.copy_(gradient)
            for now, before in zip((p, *state.values()), old, strict=True):
                if self.what == "skipped member" or (self.what == "stale buffer" and now is not p):
                    now[LOST].copy_(before[LOST])

        return step


def one_pass(size: float, what: str, patch: pytest.MonkeyPatch) -> bool:
    rule: Any = Adam(array_of(size))
    return not _reason_against(_Kernels(rule, what, size), rule, torch.zeros(1), rule.states(rule.trial))


def by_time(size: float, what: str, patch: pytest.MonkeyPatch) -> bool:
    def wrong(x: Tensor, y: Tensor, *, out: Tensor) -> None:
        out.copy_(x @ y)
        GRADIENTS[what](out)

    fresh, given = Kept(None, {}), Operand((32, 32), (32, 1), torch.float32)
    patch.setattr(autotune, "kept", lambda device: fresh)
    patch.setattr(autotune, "variants_of", lambda *_: [KernelVariant("wrong", lambda f: wrong)])
    patch.setattr(autotune, "_timed", lambda runs, *_: {PLAIN: 1.0, "wrong": 0.1})
    choice = autotune.choose(aten.mm.default, aten.mm.out, [given, given], {"out": given}, torch.device("cpu"))
    return choice is None or choice.chosen.name != PLAIN


OF_GRADIENTS = [*GRADIENTS, "skipped member"]
USES: dict[Any, list[str]] = {
    verified: FAULTS,
    padded: FAULTS,
    verified_later: OF_GRADIENTS,
    replayed: FAULTS,
    replayed_in_halves: FAULTS,
    compiled: FAULTS,
    program_graph: FAULTS,
    whole_step: FAULTS,
    channels_last: OF_GRADIENTS,
    one_pass: [*OF_GRADIENTS, "stale buffer"],
    by_time: list(GRADIENTS),
}
SIZED = (verified, padded, verified_later, replayed, replayed_in_halves, compiled, program_graph, whole_step)
TABLE = [
    pytest.param(use, what, size, id=f"{use.__name__}, {what}, {size}")
    for use, faults in USES.items()
    for what in faults
    for size in ((1.0, 1e-8) if use in SIZED and what not in STATES else (1.0,))
]


@pytest.mark.parametrize(("use", "what", "size"), TABLE)
@pytest.mark.usefixtures("own_times")
def test_it_is_found(
    use: Any,
    what: str,
    size: float,
    device: torch.device,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    more = [request.getfixturevalue("graphs")] if use is program_graph else []
    if use is channels_last:
        request.getfixturevalue("faster")
    assert not use(size, what, monkeypatch, *more)


@pytest.mark.parametrize("use", [verified, verified_later, replayed, replayed_in_halves, whole_step])
@pytest.mark.usefixtures("own_times")
def test_it_is_found_under_autocast(use: Any, device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a gradient of a hundredth of another's size; `test_planted_sizes` has more sizes and mutations."""
    with torch.autocast(device.type, torch.bfloat16):
        assert not use(1e-2, "negated", monkeypatch)


@pytest.mark.parametrize("use", [use for use in USES if use not in (verified_later, by_time)], ids=lambda f: f.__name__)
@pytest.mark.usefixtures("own_times")
def test_without_a_fault_the_second_way_is_taken(
    use: Any, device: torch.device, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = [request.getfixturevalue("graphs")] if use is program_graph else []
    if use is channels_last:
        request.getfixturevalue("faster")
    monkeypatch.setitem(GRADIENTS, "none", lambda gradient: None)
    assert use(1e-8, "none", monkeypatch, *more)
