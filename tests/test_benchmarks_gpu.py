"""`python -m benchmarks.gpu`: each part has its time, and what one leaves undone keeps no other from being done."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks import gpu


def test_parts_name_commands_that_there_are(tmp_path: Path) -> None:
    for quick in (True, False):
        found = gpu.parts("cuda", tmp_path, quick)
        assert len({p.name for p in found}) == len(found)
        assert found[0].name == "imports"
        for part in found:
            files = [w for w in part.words if w.endswith(".py")]
            assert all((gpu.ROOT / w).is_file() for w in files), part
    assert sum(p.share for p in gpu.parts("cuda", tmp_path, False)) < 2  # few take all that they may


def test_what_becomes_of_a_part() -> None:
    fine = gpu.run(gpu.Part("fine", ("-c", "print('one'); print('two')"), 1), 60)
    assert (fine.status, fine.end.split()) == (0, ["one", "two"])
    failed = gpu.run(gpu.Part("failed", ("-c", "raise SystemExit(3)"), 1), 60)
    assert failed.status == 3
    long = gpu.run(gpu.Part("long", ("-c", "print('begun', flush=True); input()"), 1), 0.0)
    assert long.status is None


def test_one_that_fails_is_told_and_the_others_are_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = [gpu.Part("bad", ("-c", "raise SystemExit(1)"), 1), gpu.Part("good", ("-c", "print(5)"), 1),
            gpu.Part("other", ("-c", "print(6)"), 1)]  # fmt: skip
    monkeypatch.setattr(gpu, "parts", lambda device, out, quick: made)
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--device", "cpu", "--out", str(tmp_path), "--parts", "bad,good"])
    assert gpu.main() == 1
    kept = json.loads((tmp_path / "gpu.json").read_text(encoding="utf-8"))
    assert [(p["name"], p["status"]) for p in kept["parts"]] == [("bad", 1), ("good", 0)]
    assert "environment" in kept
    assert "bad: failed (1)" in capsys.readouterr().out


def test_without_a_gpu_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--out", str(tmp_path)])
    assert gpu.main() == 2
    assert "--device cpu --quick" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
