"""Reference tables, made from the code when the site is built, so that they can't disagree with it.

A page asks for one with a comment of its own line: ``<!-- generated: axes -->``.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from unittest import mock

from docs._site.meanings import meaning
from hfta_nb import Family, families, family
from hfta_nb.data import names, task_of
from hfta_nb.data.augment import BY_KIND
from hfta_nb.data.readers import READERS
from hfta_nb.models import imbalance
from hfta_nb.models.study_config import ARGUMENTS, FLAGS, KEYS
from hfta_nb.models.training_axes import ALIASES, TRAINING_AXES, USED_BY
from hfta_nb.search.grid import AxisSpec, show

MARK = re.compile(r"^<!-- generated: ([\w.]+(?: [\w.]+)?) -->$", re.M)


def filled(text: str, makers: Mapping[str, Callable[..., str]]) -> str:
    """A page's text with what it asks for in place of the comments."""

    def made(found: re.Match[str]) -> str:
        name, *rest = found[1].split()
        return makers[name](*rest)

    return MARK.sub(made, text)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *([cell.replace("|", "\\|").replace("\n", " ") for cell in r] for r in rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n"


def axes() -> str:
    """The axes that every study has."""
    return _axes_table(TRAINING_AXES)


def study_arguments() -> str:
    """Where each argument of a study can be given, basic ones first."""
    head = ("argument", "default", "option", "key of `hfta-nb tune`")
    rows = []
    for name, known in ARGUMENTS.items():
        option = _code("--" + name.replace("_", "-")) if name in FLAGS else ""
        rows.append((_code(name), _code(repr(known.default)), option, _code(name) if name in KEYS else ""))
    return table(head, rows)


def augmentation() -> str:
    """The axes of augmentation, by kind of data."""
    return "\n".join(f"### {kind.capitalize()}\n\n{_axes_table(found)}" for kind, found in BY_KIND.items())


def imbalance_axes() -> str:
    """The axes of remedies for imbalanced classes."""
    return _axes_table(imbalance.AXES)


def axis_names() -> str:
    """Other names that are understood, or suggested, for an axis."""
    by_axis: dict[str, list[str]] = {}
    for alias, name in ALIASES.items():
        by_axis.setdefault(name, []).append(alias)
    return table(("axis", "known elsewhere as"), ((f"`{n}`", ", ".join(map(_code, a))) for n, a in by_axis.items()))


def all_families() -> str:
    """The built-in families, each with its own axes."""
    return "\n".join(_family(family(name)) for name in families() if "." not in name)


def data_sets() -> str:
    """Data sets that need no download."""
    return table(("name", "task", "families"), ((f"`{n}`", _task(n), _suited(n)) for n in names()))


def directories() -> str:
    """Data sets that are read from files of one's own."""
    head = ("kind", "task", "what is read")
    return table(head, ((f"`{n}`", _task(n), _first_line(reader)) for n, reader in READERS.items()))


COMMANDS = ("run", "tune", "plan", "families", "results", "runs", "attach", "stop", "doctor")


def command_line() -> str:
    """What the command and each of its subcommands print for ``--help``."""
    parts = []
    for command in ((), *((name,) for name in COMMANDS)):
        title = " ".join(("hfta-nb", *command))
        parts.append(f"## `{title}`\n\n```text\n{help_of(*command)}```\n")
    return "\n".join(parts)


def help_of(*command: str) -> str:
    """What a command prints for ``--help``."""
    from hfta_nb.cli.options import parse

    printed = io.StringIO()
    plain = {"COLUMNS": "100", "NO_COLOR": "1", "PYTHON_COLORS": "0"}
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit), mock.patch.dict(os.environ, plain):
        parse([*command, "--help"])
    return printed.getvalue()


def _axes_table(found: Mapping[str, AxisSpec]) -> str:
    head = ("axis", "type", "default", "meaning", "used")
    return table(head, ((f"`{n}`", _type(a), _code(show(a.default)), a.help, _used(n)) for n, a in found.items()))


def _type(axis: AxisSpec) -> str:
    if axis.choices:
        return "one of " + ", ".join(_code(show(c)) for c in axis.choices)
    bounds = [f"> {axis.above:g}" if axis.above is not None else "", f"≥ {axis.low:g}" if axis.low is not None else ""]
    bounds.append(f"≤ {axis.high:g}" if axis.high is not None else "")
    return ", ".join([axis.type, *filter(None, bounds)])


def _used(name: str) -> str:
    if name not in USED_BY:
        return "always"
    axis, values = USED_BY[name]
    return f"if `{axis}` is " + ", ".join(_code(v) for v in sorted(values))


def _family(recipe: Family) -> str:
    rows = []
    for name, axis in recipe.axes.items():
        rows.append((f"`{name}`", _type(axis), _code(show(axis.default)), axis.help or meaning(recipe.name, name)))
    facts = ", ".join(map(_code, recipe.facts)) or "none"
    lines = [f"## `{recipe.name}`\n\n{recipe.help}\n"] if recipe.help else [f"## `{recipe.name}`\n"]
    lines.append(f"Data: {', '.join(map(_code, recipe.data))} (default: `{recipe.data[0]}`). Tasks: "
                 f"{', '.join(t.replace('_', ' ') for t in recipe.tasks) or 'any'}. "
                 f"Filled in from the data: {facts}.\n")  # fmt: skip
    if recipe.defaults:
        lines.append(f"Its own defaults: {', '.join(f'`{k}={show(v)}`' for k, v in recipe.defaults.items())}.\n")
    if recipe.phases:
        lines.append(f"Phases of a training step: {', '.join(_code(p.name) for p in recipe.phases)}.\n")
    return "\n".join([*lines, table(("axis", "type", "default", "meaning"), rows)])


def _task(name: str) -> str:
    return (task_of(name) or "").replace("_", " ")


def _suited(name: str) -> str:
    return ", ".join(_code(f) for f in families() if "." not in f and name in family(f).data)


def _first_line(thing: object) -> str:
    return (thing.__doc__ or "").strip().partition("\n")[0]


def _code(text: str) -> str:
    return f"`{text}`"


MAKERS: dict[str, Callable[..., str]] = {
    "axes": axes,
    "study_arguments": study_arguments,
    "augmentation": augmentation,
    "imbalance": imbalance_axes,
    "axis_names": axis_names,
    "families": all_families,
    "data_sets": data_sets,
    "directories": directories,
    "command_line": command_line,
}
