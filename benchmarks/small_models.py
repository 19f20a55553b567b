"""Four small models that scripts time: a perceptron, convolutions, an LSTM, a Transformer. Torch alone is imported."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn


class Recurrent(nn.Module):
    """Classifies the last output of an LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.last = nn.LSTM(32, 64, batch_first=True), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.lstm(x)[0][:, -1])  # type: ignore[no-any-return]


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))


def _cnn() -> nn.Module:
    def block(inner: int, outer: int) -> list[nn.Module]:
        return [nn.Conv2d(inner, outer, 3, padding=1), nn.GroupNorm(4, outer), nn.ReLU(), nn.MaxPool2d(2)]

    return nn.Sequential(*block(1, 16), *block(16, 32), nn.Flatten(), nn.Linear(32 * 49, 10))


class Attention(nn.Module):
    """Classifies the mean output of two Transformer encoder layers."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
        self.layers, self.last = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.layers(x).mean(1))  # type: ignore[no-any-return]


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (_mlp, (64, 64)),
    "cnn": (_cnn, (32, 1, 28, 28)),
    "lstm": (Recurrent, (32, 20, 32)),
    "transformer": (Attention, (16, 32, 64)),
}
