"""TensorBoard's event files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hfta_nb.records.events import Json
from hfta_nb.study.callbacks.tracker import Tracker, imported


class TensorBoard(Tracker):
    """Writes TensorBoard event files: a directory per member, with curves as scalars and the configuration as hparams.

    Args:
        directory: ``directory/<run>/<member>`` holds a member's files.

    Raises:
        StudyError: tensorboard is not installed.
    """

    def __init__(self, directory: str | Path = "tensorboard") -> None:
        super().__init__()
        self._tool = imported("torch.utils.tensorboard", "tensorboard")
        self._hparams = imported("torch.utils.tensorboard.summary", "tensorboard").hparams
        self.directory = Path(directory)
        self._writers: dict[int, Any] = {}
        self._parameters: dict[int, Mapping[str, Json]] = {}
        self._last: dict[int, Mapping[str, float]] = {}

    def begin(self, variant: int, run: str, name: str, parameters: Mapping[str, Json]) -> None:
        place = self.directory / run / name.replace("/", "_")
        self._writers[variant] = self._tool.SummaryWriter(str(place))
        self._parameters[variant], self._last[variant] = parameters, {}

    def log(self, variant: int, epoch: int, time_s: float, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writers[variant].add_scalar(name, value, epoch, walltime=time_s)
        self._writers[variant].flush()
        self._last[variant] = values

    def end(self, variant: int, state: str) -> None:
        writer = self._writers.pop(variant)
        plain = bool | int | float | str
        given = {k: v if isinstance(v, plain) else str(v) for k, v in self._parameters.pop(variant).items()}
        # Not by `add_hparams`, which writes to a separate directory.
        for summary in self._hparams(given, dict(self._last.pop(variant))):
            writer.file_writer.add_summary(summary)
        writer.close()
