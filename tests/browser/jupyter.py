"""A JupyterLab for the browser tests, separate from the user's own; it leaves no files behind."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

from tests.polling import INTERVAL_S, eventually, gone

TAG = "HFTA_NB_TEST_LAB"  # in the environment of every process that the server starts, so that none is overlooked
LOG_LINES = 60

SETTINGS: dict[str, dict[str, Any]] = {
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False, "doNotDisturbMode": True},
    "docmanager-extension/plugin": {"autosave": False},
    "notebook-extension/tracker": {"windowingMode": "none"},  # else cells out of sight have no elements
}


class LabError(RuntimeError):
    """JupyterLab did not start, or left something behind; the message ends with its log."""


class Lab:
    """A JupyterLab on a port of its own, in a temporary folder, with settings of its own.

    Args:
        timeout_s: how long it may take until it answers.

    Attributes:
        root: the folder that it serves.
        token: what a browser has to know.
        url: where it listens, with a slash at the end.

    Example:
        >>> with Lab() as lab:  # doctest: +SKIP
        ...     page.goto(lab.address("lab"))
    """

    def __init__(self, timeout_s: float = 120.0) -> None:
        self.timeout_s = timeout_s
        self.token = secrets.token_hex(16)
        self.tag = secrets.token_hex(16)
        self.url = ""
        self._folder = Path()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def root(self) -> Path:
        return self._folder / "root"

    @property
    def log_path(self) -> Path:
        return self._folder / "lab.log"

    def __enter__(self) -> Lab:
        self._folder = Path(tempfile.mkdtemp(prefix="hfta-nb-lab-")).resolve()
        self.root.mkdir()
        for name, values in SETTINGS.items():
            path = self._folder / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(values))
        try:
            self._start()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        left = self._end()
        if left and error is None:
            raise LabError("processes outlived JupyterLab and had to be killed:\n" + "\n".join(left))

    def address(self, path: str, **query: str) -> str:
        """The address of a page of the server, with its token."""
        query = {"token": self.token, **query}
        return f"{self.url}{urllib.parse.quote(path)}?{urllib.parse.urlencode(query)}"

    def api(self, path: str, method: str = "GET") -> Any:
        """What the server's REST interface answers, as JSON."""
        headers = {"Authorization": f"token {self.token}"}
        request = urllib.request.Request(f"{self.url}api/{path}", method=method, headers=headers)
        with urllib.request.urlopen(request, timeout=30) as reply:
            body = reply.read()
        return json.loads(body) if body else None

    def copy(self, notebook: Path, folder: str) -> str:
        """Put a notebook into a folder of the server's root; its path as the server names it."""
        target = self.root / folder / notebook.name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(notebook, target)
        return target.relative_to(self.root).as_posix()

    def write(self, path: str, cells: list[str]) -> str:
        """Make a notebook of these code cells in the server's root; its path as the server names it."""
        code: dict[str, Any] = {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": []}
        kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
        content = {
            "cells": [{**code, "id": f"cell-{i}", "source": source} for i, source in enumerate(cells)],
            "metadata": {"kernelspec": kernel},
            "nbformat": 4,
            "nbformat_minor": 5,
        }
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(content))
        return path

    def end_sessions(self) -> None:
        """Shut down every kernel, so that the next test has the machine for itself."""
        for session in self.api("sessions"):
            with contextlib.suppress(urllib.error.HTTPError):  # it went by itself meanwhile
                self.api(f"sessions/{session['id']}", "DELETE")

    def processes(self) -> list[psutil.Process]:
        """Every live process that the server started, directly or not, wherever it hangs in the tree by now."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if process.environ().get(TAG) == self.tag and not gone(process.pid):
                    found.append(process)
        return found

    def log_tail(self) -> str:
        """The last lines that the server and its kernels wrote."""
        if not self.log_path.exists():
            return "(no log)"
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-LOG_LINES:])

    def _environment(self) -> dict[str, str]:
        outside = ("JUPYTER", "IPYTHON", "COLAB", "VSCODE")
        environment = {k: v for k, v in os.environ.items() if not k.startswith(outside)}
        folders = {
            "JUPYTER_CONFIG_DIR": "config",
            "JUPYTER_DATA_DIR": "data",
            "JUPYTER_RUNTIME_DIR": "runtime",
            "JUPYTERLAB_SETTINGS_DIR": "settings",
            "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
            "IPYTHONDIR": "ipython",
        }
        environment |= {name: str(self._folder / folder) for name, folder in folders.items()}
        # Relative entries would point elsewhere: the server runs in another folder than pytest.
        paths = [str(Path(p).resolve()) for p in environment.get("PYTHONPATH", "").split(os.pathsep) if p]
        if paths:
            environment["PYTHONPATH"] = os.pathsep.join(paths)
        environment[TAG] = self.tag
        return environment

    def _start(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}/"
        command = [
            *(sys.executable, "-m", "jupyterlab", "--no-browser", "--ip=127.0.0.1", f"--port={port}"),
            *("--ServerApp.port_retries=0", f"--ServerApp.root_dir={self.root}"),
            *(f"--IdentityProvider.token={self.token}", "--LabApp.expose_app_in_browser=True"),
            *(["--allow-root"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []),
        ]
        with self.log_path.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                cwd=self.root,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C in pytest ends it by _end, in order
            )
        try:
            eventually(self._answers, "JupyterLab to answer", self.timeout_s)
        except AssertionError as error:
            raise LabError(f"{error}; its log ends with\n{self.log_tail()}") from None

    def _answers(self) -> bool:
        assert self._process is not None
        code = self._process.poll()
        if code is not None:
            raise LabError(f"JupyterLab ended with status {code}; its log ends with\n{self.log_tail()}")
        try:
            return bool(self.api("status"))
        except OSError:
            return False

    def _end(self) -> list[str]:
        """Shut down in order; what had to be killed all the same, as command lines."""
        process, self._process = self._process, None
        left: list[str] = []
        if process is not None:
            process.send_signal(signal.SIGTERM)  # shuts the kernels down, then itself
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=20)
            left = self._sweep(patience_s=10)
            process.wait(timeout=10)
        shutil.rmtree(self._folder, ignore_errors=True)
        return left

    def _sweep(self, patience_s: float) -> list[str]:
        deadline = time.monotonic() + patience_s
        while (found := self.processes()) and time.monotonic() < deadline:
            time.sleep(INTERVAL_S)
        left = []
        for process in found:
            with contextlib.suppress(psutil.Error):
                left.append(f"{process.pid} {' '.join(process.cmdline())}")
                process.kill()
        return left
