"""The results of a study, as tables."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hfta_nb.data import Fold
from hfta_nb.errors import StudyError
from hfta_nb.figures.html import pairs
from hfta_nb.records.speeds import Pace, run_of, step_of
from hfta_nb.search.averages import Average, averages, over_folds
from hfta_nb.search.grid import show
from hfta_nb.study import searching
from hfta_nb.study.adding import axes
from hfta_nb.study.result import Result
from hfta_nb.study.study_state import StudyState, variant_of

if TYPE_CHECKING:
    import pandas

    from hfta_nb.records.history import Member

ALL = "all"


def results(study: StudyState, over: str | Sequence[str] | None = None) -> pandas.DataFrame:
    """See `Study.results`."""
    from hfta_nb.figures.tables import Table

    history = study.history
    if not history.members:
        raise StudyError("not run yet", where=study.name, remedy="iterate study.run(), or call study.fit(), first")
    if over is not None:
        folds = study.data.folds if "fold" in ([over] if isinstance(over, str) else over) else ()
        return _averaged(study, averages(history, over), folds)
    rows: list[dict[str, Any]] = [{"member": row["member"], "rank": ""} | row for row in history.rows()]
    trials = {} if study.searcher is None else study.searcher.numbers
    infeasible, costs = searching.infeasible(study), history.costs()
    for rank, (row, member) in enumerate(zip(rows, history.leaderboard(), strict=True), start=1):
        row["rank"] = str(rank) if member.best_epoch else "-"
        row |= costs[member.id]
        if trials:
            row["trial"] = trials.get(member.id, -1)
        if infeasible:
            row["feasible"] = member.id not in infeasible
    first = ["rank", *varying(study), study.monitor, "state", "best_epoch"]
    return Table(rows, "member", first, dict.fromkeys(axes(study), show))


def _averaged(study: StudyState, found: list[Average], folds: Sequence[Fold]) -> pandas.DataFrame:
    from hfta_nb.figures.tables import Table

    ratio = statistics.fmean(len(fold.held_out) / len(fold.training) for fold in folds) if folds else math.nan

    rows = []
    for rank, one in enumerate(found, start=1):
        row: dict[str, Any] = {"rank": rank, **one.config}
        for metric in study.metrics:
            row |= {metric: one.mean(metric), f"{metric}_std": one.std(metric)}
        row[f"{study.monitor}_bound"] = one.bound(study.monitor, study.maximize)
        if folds:
            row["p_value"] = math.nan if rank == 1 else over_folds(one, found[0], study.monitor, ratio)
        row |= {"count": one.count(study.monitor), "lost": one.lost, "members": [m.id for m in one.members]}
        rows.append(row)
    names = [name for name in varying(study) if name in found[0].config]
    first = [
        *names,
        study.monitor,
        f"{study.monitor}_std",
        *(["p_value"] if folds else []),
        "count",
        *(["lost"] if any(a.lost for a in found) else []),
    ]
    return Table(rows, "rank", first, dict.fromkeys(axes(study), show))


def best(study: StudyState, over: str | Sequence[str] | None = None) -> Result:
    """See `Study.best`."""
    history = study.history
    ranked: list[Member] = history.leaderboard()
    if over is not None:
        within = {m.id for m in averages(history, over)[0].members} if history.members else set()
        ranked = [m for m in ranked if m.id in within]
    left_out = searching.infeasible(study)
    for member in ranked:
        if member.best_epoch and member.id not in left_out:
            return Result(study, variant_of(study, member.id))
    if left_out:
        raise StudyError("no member is feasible", where=study.name, got=f"constraints of {len(left_out)} violated",
                         remedy="study.results() has all members")  # fmt: skip
    if any(study.monitor in m.curves for m in ranked):
        raise StudyError(f"{study.monitor} is finite in no epoch, so none is the best", where=study.name,
                         remedy="study.results() has all metrics; Study(..., monitor=...) names another")  # fmt: skip
    raise StudyError("no member has a best epoch yet", where=study.name, remedy="run the study first")


def speedup(study: StudyState) -> pandas.DataFrame:
    """See `Study.speedup`."""
    import pandas

    speeds = study.history.speeds
    if not speeds:
        what = "nothing was fused" if study.serial else "no array's speed was measured"
        remedy = "run the study first; a short run has no time for it"
        raise StudyError(what, where=study.name, remedy=remedy)
    rows: list[dict[str, Any]] = []
    for index, speed in sorted(speeds.items()):
        step, parts = Pace(speed.serial_step_s, speed.step_s), {"members": speed.members, "strategy": speed.strategy}
        rows.append({"array": str(index), **parts, **_seconds(step, "step")})
    run, step = run_of(study.history), step_of(study.history)
    members = sum(speed.members for speed in speeds.values())
    rows.append({"array": ALL, "members": members, **_seconds(run, "run"), **_seconds(step, "step"), "strategy": ""})
    order = ["members", *_seconds(run, "run"), *_seconds(step, "step"), "strategy"]
    return pandas.DataFrame(rows).set_index("array")[order]


def _seconds(pace: Pace, of: str) -> dict[str, float]:
    """Cells of a run or a step."""
    name = "speedup" if of == "run" else f"{of}_speedup"
    return {f"serial_{of}_s": pace.serial_s, f"{of}_s": pace.fused_s, name: pace.speedup}


def varying(study: StudyState) -> list[str]:
    """The axes that have more than one value."""
    return [name for name, values in axes(study).items() if len(values) > 1]


def shown(study: StudyState) -> str:
    """The study as an HTML table."""

    parts = [f"{name}: {_values(values)}" for name, values in axes(study).items()]
    count, arrays = len(study.variants), len(study.plan_groups)
    pace = "" if study.steps_per_epoch is None else f" of {study.steps_per_epoch} steps"
    rows = [
        ("family", study.family.name),
        ("data", study.data_name),
        ("grid", "; ".join(parts)),
        ("variants", f"{count} in {arrays} array{'s' * (arrays != 1)}"),
        ("epochs", f"{study.epochs}{pace}"),
        ("device", f"{study.device}, {str(study.dtype).removeprefix('torch.')}"),
        ("state", study.history.state.lower()),
        ("best", _best(study)),
        ("directory", str(study.directory)),
    ]
    return pairs(f"Study: {study.name}", rows)


def _best(study: StudyState) -> str:
    for member in study.history.leaderboard():
        if math.isfinite(member.best_value):
            where = variant_of(study, member.id).label
            return f"{where}: {study.monitor} {member.best_value:.4g} at epoch {member.best_epoch}"
    return ""


def _values(values: Sequence[Any], most: int = 6) -> str:
    parts = [show(v) for v in values]
    return ", ".join(parts if len(parts) <= most else [*parts[: most - 1], "...", parts[-1]])
