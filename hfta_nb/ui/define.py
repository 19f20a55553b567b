"""Define: what is to be trained. Every field is read as typed, and what is wrong is said beside it."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ipywidgets

import hfta_nb as hfta
from hfta_nb.errors import GridError, HftaError
from hfta_nb.events import Json
from hfta_nb.family import watch
from hfta_nb.grid import AxisSpec, show
from hfta_nb.ui.axis_row import AxisRow
from hfta_nb.ui.parts import button, words
from hfta_nb.ui.text import count, escape
from hfta_nb.ui.text import words as error_words

DTYPES = ("float32", "float64")
PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
CHECKPOINTING = ("auto", "never", "always")
_CAPACITY = "Most members of an array: a number, auto for the fastest, empty for as many as fit"
_CHECKPOINTING = "Compute activations again in the backward, to fit more members; costs a second forward"
FIRST_GRID: dict[str, tuple[Json, ...]] = {"lr": (1e-3, 3e-3, 1e-2)}
"""What the grid is when nothing was said: enough to press Train."""


@dataclass(frozen=True)
class Definition:
    """What stands in the fields.

    Attributes:
        family: its name.
        data: a name, or the person's own data.
        grid: values per axis, as far as they can be read.
        options: the other arguments of `hfta_nb.Study`.
        problems: what can't be read, in words, by axis.
    """

    family: str
    data: Any
    grid: dict[str, tuple[Json, ...]]
    options: dict[str, Any] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)


class Define(ipywidgets.VBox):  # type: ignore[misc]
    """The fields of a definition.

    Args:
        changed: called whenever a field may mean something else.
        family: name of the family, or the family.
        data: a name, own data (`hfta_nb.Data`), or tensors ``(x, y)``; the family's default without.
        grid: axis names to values.
        epochs, batch_size, patience, seed, dtype, precision, device: as in `hfta_nb.Study`.
        options: further arguments of `hfta_nb.Study`; shown, but not to be changed here.
    """

    def __init__(
        self,
        changed: Callable[[], None],
        family: Any = "cnn",
        data: Any = None,
        grid: Mapping[str, Any] | None = None,
        *,
        epochs: int = 20,
        batch_size: int | None = None,
        patience: int | None = None,
        seed: int = 0,
        dtype: str = "float32",
        precision: str = "fp32",
        device: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self._changed, self._options = changed, dict(options or {})
        self._unwatch: Callable[[], None] = lambda: None
        self._quiet = True
        recipe = hfta.family(family)
        self._own: dict[str, Any] = {}
        # A data set in a directory ("cifar10:<directory>") joins the list as own data does.
        if data is not None and (not isinstance(data, str) or data.partition(":")[0] in hfta.data.kinds()):
            own = hfta.data.resolve(data)  # once: a Dataset may take its time
            self._own[own.name] = own
            data = own.name
        self.family_field = _dropdown("family", hfta.families(), "What is trained: built-in, or defined in a cell")
        self.family_field.value = recipe.name
        self.data_field = _dropdown("data", self._data_names(), "What it is trained on: data sets that suit the family")
        if data is not None:
            self.data_field.value = _chosen("data", data, self.data_field.options)
        self._specs: dict[str, AxisSpec] = self._axes_now(grid or ())
        self.epochs_field = _integer("epochs", epochs, 1, "How often each member sees the training data")
        self.batch_field = _integer("batch size", batch_size or self._usual_batch, 1, "Samples in a mini-batch")
        self.patience_field = _integer(
            "patience", patience or 0, 0, "Validations without improvement after which a member stops; 0 for never"
        )
        self.seed_field = _integer("data seed", seed, 0, "Seed of the order of the data")
        self.dtype_field = _dropdown("dtype", DTYPES, "Of parameters and data; float64 for sharp comparisons")
        self.dtype_field.value = _chosen("dtype", dtype, DTYPES)
        self.precision_field = _dropdown(
            "precision", PRECISIONS, "How it computes: tf32 products; bf16 or fp16 autocast"
        )
        self.precision_field.value = _chosen("precision", precision, PRECISIONS)
        self.capacity_field = _text("capacity", self._options.pop("capacity", None), "fit", _CAPACITY)
        self.checkpointing_field = _dropdown("checkpointing", CHECKPOINTING, _CHECKPOINTING)
        again = self._options.pop("checkpointing", "auto")
        self.checkpointing_field.value = _chosen("checkpointing", again, CHECKPOINTING)
        self.device_field = _dropdown("device", _devices(), "Where it is trained")
        wanted = {None: self.device_field.options[0], "cuda": "cuda:0"}.get(device, device)
        self.device_field.value = _chosen("device", str(wanted), self.device_field.options)
        self.rows_box = ipywidgets.VBox([]).add_class("hfta-axes")
        self.add_button = button("add axis", "Sweep one more axis", "hfta-add")
        self.problem = words("hfta-problem")
        self.fields_box = self._fields()
        super().__init__([self.fields_box, self.rows_box, self.add_button, self.problem])
        self._fill(FIRST_GRID if grid is None else hfta.Grid(grid).axes)
        self._listen()
        self._quiet = False

    def __repr__(self) -> str:
        return f"Define({self.family_field.value!r}, {self.data_field.value!r}, {self.definition().grid!r})"

    @property
    def rows(self) -> list[AxisRow]:
        return list(self.rows_box.children)

    def row(self, name: str) -> AxisRow:
        """The row of an axis.

        Raises:
            GridError: there is none.
        """
        for row in self.rows:
            if row.name == name:
                return row
        raise GridError("no row for this axis", got=name, accepted=", ".join(r.name for r in self.rows))

    def definition(self) -> Definition:
        """What stands in the fields now."""
        rows = {row.name: row for row in self.rows}
        options: dict[str, Any] = {
            "epochs": self.epochs_field.value,
            # Its default is left unsaid, so that the code cell does not say it either.
            "batch_size": None
            if "batch_size" in rows or self.batch_field.value == self._usual_batch
            else self.batch_field.value,
            "patience": self.patience_field.value or None,
            "seed": self.seed_field.value,
            "dtype": self.dtype_field.value,
            "precision": self.precision_field.value,
            "capacity": _capacity(self.capacity_field.value),
            "checkpointing": self.checkpointing_field.value,
            "device": self.device_field.value,
        }
        data = self._own.get(self.data_field.value, self.data_field.value)
        grid = {name: row.values for name, row in rows.items() if row.values is not None}
        problems = {name: row.error for name, row in rows.items() if row.error}
        return Definition(self.family_field.value, data, grid, options | self._options, problems)

    def complain(self, error: BaseException | None) -> None:
        """Show what keeps the definition from being planned: beside the axis that it is about, or below all."""
        place = getattr(error, "where", "")
        beside = next((row for row in self.rows if row.name == place), None)
        for row in self.rows:
            if row.values is not None:
                row.complain(error if row is beside else None)
        said = error_words(error) if error is not None and beside is None else ""
        self.problem.value = f'<span role="alert">{escape(said)}</span>' if said else ""

    def summary(self, variants: int | None) -> str:
        """The definition in one line."""
        found = self.definition()
        axes = " x ".join(f"{len(values)} {name}" for name, values in found.grid.items()) or "no axis"
        total = "" if variants is None else f" = {count(variants, 'variant')}"
        epochs = count(found.options["epochs"], "epoch")
        return f"{found.family} on {self.data_field.value}, {epochs}; {axes}{total}"

    def hints(self) -> dict[str, str]:
        """What to say of each field, by its label."""
        fields = [w for w in self.fields_box.children if hasattr(w, "description")]
        rows = [w for row in self.rows for w in (row.kind_field, row.text_field)]
        found = {str(w.description): str(w.tooltip) for w in [*fields, *rows] if w.description and w.tooltip}
        return {**found, "axis": "Which axis of the grid this row is"}

    def add_axis(self, name: str = "", values: Sequence[Json] | None = None) -> AxisRow:
        """One more row.

        Args:
            name: the axis; the first that is not there yet without.
            values: to begin with; the axis's default without.

        Raises:
            GridError: the family has no such axis, or it has a row already.
        """
        free = self._free()
        if name and name not in free:
            raise GridError("can't be added", where="grid", got=name, accepted=", ".join(free))
        row = AxisRow(name or free[0], self._specs, self._edited, self._remove, values)
        self.rows_box.children = [*self.rows, row]
        self._offer()
        if not self._quiet:
            self._changed()
        return row

    def close(self) -> None:
        """Hear of new families no longer."""
        unwatch, self._unwatch = self._unwatch, lambda: None
        unwatch()
        super().close()

    # Within.

    def _fields(self) -> ipywidgets.HBox:
        fields = [
            self.family_field,
            self.data_field,
            self.epochs_field,
            self.batch_field,
            self.patience_field,
            self.seed_field,
            self.dtype_field,
            self.precision_field,
            self.capacity_field,
            self.checkpointing_field,
            self.device_field,
        ]
        fixed = ", ".join(f"{k}={show(v) if not isinstance(v, dict | list) else v}" for k, v in self._options.items())
        note = words("hfta-fixed")
        note.value = escape(f"also given in code: {fixed}") if fixed else ""
        return ipywidgets.HBox([*fields, *([note] if fixed else [])]).add_class("hfta-fields")

    def _fill(self, grid: Mapping[str, Sequence[Json]]) -> None:
        for name, values in grid.items():
            if name not in self._specs:
                raise hfta.family(self.family_field.value).no_axis(name, self._data_now())
            self.add_axis(name, [self._specs[name].check_or_none(v) for v in values])

    def _listen(self) -> None:
        self.family_field.observe(self._family_changed, "value")
        self.data_field.observe(self._data_changed, "value")
        plain = (self.epochs_field, self.batch_field, self.patience_field, self.seed_field)
        memory = self.capacity_field, self.checkpointing_field
        for widget in (*plain, self.dtype_field, self.precision_field, *memory, self.device_field):
            widget.observe(lambda _: self._edited(), "value")
        self.add_button.on_click(lambda _: self.add_axis())
        me = weakref.ref(self)

        def heard() -> None:
            define = me()
            if define is not None:
                define._families_changed()

        self._unwatch = watch(heard)

    def _edited(self) -> None:
        if not self._quiet:
            self._offer()
            self._changed()

    def _remove(self, row: AxisRow) -> None:
        self.rows_box.children = [r for r in self.rows if r is not row]
        row.close()
        self._edited()

    @property
    def _usual_batch(self) -> int:
        """The family's default."""
        return int(str(self._specs["batch_size"].default))

    def _free(self) -> list[str]:
        taken = {row.name for row in self.rows} | set(self._options)
        return [name for name in self._specs if name not in taken]

    def _offer(self) -> None:
        free = self._free()
        for row in self.rows:
            row.offer(free, self._specs)
        self.add_button.disabled = not free
        swept = any(row.name == "batch_size" for row in self.rows)
        self.batch_field.disabled = swept
        self.batch_field.tooltip = "It is an axis of the grid" if swept else "Samples in a mini-batch"

    def _data_now(self) -> Any:
        """What is chosen: a name, or own data."""
        own = self._own.get(self.data_field.value)
        return str(self.data_field.value) if own is None else own

    def _axes_now(self, asked: Iterable[str] = ()) -> dict[str, AxisSpec]:
        """The axes of the family on the data that is chosen; and those asked for, of a family that takes any."""
        return hfta.family(self.family_field.value).specs_for(self._data_now(), asked)

    def _data_names(self) -> list[str]:
        family, known = hfta.family(self.family_field.value), hfta.data.names()
        suits = [n for n in family.data if n in known]
        return list(dict.fromkeys([*suits, *hfta.data.found(family.tasks), *self._own]))

    def _families_changed(self) -> None:
        """A family was defined in a cell: it joins the list, or takes the place of the one of its name."""
        names, keep = hfta.families(), self.family_field.value
        if list(self.family_field.options) != names:
            self._quiet = True
            with self.family_field.hold_sync():
                self.family_field.options = names
                self.family_field.value = keep
            self._quiet = False
        self._family_changed(None)

    def _family_changed(self, _: Any) -> None:
        if self._quiet:
            return
        self._quiet = True
        keep, names = self.data_field.value, self._data_names()
        if list(self.data_field.options) != names:
            with self.data_field.hold_sync():
                self.data_field.options = names
                self.data_field.value = keep if keep in names else names[0] if names else None
        self._quiet = False
        self._renew_axes()

    def _data_changed(self, _: Any) -> None:
        """Images and point clouds have axes of their own; those of the others go."""
        if self._quiet:
            return
        if self._axes_now(self._specs) == self._specs:
            self._edited()
        else:
            self._renew_axes()

    def _renew_axes(self) -> None:
        usual = self._usual_batch
        try:
            self._specs = self._axes_now(row.name for row in self.rows)
        except HftaError as error:
            self.complain(error)
            return
        self._quiet = True
        if self.batch_field.value == usual:
            self.batch_field.value = self._usual_batch
        # Axes that are lacking now go; the values of the others are read again, as theirs may be others.
        rows = [(r.name, r.values) for r in self.rows if r.name in self._specs]
        for row in self.rows:
            row.close()
        self.rows_box.children = []
        for name, values in rows:
            self.add_axis(name, self._accepted(name, values))
        self._quiet = False
        self._edited()

    def _accepted(self, name: str, values: Sequence[Json] | None) -> list[Json] | None:
        try:
            return None if values is None else [self._specs[name].check_or_none(v) for v in values]
        except GridError:
            return None


def _dropdown(description: str, options: Sequence[str], tooltip: str) -> ipywidgets.Dropdown:
    made = ipywidgets.Dropdown(
        options=list(options), description=description, tooltip=tooltip, layout={"width": "auto"}
    )
    return made.add_class("hfta-field").add_class(f"hfta-field-{description}")


def _integer(description: str, value: int, low: int, tooltip: str) -> ipywidgets.BoundedIntText:
    made = ipywidgets.BoundedIntText(
        value, min=low, max=10**9, description=description, tooltip=tooltip, layout={"width": "auto"}
    )
    return made.add_class("hfta-field").add_class(f"hfta-field-{description.replace(' ', '-')}")


def _text(description: str, value: Any, nothing: str, tooltip: str) -> ipywidgets.Text:
    made = ipywidgets.Text(
        "" if value is None else str(value),
        placeholder=nothing,
        description=description,
        tooltip=tooltip,
        continuous_update=False,
        layout={"width": "auto"},
    )
    return made.add_class("hfta-field").add_class(f"hfta-field-{description}")


def _capacity(text: str) -> int | str | None:
    """What was typed, as `Study` takes it, which complains of what it can't use."""
    typed = text.strip()
    return int(typed) if typed.isdecimal() else typed or None


def _chosen(where: str, value: str, options: Sequence[str]) -> str:
    if value not in options:
        raise HftaError("not one of these", where=where, got=value, accepted=", ".join(options))
    return value


def _devices() -> list[str]:
    import torch

    found = [f"cuda:{i}" for i in range(torch.cuda.device_count())]
    return [*found, "cpu"]
