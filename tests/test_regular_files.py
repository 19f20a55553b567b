"""What is no file (a FIFO, a device, a socket, a directory, a link to one) is refused at once, whatever asks for it."""

from __future__ import annotations

import os
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import hfta_nb as hfta
from hfta_nb.cli import main
from hfta_nb.errors import DataError, HftaError, StoreError
from hfta_nb.records import regular_files
from hfta_nb.records.store import Store

KINDS = ("a FIFO", "a device", "a socket", "a directory")


@pytest.fixture(autouse=True)
def nothing_hangs() -> Iterator[None]:
    def late(*_: object) -> None:
        raise AssertionError("hangs")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def put(kind: str, path: Path) -> None:
    """Put something into the place of a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    if kind == "a FIFO":
        os.mkfifo(path)
    elif kind == "a device":
        path.symlink_to("/dev/zero")
    elif kind == "a socket":
        here = os.getcwd()
        os.chdir(path.parent)  # the name of a socket has no more than 107 bytes
        try:
            with socket.socket(socket.AF_UNIX) as made:
                made.bind(path.name)
        finally:
            os.chdir(here)
    else:
        path.mkdir()


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("regular") / "run"
    list(make(place).run())
    return place


def make(place: Path) -> hfta.Study:
    options = {"epochs": 1, "width": 2, "depth": 1, "device": "cpu", "deterministic": True}
    return hfta.Study("mlp", {"lr": [1e-2, 1e-1]}, "iris", directory=place, **options)


@pytest.mark.parametrize("mode", ["rb", "ab", "wb"])
def test_what_is_no_file_is_not_opened(kind: str, mode: str, tmp_path: Path) -> None:
    put(kind, tmp_path / "it")
    with pytest.raises(OSError, match=f"is {kind}, not a file"):
        regular_files.opened(tmp_path / "it", mode)


def test_a_file_is_read_written_and_added_to(tmp_path: Path) -> None:
    path = tmp_path / "it"
    for mode in ("ab", "ab", "wb"):
        with regular_files.opened(path, mode) as file:
            file.write(b"one")
        assert regular_files.text(path) == ("oneone" if path.stat().st_size > 3 else "one")
    with pytest.raises(OSError, match="more than 2 bytes"):
        regular_files.contents(path, 2)
    assert b"processor" in regular_files.contents("/proc/cpuinfo")  # which says that it has 0 bytes


def weights(place: Path) -> Path:
    return Store(place).weights_path(0)


def checkpoint(place: Path) -> Path:
    return next((place / "ends").iterdir())


@pytest.mark.parametrize("part", ["weights", "checkpoint", "run.lock", "study.sqlite", "study.sqlite-wal"])
def test_no_part_of_a_run_is_waited_for(kind: str, part: str, trained: Path, tmp_path: Path) -> None:
    place = Path(shutil.copytree(trained, tmp_path / "run"))
    path = {"weights": weights, "checkpoint": checkpoint}.get(part, lambda p: p / part)(place)
    put(kind, path)
    with pytest.raises(HftaError, match=f"is {kind}|another length"):
        use(place)


def use(place: Path) -> None:
    study = hfta.Study.load(place)
    for member in (0, 1):
        study.member(member).module()
    list(study.run(epochs=2))


def test_a_huge_file_is_not_read(trained: Path, tmp_path: Path) -> None:
    """Of holes: a terabyte takes no room, and an hour to read."""
    place = Path(shutil.copytree(trained, tmp_path / "run"))
    os.truncate(weights(place), 1 << 40)
    with pytest.raises(StoreError, match="another length"):
        Store(place).read_weights(0)


def test_a_copy_leaves_out_what_is_no_file(kind: str, trained: Path, tmp_path: Path) -> None:
    place = Path(shutil.copytree(trained, tmp_path / "run"))
    put(kind, place / "notes")
    hfta.Study.load(place).save(tmp_path / "copy")
    assert len(hfta.Study.load(tmp_path / "copy").results()) == 2
    assert (tmp_path / "copy" / "notes").exists() == (kind == "a directory")


def test_a_half_written_file_that_is_none_does_not_matter(trained: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("mine")
    study = make(tmp_path / "run")
    (study.directory / "weights").mkdir(parents=True)
    os.mkfifo(study.directory / "weights/0.1.safetensors.tmp")
    (study.directory / "weights/1.1.safetensors.tmp").symlink_to(outside)
    list(study.run())
    study.member(0).module()
    assert outside.read_text() == "mine"


def test_a_command_says_so(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(kind, tmp_path / "it")
    run = ["run", "--family", "mlp", "--grid", "lr=1e-3,1e-2", "--epochs", "1", "--output", str(tmp_path / "run")]
    for command in (["tune", str(tmp_path / "it")], [*run, "--csv", str(tmp_path / "it")]):
        assert main(command) == 2
        assert f"is {kind}, not a file" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_long_file_of_a_study_is_not_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "it.toml").touch()
    os.truncate(tmp_path / "it.toml", 1 << 40)
    assert main(["tune", str(tmp_path / "it.toml")]) == 2
    assert "more than 16,777,216 bytes" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["a FIFO", "a device"])
def test_data_are_files(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hfta_nb.data.readers import files, images

    put(kind, tmp_path / "it")
    reads: list[Callable[[Path], object]] = [files.contents, images.read_image]
    for read in reads:
        with pytest.raises(DataError, match=f"is {kind}, not a file"):
            read(tmp_path / "it")


@pytest.mark.parametrize("words", ["[" * 100_000, '{"a":' * 100_000, "nothing"], ids=["lists", "dicts", "no JSON"])
def test_what_is_no_json_is_a_value_error(words: str) -> None:
    with pytest.raises(ValueError, match=r"nested too deeply|Expecting value"):
        regular_files.parsed(words)
