"""Output as JSON: what programs read instead of the screen."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hfta_nb.cli import json_lines, main
from hfta_nb.records.store import Store
from hfta_nb.records.summaries import history_of
from tests.cli.fake import whole_run
from tests.cli.test_end_to_end import DEADLINE_S, QUICK, command, environment

LEADERBOARD = """
import json, sys
members, run, results = {}, None, None
for line in sys.stdin:
    found = json.loads(line)
    assert found["schema"] == 1
    if found["kind"] == "results":
        results = found
    elif found["type"] == "RunStarted":
        run = found
    elif found["type"] == "MemberImproved":
        members[found["variant"]] = found["epoch"], float(found["value"])
worst = float("inf") if run["direction"] == "minimize" else -float("inf")
sign = 1 if run["direction"] == "minimize" else -1
ids = [variant["id"] for variant in run["variants"]]
order = sorted(ids, key=lambda i: (sign * members.get(i, (0, worst))[1], i))
print(json.dumps({"own": [[i, *members.get(i, (0, worst))] for i in order], "monitor": run["monitor"],
                  "theirs": results}))
"""


def documents(shown: str) -> list[dict[str, Any]]:
    """Each line, read strictly."""

    def refuse(constant: str) -> None:
        raise ValueError(constant)

    return [json.loads(line, parse_constant=refuse) for line in shown.splitlines()]


def test_a_run_piped_into_a_program_gives_the_leaderboard(tmp_path: Path) -> None:
    grid = ("--grid", "lr=1e-3,1e30,1e-2", "--grid", "seed=seeds(2)", "--optimizer", "sgd", "--epochs", "2", "--check")
    with subprocess.Popen(
        command("run", *QUICK, *grid, "--json"), cwd=tmp_path, env=environment(), stdout=subprocess.PIPE
    ) as first:
        reader = [sys.executable, "-c", LEADERBOARD]
        ran = subprocess.run(reader, stdin=first.stdout, capture_output=True, text=True, timeout=DEADLINE_S, check=True)
        assert first.wait(DEADLINE_S) == 0
    found = json.loads(ran.stdout)
    theirs = [[m["member"], m["best_epoch"], m["metrics"][found["monitor"]]] for m in found["theirs"]["members"]]
    assert found["own"][:4] == theirs[:4]
    assert {i for i, *_ in found["own"][4:]} == {i for i, *_ in theirs[4:]} == {2, 3}
    assert [m["state"] for m in found["theirs"]["members"]] == ["COMPLETE"] * 4 + ["DIVERGED"] * 2
    assert found["theirs"]["best"] == theirs[0][0]
    assert (found["theirs"]["state"], found["theirs"]["exit_code"]) == ("COMPLETE", 0)


@pytest.mark.long
def test_a_run_whose_reader_is_gone_ends_and_is_kept(tmp_path: Path) -> None:
    asked = ("run", *QUICK, "--grid", "lr=1e-3,1e-2", "--epochs", "100000", "--output", "run", "--json")
    with subprocess.Popen(
        command(*asked), cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as run:
        assert run.stdout is not None
        assert run.stderr is not None
        assert run.stdout.readline()
        run.stdout.close()
        assert run.wait(DEADLINE_S) == 141
        assert run.stderr.read() == b""
    assert history_of(Store(tmp_path / "run")).state == "STOPPED"


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    store = Store(tmp_path / "runs" / "one")
    for event in whole_run():
        store.append(event)
    return store.directory


def ran(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert main([*arguments, "--json"]) == code
    found = documents(capsys.readouterr().out)
    assert all(one["schema"] == json_lines.SCHEMA for one in found)
    return found


@pytest.mark.long
def test_commands_print_one_document(kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    [results] = ran(capsys, "results", str(kept))
    assert results["kind"] == "results"
    assert {m["member"] for m in results["members"] if m["state"] == "DIVERGED"} == {2}
    assert results["members"][0]["metrics"][results["monitor"]] > 0
    [runs] = ran(capsys, "runs", str(kept.parent))
    assert [Path(run["directory"]).name for run in runs["runs"]] == ["one"]
    [families] = ran(capsys, "families")
    assert "width" in {axis["axis"] for f in families["families"] if f["family"] == "mlp" for axis in f["axes"]}
    [plan] = ran(capsys, "plan", "--family", "mlp", "--data", "iris", "--grid", "width=8,16")
    assert sorted(i for array in plan["arrays"] for i in array["variants"]) == [v["id"] for v in plan["variants"]]
    [doctor] = ran(capsys, "doctor")
    assert {part["part"] for part in doctor["parts"]} >= {"torch", "device", "own CPU kernels", "disk"}


def test_a_run_that_is_followed_prints_its_events(kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    *events, results = ran(capsys, "results", str(kept), "--follow")
    assert [event["type"] for event in events] == [type(event).__name__ for event in whole_run()]
    assert results["kind"] == "results"


def test_errors_are_documents_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    [error] = ran(capsys, "plan", "--family", "mlp", "--grid", "widht=8", code=2)
    assert (error["kind"], error["error"], error["exit_code"]) == ("error", "GridError", 2)
    assert "did you mean width?" in error["remedy"]
    with pytest.raises(SystemExit) as ended:
        main(["run", "--epochs", "0", "--json"])
    shown = capsys.readouterr()
    [error] = documents(shown.out)
    assert ended.value.code == error["exit_code"] == 2
    assert error["message"] in shown.err
    [error] = ran(capsys, "stop", str(tmp_path), code=2)
    assert error["error"] == "StoreError"


def test_quiet_leaves_the_events_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("run", *QUICK, "--grid", "lr=1e-3,1e-2", "--epochs", "1", "--output", str(tmp_path / "run"))
    [results] = ran(capsys, *asked, "--quiet", "--csv", str(tmp_path / "all.csv"))
    assert len(results["members"]) == len((tmp_path / "all.csv").read_text().splitlines()) - 1 == 2
