"""A run on disk: what was written comes back, what is damaged is told."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import hfta_nb
from hfta_nb import events as ev
from hfta_nb.errors import StoreError
from hfta_nb.store import Store


def test_events_are_appended_and_a_cut_line_is_left_out(tmp_path: Path) -> None:
    store = Store(tmp_path / "run")
    first, second = ev.Heartbeat(1.0), ev.MemberChanged(2.0, 3, ev.STOPPED, "why <b>")
    store.append(first)
    store.append(second)
    assert [e for e, _ in store.events()] == [first, second]
    offset = next(o for e, o in store.events() if e == first)
    assert [e for e, _ in store.events(offset)] == [second]
    with store.events_path.open("a") as file:
        file.write('{"type": "Heartb')
    assert [e for e, _ in store.events()] == [first, second]
    with store.events_path.open("a") as file:
        file.write("\n")
    with pytest.raises(StoreError, match="a damaged line"):
        list(store.events())


def test_weights_are_a_plain_state_dict(tmp_path: Path) -> None:
    store = Store(tmp_path)
    shared = torch.arange(6.0).reshape(2, 3)
    weights = {"a": shared[0], "b": shared[0], "n": torch.tensor(3)}
    store.write_weights(4, weights)
    back = load_file(store.weights_path(4))
    assert set(back) == set(weights)
    assert all(torch.equal(back[k], v) for k, v in weights.items())
    with pytest.raises(StoreError, match="no such file in the run"):
        store.read_weights(5)
    store.weights_path(4).write_bytes(b"\x00" * 20)
    with pytest.raises(StoreError, match="can't be read"):
        store.read_weights(4)


def test_a_checkpoint_is_whole_or_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)
    tree = {
        "epoch": 3,
        "none": None,
        "list": [1.5, {"t": torch.ones(2)}],
        "deep": {"t": torch.zeros(2, dtype=torch.uint8)},
    }
    store.write_checkpoint(tree)
    back = store.read_checkpoint()
    assert back["epoch"] == 3
    assert back["none"] is None
    assert torch.equal(back["list"][1]["t"], torch.ones(2))
    assert back["deep"]["t"].dtype == torch.uint8

    def broken(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(Store, "_write_json", broken)
    with pytest.raises(OSError, match="disk full"):
        store.write_checkpoint({"epoch": 4})
    monkeypatch.undo()
    assert store.read_checkpoint()["epoch"] == 3
    store.write_checkpoint({"epoch": 4})  # without tensors those of the last one go
    assert store.read_checkpoint() == {"epoch": 4}
    assert len(list(tmp_path.glob("checkpoint-*.safetensors"))) == 1


def test_another_version_is_told(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.write_study({"family": "mlp"})
    (tmp_path / "study.json").write_text('{"format": 99}')
    with pytest.raises(StoreError, match="another version"):
        store.read_study()
    (tmp_path / "study.json").write_text("{")
    with pytest.raises(StoreError, match="can't be read"):
        store.read_study()


def test_a_directory_that_can_not_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="can't be made"):
        Store(tmp_path / "file" / "run").write_study({})


def test_copies_do_not_overwrite(tmp_path: Path) -> None:
    store = Store(tmp_path / "a")
    store.write_study({"family": "mlp"})
    store.copy_to(tmp_path / "b")
    assert Store(tmp_path / "b").read_study()["family"] == "mlp"
    with pytest.raises(StoreError, match="a run is already there"):
        store.copy_to(tmp_path / "b")


def test_what_cannot_be_a_run_is_told(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"events.jsonl: can't be looked at \(File name too long\)"):
        list(Store(tmp_path / ("y" * 300)).events())
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=r"file: can't be made \(File exists\); accepted: a directory"):
        Store(tmp_path / "file").write_study({})
    with pytest.raises(StoreError, match="can't be made"):
        Store(tmp_path / "a\0b").write_study({})
    store = Store(tmp_path / "run")
    store.write_study({})
    with pytest.raises(
        StoreError, match=r"study.json: is not what was saved; got \['format'\]; accepted: family, grid"
    ):
        hfta_nb.Study.load(store.directory)
    (store.directory / "checkpoint.json").write_text("{}")
    with pytest.raises(StoreError, match=r"checkpoint.json: is not what was saved \('state' is missing\)"):
        store.read_checkpoint()


def test_a_run_is_claimed_by_one_at_a_time(tmp_path: Path) -> None:
    one, two = Store(tmp_path), Store(tmp_path)
    with pytest.raises(StoreError, match=r"study.json: can't be read"), one.claimed():
        pass
    one.write_study({})
    with one.claimed():
        with pytest.raises(StoreError, match="the run is in progress elsewhere"), two.claimed(patience_s=0):
            pass
        with pytest.raises(OSError, match="of its own"), Store(_other(tmp_path)).claimed():
            raise OSError("of its own")
    with two.claimed(patience_s=0):
        pass


@pytest.mark.parametrize("whole", [0, 1, 3])
@pytest.mark.parametrize("cut", [0, 1, 200_000])
def test_a_line_that_was_cut_short_goes_when_a_run_goes_on(tmp_path: Path, whole: int, cut: int) -> None:
    store = Store(tmp_path)
    store.write_study({})
    kept = [ev.Heartbeat(float(i)) for i in range(whole)]
    for event in kept:
        store.append(event)
    with store.events_path.open("a") as file:
        file.write("x" * cut)
    with store.claimed():
        store.append(ev.Heartbeat(9.0))
    assert [e for e, _ in store.events()] == [*kept, ev.Heartbeat(9.0)]


def _other(directory: Path) -> Path:
    other = Store(directory / "other")
    other.write_study({})
    return other.directory
