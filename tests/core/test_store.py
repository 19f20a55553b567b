"""A run on disk: what is written is read back, and errors of writing and reading are reported."""

from __future__ import annotations

import contextlib
import errno
import json
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

import hfta_nb
from hfta_nb import events as ev
from hfta_nb.errors import StoreError, StoreWarning
from hfta_nb.records.store import Store, is_full, tensor_files
from hfta_nb.records.store.database import sum_of
from tests.core.stores import damage_event, last_checkpoint, opened

ASKED = {"family": "mlp"}


def with_events(directory: Path, count: int) -> Store:
    store = Store(directory)
    store.write_study(ASKED)
    for time_s in range(count):
        store.append(ev.Heartbeat(float(time_s)))
    return store


def test_events_are_numbered_and_read_from_any_number_on(tmp_path: Path) -> None:
    store = Store(tmp_path / "run")
    assert list(store.events()) == []
    first, second = ev.Heartbeat(1.0), ev.MemberChanged(2.0, 3, ev.STOPPED, "why <b>")
    assert [store.append(first), store.append(second)] == [1, 2]
    assert list(store.events()) == [(first, 1), (second, 2)]
    assert list(Store(tmp_path / "run").events(1)) == [(second, 2)]
    assert list(store.events(2)) == []


def test_another_one_follows_while_it_is_written(tmp_path: Path) -> None:
    writer, reader = with_events(tmp_path, 1), Store(tmp_path)
    with writer.claimed():
        writer.append(ev.Heartbeat(1.0))
        assert [number for _, number in reader.events(1)] == [2]
        writer.append(ev.Heartbeat(2.0))
        assert [number for _, number in reader.events(2)] == [3]
        assert reader.running
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.lock", "study.sqlite"]  # one file again


def test_a_damaged_event_is_left_out_and_told_of(tmp_path: Path) -> None:
    store = with_events(tmp_path, 5)
    damage_event(tmp_path, 2)
    with opened(tmp_path) as connection:
        connection.execute("DELETE FROM events WHERE number = 4")
    with pytest.warns(StoreWarning, match=r"study.sqlite: 2 events of 1 to 5 can't be read and are left out: 2, 4"):
        assert [number for _, number in store.events()] == [1, 3, 5]
    assert len(list(store.events())) == 3  # it is told once


def test_an_event_of_a_later_version_is_kept_and_passed_over(tmp_path: Path) -> None:
    store = with_events(tmp_path, 2)
    body = json.dumps({"type": "Teleported", "time_s": 1.0})
    with opened(tmp_path) as connection:
        connection.execute("INSERT INTO events VALUES (3, ?, ?)", (body, sum_of("events", 3, body)))
    assert store.append(ev.Heartbeat(9.0)) == 4
    assert [number for _, number in store.events()] == [1, 2, 4]
    assert [row.kind for row in store.rows()] == ["Heartbeat", "Heartbeat", "Teleported", "Heartbeat"]


def test_weights_are_a_plain_state_dict(tmp_path: Path) -> None:
    store = Store(tmp_path)
    shared = torch.arange(6.0).reshape(2, 3)
    weights = {"a": shared[0], "b": shared[0], "n": torch.tensor(3)}
    store.write_checkpoint({}, {4: weights})
    back = load_file(store.weights_path(4))
    assert set(back) == set(weights)
    assert all(torch.equal(back[k], v) for k, v in weights.items())
    with pytest.raises(StoreError, match="no such file in the run"):
        store.read_weights(5)
    path = store.weights_path(4)
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    with pytest.raises(StoreError, match="is damaged: its contents are not what was written"):
        store.read_weights(4)
    path.write_bytes(b"")
    with pytest.raises(StoreError, match="is damaged: it has another length"):
        store.read_weights(4)
    path.unlink()
    with pytest.raises(StoreError, match="no such file in the run"):
        store.read_weights(4)


TREE = {"epoch": 3, "none": None, "list": [1.5, {"t": torch.ones(2)}], "deep": {"t": torch.zeros(2, dtype=torch.uint8)}}


def test_a_checkpoint_comes_back_and_the_last_two_are_kept(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.write_checkpoint(TREE)
    back = last_checkpoint(store)
    assert (back["epoch"], back["none"]) == (3, None)
    assert torch.equal(back["list"][1]["t"], torch.ones(2))
    assert back["deep"]["t"].dtype == torch.uint8
    for epoch in (4, 5, 6):
        store.write_checkpoint({**TREE, "epoch": epoch}, {0: {"w": torch.full((2,), float(epoch))}})
    assert last_checkpoint(store)["epoch"] == 6
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["3.safetensors", "4.safetensors"]
    assert sorted(path.name for path in (tmp_path / "weights").iterdir()) == ["0.3.safetensors", "0.4.safetensors"]


@pytest.mark.parametrize("part", ["tensors", "weights", "row"])
def test_a_damaged_checkpoint_gives_way_to_the_one_before(tmp_path: Path, part: str) -> None:
    store = Store(tmp_path)
    for epoch in (1, 2):
        store.append(ev.EpochDone(0.0, 0, epoch, epoch, (0,), {"val_loss": (0.5,)}))
        store.write_checkpoint({**TREE, "epoch": epoch}, {0: {"w": torch.full((2,), float(epoch))}})
    if part == "row":
        with opened(tmp_path) as connection:
            connection.execute("UPDATE checkpoints SET body = replace(body, '1.5', '2.5') WHERE number = 2")
        with pytest.raises(StoreError, match="the last checkpoint is damaged"):
            store.read_weights(0)  # those of the one before are others
    else:
        path = tmp_path / ("checkpoints/2.safetensors" if part == "tensors" else "weights/0.2.safetensors")
        path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    with pytest.warns(StoreWarning, match="checkpoint 2 can't be used, the one before is"):
        assert store.go_back()["epoch"] == 1
    assert torch.equal(store.read_weights(0)["w"], torch.ones(2))
    assert [event.epoch for event, _ in store.events() if isinstance(event, ev.EpochDone)] == [1]
    store.write_checkpoint({**TREE, "epoch": 2})
    assert last_checkpoint(store)["epoch"] == 2


def test_where_all_checkpoints_are_damaged_that_is_told(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.write_checkpoint(TREE)
    (tmp_path / "checkpoints/1.safetensors").unlink()
    with pytest.raises(StoreError, match="no such file in the run"):
        store.go_back()


def test_events_after_the_checkpoint_come_once(tmp_path: Path) -> None:
    def epoch(number: int) -> ev.Event:
        return ev.EpochDone(0.0, 0, number, number, (0,), {"val_loss": (0.5,)})

    store = Store(tmp_path)
    store.append(epoch(1))
    store.write_checkpoint(TREE)
    last = [store.append(event) for event in (epoch(2), ev.RunChanged(0.0, ev.FAILED, "lost"))][-1]
    store.go_back()
    follower = [event for event, _ in store.events(last)]
    store.append(epoch(2))
    kinds = [getattr(event, "epoch", type(event).__name__) for event, _ in store.events()]
    assert (kinds, follower) == ([1, "RunChanged", 2], [])


def test_a_kill_while_a_checkpoint_is_written_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each of its steps: before and after each file, and before its row."""
    store = Store(tmp_path)
    store.write_checkpoint({"epoch": 1, "t": torch.ones(1)}, {0: {"w": torch.ones(1)}})
    steps = ["entry_of", "sync", "save_file"]
    for step in steps:
        method, left = getattr(tensor_files, step), [0]

        def dies(*given: Any, method: Any = method, left: list[int] = left) -> Any:
            if left[0] == 0:
                raise KeyboardInterrupt
            left[0] -= 1
            return method(*given)

        for skipped in range(4):
            left[0] = skipped
            monkeypatch.setattr(tensor_files, step, dies)
            try:
                store.write_checkpoint({"epoch": 2, "t": torch.zeros(1)}, {0: {"w": torch.zeros(1)}})
                done = True
            except KeyboardInterrupt:
                done = False
            monkeypatch.undo()
            back = Store(tmp_path)
            value = last_checkpoint(back)["epoch"]
            assert value == (2 if done else 1)
            assert float(back.read_weights(0)["w"]) == 2 - value
            store.write_checkpoint({"epoch": 1, "t": torch.ones(1)}, {0: {"w": torch.ones(1)}})


def no_room(*_: object) -> None:
    raise SafetensorError(f"Error while serializing: I/O error: No space left on device (os error {errno.ENOSPC})")


def test_a_full_disk_is_told_and_leaves_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = with_events(tmp_path, 1)
    store.write_checkpoint(TREE)
    monkeypatch.setattr(tensor_files, "save_file", no_room)
    with pytest.raises(StoreError, match=r"no room left on the disk.*carry on with run\(resume=True\)") as caught:
        store.write_checkpoint({**TREE, "epoch": 4})
    assert is_full(caught.value)
    monkeypatch.undo()
    assert last_checkpoint(store)["epoch"] == 3
    with store.claimed():
        connection = store._access._writer
        assert connection is not None
        connection.execute("PRAGMA max_page_count = 1")  # SQLite itself finds no room
        with pytest.raises(StoreError, match="no room left on the disk") as caught:
            store.append(ev.RunChanged(0.0, ev.FAILED, "x" * 400_000))
        assert is_full(caught.value)
    assert not is_full(StoreError("another"))
    assert next(store.events()) == (ev.Heartbeat(0.0), 1)


def test_another_version_is_told(tmp_path: Path) -> None:
    store = with_events(tmp_path, 1)
    store.note("environment", {"0000": {"hfta_nb": "7.8"}})
    with opened(tmp_path) as connection:
        connection.execute("PRAGMA user_version = 99")
    words = r"a run of a later version; got 99; accepted: up to 2; needs a later hfta_nb, .*\(7.8\)"
    with pytest.raises(StoreError, match=words):
        store.read_study()


def test_what_is_no_study_is_told(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for content in (b"{", b"SQLite format 3\0" + b"\0" * 200, b"x" * 5000):
        store.path.write_bytes(content)
        with pytest.raises(StoreError, match="is damaged"):
            store.read_study()


def test_a_trigger_in_the_file_is_refused(tmp_path: Path) -> None:
    store = with_events(tmp_path, 1)
    with opened(tmp_path) as connection:
        connection.execute("CREATE TRIGGER t AFTER INSERT ON events BEGIN DELETE FROM events; END")
    with pytest.raises(StoreError, match="its tables are not those of a study"):
        store.append(ev.Heartbeat(0.0))


def test_facts_come_back_and_damaged_ones_are_told_of(tmp_path: Path) -> None:
    store = with_events(tmp_path, 0)
    store.note("variant", {"0": {"lr": 0.1}, "1": {"lr": 0.2}})
    store.note("variant", {"1": {"lr": 0.3}})
    assert store.notes("variant") == {"0": {"lr": 0.1}, "1": {"lr": 0.3}}
    with opened(tmp_path) as connection:
        connection.execute("UPDATE facts SET body = '{}' WHERE key = '0' OR kind = 'study'")
    with pytest.warns(StoreWarning, match="the variant 0 is damaged"):
        assert store.notes("variant") == {"1": {"lr": 0.3}}
    with pytest.raises(StoreError, match="what was asked is damaged"):
        store.read_study()


def test_copies_do_not_overwrite_and_leave_out_what_is_damaged(tmp_path: Path) -> None:
    store = with_events(tmp_path / "a", 3)
    store.write_checkpoint(TREE, {0: {"w": torch.ones(1)}})
    damage_event(tmp_path / "a", 2)
    with pytest.warns(StoreWarning, match="1 event is damaged and not copied"):
        store.copy_to(tmp_path / "b")
    copied = Store(tmp_path / "b")
    assert copied.read_study() == ASKED
    with pytest.warns(StoreWarning, match="left out: 2"):
        assert [number for _, number in copied.events()] == [1, 3]
    assert (last_checkpoint(copied)["epoch"], float(copied.read_weights(0)["w"])) == (3, 1.0)
    with pytest.raises(StoreError, match="a run is already there"):
        store.copy_to(tmp_path / "b")


def test_what_cannot_be_a_run_is_told(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"study.sqlite: can't be looked at \(File name too long\)"):
        list(Store(tmp_path / ("y" * 300)).events())
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=r"file: can't be made \(File exists\); accepted: a directory"):
        Store(tmp_path / "file").write_study({})
    with pytest.raises(StoreError, match="can't be made"):
        Store(tmp_path / "file" / "run").write_study({})
    with pytest.raises(StoreError, match="can't be made"):
        Store(tmp_path / "a\0b").write_study({})
    store = Store(tmp_path / "run")
    store.write_study({})
    with pytest.raises(StoreError, match=r"study.sqlite: is not what was saved; got \[\]; accepted: family, grid"):
        hfta_nb.Study.load(store.directory)
    with pytest.raises(StoreError, match="no checkpoint here yet"):
        last_checkpoint(store)


WRONG: list[tuple[str, Any]] = [
    *[("family", 3), ("grid", []), ("grid", {"lr": 1e-3}), ("grid", {"lr": [{}]}), ("data", {"name": 1})],
    *[("options", []), ("options", {"epochs": "2"}), ("variants", [3]), ("added", [{"variants": 1}]), ("own", "loss")],
]


@pytest.mark.parametrize(("part", "value"), WRONG)
def test_what_was_asked_is_checked_by_its_types(tmp_path: Path, part: str, value: Any) -> None:
    study = hfta_nb.Study("mlp", {"lr": [1e-3]}, "iris", device="cpu", directory=tmp_path)
    study.save(tmp_path)
    study.store.write_study({**study.store.read_study(), part: value})
    with pytest.raises(StoreError, match="is not what was saved"):
        hfta_nb.Study.load(tmp_path)


def test_a_run_is_claimed_by_one_at_a_time(tmp_path: Path) -> None:
    one, two = Store(tmp_path / "run"), Store(tmp_path / "run")
    with one.claimed():
        with pytest.raises(StoreError, match="the run is in progress elsewhere"), two.claimed(patience_s=0):
            pass
        with pytest.raises(OSError, match="of its own"), Store(tmp_path / "other").claimed():
            raise OSError("of its own")
        one.write_study(ASKED)
    with two.claimed(patience_s=0):
        assert two.read_study() == ASKED


def hold(path: Path, taken: threading.Event, release: threading.Event) -> None:
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        taken.set()
        release.wait(30)
        other.execute("ROLLBACK")


def test_another_programs_transaction_is_waited_for(tmp_path: Path) -> None:
    store, taken, release = Store(tmp_path), threading.Event(), threading.Event()
    store.write_study({"is": "there"})
    other = threading.Thread(target=hold, args=(store.path, taken, release))
    other.start()
    taken.wait(30)
    threading.Timer(0.5, release.set).start()
    with store.claimed():
        assert release.is_set()
        store.append(ev.Heartbeat(0.0))
    other.join()


@pytest.mark.parametrize(
    "sql", [[], ["PRAGMA journal_mode = WAL"], ["PRAGMA user_version = 0", "CREATE TABLE t (a)", "DROP TABLE t"]]
)
def test_a_database_with_nothing_in_it_is_none(tmp_path: Path, sql: list[str]) -> None:
    """As another program leaves it that has only looked."""
    store = Store(tmp_path / "run")
    store.directory.mkdir()
    store.path.touch()
    with contextlib.closing(sqlite3.connect(store.path)) as other:
        for one in sql:
            other.execute(one)
    assert not store.exists
    with store.claimed():
        assert not store.has_events
        store.write_study({"is": "there"})
    assert Store(store.directory).read_study() == {"is": "there"}
    assert [path.name for path in store.directory.iterdir() if "tmp" in path.name] == []


def test_a_database_of_something_else_stays_as_it_is(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with contextlib.closing(sqlite3.connect(store.path)) as other:
        other.execute("CREATE TABLE mine (a)")
    content = store.path.read_bytes()
    with pytest.raises(StoreError, match="no study"), store.claimed():
        pass
    assert store.path.read_bytes() == content


def test_a_database_that_was_emptied_is_damaged(tmp_path: Path) -> None:
    """Its weights are there."""
    store = Store(tmp_path)
    store.write_checkpoint({}, {0: {"w": torch.zeros(2)}})
    store.path.write_bytes(b"")
    with pytest.raises(StoreError, match="damaged"):
        store.read_study()
