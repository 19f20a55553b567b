"""Objects sent to a worker, and messages about those that cannot be sent."""

from __future__ import annotations

import functools
import importlib
import os
import sys
import threading
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from hfta_nb import events as ev
from hfta_nb.errors import WorkerError
from hfta_nb.records.events import Control, Event
from hfta_nb.study import executors
from hfta_nb.workers.processes import pickling
from tests.executors.fakes import Fake
from tests.executors.watching import run

MODULE = """
import threading
LOCK = threading.Lock()
class Own:
    version = {version}
def version():
    return {value}
"""


class Calls:
    """A study that tells what a function returns where it runs."""

    gated = False

    def __init__(self, function: Any) -> None:
        self.function = function

    def run(self, control: Control, resume: bool = False) -> Iterator[Event]:
        while self.gated and not control.wait(1):
            pass
        yield ev.PhaseChanged(0.0, 0, str(self.function()))


def outcome(function: Any) -> tuple[str, int | None]:
    handle, _ = run(Calls(function))
    assert handle.state == ev.COMPLETE, handle.error
    return handle.history.phase, handle.pid


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Writes, or edits, a module that lies beside the notebook, and imports it (again)."""
    monkeypatch.syspath_prepend(str(tmp_path))
    file = tmp_path / "own_module.py"

    def write(version: int, value: str) -> types.ModuleType:
        file.write_text(MODULE.format(version=version, value=value))
        os.utime(file, (version, version))  # seconds, by which bytecode is told from what was edited since
        importlib.invalidate_caches()
        known = sys.modules.get("own_module")
        return importlib.reload(known) if known else importlib.import_module("own_module")

    yield write
    sys.modules.pop("own_module", None)


def test_a_module_beside_the_notebook_travels_as_the_kernel_has_it(own_module: Any, tmp_path: Path) -> None:
    assert outcome(own_module(1, "Own.version").version)[0] == "1"
    module = own_module(2, "Own.version")
    (tmp_path / "own_module.py").write_text("raise ImportError('edited since, and broken')")
    assert outcome(module.version)[0] == "2"


@pytest.mark.long
def test_a_module_that_can_not_be_copied_is_imported_and_again_when_edited(own_module: Any) -> None:
    first, pid = outcome(own_module(1, "(Own.version, LOCK.locked())").version)
    again, same = outcome(sys.modules["own_module"].version)
    assert (first, again) == ("(1, False)", "(1, False)")
    assert same == pid
    edited, other = outcome(own_module(2, "(Own.version, LOCK.locked())").version)
    assert edited == "(2, False)"
    assert other != pid


def test_a_function_that_uses_the_package_travels() -> None:
    import hfta_nb as hfta

    functions = {"hfta": hfta}
    exec("def version():\n    return hfta.__version__", functions)  # noqa: S102 - as a cell of a notebook defines it
    assert outcome(functions["version"])[0] == hfta.__version__


def test_what_is_registered_by_others_stays_registered() -> None:
    module = sys.modules[__name__]
    cloudpickle.register_pickle_by_value(module)
    try:
        pickling.dumps(Fake(), {})
        assert cloudpickle.list_registry_pickle_by_value() == {__name__}
    finally:
        cloudpickle.unregister_pickle_by_value(module)
    pickling.dumps(Fake(), {})
    assert cloudpickle.list_registry_pickle_by_value() == set()


def test_installed_modules_are_not_ones_own() -> None:
    own = pickling.own_modules()
    assert __file__ in own
    names = {module.__name__.partition(".")[0] for module in own.values()}
    assert not names & {"torch", "numpy", "pytest", "json", "hfta_nb", "sklearn"}


def _uses_a_lock() -> Any:
    lock = threading.Lock()

    def build() -> bool:
        return lock.locked()

    return build


def _has_a_default() -> Any:
    lock = threading.Lock()
    return lambda default=lock: default


@pytest.mark.parametrize(
    ("what", "where"),
    [
        (threading.Lock(), "study.function: "),
        ({"a": [1, threading.Lock()]}, "study.function['a'][1]: "),
        (_uses_a_lock(), "study.function -> _uses_a_lock.<locals>.build() uses the variable 'lock': "),
        (functools.partial(print, file=threading.Lock()), "study.function.keywords['file']: "),
        (types.SimpleNamespace(inner=threading.Lock()), "study.function.inner: "),
        (Calls(threading.Lock()), "study.function.function: "),
        (Calls(threading.Lock()).run, "study.function.__self__.function: "),
        (_has_a_default(), "has the default of 'default': "),
    ],
    ids=["attribute", "item", "closure", "partial", "namespace", "object", "method", "default"],
)
def test_what_can_not_travel_is_named_with_the_way_to_it(what: Any, where: str) -> None:
    with pytest.raises(WorkerError, match="can't be sent to the worker process") as caught:
        executors.start(Calls(what))
    assert where in caught.value.message
    assert "_thread.lock" in caught.value.got
    assert caught.value.remedy


def test_arguments_that_can_not_travel_are_named_too() -> None:
    with pytest.raises(WorkerError) as caught:
        executors.start(Fake(), job="check", arguments={"members": threading.Lock()})
    assert caught.value.where == "arguments['members']"


def test_a_study_that_refers_to_itself_is_no_trap() -> None:
    ring: Any = Calls(None)
    ring.function = [ring, threading.Lock()]
    with pytest.raises(WorkerError) as caught:
        executors.start(ring)
    assert caught.value.where == "study.function[1]"
