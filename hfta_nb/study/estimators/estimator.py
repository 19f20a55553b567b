"""One configuration of a family as an estimator of scikit-learn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.preprocessing import LabelEncoder
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from hfta_nb.data import Data, from_tensors
from hfta_nb.errors import DataError, StudyError
from hfta_nb.models.losses import Loss, prediction
from hfta_nb.models.recipes import Family
from hfta_nb.models.study_config import ARGUMENTS
from hfta_nb.study.estimators.training import trained

PREDICTED_AT_ONCE = 1024
"""Samples of a call of the module in `predict`."""

FITTED = (np.float64, np.float32)
"""The dtypes of inputs that stay as they are; others become the first one, as in scikit-learn."""

OWN = frozenset({"serial", "directory", "validate_every", "metrics", "monitor", "seed"})
"""Arguments of a study that `fit` sets."""


class FusedEstimator(BaseEstimator):  # type: ignore[misc]
    """What classifier and regressor share."""

    def __init__(
        self,
        family: str | Family | Callable[..., nn.Module] = "mlp",
        *,
        lr: float | None = None,
        batch_size: int | None = None,
        optimizer: str | None = None,
        weight_decay: float | None = None,
        epochs: int = 20,
        loss: Loss | str | None = None,
        random_state: int | np.random.RandomState | None = 0,
        dtype: str | torch.dtype | None = None,
        device: str | torch.device | None = None,
        **axes: Any,
    ) -> None:
        self.family = family
        self.lr = lr
        self.batch_size = batch_size
        self.optimizer = optimizer
        self.weight_decay = weight_decay
        self.epochs = epochs
        self.loss = loss
        self.random_state = random_state
        self.dtype = dtype
        self.device = device
        self.axes = axes

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The parameters by name, those of `axes` among them."""
        return {**super().get_params(deep), **self.axes}

    def set_params(self, **params: Any) -> Self:
        """Set parameters; a name that the constructor does not list is an axis, which `fit` checks."""
        listed = self._get_param_names()
        own = {name: value for name, value in params.items() if name in listed or "__" in name}
        if params.keys() - own.keys():
            self.axes = {**self.axes, **{name: value for name, value in params.items() if name not in own}}
        super().set_params(**own)
        return self

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Train for `epochs` on all samples.

        Args:
            X: inputs, ``[N, features]`` or of any further axes that the family takes.
            y: targets, ``[N]``.

        Raises:
            HftaError: a parameter, an axis or the data can't be used, or the training diverged.
        """
        data = self._data(X, y)
        (module,) = trained(self.family, [self._config()], data, self.epochs, self._options(data))
        if isinstance(module, StudyError):
            raise module
        self.module_ = module
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "module_")

    # What a search needs as well.

    def _config(self) -> dict[str, Any]:
        """The values of all axes."""
        named = {"lr": self.lr, "batch_size": self.batch_size, "optimizer": self.optimizer,
                 "weight_decay": self.weight_decay}  # fmt: skip
        state = self.random_state
        seed = int(state) if isinstance(state, int | np.integer) else check_random_state(state).randint(2**31)
        given = {name: value for name, value in named.items() if value is not None}
        axes = {name: value for name, value in self.axes.items() if name not in ARGUMENTS}
        return {"seed": seed, "data_seed": seed, **given, **axes}

    def _options(self, data: Data) -> dict[str, Any]:
        """The arguments of a study that all its members share."""
        more = {name: value for name, value in self.axes.items() if name in ARGUMENTS}
        for name in more:
            if name in OWN:
                raise StudyError("is set by `fit`", where=name, got=more[name])
        dtype = data.x.dtype if self.dtype is None else self.dtype
        return {"loss": self.loss, "dtype": dtype, "device": self.device, **more}

    def _data(self, X: Any, y: Any) -> Data:
        """Checked samples, all of them for training."""
        raise NotImplementedError

    def _checked(self, X: Any, y: Any, **how: Any) -> tuple[Tensor, NDArray[Any]]:
        X, y = validate_data(self, X, y, dtype=FITTED, allow_nd=True, **how)
        return _tensor(X), y

    @torch.no_grad()
    def _outputs(self, X: Any) -> Tensor:
        """What the module predicts, ``[N, outputs]`` or ``[N]``, float64 on the CPU."""
        check_is_fitted(self)
        x = _tensor(validate_data(self, X, reset=False, dtype=FITTED, allow_nd=True))
        first = next(self.module_.parameters())
        parts = [self.module_(part.to(first.device, first.dtype)) for part in torch.split(x, PREDICTED_AT_ONCE)]
        return torch.cat([prediction(part).double().cpu() for part in parts])


class FusedClassifier(ClassifierMixin, FusedEstimator):  # type: ignore[misc]
    """A family of hfta_nb as a classifier of scikit-learn.

    Args:
        family: a name (see `hfta_nb.families`), a function that builds a module, or a subclass of `nn.Module`. The
            parameters of a function or class are axes.
        lr, batch_size, optimizer, weight_decay: axes that every family has; None for the family's default.
        epochs: passes through the training samples.
        loss: of one member's output and the classes; None for cross entropy.
        random_state: seeds the weights, the member's random numbers and the order of the samples.
        dtype: of parameters and inputs; None for float32 where the inputs are that, else float64, as in scikit-learn.
        device: where to train; None for the GPU if there is one.
        axes: values of any other axis of the family, and arguments of `hfta_nb.Study`.

    Attributes:
        module_: the trained module, plain and in eval mode.
        classes_: the class labels.

    Example:
        >>> from sklearn.datasets import load_iris
        >>> X, y = load_iris(return_X_y=True)
        >>> FusedClassifier("mlp", lr=1e-2, width=16).fit(X, y).predict(X[:3])
        array([0, 0, 0])
    """

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """The class of each sample, ``[N]``."""
        places = self.predict_proba(X).argmax(1)
        found: NDArray[Any] = self.classes_[places]
        return found

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """The probability of each class, ``[N, classes]``: the softmax of the module's outputs; of a module with one
        output its sigmoid."""
        outputs = self._outputs(X)
        if outputs.numel() == len(outputs):
            one = outputs.reshape(-1).sigmoid()
            return torch.stack([1 - one, one], 1).numpy()
        return outputs.softmax(1).numpy()

    def _data(self, X: Any, y: Any) -> Data:
        x, y = self._checked(X, y)
        check_classification_targets(y)
        encoder = LabelEncoder().fit(y)
        self.classes_ = encoder.classes_
        if len(self.classes_) < 2:
            raise DataError("has 1 class", where="y", got=self.classes_.tolist(), accepted="2 or more classes")
        classes = torch.as_tensor(encoder.transform(y))
        return from_tensors(x, classes, x[:1], classes[:1], task="classification", num_classes=len(self.classes_))


class FusedRegressor(RegressorMixin, FusedEstimator):  # type: ignore[misc]
    """A family of hfta_nb as a regressor of scikit-learn. Targets ``[N]`` or ``[N, outputs]`` are taken as they are:
    `sklearn.compose.TransformedTargetRegressor` scales them.

    Args:
        family, lr, batch_size, optimizer, weight_decay, epochs, random_state, dtype, device, axes: as for
            `FusedClassifier`.
        loss: of one member's output and the targets; None for the mean squared error.

    Attributes:
        module_: the trained module, plain and in eval mode.

    Example:
        >>> from sklearn.datasets import load_diabetes
        >>> X, y = load_diabetes(return_X_y=True)
        >>> FusedRegressor("mlp", lr=1e-2, epochs=5).fit(X, y / 100).predict(X[:3]).shape
        (3,)
    """

    def predict(self, X: ArrayLike) -> NDArray[np.float64]:
        """The prediction for each sample, ``[N]`` or ``[N, outputs]`` as the targets were."""
        found = self._outputs(X)
        return found.reshape(len(found), *self._target_shape).numpy()

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def _data(self, X: Any, y: Any) -> Data:
        x, y = self._checked(X, y, multi_output=True, y_numeric=True)
        self._target_shape = y.shape[1:]
        targets = torch.as_tensor(np.array(y, dtype=np.float64))
        return from_tensors(x, targets, x[:1], targets[:1], task="regression")


def _tensor(X: Any) -> Tensor:
    """A copy, as arrays may be read-only."""
    return torch.as_tensor(np.array(X))
