"""Faults in runs: store, events, requests, resumption."""

from __future__ import annotations

from tests.mutations.fault import Fault

FAULTS = (
    Fault(
        "checkpoint-pass",
        "hfta_nb/train/group_state.py",
        'self.steps, self.pass_, self.place = int(state["steps"]), int(state["pass"]), int(state["place"])',
        'self.steps, self.place = int(state["steps"]), int(state["place"])',
        "a run that is resumed goes through the data in the order of the first epoch",
        ("tests/core/test_study_members.py", "tests/core/test_intervals.py"),
    ),
    Fault(
        "checkpoint-scales",
        "hfta_nb/train/step/array_step.py",
        '        if self.scaler is not None:\n            self.scaler.load_state_dict(state["scaler"])\n',
        "",
        "loss scales begin anew when a run is resumed",
        ("tests/contract/test_mixed_precision.py", "tests/core/test_precision_of_studies.py"),
    ),
    Fault(
        "checkpoint-patience",
        "hfta_nb/train/members.py",
        "member.best_value, member.best_epoch, member.waited = float(value), epoch, waited",
        "member.best_value, member.best_epoch, member.waited = float(value), epoch, 0",
        "patience begins anew when a run is resumed",
        ("tests/core/test_study_members.py",),
    ),
    Fault(
        "repeated-events",
        "hfta_nb/records/store/journal.py",
        "if until > after:",
        "if until < after:",
        "the events of an epoch that is repeated after a resumption are there twice",
        ("tests/core/test_store.py",),
    ),
    Fault(
        "left-loop",
        "hfta_nb/study/loop.py",
        "if inspect.getgeneratorstate(work) != inspect.GEN_CLOSED:",
        "if not work:",
        "a run whose loop was left has no checkpoint and no weights",
        ("tests/core/test_leaving.py",),
    ),
    Fault(
        "early-stop",
        "hfta_nb/train/requests.py",
        "    trainer.early_stops.add(variant)\n    if found != ENDED:",
        "    if found != ENDED:",
        "the request to stop a variant that waits is forgotten",
        ("tests/core/test_study_members.py",),
    ),
    Fault(
        "repeated-point",
        "hfta_nb/records/history.py",
        "while self.steps and self.steps[-1] >= step:",
        "while self.steps and self.steps[-1] > step:",
        "the last point before a resumption is there twice",
        ("tests/core/test_events.py", "tests/ui/test_live_view.py"),
    ),
    Fault(
        "swallowed-error",
        "hfta_nb/study/running.py",
        "_ended_by(study, error))\n            raise\n",
        "_ended_by(study, error))\n",
        "the loop over a run that fails just ends",
        ("tests/core/test_study.py",),
    ),
)
