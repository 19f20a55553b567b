"""Kernels chosen by time: results and user settings are unchanged, and any content of the file on disk is tolerated."""

from __future__ import annotations

import contextlib
import errno
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hfta_nb as hfta
from hfta_nb.engine.array import schedule_trial
from hfta_nb.engine.kernels.strategy import autotune, matmul_precision, times, timing_cache
from hfta_nb.engine.kernels.strategy.autotune import choose
from hfta_nb.engine.kernels.strategy.kernel_variants import PLAIN, KernelVariant, Operand, variants_of
from hfta_nb.engine.kernels.strategy.products import Copied
from hfta_nb.engine.kernels.strategy.times import Kept
from hfta_nb.engine.kernels.strategy.timing_cache import VARIABLE, kept
from hfta_nb.engine.replay.verify import close
from hfta_nb.errors import FusionError

CPU = torch.device("cpu")
MACHINE = {"device": "a processor", "torch": "2", "threads": 1}
aten = torch.ops.aten


def operand(tensor: Tensor) -> Operand:
    return Operand(tuple(tensor.shape), tensor.stride(), tensor.dtype)


@pytest.fixture
def no_memory(monkeypatch: pytest.MonkeyPatch) -> Kept:
    """Nothing was measured before."""
    fresh = Kept(None, {})
    monkeypatch.setattr(autotune, "kept", lambda device: fresh)
    return fresh


def test_other_sources_of_kernels_have_other_times(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HFTA_NB_CACHE", str(tmp_path))
    before = kept(CPU).path
    timing_cache._kept.cache_clear()
    monkeypatch.setattr(timing_cache, "sources_digest", lambda: "others")
    assert kept(CPU).path != before
    timing_cache._kept.cache_clear()


# Numbers.


def _columns(members: int, *shape: int) -> Tensor:
    """As parameters lie in an array."""
    count = torch.Size(shape).numel()
    return torch.randn(members, count + 48)[:, :count].view(members, *shape)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_copied_products_are_the_batched_product(shared: bool, turned: bool, bias: bool) -> None:
    x = torch.randn(6, 5).expand(3, 6, 5) if shared else _columns(3, 6, 5)
    weight = _columns(3, 4, 5).transpose(1, 2) if turned else _columns(3, 5, 4)
    shift = (_columns(3, 1, 4),) if bias else ()
    call = Copied(aten.baddbmm.out if bias else aten.bmm.out)
    out = _columns(3, 6, 4)
    for _ in range(2):  # again, with other values in the same memory, and in other memory
        call(*shift, x, weight, out=out)
        torch.testing.assert_close(out, x @ weight + (shift[0] if bias else 0))
        weight.mul_(2)
    other, room = torch.randn(3, 6, 5), torch.empty(3, 6, 4)
    call(*shift, other, weight, out=room)
    torch.testing.assert_close(room, other @ weight + (shift[0] if bias else 0))


@pytest.mark.parametrize("shape", [(8, 64, 10), (7, 3), (2, 3, 4, 1)], ids=str)
@pytest.mark.parametrize("name", ["_log_softmax", "_softmax"])
def test_softmax_over_short_rows(name: str, shape: tuple[int, ...]) -> None:
    x, grad = torch.randn(shape), torch.randn(shape)
    last, out = len(shape) - 1, torch.empty(shape)
    forward, backward = getattr(aten, name).default, getattr(aten, f"{name}_backward_data").default
    (way,) = variants_of(forward, [operand(x), last, False], CPU)
    true = forward(x, last, False)
    way.make(getattr(aten, name).out)(x, last, False, out=out)
    torch.testing.assert_close(out, true)
    way = next(  # the other one is compiled, where the library is there
        w
        for w in variants_of(backward, [operand(grad), operand(true), last, torch.float32], CPU)
        if "tensors" in w.name
    )
    room = "out" if name == "_log_softmax" else "grad_input"
    way.make(None)(grad, true, last, torch.float32, **{room: out})  # type: ignore[arg-type]
    torch.testing.assert_close(out, backward(grad, true, last, torch.float32))


def test_float64_and_other_axes_are_torch_s() -> None:
    x, y = (torch.randn(2, 3, 4, dtype=torch.float64) for _ in range(2))
    assert variants_of(aten.bmm.default, [operand(x), operand(y)], CPU) == []
    assert variants_of(aten._log_softmax.default, [operand(x.float()), 1, False], CPU) == []
    assert variants_of(aten._log_softmax.default, [operand(x.float().transpose(0, 1)), 2, False], CPU) == []
    assert variants_of(aten.bmm.default, [operand(x.float()), operand(y.float())], torch.device("cuda")) == []


# Choosing.


def test_the_fastest_is_chosen_and_kept(no_memory: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(8, 16)
    ways = [KernelVariant("slow", lambda f: lambda *a, **k: torch.stack([f(*a, **k) for _ in range(50)]))]
    monkeypatch.setattr(autotune, "variants_of", lambda *_: ways)
    given: Any = aten.neg.default, aten.neg.out, [operand(x)], {"out": operand(x)}, CPU
    choice = choose(*given)
    assert choice is not None
    assert choice.chosen.name == PLAIN
    assert choice.seconds["slow"] > choice.seconds[PLAIN]  # type: ignore[operator]
    assert "torch" in str(choice)
    assert "slow" in str(choice)
    (key,) = no_memory._times
    no_memory._times[key] = {PLAIN: 1.0, "slow": 0.1}  # as another process may have measured
    again = choose(*given)
    assert again is not None
    assert again.chosen.name == "slow"
    monkeypatch.setattr(autotune, "variants_of", lambda *_: [*ways, KernelVariant("another", lambda f: f)])
    newer = choose(*given)  # of another version, which has another way
    assert newer is not None
    assert set(newer.seconds) == {PLAIN, "slow", "another"}
    assert no_memory._times[key] == {PLAIN: 1.0, "slow": 0.1}


def test_numbers_that_are_not_right_are_refused(no_memory: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    def rounded(x: Tensor, y: Tensor, *, out: Tensor) -> None:
        out.copy_(x.bfloat16().float() @ y.bfloat16().float())

    x, y = torch.randn(32, 32), torch.randn(32, 32)
    monkeypatch.setattr(autotune, "variants_of", lambda *_: [KernelVariant("rounded", lambda f: rounded)])
    monkeypatch.setattr(autotune, "_timed", lambda runs, *_: {PLAIN: 1.0, "rounded": 0.1})
    choice = choose(aten.mm.default, aten.mm.out, [operand(x), operand(y)], {"out": operand(x)}, CPU)
    assert choice is not None
    assert choice.chosen.name == PLAIN
    assert choice.seconds["rounded"] is None
    assert "other numbers" in str(choice)


@pytest.mark.parametrize("asked", [True, False])
def test_where_tf32_was_asked_for_a_kernel_may_round_so(
    asked: bool, no_memory: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(x: Tensor) -> Tensor:
        return (x.view(torch.int32) & ~0x1FFF).view(torch.float32)  # 10 bits of the fraction

    def rounded(x: Tensor, y: Tensor, *, out: Tensor) -> None:
        out.copy_(cut(x) @ cut(y))

    x, y = torch.randn(32, 32), torch.randn(32, 32)
    monkeypatch.setattr(matmul_precision, "float32", lambda device: ("tf32", "none", "none") if asked else ())
    monkeypatch.setattr(autotune, "variants_of", lambda *_: [KernelVariant("rounded", lambda f: rounded)])
    monkeypatch.setattr(autotune, "_timed", lambda runs, *_: {PLAIN: 1.0, "rounded": 0.1})
    choice = choose(aten.mm.default, aten.mm.out, [operand(x), operand(y)], {"out": operand(x)}, CPU)
    assert choice is not None
    assert choice.chosen.name == ("rounded" if asked else PLAIN)
    product, other = x @ y, torch.empty(32, 32)
    rounded(x, y, out=other)
    assert close([product], [other]) is asked
    assert not close([product], [product * 1.1])


def test_a_way_that_fails_is_no_way(no_memory: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(autotune, "variants_of", lambda *_: [KernelVariant("fails", lambda f: fails)])
    x, before = torch.randn(4, 4), matmul_precision.get()
    assert choose(aten.neg.default, aten.neg.out, [operand(x)], {"out": operand(x)}, CPU) is None
    assert matmul_precision.get() == before


def test_a_kernel_that_a_library_refuses_is_tried_once(no_memory: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def refused(*args: Any, **kwargs: Any) -> None:
        tried.append(1)
        raise RuntimeError("GET was unable to find an engine to execute this computation")

    given: Any = aten.neg.default, aten.neg.out, [operand(torch.randn(4, 4))], {"out": operand(torch.randn(4, 4))}, CPU
    ways = [KernelVariant("refused", lambda f: refused), KernelVariant("works", lambda f: f)]
    monkeypatch.setattr(autotune, "variants_of", lambda *_: ways)
    choices = [choose(*given), choose(*given)]
    assert len(tried) == 1
    for choice in choices:
        assert choice is not None
        assert choice.seconds["refused"] is None
        assert choice.seconds["works"] is not None


def test_what_torch_itself_refuses_is_tried_once(no_memory: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def refused(*args: Any, **kwargs: Any) -> None:
        tried.append(1)
        raise RuntimeError("GET was unable to find an engine to execute this computation")

    monkeypatch.setattr(autotune, "variants_of", lambda *_: [KernelVariant("same", lambda f: f)])
    for _ in range(2):
        assert choose(aten.neg.default, refused, [operand(torch.randn(4))], {}, CPU) is None
    assert len(tried) == 1


# Kept on disk.


def test_times_are_kept_and_shared(tmp_path: Path) -> None:
    path = tmp_path / "deeper" / "kernels.json"
    one, two = Kept(path, MACHINE), Kept(path, MACHINE)
    one.put("a", {"torch": 1.0, "other": None})
    two.put("b", {"torch": 2.0})
    assert one.get("b") == {"torch": 2.0}  # without reading all again
    assert one.own("a")
    assert not one.own("b")
    found = Kept(path, MACHINE)
    assert found.get("a") == {"torch": 1.0, "other": None}
    assert found.get("b") == {"torch": 2.0}
    assert [p.name for p in path.parent.iterdir()] == ["kernels.json"]


def test_what_the_first_process_has_measured_holds_for_all(tmp_path: Path) -> None:
    one, two = (Kept(tmp_path / "kernels.json", MACHINE) for _ in range(2))
    assert one.put("a", {"torch": 1.0, "other": 2.0}) == {"torch": 1.0, "other": 2.0}
    assert two.put("a", {"torch": 2.0, "other": 1.0}) == {"torch": 1.0, "other": 2.0}
    assert not two.own("a")
    assert two.put("b", {"torch": 3.0}, unless=("a",)) == {"torch": 1.0, "other": 2.0}
    assert one.get("b") is None


@pytest.mark.parametrize("kept_where", ["nowhere", "in a file"])
def test_threads_that_measure_at_once_agree(kept_where: str, tmp_path: Path) -> None:
    known, ends = Kept(tmp_path / "kernels.json" if kept_where == "in a file" else None, MACHINE), []

    def measure(number: int) -> None:
        ends.append([known.put(f"shape {i}", {"torch": 1.0 + number}) for i in range(50)])

    threads = [threading.Thread(target=measure, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(end == ends[0] for end in ends)


def test_one_file_has_one_set_of_times_for_all_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "off")  # nothing on a disk on which two could agree
    timing_cache._kept.cache_clear()
    describe, found = timing_cache._processor, []

    def slowly() -> str:
        time.sleep(0.05)
        return describe()

    monkeypatch.setattr(timing_cache, "_processor", slowly)
    threads = [threading.Thread(target=lambda: found.append(kept(CPU))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    timing_cache._kept.cache_clear()
    assert len({id(one) for one in found}) == 1


def test_a_file_that_is_deleted_in_mid_run_changes_nothing_for_that_run(tmp_path: Path) -> None:
    path = tmp_path / "kernels.json"
    one, two = Kept(path, MACHINE), Kept(path, MACHINE)
    one.put("a", {"torch": 1.0})
    assert two.get("a") == {"torch": 1.0}
    path.unlink()
    later = Kept(path, MACHINE)
    assert later.put("a", {"torch": 2.0}) == {"torch": 2.0}
    later.put("b", {"torch": 3.0})
    for known in (one, two):
        assert known.get("b") == {"torch": 3.0}
        assert known.get("a") == {"torch": 1.0}
        assert known.fingerprint() == later.fingerprint()


def test_processes_that_measure_at_once_agree(tmp_path: Path) -> None:
    path, ends = tmp_path / "kernels.json", []

    def measure(number: int) -> None:
        own = Kept(path, MACHINE)
        ends.append([own.put(f"shape {i}", {"torch": 1.0 + number}) for i in range(50)])

    threads = [threading.Thread(target=measure, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(end == ends[0] for end in ends)
    assert len(path.read_bytes().splitlines()) == 51


HOLDER = """
import sys, time
from pathlib import Path
from hfta_nb.engine.kernels.strategy import times
with times._locked(Path(sys.argv[1])):
    print(flush=True)
    time.sleep(600)
"""


def test_nobody_waits_for_a_process_that_was_killed_while_it_wrote(tmp_path: Path) -> None:
    path = tmp_path / "kernels.json"
    known, ends = Kept(path, MACHINE), []
    command = [sys.executable, "-c", HOLDER, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        waiting = threading.Thread(target=lambda: ends.append(known.put("a", {"torch": 1.0})))
        waiting.start()
        waiting.join(0.2)
        assert waiting.is_alive()  # until it has written
        process.kill()
        waiting.join(30)
    assert ends == [{"torch": 1.0}]
    assert Kept(path, MACHINE).get("a") == {"torch": 1.0}


def test_a_fingerprint_stands_for_what_was_measured_before(tmp_path: Path) -> None:
    path = tmp_path / "kernels.json"
    known = Kept(path, MACHINE)
    assert known.fingerprint() == ""
    known.put("a", {"torch": 1.0})
    found = known.fingerprint()
    known.put("b", {"torch": 1.0})
    assert known.fingerprint() != found
    assert Kept(path, MACHINE).began_as(found)
    path.unlink()
    assert not known.began_as(found)
    Kept(path, MACHINE).put("a", {"torch": 1.5})
    assert not known.began_as(found)
    assert not Kept(None, MACHINE).began_as(found)
    assert not known.began_as("something else")


def test_times_that_are_of_one_process(tmp_path: Path) -> None:
    path = tmp_path / "kernels.json"
    found = Kept(path, MACHINE)
    found.put("a", {"torch": 1.0}, lasting=False)
    found.put("b", {"torch": 2.0})
    assert found.get("a") == {"torch": 1.0}
    assert Kept(path, MACHINE).get("a") is None
    assert Kept(path, MACHINE).get("b") == {"torch": 2.0}


@pytest.mark.parametrize("cut", [2, 10, 30])
def test_a_line_that_was_not_finished_is_left_out(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "kernels.json"
    known = Kept(path, MACHINE)
    known.put("a", {"torch": 1.0})
    known.put("b", {"torch": 1.0, "other": 2.0})
    path.write_bytes(path.read_bytes()[:-cut])
    found = Kept(path, MACHINE)
    assert (found.get("a"), found.get("b")) == ({"torch": 1.0}, None)
    found.put("c", {"torch": 3.0})
    again = Kept(path, MACHINE)
    assert (again.get("a"), again.get("b"), again.get("c")) == ({"torch": 1.0}, None, {"torch": 3.0})


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        '{"format": 1}',
        "\x00\x01",
        json.dumps({"format": 2, "machine": {"device": "another"}}) + '\n["a", {"torch": 1.0}]\n',
        json.dumps({"format": 2, "machine": MACHINE}) + '\n["a", {"torch": -1.0}]\n',
        json.dumps({"format": 2, "machine": MACHINE}) + '\n["a", "fast"]\n' + "[" * 100_000 + "\n",
        json.dumps({"format": 0, "machine": MACHINE}) + '\n["a", {"torch": 1.0}]\n',
    ],
)
def test_a_file_of_another_sort_is_replaced(tmp_path: Path, content: str) -> None:
    path = tmp_path / "kernels.json"
    path.write_text(content, encoding="utf-8")
    found = Kept(path, MACHINE)
    assert found.get("a") is None
    found.put("a", {"torch": 3.0})
    assert Kept(path, MACHINE).get("a") == {"torch": 3.0}


def test_a_place_that_can_not_be_written_is_no_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    found = Kept(tmp_path / "file" / "kernels.json", MACHINE)
    for name in "ab":
        assert found.put(name, {"torch": 3.0}) == {"torch": 3.0}
    assert found.get("a") == {"torch": 3.0}
    assert caplog.text.count("each process chooses anew") == 1


@pytest.mark.parametrize("space", [0, 10])
def test_a_disk_that_is_full_is_told_of(
    space: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    @contextlib.contextmanager
    def full(path: Path) -> Iterator[Any]:
        with locked(path) as file:
            write = file.write
            yield SimpleNamespace(
                fileno=file.fileno, truncate=file.truncate, write=lambda line: write(line[:space]) if space else fail()
            )

    def fail() -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    locked, path = times._locked, tmp_path / "kernels.json"
    found = Kept(path, MACHINE)
    found.put("a", {"torch": 1.0})
    monkeypatch.setattr(times, "_locked", full)
    assert found.put("b", {"torch": 2.0}) == {"torch": 2.0}
    assert "each process chooses anew" in caplog.text
    monkeypatch.setattr(times, "_locked", locked)
    assert Kept(path, MACHINE).put("b", {"torch": 3.0}) == {"torch": 3.0}
    assert found.get("b") == {"torch": 2.0}  # as it has chosen by it
    assert Kept(path, MACHINE).get("a") == {"torch": 1.0}


def test_where_it_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "off")
    assert kept(CPU).path is None
    monkeypatch.setenv(VARIABLE, str(tmp_path / "here"))
    assert (path := kept(CPU).path) is not None
    assert path.parent == tmp_path / "here"
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert (path := kept(CPU).path) is not None
    assert path.parent == tmp_path / "hfta_nb"


def test_times_hold_for_a_setting_of_tf32(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = torch.device("cuda", 0)
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
    files = set()
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=True):
        for allowed in (True, False, True):
            torch.backends.cudnn.allow_tf32 = allowed
            files.add(kept(device).path)
            assert kept(CPU).path not in files
    assert len(files) == 2


# In an array.


def test_a_step_is_replayed_as_it_was_recorded_to_round(monkeypatch: pytest.MonkeyPatch) -> None:
    array = _stepped("fixed")
    (seen,) = array._calls.steps
    assert seen.ready
    monkeypatch.setattr(matmul_precision, "float32", lambda device: ("none", "tf32", "tf32"))
    array.backward(F.cross_entropy, torch.randn(32, 64), torch.randint(0, 10, (32,)))
    assert [s.ready for s in array._calls.steps] == [True, False]


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def _stepped(strategy: str, steps: int = 6) -> hfta.FusedArray:
    torch.manual_seed(0)
    array = hfta.fuse([_mlp() for _ in range(4)])
    array.strategy = strategy
    x, y = torch.randn(32, 64), torch.randint(0, 10, (32,))
    for _ in range(steps):
        for p in array.parameters():
            p.grad = None
        array.backward(F.cross_entropy, x, y)
    return array


def test_measured_is_fixed_but_for_rounding() -> None:
    before = matmul_precision.get()
    measured, fixed, plain = _stepped("measured"), _stepped("fixed"), _stepped("fixed", steps=1)
    for p, q, r in zip(measured.parameters(), fixed.parameters(), plain.parameters(), strict=True):
        assert p.grad is not None
        assert q.grad is not None
        assert r.grad is not None
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-6)
        assert torch.equal(q.grad, r.grad)
    assert matmul_precision.get() == before
    table = measured.explain()
    assert table["how"].str.startswith("measured: ").any()
    assert not fixed.explain()["how"].str.startswith("measured: ").any()
    assert measured.select([0, 1]).strategy == "measured"
    assert fixed.select([0, 1]).strategy == "fixed"


@pytest.mark.skipif(not matmul_precision.can_switch(), reason="no other products here")
def test_the_setting_is_put_back_after_an_error() -> None:
    array = _stepped("measured")
    (seen,) = array._calls.steps
    assert seen.program is not None
    before = matmul_precision.get()

    def fails() -> None:
        assert torch.backends.mkldnn.matmul.fp32_precision == matmul_precision.ONEDNN
        raise RuntimeError("no more")

    seen.program.setting = before
    seen.program.steps[:] = [matmul_precision.switch(matmul_precision.ONEDNN), fails]
    with pytest.raises(RuntimeError, match="no more"):
        seen.program.run()
    assert matmul_precision.get() == before


def test_no_such_strategy() -> None:
    array = hfta.fuse([nn.Linear(2, 2)])
    with pytest.raises(FusionError, match="measured or fixed"):
        array.strategy = "guessed"
    assert array.strategy == "measured"


def test_tuning_leaves_the_program_of_its_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("_HOPELESS", "_PAID_STEPS"):  # no size is left out for a slow lap
        monkeypatch.setattr(schedule_trial, limit, float("inf"))
    array = hfta.fuse([_mlp() for _ in range(4)])
    x, y = torch.randn(32, 64), torch.randint(0, 10, (32,))
    found = array.tune(F.cross_entropy, x, y, budget_s=30)
    assert array.block_size in found
    assert all(p.grad is None for p in array.parameters())
    (seen,) = array._calls.steps
    assert seen.ready
    assert seen.block_size == array.block_size
