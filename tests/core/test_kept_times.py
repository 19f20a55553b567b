"""Times of kernels, kept on disk: shared by threads and processes, whatever the file holds or the disk does."""

from __future__ import annotations

import contextlib
import errno
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hfta_nb.engine.kernels.strategy import times, timing_cache
from hfta_nb.engine.kernels.strategy.times import Kept
from hfta_nb.engine.kernels.strategy.timing_cache import VARIABLE, kept

CPU = torch.device("cpu")
MACHINE = {"device": "a processor", "torch": "2", "threads": 1}


def test_times_are_kept_and_shared(tmp_path: Path) -> None:
    path = tmp_path / "deeper" / "kernels.json"
    one, two = Kept(path, MACHINE), Kept(path, MACHINE)
    one.put("a", {"torch": 1.0, "other": None})
    two.put("b", {"torch": 2.0})
    assert one.get("b") == {"torch": 2.0}  # without reading all again
    assert one.own("a")
    assert not one.own("b")
    found = Kept(path, MACHINE)
    assert found.get("a") == {"torch": 1.0, "other": None}
    assert found.get("b") == {"torch": 2.0}
    assert [p.name for p in path.parent.iterdir()] == ["kernels.json"]


def test_what_the_first_process_has_measured_holds_for_all(tmp_path: Path) -> None:
    one, two = (Kept(tmp_path / "kernels.json", MACHINE) for _ in range(2))
    assert one.put("a", {"torch": 1.0, "other": 2.0}) == {"torch": 1.0, "other": 2.0}
    assert two.put("a", {"torch": 2.0, "other": 1.0}) == {"torch": 1.0, "other": 2.0}
    assert not two.own("a")
    assert two.put("b", {"torch": 3.0}, unless=("a",)) == {"torch": 1.0, "other": 2.0}
    assert one.get("b") is None


@pytest.mark.parametrize("kept_where", ["nowhere", "in a file", "in a file, by processes"])
def test_those_that_measure_at_once_agree(kept_where: str, tmp_path: Path) -> None:
    path, ends = None if kept_where == "nowhere" else tmp_path / "kernels.json", []
    shared = Kept(path, MACHINE)

    def measure(number: int) -> None:
        own = Kept(path, MACHINE) if "processes" in kept_where else shared
        ends.append([own.put(f"shape {i}", {"torch": 1.0 + number}) for i in range(50)])

    threads = [threading.Thread(target=measure, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(end == ends[0] for end in ends)
    assert path is None or len(path.read_bytes().splitlines()) == 51


def test_one_file_has_one_set_of_times_for_all_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "off")  # nothing on a disk on which two could agree
    timing_cache._kept.cache_clear()
    describe, found = timing_cache._processor, []

    def slowly() -> str:
        time.sleep(0.05)
        return describe()

    monkeypatch.setattr(timing_cache, "_processor", slowly)
    threads = [threading.Thread(target=lambda: found.append(kept(CPU))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    timing_cache._kept.cache_clear()
    assert len({id(one) for one in found}) == 1


def test_a_file_that_is_deleted_in_mid_run_changes_nothing_for_that_run(tmp_path: Path) -> None:
    path = tmp_path / "kernels.json"
    one, two = Kept(path, MACHINE), Kept(path, MACHINE)
    one.put("a", {"torch": 1.0})
    assert two.get("a") == {"torch": 1.0}
    path.unlink()
    later = Kept(path, MACHINE)
    assert later.put("a", {"torch": 2.0}) == {"torch": 2.0}
    later.put("b", {"torch": 3.0})
    for known in (one, two):
        assert known.get("b") == {"torch": 3.0}
        assert known.get("a") == {"torch": 1.0}
        assert known.fingerprint() == later.fingerprint()


HOLDER = """
import sys, time
from pathlib import Path
from hfta_nb.engine.kernels.strategy import times
with times._locked(Path(sys.argv[1])):
    print(flush=True)
    time.sleep(600)
"""


def test_nobody_waits_for_a_process_that_was_killed_while_it_wrote(tmp_path: Path) -> None:
    path = tmp_path / "kernels.json"
    known, ends = Kept(path, MACHINE), []
    command = [sys.executable, "-c", HOLDER, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        waiting = threading.Thread(target=lambda: ends.append(known.put("a", {"torch": 1.0})))
        waiting.start()
        waiting.join(0.2)
        assert waiting.is_alive()  # until it has written
        process.kill()
        waiting.join(30)
    assert ends == [{"torch": 1.0}]
    assert Kept(path, MACHINE).get("a") == {"torch": 1.0}


def test_a_fingerprint_stands_for_what_was_measured_before(tmp_path: Path) -> None:
    path = tmp_path / "kernels.json"
    known = Kept(path, MACHINE)
    assert known.fingerprint() == ""
    known.put("a", {"torch": 1.0})
    found = known.fingerprint()
    known.put("b", {"torch": 1.0})
    assert known.fingerprint() != found
    assert Kept(path, MACHINE).began_as(found)
    path.unlink()
    assert not known.began_as(found)
    Kept(path, MACHINE).put("a", {"torch": 1.5})
    assert not known.began_as(found)
    assert not Kept(None, MACHINE).began_as(found)
    assert not known.began_as("something else")


def test_times_that_are_of_one_process(tmp_path: Path) -> None:
    path = tmp_path / "kernels.json"
    found = Kept(path, MACHINE)
    found.put("a", {"torch": 1.0}, lasting=False)
    found.put("b", {"torch": 2.0})
    assert found.get("a") == {"torch": 1.0}
    assert Kept(path, MACHINE).get("a") is None
    assert Kept(path, MACHINE).get("b") == {"torch": 2.0}


@pytest.mark.parametrize("cut", [2, 10, 30])
def test_a_line_that_was_not_finished_is_left_out(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "kernels.json"
    known = Kept(path, MACHINE)
    known.put("a", {"torch": 1.0})
    known.put("b", {"torch": 1.0, "other": 2.0})
    path.write_bytes(path.read_bytes()[:-cut])
    found = Kept(path, MACHINE)
    assert (found.get("a"), found.get("b")) == ({"torch": 1.0}, None)
    found.put("c", {"torch": 3.0})
    again = Kept(path, MACHINE)
    assert (again.get("a"), again.get("b"), again.get("c")) == ({"torch": 1.0}, None, {"torch": 3.0})


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        '{"format": 1}',
        "\x00\x01",
        json.dumps({"format": 2, "machine": {"device": "another"}}) + '\n["a", {"torch": 1.0}]\n',
        json.dumps({"format": 2, "machine": MACHINE}) + '\n["a", {"torch": -1.0}]\n',
        json.dumps({"format": 2, "machine": MACHINE}) + '\n["a", "fast"]\n' + "[" * 100_000 + "\n",
        json.dumps({"format": 0, "machine": MACHINE}) + '\n["a", {"torch": 1.0}]\n',
    ],
)
def test_a_file_of_another_sort_is_replaced(tmp_path: Path, content: str) -> None:
    path = tmp_path / "kernels.json"
    path.write_text(content, encoding="utf-8")
    found = Kept(path, MACHINE)
    assert found.get("a") is None
    found.put("a", {"torch": 3.0})
    assert Kept(path, MACHINE).get("a") == {"torch": 3.0}


def test_a_place_that_can_not_be_written_is_no_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    found = Kept(tmp_path / "file" / "kernels.json", MACHINE)
    for name in "ab":
        assert found.put(name, {"torch": 3.0}) == {"torch": 3.0}
    assert found.get("a") == {"torch": 3.0}
    assert caplog.text.count("each process chooses anew") == 1


@pytest.mark.parametrize("space", [0, 10])
def test_a_disk_that_is_full_is_told_of(
    space: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    @contextlib.contextmanager
    def full(path: Path) -> Iterator[Any]:
        with locked(path) as file:
            write = file.write
            yield SimpleNamespace(
                fileno=file.fileno, truncate=file.truncate, write=lambda line: write(line[:space]) if space else fail()
            )

    def fail() -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    locked, path = times._locked, tmp_path / "kernels.json"
    found = Kept(path, MACHINE)
    found.put("a", {"torch": 1.0})
    monkeypatch.setattr(times, "_locked", full)
    assert found.put("b", {"torch": 2.0}) == {"torch": 2.0}
    assert "each process chooses anew" in caplog.text
    monkeypatch.setattr(times, "_locked", locked)
    assert Kept(path, MACHINE).put("b", {"torch": 3.0}) == {"torch": 3.0}
    assert found.get("b") == {"torch": 2.0}  # as it has chosen by it
    assert Kept(path, MACHINE).get("a") == {"torch": 1.0}


def test_where_it_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "off")
    assert kept(CPU).path is None
    monkeypatch.setenv(VARIABLE, str(tmp_path / "here"))
    assert (path := kept(CPU).path) is not None
    assert path.parent == tmp_path / "here"
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert (path := kept(CPU).path) is not None
    assert path.parent == tmp_path / "hfta_nb"


def test_times_hold_for_a_setting_of_tf32(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = torch.device("cuda", 0)
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
    files = set()
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=True):
        for allowed in (True, False, True):
            torch.backends.cudnn.allow_tf32 = allowed
            files.add(kept(device).path)
            assert kept(CPU).path not in files
    assert len(files) == 2


def test_other_sources_of_kernels_have_other_times(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HFTA_NB_CACHE", str(tmp_path))
    before = kept(CPU).path
    timing_cache._kept.cache_clear()
    monkeypatch.setattr(timing_cache, "sources_digest", lambda: "others")
    assert kept(CPU).path != before
    timing_cache._kept.cache_clear()
