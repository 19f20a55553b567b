"""`hfta-nb doctor`: each part that a machine may lack, and what its lack costs."""

from __future__ import annotations

import importlib.metadata
import re
import shutil
from pathlib import Path

import pytest

from hfta_nb.cli import main
from hfta_nb.engine.kernels.native import build
from hfta_nb.records import telemetry
from hfta_nb.study import Part, machine, parts_of_machine


def found(folder: Path) -> dict[str, Part]:
    return {part.part: part for part in parts_of_machine(folder)}


def test_nothing_is_said_to_lack_where_everything_is_there(tmp_path: Path) -> None:
    parts = found(tmp_path / "not" / "there")
    assert parts["disk"].has.endswith(f"GiB free in {tmp_path}")
    assert [part for part in parts.values() if part.found and part.costs and part.part != "device"] == []
    assert all(part.costs for part in parts.values() if part.found is False)


def test_a_machine_without_compiler_room_and_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for variable, value in (("CC", ""), ("PATH", ""), ("HFTA_NB_CACHE", str(tmp_path / "cache"))):
        monkeypatch.setenv(variable, value)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda place: usage._replace(free=2**20))

    def version(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    parts = found(tmp_path)
    assert {name for name, part in parts.items() if part.found is False} == {
        *("own CPU kernels", "disk", "notebook widgets", "JupyterLab", "Optuna", "Ray", "ONNX"),
    }
    assert parts["own CPU kernels"].has.startswith("0 of 8 libraries, none (no C compiler: gcc, clang or cc")
    assert "pip install 'hfta_nb[export]'" in parts["ONNX"].remedy
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"no  own CPU kernels: 0 of 8 libraries, none .*\n    costs: results are right", shown)


def test_kernels_that_are_switched_off_say_by_what(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HFTA_NB_NATIVE", "off")
    assert build.own_kernels().available == ()
    part = found(tmp_path)["own CPU kernels"]
    assert (part.found, part.has) == (False, "0 of 8 libraries, none (HFTA_NB_NATIVE=off)")


def test_a_gpu_without_counters(monkeypatch: pytest.MonkeyPatch) -> None:
    class Counters:
        note = "no GPM: this GPU has none"

        def __enter__(self) -> Counters:
            return self

        def __exit__(self, *error: object) -> None:
            return None

        def sample(self) -> None:
            return None

    monkeypatch.setattr(telemetry, "sampler", lambda device: Counters())
    part = machine._gpm(True)
    assert (part.found, part.has) == (False, "no GPM: this GPU has none")
    monkeypatch.setattr(machine, "_version", lambda name: None)
    assert machine._triton(True).remedy == "pip install triton"
