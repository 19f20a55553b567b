"""Weights from safetensors files: found on this machine, read once for all members, and put into modules."""

from __future__ import annotations

import contextlib
import difflib
import functools
import importlib
import importlib.util
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from hfta_nb.errors import FamilyError

CONFIG, FILE, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
ALL, HEAD = "all", "head"
SOURCES = 2
"""Files (or folders of shards) that are kept in memory after they were read, the latest ones."""

_CONVERT = "convert it once where you trust it: safetensors.torch.save_file(torch.load(path), 'model.safetensors')"
_SHOWN = 3
_sharing: ContextVar[bool] = ContextVar("sharing", default=False)


def load_weights(
    module: nn.Module, source: str | Path, *, fresh: Sequence[str] = (), train: str | Sequence[str] = ALL
) -> nn.Module:
    """Put the weights of a safetensors file into a module, in place, and say which of its parameters are trained.

    In the build function of a family, the file is read once for all members, and what is not trained is held once.

    Args:
        module: a plain module.
        source: a ``.safetensors`` file; a folder with ``model.safetensors``, or with shards and their index; or the
            name of a repository in the local cache of Hugging Face's hub. Nothing is downloaded.
        fresh: patterns of names (``"head.*"``) that keep the values that the module was built with.
        train: "all" parameters, the "head" (those that are `fresh`), or patterns of those that are trained; the others
            get ``requires_grad=False``.

    Returns:
        The module.

    Raises:
        FamilyError: there is no such file; it is a pickle or damaged; its names or shapes are not the module's; or a
            pattern matches nothing.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from safetensors.torch import save_file
        >>> layer = nn.Linear(2, 3)
        >>> with TemporaryDirectory() as folder:
        ...     save_file(layer.state_dict(), f"{folder}/model.safetensors")
        ...     same = load_weights(nn.Linear(2, 3), folder, train=["bias"])
        >>> torch.equal(same.weight, layer.weight), same.weight.requires_grad
        (True, False)
    """
    kept = _matching(fresh, module.state_dict(), "fresh") if fresh else []
    state = {} if is_planned(source) else _put(module, source, set(kept))
    freeze(module, train, kept)
    hold_once(module, state)
    return module


def _put(module: nn.Module, source: str | Path, kept: set[str]) -> dict[str, Tensor]:
    """Copy the tensors of a source into a module, all but those `kept`."""
    own = module.state_dict()
    given = {name: value for name, value in read(source).items() if name not in kept}
    missing = [name for name in own if name not in given and name not in kept]
    unlike = [name for name in own if name in given and given[name].shape != own[name].shape]
    check_names(f"weights {source}", missing, unlike, sorted(given.keys() - own.keys()))
    module.load_state_dict(given, strict=False)
    return given


def is_planned(source: str | Path) -> bool:
    """Whether modules are built without memory, so that no weights are read; they have to be there.

    Raises:
        FamilyError: see `files_of`.
    """
    return torch.get_default_device().type == "meta" and bool(files_of(source))


@contextlib.contextmanager
def shared() -> Iterator[None]:
    """The context in which members are built: what they don't train is the same tensor in all of them."""
    token = _sharing.set(True)
    try:
        yield
    finally:
        _sharing.reset(token)


# Files.


def folder_of(source: str | Path, where: str) -> Path:
    """The folder of a model: itself, or the snapshot of a repository in the hub's cache.

    Raises:
        FamilyError: there is neither.
    """
    folder = Path(source).expanduser()
    if folder.is_dir():
        return folder.absolute()
    cached = [place for name in (CONFIG, FILE, INDEX) if (place := _cached(str(source), name)) is not None]
    if cached:
        return cached[0].parent
    raise FamilyError(
        "there is no such folder, and no such repository in the hub's cache",
        where=where,
        got=str(source),
        accepted=f"a folder with {CONFIG} and {FILE}; looked in {folder.absolute()} and {_cache() or 'no cache'}",
        remedy="nothing is downloaded here; download it first: huggingface_hub.snapshot_download(name)",
    )


def files_of(source: str | Path, where: str = "weights") -> list[Path]:
    """The safetensors files of a source; see `load_weights`.

    Raises:
        FamilyError: there are none, or they are pickles.
    """
    path = Path(source).expanduser()
    if path.suffix in PICKLES:
        raise _pickled(path, where)
    if path.is_file() or path.suffix == ".safetensors":
        if not path.is_file():
            raise FamilyError("there is no such file", where=where, got=str(path.absolute()))
        return [path]
    folder = folder_of(source, where)
    if (folder / FILE).is_file():
        return [folder / FILE]
    if (folder / INDEX).is_file():
        return _shards(folder, where)
    pickled = sorted(p for p in folder.iterdir() if p.suffix in PICKLES)
    if pickled:
        raise _pickled(pickled[0], where)
    raise FamilyError("holds no weights", where=where, got=str(folder), accepted=f"{FILE}, or {INDEX} and its shards")


def _shards(folder: Path, where: str) -> list[Path]:
    try:
        names = sorted(set(json.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"].values()))
        found = [folder / Path(name).name for name in names]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise FamilyError(f"is not an index of shards ({error})", where=where, got=str(folder / INDEX)) from error
    lacking = [path.name for path in found if not path.is_file()]
    if lacking:
        raise FamilyError(f"lacks {len(lacking)} of {len(found)} shards", where=where, got=_some(lacking),
                          accepted=f"the files that {INDEX} names, in {folder}")  # fmt: skip
    return found


def _pickled(path: Path, where: str) -> FamilyError:
    what = "is a pickle, which can run any code when it is read"
    return FamilyError(what, where=where, got=str(path), accepted="safetensors files", remedy=_CONVERT)


def _cache() -> str:
    """The folder of the hub's cache; empty where its package is not installed."""
    if importlib.util.find_spec("huggingface_hub") is None:
        return ""
    return str(importlib.import_module("huggingface_hub.constants").HF_HUB_CACHE)


def _cached(repository: str, name: str) -> Path | None:
    """A file of a repository in the hub's cache. Asks no server."""
    if not _cache() or not 1 <= len(repository.split("/")) <= 2:
        return None
    hub = importlib.import_module("huggingface_hub")
    try:
        found = hub.try_to_load_from_cache(repository, name)
    except ValueError:  # no name of a repository
        return None
    return Path(found) if isinstance(found, str) else None


# Reading.


def read(source: str | Path, where: str = "weights") -> Mapping[str, Tensor]:
    """The tensors of a source by name, on the CPU; half precision as torch's default dtype. Not to be changed.

    Raises:
        FamilyError: see `files_of`; or a file is damaged.
    """
    files = files_of(source, where)
    key = tuple((str(path.resolve()), (at := path.stat()).st_mtime_ns, at.st_size) for path in files)
    return _read(key, torch.get_default_dtype())


@functools.lru_cache(maxsize=SOURCES)
def _read(files: Sequence[tuple[str, int, int]], dtype: torch.dtype) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for path, _, _ in files:
        try:
            with safe_open(path, "pt") as opened:
                for name in opened.keys():  # noqa: SIM118
                    found[name] = _own(opened.get_tensor(name), dtype)
        except (SafetensorError, OSError) as error:
            raise FamilyError(f"can't be read ({error})", where="weights", got=path) from error
    return found


def _own(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """A copy in memory of its own: a file that is mapped can't be replaced. Made by `empty`, which a plan limits."""
    kind = dtype if tensor.dtype in (torch.float16, torch.bfloat16) else tensor.dtype
    return torch.empty(tensor.shape, dtype=kind).copy_(tensor)


# Into modules.


def check_names(where: str, missing: Iterable[str], unlike: Iterable[str], unexpected: Iterable[str] = ()) -> None:
    """See that the weights of a file are those of a module.

    Raises:
        FamilyError: they are not.
    """
    named = {"missing": list(missing), "of another shape": list(unlike), "unexpected": list(unexpected)}
    wrong = [f"{len(names)} {kind} ({_some(names)})" for kind, names in named.items() if names]
    if wrong:
        remedy = "name the parts that are to begin anew as `fresh`, or give the settings that the weights belong to"
        raise FamilyError(f"do not fit the model: {', '.join(wrong)}", where=where, remedy=remedy)


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")


def freeze(module: nn.Module, train: Any, head: Iterable[str]) -> None:
    """Set `requires_grad` of all parameters.

    Args:
        module: whose.
        train: "all", "head", a pattern of names, or several.
        head: the names of the head's parameters.

    Raises:
        FamilyError: none is trained then.
    """
    if train == ALL:
        return
    names = [name for name, _ in module.named_parameters()]
    if train == HEAD:
        chosen = set(head)
        if not chosen:
            accepted = f"{ALL}, or patterns of names, such as {names[-1]}"
            raise FamilyError(f"{type(module).__name__} has no head", where="train", got=train, accepted=accepted)
    else:
        chosen = set(_matching([train] if isinstance(train, str) else train, names, "train"))
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name in chosen)


def _matching(patterns: Any, names: Iterable[str], where: str) -> list[str]:
    """The names that match one of the patterns.

    Raises:
        FamilyError: a pattern matches none.
    """
    known, found = list(names), list[str]()
    for pattern in patterns if isinstance(patterns, list | tuple) else [patterns]:
        matched = [name for name in known if fnmatchcase(name, pattern)] if isinstance(pattern, str) else []
        if not matched:
            near = difflib.get_close_matches(str(pattern), known, 3, cutoff=0.3)
            raise FamilyError("matches no parameter", where=where, got=pattern,
                              accepted='names of parameters, with * for any part: "encoder.layer.11.*"',
                              remedy=f"did you mean {' or '.join(near)}?" if near else "")  # fmt: skip
        found += matched
    return found


def hold_once(module: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Give a module its own copies of what it may change, and, where members are built, the very tensors of the file
    for what it does not train.

    Args:
        module: with these weights in it, as copies or as they are.
        state: of `read`.
    """
    owned = {tensor.untyped_storage().data_ptr() for tensor in state.values()}
    for name, parameter in module.named_parameters():
        is_file_s = parameter.untyped_storage().data_ptr() in owned
        if parameter.requires_grad or not _sharing.get():
            if is_file_s:
                parameter.data = _own(parameter.data, parameter.dtype)
        elif not is_file_s and (held := state.get(name)) is not None and _is_same(held, parameter):
            parameter.data = held
    for buffer in module.buffers():
        if buffer.untyped_storage().data_ptr() in owned:
            buffer.data = _own(buffer.data, buffer.dtype)


def own_tensors(module: nn.Module) -> nn.Module:
    """The module, in which no parameter is one of another module's."""
    for parameter in module.parameters():
        if not parameter.requires_grad:
            parameter.data = parameter.data.clone()
    return module


def _is_same(held: Tensor, own: Tensor) -> bool:
    return held.dtype == own.dtype and held.shape == own.shape and torch.equal(held, own)
