"""Inserts a fault into a copy of the checkout and runs the tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.mutations.fault import Fault
from tests.mutations.reporting import VARIABLE

LEFT_BEHIND = (".git", ".venv", "__pycache__", "*.egg-info", ".*_cache", ".hypothesis", "artifacts", "hfta_runs")
TIERS = {"default": "not long", "all": ""}
OWN_TEST = "tests/test_mutations.py"
"""Compares the table with the sources, and so would find every fault."""

TIMEOUT_S = 300
"""A test that a fault makes wait for ever has found it."""

PLUGINS = ("no:cacheprovider", "no:nbval", "tests.mutations.reporting")
"""No notebook is run, and nbval takes six seconds to import."""

FOUND_NOTHING = (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)

ENDED = "pytest ended with "
"""What is told of a run that ends without a test that failed, by a signal, say."""


@dataclass(frozen=True)
class Outcome:
    """What became of one fault.

    Attributes:
        found_by: the test that failed; empty where the fault survived.
        seconds: that this took.
    """

    fault: Fault
    found_by: str
    seconds: float


class Checkout:
    """A copy of the checkout, to be spoilt.

    Args:
        source: the root of the checkout.
        place: where the copy is made.
        tier: of `TIERS`.
        workers: processes for the whole tier; 0 for one without xdist.

    Attributes:
        unsound: tests that failed without a fault as well, and are left out from then on.
    """

    def __init__(self, source: Path, place: Path, tier: str, workers: int) -> None:
        self.root = place / "checkout"
        shutil.copytree(source, self.root, ignore=shutil.ignore_patterns(*LEFT_BEHIND))
        self._place, self._workers = place, workers
        self._marked = ["-m", TIERS[tier]]
        self.unsound: list[str] = []
        self._sound: set[str] = set()
        self._writes = 0
        paths = os.pathsep.join(map(str, (self.root, self.root / "tests")))
        outer = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_XDIST")}  # of a worker that runs this
        self._environment = outer | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
        self._check_imports()

    def hunt(self, fault: Fault) -> Outcome:
        """Look for the fault: first in the likely files, then in the whole tier."""
        begin = time.perf_counter()
        for selection in (list(fault.likely), ["tests"]):
            found = self._found(fault, selection) if selection else ""
            if found:
                break
        return Outcome(fault, found, time.perf_counter() - begin)

    def _found(self, fault: Fault, selection: Sequence[str]) -> str:
        """The first of these tests that fails, and does not without the fault; empty where none does."""
        while True:
            with self.spoilt(fault):
                found = self._failure(selection)
            ended = found.startswith(ENDED)
            if not found or found in self._sound or not self._failure(selection if ended else [found]):
                self._sound.add(found)
                return found
            if ended:
                raise RuntimeError(f"{found}, without a fault as well")
            self.unsound.append(found)

    @contextmanager
    def spoilt(self, fault: Fault) -> Iterator[None]:
        """Within, the copy has the fault.

        Raises:
            ValueError: the old text does not occur exactly once.
        """
        path = self.root / fault.file
        right = path.read_text(encoding="utf-8")
        self._write(path, fault.source(self.root))
        try:
            yield
        finally:
            self._write(path, right)

    def _write(self, path: Path, text: str) -> None:
        path.write_text(text, encoding="utf-8")
        # Python takes a compiled file for that of a source of the same size and second.
        self._writes += 1
        os.utime(path, (1_000_000_000 + self._writes,) * 2)

    def _failure(self, selection: Sequence[str]) -> str:
        """The first of these tests that fails; empty where all pass."""
        note = self._place / "first"
        note.unlink(missing_ok=True)
        options = ["-x", "-q", f"--timeout={TIMEOUT_S}", *(f"-p{name}" for name in PLUGINS)]
        options += [f"--ignore={OWN_TEST}", *(f"--deselect={test}" for test in self.unsound)]
        if selection == ["tests"] and self._workers:
            options += ["-n", str(self._workers), "--dist", "loadgroup", "--no-loadscope-reorder"]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *selection, *self._marked, *options],
            cwd=self.root,
            env=self._environment | {VARIABLE: str(note)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if note.exists():
            return note.read_text(encoding="utf-8")
        if done.returncode == pytest.ExitCode.USAGE_ERROR:
            raise RuntimeError(done.stdout[-2000:])
        return "" if done.returncode in FOUND_NOTHING else f"{ENDED}{done.returncode}"

    def _check_imports(self) -> None:
        """An editable install of the checkout must not be what is tested."""
        code = "import hfta_nb, tests; print(hfta_nb.__file__, tests.__file__, sep='\\n')"
        command = [sys.executable, "-c", code]
        done = subprocess.run(
            command, cwd=self._place, env=self._environment, capture_output=True, text=True, check=True
        )
        for path in done.stdout.split("\n")[:2]:
            if not Path(path).resolve().is_relative_to(self.root.resolve()):
                raise RuntimeError(f"{path} is imported, not the copy in {self.root}")
