"""Reasons why two modules cannot be members of one array, with remedies."""

from __future__ import annotations

from torch import nn

REMEDY = "fuse these in separate arrays"


class Why(str):
    """A reason, as text.

    Attributes:
        where: path of the first module or parameter that differs.
        remedy: what to change.
    """

    where: str
    remedy: str

    @classmethod
    def of(cls, where: str, text: str, remedy: str = REMEDY) -> Why:
        why = cls(f"{where or 'module'}: {text}")
        why.where, why.remedy = where, remedy
        return why


_SIZED = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


def ends_apart(a: nn.Module, b: nn.Module) -> Why | None:
    """True if their inputs or outputs have different sizes, as far as the first and last layers show."""
    for last in (False, True):
        left, right = _end(a, "", last), _end(b, "", last)
        if left is None or right is None or type(left[1]) is not type(right[1]):
            continue
        name = ("out" if last else "in") + ("_features" if isinstance(left[1], nn.Linear) else "_channels")
        sizes = [getattr(m, name) for _, m in (left, right)]
        if sizes[0] != sizes[1]:
            what = "outputs" if last else "inputs"
            where = f"{left[0]}.{name}" if left[0] else name
            return Why.of(
                where, f"{sizes[0]} and {sizes[1]}", f"members must have {what} of one size: make it the same"
            )
    return None


def _end(module: nn.Module, path: str, last: bool) -> tuple[str, nn.Module] | None:
    """The first or last sized layer of a sequence; None if that is unknown."""
    if isinstance(module, _SIZED):
        return path, module
    if not isinstance(module, nn.Sequential):
        return None
    children = list(module.named_children())
    for name, child in reversed(children) if last else children:
        if any(True for _ in child.parameters()) or any(True for _ in child.children()):
            return _end(child, f"{path}.{name}" if path else name, last)
    return None
