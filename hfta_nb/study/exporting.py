"""What came of a study, as a file for other programs."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hfta_nb.errors import StoreError, StudyError
from hfta_nb.errors.plain_text import cell, encodes
from hfta_nb.study import result_tables
from hfta_nb.study.study_state import StudyState

if TYPE_CHECKING:
    import pandas

KINDS = ("results", "events")
FORMATS = (".csv", ".parquet")


def export(study: StudyState, path: Path, what: str) -> Path:
    """See `Study.export`."""
    if what not in KINDS:
        raise StudyError("nothing of this name can be exported", where="what", got=what, accepted=", ".join(KINDS))
    if not encodes(path):
        raise StudyError("not UTF-8", where="path", got=str(path), accepted="a path that is", remedy="rename it")
    if path.suffix not in FORMATS:
        raise StudyError("unknown kind of file", where="path", got=str(path), accepted=", ".join(FORMATS))
    if path.suffix == ".parquet" and importlib.util.find_spec("pyarrow") is None:
        remedy = "pip install pyarrow, or export to .csv"
        raise StudyError("Parquet needs pyarrow, which is not installed", where=str(path), remedy=remedy)
    frame = _frame(result_tables.results(study).reset_index() if what == "results" else None, study)
    spare = path.with_name(path.name + ".tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        spare.unlink(missing_ok=True)  # a link or a FIFO in its place would be written to
        if path.suffix == ".csv":
            frame = frame.map(cell).rename(columns=cell)
        frame.to_csv(spare, index=False) if path.suffix == ".csv" else frame.to_parquet(spare, index=False)
        os.replace(spare, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            spare.unlink(missing_ok=True)
        raise StoreError(f"can't be written ({error.strerror or error})", where=str(path)) from error
    return path


def _frame(results: pandas.DataFrame | None, study: StudyState) -> pandas.DataFrame:
    """A plain table whose columns have one type each, as Parquet wants them."""
    import pandas

    frame = pandas.DataFrame(list(_events(study)), columns=["number", "time_s", "type", "body"])
    if results is not None:
        frame = pandas.DataFrame({str(name): results[name] for name in results.columns})
    for name in frame.columns:
        if frame[name].map(type).nunique() > 1 or isinstance(frame[name].iloc[0] if len(frame) else "", tuple):
            frame[name] = frame[name].map(_as_text)
    return frame


def _events(study: StudyState) -> Iterator[tuple[int, float, str, str]]:
    for row in study.store.rows():
        body = dict(row.body or {})
        yield row.number, float(body.pop("time_s", "nan")), str(body.pop("type", "")), json.dumps(body)


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
