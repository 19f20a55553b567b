"""Every exception and warning of hfta_nb.

Each exception has the same five parts, so that the last line of a traceback says what to do: what went wrong, where,
what was got, what is accepted, and the remedy.
"""

from __future__ import annotations

from typing import Self

from hfta_nb.errors.plain_text import visible

__all__ = [
    "ArrayWarning",
    "DataError",
    "DataWarning",
    "DeviceError",
    "DistributedError",
    "EventError",
    "ExtensionWarning",
    "FamilyError",
    "FleetError",
    "FusionError",
    "GridError",
    "HftaError",
    "MemberError",
    "OptimError",
    "StoreError",
    "StoreWarning",
    "StudyError",
    "WorkerError",
    "out_of_memory",
]

_MISSING = object()


class HftaError(Exception):
    """Base of all errors that hfta_nb raises on purpose.

    Args:
        what: one sentence saying what went wrong.
        where: the axis, member, parameter path, file or field concerned.
        got: the offending value; shown by ``repr`` on one line, shortened to 200 characters, or by type and shape if
            it has several axes.
        accepted: what would have been accepted.
        remedy: what to do now.
    """

    def __init__(
        self,
        what: str,
        *,
        where: str = "",
        got: object = _MISSING,
        accepted: str = "",
        remedy: str = "",
    ) -> None:
        self.what = what
        self.where = where
        self.got = "" if got is _MISSING else _shown(got)
        self.accepted = accepted
        self.remedy = remedy
        super().__init__(self.message)

    @property
    def message(self) -> str:
        """The whole message on one line."""
        parts = [f"{self.where}: {self.what}" if self.where else self.what]
        if self.got:
            parts.append(f"got {self.got}")
        if self.accepted:
            parts.append(f"accepted: {self.accepted}")
        if self.remedy:
            parts.append(self.remedy)
        return visible(" ".join(line.strip() for line in "; ".join(parts).splitlines()))

    def at(self, where: str, accepted: str = "") -> Self:
        """The same error with a place that only the caller knows.

        Args:
            where: that place.
            accepted: what would have been accepted, if the error does not say.
        """
        self.where, self.accepted = where, self.accepted or accepted
        self.args = (self.message,)
        return self

    def __reduce__(self) -> tuple[object, ...]:
        # Exception pickles by its positional args, which would lose the fields.
        return (_rebuild, (type(self), dict(self.__dict__), self.args))


def _rebuild(cls: type[HftaError], state: dict[str, object], args: tuple[object, ...]) -> HftaError:
    error = cls.__new__(cls)
    error.args = args
    error.__dict__.update(state)
    return error


def _shown(got: object, limit: int = 200) -> str:
    """A value on one line; matrices and tables by type and shape, and what can't be shown by its type.

    Whatever was given: an error about it must not end in another one.
    """
    kind = type(got).__name__
    try:
        shape = getattr(got, "shape", None)
        if isinstance(shape, tuple) and len(shape) > 1:
            return f"{kind} {list(shape)}"
        text = repr(got)
    except RecursionError:
        return f"{kind} within {kind} within {kind}, ..."
    except Exception as error:  # a person's own __repr__, a whole number of more than 4,300 digits
        if isinstance(got, int):
            return f"a whole number of {got.bit_length():,} bits"
        return f"{kind} ({type(error).__name__} in repr)"
    if "\n" in text:
        text = " ".join(text.split())
    return text if len(text) <= limit else text[: limit - 1] + "…"


class GridError(HftaError, ValueError):
    """An axis, its name, its kind or its values can't be used."""


class FamilyError(HftaError, ValueError):
    """A family is unknown, or its recipe can't be used."""


class FleetError(HftaError, ValueError):
    """A plan for groups on many devices was asked for with rates, devices or epochs that can't be used."""


class DataError(HftaError, ValueError):
    """A data set is unknown, or its contents can't be used."""


class DataWarning(UserWarning):
    """Data is read, but may not be what was meant."""


class ArrayWarning(UserWarning):
    """A function of torch or a call may misread an array or its member axis."""


class FusionError(HftaError, ValueError):
    """Modules can't be fused, or an array is used in a way that its members don't allow."""


class TransformError(FusionError):
    """An array is called within `vmap`, `grad` or another transform of `torch.func`.

    A loss that calls another array gets it while its own array tries `vmap`, and then runs member by member.
    """


class BroadcastError(FusionError):
    """A loss or metric broadcasts an output ``[N, 1]`` against a target ``[N]`` to ``[N, N]``."""


class MemberError(HftaError, RuntimeError):
    """An exception inside one member's forward, loss or metric.

    Attributes:
        member: the member's index in the array; None if unknown.
        path: the submodule that ran member by member and failed; None if none did.
    """

    member: int | None = None
    path: str | None = None

    def of(self, member: int, path: str | None = None) -> Self:
        """The same error with the member's index, and the submodule that failed."""
        self.member, self.path = member, path
        return self


class OptimError(HftaError, ValueError):
    """A hyperparameter of an optimizer or lr scheduler can't be used."""


class EventError(HftaError, ValueError):
    """A record is not an event or a request that this version knows."""


class StoreError(HftaError, OSError):
    """A saved run is missing, incomplete or of another version."""


class SearchError(HftaError, ValueError):
    """A search can't be made as it was asked for."""


class SearchWarning(UserWarning):
    """An enqueued trial can't be trained; the search goes on without it."""


class StoreWarning(UserWarning):
    """Part of a saved run is damaged and left out; the message says what was lost."""


class ChoicesWarning(UserWarning):
    """What was chosen by time (kernels, block sizes) is not what a saved run was trained with."""


class ExtensionWarning(UserWarning):
    """A family, tracker or rule of another installed package can't be used, and is left out."""


class StudyError(HftaError, RuntimeError):
    """The study's state does not allow the request."""


class DeviceError(HftaError, RuntimeError):
    """A device is missing, or lacks the memory for the request."""


class DistributedError(HftaError, RuntimeError):
    """An array can't be trained by several processes as asked, or one of the processes is lost."""


class WorkerError(HftaError, RuntimeError):
    """The worker process died, or answered with an error."""


_NO_MEMORY = ("not enough memory", "can't allocate memory", "out of memory", "STATUS_ALLOC_FAILED")
"""What torch's allocators and CUDA's libraries say; on a CPU torch raises a plain RuntimeError."""


def out_of_memory(error: BaseException | None) -> bool:
    """Whether this is a failure to get memory: torch's or Python's own error, or one that was raised because of it."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
            return True
        raised_by_torch = isinstance(error, RuntimeError) and not isinstance(error, HftaError)
        if raised_by_torch and any(words in str(error) for words in _NO_MEMORY):
            return True
        error = error.__cause__
    return False
