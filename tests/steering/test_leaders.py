"""Members that are pulled toward the best of them, against plain modules in a loop of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from steering.scripted import TOLERANCE, Script, made
from steering.twins import Twin

import hfta_nb as hfta
from hfta_nb import events as ev
from hfta_nb.errors import HftaError, SearchError, StudyError
from hfta_nb.ui.edits import marks

GRID = {"lr": [1e-3, 1e-2, 3e-3, 3e-2, 1e-4]}


class Lockstep:
    """All members alone, step by step, with the pulls between them that a person would write.

    Args:
        study: whose members they are.
        gone: by member, the steps after which it trains no more.
    """

    def __init__(self, study: hfta.Study, gone: dict[int, int] | None = None) -> None:
        self.how, self.gone, self.steps = study.leader, gone or {}, 0
        configs = [{**study.fixed, **v.config, "seed": v.seed, "data_seed": study.seed} for v in study.variants]
        self.twins = dict(enumerate(Twin(c, study.epochs, study.data) for c in configs))  # type: ignore[arg-type]
        self.all, self.leaders, self.center = dict(self.twins), list[int](), dict[str, Any]()
        for _ in range(study.epochs):
            self._epoch()

    def _epoch(self) -> None:
        for _ in range(self.twins[0].length):
            for twin in self.twins.values():
                twin._step()
            self.steps += 1
            if self.steps % self.how.every == 0:
                self._pull_to_center() if self.how.leader == "center" else self._pull()
            self.twins = {i: twin for i, twin in self.twins.items() if self.gone.get(i) != self.steps}
        for twin in self.twins.values():
            twin._end_epoch()

    def _standing(self, twin: Twin) -> float:
        if self.how.leader == "val_loss":
            return twin.log[twin.epoch][1] if twin.log else float("nan")
        since = [loss for loss, _ in twin.parts[-self.how.every :]]
        return sum(since) / len(since)

    @torch.no_grad()
    def _pull(self) -> None:
        rows = {i: [p.clone() for p in twin.module.parameters()] for i, twin in self.twins.items()}
        standing = {i: value for i, twin in self.twins.items() if (value := self._standing(twin)) == value}
        if not standing:
            return
        best = min(standing, key=standing.__getitem__)
        self.leaders.append(best)
        for i, twin in self.twins.items():
            first = min((j for j in standing if (i - j) % self.how.groups == 0), key=standing.__getitem__)
            for place, p in enumerate(twin.module.parameters()):
                x = rows[i][place]
                p.copy_(x - self.how.pull * (x - rows[first][place]))
                if self.how.groups > 1:
                    p.sub_(self.how.global_pull * (x - rows[best][place]))

    @torch.no_grad()
    def _pull_to_center(self) -> None:
        for name, _ in self.twins[0].module.named_parameters():
            rows = [dict(twin.module.named_parameters())[name] for twin in self.twins.values()]
            center = self.center.setdefault(name, torch.stack(rows).mean(0))
            away = [x - center for x in rows]
            for x, apart in zip(rows, away, strict=True):
                x.sub_(self.how.pull * apart)
            self.center[name] = center + self.how.pull * sum(away)

    def difference(self, study: hfta.Study) -> float:
        """The largest difference of the losses of all recorded epochs."""
        found = 0.0
        for i, twin in self.all.items():
            for place, name in enumerate(("train_loss", "val_loss")):
                curve = study.history.members[i].curves[name]
                assert len(curve.values) == len(twin.log)
                pairs = zip(curve.epochs, curve.values, strict=True)
                found = max([found, *(abs(twin.log[int(epoch)][place] - value) for epoch, value in pairs)])
        return found


@pytest.mark.each
@pytest.mark.parametrize(
    "how",
    [
        hfta.Leader(every=2),
        hfta.Leader(0.2, 0.1, every=1, groups=2),
        hfta.Leader(every=2, leader="val_loss"),
        hfta.Leader(0.1, every=2, leader="center"),
    ],
)
def test_members_equal_plain_modules_that_are_pulled(tmp_path: Path, how: hfta.Leader) -> None:
    study = made(tmp_path, 4, GRID, population=how, weight_decay=0.01)
    list(study.run())
    alone = Lockstep(study)
    assert alone.difference(study) < TOLERANCE
    told = study.lineage()
    assert set(told["how"]) == ({"led"} if how.leader != "center" else set())
    assert set(told[told["changes"] == "leads=all"]["member"]) <= set(alone.leaders)


def test_the_lineage_and_the_curves_mark_who_leads(tmp_path: Path) -> None:
    study = made(tmp_path, 4, GRID, population=hfta.Leader(every=1))
    list(study.run())
    leaders = Lockstep(study).leaders
    by_epoch = [leaders[i : i + 3] for i in range(0, 12, 3)]
    most = [max(sorted(set(part)), key=part.count) for part in by_epoch]
    changes = [(epoch, v) for epoch, v in enumerate(most, 1) if epoch == 1 or v != most[epoch - 2]]
    told = study.lineage()
    assert list(zip(told["epoch"], told["member"], strict=True)) == changes
    assert {v: [epoch for epoch, _ in found] for v, found in marks(study.history).items()} == {
        v: [epoch for epoch, led in changes if led == v] for _, v in changes
    }
    assert all(words == "leads all" for found in marks(study.history).values() for _, words in found)


@pytest.mark.each
@pytest.mark.parametrize("leader", ["train_loss", "val_accuracy", "center"])
@pytest.mark.parametrize("stop", [7, 8])
def test_a_run_that_is_resumed_goes_on_to_the_bit(tmp_path: Path, leader: str, stop: int) -> None:
    how = hfta.Leader(0.2, every=2, groups=2, leader=leader)
    whole = made(tmp_path / "whole", 4, GRID, population=how)
    list(whole.run())
    list(made(tmp_path / "cut", 4, GRID, population=how).run(Script({stop: lambda c: c.stop()})))
    rest = hfta.Study.load(tmp_path / "cut", family=whole.family)
    assert rest.leader == how
    list(rest.run(resume=True))
    assert rest.lineage().equals(whole.lineage())
    for id, member in whole.history.members.items():
        assert rest.history.members[id].curves["val_loss"].values == member.curves["val_loss"].values
        ours, theirs = (s.member(id).module().state_dict() for s in (rest, whole))
        assert all(torch.equal(ours[k], theirs[k]) for k in theirs)


def test_a_member_that_has_stopped_neither_leads_nor_moves(tmp_path: Path) -> None:
    study = made(tmp_path, 4, GRID, population=hfta.Leader(0.3, every=1))
    list(study.run(Script({5: lambda c: c.stop(3)})))
    assert study.history.members[3].state == ev.STOPPED
    assert Lockstep(study, {3: 4}).difference(study) < TOLERANCE


def test_a_clone_takes_part_and_a_paused_member_does_not(tmp_path: Path) -> None:
    study = made(tmp_path, 4, GRID, population=hfta.Leader(0.3, every=1))
    script = {4: lambda c: c.clone(0, lr=1e-2), 5: lambda c: c.pause(3), 8: lambda c: c.resume(3)}
    list(study.run(Script(script)))
    assert study.history.count(ev.COMPLETE) == 6
    groups = {m.id: m.group for m in study.history.members.values()}
    assert groups[5] == groups[0] != groups[3]


def test_a_member_that_diverges_leads_nobody(tmp_path: Path) -> None:
    study = made(tmp_path, 3, [{"lr": lr} for lr in (1e-3, 1e308, 1e-2)], optimizer="sgd",
                 population=hfta.Leader(0.5, every=1))  # fmt: skip
    list(study.run())
    members = study.history.members
    assert members[1].state == ev.DIVERGED
    assert {members[i].state for i in (0, 2)} == {ev.COMPLETE}
    assert 1 not in set(study.lineage()["member"])


def test_unlike_architectures_have_leaders_of_their_own(tmp_path: Path) -> None:
    study = made(tmp_path, 2, {"width": [6, 8], "lr": [1e-3, 1e-2]}, population=hfta.Leader(every=1))
    list(study.run())
    groups = {m.id: m.group for m in study.history.members.values()}
    assert {groups[v] for v in study.lineage()["member"]} == set(groups.values()) == {0, 1}


def test_code_and_check_know_of_the_leader(tmp_path: Path) -> None:
    study = made(tmp_path, 1, population=hfta.Leader(every=1))
    list(study.run())
    assert f"population=hfta.{study.leader!r}," in study.to_code()
    with pytest.raises(StudyError, match="pulled toward others"):
        study.check()


@pytest.mark.parametrize(
    ("make", "kind", "words"),
    [
        (lambda p: made(p, population=hfta.Leader(), padding=0.5), StudyError, "share an architecture"),
        (lambda p: made(p, population=hfta.Leader(), serial=True), StudyError, "one after another"),
        (lambda p: made(p, population=hfta.Leader(), devices=2), StudyError, "several devices"),
        (lambda p: made(p, population=hfta.Leader(), trials=2), StudyError, "a search has none"),
        (lambda p: made(p, population=hfta.Leader(leader="val_f1")), StudyError, "nobody can lead by it"),
        (lambda p: made(p, population=hfta.Leader(), keep_checkpoints=["best", "rungs"]), StudyError, "at rungs"),
        (lambda p: hfta.Leader(pull=1.5), SearchError, "Leader, pull"),
        (lambda p: hfta.Leader(0.6, 0.6, groups=2), SearchError, "above 1"),
        (lambda p: hfta.Leader(every=0), SearchError, "Leader, every"),
        (lambda p: hfta.Leader(groups=1.5), SearchError, "Leader, groups"),  # type: ignore[arg-type]
        (lambda p: hfta.Leader(leader=3), SearchError, "Leader, leader"),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_leader_says_so(tmp_path: Path, make: Any, kind: type[HftaError], words: str) -> None:
    with pytest.raises(kind, match=words):
        make(tmp_path)
