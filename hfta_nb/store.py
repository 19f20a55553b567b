"""A run on disk: a directory of JSON and safetensors, no pickle.

``study.json`` holds the definition, ``events.jsonl`` the events, ``weights/<variant>.safetensors`` a member's best
weights as a plain state dict, ``checkpoint.json`` with ``checkpoint.safetensors`` the state for resuming, and
``ends/<array>.safetensors`` the state from which a finished array can train longer.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from hfta_nb.errors import EventError, StoreError
from hfta_nb.events import Event, from_json, to_json

FORMAT = 1
"""Version of the layout; raised when an older program could no longer read it."""

LOCK = "run.lock"
"""A file that is locked while the study runs. It is not study.json, which is replaced on each change."""

BLOCK = 1 << 16
"""Bytes that are looked through at once."""


class Store:
    """The directory of one run.

    Args:
        directory: path of the run; created by the first write.
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)

    # The definition.

    @property
    def exists(self) -> bool:
        return self._has("study.json")

    @contextlib.contextmanager
    def claimed(self, patience_s: float = 5.0) -> Iterator[None]:
        """Lock the run within the block, so that nobody else runs the study, in this process or in another.

        Args:
            patience_s: how long to wait for another owner, which may be about to end.

        Raises:
            StoreError: somebody else runs it.
        """
        path = self.directory / "study.json"
        try:
            path.open("rb").close()
        except OSError as error:
            raise StoreError(f"can't be read ({_reason(error)})", where=str(path)) from error
        with self._guarded(LOCK) as lock:
            file = lock.open("ab")
        with file:
            until = time.monotonic() + patience_s
            while not _alone(file):
                if time.monotonic() > until:
                    remedy = "wait until it has ended, or stop it there"
                    raise StoreError("the run is in progress elsewhere", where=str(self.directory), remedy=remedy)
                time.sleep(0.05)
            self._drop_cut_line()
            yield

    @property
    def running(self) -> bool | None:
        """Whether the study is running now, in this process or in another; None if the system can't tell."""
        return _locked(self.directory / LOCK)

    def write_study(self, study: Mapping[str, Any]) -> None:
        """Write the definition of the study.

        Raises:
            StoreError: the directory can't be written to.
        """
        self._write_json("study.json", {"format": FORMAT, **study})

    def read_study(self) -> dict[str, Any]:
        """The definition of the study.

        Raises:
            StoreError: there is no run here, or it is of a later version or damaged.
        """
        study = self._read_json("study.json")
        if study.get("format") != FORMAT:
            raise StoreError(
                "a run of another version", where=str(self.directory), got=study.get("format"), accepted=str(FORMAT)
            )
        return study

    # Events.

    @property
    def events_path(self) -> Path:
        return self.directory / "events.jsonl"

    @property
    def has_events(self) -> bool:
        """Whether there are any events."""
        return self._has("events.jsonl")

    def append(self, event: Event) -> None:
        """Append an event; it is on disk when this returns, so that a killed process loses none."""
        with self._guarded("events.jsonl"), self.events_path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(to_json(event)) + "\n")

    def events(self, offset: int = 0) -> Iterator[tuple[Event, int]]:
        """Events from a position in bytes on, each with the position after it.

        A last line cut short (the process was killed while writing) is left out.

        Raises:
            StoreError: a line is not an event.
        """
        if not self.has_events:
            return
        with self.events_path.open("rb") as file:
            file.seek(offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                offset += len(line)
                try:
                    record = from_json(json.loads(line))
                except (ValueError, EventError) as error:
                    raise StoreError(f"a damaged line ({error})", where=f"{self.events_path}, byte {offset}") from error
                if isinstance(record, Event):
                    yield record, offset

    def _drop_cut_line(self) -> None:
        """Take away what a process that was killed has begun to write: the next event is to have a line of its own."""
        if not self.has_events:
            return
        with self._guarded("events.jsonl") as path, path.open("rb+") as file:
            end = file.seek(0, os.SEEK_END)
            while end:
                start = max(0, end - BLOCK)
                file.seek(start)
                newline = file.read(end - start).rfind(b"\n")
                end = start if newline < 0 else start + newline + 1
                if newline >= 0:
                    break
            file.truncate(end)

    # Weights and checkpoints.

    def weights_path(self, variant: int) -> Path:
        return self.directory / "weights" / f"{variant}.safetensors"

    def write_weights(self, variant: int, weights: Mapping[str, Tensor]) -> None:
        """Write a member's best weights, a plain state dict."""
        self._write_tensors(f"weights/{variant}.safetensors", dict(weights))

    def read_weights(self, variant: int) -> dict[str, Tensor]:
        """A member's best weights.

        Raises:
            StoreError: none were written (yet), or the file is damaged.
        """
        return self._read_tensors(f"weights/{variant}.safetensors")

    def write_tensors(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        """Write named tensors to a file of the run."""
        self._write_tensors(name, dict(tensors))

    def read_tensors(self, name: str) -> dict[str, Tensor]:
        """Read what `write_tensors` wrote.

        Raises:
            StoreError: the file is missing or damaged.
        """
        return self._read_tensors(name)

    def write_checkpoint(self, state: Mapping[str, Any]) -> Path:
        """Write a tree of tensors and plain data, replacing the checkpoint before in one go."""
        tensors: dict[str, Tensor] = {}
        plain = _take_tensors(state, "", tensors)
        # The JSON names the file of its tensors and is replaced last: at any instant one whole checkpoint is there.
        before = self.directory / "checkpoint.json"
        old = json.loads(before.read_text("utf-8"))["tensors"] if before.exists() else ""
        name = "checkpoint-b.safetensors" if old == "checkpoint-a.safetensors" else "checkpoint-a.safetensors"
        self._write_tensors(name, tensors)
        self._write_json("checkpoint.json", {"format": FORMAT, "tensors": name, "state": plain})
        if old and not tensors:  # of a run that is complete: what it has is in its arrays' ends
            (self.directory / old).unlink(missing_ok=True)
        return before

    def read_checkpoint(self) -> Any:
        """What `write_checkpoint` was given.

        Raises:
            StoreError: there is none, or it is damaged.
        """
        found = self._read_json("checkpoint.json")
        try:
            return _put_tensors(found["state"], self._read_tensors(found["tensors"]))
        except KeyError as error:
            path = self.directory / "checkpoint.json"
            raise StoreError(f"is not what was saved ({error} is missing)", where=str(path)) from error

    @property
    def has_checkpoint(self) -> bool:
        return self._has("checkpoint.json")

    def write_end(self, array: int, state: Mapping[str, Any]) -> str:
        """Write the final state of a finished array, a tree of tensors and plain data; returns the file's name."""
        name = f"ends/{array}.safetensors"
        tensors: dict[str, Tensor] = {}
        plain = _take_tensors(state, "", tensors)
        self._write_tensors(name, tensors, {"state": json.dumps(plain)})
        return name

    def read_end(self, name: str) -> Any:
        """What `write_end` was given.

        Raises:
            StoreError: the file is missing or damaged.
        """
        tensors, path = self._read_tensors(name), self.directory / name
        try:
            with safe_open(path, framework="pt") as file:
                return _put_tensors(json.loads(file.metadata()["state"]), tensors)
        except (TypeError, KeyError, ValueError) as error:
            raise StoreError(f"is not what was saved ({error})", where=str(path)) from error

    def copy_to(self, directory: Path) -> None:
        """Copy the whole run.

        Raises:
            StoreError: another run is there, or the directory can't be written to.
        """
        if (directory / "study.json").exists():
            raise StoreError("a run is already there", where=str(directory), remedy="choose another directory")
        try:
            shutil.copytree(self.directory, directory, dirs_exist_ok=True)
        except OSError as error:
            raise StoreError(f"can't be copied ({error})", where=str(directory)) from error

    # Within.

    def _has(self, name: str) -> bool:
        path = self.directory / name
        try:
            return path.is_file()
        except OSError as error:
            raise StoreError(f"can't be looked at ({_reason(error)})", where=str(path)) from error

    def _guarded(self, name: str) -> _Guard:
        return _Guard(self.directory / name)

    def _write_json(self, name: str, data: Mapping[str, Any]) -> None:
        with self._guarded(name) as path:
            spare = path.with_suffix(".tmp")
            spare.write_text(json.dumps(data, indent=1), encoding="utf-8")
            os.replace(spare, path)

    def _read_json(self, name: str) -> dict[str, Any]:
        path = self.directory / name
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise StoreError("no saved run here", where=str(self.directory), remedy=f"{name} is missing") from None
        except (OSError, ValueError) as error:
            raise StoreError(f"can't be read ({_reason(error)})", where=str(path)) from error
        if not isinstance(data, dict):
            raise StoreError("is not what was saved", where=str(path))
        return data

    def _write_tensors(self, name: str, tensors: dict[str, Tensor], words: dict[str, str] | None = None) -> None:
        with self._guarded(name) as path:
            spare = path.with_suffix(".tmp")
            # Cloned: the format refuses tensors that share memory, as tied weights and rows of an arena do.
            save_file({k: v.detach().cpu().clone().contiguous() for k, v in tensors.items()}, spare, words)
            os.replace(spare, path)

    def _read_tensors(self, name: str) -> dict[str, Tensor]:
        path = self.directory / name
        if not path.is_file():
            raise StoreError(
                "no such file in the run", where=str(path), remedy="was the run stopped before it was saved?"
            )
        try:
            return load_file(path)  # type: ignore[no-any-return]
        except Exception as error:  # safetensors raises an exception class of its own for a damaged file
            raise StoreError(f"can't be read ({error})", where=str(path)) from error


class _Guard:
    """Makes the directory of a file, and turns a failure to write into a typed error."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> Path:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except (OSError, ValueError) as error:
            where, accepted = str(self.path.parent), "a directory that is there or can be made"
            raise StoreError(f"can't be made ({_reason(error)})", where=where, accepted=accepted) from error
        return self.path

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, OSError) and not isinstance(error, StoreError):
            raise StoreError(f"can't be written ({_reason(error)})", where=str(self.path)) from error


def _reason(error: Exception) -> str:
    """The reason of an OS error, without the path."""
    return str(getattr(error, "strerror", None) or error)


def _alone(file: BinaryIO) -> bool:
    """Lock a file while it is open; also true if the system or its disk has no locks."""
    try:
        import fcntl
    except ImportError:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def _locked(path: Path) -> bool | None:
    """Whether this file is locked; None if unknown."""
    try:
        import fcntl
    except ImportError:
        return None
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    except OSError:
        return None
    return False


def _take_tensors(tree: Any, path: str, found: dict[str, Tensor]) -> Any:
    if isinstance(tree, Tensor):
        found[path] = tree
        return {"__tensor__": path}
    if isinstance(tree, Mapping):
        return {str(k): _take_tensors(v, f"{path}/{k}", found) for k, v in tree.items()}
    if isinstance(tree, list | tuple):
        return [_take_tensors(v, f"{path}/{i}", found) for i, v in enumerate(tree)]
    return tree


def _put_tensors(tree: Any, found: Mapping[str, Tensor]) -> Any:
    if isinstance(tree, dict):
        if set(tree) == {"__tensor__"}:
            return found[tree["__tensor__"]]
        return {k: _put_tensors(v, found) for k, v in tree.items()}
    return [_put_tensors(v, found) for v in tree] if isinstance(tree, list) else tree
