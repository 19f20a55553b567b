"""The data of the live view: collects events, and makes messages of new points.

It has no widget, so that it can be tested and timed alone. A message is a JSON header and four binary buffers (epoch,
step, time, value) with the points of all curves, one curve after another.
"""

from __future__ import annotations

import itertools
import math
from array import array
from collections.abc import Iterable, Sequence
from typing import Any

from hfta_nb import events as ev
from hfta_nb.figures import colors
from hfta_nb.records.history import Curve, History, Member
from hfta_nb.search.grid import show
from hfta_nb.ui.blown_up import blown_up
from hfta_nb.ui.edits import Mark, marks

LIMIT = 4096
"""A curve with more points than this is thinned; `front/trace.js` has the same number."""

DEVICE = -1
"""The owner of curves of device measurements; other curves are owned by a member's id."""

STEP_LOSS = "step_loss"
"""Name of the curve of training losses within epochs."""


def thin(curve: Curve, limit: int = LIMIT) -> None:
    """Reduce a curve of more than `limit` points to at most half of that, preserving its outline.

    Its steps are divided into equal intervals, each of which keeps its lowest and highest finite point. This can be
    repeated while a curve grows: old points get no sparser than new ones, and extremes are kept.
    """
    if len(curve.values) <= limit:
        return
    first, span = curve.steps[0], curve.steps[-1] - curve.steps[0] + 1
    stretches = limit // 4
    last = len(curve.values) - 1
    kept: list[int] = []
    for _, group in itertools.groupby(range(last), lambda i: (curve.steps[i] - first) * stretches // span):
        places = list(group)
        finite = [i for i in places if math.isfinite(curve.values[i])]
        if finite:
            kept += sorted({min(finite, key=curve.values.__getitem__), max(finite, key=curve.values.__getitem__)})
        else:
            kept.append(places[0])
    kept.append(last)
    columns: tuple[list[Any], ...] = (curve.epochs, curve.steps, curve.values, curve.times)
    for column in columns:
        column[:] = [column[i] for i in kept]


class LiveState:
    """Events in, messages out. Not thread-safe: its owner holds a lock.

    Attributes:
        history: the run, each of its curves thinned to `LIMIT`.
        device: one curve per measurement of the device; of another one than the run's, its name and a slash come first.
        stale: whether the next message must contain everything.
        chosen: ids of members that are drawn where not all are; see `hfta_nb.figures.colors.drawn`.
    """

    def __init__(self) -> None:
        self.history = History()
        self.device: dict[str, Curve] = {}
        self.stale = True
        self.chosen: tuple[int, ...] = ()
        self._drawn: dict[int, Member] = {}  # of the last message that had everything
        self._sampled: dict[str, tuple[int, float]] = {}  # of each device how many samples, and the time of the last
        self._new: dict[tuple[int, str], Curve] = {}
        self._changed: set[int] = set()
        self._lines: tuple[str, ...] = ()
        self._sent: dict[str, Any] = {}
        self._edited = False

    @property
    def points(self) -> int:
        """Number of points in a full message."""
        self._draw()
        return sum(len(curve.values) for _, _, curve in self._curves())

    def add(self, event: ev.Event) -> None:
        """Add one event. A repeated event (a replay that overlaps the stream) changes nothing."""
        if isinstance(event, ev.DeviceSampled):
            self._sample(event)
        elif isinstance(event, ev.RunStarted):
            self._run_started(event)
        elif not (isinstance(event, ev.RunChanged) and self._paused_at(event.time_s)):
            self.history.add(event)
            self._note(event)

    def seed(self, history: History) -> None:
        """Start from the history of a run."""
        self.history = _copy(history)
        self.device, self._sampled = {}, {}
        for sample in history.samples:
            self._sample(sample)
        self._forget()

    def take(self, full: bool = False) -> tuple[dict[str, Any], list[bytes]] | None:
        """The message of everything new since the last one, or of everything; None if there is nothing.

        Args:
            full: send everything, for a new front end.
        """
        full = full or self.stale
        if full:
            self._draw()
        curves = self._curves() if full else [(owner, name, curve) for (owner, name), curve in self._new.items()]
        owners = list(self._drawn) if full else sorted(self._changed & self._drawn.keys())
        status = {"run": self._run(), "pauses": list(self.history.pauses)}
        nothing = self.history.run is None and not self.device
        if nothing or not (full or curves or owners or self._edited or status != self._sent):
            return None
        self._sent = status
        header: dict[str, Any] = {"full": full, **status}
        header["states"] = [[i, self.history.members[i].state, self.history.members[i].reason] for i in owners]
        if full or self._edited:
            header["layout"] = layout(self.history, [self.history.members[i] for i in self._drawn])
        if full or tuple(self.device) != self._lines:
            self._lines = tuple(self.device)
            header["device"] = [_line(line) for line in colors.device_lines(self.device)]
        header["curves"] = [[owner, name, len(curve.values)] for owner, name, curve in curves]
        buffers = _pack([curve for _, _, curve in curves])
        self._forget()
        self.stale = False
        return header, buffers

    def _run_started(self, event: ev.RunStarted) -> None:
        if self.history.run == event:
            return
        if not event.resumed:
            self.device, self._sampled = {}, {}
            self.history.pauses = []
        self.history.add(event)
        self._forget()

    def _paused_at(self, time_s: float) -> bool:
        return any(begin == time_s for begin, _ in self.history.pauses)

    def _forget(self) -> None:
        self._new, self._changed, self._edited, self.stale = {}, set(), False, True

    def choose(self, ids: Sequence[int]) -> bool:
        """Draw these members in any case; whether they were not drawn."""
        self.chosen = tuple(ids)
        more = bool(self._drawn) and not self._drawn.keys() >= {i for i in ids if i in self.history.members}
        self.stale = self.stale or more
        return more

    def _draw(self) -> None:
        self._drawn = {m.id: m for m in colors.drawn(self.history, self.chosen)}

    def _curves(self) -> list[tuple[int, str, Curve]]:
        found: list[tuple[int, str, Curve]] = []
        for member in self._drawn.values():
            found += [(member.id, name, curve) for name, curve in member.curves.items()]
            if member.step_loss.values:
                found.append((member.id, STEP_LOSS, member.step_loss))
        return found + [(DEVICE, key, curve) for key, curve in self.device.items()]

    def _note(self, event: ev.Event) -> None:
        if isinstance(event, ev.StepsDone):
            for variant, loss in zip(event.variants, event.train_loss, strict=True):
                self._point(variant, STEP_LOSS, event.epochs_done, event.step, loss, event.time_s)
        elif isinstance(event, ev.EpochDone):
            for name, values in event.metrics.items():
                for variant, value in zip(event.variants, values, strict=True):
                    self._point(variant, name, event.epoch, event.step, value, event.time_s)
        elif isinstance(event, ev.MemberChanged):
            self._changed.add(event.variant)
            self.stale = self.stale or event.state == ev.DELETED  # its curves go
        elif isinstance(event, ev.MemberEdited):
            self._edited = True
        elif isinstance(event, ev.RunChanged) and event.state in ev.FINAL_STATES:
            if event.state in ev.FAILURES:
                self._changed |= self.history.members.keys()  # they ended with the run
            self.stale = self.stale or len(self._drawn) < len(self.history.members)  # others are the best by now

    def _point(self, variant: int, name: str, epoch: float, step: int, value: float, time_s: float) -> None:
        member = self.history.members[variant]
        thin(member.step_loss if name == STEP_LOSS else member.curves[name])
        if variant not in self._drawn:
            return
        fresh = self._new.setdefault((variant, name), Curve())
        fresh.add(epoch, step, value, time_s)
        thin(fresh)

    def _sample(self, event: ev.DeviceSampled) -> None:
        count, last_s = self._sampled.get(event.device, (0, -math.inf))
        if event.time_s <= last_s:
            return
        self._sampled[event.device] = count + 1, event.time_s
        run = self.history.run
        prefix = f"{event.device}/" if run is not None and event.device != run.device else ""
        for name, value in colors.cores_together(event.values).items():
            key = prefix + name
            for curve in (self.device.setdefault(key, Curve()), self._new.setdefault((DEVICE, key), Curve())):
                curve.add(math.nan, count + 1, value, event.time_s)
                thin(curve)

    def _run(self) -> dict[str, Any]:
        history = self.history
        epochs_done: float = max((m.epoch for m in self._drawn.values()), default=0)
        if history.progress:
            epochs_done = max(epochs_done, history.progress.epochs_done)
        leader = history.leader
        return {
            "state": history.state,
            "reason": history.reason,
            "phase": history.phase,
            "epochs_done": epochs_done,
            "best": leader.id if leader and math.isfinite(leader.best_value) else None,
            "blown": [[i, why] for i, why in blown_up(history).items() if i in self._drawn],
        }


def layout(history: History, variants: Sequence[Member]) -> dict[str, Any]:
    """The layout that a front end needs before the first point: members, names, colours, axes, metrics.

    Args:
        history: the run.
        variants: the members that are drawn, with the values that they have now.
    """
    run = history.run
    axes = run.axes if run else {}
    names = colors.swept(axes)
    varying, marked = colors.varying(history.members.values()), marks(history)
    return {
        "t0": history.begin_s if run else None,
        "epochs": run.epochs if run else 0,
        "metrics": metrics(run.metrics if run else ()),
        "device": run.device if run else "",
        "members": [_member(v, varying, marked.get(v.id, [])) for v in variants],
        "of": len(history.members),
        "axes": [_axis(colors.axis(n, colors.values_of(n, variants, axes)), variants) for n in names],
        "auto": colors.color_axis(len(variants), axes),
        "legend": colors.MAX_LEGEND,
    }


def metrics(names: Iterable[str]) -> list[dict[str, str]]:
    """Metrics by their name without split, with their curves; losses within epochs last."""
    found: dict[str, dict[str, str]] = {}
    for name in names:
        base, split = split_metric(name)
        found.setdefault(base, {"name": base, "label": base.replace("_", " ")})[split or "validation"] = name
    if found:
        found[STEP_LOSS] = {"name": STEP_LOSS, "label": "loss within epochs", "train": STEP_LOSS}
    return list(found.values())


def split_metric(name: str) -> tuple[str, str]:
    """A metric's name without its split, and the split ("" for none): "val_loss" is ("loss", "validation")."""
    for prefix, split in (("train_", "train"), ("val_", "validation")):
        if name.startswith(prefix):
            return name.removeprefix(prefix), split
    return name, ""


def _member(variant: Member, names: Sequence[str], marked: Sequence[Mark]) -> dict[str, Any]:
    stroke = colors.member(variant.id)
    config = [[name, show(value)] for name, value in variant.config.items()]
    label = colors.label(variant, names)
    return {"id": variant.id, "label": label, "config": config, "marks": list(marked), **_paint(stroke)}


def _axis(axis: colors.AxisColors, variants: Sequence[Member]) -> dict[str, Any]:
    return {
        "name": axis.name,
        "numeric": axis.sequential,
        "values": list(axis.labels),
        "light": [s.light for s in axis.strokes],
        "dark": [s.dark for s in axis.strokes],
        "of": [axis.index(v.config.get(axis.name)) for v in variants],
    }


def _line(line: colors.DeviceLine) -> dict[str, Any]:
    device, _, measurement = line.key.rpartition("/")
    names = {"key": line.key, "device": device, "measurement": measurement}
    return {**names, "label": line.label, "kind": line.kind, **_paint(line.stroke)}


def _paint(stroke: colors.Stroke) -> dict[str, Any]:
    return {"light": stroke.light, "dark": stroke.dark, "dash": list(stroke.dash)}


def _pack(curves: Sequence[Curve]) -> list[bytes]:
    # Steps and times are too large for float32; epochs and values are only drawn.
    columns = (("f", "epochs"), ("d", "steps"), ("d", "times"), ("f", "values"))
    return [
        array(code, itertools.chain.from_iterable(getattr(curve, name) for curve in curves)).tobytes()
        for code, name in columns
    ]


def _copy(history: History) -> History:
    copy = History()
    copy.__dict__.update(history.__dict__)
    copy.samples, copy.pauses, copy.speeds = [], list(history.pauses), dict(history.speeds)
    copy.halvings, copy.placements = list(history.halvings), list(history.placements)
    copy.members = {i: _copy_member(m) for i, m in history.members.items()}
    return copy


def _copy_member(member: Member) -> Member:
    copy = Member(member.id, member.config, member.seed)
    copy.__dict__.update(member.__dict__)
    copy.curves = {name: _copy_curve(curve) for name, curve in member.curves.items()}
    copy.step_loss = _copy_curve(member.step_loss)
    return copy


def _copy_curve(curve: Curve) -> Curve:
    copy = Curve(list(curve.epochs), list(curve.steps), list(curve.values), list(curve.times))
    thin(copy)
    return copy
