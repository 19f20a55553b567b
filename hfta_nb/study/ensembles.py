"""Members of a study that predict together."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from hfta_nb.data import Draw, placed
from hfta_nb.data.augment import Augmenting
from hfta_nb.engine.array.access import call_module
from hfta_nb.errors import StudyError
from hfta_nb.errors.border import whole
from hfta_nb.models import ensembles
from hfta_nb.models.losses import IGNORED, prediction
from hfta_nb.models.recipes.preserve_rng import preserve_rng
from hfta_nb.search.averages import averages
from hfta_nb.study import keeping, planning
from hfta_nb.study.result import Result
from hfta_nb.study.study_state import StudyState, variant_of
from hfta_nb.train.batches import Batches
from hfta_nb.train.consecutive import batches_of

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

GREEDY = "greedy"
TASKS = ("classification", "regression")

Candidate: TypeAlias = "tuple[tuple[int, str | int], ...]"
"""Members that are chosen together, each with the moment of its weights: one, or those of a configuration's folds."""


@dataclass(frozen=True)
class Pick:
    """Weights of a member that are part of an ensemble.

    Attributes:
        member: its number.
        at: the moment; see `Result.module`.
        weight: its share of the mean.
    """

    member: int
    at: str | int
    weight: float

    def __str__(self) -> str:
        return f"#{self.member}" if self.at == keeping.BEST else f"#{self.member} at {self.at}"


class EnsembleResult:
    """An ensemble of a study's members; `hfta_nb.Study.ensemble` makes it.

    Attributes:
        study: it is of.
        picks: the members in it, those with the largest share first.
        classes: whether it predicts classes; else numbers.
    """

    def __init__(self, study: StudyState, candidates: Sequence[Candidate], how: str | int, most: int) -> None:
        self.study, self.classes = study, study.data.task == "classification"
        self._candidates = list(candidates)
        self._found, self._y = predicted(study, self._candidates, self.classes)
        order = ensembles.ranked(self._found, self._y, self.classes)
        self._best = order[0]
        taken = order if how != GREEDY else ensembles.greedy(self._found, self._y, self.classes, most)
        self._steps = [self._scores(taken[:count]) for count in range(1, len(taken) + 1)]
        losses = [step[self._loss] for step in self._steps]
        count = losses.index(min(losses)) + 1 if isinstance(how, str) else how
        counts = Counter(taken[:count])
        self.picks = tuple(p for place, number in counts.most_common() for p in self._picks(place, number / count))
        self._count = count

    def module(self) -> ensembles.Ensemble:
        """The ensemble as a plain module in eval mode, on the CPU: its outputs are the mean and the spread of the
        members' predictions; see `hfta_nb.models.ensembles.Ensemble`. It takes what `inputs` gives.

        Example:
            >>> import hfta_nb as hfta
            >>> study = hfta.Study("mlp", {"lr": [1e-3, 1e-2]}, "iris", epochs=1)
            >>> results = study.fit(progress=False)
            >>> ensemble = study.ensemble("greedy")
            >>> mean, spread = ensemble.module()(ensemble.inputs(torch.zeros(5, 4)))
            >>> list(mean.shape)
            [5, 3]
        """
        modules = [self._result(pick.member).module(pick.at) for pick in self.picks]
        return ensembles.Ensemble(modules, [pick.weight for pick in self.picks], self.classes).eval()

    def inputs(self, x: Any) -> Any:
        """Inputs as the module is to get them; see `Result.inputs`."""
        return self._result(self.picks[0].member).inputs(x)

    def scores(self) -> pandas.DataFrame:
        """The ensemble beside the best single member, on the validation samples that have chosen both.

        Returns:
            A row for the "ensemble" and one for the "best member", the candidate with the lowest loss, with the
            ``members``. Of classes ``accuracy``, ``log_loss`` and the expected calibration error ``ece``; of numbers
            ``mse`` and ``mae``.
        """
        import pandas

        alone = self._picks(self._best, 1.0)
        rows = [{"members": ", ".join(map(str, self.picks)), **self._steps[self._count - 1]},
                {"members": ", ".join(map(str, alone)), **self._scores([self._best])}]  # fmt: skip
        return pandas.DataFrame(rows, index=["ensemble", "best member"])

    def curve(self) -> pandas.DataFrame:
        """The scores of the first 1, 2, ... members that were taken, one row each, under the index ``k``."""
        import pandas

        return pandas.DataFrame(self._steps, index=pandas.RangeIndex(1, len(self._steps) + 1, name="k"))

    def figure(self) -> Figure:
        """The scores over the number of members; see `hfta_nb.figures.ensemble`."""
        from hfta_nb import figures

        columns = {name: [step[name] for step in self._steps] for name in self._steps[0]}
        return figures.ensemble(columns, self._scores([self._best]), self._count)

    def _picks(self, place: int, weight: float) -> list[Pick]:
        """The members of a candidate, which share its weight."""
        candidate = self._candidates[place]
        return [Pick(*one, weight=weight / len(candidate)) for one in candidate]

    @property
    def _loss(self) -> str:
        return "log_loss" if self.classes else "mse"

    def _scores(self, taken: Sequence[int]) -> dict[str, float]:
        return ensembles.scores_of(self._found[list(taken)].mean(0), self._y, self.classes)

    def _result(self, member: int) -> Result:
        return Result(self.study, variant_of(self.study, member))

    def __repr__(self) -> str:
        return f"EnsembleResult({', '.join(f'{pick} {pick.weight:.0%}' for pick in self.picks)})"


def ensemble(study: StudyState, how: Any, members: Sequence[int] | None, snapshots: bool, most: int) -> EnsembleResult:
    """See `Study.ensemble`."""
    if study.data.task not in TASKS or study.family.phases:
        raise StudyError("its predictions have no mean that is known", where="ensemble", got=study.data.task,
                         accepted=" or ".join(TASKS))  # fmt: skip
    if how != GREEDY and not (whole(how) and how >= 1):
        raise StudyError("not a way to choose", where="ensemble", got=how, accepted='"greedy", or how many of the best')
    if not whole(most) or most < 1:
        raise StudyError("not a number of members", where="ensemble, most", got=most, accepted="1, 2, 3, ...")
    variants = study.variants if members is None else [variant_of(study, number) for number in members]
    kept = {variant.id: Result(study, variant).checkpoints for variant in variants}
    lacking = [number for number, moments in kept.items() if keeping.BEST not in moments]
    if members is not None and lacking:
        raise StudyError("no weights were saved (yet)", where="ensemble, members", got=lacking)
    found = [(number, at) for number, moments in kept.items() for at in moments if snapshots or at == keeping.BEST]
    if not found:
        raise StudyError("no member has weights (yet)", where="ensemble", remedy="run the study first")
    chosen = GREEDY if how == GREEDY else operator.index(how)  # NumPy's numbers are accepted as well
    candidates = _by_configuration(study, found)
    if isinstance(chosen, int) and chosen > len(candidates):
        raise StudyError("more than there are", where="ensemble", got=how, accepted=f"1 to {len(candidates)}")
    _check_inputs(study, [number for number, _ in found])
    return EnsembleResult(study, candidates, chosen, operator.index(most))


def _by_configuration(study: StudyState, members: Sequence[tuple[int, str | int]]) -> list[Candidate]:
    """The candidates: each member, or, in a study with folds, the members of a configuration."""
    found: dict[Any, list[tuple[int, str | int]]] = {}
    for number, at in members:
        config = {name: value for name, value in variant_of(study, number).config.items() if name != "fold"}
        key = repr((config, at)) if study.data.folds else (number, at)
        found.setdefault(key, []).append((number, at))
    return [tuple(candidate) for candidate in found.values()]


def _check_inputs(study: StudyState, members: Sequence[int]) -> None:
    """See that one batch of inputs does for all members."""
    rows = {number: Result(study, variant_of(study, number)).row for number in members}
    if len({row.get("normalize") for row in rows.values()}) > 1:
        remedy = "name those with one value of normalize: study.ensemble(..., members=[...])"
        raise StudyError("members get different inputs", where="ensemble, normalize", got=list(rows), remedy=remedy)


def out_of_fold(study: StudyState, member: int | None) -> Tensor:
    """See `Study.out_of_fold`."""
    if not study.data.folds:
        raise StudyError("has no folds", where="out_of_fold", got=study.name, remedy="give Study(..., folds=5)")
    if study.data.task not in TASKS or study.family.phases:
        raise StudyError("its predictions have no mean that is known", where="out_of_fold", got=study.data.task,
                         accepted=" or ".join(TASKS))  # fmt: skip
    found = averages(study.history, "fold")
    if member is not None:
        found = [one for one in found if variant_of(study, member).id in [m.id for m in one.members]]
    ids = [m.id for m in found[0].members if keeping.BEST in Result(study, variant_of(study, m.id)).checkpoints]
    if not ids:
        raise StudyError("no member has weights (yet)", where="out_of_fold", remedy="run the study first")
    members = tuple((number, keeping.BEST) for number in ids)
    return _put_together(study, members, study.data.task == "classification")[0]


def predicted(study: StudyState, candidates: Sequence[Candidate], classes: bool) -> tuple[Tensor, Tensor]:
    """The predictions of the validation samples; with folds, of the samples that are held out from a member of each.

    Args:
        candidates: of the study.
        classes: whether they are probabilities of classes.

    Returns:
        Predictions ``[C, N, out]`` and targets, ``[N]`` of classes, else ``[N, out]``; float64, on the CPU.

    Raises:
        StudyError: there are no validation samples, or targets or outputs are of another kind.
    """
    each = [_put_together(study, candidate, classes) for candidate in candidates]
    found, y = torch.stack([output for output, _ in each]), each[0][1]
    counted = found.isfinite().all(-1).all(0) if study.data.folds else torch.ones(len(y), dtype=torch.bool)
    if classes:
        counted = counted & (y != IGNORED)
    if not counted.any():
        raise StudyError("no sample is held out from all of them", where="ensemble", got=study.data.name)
    found = found[:, counted]
    return found, y[counted].long() if classes else y[counted].double().reshape(found.shape[1:])


def _put_together(study: StudyState, candidate: Candidate, classes: bool) -> tuple[Tensor, Tensor]:
    """The predictions of one candidate, ``[N, out]``, and the targets; with folds of all training samples, each by the
    mean of the members from which it is held out, NaN where there is none."""
    if not study.data.folds:
        return _predicted(study, *candidate[0], classes)
    total, count, y = torch.zeros(()), torch.zeros(len(study.data)), torch.zeros(())  # type: ignore[arg-type]
    for number, at in candidate:
        output, target = _predicted(study, number, at, classes)
        if not total.ndim:
            total, y = output.new_zeros(len(count), output.shape[-1]), target.new_zeros(len(count), *target.shape[1:])
        rows = study.data.folds[int(Result(study, variant_of(study, number)).row["fold"])].held_out
        total[rows], count[rows], y[rows] = total[rows] + output, count[rows] + 1, target
    return total / count.unsqueeze(-1), y


@torch.no_grad()
def _predicted(study: StudyState, member: int, at: str | int, classes: bool) -> tuple[Tensor, Tensor]:
    """The predictions of a member's validation samples, ``[N, out]``, float64, and their targets."""
    data = placed(study.data, study.device, study.dtype)
    result = Result(study, variant_of(study, member))
    module, row = result.module(at).to(study.device), result.row
    source: Batches = batches_of(data, int(row["batch_size"]), study.device, study.dtype)
    source.evaluated, source.draws = planning.validation_batch_size(study), [Draw.of(row)]
    source.prepare = Augmenting(data, study.device, study.dtype).of([row], [0])
    try:
        with preserve_rng():
            pairs = [(prediction(call_module(module, x)).cpu(), target.cpu())
                     for x, target in (batch.first for batch in source.validation())]  # fmt: skip
    finally:
        source.close()
    if not pairs:
        raise StudyError("there are no validation samples", where=f"ensemble, {study.data.name}")
    y = torch.cat([target for _, target in pairs])
    return _checked(torch.cat([output for output, _ in pairs]).double(), y, classes), y


def _checked(output: Tensor, y: Tensor, classes: bool) -> Tensor:
    """Predictions ``[N, out]`` of a module's outputs.

    Raises:
        StudyError: they don't go with the targets.
    """
    plain = output.ndim <= 2 and y.ndim == 1 and not y.is_floating_point() if classes else output.numel() == y.numel()
    if not plain:
        accepted = "logits [N, classes] and class numbers [N]" if classes else "outputs and targets of one shape"
        got = [list(output.shape), list(y.shape)]
        raise StudyError("its predictions have no mean that is known", where="ensemble", got=got, accepted=accepted)
    return ensembles.predictions(output, classes).flatten(1) if classes else output.reshape(len(y), -1)
