"""Saved state of an array for `torch.save` and safetensors: tensors with a member axis, and the members' random
streams."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from hfta_nb.engine.array.extra_states import KEY, extra_states, kept_beside, put_extra_states
from hfta_nb.engine.array.held_once import Loading
from hfta_nb.engine.array.state_code import warn_of_code
from hfta_nb.engine.eager.state import ArrayState
from hfta_nb.engine.eager.user_warnings import warn
from hfta_nb.engine.members.generators import MemberGenerators, State
from hfta_nb.engine.padded.runtime import architectures_of
from hfta_nb.errors import FusionError
from hfta_nb.errors.border import PATH, STATE, TRUTH, takes

STREAMS = KEY
"""The key of the members' random streams."""


class Savable(nn.Module):
    """The part of a `FusedArray` that saves and loads it."""

    generators: MemberGenerators
    _state: ArrayState

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        streams = destination.pop(prefix + STREAMS)
        # Where torch keeps a module's version: `torch.save` and copies take it along, rows do not have it.
        metadata = getattr(destination, "_metadata", {}).get(prefix[:-1])
        if metadata is not None:
            metadata[STREAMS] = streams
        model = self._state.skeleton
        if self._has_own_extra_state():  # as its submodules may have
            destination[prefix + STREAMS] = model.get_extra_state()

    def state_dict(self, *args: Any, **named: Any) -> Any:
        """As for a plain module, each tensor with the member axis, and lists of the members' own extra states."""
        warn_of_code(self._state.skeleton, "state_dict")
        found = super().state_dict(*args, **named)
        prefix = named.get("prefix", args[1] if len(args) > 1 else "")
        if not self._state.pending:
            found |= {prefix + key: values for key, values in extra_states(self._state).items()}
        return found

    def _has_own_extra_state(self) -> bool:
        return type(self._state.skeleton).get_extra_state is not nn.Module.get_extra_state

    @takes(FusionError, state_dict=STATE, strict=TRUTH)
    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Load the result of `state_dict`.

        Args:
            state_dict: with or without random streams; if they are missing, as in files of older versions, they are
                left unchanged.
            strict: as for a plain module, other keys are errors; missing random streams are not.
            assign: as for a plain module; not supported, as the array's tensors share memory.

        Returns:
            As for a plain module, the names of missing and of unexpected keys.

        Raises:
            FusionError: `assign`, the number of members of the streams differs, the members have other widths, or it is
                the state of one plain module. Then nothing is changed.
            RuntimeError: torch's own, for other keys or shapes.
        """
        if assign:
            raise FusionError(
                "an array's tensors lie in one block of memory, and can't be replaced",
                where="load_state_dict",
                got="assign=True",
                accepted="assign=False",
            )
        beside = getattr(state_dict, "_metadata", {}).get("", {}).get(STREAMS)
        streams = beside if self._has_own_extra_state() else state_dict.get(STREAMS, beside)
        if streams is not None:
            _checked(self.generators, streams)
        for name, own in self._state.owned.items():
            given = state_dict.get(name)
            if isinstance(given, Tensor) and given.shape == own.shape and bool(given[~own.to(given.device)].any()):
                raise FusionError(
                    "the state of members of other widths, which this array's members don't have room for",
                    where=f"load_state_dict, {name}",
                    accepted="the state of an array whose members have the same architectures in the same order",
                )
        self._refuse_plain(state_dict)
        warn_of_code(self._state.skeleton, "load_state_dict")
        if not any(map(kept_beside, self._state.models)):
            with Loading(self._state):
                return super().load_state_dict(state_dict, strict)
        rows = {k: v for k, v in state_dict.items() if _by_member(k, v, len(self.generators))}
        # What is not a list by member, as in files of older versions, is all members'.
        one: Any = copy.copy(state_dict)  # with the versions of modules, which torch keeps beside the entries
        one |= {k: values[0] for k, values in rows.items()}
        with Loading(self._state):
            found = super().load_state_dict(one, strict)
        of = {i: {k: v[i] for k, v in rows.items()} for i in range(len(self.generators))}
        put_extra_states(self._state, of)
        return found

    @takes(FusionError, folder=PATH)
    def save_pretrained(self, folder: str | Path, **options: Any) -> list[Path]:
        """Write each member to a folder of its own by its own `save_pretrained`, as models of transformers have it; a
        model of peft writes its adapter alone.

        Args:
            folder: is made, if need be; member i is written to ``folder/i``.
            options: of the members' own `save_pretrained`.

        Returns:
            The members' folders.

        Raises:
            FusionError: the members have no such method.
        """
        kind = type(self._state.skeleton)
        if not callable(getattr(kind, "save_pretrained", None)):
            raise FusionError("has no save_pretrained", where=kind.__name__, got=kind,
                              accepted="models of transformers or peft, or others with this method",
                              remedy="torch.save(array[i].state_dict(), path)")  # fmt: skip
        folders = [Path(folder) / str(index) for index in range(len(self.generators))]
        for index, own in enumerate(folders):
            member: Any = self[index]  # type: ignore[index]
            member.save_pretrained(own, **options)
        return folders

    def _refuse_plain(self, state_dict: Mapping[str, Any]) -> None:
        """Refuse the state of one plain module, all of whose tensors lack the member axis."""
        own = {} if self._state.pending else tensors_of(self)
        lacks = [v.ndim - state_dict[k].ndim == 1 for k, v in own.items() if isinstance(state_dict.get(k), Tensor)]
        if lacks and all(lacks):
            raise FusionError(
                "the state of one module, without the member axis",
                where="load_state_dict",
                remedy="array.load_member(i, state_dict) gives it to member i",
            )

    def get_extra_state(self) -> Tensor:
        """The members' random streams, uint8 ``[M, bytes]``."""
        return packed(self.generators)

    def set_extra_state(self, state: Any) -> None:
        """Load random streams.

        Raises:
            FusionError: the number of members differs.
        """
        rows = _checked(self.generators, state)
        old = self.generators.states
        self.generators.states = [_taken(row, before) for row, before in zip(rows, old, strict=True)]

    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, local_metadata: Any, strict: bool, missing_keys: list[str], *rest: Any
    ) -> None:
        # In place, in torch's own copy: what hooks change there, submodules load.
        if self._has_own_extra_state() and prefix + STREAMS in state_dict:
            self._state.skeleton.set_extra_state(state_dict.pop(prefix + STREAMS))
        if STREAMS in local_metadata:
            state_dict.setdefault(prefix + STREAMS, local_metadata[STREAMS])
        super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, missing_keys, *rest)
        if prefix + STREAMS in missing_keys:
            missing_keys.remove(prefix + STREAMS)

    def unpad(self, index: int) -> Callable[[Mapping[str, Tensor]], dict[str, Tensor]]:
        """A function from a member's row of the array's `state_dict` to the `state_dict` of its plain module."""
        architectures = architectures_of(self._state)
        return without_streams if architectures is None else architectures.blueprint.unpad(index)

    def narrower(self, index: int) -> Callable[[Mapping[str, Tensor]], dict[str, Tensor]]:
        """`unpad`, under the name that it had before 0.1."""
        warn("array.narrower is array.unpad now", DeprecationWarning)
        return self.unpad(index)

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise FusionError(
            "an array can't be pickled",
            where="torch.save or pickle",
            got=self,
            accepted="what state_dict gives",
            remedy="torch.save(array.state_dict(), path), and beside it that of optimizer, lr scheduler and scaler; "
            "later fuse the modules again and load_state_dict. A member alone: torch.save(array[i].state_dict(), path)",
        )


def tensors_of(array: Savable) -> dict[str, Tensor]:
    """The tensors of the plain module's `state_dict`, detached, each with a member axis, in the array's own memory."""
    return {k: v for k, v in nn.Module.state_dict(array).items() if k.rpartition(".")[2] != KEY}


def _by_member(key: str, value: Any, members: int) -> bool:
    """Whether an entry of an array's `state_dict` is a list of the members' extra states."""
    return key.rpartition(".")[2] == KEY and isinstance(value, list) and len(value) == members


def packed(generators: MemberGenerators) -> Tensor:
    """All members' streams, uint8 ``[M, bytes]``; on a GPU the states of the CPU's and the GPU's stream,
    concatenated."""
    states = generators.state_dict()
    return torch.cat([states[kind] for kind in sorted(states)], dim=1)


def without_streams(row: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """From a member's row of the array's `state_dict` to the plain module's."""
    return {name: value for name, value in row.items() if name != STREAMS}


def put_row(generators: MemberGenerators, index: int, row: Any) -> None:
    """Load a member's streams from its row of the array's `state_dict`.

    Raises:
        FusionError: the row contains no valid streams.
    """
    one = _checked(generators, row.expand(len(generators), -1) if isinstance(row, Tensor) and row.ndim == 1 else row)
    generators.keep(index, _taken(one[index], generators.states[index]))


def _taken(row: Tensor, before: State) -> State:
    row, size = row.cpu(), _size()
    state = {**before, "cpu": row[:size].clone()}
    if len(row) > size:
        state["cuda"] = row[size:].clone()
    return state


def _checked(generators: MemberGenerators, state: Any) -> Tensor:
    cpu = _size()
    rows = isinstance(state, Tensor) and state.dtype == torch.uint8 and state.ndim == 2 and state.shape[1] >= cpu
    if not rows or len(state) != len(generators):
        raise FusionError(
            "not the random streams of this array's members",
            where=f"load_state_dict, {STREAMS}",
            got=list(state.shape) if isinstance(state, Tensor) else state,
            accepted=f"uint8 [{len(generators)}, {cpu} or more], from the state_dict of an array of as many members",
            remedy=f"leave {STREAMS!r} out to keep the streams that the array has",
        )
    return state  # type: ignore[no-any-return]


def _size() -> int:
    """The number of bytes of the state of a CPU stream."""
    return torch.default_generator.get_state().numel()
