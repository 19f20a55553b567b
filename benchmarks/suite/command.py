"""The command line of the suite."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.common import RESULTS
from benchmarks.suite import machine
from benchmarks.suite.job import PRECISIONS, Job
from benchmarks.suite.measure import measure, unmeasured
from benchmarks.suite.modes import MODES, default
from benchmarks.suite.modes.processes import end_idle
from benchmarks.suite.tasks import tasks
from hfta_nb.engine.kernels.native import build

MOST = {"cpu": 64, "cuda": 1024}
"""The most members that `--members auto` and `capacity` try without `--most`: on a CPU more members are no faster, all
ways of training keep them in memory at once, and a row takes minutes."""
GAIN = 1.05
"""`--members auto` ends when throughput has grown by less than this in two doublings."""
BUSY = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status: 0, or 2 on a machine with other load."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["plot"]:
        from benchmarks.suite.plot import main as plot

        return plot(words[1:])
    if words[:1] == ["report"]:
        from benchmarks.suite.report import main as report

        return report(words[1:])
    given = parse(words)
    cores = machine.settle(given.device, given.threads)
    used = machine.others()
    if used > machine.OTHERS and not given.busy_ok:
        print(
            f"other processes use {used:.1f} cores (load average {os.getloadavg()[0]:.1f}): what is measured now would "
            f"say little. Wait, or add --busy-ok, which every line will tell.",
            file=sys.stderr,
        )
        return BUSY
    about = machine.description(given.device, given.threads, cores)
    about |= {"busy_ok": given.busy_ok, "other_cores_at_start": round(used, 2)}
    done = measured(given.out) if given.resume else {}
    adding = given.append or given.resume
    out = None if given.out is None else given.out.open("a" if adding else "w", encoding="utf-8")
    cache = tempfile.TemporaryDirectory(prefix="hfta-bench-")
    # Results kept by earlier programs are not used, so that the time to begin is that of a first run.
    os.environ.setdefault("HFTA_NB_CACHE", cache.name)
    try:
        if given.device == "cpu":  # otherwise compiled while a first program runs
            about["libraries"] = build.make_all()
        for record in records(given, done):
            line = record | about
            if out is not None:
                out.write(json.dumps(line) + "\n")
                out.flush()
            print(shown(record), flush=True)
    finally:
        end_idle()
        cache.cleanup()
        if out is not None:
            out.close()
    return 0


def measured(file: Path | None) -> dict[tuple[str, int, str], float]:
    """Rows that a file already contains, by model, members, precision: samples per second of "ours", or of the best
    mode."""
    if file is None or not file.exists():
        return {}
    rows: dict[tuple[str, int, str], list[dict[str, Any]]] = {}
    for text in file.read_text(encoding="utf-8").splitlines():
        with contextlib.suppress(json.JSONDecodeError):  # the end of a run that was killed
            line = json.loads(text)
            rows.setdefault((line["model"], line["members"], line["precision"]), []).append(line)
    return {key: _rate(lines) for key, lines in rows.items()}


def _rate(lines: Sequence[dict[str, Any]]) -> float:
    told = [line for line in lines if line["mode"] == "ours"] or lines
    return max(line.get("samples_per_s") or 0.0 for line in told)


def parse(words: Sequence[str]) -> argparse.Namespace:
    """The options, completed by dependent defaults; ends the program on an invalid one."""
    parser = _parser()
    given = parser.parse_args(words)
    try:
        kind = torch.device(given.device).type
    except RuntimeError:
        kind = ""
    if kind not in MOST or (kind == "cuda" and not torch.cuda.is_available()):
        parser.error(f"argument --device: {given.device} is not here; accepted: cpu, or cuda where torch sees a GPU")
    if given.threads > (os.cpu_count() or 1):
        parser.error(f"argument --threads: {given.threads} are more than the {os.cpu_count()} cores")
    if given.out is not None and not given.out.parent.is_dir():
        parser.error(f"argument --out: {given.out.parent} is not a folder")
    if given.resume and given.out is None:
        parser.error("argument --resume: needs --out")
    given.most = given.most or MOST[kind]
    given.modes = given.modes or default(kind)
    given.rounds = given.rounds or (3 if given.quick else 15)
    given.lap = given.lap or (0.01 if given.quick else 0.25)
    return given


def records(
    given: argparse.Namespace, done: Mapping[tuple[str, int, str], float] | None = None
) -> Iterator[dict[str, Any]]:
    """Every row of every requested combination, except those already measured."""
    for precision in given.precisions:
        possible = given.device != "cpu" or precision != "tf32"
        peaks = machine.peaks(given.device, precision, given.quick) if possible else None
        for model in given.models:
            rates: list[float] = []
            for members in _members(given, rates):
                known = (done or {}).get((model, members, precision))
                if known is not None:
                    rates.append(known)
                    continue
                job = Job(model, members, precision, given.device, given.lr == "own", given.quick)
                rows = _row(job, given, peaks)
                yield from rows
                rates.append(_rate(rows))


def _row(job: Job, given: argparse.Namespace, peaks: dict[str, Any] | None) -> list[dict[str, Any]]:
    """A row; an error outside of its modes is recorded in it, and the next row is measured."""
    try:
        return measure(job, given.modes, peaks, rounds=given.rounds, lap_s=given.lap, begin=job.where.type == "cpu")
    except Exception as error:
        told = "".join(traceback.format_exception(error))
        return [unmeasured(job, mode, error, told) for mode in dict.fromkeys(["serial", *given.modes])]


def shown(record: dict[str, Any]) -> str:
    """A record as a line for people."""
    head = "{model:18} M={members:<4} {precision:8} {mode:13}".format(**record)
    if not record["measured"]:
        return f"{head} not measured: {record['why']}"
    step = record["step_s"]
    text = f"{head} {step['median'] * 1e3:9.3f} ms ({step['low'] * 1e3:.3f} to {step['high'] * 1e3:.3f})"
    if not record["agrees"]:
        return f"{text}  DOES NOT AGREE with serial: {record['differences']}"
    ratio, best = record["ratio_to_serial"], record["ratio_to_best_serial"]
    text += (
        f" {record['samples_per_s']:12.0f} samples/s  x{ratio['median']:.2f} of serial, x{best['median']:.2f} of best"
    )
    return f"{text}, {ratio['cpu_median']:.2f} by processor time" if "cpu_median" in ratio else text


def _members(given: argparse.Namespace, rates: list[float]) -> Iterator[int]:
    """The requested numbers of members; "auto": doubled while that helps; "capacity": while they can be trained.

    `rates` grows by one after each.
    """
    if isinstance(given.members, list):
        yield from given.members
        return
    members = 1
    while members <= given.most:
        yield members
        stale = given.members == "auto" and len(rates) > 2 and rates[-1] < GAIN * rates[-3]
        if stale or (rates and rates[-1] == 0):
            return
        members *= 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Training steps of many members, every way there is, side by side. "
        "`python -m benchmarks plot FILE` draws what was measured; "
        "`python -m benchmarks report FILE` tells ratios, bars and what holds the rest back.",
    )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    main_four = "mlp,cnn,lstm,transformer"
    parser.add_argument(
        "--models",
        type=_names(tasks()),
        default=main_four.split(","),
        help=f"default {main_four}; of {', '.join(tasks())}",
    )
    parser.add_argument(
        "--members",
        type=_members_given,
        default=[1, 2, 8, 32],
        help='default 1,2,8,32; "auto" doubles while it helps, "capacity" while ours has the memory',
    )
    most = f"where auto and capacity end at the latest; default {MOST['cpu']} on a CPU, {MOST['cuda']} on a GPU"
    parser.add_argument("--most", type=_positive, default=None, help=most)
    parser.add_argument("--precisions", type=_names(PRECISIONS), default=["float32"], help=", ".join(PRECISIONS))
    parser.add_argument("--modes", type=_names(MODES), default=None, help=f"of {', '.join(MODES)}")
    parser.add_argument("--device", default=device, help=f"cpu, cuda, cuda:1, ...; here {device}")
    parser.add_argument("--threads", type=_positive, default=1, help="threads, and on a CPU cores too, of each process")
    parser.add_argument("--rounds", type=_positive, default=None, help="laps of each mode; default 15, quick 3")
    parser.add_argument("--lap", type=float, default=None, help="seconds of a serial lap; default 0.25, quick 0.01")
    parser.add_argument(
        "--lr", choices=("own", "same"), default="own", help="a learning rate per member, or one for all"
    )
    parser.add_argument("--out", type=Path, default=None, help=f"JSON lines, for example in {RESULTS.name}/")
    parser.add_argument("--append", action="store_true", help="add to the file instead of replacing it")
    parser.add_argument("--resume", action="store_true", help="add the rows that the file has not yet")
    parser.add_argument(
        "--quick", action="store_true", help="tiny models, few rounds: to see that it works, not how fast"
    )
    parser.add_argument("--busy-ok", action="store_true", help="measure on a busy machine as well")
    return parser


def _positive(text: str) -> int:
    if not text.strip().isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"a whole number from 1, not {text!r}")
    return int(text)


def _members_given(text: str) -> list[int] | str:
    if text in ("auto", "capacity"):
        return text
    if not all(part.strip().isdecimal() and int(part) for part in text.split(",")):
        raise argparse.ArgumentTypeError(f"numbers from 1 such as 1,8,32, or auto, or capacity; not {text!r}")
    return [int(part) for part in text.split(",")]


def _names(known: Sequence[str] | dict[str, Any]) -> Any:
    def parse(text: str) -> list[str]:
        names = text.split(",")
        unknown = [name for name in names if name not in known]
        if unknown:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: not one of {', '.join(known)}")
        return names

    return parse
