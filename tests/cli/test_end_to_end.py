"""The command as users run it, in a separate folder and, where it matters, in a separate process."""

from __future__ import annotations

import csv
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from hfta_nb.cli import main
from hfta_nb.records.events import EpochDone
from hfta_nb.records.store import Store

DEADLINE_S = 120.0
Command = Callable[..., subprocess.CompletedProcess[str]]
QUICK = ("--family", "mlp", "--data", "digits", "--set", "width=8")


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "hfta_nb", *arguments]


def environment() -> dict[str, str]:
    """Without what would make the output depend on where the tests run."""
    kept = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "FORCE_COLOR")}
    root = str(Path(__file__).resolve().parents[2])
    return kept | {"PYTHONPATH": os.pathsep.join(filter(None, [root, kept.get("PYTHONPATH")])), "PYTHONUNBUFFERED": "1"}


def run(line: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a process in a folder to its end."""
    return subprocess.run(
        line,
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def hfta(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run(command(*arguments), folder)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs the command in this process, in the test's folder: seconds quicker, as torch is imported already."""
    monkeypatch.chdir(tmp_path)
    for name in ("COLUMNS", "LINES", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)

    def ran(*arguments: str) -> subprocess.CompletedProcess[str]:
        try:
            code = main(arguments)
        except SystemExit as ended:
            code = int(str(ended.code))
        return subprocess.CompletedProcess(arguments, code, *capsys.readouterr())

    return ran


def board(shown: str) -> list[list[str]]:
    """Rows of the leaderboard."""
    return [line.split() for line in shown.splitlines() if re.match(r"\s*#\d+ +[A-Z]+!? ", line)]


@pytest.mark.long
def test_two_networks_are_trained_in_epochs_of_steps(here: Command) -> None:
    small = ("--set", "generator_width=2", "--set", "discriminator_width=2", "--set", "latent=4", "--batch-size", "16")
    pace = ("--epochs", "3", "--steps-per-epoch", "4", "--validate-every", "2")
    grid = ("--grid", "lr=2e-4,1e-3", "--grid", "generator_lr=none,5e-4")
    ran = here("run", "--family", "dcgan", "--data", "digit_images", *small, *pace, *grid, "--check")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert len(board(ran.stdout)) == 4
    assert re.search(r"best: #\d val_distance [\d.]+ at epoch [23] ", ran.stdout)
    assert "epoch 3/3" in ran.stdout
    assert "equals the same variant trained alone: over 3 epochs" in ran.stdout


def test_a_grid_is_trained_and_its_results_are_kept(tmp_path: Path, here: Command) -> None:
    grid = ("--grid", "lr=1e-3,3e-3,1e-2", "--grid", "width=8,16")
    ran = hfta(
        tmp_path, "run", "--family", "mlp", "--data", "digits", *grid, "--epochs", "2", "--csv", "all.csv", "--check"
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "mlp on digits: 6 variants, 2 epochs, float32, cpu" in ran.stdout
    assert "\x1b" not in ran.stdout
    assert len(board(ran.stdout)) == 6
    assert "COMPLETE in" in ran.stdout
    assert "check: #" in ran.stdout
    assert "equals the same variant trained alone" in ran.stdout
    [place] = (tmp_path / "hfta_runs").iterdir()
    assert f"results: hfta_runs/{place.name} " in ran.stdout
    with (tmp_path / "all.csv").open(encoding="utf-8", newline="") as file:
        assert sorted(row["member"] for row in csv.DictReader(file)) == list("012345")

    again = here("results", f"hfta_runs/{place.name}")
    assert (again.returncode, again.stderr) == (0, "")
    assert board(again.stdout) == board(ran.stdout)


def test_serial_and_fused_give_the_same_leaderboard(here: Command) -> None:
    grid = ("--grid", "lr=1e-3,1e-2", "--grid", "seed=seeds(2)", "--epochs", "2", "--dtype", "float64", "--quiet")
    fused, serial = here("run", *QUICK, *grid), here("run", *QUICK, *grid, "--serial")
    assert (fused.returncode, serial.returncode) == (0, 0)
    assert len(board(fused.stdout)) == 4
    assert board(fused.stdout) == board(serial.stdout)


def test_a_member_that_diverges_is_marked_and_harms_no_other(here: Command) -> None:
    ran = here("run", *QUICK, "--grid", "lr=1e-3,1e30", "--optimizer", "sgd", "--epochs", "2")
    assert ran.returncode == 0
    states = {row[0]: row[1] for row in board(ran.stdout)}
    assert states == {"#0": "COMPLETE", "#1": "DIVERGED!"}
    assert re.search(r"^#1 DIVERGED: .*finite", ran.stdout, re.MULTILINE)


@pytest.mark.long
def test_an_interrupt_keeps_everything_and_the_run_can_be_carried_on(tmp_path: Path, here: Command) -> None:
    arguments = ("run", *QUICK, "--grid", "lr=1e-3,1e-2", "--epochs", "60", "--output", "a run")
    with subprocess.Popen(
        command(*arguments), cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        _wait_for_epoch(Store(tmp_path / "a run"), process)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, err) == (130, "")
    assert "stopping after this step, everything is kept" in out
    assert len(board(out)) == 2
    assert out.splitlines()[-1] == "stopped; to resume: hfta-nb run --resume 'a run'"

    resumed = here("run", "--resume", "a run")
    assert (resumed.returncode, resumed.stderr) == (0, "")
    assert "resumed: mlp on digits: 2 variants" in resumed.stdout
    assert {row[1] for row in board(resumed.stdout)} == {"COMPLETE"}


def _wait_for_epoch(store: Store, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not any(isinstance(event, EpochDone) for event, _ in store.events()):
        assert process.poll() is None, "it ended before its first epoch"
        assert time.monotonic() < deadline, f"no epoch in {DEADLINE_S:g} s"
        time.sleep(0.02)


WRONG: list[tuple[Sequence[str], str]] = [
    (("run", *QUICK, "--workers", "2"), "workers: is for processes of this machine or actors of Ray alone"),
    (("run", *QUICK, "--executor", "processes", "--address", "auto"), "address: is for actors of Ray alone"),
    (("run", "--family", "nope"), "unknown family"),
    (("run", "--family", "mlp", "--data", "digts"), "unknown data"),
    (("run", "--family", "mlp", "--data", "mnist"), "put train-images-idx3-ubyte"),
    (("run", "--family", "mlp", "--grid", "beauty=1,2"), "unknown axis"),
    (("run", "--family", "mlp", "--grid", "lr=1e"), '"1e" is not a number; write 1e-3'),
    (
        ("run", "--family", "mlp", "--grid", "lr=logspace(1e-4,1e-1,3"),
        "lr: no closing parenthesis; got 'logspace(1e-4,",
    ),
    (("run", "--family", "mlp", "--grid", "lr=logspce(1e-4,1e-1,3)"), "did you mean logspace?"),
    (("run", "--family", "mlp", "--grid", "lr=1e-3;1e-2"), "separate values by commas"),
    (("run", "--family", "mlp", "--grid", "lr=inf"), "lr: not a finite number; got inf"),
    (("run", "--family", "mlp", "--grid", "lr 1e-3"), "no = between name and values"),
    (("run", "--family", "mlp", "--grid", "width=wide"), "not a number"),
    (("run", "--family", "mlp", "--epochs", "0"), "is not a whole number from 1"),
    (("run", "--family", "mlp", "--epochs", "x"), "is not a whole number from 1"),
    (("run", "--family", "mlp", "--csv", "missing/a.csv"), "can't be written"),
    (("run", "--family", "mlp", "--check", "7"), "no such member"),
    (("run", "--family", "mlp", "--device", "cuda:99"), "no such GPU"),
    (("run", "--family", "mlp", "--device", "cpu:3"), "device: there is one CPU; got 'cpu:3'; accepted: cpu"),
    (("run", "--family", "mlp", "--grid", "seed=seeds(100000000)"), "got 100000000; accepted: 1 to 10000"),
    (("run", "--family", "mlp", "--grid", "seed=integers(1,100000000)"), "got 100000000; accepted: 1 to 10000"),
    (("run", "--family", "mlp", "--grid", "lr=1,,2"), "lr: nothing between two commas; got '1,,2'; accepted: for ex"),
    (("run", "--family", "mlp", "--set", "dropout=2"), "mlp, #0: can't build this variant"),
    (("run", "--family", "mlp", "--quiet", "--output", "y" * 300), "can't be looked at (File name too long)"),
    (("run", "--family", "mlp", "--quiet", "--output", __file__), "can't be made (File exists); accepted: a directory"),
    (("results", __file__), "no saved run here"),
    (("run", "--resume", "missing"), "no saved run here"),
    (("results", "missing"), "no saved run here"),
    (("plan", "--family", "mlp", "--grid", "depth=two"), "depth"),
    (("plan",), "no family given"),
    (
        ("plan", "--family", "mlp", "--set", "width=0"),
        "width: out of bounds; got 0; accepted: at least 1 and at most 1,000,",
    ),
    (
        ("plan", "--family", "mlp", "--grid", "width=8,1000000000"),
        "width: out of bounds; got 1000000000; accepted: at lea",
    ),
    (("plan", "--family", "cnn", "--data", "wine"), "cnn: needs images, and wine is table rows [13]; accepted: images"),
    (("run", "--family", "cnn", "--data", "wine"), "families for wine: mlp"),
    (("sing",), "invalid choice"),
]


@pytest.mark.parametrize(("arguments", "message"), WRONG, ids=lambda value: " ".join(value) if value else "")
def test_wrong_input_gives_one_clear_line_and_code_2(
    arguments: Sequence[str], message: str, tmp_path: Path, here: Command
) -> None:
    ran = here(*arguments)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.startswith("hfta-nb: error: ")
    assert ran.stderr.count("\n") == 1
    assert message in ran.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_wrong_input_does_the_same_in_a_process(tmp_path: Path) -> None:
    ran = hfta(tmp_path, "run", "--family", "[red]nope\n", "--data", "digits")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.startswith("hfta-nb: error: family: unknown family; got '[red]nope\\n'; accepted: cnn, mlp")
    assert ran.stderr.count("\n") == 1


@pytest.mark.long
def test_a_grid_is_trained_by_two_processes(tmp_path: Path) -> None:
    grid = (
        "--grid",
        "lr=1e-3,1e-2",
        "--grid",
        "width=4,8",
        "--padding",
        "never",
        "--executor",
        "processes",
        "--workers",
        "2",
    )
    ran = hfta(tmp_path, "run", "--family", "mlp", "--data", "iris", *grid, "--epochs", "2", "--check", "0")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert [row[1] for row in board(ran.stdout)] == ["COMPLETE"] * 4
    assert "on process " in ran.stdout
    assert "equals the same variant trained alone" in ran.stdout


def test_a_run_that_is_there_is_not_written_over_and_a_damaged_one_is_said_to_be_one(
    tmp_path: Path, here: Command
) -> None:
    arguments = ("run", *QUICK, "--epochs", "1", "--output", "run", "--quiet")
    assert here(*arguments).returncode == 0
    before = (tmp_path / "run" / "study.sqlite").read_bytes()
    again = here(*arguments)
    assert again.returncode == 2
    assert "a run is already there" in again.stderr
    assert (tmp_path / "run" / "study.sqlite").read_bytes() == before

    assert "'hfta-nb run --resume DIR --epochs N'" in again.stderr

    complete = here("run", "--resume", "run")
    assert (complete.returncode, complete.stdout) == (2, "")
    assert "the run is complete" in complete.stderr
    assert "'hfta-nb run --resume DIR --epochs 2'" in complete.stderr
    longer = here("run", "--resume", "run", "--epochs", "2", "--plain")
    assert (longer.returncode, longer.stderr) == (0, "")
    assert "epoch 2/2" in longer.stdout
    fewer = here("run", "--resume", "run", "--epochs", "1")
    assert (fewer.returncode, fewer.stdout) == (2, "")
    assert "--epochs: fewer epochs than before; got 1; accepted: 2 or more" in fewer.stderr

    (tmp_path / "run" / "study.sqlite").write_text("{", encoding="utf-8")
    damaged = here("results", "run")
    assert damaged.returncode == 2
    assert damaged.stderr.count("\n") == 1
    assert "study.sqlite: is damaged" in damaged.stderr


def test_families_are_listed_with_their_axes(here: Command) -> None:
    ran = here("families")
    assert (ran.returncode, ran.stderr) == (0, "")
    for word in ("cnn", "mlp", "digits", "breast_cancer", "width", "lr_scheduler", "none, step, cosine"):
        assert word in ran.stdout


def test_a_plan_shows_groups_and_trains_nothing(tmp_path: Path, here: Command) -> None:
    ran = here("plan", "--family", "mlp", "--grid", "lr=1e-3,1e-2", "--grid", "batch_size=32,64")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "4 variants in 2 arrays" in ran.stdout
    assert "#3 lr=0.01, batch_size=64" in ran.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    piped = f"{' '.join(command('families'))} | head -n 1"
    ran = subprocess.run(
        ["bash", "-c", piped],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=True,
    )
    assert ran.stdout.startswith("cnn")
    assert ran.stderr == ""


@pytest.mark.long
def test_a_terminal_without_unicode_gets_what_it_can_show(tmp_path: Path) -> None:
    ran = subprocess.run(
        command("families"),
        cwd=tmp_path,
        env=environment() | {"PYTHONIOENCODING": "ascii"},
        capture_output=True,
        timeout=DEADLINE_S,
        check=True,
    )
    assert ran.stdout.decode("ascii").startswith("cnn")
