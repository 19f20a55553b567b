"""`python -m benchmarks.gpu`: each part has a time limit, and an unfinished part does not prevent the others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import gpu
from benchmarks.suite.command import parse
from tests.polling import eventually, gone


def test_parts_name_commands_that_there_are(tmp_path: Path) -> None:
    for quick in (True, False):
        found = gpu.parts("cuda", tmp_path, quick)
        assert len({p.name for p in found}) == len(found)
        assert found[0].name == "imports"
        for part in found:
            files = [w for w in part.words if w.endswith(".py")]
            assert all((gpu.ROOT / w).is_file() for w in files), part
            if part.words[:2] == ("-m", "benchmarks"):
                words = [w if w != "cuda" else "cpu" for w in part.words[2:]]
                assert parse(words).models  # an option that is refused would end the program


def test_a_dry_run_compiles_one_step(tmp_path: Path) -> None:
    """A CPU's compiler takes a minute for each, and parts have less."""
    found = {part.name: part for part in gpu.parts("cpu", tmp_path, True)}
    [command] = json.loads(found["compile"].words[-1])
    assert command[command.index("--modes") + 1] == "ours_compiled"
    modes = [mode for part in found.values() for word in part.words for mode in word.split(",") if "compiled" in mode]
    assert [mode for mode in modes if mode.isidentifier()] == ["ours_compiled"]
    assert (
        "ours_compiled"
        in found["suite pointnet_cls x 2"].words[found["suite pointnet_cls x 2"].words.index("--modes") + 1]
    )


def test_a_dry_run_compiles_kernels_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import os; print(os.environ.get('HFTA_NB_CACHE'))"
    monkeypatch.delenv("HFTA_NB_CACHE")
    monkeypatch.setattr(gpu, "parts", lambda device, out, quick: [gpu.Part("one", ("-c", code), 1)])
    for words, folder in (([], None), (["--quick"], tmp_path / "caches" / "hfta_nb")):
        monkeypatch.setattr(sys, "argv", ["gpu.py", "--device", "cpu", "--out", str(tmp_path), *words])
        assert gpu.main() == 0
        kept = json.loads((tmp_path / "gpu.json").read_text(encoding="utf-8"))
        assert kept["parts"][0]["end"] == f"{folder}\n"


def test_what_becomes_of_a_part(tmp_path: Path) -> None:
    fine = gpu.run(gpu.Part("fine", ("-c", "print('one'); print('two')"), 1), 60, tmp_path)
    assert (fine.status, fine.end.split()) == (0, ["one", "two"])
    failed = gpu.run(gpu.Part("failed", ("-c", "raise SystemExit(3)"), 1), 60, tmp_path)
    assert failed.status == 3
    lacking = gpu.run(gpu.Part("lacking", ("-c", "print(1)"), 1, ("torch", "no_such_package")), 60, tmp_path)
    assert (lacking.status, lacking.end) == (None, "left out: no_such_package not installed")
    log = (tmp_path / "gpu.log").read_text(encoding="utf-8")
    assert "==== fine" in log
    assert "two" in log


def test_what_is_not_finished_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    code = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
print(child.pid, flush=True)
child.wait()
"""
    long = gpu.run(gpu.Part("long", ("-c", code), 1), 3.0, tmp_path)
    assert long.status is None
    child = int(long.end.split()[0])
    eventually(lambda: gone(child), "the child gone", 20.0)  # it has been told, and dies when it gets a processor


@pytest.mark.long
def test_time_that_a_part_leaves_is_for_those_after_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = [gpu.Part(name, ("-c", ""), share) for name, share in (("a", 1), ("b", 2), ("c", 1))]
    given = []

    def run(part: gpu.Part, most_s: float, out: Path) -> gpu.Outcome:
        given.append(most_s)
        return gpu.Outcome(part.name, "", 0, 0.0, "")

    monkeypatch.setattr(gpu, "parts", lambda device, out, quick: made)
    monkeypatch.setattr(gpu, "run", run)
    monkeypatch.setattr(gpu, "time", SimpleNamespace(perf_counter=lambda: 0.0))
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--device", "cpu", "--minutes", "8", "--out", str(tmp_path)])
    assert gpu.main() == 0
    assert given == [120.0, 320.0, 480.0]


@pytest.mark.long
def test_what_a_run_does_not_reach_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = [gpu.Part(name, ("-c", "print(5)"), share) for name, share in (("a", 5), ("b", 4), ("c", 1), ("d", 12))]
    monkeypatch.setattr(gpu, "parts", lambda device, out, quick: made)
    words, left = ["gpu.py", "--device", "cpu", "--out", str(tmp_path)], []
    for more in ([], ["--parts", "c,d"], ["--parts", "d"]):
        monkeypatch.setattr(sys, "argv", [*words, *more])
        assert gpu.main() == 0
        left.append(json.loads((tmp_path / "gpu.json").read_text(encoding="utf-8"))["not_reached"])
    assert left == [["c", "d"], ["d"], []]  # one that needs more than a run gets what there is
    told = capsys.readouterr().out
    assert 'go on: python -m benchmarks.gpu --minutes 9 --parts "c,d"' in told
    assert "not reached: d\n" in told


def test_all_parts_fit_into_three_runs_of_nine_minutes(tmp_path: Path) -> None:
    later = gpu.parts("cuda", tmp_path, False)
    for _ in range(3):
        now, later = gpu.fitting(later, 9.0)
        assert sum(part.share for part in now) <= 9
    assert not later


def test_the_folder_is_that_of_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUT", str(tmp_path / "found"))
    monkeypatch.setattr(gpu, "parts", lambda device, out, quick: [gpu.Part("one", ("-c", "print(1)"), 1)])
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--device", "cpu"])
    assert gpu.main() == 0
    assert sorted(p.name for p in (tmp_path / "found").iterdir()) == ["gpu.json", "gpu.log"]


def test_caches_are_carried_from_call_to_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = """
import os, pathlib
for variable in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
    kept = pathlib.Path(os.environ[variable]) / "kernel"
    print(variable, kept.exists())
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text("compiled")
"""
    monkeypatch.setattr(gpu, "parts", lambda device, out, quick: [gpu.Part("one", ("-c", code), 1)])
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--device", "cpu", "--out", str(tmp_path)])
    for there in (False, True):
        assert gpu.main() == 0
        kept = json.loads((tmp_path / "gpu.json").read_text(encoding="utf-8"))
        assert kept["parts"][0]["end"] == f"TORCHINDUCTOR_CACHE_DIR {there}\nTRITON_CACHE_DIR {there}\n"
        assert sorted(p.name for p in tmp_path.iterdir()) == ["caches.tgz", "gpu.json", "gpu.log"]
    monkeypatch.setattr(gpu, "CARRIED_MOST", 10)
    assert gpu.main() == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["gpu.json", "gpu.log"]


def test_the_script_of_three_calls(tmp_path: Path) -> None:
    """Each call takes the parts that the ones before have left; targets come before tests."""
    later, calls = gpu.parts("cuda", tmp_path, False), []
    for _ in range(3):
        now, later = gpu.fitting(later, 9.0)
        calls.append([part.name for part in now])
    assert calls[0][:3] == ["imports", "compile", "suite pointnet_cls x 8"]
    assert [name for name in calls[2] if name.startswith("suite")] == []
    assert calls[2][0] == "tests"
    done = subprocess.run(
        ["bash", "benchmarks/gpu_calls.sh", "3", "--device", "cpu", "--parts", "none", "--out", str(tmp_path)],
        cwd=gpu.ROOT, env={**os.environ, "PYTHON": sys.executable}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


def test_without_what_nothing_runs_without_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu, "NEEDED", ("torch", "no_such_package"))
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--out", str(tmp_path)])
    assert gpu.main() == 2
    assert "not installed: no_such_package" in capsys.readouterr().err


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
