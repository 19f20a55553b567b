"""The type of a row of the table."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Fault:
    """A slip that somebody might make, and that changes what a user gets.

    Attributes:
        name: for ``--only``.
        file: of `hfta_nb`, from the root of the checkout.
        old: the right text, which occurs once in the file.
        new: what stands there instead.
        breaks: what is wrong then.
        likely: test files that should find it, the quickest first.
    """

    name: str
    file: str
    old: str
    new: str
    breaks: str
    likely: tuple[str, ...]

    def source(self, root: Path) -> str:
        """The file with the fault in it.

        Raises:
            ValueError: the old text does not occur exactly once.
        """
        text = (root / self.file).read_text(encoding="utf-8")
        count = text.count(self.old)
        if count != 1:
            raise ValueError(f"{self.name}: the old text occurs {count} times in {self.file}, not once")
        return text.replace(self.old, self.new)
