"""Fixtures of all tests."""

from __future__ import annotations

import gc
import importlib.util
import os
import shutil
import sys
import tempfile
import types
import unittest
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from jaxtyping import config as jaxtyping_config
from jaxtyping import install_import_hook

from tests import compiler

pytest_plugins = ["tests.tiers"]

# Shapes in signatures are checked while tests run, and only then; where people's input is checked, by that code itself.
# One test in so many does: all tests of optimizers would take a quarter longer.
SHAPES_IN_ONE_OF = 8
SHAPED = ("members.arena", "rules.linear", "optim.values")
# A machine with a GPU may have pytest and not all of what the tests are developed with.
if importlib.util.find_spec("beartype"):
    install_import_hook([f"hfta_nb.{name}" for name in SHAPED], "beartype.beartype")
if not importlib.util.find_spec("expecttest"):  # torch's lists of modules and optimizers are in files that import it
    sys.modules["expecttest"] = types.ModuleType("expecttest")
    sys.modules["expecttest"].TestCase = unittest.TestCase  # type: ignore[attr-defined]
# The schema of notebooks has no international addresses; the grammar of those takes seconds to compile at its import.
sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]


def pytest_configure(config: pytest.Config) -> None:
    # One thread: the results do not depend on how many cores a machine has, and a busy machine does not stall.
    torch.set_num_threads(1)
    os.environ["HFTA_NB_CACHE"] = "off"  # what tests measure is no one's
    if torch.cuda.is_available():  # float32 is compared to its own rounding; cuDNN's convolutions are TF32 by default
        torch.backends.cudnn.allow_tf32 = False
    for absent in (torch.cuda, torch.xpu, torch.mtia):
        if not absent.is_available():  # torch.manual_seed formats the stack for each, a millisecond and more in a test
            absent.manual_seed_all = lambda seed: None
    if not hasattr(config, "workerinput"):  # workers of pytest-xdist have the variable from whoever starts them
        folder = Path(tempfile.mkdtemp(prefix="hfta_nb_compiled_"))
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
        if command := compiler.install(folder):
            os.environ["CC"] = str(command)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """What is there now stays: a collection of garbage that goes through thousands of tests takes half a second."""
    gc.collect()
    gc.freeze()


@pytest.fixture(params=["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"])
def device(request: pytest.FixtureRequest) -> torch.device:
    """Every device that is there."""
    return torch.device(request.param)


@pytest.fixture
def two_threads() -> Iterator[None]:
    """Torch has two threads, whatever the machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    assert torch.get_num_threads() == 2  # whatever has run here leaves that as it was
    torch.set_num_threads(before)


@pytest.fixture
def self_tuning() -> None:
    """Arrays find out by their first calls how they are fastest, as they do for users."""


@pytest.fixture
def verified() -> None:
    """Arrays compare their first calls with the plain modules, as they do for users."""


@pytest.fixture(autouse=True)
def _shapes_of_some(request: pytest.FixtureRequest) -> None:
    from tests import tiers

    jaxtyping_config.update("jaxtyping_disable", tiers.hashed(request.node.nodeid) % SHAPES_IN_ONE_OF > 0)


@pytest.fixture(autouse=True)
def _not_verified(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The contract tests compare all members in all steps themselves, and many count what is called."""
    from hfta_nb.engine.eager.execution_settings import ExecutionSettings

    if "verified" not in request.fixturenames and request.path.parent.name != "first_hour":
        monkeypatch.setattr(ExecutionSettings, "verify", os.environ.get("HFTA_NB_TESTS_VERIFY", "never"))


@pytest.fixture(autouse=True)
def _nothing_tried(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What runs when, and in what blocks, does not depend on time, but in tests of that and in those as a user."""
    from hfta_nb.engine.eager.execution_settings import ExecutionSettings

    if "self_tuning" not in request.fixturenames and request.path.parent.name != "first_hour":
        monkeypatch.setattr(ExecutionSettings, "self_tuning", False)
        monkeypatch.setattr(ExecutionSettings, "recorded_from", 0)  # their studies have few steps


@pytest.fixture(autouse=True)
def _untouched_random_numbers() -> Iterator[None]:
    """Whatever a test does with torch's default generator is undone."""
    state = torch.random.get_rng_state()
    yield
    torch.random.set_rng_state(state)


@pytest.fixture(autouse=True)
def _families_as_before() -> Iterator[None]:
    """A family that a test defines is gone after it."""
    from hfta_nb.models.model_zoo import families
    from hfta_nb.models.model_zoo.registry import _registered

    families()
    before = dict(_registered)
    yield
    _registered.clear()
    _registered.update(before)
