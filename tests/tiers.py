"""Test tiers: `make test` runs the default tier, `make test-all` everything.

A test belongs to the default tier unless it is marked:

- ``long``: the test, or a row of its table, runs in `make test-all` only.
- ``each("row", ...)``: of a long table, the default tier runs one case for each value of the named parameters; the
  values of all other parameters take turns, so that each of them is covered by some row as well. Without names, one
  case of the table. ``each("row", every=2, begin=1)`` takes every second value, from the second on: for several tables
  of the same rows.
- ``only(dtype=torch.float64, ...)``: the default tier runs the cases in which the named parameters have one of these
  values.

In any tier, of a table with three or more parameters that is marked ``pairs``, only so many rows are there that each
value of a parameter meets each value of each other one.

``--share N/8`` selects one eighth of the tests by their names, so that a run can be repeated.
"""

from __future__ import annotations

import hashlib
import itertools
import time
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import pytest

GROUPS = {
    "tests/browser/": "browser",
    "tests/executors/": "executors",
    "tests/fleet/test_data_parallel.py": "ranks",
    "tests/test_scale.py": "scale",
    "tests/test_tiers.py": "tiers",
    "tests/test_circles.py": "sources",
    "tests/test_layering.py": "sources",
    "tests/test_lengths.py": "sources",
}
"""Where tests share what is started once: each group runs on one worker of pytest-xdist. They take longest, and so come
first: the other worker goes on with all other tests meanwhile."""

_LEFT_OUT = pytest.StashKey[dict[str, int]]()
_BEGAN_S = pytest.StashKey[float]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_LEFT_OUT], config.stash[_BEGAN_S] = defaultdict(int), time.monotonic()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--share", metavar="N/M", help="run the share N (from 0) of M of the selected tests")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    _keep_pairs(items)
    _mark_thinned(items)
    order = [*dict.fromkeys(GROUPS.values()), None]
    items.sort(key=lambda item: order.index(_group(item.nodeid)))
    if share := config.getoption("--share"):
        number, parts = _share(share)
        chosen = [item for item in items if hashed(item.nodeid) % parts == number % parts]
        config.hook.pytest_deselected(items=[item for item in items if item not in set(chosen)])
        items[:] = chosen


def _share(text: str) -> tuple[int, int]:
    number, _, parts = text.partition("/")
    try:
        return int(number), max(1, int(parts))
    except ValueError:
        raise pytest.UsageError(f"--share takes N/M, two whole numbers, not {text!r}") from None


def hashed(name: str) -> int:
    """A number that is the same in every process."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")


def _group(nodeid: str) -> str | None:
    return next((group for where, group in GROUPS.items() if nodeid.startswith(where)), None)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Shares tests out one by one, but for those of a group; pytest-xdist's own marks have no effect in pytest 9.2."""
    if config.getoption("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class Groups(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _group(nodeid) or nodeid

        def _pending_of(self, workload: Any) -> int:
            """Forgets what is done: looking through it at the end of each of thousands of tests takes seconds."""
            for scope in [name for name, unit in workload.items() if all(unit.values())]:
                del workload[scope]
            return super()._pending_of(workload)

    return Groups(config, log)


def _keep_pairs(items: list[pytest.Item]) -> None:
    """Of the tables marked ``pairs``, keep a row for each two values of two parameters; most rows meet several."""
    tables: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("pairs"):
            tables[item.nodeid.partition("[")[0]].append(item)
    left_out: set[pytest.Item] = set()
    for rows in tables.values():
        pairs = {row: _pairs(row) for row in rows}
        left = set().union(*pairs.values())
        left_out.update(rows)
        while left:
            best = max(rows, key=lambda row: len(pairs[row] & left))
            left -= pairs[best]
            left_out.discard(best)
    items[:] = [item for item in items if item not in left_out]


def _pairs(item: pytest.Item) -> set[tuple[Any, ...]]:
    given = {name: id(value) for name, value in sorted(_parameters(item).items())}
    return set(itertools.combinations(given.items(), 2))


def _mark_thinned(items: Iterable[pytest.Item]) -> None:
    """Mark as ``long`` what ``each`` and ``only`` leave out of the default tier."""
    tables: dict[str, list[tuple[pytest.Mark, pytest.Item]]] = defaultdict(list)
    for item in items:
        if any(not _has(item, mark) for mark in item.iter_markers("only")):
            item.add_marker(pytest.mark.long)
        elif (each := item.get_closest_marker("each")) and not item.get_closest_marker("long"):
            tables[item.nodeid.partition("[")[0]].append((each, item))
    for cases in tables.values():
        _take_turns(cases)


def _has(item: pytest.Item, mark: pytest.Mark) -> bool:
    given = _parameters(item)
    unknown = mark.kwargs.keys() - given.keys()
    if unknown:
        raise pytest.UsageError(f"{item.nodeid}: `only` names {sorted(unknown)}, parameters are {sorted(given)}")
    return all(given[name] in _listed(values) for name, values in mark.kwargs.items())


def _listed(values: Any) -> Iterable[Any]:
    return values if isinstance(values, list | tuple) else [values]


def _parameters(item: pytest.Item) -> dict[str, Any]:
    return dict(item.callspec.params) if hasattr(item, "callspec") else {}


def _take_turns(cases: list[tuple[pytest.Mark, pytest.Item]]) -> None:
    """Keep one case of each value of the parameters that ``each`` names, another combination of the rest each time."""
    rows: dict[tuple[Any, ...], list[pytest.Item]] = defaultdict(list)
    for each, item in cases:
        given = {name: id(value) for name, value in _parameters(item).items()}
        unknown = set(each.args) - given.keys()
        if unknown:
            raise pytest.UsageError(f"{item.nodeid}: `each` names {sorted(unknown)}, parameters are {sorted(given)}")
        rows[tuple(given[name] for name in each.args)].append(item)
    kwargs = cases[0][0].kwargs
    every, begin = kwargs.get("every", 1), kwargs.get("begin", 0)
    for number, items in enumerate(rows.values()):
        keep = items[number // every % len(items)] if number % every == begin else None
        for item in items:
            if item is not keep:
                item.add_marker(pytest.mark.long)


# One line at the end: counts, time, what was left out and how to run it.


def pytest_deselected(items: list[pytest.Item]) -> None:
    for item in items:
        item.config.stash[_LEFT_OUT]["long" if item.get_closest_marker("long") else "other"] += 1


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):  # all workers collect, and leave out, the same
        session.config.workeroutput["left_out"] = dict(session.config.stash[_LEFT_OUT])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Of a worker of pytest-xdist that has ended."""
    node.config.stash[_LEFT_OUT].update(getattr(node, "workeroutput", {}).get("left_out", {}))


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    told = [(n, w) for w in ("passed", "failed", "error", "skipped") if (n := len(terminalreporter.stats.get(w, [])))]
    counts = ", ".join(f"{number} {word}" for number, word in told) or "nothing ran"
    minutes, seconds = divmod(round(time.monotonic() - config.stash[_BEGAN_S]), 60)
    left_out = left_out_text(config.stash[_LEFT_OUT])
    terminalreporter.write_line(f"{counts} in {minutes} min {seconds} s{left_out}")


def left_out_text(counts: dict[str, int]) -> str:
    """What was left out, and how to run it."""
    import torch

    parts = []
    if counts.get("long"):
        parts.append(f"{counts['long']} long tests (`make test-all` runs them)")
    if counts.get("other"):
        parts.append(f"{counts['other']} tests that were not selected")
    if not torch.cuda.is_available():
        parts.append("tests on CUDA (there is no GPU)")
    return "; left out: " + ", ".join(parts) if parts else ""
