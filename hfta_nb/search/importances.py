"""How much each axis decides: PED-ANOVA over the configurations that were tried."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hfta_nb.errors import SearchError
from hfta_nb.errors.caught_warnings import caught_warnings
from hfta_nb.records.events import Json
from hfta_nb.search import methods
from hfta_nb.search.grid import show

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

FEWEST = 4
"""Configurations without which nothing can be said."""

_BEST, _BEST_COUNT = 0.1, 5
"""The best tenth is compared with all, or the best five where that is more, as the method's authors advise."""


def importances(
    tried: Sequence[tuple[Mapping[str, Json], float]], maximize: bool, log: Collection[str] = ()
) -> dict[str, float]:
    """The share of each axis in what makes a configuration one of the best; the largest first.

    Optuna's `PedAnovaImportanceEvaluator` compares how the best configurations are spread over an axis with how all
    are. It needs no model of the values, and no package beside Optuna.

    Args:
        tried: configurations with their values; those that are not finite don't count.
        maximize: whether more is better.
        log: numeric axes whose logarithm is looked at.

    Returns:
        By axis, shares that add up to 1 (all 0 where no axis decides anything). Axes that some configurations lack, or
        that have one value, are left out.

    Raises:
        SearchError: too few configurations, or none of the axes varies.

    Source:
        Watanabe, Bansal and Hutter, PED-ANOVA, IJCAI 2023.
    """
    finite = [(dict(config), value) for config, value in tried if math.isfinite(value)]
    if len(finite) < FEWEST:
        raise SearchError("too few configurations have a finite value", where="importances", got=len(finite),
                          accepted=f"{FEWEST} or more")  # fmt: skip
    names = [n for n in finite[0][0] if all(n in c for c, _ in finite) and len({repr(c[n]) for c, _ in finite}) > 1]
    if not names:
        raise SearchError("no axis varies", where="importances", got=list(finite[0][0]))
    if len(names) == 1:
        return {names[0]: 1.0}
    optuna = methods.optuna()
    spread = {name: _distribution([config[name] for config, _ in finite], name in log) for name in names}
    with methods.quiet():
        study = optuna.create_study(direction="maximize" if maximize else "minimize")
    for config, value in finite:
        params = {name: _plain(config[name], spread[name]) for name in names}
        study.add_trial(optuna.trial.create_trial(params=params, distributions=spread, value=value))
    share = min(0.5, max(_BEST, _BEST_COUNT / len(finite)))
    found = _evaluated(study, share)
    total = sum(found.values())
    shares = {name: value / total if total > 0 else 0.0 for name, value in found.items()}
    return dict(sorted(shares.items(), key=lambda pair: -pair[1]))


def _evaluated(study: Any, share: float) -> dict[str, float]:
    made = methods.optuna().importance.PedAnovaImportanceEvaluator
    with caught_warnings():
        warnings.simplefilter("ignore")  # experimental in Optuna 4; or the best are no better than the others
        names = {"baseline_quantile", "target_quantile"} & set(inspect.signature(made).parameters)
        found = made(**{names.pop(): share}).evaluate(study)
    return {name: max(0.0, float(value)) for name, value in found.items()}


def _distribution(values: Sequence[Json], log: bool) -> BaseDistribution:
    distributions = methods.optuna().distributions
    found: BaseDistribution
    numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
    if len(numbers) < len(values):
        found = distributions.CategoricalDistribution(tuple(dict.fromkeys(show(v) for v in values)))
    elif all(isinstance(v, int) for v in numbers) and not (log and min(numbers) < 1):
        found = distributions.IntDistribution(int(min(numbers)), int(max(numbers)), log=log)
    else:
        low, high = float(min(numbers)), float(max(numbers))
        found = distributions.FloatDistribution(low, high, log=log and low > 0)
    return found


def _plain(value: Json, spread: BaseDistribution) -> Any:
    return show(value) if hasattr(spread, "choices") else value
