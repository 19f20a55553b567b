"""A Jupyter kernel: a family defined in a cell, an interrupt, a restart."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.manager import KernelManager

from tests.executors.watching import DEADLINE_S
from tests.polling import eventually, gone

ROOT = Path(__file__).resolve().parents[2]

DEFINE = """
import torch
import hfta_nb as hfta
from hfta_nb.study import executors

class Net(torch.nn.Module):
    def __init__(self, width, fan_in):
        super().__init__()
        self.first, self.second = torch.nn.Linear(fan_in, width), torch.nn.Linear(width, 2)
    def forward(self, x):
        return self.second(torch.relu(self.first(x)))

@hfta.family
def of_a_cell(width: int = 4, in_features: int = 1):
    return Net(width, in_features)

study = hfta.Study(of_a_cell, {"lr": [1e-3, 1e-2]}, "breast_cancer", epochs=10**6, device="cpu", directory="run")
run = executors.start(study)
print(run.pid)
"""

TRAINED = f"""
import time
end = time.monotonic() + {DEADLINE_S}
def epochs():
    members = run.history.members
    return members[0].epoch if members else 0
before = epochs()
while epochs() < before + 5 and time.monotonic() < end:
    time.sleep(0.01)
print(epochs() >= before + 5)
"""
"""Waits for five epochs more."""


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A kernel's manager, and a function that runs a cell and returns what it printed and its error's name."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    manager = KernelManager(kernel_name="python3")
    manager.start_kernel(cwd=str(tmp_path))
    client = manager.client()
    client.start_channels()
    client.wait_for_ready(timeout=DEADLINE_S)

    def cell(code: str) -> tuple[str, str]:
        printed: list[str] = []

        def take(message: dict[str, Any]) -> None:
            if message["msg_type"] == "stream":
                printed.append(message["content"]["text"])

        reply = client.execute_interactive(code, output_hook=take, timeout=DEADLINE_S)
        return "".join(printed), reply["content"].get("ename", "")

    try:
        yield manager, cell
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
        manager.cleanup_resources()


def test_a_run_of_a_kernel(kernel: Any) -> None:
    manager, cell = kernel
    printed, error = cell(DEFINE)
    assert error == ""
    pid = int(printed)
    assert cell(TRAINED)[0] == "True\n"
    # An interrupt ends the cell, not the run.
    cell("import os, signal, threading; threading.Timer(0.5, os.killpg, (os.getpgid(0), signal.SIGINT)).start()")
    assert cell("run.wait()")[1] == "KeyboardInterrupt"
    assert cell(TRAINED)[0] == "True\n"
    assert cell("print(run.state, run.log)") == ("RUNNING \n", "")
    assert not gone(pid)
    # A restart does.
    assert os.getpgid(pid) != os.getpgid(manager.provisioner.process.pid)  # signals to the kernel spare it
    manager.restart_kernel(now=True)
    eventually(lambda: gone(pid), "the worker to end")


FIT = """
import os, signal, threading
import hfta_nb as hfta
from hfta_nb import events as ev

def pressed_soon(event):
    if isinstance(event, ev.EpochDone) and event.epoch == 2:
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()

study = hfta.Study("mlp", {"lr": [1e-3, 1e-2]}, "iris", epochs=10**6, device="cpu", directory="fitted")
study.fit(on_event=pressed_soon)
"""
"""A fit that would take for ever, and "Interrupt kernel" in the middle of it."""

AFTER = """
reached = study.history.members[0].epoch
print(study.history.state, reached >= 2, study.store.running, type(study.best().module()).__name__)
"""

ON = """
table = study.fit(resume=True, epochs=reached + 3, progress=False)
print(study.history.state, set(table["epochs"]) == {reached + 3})
"""


@pytest.mark.long
def test_an_interrupt_of_fit_leaves_a_study_that_goes_on(kernel: Any) -> None:
    _, cell = kernel
    assert cell(FIT)[1] == "KeyboardInterrupt"
    assert cell(AFTER) == ("STOPPED True False Sequential\n", "")
    assert cell(ON) == ("COMPLETE True\n", "")
