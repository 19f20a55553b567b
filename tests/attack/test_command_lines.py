"""Wrong command lines, files of studies and damaged files of runs: one line that says what to do, and an exit code."""

from __future__ import annotations

import json
import random
import shutil
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from hfta_nb.cli import main
from tests.attack.hostile import TooLongError, alarm

BY_DEFAULT, MANY, EACH = 40, 500, 25

WORDS = ["", " ", "foo", "0", "-1", "1.5", "nan", "inf", "9" * 400, "\u0665", "\u00b2", "1e999", "x" * 300, "a\0b",
         "\x1b[2J", "\udc80", "=", "lr=", "lr=,", "lr=nan", "lr=" + "9" * 400, "lr=\u0665", "[]", "{}", "null", "/",
         "/dev/zero", "/nowhere/x", "--", "-", "1,2", "1," * 200, "#", "true", "1e-3,1e-2",
         "lr=1e-3,1e-2", ".."]  # fmt: skip
OPTIONS = ["--family", "--data", "--grid", "--set", "--epochs", "--batch-size", "--lr", "--seed", "--device", "--dtype",
           "--precision", "--capacity", "--padding", "--patience", "--monitor", "--threads", "--csv", "--output",
           "--min-delta", "--member-seconds", "--check", "--devices", "--workers", "--executor", "--steps-per-epoch",
           "--validate-every", "--resume", "--strategy", "--verify", "--keep-checkpoints"]  # fmt: skip
VALUES = ["1", "[]", "{}", "''", "'foo'", "nan", "inf", "-1", "true", "9" * 400, "[nan]", "[[]]", "{ low = 1 }",
          "{ low = 2, high = 1 }", "{ low = 'a', high = [] }", "{ low = 1, high = " + "9" * 400 + " }", "1979-05-27",
          "'" + "x" * 300 + "'", "[" * 3000 + "]" * 3000, "{ low = 0.1, high = nan }", "'\\u0665'", "", "[1, 'a']",
          "'a\\u0000b'", "1e999", "{ low = 1, high = 9, step = 0 }", "{ low = 1, high = 9, log = 'a' }"]  # fmt: skip
KEYS = ["family", "data", "trials", "slots", "sampler", "pruner", "seeds_by", "storage", "skip_duplicates", "timeout",
        "epochs", "batch_size", "seed", "dtype", "device", "capacity", "name", "directory", "monitor", "space", "fixed",
        "loss", "foo", "keep_checkpoints", "member_seconds"]  # fmt: skip


def command_line(pick: random.Random, place: Path) -> list[str]:
    """A right command line, with some words that are not."""
    command = pick.choice(["run", "plan", "run", "results", "families", "tune"])
    line = [command]
    if command in ("run", "plan"):
        line += ["--family", "mlp", "--data", "iris", "--epochs", "1", "--grid", "lr=1e-3,1e-2"]
    elif command != "families":
        line += [pick.choice(WORDS).replace("/dev/zero", "foo")]
    for _ in range(pick.choice([1, 1, 2])):
        line += [pick.choice(OPTIONS), pick.choice(WORDS)]
    if command == "run" and "--output" not in line:
        line += ["--output", str(place / "run")]
    return line


def study_file(pick: random.Random, place: Path) -> list[str]:
    """A file of a study with one or two values that are not."""
    given = {"family": "'mlp'", "data": "'iris'", "trials": "2", "epochs": "1"}
    tables = {"space": {"lr": "[0.1, 0.2]"}, "fixed": {"batch_size": "32"}}
    for _ in range(pick.choice([1, 1, 2])):
        kind = pick.random()
        if kind < 0.6:
            given[pick.choice(KEYS)] = pick.choice(VALUES)
        else:
            tables[pick.choice(["space", "fixed"])][pick.choice(["lr", "loss", "width", "seed", "foo"])] = pick.choice(
                VALUES
            )
    text = "\n".join(f"{k} = {v}" for k, v in given.items())
    for name, table in tables.items():
        if name not in given:
            text += f"\n[{name}]\n" + "\n".join(f"{k} = {v}" for k, v in table.items())
    path = place / "study.toml"
    path.write_text(text + "\n", encoding="utf-8")
    return ["tune", str(path)]


def _damages(pick: random.Random) -> list[bytes]:
    return [b"", b"[" * 100_000, b'{"a":' * 50_000, b"9" * 5000, b'{"seed": ' + b"9" * 400 + b"}", b"null", b"\xff\xfe",
            b"[]", b'"a"', b"1e999", b"NaN", pick.randbytes(300), b'{"variants": 5}', b'{"options": [1]}']  # fmt: skip


def damaged(pick: random.Random, place: Path) -> list[str]:
    """A directory of a run in which a file is something else."""
    run = place / "run"
    shutil.copytree(_run(), run)
    files = sorted(p for p in run.rglob("*") if p.is_file())
    path = pick.choice(files)
    if path.suffix == ".json" and pick.random() < 0.5:
        path.write_text(json.dumps({**json.loads(path.read_text()), pick.choice(KEYS): pick.choice(WORDS[:10])}))
    else:
        path.write_bytes(pick.choice(_damages(pick)))
    return pick.choice([["results", str(run)], ["run", "--resume", str(run)], ["results", str(run), "--csv", "o.csv"]])


_runs: list[Path] = []


def _run() -> Path:
    """A run that is over, made once."""
    if not _runs:
        import tempfile

        place = Path(tempfile.mkdtemp()) / "run"
        right = ["run", "--family", "mlp", "--data", "iris", "--epochs", "1", "--grid", "lr=1e-3,1e-2", "--quiet"]
        assert main([*right, "--output", str(place)]) == 0
        _runs.append(place)
    return _runs[0]


MAKERS: Sequence[Callable[[random.Random, Path], list[str]]] = (command_line, study_file, damaged)


def fault(line: list[str], said: Callable[[], tuple[str, str]]) -> str:
    """What is wrong with the answer to a command line; empty where it is a right one."""
    try:
        with alarm(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            code = main(line)
    except SystemExit as error:  # argparse's
        code = error.code if isinstance(error.code, int) else 2
    except (Exception, TooLongError) as error:
        import traceback

        where = traceback.extract_tb(error.__traceback__)[-2:]
        return f"{type(error).__name__}: {str(error)[:150]} ({[(Path(f.filename).name, f.lineno) for f in where]})"
    _, errors = said()
    if "Traceback" in errors:
        return f"a traceback: {errors[-300:]}"
    if code not in (0, 1, 2):
        return f"exit code {code}"
    return "" if code == 0 or "error" in errors else f"no word of error: {errors[-200:]!r}"


def faults(numbers: range, place: Path, said: Callable[[], tuple[str, str]]) -> list[str]:
    found = []
    for number in numbers:
        pick = random.Random(number)
        folder = place / str(number)
        folder.mkdir()
        line = MAKERS[number % len(MAKERS)](pick, folder)
        said()
        if why := fault(line, said):
            text = (folder / "study.toml").read_text()[:200] if (folder / "study.toml").exists() else ""
            found.append(f"{number} {[w[:60] for w in line]} {text!r}: {why}")
    return found


@pytest.fixture(autouse=True)
def _elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    "first", [0, *(pytest.param(n, marks=pytest.mark.long) for n in range(BY_DEFAULT, MANY, EACH))]
)
def test_wrong_command_lines(first: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def said() -> tuple[str, str]:
        return capfd.readouterr()

    numbers = range(first, first + (EACH if first else BY_DEFAULT))
    assert faults(numbers, tmp_path, said) == []
