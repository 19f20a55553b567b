"""Define: the fields of a study. Every field is read as typed, and errors are shown beside it."""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import ipywidgets

import hfta_nb as hfta
from hfta_nb.errors import GridError, HftaError
from hfta_nb.models.model_zoo import watch
from hfta_nb.models.study_argument import SEARCH
from hfta_nb.models.study_config import ARGUMENTS, helps
from hfta_nb.records.events import Json
from hfta_nb.search.grid import AxisSpec, show
from hfta_nb.search.intervals import accepted
from hfta_nb.ui import fields, search_fields
from hfta_nb.ui.axis_row import AxisRow
from hfta_nb.ui.definition import FormValues, Listed, parted
from hfta_nb.ui.text import count, escape
from hfta_nb.ui.text import words as error_words
from hfta_nb.ui.widgets import Section, button, words

FIRST_GRID: dict[str, tuple[Json, ...]] = {"lr": (1e-3, 3e-3, 1e-2)}
"""The default grid, so that Train works at once."""


class Define(ipywidgets.VBox):  # type: ignore[misc]
    """The fields of a definition.

    Args:
        changed: called whenever a field may have changed.
        family: name of the family, or the family.
        data: a name, own data (`hfta_nb.Data`), or tensors ``(x, y)``; by default the family's first data set.
        grid: axis names to values, or to intervals of a search; or listed configurations, which are shown and can be
            removed.
        options: further arguments of `hfta_nb.Study`; those without a field are shown, but not editable.
    """

    def __init__(
        self,
        changed: Callable[[], None],
        family: Any = "cnn",
        data: Any = None,
        grid: Any = None,
        **options: Any,
    ) -> None:
        self._changed, self._options = changed, options
        self._unwatch: Callable[[], None] = lambda: None
        self._quiet = True
        recipe = hfta.family(family)
        data = self._with_own(data)
        known = hfta.families()
        self.family_field = fields.choice(
            "family", known, "The model family, built-in or defined in a cell", recipe.name
        )
        hint = "The data: data sets that suit the family"
        self.data_field = fields.choice("data", self._data_names(), hint, data)
        product, listed = (FIRST_GRID, ()) if grid is None else parted(grid)
        self.specs: dict[str, AxisSpec] = self._axes_now(product)
        formed = {name: known for name, known in ARGUMENTS.items() if known.form}
        self._made = {name: self._field(name, self._options.pop(name, known.default)) for name, known in formed.items()}
        self.rows_box = ipywidgets.VBox([]).add_class("hfta-axes")
        self.add_button = button("add axis", "Sweep one more axis", "hfta-add")
        self.problem = words("hfta-problem")
        self.fields_problem = words("hfta-problem")
        self.notices = words("hfta-notices")
        self.listed = Listed(listed, self._edited)
        searched = {name: self._made[name] for name, known in formed.items() if known.form == SEARCH}
        self.search = search_fields.SearchFields(searched, self._edited)
        more = ipywidgets.HBox([self.add_button, self.search.button]).add_class("hfta-more-axes")
        lines = [self.fields_problem, self.notices, self.rows_box, self.listed, more, self.search, self.problem]
        super().__init__([*self._fields(), *lines])
        self._fill(product)
        self._listen()
        self.search.follow(self.rows)
        self._say_advanced()
        self._quiet = False

    def _field(self, name: str, value: Any) -> Any:
        """The field of an argument, which begins with this value."""
        known, label, hint = ARGUMENTS[name], {"seed": "data seed"}.get(name, name.replace("_", " ")), _hint(name)
        if known.form == SEARCH:
            return search_fields.made(name, value, label, hint)
        if name == "device":
            field, value = fields.choice(label, fields.devices(), hint), {"cuda": "cuda:0"}.get(value, value)
            field.value = fields.one_of(label, str(value or field.options[0]), field.options)
            return field
        if known.choices:
            return fields.choice(label, known.choices, hint, value)
        if name == "capacity":
            return fields.capacity(value, hint, known.none)
        if name == "padding":
            return fields.padding(value, hint)
        if name == "batch_size":
            value = value or self._usual_batch
        if known.bare_type == "float":
            return fields.number(label, value, known.has_in_range, f"numbers {known.range}".strip(), hint, known.none)
        never = name == "patience"  # 0 is never as well
        low = 0 if never else 2 if name == "folds" else 1 if known.low is None else known.low
        return fields.whole(label, value or None if never else value, low, hint, known.none)

    def _with_own(self, data: Any) -> str | None:
        """The name of the data; own data, and a data set in a directory ("cifar10:<directory>"), join the list."""
        self._own: dict[str, Any] = {}
        if data is None or (isinstance(data, str) and data.partition(":")[0] not in hfta.data.kinds()):
            return data
        own = hfta.data.resolve(data)  # once: a Dataset may take its time
        self._own[own.name] = own
        return own.name

    def __repr__(self) -> str:
        return f"Define({self.family_field.value!r}, {self.data_field.value!r}, {self.definition().axes!r})"

    @property
    def fields(self) -> dict[str, Any]:
        """The fields, by the names of the arguments of `hfta_nb.Study`."""
        return {"family": self.family_field, "data": self.data_field, **self._made}

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

    def definition(self) -> FormValues:
        """What stands in the fields now."""
        rows = {row.name: row for row in self.rows}
        options: dict[str, Any] = {
            name: widget.meaning if hasattr(widget, "meaning") else widget.value
            for name, widget in self.fields.items()
            if name not in ("family", "data")
        }
        if "batch_size" in rows or options["batch_size"] == self._usual_batch:
            options["batch_size"] = None  # its default is left unsaid, so that the code cell does not say it either
        options["patience"] = options["patience"] or None
        options = self.search.told(options)
        data = self._own.get(self.data_field.value, self.data_field.value)
        axes = {name: row.values for name, row in rows.items() if row.values is not None}
        problems = {self.fields[name].description: said for name, said in self._misread().items()}
        problems |= {name: row.error for name, row in rows.items() if row.error}
        listed = self.listed.configurations
        return FormValues(self.family_field.value, data, axes, listed, options | self._options, problems)

    def complain(self, error: BaseException | None) -> str:
        """Show what keeps the definition from being planned: beside the field or axis it is about, or below all.

        Returns:
            The label of that field, or the axis; empty where it stands below all.
        """
        place = getattr(error, "where", "")
        beside = next((row for row in self.rows if row.name == place), None)
        for row in self.rows:
            if row.values is not None:
                row.complain(error if row is beside else None)
        named = "" if beside else place.partition(",")[0]
        in_field = error is not None and named in self.fields
        self._complain({named: error_words(error, place)} if error is not None and in_field else {})
        said = error_words(error) if error is not None and not (beside or in_field) else ""
        self.problem.value = f'<span role="alert">{escape(said)}</span>' if said else ""
        return beside.name if beside else str(self.fields[named].description) if in_field else ""

    def notify(self, found: Sequence[str]) -> None:
        """Show what to know of settings that can be trained with; see `hfta_nb.ui.notices`."""
        self.notices.value = "".join(f'<div role="status">{escape(text)}</div>' for text in found)

    def summary(self, amount: str) -> str:
        """The definition in one line; `amount` is how many variants or trials that are, empty without a plan."""
        found = self.definition()
        total = f" = {amount}" if amount else ""
        epochs = count(found.options["epochs"], "epoch") if found.options["epochs"] else "? epochs"
        return f"{found.family} on {self.data_field.value}, {epochs}; {found.size}{total}"

    def hints(self) -> dict[str, str]:
        """What to say of each field, by its label."""
        rows = [w for row in self.rows for w in (row.kind_field, row.text_field)]
        hinted = [*(w for name, w in self.fields.items() if name not in self.search.fields), *rows]
        found = {str(w.description): str(w.tooltip) for w in hinted if w.description and w.tooltip}
        return {**found, **self.search.hints(), "axis": "Which axis of the grid this row is"}

    def add_axis(self, name: str = "", values: Any = None) -> AxisRow:
        """One more row.

        Args:
            name: the axis; the first that is not there yet without.
            values: to begin with, or an interval; the axis's default without.

        Raises:
            GridError: the family has no such axis, or it has a row already.
        """
        free = self._free()
        if name and name not in free:
            raise GridError("can't be added", where="grid", got=name, accepted=", ".join(free))
        row = AxisRow(name or free[0], self.specs, self._edited, self._remove, values)
        self.rows_box.children = [*self.rows, row]
        self._offer()
        if not self._quiet:
            self._changed()
        return row

    def put(self, axes: Mapping[str, Any]) -> None:
        """Have rows for these axes, and no others."""
        self._quiet = True
        for row in self.rows:
            row.close()
        self.rows_box.children = []
        for name, values in axes.items():
            self.add_axis(name, values)
        self._quiet = False
        self._edited()

    def close(self) -> None:
        """Hear of new families no longer."""
        unwatch, self._unwatch = self._unwatch, lambda: None
        unwatch()
        super().close()

    # Within.

    def _fields(self) -> list[ipywidgets.Widget]:
        """A line of what most studies want, and the rest, folded."""
        shown = [w for n, w in self._made.items() if ARGUMENTS[n].basic and ARGUMENTS[n].form != SEARCH]
        first = [self.family_field, self.data_field, *shown]
        fixed = ", ".join(f"{k}={show(v) if not isinstance(v, dict | list) else v}" for k, v in self._options.items())
        if fixed:
            note = words("hfta-fixed")
            note.value = escape(f"also given in code: {fixed}")
            first.append(note)
        rare = ipywidgets.HBox([self._made[name] for name in self._rare])
        self.advanced = Section("Advanced", [rare.add_class("hfta-fields")], unfolded=False)
        return [ipywidgets.HBox(first).add_class("hfta-fields"), self.advanced]

    @property
    def _rare(self) -> list[str]:
        """The arguments whose fields are folded."""
        return [name for name in self._made if not ARGUMENTS[name].basic and ARGUMENTS[name].form != SEARCH]

    def _say_advanced(self) -> None:
        """What stands in the folded fields, in one line."""
        rare = {name: self._made[name] for name in self._rare}
        values = {n: w.meaning if isinstance(w, fields.TypedField) else w.value for n, w in rare.items()}
        said = [f"{rare[n].description} {v}" for n, v in values.items() if v != ARGUMENTS[n].default]
        self.advanced.summarise(", ".join([*said, "the rest as usual"]) if said else "all as usual")

    def _misread(self) -> dict[str, str]:
        """What can't be read in fields, by name."""
        typed = {name: widget for name, widget in self.fields.items() if hasattr(widget, "error")}
        return {name: widget.error for name, widget in typed.items() if widget.error and not widget.disabled}

    def _complain(self, more: dict[str, str]) -> None:
        """Show what is wrong in fields, each of which is marked."""
        found = self._misread() | more
        for name, widget in self.fields.items():
            mark = widget.add_class if name in found else widget.remove_class
            mark("hfta-wrong")
            if name in found and name in self._rare:
                self.advanced.head.unfolded = True
        said = (f"{self.fields[name].description}: {text}" for name, text in found.items())
        self.fields_problem.value = "".join(f'<div role="alert">{escape(text)}</div>' for text in said)

    def _fill(self, grid: Mapping[str, Any]) -> None:
        for name, values in grid.items():
            if name not in self.specs:
                raise hfta.family(self.family_field.value).no_axis(name, self._data_now())
            self.add_axis(name, accepted(values, self.specs[name]))

    def _listen(self) -> None:
        self.family_field.observe(self._family_changed, "value")
        self.data_field.observe(self._data_changed, "value")
        for name, widget in self.fields.items():
            if name not in ("family", "data"):
                widget.observe(lambda _: self._edited(), "value")
        self.add_button.on_click(lambda _: self.add_axis())
        me = weakref.ref(self)

        def changed() -> None:
            define = me()
            if define is not None:
                define._families_changed()

        self._unwatch = watch(changed)

    def _edited(self) -> None:
        if not self._quiet:
            self._offer()
            self._say_advanced()
            self._changed()

    def _remove(self, row: AxisRow) -> None:
        self.rows_box.children = [r for r in self.rows if r is not row]
        row.close()
        self._edited()

    @property
    def _usual_batch(self) -> int:
        """The family's default."""
        return int(str(self.specs["batch_size"].default))

    def _free(self) -> list[str]:
        taken = {row.name for row in self.rows} | set(self._options)
        return [name for name in self.specs if name not in taken]

    def _offer(self) -> None:
        free = self._free()
        for row in self.rows:
            row.offer(free, self.specs)
        self.add_button.disabled = not free
        if not self._quiet:
            self.search.follow(self.rows)
        swept = any(row.name == "batch_size" for row in self.rows)
        field = self.fields["batch_size"]
        field.disabled = swept
        field.tooltip = "It is an axis of the grid" if swept else _hint("batch_size")

    def _data_now(self) -> Any:
        """What is chosen: a name, or own data."""
        own = self._own.get(self.data_field.value)
        return str(self.data_field.value) if own is None else own

    def _axes_now(self, requested: Iterable[str] = ()) -> dict[str, AxisSpec]:
        """The axes of the family on the data that is chosen; and those asked for, of a family that takes any."""
        return hfta.family(self.family_field.value).specs_for(self._data_now(), requested)

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
        if self._axes_now(self.specs) == self.specs:
            self._edited()
        else:
            self._renew_axes()

    def _renew_axes(self) -> None:
        usual = self._usual_batch
        try:
            self.specs = self._axes_now(row.name for row in self.rows)
        except HftaError as error:
            self.complain(error)
            return
        self._quiet = True
        if self.fields["batch_size"].meaning == usual:
            self.fields["batch_size"].meaning = self._usual_batch
        # Axes that are lacking now go; the values of the others are read again, as theirs may be others.
        self.put({r.name: self._accepted(r.name, r.values) for r in self.rows if r.name in self.specs})

    def _accepted(self, name: str, values: Any) -> Any:
        try:
            return None if values is None else accepted(values, self.specs[name])
        except GridError:
            return None


def _hint(name: str) -> str:
    """The help of an argument's option; of one without, the beginning of what the docstring says."""
    hint = ARGUMENTS[name].hint or re.split(r"[:.]", helps()[name])[0]
    return hint[0].upper() + hint[1:]
