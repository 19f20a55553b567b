"""AGENTS.md and llms.txt: what they say runs, and what they point to is there."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from hfta_nb.cli import main
from tests.cli.test_end_to_end import command, environment
from tests.pages.blocks import ROOT, blocks, marks

GUIDE = ROOT / "AGENTS.md"
DEADLINE_S = 120.0


def test_its_commands_and_its_python_run_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "guide"}
    kinds = set()
    for block in (b for b in blocks(GUIDE) if not b.mark):
        if block.language == "python":
            exec(compile("\n" * (block.line - 1) + block.code, str(GUIDE), "exec"), names)  # noqa: S102 - our own text
            continue
        for line in block.code.splitlines():
            program, *arguments = shlex.split(line)
            capsys.readouterr()
            assert (program, main(arguments)) == ("hfta-nb", 0), line
            if "--json" in arguments:
                kinds |= {json.loads(shown)["kind"] for shown in capsys.readouterr().out.splitlines()}
    assert kinds == {"doctor", "families", "plan", "event", "results", "runs"}
    assert {path.name for path in tmp_path.iterdir()} >= {"runs", "first.csv", "train.py", "train.safetensors"}


@pytest.mark.long
def test_a_run_of_another_process_is_steered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    asked = ("run", "--family", "mlp", "--data", "digits", "--grid", "lr=1e-3,1e-2", "--epochs", "100000")
    line = command(*asked, "--output", "runs/first", "--json")
    with subprocess.Popen(line, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        for shown in run.stdout:
            if json.loads(shown).get("type") == "EpochDone":
                break
        [block] = [b for b in blocks(GUIDE) if b.mark]
        steer = block.code.replace("handle.wait()\n", "")
        names: dict[str, object] = {}
        exec("import hfta_nb as hfta\n" + steer, names)  # noqa: S102 - our own text
        for shown in run.stdout:
            found = json.loads(shown)
            if found.get("type") == "MemberChanged" and found["variant"] == 0 and found["state"] == "STOPPED":
                break
        assert main(["stop", "runs/first", "--json"]) == 0
        results = json.loads(run.stdout.readlines()[-1])
        assert (results["kind"], results["state"]) == ("results", "STOPPED")
        assert run.wait(DEADLINE_S) == results["exit_code"] == 130
    assert {m["member"]: m["state"] for m in results["members"]} == {0: "STOPPED", 1: "STOPPED"}


@pytest.mark.parametrize("name", ["AGENTS.md", "llms.txt"])
def test_links_lead_somewhere(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)]+)\)", text)
    assert len(targets) > 1
    assert [target for target in targets if not (ROOT / target).exists()] == []


def test_a_block_that_is_not_run_says_why() -> None:
    marked = [b for b in blocks(GUIDE) if b.mark]
    assert marks(GUIDE) == len(marked) == 1
    assert marked[0].reason == "needs a run in another process"
