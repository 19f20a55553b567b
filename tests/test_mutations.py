"""The table of deliberate faults matches the sources, and the search finds a fault."""

from __future__ import annotations

import collections
import shutil
from pathlib import Path

import pytest

from tests.mutations.fault import Fault
from tests.mutations.faults import FAULTS
from tests.mutations.hunt import Checkout

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_can_be_put_in(fault: Fault) -> None:
    assert fault.new != fault.old
    compile(fault.source(ROOT), fault.file, "exec")
    assert fault.file.startswith("hfta_nb/")
    assert [path for path in fault.likely if not (ROOT / path).is_file()] == []


def test_there_are_forty_with_names_of_their_own() -> None:
    assert len(FAULTS) == 40
    assert [name for name, count in collections.Counter(f.name for f in FAULTS).items() if count > 1] == []


def test_text_that_is_not_there_once_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "some.py").write_text("a = 1\nb = 1\n")
    with pytest.raises(ValueError, match="occurs 2 times"):
        Fault("twice", "some.py", "= 1", "= 2", "", ()).source(tmp_path)
    with pytest.raises(ValueError, match="occurs 0 times"):
        Fault("gone", "some.py", "= 3", "= 2", "", ()).source(tmp_path)


@pytest.mark.long
def test_a_fault_is_found_in_a_copy_by_a_test_that_passes_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not by one that always fails, nor by the likely one, nor by one of another tier."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # they take most of the time
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p pytest_timeout")
    source = tmp_path / "source"
    (source / "hfta_nb").mkdir(parents=True)
    (source / "hfta_nb/__init__.py").write_text("ONE = 1\nTWO = 2\nTHREE = 3\n")
    shutil.copytree(ROOT / "tests/mutations", source / "tests/mutations")
    (source / "tests/__init__.py").touch()
    (source / "pytest.ini").write_text("[pytest]\nmarkers = long: of the other tier\n")
    test = "import hfta_nb, pytest\n\n\ndef test_{0}():\n    assert hfta_nb.{0} == {1}\n"
    (source / "tests/test_likely.py").write_text(test.format("ONE", 1))
    others = test.format("THREE", 4) + test.format("TWO", 2) + "\n\n@pytest.mark.long\ndef test_long():\n    assert 0\n"
    (source / "tests/test_others.py").write_text(others)
    checkout = Checkout(source, tmp_path, "default", 0)

    found = checkout.hunt(Fault("two", "hfta_nb/__init__.py", "TWO = 2", "TWO = 3", "", ("tests/test_likely.py",)))
    assert found.found_by == "tests/test_others.py::test_TWO"
    assert checkout.unsound == ["tests/test_others.py::test_THREE"]
    assert not checkout.hunt(Fault("none", "hfta_nb/__init__.py", "THREE = 3", "THREE = 5", "", ())).found_by
    assert (checkout.root / "hfta_nb/__init__.py").read_text() == (source / "hfta_nb/__init__.py").read_text()
