"""Views of memory in graphs for a compiler: view operations, never `as_strided`, which ends a fusion."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, fx

import hfta_nb as hfta
from benchmarks.suite.tasks import Feed, inputs, task
from hfta_nb.engine.distances import Change
from hfta_nb.engine.eager.gradients import Arguments
from hfta_nb.engine.replay.inductor import compile as compiling
from hfta_nb.engine.replay.inductor import decide as deciding
from hfta_nb.engine.replay.inductor import to_fx
from hfta_nb.engine.replay.inductor.early_draws import drawn_first
from hfta_nb.engine.replay.inductor.norm_overloads import said
from hfta_nb.engine.replay.inductor.to_fx import Graph
from hfta_nb.engine.replay.inductor.view_chain import view_chain
from hfta_nb.engine.replay.source import Source
from hfta_nb.engine.replay.trace import BufferView, Instruction, NotRecordableError
from tests.contract.test_compiling import _array, _mlp, _norms, _train, needs_compiler, quiet

_aten = torch.ops.aten
MODELS = ["pointnet_cls", "transformer", "bert", "resnet18", "dcgan", "mobilenet_v3_large"]


def _place(tensor: Tensor, storage: int = 0) -> BufferView:
    return BufferView(storage, tuple(tensor.shape), tensor.stride(), tensor.storage_offset(), tensor.dtype)


def _changed(view: Tensor, draw: random.Random) -> Tensor:
    """The view after one view operation at random."""
    axis = draw.randrange(view.dim()) if view.dim() else 0
    size = view.size(axis) if view.dim() else 1
    begin = draw.randrange(size)
    if not view.dim() or (kind := draw.randrange(6)) == 0:
        return view.unsqueeze(draw.randint(0, view.dim()))
    if kind == 1:
        return view.permute(draw.sample(range(view.dim()), view.dim()))
    if kind == 2:
        return view.narrow(axis, begin, draw.randint(1, size - begin))
    if kind == 3:
        return view.select(axis, begin)
    if kind == 4:
        return view[(*[slice(None)] * axis, slice(begin, None, draw.randint(1, 3)))]
    return view.expand([3 if i == axis and n == 1 else n for i, n in enumerate(view.shape)])


@pytest.mark.parametrize("seed", range(4))
def test_views_of_views_are_chains_of_view_operations(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(300):
        sizes = [draw.randint(1, 6) for _ in range(draw.randint(1, 4))]
        offset = draw.choice([0, 3])
        base = torch.arange(offset + int(torch.tensor(sizes).prod()))[offset:].view(sizes)
        base = base.permute(draw.sample(range(len(sizes)), len(sizes)))
        view = base
        for _ in range(draw.randint(0, 5)):
            view = _changed(view, draw)
        chain = view_chain(_place(base), _place(view))
        assert chain is not None, (_place(base), _place(view))
        found = base
        for function, args in chain:
            found = function(found, *args)
        assert torch.equal(found, view)
        assert found._is_view() or found is base  # so that it can be written to


@pytest.mark.parametrize(
    ("base", "view"),
    [
        (torch.arange(6), torch.arange(6).unfold(0, 3, 1)),
        (torch.arange(12).view(3, 4)[:, :2], torch.arange(12).view(3, 4)[1:, :2]),
        (torch.arange(6)[2:], torch.arange(6)),
    ],
    ids=["windows that overlap", "memory with gaps", "more than the memory"],
)
def test_other_views_have_none(base: Tensor, view: Tensor) -> None:
    assert view_chain(_place(base), _place(view)) is None


def test_a_view_without_a_chain_is_strided() -> None:
    x = torch.arange(6.0)
    call = Instruction(_aten.mul.Tensor, (_place(x), 2), {}, (_place(x, 1),), (1,), frozenset())
    windows = _place(x.unfold(0, 3, 1), 1)
    graph = Graph([call], {0: x}, {}, [windows])
    assert _strided(graph)
    assert torch.equal(graph.module(x)[0], (x * 2).unfold(0, 3, 1))


def _sources(name: str, block_size: int, dtype: torch.dtype) -> list[Source]:
    """The recorded steps of two members of a model of the benchmarks."""
    small = task(name, "cpu", quick=True)
    array = hfta.fuse([small.member(seed) for seed in range(2)])
    array.block_size, array.strategy, array.compiling = block_size, "fixed", "never"
    x, y = Feed(small, torch.device("cpu"))(0)
    for update in small.updates(dict(array.named_parameters())):
        for _ in range(4):
            array.zero_grad()
            with torch.autocast("cpu", dtype, enabled=dtype is not torch.float32):
                only = update.trains if small.phases else None
                array.backward(update.loss, Arguments(inputs(x), update.words), y, only=only)
    return [entry.program.source for entry in array._calls.steps]


def _graph(source: Source) -> Graph:
    draws, calls = drawn_first(said(source.calls))
    made = {r.storage: r for _, c in draws for r in c.results if r is not None and r.storage in c.makes}
    return Graph(calls, source.there, made, [*source.outputs, *(place for place, _ in source.gradients)])


def _strided(graph: Graph) -> list[fx.Node]:
    return [node for node in graph.module.graph.nodes if node.target is _aten.as_strided.default]


def _run(graph: Graph) -> Sequence[Tensor]:
    generator = torch.Generator().manual_seed(0)
    places = [(graph.geometry(given), given) for given in graph.inputs]
    given = [
        value.clone() if isinstance(value, Tensor) else torch.rand(p.size, generator=generator).to(p.dtype)
        for p, value in places
    ]
    with torch.no_grad():
        return [*graph.module(*given), *given]


@pytest.mark.each("name")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("block_size", [2, 1])
@pytest.mark.parametrize("name", MODELS)
def test_graphs_of_models_have_no_strided_views_and_the_same_bits(
    name: str, block_size: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = _sources(name, block_size, dtype)
    assert sources
    for source in sources:
        graph = _graph(source)
        assert not _strided(graph)
        with monkeypatch.context() as patch:
            patch.setattr(to_fx, "view_chain", lambda base, place: None)
            strided = _graph(source)
        assert _strided(strided)
        pairs = list(zip(_run(graph), _run(strided), strict=True))
        assert all(torch.equal(mine, other) for mine, other in pairs)


def _bytes(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> int:
    """The bytes that the compiler says its kernels access; none is compiled."""
    from torch._inductor.graph import GraphLowering

    counted: list[int] = []

    def count(self: GraphLowering) -> None:
        self.codegen()
        counted.append(self.count_bytes()[0])
        raise RuntimeError("counted")

    examples = compiling._examples([graph.geometry(given) for given in graph.inputs], torch.device("cpu"))
    with monkeypatch.context() as patch:
        patch.setattr(GraphLowering, "compile_to_module", count)
        with pytest.raises(Exception, match="counted"):
            compiling._compiled(graph.module, examples)
    return counted[0]


@pytest.mark.long
@needs_compiler
@quiet
def test_the_compiler_counts_fewer_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    [source] = _sources("pointnet_cls", 2, torch.bfloat16)
    views = _bytes(_graph(source), monkeypatch)
    monkeypatch.setattr(to_fx, "view_chain", lambda base, place: None)
    assert views < 0.9 * _bytes(_graph(source), monkeypatch)


@pytest.mark.parametrize("build", [_mlp, _norms])
@pytest.mark.parametrize("block_size", [3, 1])
def test_a_graph_writes_gradients_to_their_places(build: Any, block_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    outputs: list[int] = []

    def uncompiled(module: fx.GraphModule, examples: list[Tensor]) -> Callable[..., Any]:
        memory = [example.untyped_storage()._cdata for example in examples]
        assert len(set(memory)) == len(memory)
        return lambda *given: (found := module(*given), outputs.append(len(found)))[0]

    monkeypatch.setattr(compiling, "_compiled", uncompiled)
    array = _array(build)
    array.block_size = block_size
    _train(array, 4)
    program = next(iter(array._calls.steps)).program
    source, restore = program.source, deciding._saved(program.source)
    # `_outcome` fills the places with NaNs first.
    expected = deciding._outcome(source, program.run, restore)
    found = deciding._outcome(source, compiling.Compiled(source), restore)
    assert outputs == [len(source.outputs)]
    assert found.keys() == expected.keys()
    for name, value in found.items():
        pair = [v.after if isinstance(v, Change) else v for v in (value, expected[name])]
        assert torch.allclose(*pair, rtol=0, atol=1e-12)


def test_a_step_that_reads_the_memory_of_its_gradients_is_not_written_as_a_graph() -> None:
    x = torch.arange(6.0)
    call = Instruction(_aten.mul.Tensor, (_place(x), 2), {}, (_place(x, 1),), (1,), frozenset())
    with pytest.raises(NotRecordableError, match="reads the memory of its gradients"):
        Graph([call], {0: x}, {}, [], [(_place(x, 1), x)])
