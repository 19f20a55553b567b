"""Figures and tables of what a study found: one call each, of a grid as well as of a search."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hfta_nb import search
from hfta_nb.errors import StudyError
from hfta_nb.errors.border import TEXT, TEXTS, WHOLE, takes
from hfta_nb.study import confusion, costs, result_tables, steering
from hfta_nb.study.arguments import way_of
from hfta_nb.study.study_state import StudyState

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure


class Analysis(StudyState):
    """The analysis of a study; every figure may be drawn while it still runs."""

    def lineage(self) -> pandas.DataFrame:
        """What members were cloned from or changed to while they trained, in order; of all other members nothing.

        Returns:
            One row per change: the ``member``; ``how``: "cloned", "set" in place, "copied" over another member by a
            population method, "extended", or "led", where it begins to lead members that are pulled toward it; its
            ``parent``, and whether it had a "warm" or a "cold" ``start`` from that; the ``epoch`` and optimizer
            ``step`` that it had come to; the ``changes`` of its values; the ``reason``.
        """
        return steering.lineage(self)

    def speedup(self) -> pandas.DataFrame:
        """Speed of fused training in this run, against its members one after another.

        The row "all" has the whole run: `run_s`, the seconds from its first event on without pauses, so far or to its
        end; `serial_run_s`, what its steps and validations take one after another, predicted from plain modules timed
        in the run; `speedup`, their ratio. Building, trials, checkpoints and waiting for data are in `run_s` alone;
        what comes before `run`, importing torch and making the study, is in neither. NaN where it can't be predicted:
        an array was not measured, or the number of validation samples is not known.

        Each array, and "all" as their sum, has a training step: `step_s` and `serial_step_s` in seconds, timed side by
        side in the array's first steps, after tuning; `step_speedup`, their ratio, is what a long run comes near to.

        Raises:
            StudyError: nothing was measured, because the study has not run or trains without fusing.
        """
        return result_tables.speedup(self)

    def best_so_far(self) -> Figure:
        """The best value so far against members and time; see `hfta_nb.figures.best_so_far`."""
        from hfta_nb import figures

        return figures.best_so_far(self.history)

    def importances(self, metric: str | None = None) -> Figure:
        """How much each axis decides, as bars: PED-ANOVA over all configurations with a finite value.

        Optuna's `PedAnovaImportanceEvaluator` compares the best tenth of the configurations (at least five) with all.
        Seeds are averaged. Axes that some configurations lack are left out. Below some 50 configurations the shares
        are rough.

        Args:
            metric: at the best epoch; by default the monitored one.

        Raises:
            StudyError: nothing is finite, no axis varies, or an unknown metric.
            SearchError: fewer than four configurations are finite, or Optuna is not installed.
        """
        from hfta_nb import figures
        from hfta_nb.figures.tried_points import metric_of

        return figures.importances(importance_shares(self, metric), metric_of(self.history, metric))

    def parallel_coordinates(self, metric: str | None = None) -> Figure:
        """Every configuration as a line through its values on all axes; see `hfta_nb.figures.parallel_coordinates`."""
        from hfta_nb import figures

        return figures.parallel_coordinates(self.history, metric, log=log_axes(self))

    def slices(self, metric: str | None = None) -> Figure:
        """The result over each axis by itself; see `hfta_nb.figures.slices`."""
        from hfta_nb import figures

        return figures.slices(self.history, metric, log=log_axes(self))

    @takes(StudyError, a=TEXT, b=TEXT, metric=TEXT.or_none)
    def contour(self, a: str, b: str, metric: str | None = None) -> Figure:
        """The result over two axes; see `hfta_nb.figures.contour`."""
        from hfta_nb import figures

        return figures.contour(self.history, a, b, metric, log=log_axes(self))

    @takes(StudyError, metric=TEXT.or_none, over=TEXTS.or_none)
    def curves(self, metric: str | None = None, over: str | Sequence[str] | None = None) -> Figure:
        """Learning curves; with bands of one standard deviation where seeds are swept.

        Args:
            metric: by default the monitored one.
            over: axes to average over; by default "seed" and "fold", where they vary. ``()`` for every
                member's own curve.

        Raises:
            StudyError: the study has not run yet, an unknown metric, or `over` is not an axis.
        """
        from hfta_nb import figures
        from hfta_nb.figures import colors
        from hfta_nb.figures.tried_points import metric_of

        history = self.history
        metric = metric_of(history, metric)
        swept = colors.swept(history.run.axes if history.run else {})
        if over is None:
            over = tuple(name for name in ("seed", "fold") if name in swept)
        few = len(history.members) <= colors.MAX_LEGEND  # beside many curves, dotted ones of training say nothing
        return figures.curves(history, metric, over=over or None, train=few)

    def pareto(self, *objectives: str) -> Figure:
        """Members by two to four objectives, with the Pareto front; see `hfta_nb.figures.pareto`.

        Args:
            objectives: metrics, "parameters", "time_s" or "memory_bytes"; by default those of the study's `monitor`.

        Raises:
            StudyError: fewer than two objectives or more than four, an unknown one, or nothing finite.
        """
        from hfta_nb import figures

        names = objectives or tuple(name for name, _ in self.objectives)
        costs_of = {name: {id: costs.of(self, id)[name] for id in self.history.members} for name in names
                if name in search.COSTS}  # fmt: skip
        return figures.pareto(self.history, [(name, _more_is_better(self, name)) for name in names], costs_of)

    @takes(StudyError, member=WHOLE.or_none)
    def confusion_matrix(self, member: int | None = None) -> Figure:
        """What a member predicts for validation samples of each class; see `hfta_nb.figures.confusion_matrix`.

        Args:
            member: by default the best one; with the weights of its best epoch.

        Raises:
            StudyError: the data has no classes, or is read batch by batch; or there is no such member.
            StoreError: its weights were not saved (yet).
        """
        from hfta_nb import figures

        name, found = confusion.counts(self, member)
        return figures.confusion_matrix(found, name)

    def placements(self) -> Figure:
        """Which worker has trained which array, and when, as a Gantt chart; see `hfta_nb.figures.placements`.

        Raises:
            StudyError: nothing has trained on several workers.
        """
        from hfta_nb import figures

        return figures.placements(self.history)


def importance_shares(study: StudyState, metric: str | None = None) -> dict[str, float]:
    """See `Analysis.importances`: by axis, shares that add up to 1."""
    from hfta_nb.figures.tried_points import points_of

    points = points_of(study.history, metric, log_axes(study))
    log = {scale.name for scale in points.scales if scale.log}
    tried = [({s.name: one.config[s.name] for s in points.scales if s.name in one.config}, value)
             for one, value in zip(points.tried, points.values, strict=True)]  # fmt: skip
    return search.importances(tried, _more_is_better(study, points.metric), log)


def log_axes(study: StudyState) -> set[str]:
    """Axes of which a search draws the logarithm."""
    if study.searcher is None:
        return set()
    drawn = [trial.distributions for trial in study.searcher.optuna.get_trials(deepcopy=False)]
    by_trial = {name for one in drawn for name, spread in one.items() if getattr(spread, "log", False)}
    return by_trial | search.logarithmic(study.searcher.space)


def _more_is_better(study: StudyState, name: str) -> bool:
    """Of a cost, a loss or a metric.

    Raises:
        StudyError: nobody has said it.
    """
    metric = study.family.metrics_for(study.data).get(name.partition("_")[2])
    return name not in search.COSTS and metric is not None and way_of(name, metric.maximizes)


LINKED = ("parallel_coordinates", "importances", "heat_map", "curves")
"""Figures that the Workbench draws in the browser."""


def linked(study: StudyState, kind: str, x: str, y: str, color_by: str) -> dict[str, Any]:
    """What the Workbench draws of a figure, as JSON; see `hfta_nb.figures.linked`.

    Args:
        study: the study.
        kind: one of `LINKED`.
        x, y: the axes of a heat map.
        color_by: the axis that sets the colours of curves; empty as in `hfta_nb.figures.curves`.

    Raises:
        StudyError, SearchError: it can't be drawn.
    """
    from hfta_nb.figures import linked as data

    if kind == "curves":
        return data.seeds(study.history, color_by)
    if kind == "heat_map":
        return data.heat_map(study.history, log_axes(study), x, y)
    if kind == "importances":
        return data.importance(study.history, log_axes(study), importance_shares(study))
    return data.parallel(study.history, log_axes(study), color_by)
