"""The targets for the suite's figures, as data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Line = Mapping[str, Any]
Row = Mapping[str, Line]
"""The lines of a row by mode."""

HALF = ("bf16", "fp16")
GOALS = {"pointnet_cls": 4.0, "pointnet_seg": 4.0, "dcgan": 6.0, "resnet18": 2.0, "mobilenet_v3_large": 3.0,
         "transformer": 10.0, "bert": 8.0}  # fmt: skip
"""Times serial with 8 members on a GPU, of HFTA's six models (PointNet with both of its heads): about half of the bound
where each product is a kernel and all else is fused."""
HFTAS_SIX = tuple(GOALS)
OURS = ("ours", "ours_compiled", "ours_together", "ours_compiled_together")


@dataclass(frozen=True)
class Bar:
    """A target.

    Attributes:
        what: in words.
        device: "cpu" or "cuda".
        applies: to a row, by model, members and precision.
        value: computes the figure from a row, by wall time or processor time; None if the row has none.
        least: the lower limit; or, if `most`, the upper one.
        best: whether it applies to the best member count of a model only.
    """

    what: str
    device: str
    applies: Callable[[str, int, str], bool]
    value: Callable[[Row, bool], float | None]
    least: float
    most: bool = False
    best: bool = False

    def passed(self, value: float) -> bool:
        """True if the figure meets the target."""
        return value <= self.least if self.most else value >= self.least


@dataclass(frozen=True)
class Verdict:
    """A target and the figure.

    Attributes:
        value: None if it was not measured.
    """

    bar: Bar
    model: str
    members: int
    precision: str
    value: float | None

    @property
    def passed(self) -> bool | None:
        """None if there is no figure."""
        return None if self.value is None else self.bar.passed(self.value)


def step_s(line: Line | None, processor_time: bool) -> float | None:
    """The median of a step whose losses agree; None without one."""
    if line is None or not line.get("agrees"):
        return None
    return float(line["step_cpu_s" if processor_time else "step_s"]["median"])


def ratio(row: Row, base: str, mode: str, processor_time: bool) -> float | None:
    """The speed of a mode relative to another; for serial, the median of the rounds' ratios."""
    line = row.get(mode)
    if line is None or not line.get("agrees"):
        return None
    if base in ("serial", "best_serial"):
        found = line["ratio_to_serial" if base == "serial" else "ratio_to_best_serial"]
        return found.get("cpu_median") if processor_time else found["median"]
    mine, theirs = step_s(line, processor_time), step_s(row.get(base), processor_time)
    return theirs / mine if mine and theirs else None


def _to(base: str, mode: str = "ours") -> Callable[[Row, bool], float | None]:
    return lambda row, processor_time: ratio(row, base, mode, processor_time)


def _best_to(base: str) -> Callable[[Row, bool], float | None]:
    """By the fastest of the ways in which a study's step may run, among which `compile="auto"` chooses."""

    def best(row: Row, processor_time: bool) -> float | None:
        found = [ratio(row, base, mode, processor_time) for mode in OURS]
        return max((value for value in found if value is not None), default=None)

    return best


def _pays(row: Row, processor_time: bool) -> float | None:
    line = row.get("ours")
    if line is None or not line.get("agrees") or "pays_after_steps" not in line:
        return None
    found = line["pays_after_steps"]
    return float("inf") if found is None else float(found)


def _drawing(row: Row, processor_time: bool) -> float | None:
    line = row.get("ours")
    return line.get("data_share") if line is not None and line.get("agrees") else None


def _sm_active(row: Row, processor_time: bool) -> float | None:
    return ((row.get("ours") or {}).get("activity") or {}).get("sm_active")


def _any(model: str, members: int, precision: str) -> bool:
    return True


def _one(model: str, members: int, precision: str) -> bool:
    return members == 1


def _many(only: str) -> Callable[[str, int, str], bool]:
    return lambda model, members, precision: model == only and members >= 8


BARS = (
    Bar("at least the best serial", "cpu", _any, _to("best_serial"), 1.0),
    Bar("one member costs at most 3% more than plain", "cpu", _one, _to("serial"), 1 / 1.03),
    Bar("MLP 3 times the best serial, from 8 members", "cpu", _many("mlp"), _to("best_serial"), 3.0),
    Bar("LSTM 1.5 times the best serial, from 8 members", "cpu", _many("lstm"), _to("best_serial"), 1.5),
    Bar("the split form at least serial", "cpu", _any, _to("serial", "ours_split"), 1.0),
    Bar("ahead of `torch.func.vmap`", "cpu", _any, _to("vmap"), 1.0),
    Bar("ahead of `jax.vmap` (an aim, not a bar)", "cpu", _any, _to("jax"), 1.0),
    Bar("beginning is paid within 200 steps", "cpu", _any, _pays, 200, most=True),
    Bar("drawing batches takes at most 2% of a step", "cpu", _any, _drawing, 0.02, most=True),
    Bar("drawing batches takes at most 2% of a step", "cuda", _any, _drawing, 0.02, most=True),
    *(
        Bar(
            f"{model} {goal:g} times serial with 8 members",
            "cuda",
            lambda model, members, precision, only=model: (model, members) == (only, 8) and precision in HALF,
            _best_to("serial"),
            goal,
        )
        for model, goal in GOALS.items()
    ),
    Bar(
        "twice what `torch.func.vmap` reaches",
        "cuda",
        lambda model, members, precision: model in HFTAS_SIX and precision in HALF,
        _best_to("vmap"),
        2.0,
        best=True,
    ),
    Bar("never below `jax.vmap`", "cuda", _any, _to("jax"), 1.0),
    Bar("SM active 0.9", "cuda", _any, _sm_active, 0.9, best=True),
    Bar("one member costs at most 3% more than plain", "cuda", _one, _to("serial"), 1 / 1.03),
)
"""Targets on a GPU are for half precision at the best member count."""


def verdicts(rows: Sequence[Row], processor_time: bool) -> list[Verdict]:
    """Every target for every row that it applies to and whose modes were measured."""
    found = []
    for bar in BARS:
        mine = [(key, row) for row in rows if bar.applies(*(key := key_of(row))) and device_of(row) == bar.device]
        each = [Verdict(bar, *key, bar.value(row, processor_time)) for key, row in mine]
        each = [verdict for verdict in each if verdict.value is not None]
        found += _best(each, rows, processor_time) if bar.best else each
    return found


def _best(each: Sequence[Verdict], rows: Sequence[Row], processor_time: bool) -> list[Verdict]:
    """For each model and precision, the verdict at the member count where ours trains most samples per second."""
    rates = {key_of(row): (row.get("ours") or {}).get("samples_per_s") or 0.0 for row in rows}
    kept: dict[tuple[str, str], Verdict] = {}
    for verdict in sorted(each, key=lambda v: rates[v.model, v.members, v.precision]):
        kept[verdict.model, verdict.precision] = verdict
    return list(kept.values())


def key_of(row: Row) -> tuple[str, int, str]:
    """Model, members, precision."""
    line = next(iter(row.values()))
    return str(line["model"]), int(line["members"]), str(line["precision"])


def device_of(row: Row) -> str:
    return str(next(iter(row.values()))["device"]).partition(":")[0]
