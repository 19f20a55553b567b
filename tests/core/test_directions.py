"""Which way a metric is better: what torchmetrics and scikit-learn say, and nothing else."""

from __future__ import annotations

import contextlib
import importlib
import pkgutil
import re
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch.nn.functional as F
from torch import nn

from hfta_nb import Metric
from hfta_nb.errors import FamilyError
from hfta_nb.models.directions import HIGHER, LOWER, direction_of, more_is_better, normal
from hfta_nb.models.metrics import BUILT_IN

PARTS = ("classification", "regression", "image", "text", "retrieval", "audio", "clustering", "segmentation")
PARTS += ("nominal", "shape", "multimodal", "video", "detection")
MISTAKEN = {"WordInfoPreserved", "DaviesBouldinScore", "PerceptualPathLength", "RetrievalMetric"}
MISTAKEN |= {"SpectralDistortionIndex"}
"""Classes of torchmetrics 1.9 that say the opposite of what their documentation describes, and a base class."""
EXCEPTIONS = {"davies_bouldin_score"}
"""Functions of scikit-learn whose names do not follow its convention."""


def forms(words: list[str], known: str = "") -> Iterator[str]:
    """A name, the name without a word such as "score" at its end, and its initials where its documentation has them."""
    whole, initials = "".join(words), "".join(word[0] for word in words)
    yield whole
    for end in ("score", "index", "coefficient"):
        if whole.endswith(end):
            yield whole.removesuffix(end)
    if len(words) > 2 and (words[-1] == "error" or initials in re.findall("[a-z]+", known.lower())):
        yield initials


def _modules() -> Iterator[Any]:
    """The parts of torchmetrics, and their own modules: some classes are not exported without other packages."""
    for part in PARTS:
        package = importlib.import_module(f"torchmetrics.{part}")
        yield package
        for each in (m for m in pkgutil.iter_modules(package.__path__) if not m.name.startswith("_")):
            with contextlib.suppress(ImportError):
                yield importlib.import_module(f"{package.__name__}.{each.name}")


def of_torchmetrics() -> Iterator[tuple[str, bool]]:
    for module in _modules():
        for name in dir(module):
            kind = getattr(module, name)
            higher = getattr(kind, "higher_is_better", None)
            if not isinstance(kind, type) or not isinstance(higher, bool) or kind.__name__ in MISTAKEN:
                continue
            bare = re.sub("^(Binary|Multiclass|Multilabel|Retrieval)(?=.)", "", name)
            words = [w.lower() for w in re.findall(r"R2|F1|[A-Z]+(?![a-z])|[A-Z][a-z0-9]*", bare)]
            yield from ((form, higher) for form in forms(words, kind.__doc__ or ""))


def of_sklearn() -> Iterator[tuple[str, bool]]:
    sk: Any = importlib.import_module("sklearn.metrics")
    for name in sk.get_scorer_names():
        yield normal(name), True  # a scorer is always better where it is greater: "neg_" turns an error round
        scorer = sk.get_scorer(name)
        yield from ((form, scorer._sign > 0) for form in forms(scorer._score_func.__name__.split("_")))
    for name in set(sk.__all__) - EXCEPTIONS:  # the convention that scikit-learn's documentation states
        if name.endswith("_score"):
            yield from ((form, True) for form in forms(name.split("_")))
        elif name.endswith(("_error", "_loss", "_deviance")):
            yield from ((form, False) for form in forms(name.split("_")))


def looked_up() -> dict[str, bool]:
    """By name; names on which the two don't agree are left out."""
    found: dict[str, set[bool]] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, higher in (*of_torchmetrics(), *of_sklearn()):
            found.setdefault(name, set()).add(higher)
    found = {name: ways for name, ways in found.items() if len(ways) == 1 and len(name) > 1}
    own = {normal(name): bool(metric.maximize) for name, metric in BUILT_IN.items()}
    return {name: ways.pop() for name, ways in found.items()} | own


@pytest.mark.long
def test_the_table_is_what_the_packages_say() -> None:
    pytest.importorskip("torchmetrics")
    pytest.importorskip("sklearn")
    found = looked_up()
    higher, lower = (sorted(n for n, up in found.items() if up is way) for way in (True, False))
    assert sorted(HIGHER) == higher, " ".join(higher)
    assert sorted(LOWER) == lower, " ".join(lower)


@pytest.mark.parametrize("name", ["smape", "crps", "nrmse", "rmsle", "logloss", "lpips", "log_loss", "mse", "wer"])
def test_errors_are_minimised(name: str) -> None:
    assert more_is_better(name, lambda o, y: o) is False


@pytest.mark.parametrize("name", ["f1", "f1_macro", "auroc", "roc_auc", "r2", "neg_log_loss", "accuracy", "psnr"])
def test_scores_are_maximised(name: str) -> None:
    assert more_is_better(name, lambda o, y: o) is True


@pytest.mark.parametrize("name", ["foo", "ece", "eer", "energy", "my_error", "regret", "accuracy_drop"])
def test_of_other_names_nothing_is_known(name: str) -> None:
    assert more_is_better(name, lambda o, y: o) is None


@pytest.mark.parametrize(("name", "more"), [("val_smape", False), ("test_f1", True), ("valid_foo", None)])
def test_the_part_of_the_data_in_a_name_does_not_count(name: str, more: bool | None) -> None:
    assert more_is_better(name, len) is more


def test_functions_are_known_by_their_own_names() -> None:
    from sklearn.metrics import f1_score, hamming_loss

    assert more_is_better("quality", f1_score) is True
    assert more_is_better("quality", hamming_loss) is False
    assert more_is_better("quality", F.mse_loss) is False
    assert more_is_better("quality", F.binary_cross_entropy_with_logits) is False
    assert more_is_better("quality", nn.HuberLoss()) is False
    assert more_is_better("accuracy", F.mse_loss) is None  # name and function do not agree


@pytest.mark.parametrize(("given", "way"), [("max", True), ("maximize", True), (True, True), ("min", False),
                                            ("minimize", False), (False, False), (None, None)])  # fmt: skip
def test_a_direction_is_written_as_elsewhere(given: Any, way: bool | None) -> None:
    assert direction_of(given) is way
    assert Metric(F.mse_loss, maximize=given).maximize is way


@pytest.mark.parametrize("given", ["auto", "up", 1, 2.0, []])
def test_other_directions_are_refused(given: Any) -> None:
    with pytest.raises(FamilyError, match="maximize"):
        Metric(F.mse_loss, maximize=given)
