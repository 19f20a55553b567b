"""A study: family, grid and data, wired to plan, training, store and telemetry. Headless."""

from __future__ import annotations

import inspect
import math
import time
import traceback
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from hfta_nb import data as datasets
from hfta_nb import events as ev
from hfta_nb import telemetry
from hfta_nb.data import Data
from hfta_nb.errors import FamilyError, StoreError, StudyError
from hfta_nb.events import Control, Event, GroupRecord
from hfta_nb.family import Family, family
from hfta_nb.grid import Grid, Variant, show
from hfta_nb.history import History
from hfta_nb.plan import Group, make_plan
from hfta_nb.store import Store
from hfta_nb.train import Settings, Trainer

if TYPE_CHECKING:
    import pandas

SAMPLE_INTERVAL_S = 0.5
"""How often the device is looked at while a study runs."""

TRANSIENT = (ev.Heartbeat,)
"""Events that are not kept on disk."""

TOLERANCES = {"float64": 1e-8, "float32": 2e-3}
"""Largest difference of two loss curves that counts as equal.

In float32 rounding alone drives runs apart, faster behind batch norm and Adam, so only the first `COMPARED_EPOCHS` are
compared unless asked otherwise; a sharp comparison is made in float64.
"""

COMPARED_EPOCHS = 5


class Study:
    """Everything about one sweep: what is asked, how it goes, what came of it.

    Args:
        family: a name (see `hfta_nb.families`) or a `Family`.
        grid: axis names to values; see `Grid`.
        data: a name (see `hfta_nb.data.names`), a `Data`, or tensors ``(x, y)``; the family's default without.
        epochs: passes through the training data.
        batch_size: samples in a mini-batch, unless it is an axis.
        patience: epochs without improvement of `monitor` after which a member stops; None for never.
        monitor: the metric that decides which epoch is best: "val_" and a metric's name, or "val_loss". By default the
            task's first metric where it is a score, else "val_loss".
        device: "cpu", "cuda", "cuda:1", ...; by default the GPU if there is one.
        dtype: "float32" or "float64".
        directory: where the run is kept; by default a new one under ``hfta_runs``.
        serial: train the variants one after another as plain modules, without fusing.
        seed: of the order of the data.
        name: shown to people.
        fixed: one value for any other axis that is not in the grid, for example ``optimizer="sgd"``.

    Raises:
        HftaError: an argument can't be used; the message says which and why.

    Example:
        >>> study = Study("mlp", {"lr": [1e-3, 1e-2]}, "digits", epochs=1)
        >>> len(study.variants)
        2
    """

    def __init__(
        self,
        family: str | Family,
        grid: Mapping[str, Any] | Grid | None = None,
        data: str | Data | tuple[Any, ...] | None = None,
        *,
        epochs: int = 20,
        batch_size: int | None = None,
        patience: int | None = None,
        monitor: str | None = None,
        device: str | None = None,
        dtype: str = "float32",
        directory: str | Path | None = None,
        serial: bool = False,
        seed: int = 0,
        name: str | None = None,
        **fixed: Any,
    ) -> None:
        self.family = _family(family)
        self.grid = Grid(grid)
        self.data = datasets.resolve(self.family.data[0] if data is None else data)
        self.epochs = _positive("epochs", epochs)
        self.patience = None if patience is None else _positive("patience", patience)
        if batch_size is not None and "batch_size" not in self.grid.axes:
            fixed["batch_size"] = batch_size
        self.fixed = fixed
        self.dtype, self.device = _dtype(dtype), _device(device)
        self.serial, self.seed = serial, seed
        self.monitor, self.maximize = self._monitor(monitor)
        self.name = name or f"{self.family.name} on {self.data.name}"
        self._plan = make_plan(self.family, self.grid, self.data, fixed, serial=serial)
        stamp = time.strftime("%Y%m%d-%H%M%S")
        place = directory or Path("hfta_runs") / f"{self.family.name}-{stamp}-{uuid.uuid4().hex[:6]}"
        self.store = Store(Path(place).absolute())
        self.history = History()
        self._read = 0  # bytes of events.jsonl already in `history`

    # What is asked.

    @property
    def variants(self) -> list[Variant]:
        """All variants, in the order of the grid."""
        return sorted((v for g in self._plan for v in g.variants), key=lambda v: v.id)

    @property
    def data_name(self) -> str:
        return self.data.name

    @property
    def directory(self) -> Path:
        """Where the run is kept."""
        return self.store.directory

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of all curves: "train_loss", "val_loss", and likewise for the family's metrics."""
        names = ["loss", *self.family.metrics_for(self.data)]
        return tuple(f"{split}_{n}" for n in names for split in ("train", "val"))

    def groups(self) -> tuple[GroupRecord, ...]:
        """How the variants are grouped, as records."""
        return tuple(g.record() for g in self._plan)

    def plan(self) -> pandas.DataFrame:
        """How the variants are grouped, and why those of a later group are not in an earlier one.

        Returns:
            One row per array: ``members``, ``variants`` (their numbers), ``fused_over``, ``split_because``,
            ``parameters`` and ``memory_bytes`` (estimate) of one member.
        """
        import pandas

        rows = [
            {
                "array": g.index,
                "members": len(g.variants),
                "variants": [v.id for v in g.variants],
                "fused_over": ", ".join(g.fused_over) or "-",
                "split_because": g.reason or "-",
                "parameters": g.parameters,
                "memory_bytes": g.memory_bytes,
            }
            for g in self._plan
        ]
        return pandas.DataFrame(rows).set_index("array")

    # Running.

    def run(self, control: Control | None = None, resume: bool = False) -> Iterator[Event]:
        """Train; iterate to do the work. Leaving the loop stops the run and keeps everything.

        Args:
            control: where requests (pause, stop, ...) are posted; from any thread.
            resume: carry on from the last checkpoint in `directory`.

        Yields:
            What happens, from `RunStarted` to `RunChanged` with the final state. All of it is also appended to
            ``events.jsonl``.

        Raises:
            StudyError: the directory holds a run already, or there is nothing to resume.
            Exception: whatever the family's own code raised; the run is then FAILED and can be resumed.
        """
        state = self._open(resume)
        sampler = telemetry.sampler(str(self.device))
        trainer = Trainer(self._settings(), self._plan, control or Control(), self._save, state)
        sampled = 0.0
        try:
            for event in self._all_events(trainer, resume):
                self._keep(event)
                yield event
                if time.perf_counter() - sampled >= SAMPLE_INTERVAL_S:
                    sampled = time.perf_counter()
                    sample = sampler.sample()
                    self._keep(sample)
                    yield sample
        except GeneratorExit:
            self._keep(ev.RunChanged(time.time(), ev.STOPPED, "the loop over the run was left"))
            raise
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            self._keep(ev.RunChanged(time.time(), ev.FAILED, reason, traceback.format_exc()))
            raise

    def check_events(self, members: Sequence[int] | None = None, epochs: int | None = None) -> Iterator[Event]:
        """Retrain members alone, as plain modules with torch's own optimizers, and compare with what the run recorded.

        Args:
            members: variants; by default the best one.
            epochs: how many epochs to compare; by default all in float64, the first 5 in float32.

        Yields:
            `MemberChecked` per member, and `Heartbeat` meanwhile.

        Raises:
            StudyError: a member is unknown, or has no epoch to compare yet.
        """
        self.reload()
        chosen = [self.best().variant.id] if members is None else list(members)
        for variant in chosen:
            yield from self._check(self._member(variant), epochs)

    def check(self, members: Sequence[int] | None = None, epochs: int | None = None) -> pandas.DataFrame:
        """`check_events` run through, as a table.

        Returns:
            One row per member: ``epochs`` compared, the largest difference of each curve, ``tolerance``, ``equal``.
        """
        import pandas

        found = [e for e in self.check_events(members, epochs) if isinstance(e, ev.MemberChecked)]
        rows = [
            {"member": e.variant, "epochs": e.epochs, **e.differences, "tolerance": e.tolerance, "equal": e.equal}
            for e in found
        ]
        return pandas.DataFrame(rows).set_index("member")

    # Results.

    def results(self) -> pandas.DataFrame:
        """The leaderboard, one row per variant, best first: state, best epoch, metrics at it, the axes' values."""
        import pandas

        self.reload()
        rows = self.history.rows()
        if not rows:
            raise StudyError("not run yet", where=self.name, remedy="iterate study.run() first")
        return pandas.DataFrame(rows).set_index("member")

    def best(self) -> Result:
        """The best member.

        Raises:
            StudyError: no member has completed an epoch with a finite value.
        """
        self.reload()
        for member in self.history.leaderboard():
            if member.best_epoch:
                return self.member(member.id)
        raise StudyError("no member has a best epoch yet", where=self.name, remedy="run the study first")

    def member(self, id: int) -> Result:
        """What came of one variant.

        Raises:
            StudyError: there is no such variant.
        """
        self.reload()
        return Result(self, self._member(id))

    def reload(self) -> Study:
        """Take in what another process (a worker) has added to the run's directory since; returns the study."""
        for event, offset in self.store.events(self._read):
            self.history.add(event)
            self._read = offset
        return self

    # Saving.

    def save(self, path: str | Path) -> Path:
        """Keep the study in a directory: JSON and safetensors, no pickle.

        Raises:
            StoreError: another run is there, or it can't be written to.
        """
        target = Path(path).absolute()
        if not self.store.exists:
            self.store.write_study(self._description())
            self._write_own_data()
        if target != self.directory:
            self.store.copy_to(target)
        return target

    @classmethod
    def load(cls, path: str | Path, family: str | Family | None = None) -> Study:
        """A study that was saved, or one that ran in this directory.

        Args:
            path: the directory.
            family: the family, where it was defined by the user and is not defined now.

        Raises:
            StoreError: there is no study there, or it is damaged.
            FamilyError: its family is not known.
        """
        store = Store(Path(path).absolute())
        asked = store.read_study()
        try:
            recipe = _family(asked["family"] if family is None else family)
        except FamilyError as error:
            raise FamilyError(
                error.what, where=str(path), got=asked["family"], remedy="pass it: Study.load(path, family=...)"
            ) from error
        options = dict(asked["options"])
        if not torch.cuda.is_available() and str(options.get("device", "")).startswith("cuda"):
            options["device"] = "cpu"
        study = cls(recipe, asked["grid"], cls._read_data(store, asked["data"]), directory=store.directory, **options)
        return study.reload()

    def to_code(self) -> str:
        """Python source of a cell that reproduces the study."""
        own = self.family.name not in _built_in_names()
        named = self.data.name in datasets.names()
        lines = ["import hfta_nb as hfta", ""]
        if own:
            lines += [f"# the family {self.family.name!r} must be defined in this notebook", ""]
        if not named:
            lines += [f"# data: {self.data.name!r}, as hfta.data.from_tensors(x, y)", ""]
        lines.append("study = hfta.Study(")
        lines.append(f"    {self.family.name!r},")
        lines.append("    {" + ", ".join(f"{k!r}: {list(v)!r}" for k, v in self.grid.axes.items()) + "},")
        lines.append(f"    {self.data.name!r}," if named else "    data,")
        for name, value in self._options().items():
            default = inspect.signature(Study).parameters.get(name)
            if default is None or value != default.default:
                lines.append(f"    {name}={value!r},")
        lines += [")", "for event in study.run():", "    pass", "study.results()"]
        return "\n".join(lines) + "\n"

    def __repr__(self) -> str:
        return f"Study({self.name!r}, {len(self.variants)} variants in {len(self._plan)} arrays, {self.epochs} epochs)"

    # Within.

    def _monitor(self, name: str | None) -> tuple[str, bool]:
        metrics = self.family.metrics_for(self.data)
        if name is None:
            first = next(iter(metrics), None)
            name = f"val_{first}" if first and metrics[first].maximize else "val_loss"
        known = {"val_loss": False, **{f"val_{n}": m.maximize for n, m in metrics.items()}}
        if name not in known:
            raise StudyError("unknown metric", where="monitor", got=name, accepted=", ".join(known))
        return name, known[name]

    def _settings(self, epochs: int | None = None) -> Settings:
        return Settings(
            self.family,
            self.data,
            self.epochs if epochs is None else epochs,
            self.patience,
            self.monitor,
            self.maximize,
            self.device,
            self.dtype,
            self.seed,
        )

    def _open(self, resume: bool) -> Any:
        """Make the run's directory, or read the checkpoint in it."""
        if not resume:
            if self.store.events_path.exists():
                raise StudyError(
                    "a run is already there",
                    where=str(self.directory),
                    remedy="resume it with run(resume=True), or choose another directory",
                )
            self.store.write_study(self._description())
            self._write_own_data()
            return None
        self.reload()
        if self.history.state == ev.COMPLETE:
            raise StudyError("the run is complete", where=str(self.directory), remedy="start a new study")
        if not self.store.has_checkpoint:
            raise StudyError("no checkpoint to resume from", where=str(self.directory), remedy="run it from the start")
        return self.store.read_checkpoint()

    def _all_events(self, trainer: Trainer, resumed: bool) -> Iterator[Event]:
        yield self._started(resumed)
        yield ev.PlanMade(time.time(), self.groups())
        yield from trainer
        if trainer.stopped:
            for member in list(self.history.members.values()):
                if member.state == ev.WAITING:
                    yield ev.MemberChanged(time.time(), member.id, ev.STOPPED, "the run was stopped")
            yield ev.RunChanged(time.time(), ev.STOPPED, "stopped by request")
        else:
            self.store.remove_checkpoint()
            yield ev.RunChanged(time.time(), ev.COMPLETE)

    def _started(self, resumed: bool) -> ev.RunStarted:
        return ev.RunStarted(
            time.time(),
            run_id=self.directory.name,
            family=self.family.name,
            data=self.data.name,
            device=str(self.device),
            device_name=telemetry.device_name(str(self.device)),
            dtype=str(self.dtype).removeprefix("torch."),
            epochs=self.epochs,
            threads=torch.get_num_threads(),
            directory=str(self.directory),
            axes=dict(self.grid.axes),
            variants=tuple(ev.VariantRecord(v.id, v.config, v.seed) for v in self.variants),
            metrics=self.metrics,
            monitor=self.monitor,
            direction="maximize" if self.maximize else "minimize",
            resumed=resumed,
        )

    def _keep(self, event: Event) -> None:
        self.history.add(event)
        if not isinstance(event, TRANSIENT):
            self.store.append(event)
            self._read = self.store.events_path.stat().st_size

    def _save(self, state: dict[str, Any], weights: Mapping[int, Mapping[str, torch.Tensor]]) -> str:
        for variant, tensors in weights.items():
            self.store.write_weights(variant, tensors)
        return str(self.store.write_checkpoint(state))

    def _check(self, variant: Variant, epochs: int | None) -> Iterator[Event]:
        member = self.history.members.get(variant.id)
        done = member.epoch if member else 0
        name = str(self.dtype).removeprefix("torch.")
        most = done if name == "float64" else min(done, COMPARED_EPOCHS)
        count = most if epochs is None else min(_positive("epochs", epochs), done)
        if member is None or not count:
            raise StudyError("has no epoch to compare yet", where=variant.label, remedy="run the study first")
        place = next((g, g.variants.index(v)) for g in self._plan for v in g.variants if v.id == variant.id)
        alone = _alone(*place)
        twin = History()
        twin.add(self._started(False))
        # Lengths of lr schedules are those of the whole run, so the twin is stopped after `count` epochs instead.
        for event in Trainer(self._settings(), [alone], Control()):
            twin.add(event)
            yield ev.Heartbeat(time.time())
            if isinstance(event, ev.EpochDone) and event.epoch == count:
                break
        differences = {}
        for metric in self.metrics:
            pairs = zip(
                member.curves[metric].values[:count], twin.members[variant.id].curves[metric].values, strict=True
            )
            differences[metric] = max(_apart(a, b) for a, b in pairs)
        tolerance = TOLERANCES[name]
        equal = all(d <= tolerance for m, d in differences.items() if m.endswith("_loss"))
        event = ev.MemberChecked(time.time(), variant.id, count, differences, tolerance, equal)
        self._keep(event)
        yield event

    def _member(self, id: int) -> Variant:
        found = next((v for v in self.variants if v.id == id), None)
        if found is None:
            raise StudyError("no such variant", where=self.name, got=id, accepted=f"0 to {len(self.variants) - 1}")
        return found

    def _options(self) -> dict[str, Any]:
        return {
            "epochs": self.epochs,
            "patience": self.patience,
            "monitor": self.monitor,
            "device": str(self.device),
            "dtype": str(self.dtype).removeprefix("torch."),
            "serial": self.serial,
            "seed": self.seed,
            "name": self.name,
            **self.fixed,
        }

    def _description(self) -> dict[str, Any]:
        grid = {k: list(v) for k, v in self.grid.axes.items()}
        data = {"name": self.data.name, "task": self.data.task, "facts": dict(self.data.facts)}
        return {"family": self.family.name, "grid": grid, "data": data, "options": self._options()}

    def _write_own_data(self) -> None:
        if self.data.name not in datasets.names():
            d = self.data
            tensors = {"x": d.x, "y": d.y, "x_validation": d.x_validation, "y_validation": d.y_validation}
            self.store.write_tensors("data.safetensors", tensors)

    @staticmethod
    def _read_data(store: Store, asked: Mapping[str, Any]) -> Data:
        if asked["name"] in datasets.names():
            return datasets.load(asked["name"])
        return Data(asked["name"], asked["task"], facts=asked["facts"], **store.read_tensors("data.safetensors"))


def _apart(a: float, b: float) -> float:
    # Both lost in the same way is equal; one alone is not.
    return 0.0 if a == b or (math.isnan(a) and math.isnan(b)) else abs(a - b)


class Result:
    """What came of one variant.

    Attributes:
        study: it is part of.
        variant: its number, configuration and seed.
    """

    def __init__(self, study: Study, variant: Variant) -> None:
        self.study, self.variant = study, variant

    @property
    def config(self) -> dict[str, Any]:
        """Its value on each axis of the grid."""
        return dict(self.variant.config)

    @property
    def metrics(self) -> dict[str, float]:
        """Every metric at its best epoch."""
        member = self.study.history.members.get(self.variant.id)
        return {m: member.at_best(m) for m in self.study.metrics} if member else {}

    def module(self) -> nn.Module:
        """Its best weights in a plain module, in eval mode: nothing of hfta_nb in it.

        Raises:
            StoreError: no weights were saved (yet).
        """
        study = self.study
        group, index = next((g, i) for g in study._plan for i, v in enumerate(g.variants) if v.id == self.variant.id)
        weights = study.store.read_weights(self.variant.id)
        with torch.random.fork_rng(devices=[]):
            module = study.family.build(**group.arguments[index]).to(study.dtype)
        try:
            module.load_state_dict(weights)
        except RuntimeError as error:
            raise StoreError(
                f"the saved weights don't fit the family ({error})",
                where=str(study.store.weights_path(self.variant.id)),
            ) from error
        return module.eval()

    def to_code(self) -> str:
        """Python source that loads it in another notebook."""
        own = "" if self.study.family.name in _built_in_names() else f", family={self.study.family.name}"
        return (
            "import hfta_nb as hfta\n\n"
            f"model = hfta.Study.load({str(self.study.directory)!r}{own}).member({self.variant.id}).module()\n"
        )

    def __repr__(self) -> str:
        shown = ", ".join(f"{k} {show(v)}" for k, v in self.metrics.items() if k.startswith("val_"))
        return f"Result({self.variant.label}; {shown or 'not trained yet'})"


def _alone(group: Group, index: int) -> Group:
    """A group of one of the group's variants, to be trained as a plain module."""
    return Group(
        0,
        (group.variants[index],),
        (group.rows[index],),
        (group.arguments[index],),
        "",
        group.parameters,
        group.memory_bytes,
        serial=True,
    )


def _family(given: str | Family) -> Family:
    if not isinstance(given, str | Family):
        raise FamilyError("not a family", got=given, accepted="a name, or what @hfta_nb.family gives")
    return given if isinstance(given, Family) else family(given)


def _built_in_names() -> list[str]:
    from hfta_nb.families import BUILT_IN

    return [f.name for f in BUILT_IN]


def _positive(where: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise StudyError("not a positive whole number", where=where, got=value, accepted="1, 2, 3, ...")
    return value


def _dtype(name: str) -> torch.dtype:
    if name not in TOLERANCES:
        raise StudyError("unknown dtype", where="dtype", got=name, accepted=", ".join(TOLERANCES))
    return getattr(torch, name)  # type: ignore[no-any-return]


def _device(name: str | None) -> torch.device:
    from hfta_nb.errors import DeviceError

    if name is None:
        return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise DeviceError("unknown device", where="device", got=name, accepted="cpu, cuda, cuda:0, ...") from None
    if device.type not in ("cpu", "cuda"):
        raise DeviceError("not supported", where="device", got=name, accepted="cpu, cuda")
    if device.type == "cuda":
        count = torch.cuda.device_count()
        index = device.index or 0
        if index >= count:
            raise DeviceError("no such GPU", where="device", got=name, accepted=f"{count} found", remedy="use cpu")
        return torch.device("cuda", index)
    return device
