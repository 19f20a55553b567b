"""A row for one axis of the grid: its name, the kind of its values, the values as typed, and their parsed form."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ipywidgets

from hfta_nb.errors import GridError
from hfta_nb.records.events import Json
from hfta_nb.search import intervals
from hfta_nb.search.grid import HINTS, AxisSpec, Integers, linspace, logspace, parse_values, show
from hfta_nb.search.intervals import digits, interval_text, is_interval, parse_interval
from hfta_nb.search.spaces import ends_of
from hfta_nb.ui.text import count, escape
from hfta_nb.ui.text import words as error_words
from hfta_nb.ui.widgets import button, words

_SHOWN = 12
_KINDS = {
    "float": ("list", "range", "log range", *intervals.KINDS),
    "int": ("list", "integers", "log range", *intervals.KINDS),
    "bool": ("boolean",),
    "str": ("list",),
    "any": ("list",),
}
_SEEDS = ("seed", "data_seed")


def kinds_for(spec: AxisSpec) -> tuple[str, ...]:
    """Kinds of values of an axis, the usual one first."""
    if spec.choices:
        return ("choice",)
    if spec.name in _SEEDS:
        return ("seeds", "list", "integers")
    return _KINDS.get(spec.type, ("list",))


def typed(values: Sequence[Json]) -> str:
    """Values as typed into a list, with every digit."""
    return ", ".join(digits(v) if isinstance(v, float) else show(v) for v in values)


def example(kind: str, spec: AxisSpec) -> str:
    """An example of values of this kind for this axis."""
    if kind in intervals.KINDS:
        return intervals.hint(kind, spec)
    return "1e-3, 3e-3, 1e-2" if kind == "list" and spec.type == "float" else HINTS[kind]


def describe(spec: AxisSpec, values: Any) -> tuple[str, str]:
    """The kind and the text of these values: a range if they form one, else a list; or of an interval."""
    kinds = kinds_for(spec)
    if is_interval(values):
        kind, text = interval_text(values)
        return "integers" if isinstance(values, Integers) and "integers" in kinds else kind, text
    if kinds[0] in ("choice", "boolean"):
        return kinds[0], typed(values)
    numbers = [v for v in values if isinstance(v, float)]
    if spec.type == "float" and len(numbers) == len(values) > 3:
        for kind, make in (("log range", logspace), ("range", linspace)):
            if (kind == "range" or numbers[0] > 0 < numbers[-1]) and make(
                numbers[0], numbers[-1], len(values)
            ) == values:
                return kind, f"{digits(numbers[0])} to {digits(numbers[-1])}, {len(values)}"
    return "list", typed(values)


def reword(kind: str, values: Any, spec: AxisSpec) -> str:
    """The text after a change of the kind: the same values or ends if possible, else an example."""
    values = values if values is None or isinstance(values, Sequence) else ends_of(values)
    numbers = [v for v in values or () if isinstance(v, int | float) and not isinstance(v, bool)]
    if not numbers or len(numbers) != len(values or ()):
        return typed([spec.default]) if kind == "list" and spec.default is not None else example(kind, spec)
    low, high = min(numbers), max(numbers)
    if kind == "list":
        return typed(numbers)
    if kind == "integers" and all(v == int(v) for v in numbers):
        return f"{int(low)} to {int(high)}"
    if kind in intervals.KINDS:
        log = kind == "log interval"
        return f"{digits(low)} to {digits(high)}" if low < high and (low > 0 or not log) else example(kind, spec)
    if kind in ("range", "log range") and low < high and (kind == "range" or low > 0):
        return f"{digits(low)} to {digits(high)}, {max(2, len(numbers))}"
    return str(len(numbers)) if kind == "seeds" else example(kind, spec)


class AxisRow(ipywidgets.VBox):  # type: ignore[misc]
    """Name, kind and values of an axis, with the parsed values and the error; nothing typed is evaluated as code.

    Args:
        name: the axis.
        specs: the axes of the family.
        changed: called when the values may have changed.
        removed: called with this row when its button is pressed.
        values: initial values, or an interval; by default the axis's default.

    Attributes:
        error: what is wrong, in words; empty if nothing is.
    """

    def __init__(
        self,
        name: str,
        specs: Mapping[str, AxisSpec],
        changed: Callable[[], None],
        removed: Callable[[AxisRow], None],
        values: Any = None,
    ) -> None:
        self._changed, self._specs = changed, dict(specs)
        self._quiet = False
        self._given: tuple[str, str, Any] | None = None  # kind and text of what was given in code, and that
        self._values: Any = None
        self.error = ""
        wide = {"width": "auto"}
        self.name_field = ipywidgets.Dropdown(options=[(name, name)], value=name, description="axis", layout=wide)
        self.kind_field = ipywidgets.Dropdown(layout=wide)
        self.text_field = ipywidgets.Text(layout=wide)
        self.choices_box = ipywidgets.HBox([]).add_class("hfta-choices")
        self.preview = words("hfta-preview")
        self.problem = words("hfta-error")
        self.remove_button = button("remove", "", "hfta-remove")
        fields = [
            self.name_field.add_class("hfta-axis-name"),
            self.kind_field.add_class("hfta-axis-kind"),
            self.text_field.add_class("hfta-axis-values"),
            self.choices_box,
            self.preview,
            self.remove_button,
        ]
        super().__init__([ipywidgets.HBox(fields).add_class("hfta-axis-fields"), self.problem])
        self.add_class("hfta-axis")
        self._begin(values)
        self.name_field.observe(self._renamed, "value")
        self.kind_field.observe(self._rekinded, "value")
        self.text_field.observe(self._edited, "value")
        self.remove_button.on_click(lambda _: removed(self))

    def __repr__(self) -> str:
        return f"AxisRow({self.name!r}, {self.kind!r}, {self.text_field.value!r})"

    @property
    def name(self) -> str:
        return str(self.name_field.value)

    @property
    def kind(self) -> str:
        return str(self.kind_field.value)

    @property
    def spec(self) -> AxisSpec:
        return self._specs[self.name]

    @property
    def values(self) -> Any:
        """The typed values, or the interval; None if they can't be read."""
        return self._values

    @property
    def is_interval(self) -> bool:
        """Whether only a search can train it: the kind says so, whatever can be read."""
        return self.kind in intervals.KINDS

    def offer(self, names: Sequence[str], specs: Mapping[str, AxisSpec]) -> None:
        """Set the names to choose from, its own included."""
        self._specs = dict(specs)
        options = tuple((self._label(n), n) for n in specs if n in names or n == self.name)
        if self.name_field.options != options:
            self._quiet, keep = True, self.name
            with self.name_field.hold_sync():
                self.name_field.options = options
                self.name_field.value = keep
            self._quiet = False

    def _label(self, name: str) -> str:
        """The label of an axis in the list; the chosen one has the name only, to fit."""
        group = self._specs[name].group
        return f"{name} ({group})" if group and name != self.name else name

    def complain(self, error: BaseException | None) -> None:
        """Show an error beside the field, or none."""
        said = "" if error is None else error_words(error, self.name)
        fitting = f"for example {example(self.kind, self.spec)}"
        general = f"for example {HINTS.get(self.kind, example(self.kind, self.spec))}"
        # If the message shows the form already, a second example would confuse.
        self.error = said.replace(f"; {general}", "") if "; write " in said else said.replace(general, fitting)
        self.problem.value = f'<span role="alert">{escape(self.error)}</span>' if self.error else ""
        wrong = self.add_class if self.error else self.remove_class
        wrong("hfta-wrong")

    def _begin(self, values: Any) -> None:
        """Lay the row out for its axis, with initial values."""
        spec = self.spec
        start: Any = () if spec.default is None else (spec.default,)
        if values is not None:
            start = values if is_interval(values) else tuple(values)
        kind, text = describe(spec, start) if start else (kinds_for(spec)[0], "")
        if values is None and kind == "list":  # seeds are given by their number
            kind, text = (kinds_for(spec)[0], text) if kinds_for(spec)[0] != "seeds" else ("seeds", HINTS["seeds"])
        self._given = (kind, text, start) if values is not None else None
        self._quiet = True
        self.kind_field.options = tuple(dict.fromkeys((*kinds_for(spec), kind)))
        self.kind_field.value = kind
        self.kind_field.description, self.text_field.description = f"kind of {spec.name}", f"values of {spec.name}"
        self.kind_field.tooltip = "How the values are described"
        self.name_field.tooltip = spec.help or f"An axis of the family, {spec.type}"
        self.text_field.tooltip = spec.help or "The values of this axis"
        self.text_field.value = text
        self.remove_button.description = f"remove {spec.name}"
        self.remove_button.tooltip = f"Take {spec.name} out of the grid"
        self._lay_choices(spec, () if is_interval(start) else start)
        self._quiet = False
        self._hint()
        self._read()

    def _lay_choices(self, spec: AxisSpec, chosen: Sequence[Json]) -> None:
        options: tuple[Json, ...] = spec.choices or ((True, False) if spec.type == "bool" else ())
        boxes = [
            ipywidgets.Checkbox(
                v in chosen,
                description=show(v),
                indent=False,
                tooltip=f"{spec.name}={show(v)}",
                layout={"width": "auto"},
            )
            for v in options
        ]
        for box in boxes:
            box.observe(self._edited, "value")
        self._options = options
        self.choices_box.children = boxes
        self.text_field.layout.display = "none" if options else ""
        self.choices_box.layout.display = "" if options else "none"
        self.kind_field.disabled = len(self.kind_field.options) == 1

    def _hint(self) -> None:
        self.text_field.placeholder = f"for example {example(self.kind, self.spec)}"

    def _renamed(self, _: Any) -> None:
        if not self._quiet:
            self._begin(None)
            self._changed()

    def _rekinded(self, _: Any) -> None:
        if self._quiet:
            return
        self._quiet = True
        self.text_field.value = reword(self.kind, self._values, self.spec)
        self._quiet = False
        self._hint()
        self._edited(None)

    def _edited(self, _: Any) -> None:
        if not self._quiet:
            self._read()
            self._changed()

    def _read(self) -> None:
        try:
            self._values = self._parse()
            self.complain(None)
        except GridError as error:
            self._values = None
            self.complain(error)
        self.preview.value = escape(self._preview())

    def _parse(self) -> Any:
        if self._options:
            chosen = [v for v, box in zip(self._options, self.choices_box.children, strict=True) if box.value]
            if not chosen:
                raise GridError("nothing is chosen", where=self.name, remedy="choose at least one, or remove the axis")
            given = self._given[2] if self._given is not None else ()
            # In the order given in code, so that members have the same numbers as in a study of this grid.
            return tuple(sorted(chosen, key=lambda v: given.index(v) if v in given else len(given)))
        text = self.text_field.value
        if self._given is not None and (self.kind, text) == self._given[:2]:
            return self._given[2]  # as given in code, for example a tuple, which can't be typed
        if self.is_interval:
            return parse_interval(self.name, self.kind, text, self.spec)
        return parse_values(self.name, self.kind, text, self.spec)

    def _preview(self) -> str:
        if self._values is None or self._options:  # boxes show the choice
            return ""
        if self.is_interval:
            return "any value between them"
        shown = [show(v) for v in self._values[:_SHOWN]]
        more = f" ... ({count(len(self._values), 'value')})" if len(self._values) > _SHOWN else ""
        return " ".join(shown) + more
