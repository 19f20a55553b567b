"""Converts records to JSON and back."""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from dataclasses import dataclass, field
from typing import Any

from hfta_nb.errors import EventError
from hfta_nb.records.events import records, requests
from hfta_nb.records.events.records import Event
from hfta_nb.records.events.requests import Request
from hfta_nb.records.events.variants import tuples


@dataclass(frozen=True, slots=True)
class _Codec:
    cls: type
    hints: dict[str, Any] = field(default_factory=dict)


def to_json(record: Event | Request) -> dict[str, Any]:
    """The record as a dict that `json.dumps` takes; non-finite numbers become "nan", "inf", "-inf"."""
    body = {f.name: _encode(getattr(record, f.name)) for f in dataclasses.fields(record)}
    return {"type": type(record).__name__, **body}


def from_json(data: dict[str, Any]) -> Event | Request:
    """The record from the result of `to_json`.

    Unknown fields are dropped, so that an older version reads what a newer one wrote.

    Raises:
        EventError: the type is unknown, or a field is missing or malformed.
    """
    codec = _codecs().get(str(data.get("type")) if isinstance(data, dict) else "")
    if codec is None:
        raise EventError("unknown type of record", got=data, accepted=", ".join(sorted(_codecs())))
    try:
        body = {k: _decode(v, codec.hints[k]) for k, v in data.items() if k in codec.hints}
        return typing.cast("Event | Request", codec.cls(**body))
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise EventError(f"malformed record ({error})", where=codec.cls.__name__, got=data) from error


def kinds(base: type[Any] | tuple[type[Any], ...] = (Event, Request)) -> list[type[Any]]:
    """All kinds of event and request."""
    found = [*vars(records).values(), *vars(requests).values()]
    # Not `__subclasses__`: that also lists the classes that `dataclass(slots=True)` replaced.
    return [c for c in found if isinstance(c, type) and issubclass(c, base) and c not in (Event, Request)]


@functools.cache
def _codecs() -> dict[str, _Codec]:
    return {cls.__name__: _Codec(cls, typing.get_type_hints(cls)) for cls in kinds()}


def _encode(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else repr(value)
    if isinstance(value, tuple | list):
        return [_encode(v) for v in value]
    if isinstance(value, dict):
        return {k: _encode(v) for k, v in value.items()}
    if dataclasses.is_dataclass(value):
        return {f.name: _encode(getattr(value, f.name)) for f in dataclasses.fields(value)}
    return value


def _decode(value: Any, hint: Any) -> Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is float:
        return float(value)
    if hint in (int, str, bool):
        if not isinstance(value, hint) or (hint is int and isinstance(value, bool)):
            raise TypeError(f"{value!r} is not {hint.__name__}")
        return value
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise TypeError(f"{value!r} is not a list")
        return tuple(_decode(v, args[0]) for v in value)
    if origin is dict:
        return {str(k): _decode(v, args[1]) for k, v in value.items()}
    if dataclasses.is_dataclass(hint):
        hints = typing.get_type_hints(hint)
        return typing.cast(type, hint)(**{k: _decode(v, hints[k]) for k, v in value.items() if k in hints})
    if origin in (typing.Union, types.UnionType) and set(args) == {int, type(None)}:
        return None if value is None else _decode(value, int)
    return tuples(value)
