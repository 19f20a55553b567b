"""A `LightningModule` as a family: members equal Lightning's own trainer, and what can't be fused is refused."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import hfta_nb as hfta
from hfta_nb.errors import DataError, FamilyError, StudyError
from hfta_nb.models.recipes import lightning

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of packages that it imports
    import pytorch_lightning as pl

# What a trainer advises, and what it uses of torch that is old.
pytestmark = [pytest.mark.filterwarnings("ignore::UserWarning:pytorch_lightning"),
              pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")]  # fmt: skip

_DRAWN = torch.Generator().manual_seed(0)
X = torch.randn(50, 6, generator=_DRAWN, dtype=torch.float64)
Y = (X.sum(1) > 0).long() + (X[:, 0] > 0.3).long()


class Classifier(pl.LightningModule):  # type: ignore[misc]
    """Three classes."""

    def __init__(self, width: int = 8, lr: float = 1e-2) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Linear(6, width, bias=False), nn.BatchNorm1d(width), nn.Tanh(), nn.Linear(width, 3))

    def forward(self, x: Tensor) -> Any:
        return self.net(x)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.log("train/loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        found = self(x)
        self.log_dict({"val_loss": F.cross_entropy(found, y), "val_acc": (found.argmax(1) == y).to(x.dtype).mean()})

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=self.hparams.lr, momentum=0.9)


class Scheduled(Classifier):
    """With a dict as step's result, Adam and a schedule."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return {"loss": super().training_step(batch, batch_idx)}

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr, betas=(0.8, 0.99))
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "epoch"}}


class Samples(pl.LightningDataModule):  # type: ignore[misc]
    """Forty samples for training, ten for validation."""

    def setup(self, stage: str) -> None:
        self.parts = TensorDataset(X[:40], Y[:40]), TensorDataset(X[40:], Y[40:])

    def train_dataloader(self) -> Any:
        return DataLoader(self.parts[0], batch_size=16)

    def val_dataloader(self) -> Any:
        return DataLoader(self.parts[1], batch_size=16)


def alone(kind: Any, config: dict[str, Any]) -> tuple[Any, dict[str, float]]:
    """A module and its last values, trained by Lightning."""
    torch.manual_seed(0)
    module = kind(**config).double()
    trainer = pl.Trainer(max_epochs=3, accelerator="cpu", logger=False, enable_checkpointing=False,
                         enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0)  # fmt: skip
    trainer.fit(module, Samples())
    return module, {name: float(value) for name, value in trainer.callback_metrics.items()}


@pytest.mark.parametrize("kind", [Classifier, Scheduled])
def test_members_equal_the_trainer_of_lightning(kind: Any, tmp_path: Path) -> None:
    grid = {"lr": [1e-2, 1e-1], "width": [4]}
    study = hfta.Study(kind, grid, Samples(), epochs=3, dtype="float64", directory=tmp_path / "run",
                       keep_checkpoints=["best", "last"])  # fmt: skip
    study.fit(progress=False)
    assert len(study.plan(measure=False)) == 1
    for variant in study.variants:
        module, values = alone(kind, variant.config)
        mine = study.member(variant.id).module("last")
        assert type(mine) is kind
        for name, tensor in module.state_dict().items():
            torch.testing.assert_close(mine.state_dict()[name], tensor, rtol=0, atol=1e-10)
        last = study.results().loc[variant.id]
        for name in ("train_loss", "val_loss", "val_acc"):
            given = values.get(name, values.get(name.replace("_", "/", 1)))
            assert last[f"last_{name}"] == pytest.approx(given, abs=1e-10)
    assert bool(study.check(members=[0])["equal"].all())
    assert type(study.best().module()) is kind
    with pytest.raises(StudyError, match="no mean that is known"):
        study.ensemble()
    again = hfta.Study.load(tmp_path / "run", family=kind, data=Samples())
    assert type(again.best().module()) is kind


def test_the_optimizer_is_the_default_of_the_axes() -> None:
    family, _ = lightning.taken(Scheduled, Samples())
    assert list(family.axes) == ["width"]
    assert family.defaults == {"optimizer": "adamw", "lr": 1e-2, "beta1": 0.8, "beta2": 0.99, "eps": 1e-8,
                               "weight_decay": 0.01, "lr_scheduler": "step", "step_size": 1, "gamma": 0.5}  # fmt: skip
    assert lightning.plain_name("valid/top-5") == "top_5"
    assert lightning.taken(nn.Linear, "digits") == (nn.Linear, "digits")


class Manual(Classifier):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False


class Hooked(Classifier):
    def on_train_epoch_end(self) -> None:
        pass


class Counting(Classifier):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return super().training_step(batch, batch_idx) * (2 if batch_idx % 2 else 1)


class Aware(Classifier):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return super().training_step(batch, batch_idx) * self.current_epoch


class Several(Classifier):
    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD([p], lr=0.1) for p in self.parameters()]


class Grouped(Classifier):
    def configure_optimizers(self) -> Any:
        return torch.optim.SGD([{"params": [p]} for p in self.parameters()], lr=0.1)


class Partial(Classifier):
    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.net[0].parameters(), lr=0.1)


class Dampened(Classifier):
    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9, dampening=0.1)


class Unread(Classifier):
    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        return [optimizer], [torch.optim.lr_scheduler.LambdaLR(optimizer, float)]


class Silent(Classifier):
    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_acc", 1.0)


class Needing(Classifier):
    def __init__(self, width: int) -> None:
        super().__init__(width)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Manual, "automatic_optimization"),
        (Hooked, "on_train_epoch_end"),
        (Counting, "batch_idx"),
        (Aware, "current_epoch"),
        (Several, "several optimizers"),
        (Grouped, "several parameter groups"),
        (Partial, "leaves out parameters"),
        (Dampened, "no axis for dampening"),
        (Unread, "LambdaLR"),
        (Silent, "Silent.validation_step: logs no loss"),
        (Needing, "needs defaults"),
    ],
)
def test_what_can_not_be_fused_is_named(kind: Any, words: str) -> None:
    with pytest.raises(FamilyError, match=words):
        hfta.Study(kind, {"lr": [0.1]}, Samples())


def test_data_that_a_step_can_not_have_is_refused() -> None:
    with pytest.raises(DataError, match="a LightningDataModule, or"):
        hfta.Study(Classifier, {"lr": [0.1]}, "iris")
    images = DataLoader(TensorDataset(torch.zeros(4, 3, 8, 8, dtype=torch.uint8)))
    with pytest.raises(DataError, match="images of bytes"):
        hfta.Study(Classifier, {"lr": [0.1]}, (images, images))
