"""The duration of a whole sweep by `hfta-nb run`, with and without --serial, and the agreement of the results.

Eight multilayer perceptrons, 100 epochs on digits, on the CPU; whole commands, with the start of Python. The target is
two thirds of the serial time. In float64 both must give the same leaderboard, with losses within 1e-8 over all epochs;
in float32 the first five epochs agree to 1e-5.

    python benchmarks/fused_vs_serial.py [--rounds 5] [--epochs 100]
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import tempfile
from pathlib import Path

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import hfta_nb as hfta
from benchmarks.common import interleaved, options, write

BAR = 2 / 3
GRID = ["--grid", "lr=1e-3,3e-3,1e-2,3e-2", "--grid", "seed=0,1"]
_numbers = itertools.count()


def sweep(place: Path, *options: str) -> Path:
    """Run the command; returns the directory of its results."""
    root = Path(__file__).resolve().parents[1]
    output = place / f"run{next(_numbers)}"
    command = [sys.executable, "-m", "hfta_nb", "run", "--family", "mlp", "--data", "digits", *GRID, "--device", "cpu"]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    subprocess.run(
        [*command, *options, "--output", str(output)], check=True, stdout=subprocess.DEVNULL, env=environment, cwd=root
    )
    return output


def difference(a: Path, b: Path, epochs: int | None = None) -> float:
    """The largest difference of two runs' losses over their first epochs."""
    left, right = (hfta.Study.load(p).history.members for p in (a, b))
    worst = 0.0
    for member in left.values():
        for name in ("train_loss", "val_loss"):
            pairs = zip(member.curves[name].values, right[member.id].curves[name].values, strict=True)
            worst = max(worst, *(abs(x - y) for x, y in itertools.islice(pairs, epochs)))
    return worst


def main() -> int:
    parser = options(__doc__, rounds=5)
    parser.add_argument("--epochs", type=int, default=100)
    given = parser.parse_args()
    epochs = ["--epochs", str(given.epochs)]
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        timings = interleaved(
            {"fused": lambda: sweep(place, *epochs), "serial": lambda: sweep(place, *epochs, "--serial")}, given.rounds
        )
        pairs = zip(timings["fused"].rounds_s, timings["serial"].rounds_s, strict=True)
        ratios = sorted(a / b for a, b in pairs)
        ratio = ratios[len(ratios) // 2]
        double = [sweep(place, *epochs, "--dtype", "float64", *more) for more in ([], ["--serial"])]
        single = [sweep(place, "--epochs", "5", *more) for more in ([], ["--serial"])]
        apart64, apart32 = difference(*double), difference(*single)
        boards = [list(hfta.Study.load(p).results().index) for p in double]
    for name, timing in timings.items():
        print(f"{name:7} {timing}")
    print(f"ratio {ratio:.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f}); the bar is {BAR:.3f}")
    print(
        f"float64: same leaderboard {boards[0] == boards[1]}, losses {apart64:.1e} apart; "
        f"float32, 5 epochs: {apart32:.1e}"
    )
    figures = {
        "what": "hfta-nb run of 8 mlp members on digits, fused and serial, whole commands",
        "epochs": given.epochs,
        **timings,
        "ratio_median": round(ratio, 4),
        "ratios": [round(r, 4) for r in ratios],
        "bar": round(BAR, 4),
        "float64_same_leaderboard": boards[0] == boards[1],
        "float64_largest_loss_difference": apart64,
        "float32_largest_loss_difference_5_epochs": apart32,
    }
    print(write("fused_vs_serial", figures))
    return 0 if ratio <= BAR and boards[0] == boards[1] and apart64 <= 1e-8 and apart32 <= 1e-5 else 1


if __name__ == "__main__":
    sys.exit(main())
