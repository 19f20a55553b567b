"""All measurements that need a GPU, in runs of 9 minutes, for machines that are lent for a short time.

The most important parts come first: the suite's targets, then tests. A run completes the parts that fit into its time,
and prints the remaining ones and the command that continues; results are written to disk as they are measured, and
compilers' caches are handed on to the next run. No package of Jupyter is needed.

    bash benchmarks/gpu_calls.sh 1                      # then 2, then 3
    python -m benchmarks.gpu [--minutes 9] [--call 1] [--out FOLDER] [--parts tests,graphs,...]
    python -m benchmarks.gpu --device cpu --quick       # to see that it works
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"
ROOT = RESULTS.parents[1]
NEEDED = ("torch", "numpy", "psutil", "jaxtyping", "safetensors", "cloudpickle")
"""Required packages. With `pynvml`, a GPU's activity is recorded; with `pandas`, an array's description."""
TESTS = ("contract/test_cuda_steps", "contract/test_cuda_graphs", "contract/test_streams", "contract/test_step_scores",
         "contract/test_step_graph", "contract/test_waiting", "telemetry/test_gpu")  # fmt: skip
"""The test files that are specific to a GPU come first; then all others that take a device."""
Measured = tuple[str, str, str, float]
"""A row of the suite: model, members, modes, and minutes on an H200; convolutions take long, as cuDNN plans the kernels
of each new shape."""
FIRST: tuple[Measured, ...] = (
    ("pointnet_cls", "8", "serial,vmap,ours,ours_compiled,ours_together,ours_compiled_together", 1.2),
    ("transformer", "8", "serial,vmap,ours,ours_compiled,ours_together,ours_compiled_together", 1.2),
    ("bert", "8", "serial,vmap,ours,ours_compiled,ours_compiled_together", 1.5),
    ("dcgan", "8", "serial,vmap,ours,ours_compiled", 1.5),
)
"""The models that tell whether compiled steps are to be the default; they are compiled beforehand, all at once."""
THEN: tuple[Measured, ...] = (
    ("resnet18", "8", "serial,ours,ours_compiled", 2.0),
    ("mobilenet_v3_large", "8", "serial,ours,ours_compiled", 2.0),
    ("pointnet_seg", "8", "serial,vmap,ours,ours_compiled_together", 1.0),
    ("transformer,pointnet_cls,bert,dcgan,resnet18", "1", "serial,ours", 1.8),
    ("transformer,pointnet_cls", "32", "serial,ours", 1.2),
    ("resnet18,mobilenet_v3_large", "4", "serial,vmap", 1.0),
)
CACHES = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}
"""Variables with the folders of compilers' caches, which a run hands on to the next."""
FOLDER, CARRIED = "caches", "caches.tgz"
CARRIED_MOST = 16 << 20
"""The most bytes of an archive that is handed on."""
TOLD = 3000
"""The number of characters at the end of a part's output that are kept beside its status; the log has all of it."""
ENDING_S = 5.0
"""The time that a part has to end by itself after its limit."""


@dataclass(frozen=True)
class Part:
    """One of the commands.

    Attributes:
        name: by which it is selected.
        words: of the command, after `python`.
        share: minutes that it needs; its share of the remaining time depends on the parts after it.
        needs: packages without which it is skipped.
    """

    name: str
    words: tuple[str, ...]
    share: float
    needs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """The outcome of a part.

    Attributes:
        command: the command line.
        status: of the process; None if it exceeded its time or was skipped.
        took_s: seconds.
        end: of its output, or why it was skipped.
    """

    name: str
    command: str
    status: int | None
    took_s: float
    end: str


def parts(device: str, out: Path, quick: bool) -> list[Part]:
    """All of them, in order."""
    tiny = ("--quick",) if quick else ()
    suite = ("-m", "benchmarks", "--device", device, "--busy-ok", *tiny)
    few = ("--rounds", "3" if quick else "5", "--lap", "0.01" if quick else "0.1")
    found = [Part("imports", ("-c", _IMPORTS), 0.3)]

    def suite_parts(rows: Sequence[Measured]) -> list[Part]:
        measured = []
        for model, members, modes, share in rows:
            if quick:
                members, modes = str(min(2, int(members))), _quick(model, modes)
            how = ("--models", model, "--precisions", "bf16", "--members", members, "--modes", modes)
            words = (*suite, *how, *few, "--resume", "--out", str(out / "suite_gpu.jsonl"))
            measured.append(Part(f"suite {model} x {members}", words, share))
        return measured

    modes = "ours_compiled" if quick else "ours_compiled,ours_compiled_together"
    once = ("--modes", modes, "--precisions", "bf16", "--rounds", "1", "--lap", "0.01")
    models = [model for model, *_ in FIRST[: 1 if quick else None]]
    compiled = [(*suite, "--models", model, "--members", "2" if quick else "8", *once) for model in models]
    found.append(Part("compile", ("-c", _BESIDE, json.dumps(compiled)), 6.0 if quick else 2.5))
    found += [*suite_parts(FIRST), *suite_parts(THEN)]
    found.append(Part("tests", _tests(device), 2.5, ("pytest", "hypothesis")))
    names = "float32,bf16" if device == "cpu" else "float32,tf32,bf16,fp16"
    members = "2" if quick else "8"
    how = ("--models", "transformer,bert", "--members", members, "--modes", "serial,jax,ours", "--precisions", "bf16")
    found.append(Part("jax", (*suite, *how, *few, "--resume", "--out", str(out / "jax_gpu.jsonl")), 1.2, ("jax",)))
    found.append(Part("graphs", ("benchmarks/graphs.py", "--device", device, *_smaller(quick)), 1.5))
    how = ("--models", "mlp,cnn,lstm,transformer", "--members", members, "--modes", "serial,vmap,ours")
    precise = (*suite, *how, *few, "--precisions", names, "--resume", "--out", str(out / "precision_gpu.jsonl"))
    found.append(Part("precision", precise, 1.5))
    memory = ("--members", "1", "2", "--models", "mlp") if quick else ()
    found.append(Part("memory", ("benchmarks/memory.py", "--device", device, *memory), 0.75))
    brief = ("--models", "mlp", "--members", "2", "--passes", "2", *tiny) if quick else ()
    found.append(Part("data", ("benchmarks/data.py", "--device", device, *brief), 0.75))
    return found


def _quick(model: str, modes: str) -> str:
    """The modes of a dry run: one is compiled, of the first model, as a CPU's compiler takes a minute for each."""
    kept = {"ours_compiled"} if model == FIRST[0][0] else set()
    return ",".join(mode for mode in modes.split(",") if "compiled" not in mode or mode in kept)


_IMPORTS = """
import sys
import hfta_nb, hfta_nb.study, benchmarks.suite.command
far = {"IPython", "ipywidgets", "anywidget", "jax", "matplotlib", "pandas"} & set(sys.modules)
import torch
print("torch", torch.__version__, "imported needlessly:", sorted(far) or "nothing")
if torch.cuda.is_available():
    from hfta_nb.records import telemetry
    print(torch.cuda.get_device_name(), torch.version.cuda, "cudnn", torch.backends.cudnn.version())
    with telemetry.sampler("cuda") as sampler:
        sampler.sample()
        x = torch.randn(4096, 4096, device="cuda")
        for _ in range(100):
            x @ x
        torch.cuda.synchronize()
        found = sampler.sample()
        print(found.values, found.note)
sys.exit(bool(far))
"""


_BESIDE = """
import json, subprocess, sys
running = [subprocess.Popen([sys.executable, *words]) for words in json.loads(sys.argv[1])]
sys.exit(max(process.wait() for process in running))
"""
"""Several commands at the same time."""


def _tests(device: str) -> tuple[str, ...]:
    """The command of the tests: only those on a GPU, on several cores if pytest supports it; warnings are no
    failures."""
    plain = ("-o", "addopts=-ra", "-W", "default", "--tb=short", "-p", "no:cacheprovider", "-p", "benchmarks.failures")
    workers = str(max(1, (os.cpu_count() or 1) - 2))
    side = ("-n", workers) if importlib.util.find_spec("xdist") and device != "cpu" else ()
    only = ("-k", "cuda or gpu") if device != "cpu" else ("-k", "cpu and step_waits")
    files = [f"tests/{test}.py" for test in TESTS]
    if device != "cpu":
        every = sorted((ROOT / "tests").rglob("test_*.py"))
        others = [str(p.relative_to(ROOT)) for p in every if "device: torch.device" in p.read_text(encoding="utf-8")]
        files += [name for name in others if name not in files]
    return ("-m", "pytest", "-q", *plain, "--continue-on-collection-errors", *side, *only, *files)


def _smaller(quick: bool) -> tuple[str, ...]:
    return ("--quick", "--models", "mlp", "--members", "2", "--rounds", "2") if quick else ()


def shown(part: Part) -> str:
    """The part's command for people."""
    return " ".join(["python", *("'...'" if w in (_IMPORTS, _BESIDE) else w for w in part.words)])


def lacking(names: tuple[str, ...]) -> list[str]:
    """The packages that are missing."""
    return [name for name in names if importlib.util.find_spec(name) is None]


def run(part: Part, most_s: float, out: Path) -> Outcome:
    """Run a part with a time limit. Its output is written to ``gpu.log`` in that folder immediately."""
    missing = lacking(part.needs)
    if missing:
        return Outcome(part.name, shown(part), None, 0.0, f"left out: {', '.join(missing)} not installed")
    begin = time.perf_counter()
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    own = {"PYTHONPATH": paths, "PYTHONUNBUFFERED": "1", "BENCHMARKS_RESULTS": str(out)}
    own |= {variable: str(out / FOLDER / name) for variable, name in CACHES.items()}
    with (out / "gpu.log").open("ab") as log:
        log.write(f"\n==== {part.name}: {shown(part)}\n".encode())
        log.flush()
        from_here = log.tell()
        process = subprocess.Popen(
            [sys.executable, *part.words], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
            env={**os.environ, **own}, start_new_session=True,
        )  # fmt: skip
        try:
            status: int | None = process.wait(most_s)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            _end(process)
    took_s = round(time.perf_counter() - begin, 1)
    with (out / "gpu.log").open("rb") as log:
        log.seek(from_here)
        end = log.read().decode(errors="replace")[-TOLD:]
    return Outcome(part.name, shown(part), status, took_s, end)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process, if it still runs, and all processes that it has started."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(OSError):
            os.killpg(process.pid, how)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(ENDING_S)


def about() -> dict[str, Any]:
    """A description of the machine, as far as possible with the installed packages."""
    named = {d.metadata["Name"]: d.version for d in importlib.metadata.distributions() if d.metadata["Name"]}
    packages = {name: named[name] for name in sorted(named) if name in (*NEEDED, "nvidia-ml-py", "jax", "pytest")}
    found: dict[str, Any] = {"python": platform.python_version(), "packages": packages}
    with contextlib.suppress(Exception):
        from benchmarks.common import environment

        found |= environment()
    return found


def main() -> int:
    """Run the command; returns the exit status: 1 if a part has failed, 2 if nothing can run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=9.0, help="for the whole run; parts beyond are left out")
    out = Path(os.environ.get("OUT") or RESULTS)
    parser.add_argument("--out", type=Path, default=out, help="folder of the files; default $OUT or benchmarks/results")
    parser.add_argument("--parts", default="", help="names of parts, or their beginnings; default all")
    parser.add_argument("--call", type=int, default=1, help="the parts of this call, where each takes that long")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true", help="tiny models, to see that it works")
    given = parser.parse_args()
    missing = lacking(NEEDED)
    if missing:
        print(f"not installed: {', '.join(missing)}; as wheels in a folder on PYTHONPATH they will do", file=sys.stderr)
        return 2
    import torch

    if torch.device(given.device).type == "cuda" and not torch.cuda.is_available():
        print("torch sees no GPU; --device cpu --quick shows that the command works", file=sys.stderr)
        return 2
    given.out = given.out.resolve()
    given.out.mkdir(parents=True, exist_ok=True)
    if given.quick:  # no time counts: own kernels are compiled, and others timed, once for all parts
        os.environ.setdefault("HFTA_NB_CACHE", str(given.out / FOLDER / "hfta_nb"))
    wanted = tuple(filter(None, given.parts.split(",")))
    chosen = [p for p in parts(given.device, given.out, given.quick) if not wanted or p.name.startswith(wanted)]
    later: list[Part] = []
    if not given.quick:
        later = chosen
        for _ in range(given.call):
            chosen, later = fitting(later, given.minutes)
    unpack(given.out)
    until = time.perf_counter() + 60 * given.minutes
    outcomes: list[Outcome] = []
    for number, part in enumerate(chosen):
        left_s = until - time.perf_counter()
        most_s = left_s * part.share / sum(p.share for p in chosen[number:])
        if most_s < 1:
            outcomes.append(Outcome(part.name, shown(part), None, 0.0, "left out: no time was left"))
            continue
        _keep(given.out, [*outcomes, Outcome(part.name, shown(part), None, 0.0, "begun")], later)
        outcomes.append(run(part, most_s, given.out))
        last = outcomes[-1]
        state = "not finished" if last.status is None else "done" if not last.status else f"failed ({last.status})"
        print(f"{last.name}: {state}, {last.took_s} s of {most_s:.0f}\n{last.end[-800:]}\n", flush=True)
        _keep(given.out, outcomes, later)
    pack(given.out)
    if later:
        names = ",".join(part.name for part in later)
        print(f'not reached: {names}\ngo on: python -m benchmarks.gpu --minutes {given.minutes:g} --parts "{names}"')
    return int(any(outcome.status for outcome in outcomes))


def fitting(chosen: list[Part], minutes: float) -> tuple[list[Part], list[Part]]:
    """The first parts that fit into so many minutes, at least one, and the others."""
    count, total = 0, 0.0
    for part in chosen:
        total += part.share
        if count and total > minutes:
            break
        count += 1
    return chosen[:count], chosen[count:]


def unpack(out: Path) -> None:
    """Let all parts use the caches that an earlier run has left in the folder, or beside this file."""
    for place in (out, RESULTS.parent):
        if (place / CARRIED).is_file():
            with tarfile.open(place / CARRIED) as archive:
                archive.extractall(out, filter="data")
            return


def pack(out: Path) -> None:
    """Leave the caches for the next run as one file, unless that is too large."""
    folder, archive = out / FOLDER, out / CARRIED
    if not folder.is_dir():
        return
    with tarfile.open(archive, "w:gz") as file:
        file.add(folder, arcname=FOLDER)
    shutil.rmtree(folder)
    if archive.stat().st_size > CARRIED_MOST:
        archive.unlink()


def _keep(out: Path, outcomes: list[Outcome], later: list[Part]) -> None:
    kept = {"parts": [asdict(o) for o in outcomes], "not_reached": [p.name for p in later], "environment": about()}
    (out / "gpu.json").write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
