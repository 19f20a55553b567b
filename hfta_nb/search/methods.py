"""Samplers and pruners by name: Optuna's own, with the arguments that a search of fused members wants."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from hfta_nb.errors import SearchError
from hfta_nb.errors.caught_warnings import caught_warnings

if TYPE_CHECKING:
    from optuna.pruners import BasePruner
    from optuna.samplers import BaseSampler

SAMPLERS = ("random", "tpe", "grid", "qmc", "cmaes", "gp")
PRUNERS = ("none", "median", "percentile", "asha", "hyperband", "wilcoxon", "patient")

REDUCTION = 3
"""One of so many trials goes on at each rung of "asha" and "hyperband"."""


def sampler_of(given: Any, space: Any, seed: int) -> BaseSampler:
    """A sampler by its name, or itself.

    Args:
        space: the axes, for "grid".
        seed: of its random numbers.

    Raises:
        SearchError: it is not known, or does not suit the space.
    """
    samplers = optuna().samplers
    if isinstance(given, samplers.BaseSampler):
        return given  # type: ignore[no-any-return]
    made: Mapping[str, Callable[[], Any]] = {
        "random": lambda: samplers.RandomSampler(seed=seed),
        # A batch of trials is asked for before any of them has a value: without a liar they would crowd together.
        "tpe": lambda: samplers.TPESampler(seed=seed, constant_liar=True),
        "grid": lambda: samplers.GridSampler(_listed(space), seed=seed),
        "qmc": lambda: _quasi_random(seed),
        "cmaes": lambda: samplers.CmaEsSampler(seed=seed),
        "gp": lambda: samplers.GPSampler(seed=seed),
    }
    if not isinstance(given, str) or given not in made:
        raise _unknown("sampler", given, SAMPLERS, "BaseSampler")
    try:
        return _made(made[given])  # type: ignore[no-any-return]
    except ImportError as error:
        raise SearchError(f"needs a package that is missing ({error})", where="sampler", got=given) from error


def points_of(sampler: Any) -> int | None:
    """How many trials Optuna's `GridSampler` asks for; None of another sampler."""
    return len(sampler._all_grids) if isinstance(sampler, optuna().samplers.GridSampler) else None


def _quasi_random(seed: int) -> BaseSampler:
    """Optuna's sampler, which knows the axes from trials that are still on as well.

    That of Optuna 4 knows them from trials that have ended only. Until then it would draw each trial of a batch at
    random from the same seed, and so the same configuration.
    """
    package = optuna()

    class QuasiRandom(package.samplers.QMCSampler):  # type: ignore[misc]
        def infer_relative_search_space(self, study: Any, trial: Any) -> dict[str, Any]:
            found: dict[str, Any] = super().infer_relative_search_space(study, trial)
            running = (package.trial.TrialState.RUNNING,)
            for other in () if found else study.get_trials(deepcopy=False, states=running):
                found = found or dict(other.distributions)
            return found

    made: BaseSampler = QuasiRandom(seed=seed, scramble=True, warn_asynchronous_seeding=False)
    return made


def pruner_of(given: Any, epochs: int) -> BasePruner:
    """A pruner by its name, or itself.

    Args:
        epochs: of a trial that is not pruned.

    Raises:
        SearchError: it is not known.
    """
    pruners = optuna().pruners
    if isinstance(given, pruners.BasePruner):
        return given  # type: ignore[no-any-return]
    made: Mapping[str, Callable[[], Any]] = {
        "none": pruners.NopPruner,
        "median": pruners.MedianPruner,
        "percentile": lambda: pruners.PercentilePruner(25.0),
        "asha": lambda: pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=REDUCTION),
        "hyperband": lambda: pruners.HyperbandPruner(min_resource=1, max_resource=epochs, reduction_factor=REDUCTION),
        "wilcoxon": lambda: pruners.WilcoxonPruner(n_startup_steps=2),  # that of Optuna 4.0 raises with fewer than two
        "patient": lambda: pruners.PatientPruner(None, patience=max(1, epochs // 5)),
    }
    if given is None:
        given = "none"
    if not isinstance(given, str) or given not in made:
        raise _unknown("pruner", given, PRUNERS, "BasePruner")
    return _made(made[given])  # type: ignore[no-any-return]


def check_many(sampler: Any, pruner: Any) -> None:
    """Check that a search of several objectives can be made in this way.

    Raises:
        SearchError: Optuna prunes by one objective only, and CMA-ES optimises one only.
    """
    nothing = optuna().pruners.NopPruner
    if not (pruner in (None, "none") or isinstance(pruner, nothing)):
        what = "trials of several objectives can't be pruned: they have no order"
        raise SearchError(what, where="pruner", got=pruner, accepted="none", remedy="or give one metric as monitor")
    if not _takes_many(sampler):
        others = ", ".join(name for name in ("random", "tpe", "qmc", "grid", "gp") if name != sampler)
        raise SearchError("searches one objective only", where="sampler", got=sampler, accepted=others)


def _takes_many(sampler: Any) -> bool:
    """Whether a sampler can be told several objectives: which can differs with Optuna's release."""
    package = optuna()
    if not isinstance(sampler, str):
        return not isinstance(sampler, package.samplers.CmaEsSampler)
    with quiet():
        study = package.create_study(directions=["minimize"] * 2, sampler=sampler_of(sampler, {"x": [0, 1]}, 0))
    try:
        study.ask().suggest_categorical("x", [0, 1])
    except ValueError:
        return False
    return True


def _made(make: Callable[[], Any]) -> Any:
    """Without a warning that Optuna may change it: which releases are used is the project's business."""
    with caught_warnings():
        warnings.simplefilter("ignore", optuna().exceptions.ExperimentalWarning)
        with any_choices():
            return make()


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Within, Optuna does not say what it creates: nothing below the command line prints."""
    logging = optuna().logging
    before = logging.get_verbosity()
    logging.set_verbosity(logging.WARNING)
    try:
        yield
    finally:
        logging.set_verbosity(before)


@contextlib.contextmanager
def any_choices() -> Iterator[None]:
    """Within, Optuna does not warn of choices that are lists or tuples, which a database may keep as something else."""
    with caught_warnings():
        for words in ("Choices for a categorical distribution should be", ".* contains a value with the type of"):
            warnings.filterwarnings("ignore", words)
        yield


def optuna() -> Any:
    """Optuna, which is imported where something is searched only.

    Raises:
        SearchError: it is not installed.
    """
    try:
        import optuna
    except ImportError as error:
        remedy = "install it: pip install 'hfta_nb[search]'"
        raise SearchError("searching needs Optuna, which is not installed", where="Study", remedy=remedy) from error
    return optuna


def state(name: str) -> Any:
    """One of Optuna's states of a trial."""
    return optuna().trial.TrialState[name]


def _listed(space: Any) -> dict[str, list[Any]]:
    if isinstance(space, Mapping):
        lists = {name: list(axis) for name, axis in space.items() if isinstance(axis, list | tuple)}
        if len(lists) == len(space):
            return lists
    raise SearchError("searches lists of values only", where="sampler", got="grid",
                      remedy='give each axis as a list, or choose "qmc"')  # fmt: skip


def _unknown(where: str, given: Any, names: tuple[str, ...], base: str) -> SearchError:
    accepted = f"{', '.join(names)}, or an optuna.{where}s.{base}"
    return SearchError(f"unknown {where}", where=where, got=given, accepted=accepted)
