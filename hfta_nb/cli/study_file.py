"""A study in a TOML file, for `hfta-nb tune`. Errors name the file, the key and its line."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hfta_nb.errors import GridError, HftaError, StudyError
from hfta_nb.models import study_config
from hfta_nb.records import regular_files

if TYPE_CHECKING:
    from hfta_nb import Family, Study

KEYS = ("family", "data", "space", "fixed", *study_config.KEYS)
INTERVAL = ("low", "high", "log", "step")


class StudyFile:
    """A file that defines a study.

    Args:
        path: of the file.

    Raises:
        StudyError: it can't be read, or is not valid TOML.
    """

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        try:
            self.text = regular_files.text(self.path)
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "not UTF-8"
            raise StudyError(f"can't be read ({reason})", where=path, accepted="a TOML file") from error
        try:
            self.given = study_config.by_new_names(tomllib.loads(self.text))
        except (ValueError, RecursionError) as error:  # numbers of thousands of digits, thousands of levels
            reason = "nested too deeply" if isinstance(error, RecursionError) else error
            raise StudyError(f"not valid TOML: {reason}", where=path) from error

    def place(self, *keys: str) -> str:
        """A key with its line, for errors."""
        line = line_of(self.text, keys)
        return f"{self.path}: {'.'.join(keys)}" + (f" (line {line})" if line else "")

    def study(self) -> Study:
        """The study.

        Raises:
            HftaError: a key is unknown, missing, or has a value that can't be used.
        """
        import hfta_nb

        self._check_keys()
        family = self._at(("family",), lambda: hfta_nb.family(self._text("family")))
        data = self._text("data") if "data" in self.given else family.data[0]
        space = self._space(family, data)
        fixed = self._table("fixed")
        for name in fixed.keys() & {*space, *KEYS}:
            raise GridError("is given twice", where=self.place("fixed", name), remedy="leave one of the two out")
        options: dict[str, Any] = {"directory": f"hfta_runs/{self.path.stem}"}
        options |= {key: self.given[key] for key in study_config.KEYS if key in self.given}
        directory = options["directory"]
        if not isinstance(directory, str) or not directory.strip():
            raise StudyError("not the name of a directory", where=self.place("directory"), got=directory)
        try:
            return hfta_nb.Study(family, space, data, **options, **_tuples(fixed))
        except HftaError as error:
            raise self._placed(error) from error
        except TypeError as error:  # a value of another type than the option has
            raise StudyError(f"a value can't be used ({error})", where=str(self.path)) from error

    def _check_keys(self) -> None:
        for key in self.given:
            if key not in KEYS:
                near = difflib.get_close_matches(key, KEYS, 1)
                remedy = f"did you mean {near[0]}?" if near else "axes with one value belong to [fixed]"
                raise StudyError("unknown key", where=self.place(key), accepted=", ".join(KEYS), remedy=remedy)
        for key, example in (("family", 'family = "mlp"'), ("space", "[space] with a line such as lr = [1e-3, 1e-2]")):
            if key not in self.given:
                raise StudyError("is missing", where=f"{self.path}: {key}", accepted=f"for example {example}")

    def _text(self, key: str) -> str:
        found = self.given[key]
        if not isinstance(found, str):
            raise StudyError("not a name", where=self.place(key), got=found, accepted=f'a text, as in {key} = "..."')
        return found

    def _table(self, key: str) -> dict[str, Any]:
        found = self.given.get(key, {})
        if not isinstance(found, dict):
            raise StudyError("not a table", where=self.place(key), got=found, accepted=f"[{key}]")
        return found

    def _space(self, family: Family, data: Any) -> dict[str, Any]:
        given = self._table("space")
        if not given:
            raise StudyError("has no axis", where=self.place("space"), remedy="for example lr = [1e-3, 1e-2]")
        specs = self._at(("data",), lambda: family.specs_for(data, list(given)))
        return {name: self._axis(name, axis, getattr(specs.get(name), "type", "any")) for name, axis in given.items()}

    def _axis(self, name: str, axis: Any, kind: str) -> Any:
        import hfta_nb

        where = "space", name
        if isinstance(axis, list):
            return _tuples(axis)
        if not isinstance(axis, dict):
            accepted = "a list of values, or { low = ..., high = ... } with log or step"
            raise GridError("not an axis", where=self.place(*where), got=axis, accepted=accepted,
                            remedy="one value for all belongs to [fixed]")  # fmt: skip
        for key in axis:
            if key not in INTERVAL:
                raise GridError("unknown key", where=self.place(*where, key), accepted=", ".join(INTERVAL))
        for key in ("low", "high"):
            if key not in axis:
                raise GridError("is missing", where=self.place(*where, key), accepted="a number")
        whole = kind != "float" and all(type(axis[k]) is int for k in ("low", "high")) and not axis.get("log")
        if not isinstance(axis.get("log", False), bool):
            raise GridError("not true or false", where=self.place(*where, "log"), got=axis["log"])
        if whole:
            return self._at(where, lambda: hfta_nb.integers(axis["low"], axis["high"], axis.get("step", 1)))
        if kind == "int":
            return self._at(where, lambda: _logarithmic(axis))
        return self._at(where, lambda: hfta_nb.uniform(axis["low"], axis["high"], log=axis.get("log", False),
                                                       step=axis.get("step")))  # fmt: skip

    def _at(self, keys: Sequence[str], make: Any) -> Any:
        """What is made of a key's value; errors name the key."""
        try:
            return make()
        except HftaError as error:
            raise error.at(self.place(*keys)) from None

    def _placed(self, error: HftaError) -> HftaError:
        """An error of the study, at the key that it is about."""
        name = re.split(r"[ ,.:]", error.where or "", maxsplit=1)[0]
        got = error.got.strip("'\"")
        if name == "grid" and got in self._table("space"):  # an axis that the family has not
            return error.at(self.place("space", got))
        for table in ((), ("space",), ("fixed",)):
            found: Any = self.given
            for key in table:
                found = found.get(key, {})
            if name and name in found:
                return error.at(self.place(*table, name))
        known = {"grid": "space"}.get(name)
        return error.at(self.place(known) if known else f"{self.path}: {error.where}".rstrip(": "))


def line_of(text: str, keys: Sequence[str]) -> int | None:
    """The line that gives a key its value, from 1; None where it isn't found."""
    table: list[str] = []
    best: tuple[int, int] | None = None
    for number, line in enumerate(text.splitlines(), 1):
        head = re.match(r"\s*\[([^\[\]]+)\]", line)
        if head:
            table = [_bare(part) for part in head[1].split(".")]
            path = table
        else:
            key = re.match(r"\s*([A-Za-z0-9_\-.\"' ]+?)\s*=", line)
            if key is None:
                continue
            path = [*table, *(_bare(part) for part in key[1].split("."))]
        if path == list(keys)[: len(path)] and (best is None or len(path) > best[0]):
            best = len(path), number
    return None if best is None else best[1]


def _bare(part: str) -> str:
    return part.strip().strip("\"'")


def _tuples(value: Any) -> Any:
    """Values as axes have them: lists within lists as tuples."""
    if isinstance(value, Mapping):
        return {k: tuple(map(_inner, v)) if isinstance(v, list) else v for k, v in value.items()}
    return [_inner(v) for v in value]


def _inner(value: Any) -> Any:
    return tuple(map(_inner, value)) if isinstance(value, list) else value


def _logarithmic(axis: Mapping[str, Any]) -> Any:
    """Whole numbers of which the logarithm is drawn."""
    try:
        from optuna.distributions import IntDistribution
    except ImportError as error:
        remedy = "install it: pip install 'hfta_nb[search]'"
        raise GridError("searching needs Optuna, which is not installed", remedy=remedy) from error
    try:
        return IntDistribution(axis["low"], axis["high"], log=bool(axis.get("log")), step=axis.get("step", 1))
    except (ValueError, TypeError) as error:
        raise GridError(f"not an interval of whole numbers ({error})", got=dict(axis)) from error
