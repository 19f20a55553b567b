"""Calls in a child process: a call that ends the child does no harm; both outcomes are remembered."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from hfta_nb.engine.kernels.strategy import sandbox, timing_cache
from hfta_nb.engine.kernels.strategy.kernel_variants import Operand
from hfta_nb.engine.kernels.strategy.sandbox import Tried, known_safe, survives

CPU = torch.device("cpu")
_aten = torch.ops.aten


def _last(*size: int, dtype: torch.dtype = torch.float32) -> Operand:
    """Images with channels last."""
    samples, channels, height, width = size
    return Operand(
        (samples, channels, height, width), (channels * height * width, 1, width * channels, channels), dtype
    )


def _backward(channels: int, kernel: int = 1, stride: int = 2, dtype: torch.dtype = torch.float32) -> Tried:
    size, pad = 8, kernel // 2
    made = (size + 2 * pad - kernel) // stride + 1
    weight = Operand((8, channels, kernel, kernel), (channels * kernel**2, kernel**2, kernel, 1), dtype)
    images = _last(2, 8, made, made, dtype=dtype), _last(2, channels, size, size, dtype=dtype)
    how = [stride, stride], [pad, pad], [1, 1], False, [0, 0], 1, [True, True, False]
    return Tried(_aten.convolution_backward.default, (*images, weight, None, *how))


FATAL = _backward(4)
"""Where oneDNN writes past its memory, if it may not use AVX-512."""
HARMLESS = Tried(_aten.relu.default, (Operand((3,), (1,), torch.float32),))
REFUSED = Tried(_aten.mm.default, (Operand((3,), (1,), torch.float32),) * 2)


@pytest.fixture(autouse=True)
def _nothing_known() -> Iterator[None]:
    timing_cache._kept.cache_clear()
    yield
    timing_cache._kept.cache_clear()


@pytest.fixture(params=["kept", "off"])
def remembered(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether later processes know as well."""
    on = request.param == "kept"
    monkeypatch.setenv("HFTA_NB_CACHE", str(tmp_path) if on else "off")
    monkeypatch.setattr(sandbox, "known_safe", lambda call: False)
    return on


class _Children:
    """Stands for children: the n-th ends in the n-th way."""

    def __init__(self, *ends: Any) -> None:
        self.ends, self.asked = list(ends), 0

    def __call__(self, calls: Any) -> Any:
        self.asked += 1
        return self.ends.pop(0)


def _answers(calls: list[Tried], remembered: bool) -> list[bool]:
    """Of this process, and of a later one."""
    first = survives(calls, CPU)
    assert survives(calls, CPU) == first
    if remembered:
        timing_cache._kept.cache_clear()
    return [first, survives(calls, CPU)]


def test_a_child_runs_what_is_harmless_or_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HFTA_NB_CACHE", str(tmp_path))
    monkeypatch.setattr(sandbox, "known_safe", lambda call: False)
    assert survives([HARMLESS, REFUSED, _backward(8)], CPU)
    monkeypatch.setattr(sandbox, "_child", _Children())
    assert _answers([HARMLESS], True) == [True, True]
    assert _answers([REFUSED, HARMLESS], True) == [True, True]


def test_a_child_is_asked_again_until_it_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child = tmp_path / "child.py"
    child.write_text(COUNTER)
    monkeypatch.setattr(sandbox, "_CHILD", child)
    asked = [sandbox._child([HARMLESS]) for _ in range(4)]
    assert asked == [(0, ["0", "1", "end"]), (0, ["0", "2", "end"]), (0, ["0", "1", "end"]), (0, ["0", "2", "end"])]
    monkeypatch.setattr(sandbox, "_TIME_S", 0.3)
    child.write_text("import time\ntime.sleep(60)\n")
    sandbox._CHILDREN.close()
    assert sandbox._child([HARMLESS]) == (None, [])
    child.write_text(COUNTER)
    assert sandbox._child([HARMLESS]) == (0, ["0", "1", "end"])
    sandbox._CHILDREN.close()


COUNTER = """
import os, sys
for number in (1, 2):  # then it ends, like one that has not been asked for long
    sys.stdin.readline()
    os.write(1, b"0\\n%d\\nend\\n" % number)
"""
KILLER = """
import os, signal, sys
data = sys.stdin.readline()
os.write(1, b"0\\n1\\n")
os.kill(os.getpid(), signal.{signal})
"""


@pytest.mark.parametrize("signal", ["SIGSEGV", "SIGABRT"])
def test_a_call_that_ends_the_child_is_remembered_and_no_other(
    signal: str, remembered: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = tmp_path / "child.py"
    child.write_text(KILLER.format(signal=signal))
    monkeypatch.setattr(sandbox, "_CHILD", child)
    assert _answers([HARMLESS, FATAL], remembered) == [False, False]
    monkeypatch.setattr(sandbox, "_child", later := _Children((0, ["0", "end"])))
    assert not survives([FATAL], CPU)
    assert survives([HARMLESS], CPU)  # which nobody knew yet
    assert later.asked == 1


@pytest.mark.parametrize("end", [(None, []), (-9, ["0"]), (1, []), (0, ["0"])], ids=["time", "killed", "torch", "cut"])
def test_what_could_not_be_found_out_is_asked_again_by_another_process(
    end: Any, remembered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox, "_child", children := _Children(end, (0, ["0", "end"])))
    assert _answers([HARMLESS], remembered) == [False, remembered]
    assert children.asked == 1 + remembered


@pytest.mark.parametrize("error", [OSError(), subprocess.TimeoutExpired("child", 1.0)])
def test_a_child_that_can_not_be_had_is_no_error(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def started(*args: Any, **kwargs: Any) -> Any:
        raise error

    sandbox._CHILDREN.close()
    monkeypatch.setattr(subprocess, "Popen", started)
    assert not survives([FATAL], CPU)


def test_what_is_no_json_is_no_error() -> None:
    assert sandbox._child([Tried(_aten.relu.default, (object(),))]) == (None, [])


def test_on_a_gpu_and_of_what_is_known_no_child_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "_child", _Children())
    assert survives([FATAL], torch.device("cuda"))
    assert survives([_backward(8), _backward(4, kernel=3), _backward(4, stride=1)], CPU)


@pytest.mark.parametrize(
    ("call", "safe"),
    [
        (_backward(4), False),
        (_backward(12), False),
        (_backward(16), True),
        (_backward(3, stride=1), True),
        (_backward(3, kernel=3), True),
        (_backward(16, dtype=torch.bfloat16), False),
        (Tried(_aten.convolution.default, (*_backward(4).args[1:3], None, *_backward(4).args[4:10])), False),
        (Tried(_aten.convolution.default, (*_backward(4, 3).args[1:3], None, *_backward(4, 3).args[4:10])), True),
        (Tried(_aten.mkldnn_convolution.default, (*_backward(4).args[1:3], None, [0, 0], [2, 2], [1, 1], 1)), False),
        (Tried(_aten.mkldnn_convolution.default, (*_backward(4).args[1:3], None, [0, 0], [1, 1], [1, 1], 1)), True),
    ],
)
def test_what_is_known_to_be_safe(call: Tried, safe: bool) -> None:
    assert known_safe(call) == safe


@pytest.mark.skipif(torch.backends.cpu.get_cpu_capability() != "AVX2", reason="oneDNN's fault is one of AVX2")
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's heap checker finds it each time")
def test_the_fault_of_onednn_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    code, told = sandbox._child([_backward(8), FATAL, HARMLESS])
    assert code in (-6, -11)
    assert told == ["0", "1"]
