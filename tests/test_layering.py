"""The package obeys the table of `tests/layering.py`, and the check finds violations."""

from __future__ import annotations

import graphlib
from pathlib import Path

import pytest

from tests.layering import FACE, TABLE
from tests.layering_check import floors, violations

ROOT = Path(__file__).resolve().parent.parent / "hfta_nb"


def test_the_package_obeys_the_table() -> None:
    assert violations(ROOT) == []


def test_the_table_is_read_from_files_that_exist() -> None:
    rooms = {p.name.removesuffix(".py") for p in ROOT.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()}
    assert {part.partition(".")[0] for part in TABLE} - {FACE} == rooms - {"__init__"}
    parts = [ROOT.joinpath(*part.split(".")) for part in TABLE if part != FACE]
    assert all(part.is_dir() or part.with_suffix(".py").is_file() for part in parts)


def test_training_is_eight_floors_high() -> None:
    """A newcomer has to read what lies below a file to understand it."""
    assert floors(ROOT, "train") <= 8


def test_floors_are_counted_along_the_longest_chain(tmp_path: Path) -> None:
    room = tmp_path / "room"
    room.mkdir()
    lines = {"a": "", "b": "from hfta_nb.room.a import f", "c": "from hfta_nb.room import a, b", "d": "import torch"}
    for name, line in lines.items():
        (room / f"{name}.py").write_text(line, encoding="utf-8")
    assert floors(tmp_path, "room") == 3


def test_rooms_have_no_circles() -> None:
    """A room is built on others as a whole."""
    rooms: dict[str, set[str]] = {}
    for part, below in TABLE.items():
        if part != FACE:
            room = part.partition(".")[0]
            rooms.setdefault(room, set()).update({b.partition(".")[0] for b in below} - {room, FACE})
    order = list(graphlib.TopologicalSorter(rooms).static_order())
    assert order.index("records") < order.index("engine") < order.index("train") < order.index("ui")


def test_the_table_has_no_circles() -> None:
    order = list(graphlib.TopologicalSorter(TABLE).static_order())
    assert order.index("errors") < order.index("study") < order.index("ui")


def test_the_table_names_no_unknown_part() -> None:
    assert {name for below in TABLE.values() for name in below} <= TABLE.keys()


PLANTED = [
    ("records/events.py", "from hfta_nb.study import Study", "records.events may not import study"),
    ("records/events.py", "import hfta_nb.study", "records.events may not import study"),
    ("records/events.py", "from hfta_nb import study", "records.events may not import study"),
    ("records/events.py", "from hfta_nb import Study", f"records.events may not import {FACE}"),
    ("records/events.py", "import hfta_nb as hfta", f"records.events may not import {FACE}"),
    ("records/events.py", "from .. import study", "records.events may not import study"),
    ("records/events.py", "from ..study import Study", "records.events may not import study"),
    ("records/events.py", "def f():\n    from hfta_nb.study import Study", "records.events may not import study"),
    (
        "records/events.py",
        "if TYPE_CHECKING:\n    from hfta_nb.study import Study",
        "records.events may not import study",
    ),
    (
        "records/events.py",
        "try:\n    import hfta_nb.ui\nexcept ImportError:\n    pass",
        "records.events may not import ui",
    ),
    ("records/events.py", "class A:\n    def f(self):\n        import hfta_nb.ui", "records.events may not import ui"),
    ("records/events.py", "importlib.import_module('hfta_nb.study')", "records.events may not import study"),
    ("records/events.py", "__import__('hfta_nb.study')", "records.events may not import study"),
    ("engine/array/rules.py", "from ...optim import SGD", "engine.array may not import optim"),
    ("engine/array/rules.py", "from hfta_nb.optim.sgd import SGD", "engine.array may not import optim"),
    ("engine/array/deep/inner.py", "from ....optim import SGD", "engine.array may not import optim"),
    ("train/step/graph.py", "from hfta_nb.train.plan import Plan", "train.step may not import train.plan"),
    ("study/executors/worker.py", "from hfta_nb.train import train", "study.executors may not import train"),
    ("train.py", "from hfta_nb.study import Study", "train may not import study"),
    ("figures.py", "from hfta_nb.ui import LiveView", "figures may not import ui"),
    ("ui/bench.py", "from hfta_nb.train import train", "ui may not import train"),
    (
        "ui/bench.py",
        "from hfta_nb.study.executors.worker import Worker",
        "ui may import the public face of study.executors only",
    ),
    ("ui/bench.py", "from hfta_nb.study import _cache", "ui may import the public face of study only"),
    ("ui/bench.py", "from hfta_nb.train import plan", "ui may not import train.plan"),
    ("train.py", "from hfta_nb.records import events, telemetry", "train may not import records.telemetry"),
    ("cli/run.py", "from hfta_nb.ui import Workbench", "cli may not import ui"),
    ("__init__.py", "from hfta_nb.figures import curves", f"{FACE} may not import figures"),
    ("__init__.py", "def f():\n    from hfta_nb.ui import Workbench", f"{FACE} may not import ui"),
    ("helpers.py", "", "helpers is not in the table"),
    ("extra/deep/module.py", "", "extra is not in the table"),
    (
        "train/step/a.py",
        "from hfta_nb.engine.kernels import capture, native",
        "train.step may not import all of engine.kernels",
    ),
    ("optim/a.py", "from hfta_nb.engine.kernels.native.norm import f", "optim may not import all of engine.kernels"),
    ("optim/a.py", "import hfta_nb.engine.kernels", "optim may not import all of engine.kernels"),
    ("optim/a.py", "from hfta_nb.engine.members.arena import Arena", "optim may not import engine.members"),
    ("study.py", "from hfta_nb.engine.replay import program", "study may not import engine.replay"),
    ("study.py", "import pandas as pd", "study may not import pandas at the top"),
    ("study.py", "try:\n    import pandas\nexcept ImportError:\n    pass", "study may not import pandas at the top"),
    ("study.py", "class A:\n    import pandas", "study may not import pandas at the top"),
    ("data.py", "from sklearn.datasets import load_digits", "data may not import sklearn at the top"),
    ("search.py", "import optuna", "search may not import optuna at the top"),
    ("workers/pools/on_ray.py", "import ray", "workers.pools may not import ray at the top"),
    ("study/executors/start.py", "def f():\n    import ray", "study.executors may not import ray"),
    ("train.py", "def f():\n    import matplotlib.figure", "train may not import matplotlib"),
    ("figures.py", "import matplotlib.pyplot as plt", "figures may not import matplotlib.pyplot"),
    ("figures.py", "from matplotlib import pyplot", "figures may not import matplotlib.pyplot"),
    ("study.py", "def f():\n    import ipywidgets", "study may not import ipywidgets"),
    ("study.py", "def f():\n    from IPython.display import display", "study may not import IPython"),
    ("cli/run.py", "import anywidget", "cli may not import anywidget"),
    ("figures.py", "from IPython.display import display", "figures may not import IPython"),
    ("ui/bench.py", "import threading\nthreading.Thread(target=f)", "ui may not import threading"),
    ("ui/bench.py", "import threading\nthreading.RLock()\nthreading.Timer(1, f)", "ui may not import threading"),
    ("ui/bench.py", "import threading as t\nt.Thread(target=f)", "ui may not import threading"),
    ("ui/bench.py", "from threading import Thread", "ui may not import threading"),
    ("ui/bench.py", "from threading import Lock, Thread", "ui may not import threading"),
    ("ui/bench.py", "from concurrent.futures import ThreadPoolExecutor", "ui may not import concurrent.futures"),
    ("ui/bench.py", "from concurrent import futures", "ui may not import concurrent.futures"),
    ("train.py", "def f():\n    import subprocess", "train may not import subprocess"),
    ("train.py", "import torch.multiprocessing as mp", "train may not import torch.multiprocessing"),
    ("train.py", "from torch import multiprocessing", "train may not import torch.multiprocessing"),
    ("records/events.py", "import multiprocessing", "records.events may not import multiprocessing"),
    ("records/store.py", "import pickle", "records.store may not import pickle"),
    ("study.py", "def f():\n    import cloudpickle", "study may not import cloudpickle"),
    ("search.py", "def f():\n    import torch", "search does without torch"),
    ("cli/run.py", "import torch", "cli may not import torch at the top"),
    ("ui/bench.py", "from rich import console", "ui may not import rich"),
    ("train.py", "print('epoch')", "train may not print"),
    ("train.py", "def f():\n    print('epoch')", "train may not print"),
    ("study.py", "class A:\n    def f(self):\n        print()", "study may not print"),
]


@pytest.mark.parametrize(("file", "code", "breach"), PLANTED)
def test_a_planted_breach_is_found(tmp_path: Path, file: str, code: str, breach: str) -> None:
    _plant(tmp_path, file, code)
    [found] = violations(tmp_path)
    assert found.partition(": ")[2] == breach
    assert found.startswith(file + ":")


ALLOWED = [
    (
        "study.py",
        "from hfta_nb.train import train\nfrom hfta_nb.records import telemetry\nfrom .records.store import Store",
    ),
    ("study.py", "def f():\n    import pandas as pd"),
    ("study.py", "if TYPE_CHECKING:\n    import pandas as pd"),
    ("study.py", "if typing.TYPE_CHECKING:\n    import pandas as pd"),
    (
        "engine/array/rules.py",
        "from hfta_nb.engine.array.engine import Engine\nfrom .slots import Slots\nfrom . import fused",
    ),
    ("optim/a.py", "from hfta_nb.engine.kernels.native import adam\nfrom hfta_nb.engine.kernels.native.adam import f"),
    ("train/step/a.py", "import hfta_nb.engine.kernels.capture"),
    ("data.py", "import threading\ndef f():\n    from sklearn.datasets import load_digits"),
    ("records/events.py", "import queue\nfrom hfta_nb import errors"),
    ("study/executors/worker.py", "import threading\nfrom hfta_nb.study import Study"),
    ("workers/processes/pickling.py", "import threading\nimport cloudpickle"),
    ("workers/pools/on_ray.py", "import pickle\ndef f():\n    import ray"),
    ("figures.py", "from matplotlib.figure import Figure\nfrom hfta_nb.figures.colors import palette"),
    ("ui/bench.py", "import ipywidgets\nimport hfta_nb as hfta\nfrom hfta_nb.study.executors import start\nprint(1)"),
    ("ui/bench.py", "from threading import Lock, RLock"),
    ("ui/bench.py", "import threading\nlock = threading.RLock()"),
    ("ui/bench.py", "from hfta_nb import Study, data, family"),
    ("cli/run.py", "import rich.live\nfrom hfta_nb import Study\nfrom hfta_nb.study import Study\nprint(1)"),
    ("train.py", "def f(log):\n    log.print('a method of something else')"),
    ("train.py", "import torch\nimport importlib\nimportlib.import_module(name)"),
]


@pytest.mark.parametrize(("file", "code"), ALLOWED)
def test_what_the_table_allows_is_left_alone(tmp_path: Path, file: str, code: str) -> None:
    _plant(tmp_path, file, code)
    assert violations(tmp_path) == []


def test_each_breach_tells_its_own_line(tmp_path: Path) -> None:
    _plant(tmp_path, "train.py", "import torch\n\nprint(1)\nfrom hfta_nb.study import Study\n")
    assert violations(tmp_path) == [
        "train.py:4: train may not import study",
        "train.py:3: train may not print",
    ]


def _plant(root: Path, file: str, code: str) -> None:
    """A tree that obeys the table, with one file more."""
    for name in ("errors", "records/events", "study", "records/telemetry", "optim", "train/plan", "ui"):
        (root / name).parent.mkdir(exist_ok=True)
        (root / f"{name}.py").write_text("", encoding="utf-8")
    (root / "__init__.py").write_text('__all__ = ["Study", "data", "family"]', encoding="utf-8")
    path = root / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(code, encoding="utf-8")
