"""All that wants to be seen on a GPU, in one command and about 25 minutes.

What matters most comes first, each part has a time of its own, and what it has found so far is in a file: whoever has a
GPU for less long keeps what was done. Nothing of Jupyter, jax or NVML's Python binding is needed (torch itself imports
the last where it is).

    python -m benchmarks.gpu [--minutes 25] [--out FOLDER] [--parts tests,graphs,...]
    python -m benchmarks.gpu --device cpu --quick       # to see that it works
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from benchmarks.common import RESULTS, environment

ROOT = RESULTS.parents[1]
TESTS = ("contract/test_cuda_steps", "contract/test_streams", "contract/test_rates", "contract/test_step_scores",
         "contract/test_step_graph", "contract/test_waiting", "contract/test_mixed_precision",
         "contract/test_modules", "contract/test_optimizers")  # fmt: skip
"""The first are about what only a GPU has; the others are the contract, there."""
HFTA = ("pointnet_cls", "resnet18", "mobilenet_v3_large", "bert", "transformer", "dcgan", "pointnet_seg")
"""Those with a bar of their own first."""
TOLD = 3000
"""Characters of the end of what a part prints that are kept."""


@dataclass(frozen=True)
class Part:
    """One of the commands.

    Attributes:
        name: by which it is chosen.
        words: of the command, after `python`.
        share: of all the time that there is, at most.
    """

    name: str
    words: tuple[str, ...]
    share: float


@dataclass(frozen=True)
class Outcome:
    """What became of a part.

    Attributes:
        command: as it can be typed.
        status: of the process; None where its time was over.
        took_s: seconds.
        end: of what it printed.
    """

    name: str
    command: str
    status: int | None
    took_s: float
    end: str


def parts(device: str, out: Path, quick: bool) -> list[Part]:
    """All of them, in order."""
    tiny = ("--quick",) if quick else ()
    suite = ("-m", "benchmarks", "--device", device, "--busy-ok", "--resume", *tiny)
    few = ("--rounds", "3" if quick else "5", "--lap", "0.01" if quick else "0.1")
    members = "1,2" if quick else "auto"
    found = [
        Part("imports", ("-c", _IMPORTS), 0.05),
        Part("tests", ("-m", "pytest", "-q", "-p", "no:cacheprovider", *(f"tests/{t}.py" for t in TESTS)), 0.25),
        Part("graphs", ("benchmarks/graphs.py", "--device", device, *_smaller(quick)), 0.12),
    ]
    for model in HFTA:
        how = ("--models", model, "--precisions", "bf16", "--members", members, "--modes", "serial,vmap,ours")
        found.append(Part(f"suite {model}", (*suite, *how, *few, "--out", str(out / "suite_gpu.jsonl")), 0.1))
    how = ("--models", "mlp,cnn,lstm,transformer", "--members", "2" if quick else "8", "--modes", "serial,vmap,ours")
    names = "float32,bf16" if device == "cpu" else "float32,tf32,bf16,fp16"
    precise = (*suite, *how, *few, "--precisions", names, "--out", str(out / "precision_gpu.jsonl"))
    found.append(Part("precision", precise, 0.15))
    if not quick:  # these two write to results/
        found.append(Part("memory", ("benchmarks/memory.py", "--device", device), 0.1))
        found.append(Part("data", ("benchmarks/data.py", "--device", device), 0.1))
    return found


_IMPORTS = """
import sys
import hfta_nb, hfta_nb.study, benchmarks.suite.command
far = {"IPython", "ipywidgets", "anywidget", "jax", "matplotlib", "pandas"} & set(sys.modules)
print("torch", __import__("torch").__version__, "imported needlessly:", sorted(far) or "nothing")
sys.exit(bool(far))
"""


def _smaller(quick: bool) -> tuple[str, ...]:
    return ("--quick", "--models", "mlp", "--members", "2", "--rounds", "2") if quick else ()


def run(part: Part, most_s: float) -> Outcome:
    """Do a part, for so long at most."""
    command = [sys.executable, *part.words]
    shown = " ".join(["python", *(w if w != _IMPORTS else "'...'" for w in part.words)])
    if part.words[:2] == ("-m", "pytest") and importlib.util.find_spec("pytest") is None:
        return Outcome(part.name, shown, None, 0.0, "pytest is not installed")
    begin, status = time.perf_counter(), None
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    try:
        done = subprocess.run(
            command, cwd=ROOT, timeout=most_s, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": paths}, check=False,
        )  # fmt: skip
        status, output = done.returncode, done.stdout
    except subprocess.TimeoutExpired as error:
        output = error.stdout or b""
    took_s = round(time.perf_counter() - begin, 1)
    return Outcome(part.name, shown, status, took_s, output.decode(errors="replace")[-TOLD:])


def main() -> int:
    """Run the command; gives the exit status: 1 where a part has failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=25.0, help="for all of it")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the files; default benchmarks/results")
    parser.add_argument("--parts", default="", help="names of parts, or their beginnings; default all")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true", help="tiny models, to see that it works")
    given = parser.parse_args()
    if torch.device(given.device).type == "cuda" and not torch.cuda.is_available():
        print("torch sees no GPU; --device cpu --quick shows that the command works", file=sys.stderr)
        return 2
    given.out = given.out.resolve()
    given.out.mkdir(parents=True, exist_ok=True)
    wanted = tuple(filter(None, given.parts.split(",")))
    until = time.perf_counter() + 60 * given.minutes
    outcomes = []
    for part in parts(given.device, given.out, given.quick):
        left_s = until - time.perf_counter()
        if (wanted and not part.name.startswith(wanted)) or left_s < 1:
            continue
        outcomes.append(run(part, min(left_s, 60 * given.minutes * part.share)))
        last = outcomes[-1]
        state = "not finished" if last.status is None else "done" if not last.status else f"failed ({last.status})"
        print(f"{last.name}: {state}, {last.took_s} s\n{last.end[-600:]}\n", flush=True)
        kept = {"parts": [asdict(o) for o in outcomes], "environment": environment()}
        (given.out / "gpu.json").write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")
    return int(any(outcome.status for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
