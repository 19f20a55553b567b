"""`hfta-nb results --follow`: output of another process is shown while it is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from hfta_nb import events as ev
from hfta_nb.cli import main
from hfta_nb.cli.displays import Silent
from hfta_nb.cli.results import follow
from hfta_nb.records.history import History
from hfta_nb.records.store import Store
from tests.cli.fake import console, started, whole_run


class Noted(Silent):
    """Notes the events that it is to show."""

    def __init__(self) -> None:
        super().__init__(console()[0])
        self.events: list[ev.Event] = []

    def add(self, event: ev.Event) -> None:
        self.events.append(event)


def test_a_run_is_followed_until_nobody_is_at_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written between the last two looks is shown as well."""
    store, display = Store(tmp_path), Noted()
    going, waits = iter([True, True, False]), []
    monkeypatch.setattr(Store, "running", property(lambda self: next(going)))

    def wait(seconds: float) -> None:
        waits.append(seconds)
        store.append(ev.Heartbeat(float(len(waits))))

    store.append(started())
    follow(store, History(), display, wait)
    assert display.events == [started(), ev.Heartbeat(1.0), ev.Heartbeat(2.0)]


def test_the_command_shows_what_happened_and_the_leaderboard(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Store(tmp_path)
    for event in whole_run():
        store.append(event)
    assert main(["results", str(tmp_path), "--follow"]) == 0
    shown = capsys.readouterr().out
    assert "epoch" in shown
    assert "#2 DIVERGED" in shown
    assert "results: " in shown
