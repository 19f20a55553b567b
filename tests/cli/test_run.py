"""`hfta-nb run` with scripted runs: exit codes, interrupts, final messages."""

from __future__ import annotations

import argparse
import errno
import io
import os
import resource
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rich.console import Console

import hfta_nb
from hfta_nb import events as ev
from hfta_nb.cli import run, studies
from hfta_nb.cli.displays import Lines
from hfta_nb.cli.options import parse
from hfta_nb.errors import DeviceError, HftaError, StoreError, StudyError
from hfta_nb.records.events import Control, Event, Stop
from tests.cli.fake import FakeStudy, console, folded, planned, started, whole_run


def train(study: FakeStudy) -> tuple[int, str]:
    """Exit code and lines of a run."""
    out, file = console(width=10_000)
    code = run.train(study, Lines(out, lambda: study.history), out)  # type: ignore[arg-type]
    return code, file.getvalue()


def test_a_run_that_completes_gives_0() -> None:
    code, shown = train(FakeStudy(whole_run()))
    assert code == 0
    assert "#2 DIVERGED" in shown


def test_a_run_that_was_stopped_gives_130() -> None:
    assert train(FakeStudy([started(), ev.RunChanged(0.0, ev.STOPPED)]))[0] == 130


def test_what_can_not_begin_is_wrong_input() -> None:
    with pytest.raises(StudyError, match="already there"):
        train(FakeStudy([StudyError("a run is already there")]))


def test_where_arrays_train_is_passed_on() -> None:
    class Placed(FakeStudy):
        def run(self, control: Control | None = None, resume: bool = False, **where: object) -> Iterator[Event]:
            assert where == {"executor": "ray", "address": "auto"}
            yield from super().run(control, resume)

    given = parse(["run", "--family", "mlp", "--executor", "ray", "--address", "auto"])
    study, (out, _) = Placed(whole_run()), console()
    assert run.train(study, Lines(out, lambda: study.history), out, where=studies.where(given)) == 0  # type: ignore[arg-type]


@pytest.mark.parametrize("error", [DeviceError("out of memory"), RuntimeError("out of memory")])
def test_what_fails_on_the_way_says_where_to_look_and_gives_1(
    error: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = ev.CheckpointSaved(0.0, 0, 1, "run/checkpoint.json")
    code, _ = train(FakeStudy([started(), planned((0, 1, 2)), saved, error], Path("some run")))
    last = capsys.readouterr().err.splitlines()[-1]
    assert code == 1
    assert last.startswith("hfta-nb: error: the run failed: ")
    assert "out of memory" in last
    assert last.endswith("hfta-nb run --resume 'some run'")


def test_a_run_that_says_it_failed_gives_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert train(FakeStudy([started(), ev.RunChanged(0.0, ev.FAILED, "no more memory")]))[0] == 1
    assert "no more memory" in capsys.readouterr().err


class Interrupting(FakeStudy):
    """Gets signals while it runs, and stops when it is asked to."""

    def __init__(self, *numbers: signal.Signals) -> None:
        super().__init__([started(), planned((0, 1, 2))])
        self._numbers = numbers
        self.requests: list[object] = []

    def run(self, control: Control | None = None, resume: bool = False) -> Iterator[Event]:
        assert control is not None
        yield from super().run(control, resume)
        for number in self._numbers:
            os.kill(os.getpid(), number)
        self.requests = list(control.poll())
        state = ev.STOPPED if self.requests else ev.COMPLETE
        self.history.add(ev.RunChanged(0.0, state))
        yield ev.RunChanged(0.0, state)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_stops_the_run_between_two_steps(number: signal.Signals) -> None:
    study = Interrupting(number)
    code, shown = train(study)
    assert code == 130
    assert study.requests == [Stop(None)]
    assert "stopping after this step, everything is kept" in shown


def test_a_second_interrupt_ends_the_program() -> None:
    with pytest.raises(KeyboardInterrupt):
        train(Interrupting(signal.SIGINT, signal.SIGINT))


def test_an_interrupt_after_the_run_is_handled_as_before() -> None:
    before = signal.getsignal(signal.SIGINT)
    train(Interrupting(signal.SIGINT))
    assert signal.getsignal(signal.SIGINT) is before


def report(events: list[Event], csv: str | None = None) -> str:
    out, file = console(width=10_000)
    study = FakeStudy(events, Path("a run"))
    train(study)
    run.report(study.history, Path.cwd() / "a run", out, csv)
    return file.getvalue()


def test_the_end_says_what_won_and_where_it_lies() -> None:
    shown = report(whole_run())
    assert "COMPLETE in 0:02: 2 complete, 1 diverged" in shown
    assert "best: #1 val_accuracy 0.875 at epoch 4 (lr=0.01)" in shown
    assert "results: 'a run' (again: hfta-nb results 'a run')" in shown
    assert "resume" not in shown


def test_a_stopped_run_says_how_to_carry_on() -> None:
    shown = report([*whole_run()[:-1], ev.RunChanged(0.0, ev.STOPPED)])
    assert shown.splitlines()[-1] == "stopped; to resume: hfta-nb run --resume 'a run'"


def test_the_csv_is_written_and_named(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    assert report(whole_run(), str(path)).splitlines()[-1] == f"leaderboard: {path}"
    assert path.read_text(encoding="utf-8").startswith("member,state,")


def test_a_csv_that_can_not_be_written_any_more_is_written_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    taken, place, history = tmp_path / "a.csv", tmp_path / "run", folded(whole_run())
    taken.mkdir()
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for found in (place / "leaderboard.csv", tmp_path / "run.leaderboard.csv"):
        assert run.report(history, place, console()[0], str(taken)) == 1
        why = f"{taken}: can't be written (is a directory, not a file); the leaderboard is in {found}"
        assert capsys.readouterr().err == f"hfta-nb: error: {why}\n"
        assert found.read_text(encoding="utf-8").startswith("member,state,")
        shutil.rmtree(place, ignore_errors=True)


def test_a_csv_for_which_there_is_no_room_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, history, before = tmp_path / "a.csv", folded(whole_run()), resource.getrlimit(resource.RLIMIT_FSIZE)
    path.write_text("kept", encoding="utf-8")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    out = console()[0]
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))  # a file of more bytes can't be written, as on a disk
    try:
        assert run.report(history, tmp_path, out, str(path)) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "nor is there another place; once there is room: hfta-nb results" in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["a.csv"]
    assert path.read_text(encoding="utf-8") == "kept"


def test_a_standard_output_that_is_full_is_said_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    study, path, out = FakeStudy(whole_run()), tmp_path / "a.csv", Console(file=Full(), width=100)
    assert run.train(study, Lines(out, lambda: study.history), out) == 1  # type: ignore[arg-type]
    with pytest.raises(StoreError, match="standard output: can't be written"):
        run.report(folded(whole_run()), tmp_path, out, str(path))
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert said[0].startswith("hfta-nb: error: the run failed: standard output: can't be written (No space left on")
    assert path.exists()


@pytest.mark.parametrize(("equal", "code", "verdict"), [(True, 0, "equals"), (False, 1, "DIFFERS from")])
def test_a_check_says_how_far_off(equal: bool, code: int, verdict: str) -> None:
    checked = ev.MemberChecked(0.0, 1, 3, {"val_loss": 2e-7, "train_loss": 1e-9, "val_accuracy": 0.1}, 1e-5, equal)
    out, file = console(width=10_000)
    study = FakeStudy(whole_run(), checks=[ev.Heartbeat(0.0), checked])
    assert run.check(study, (1,), out) == code  # type: ignore[arg-type]
    assert file.getvalue() == (
        f"check: #1 {verdict} the same variant trained alone: over 3 epochs the largest difference is "
        "2e-07 (val_loss), 1e-05 is allowed\n"
    )


def test_one_member_that_differs_is_enough_for_1() -> None:
    checks = [ev.MemberChecked(0.0, i, 3, {"val_loss": 0.25}, 1e-5, equal) for i, equal in enumerate([False, True])]
    out, _ = console(width=10_000)
    assert run.check(FakeStudy(whole_run(), checks=checks), (0, 1), out) == 1  # type: ignore[arg-type]


def test_a_check_that_can_not_tell_says_so() -> None:
    checked = ev.MemberChecked(0.0, 1, 3, {"val_loss": 0.25}, 4.0, False, False)
    out, file = console(width=10_000)
    assert run.check(FakeStudy(whole_run(), checks=[checked]), (1,), out) == 1  # type: ignore[arg-type]
    shown = file.getvalue()
    assert shown.startswith("check: #1 CAN'T BE TOLD from the same variant trained alone: over 3 epochs the largest")
    assert shown.endswith(
        "which rounding alone may make and is more than the loss itself; check with --dtype float64\n"
    )


def test_paths_are_shown_as_they_would_be_typed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert run.shown_path(tmp_path / "runs" / "a b") == "'runs/a b'"
    assert run.shown_path(tmp_path.parent / "elsewhere") == str(tmp_path.parent / "elsewhere")


def given(**changes: object) -> argparse.Namespace:
    from hfta_nb.cli.options import parse

    made = parse(["run"])
    vars(made).update(changes)
    return made


WRONG: list[tuple[dict[str, object], str]] = [
    ({}, "--family: no family given"),
    ({"family": "cnnn"}, "did you mean cnn?"),
    ({"family": "mlp", "data": "mnist"}, "mnist"),
    ({"family": "mlp", "grid": ["learning_rate=1"]}, "unknown axis"),
    ({"family": "mlp", "grid": ["widht=1"]}, "did you mean width?"),
    ({"family": "mlp", "grid": ["lr"]}, "no = between name and values"),
    ({"family": "mlp", "grid": ["lr=1e-3,2e"]}, '"2e" is not a number'),
    ({"family": "mlp", "grid": ["lr=fast"]}, "not a number"),
    ({"family": "mlp", "grid": ["lr="]}, "no values"),
    ({"family": "mlp", "grid": ["lr=1e-3,1e-3"]}, "is given twice"),
    ({"family": "mlp", "grid": ["lr=1e-3", "lr=1e-2"]}, "lr: is given twice; put all its values into one --grid"),
    ({"family": "mlp", "grid": ["optimizer=rpropp"]}, "not a choice"),
    ({"family": "mlp", "grid": ["lr=1e-3"], "lr": "1e-2"}, "lr: is swept by --grid and fixed as well"),
    ({"family": "mlp", "set": ["lr=1e-3,1e-2"]}, "--set takes one value"),
    ({"family": "mlp", "lr": "-1"}, "out of bounds"),
    ({"family": "mlp", "batch_size": "many"}, "not a number"),
    ({"family": "mlp", "monitor": "beauty"}, "unknown metric"),
    ({"family": "mlp", "device": "abacus"}, "unknown device"),
]


@pytest.mark.parametrize(("changes", "message"), WRONG)
def test_a_study_that_can_not_be_says_why_on_one_line(changes: dict[str, object], message: str) -> None:
    with pytest.raises(HftaError) as error:
        studies.new(given(**changes))
    assert message in error.value.message
    assert "\n" not in error.value.message


def test_options_reach_the_study(tmp_path: Path) -> None:
    study = studies.new(
        given(
            family="mlp",
            data="digits",
            grid=["lr=1e-3,1e-2", "width=integers(8,9)"],
            set=["momentum=0.9"],
            optimizer="sgd",
            batch_size="32",
            epochs=3,
            patience=2,
            member_steps=60,
            member_seconds=2.5,
            keep_checkpoints=["best", "last"],
            dtype="float64",
            seed=5,
            serial=True,
            output=str(tmp_path / "run"),
        )
    )
    assert study.grid.axes == {"lr": (1e-3, 1e-2), "width": (8, 9)}
    assert study.fixed == {"momentum": 0.9, "optimizer": "sgd", "batch_size": 32}
    assert (study.epochs, study.patience, study.seed, study.serial) == (3, 2, 5, True)
    assert (study.member_steps, study.member_seconds) == (60, 2.5)
    assert study.keep_checkpoints == ("best", "last")
    assert str(study.dtype) == "torch.float64"
    assert study.directory == tmp_path / "run"


def test_precision_reaches_the_study() -> None:
    assert studies.new(given(family="mlp", precision="bf16")).precision == "bf16"
    with pytest.raises(StudyError, match="bf16 is a precision of float32 models"):
        studies.new(given(family="mlp", precision="bf16", dtype="float64"))


def test_what_is_not_given_is_left_to_the_study() -> None:
    study, plain = studies.new(given(family="mlp")), hfta_nb.Study("mlp")
    assert (study.epochs, study.seed, study.monitor) == (plain.epochs, plain.seed, plain.monitor)


def test_a_file_that_can_be_written_is_not_left_behind(tmp_path: Path) -> None:
    studies.check_writable(str(tmp_path / "new.csv"))
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_there_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "old.csv"
    path.write_text("kept", encoding="utf-8")
    studies.check_writable(str(path))
    assert path.read_text(encoding="utf-8") == "kept"


def _read_only(place: Path) -> Path:
    return Path("/proc/version")


def _full(place: Path) -> Path:
    return Path("/dev/full")


@pytest.mark.parametrize(
    "place", [lambda p: p, lambda p: p / "missing" / "a.csv", lambda p: p / ("a" * 300), _read_only, _full]
)
def test_a_file_that_can_not_be_written_is_an_error_before_the_work(
    tmp_path: Path, place: Callable[[Path], Path]
) -> None:
    with pytest.raises(StoreError):
        studies.check_writable(str(place(tmp_path)))


def test_a_disk_that_is_full_is_an_error_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "write", lambda handle, data: len(data) - 1)
    with pytest.raises(StoreError, match="No space left on device"):
        studies.check_writable(str(tmp_path / "a.csv"))
    assert list(tmp_path.iterdir()) == []


def test_what_belongs_to_the_study_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "study.sqlite")
    for name in ("study.sqlite", ".", "link", "weights/0.safetensors"):
        with pytest.raises(StoreError, match="is a file of the study; choose another name"):
            studies.check_writable(str(tmp_path / name), tmp_path)
    studies.check_writable(str(tmp_path / "leaderboard.csv"), None, tmp_path)


def test_a_member_to_check_must_exist() -> None:
    with pytest.raises(StudyError, match="no such member"):
        run._check_members(FakeStudy(whole_run()), (0, 7))  # type: ignore[arg-type]
