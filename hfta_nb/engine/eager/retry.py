"""Runs an array's call; after an error, changes the settings and runs it again."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor, nn

from hfta_nb.engine.eager.call_inputs import Inputs, positional
from hfta_nb.engine.eager.caller_backward import Repeat
from hfta_nb.engine.eager.compare_outcomes import Mismatch
from hfta_nb.engine.eager.execution_settings import ExecutionSettings
from hfta_nb.engine.eager.fallback import member_error
from hfta_nb.engine.eager.functions_in_backward import follow
from hfta_nb.engine.eager.given_objects import GivenObjects
from hfta_nb.engine.eager.handlers import install
from hfta_nb.engine.eager.held_once_writes import leaves_alone, refuse_writes, separates
from hfta_nb.engine.eager.hidden_names import warn_of_hidden
from hfta_nb.engine.eager.last_resort import freezes, runs_alone
from hfta_nb.engine.eager.learning_buffers import keep_gradients
from hfta_nb.engine.eager.member_outcome import Computation
from hfta_nb.engine.eager.model_hooks import called_beside
from hfta_nb.engine.eager.new_parameters import names_known
from hfta_nb.engine.eager.shared_input_warning import warn_of_shared_input
from hfta_nb.engine.eager.shared_modules import refuse_views, warn_of_changes
from hfta_nb.engine.eager.state import ArrayState, Snapshot
from hfta_nb.engine.eager.user_warnings import warn
from hfta_nb.engine.eager.verified_kinds import (
    check,
    count,
    is_new,
    kinds_of,
    may_wait,
    verifiable,
    verification_of,
    wait,
)
from hfta_nb.engine.kernels.cuda_graphs import capturing
from hfta_nb.engine.rules import SharedWrite
from hfta_nb.errors import FusionError, HftaError, MemberError, TransformError, out_of_memory


class RetryHelpers(NamedTuple):
    """Functions of the array that `run_with_retry` calls.

    Attributes:
        materialise: gives members with lazy modules their shapes.
        member: returns a member as a plain module.
        resize_buffers: stores buffers whose shape has changed.
        separate: gives each member memory of its own for parameters that are held once.
    """

    materialise: Callable[[Inputs], None]
    member: Callable[[int], nn.Module]
    resize_buffers: Callable[[], None]
    separate: Callable[[Collection[str]], None]


def run_with_retry(
    state: ArrayState,
    helpers: RetryHelpers,
    what: str,
    inputs: Inputs,
    run: Callable[[Inputs], Any],
    computation: Computation,
    eager: Callable[[Inputs], Any] | None = None,
) -> Any:
    """Run a call. If `vmap` fails or a member differs from its plain module, change the settings and run again.

    Args:
        state: of the array.
        helpers: functions of the array.
        what: the kind of call.
        inputs: of the call.
        run: runs it.
        computation: what is computed.
        eager: runs it without recording; given if its backward is the caller's, in which gradients may be compared.

    Raises:
        MemberError: a member's own code fails, as it would alone. Buffers, random streams and settings are restored.
    """
    try:
        functions = *computation.functions, *called_beside(state.models)
        known = names_known(state.skeleton, state.slots.parameters)
        with state.own_attributes(), state.functions.used(functions, state.skeleton), known:
            state.engine.follow_root()
            _draw_beside(state, inputs)
            result = _retry_until_done(state, helpers, _Attempted(what, inputs, run, computation, eager))
            if not computation.backward:
                follow(state.functions, result)
            warn_of_hidden(state)
            return result
    finally:
        state.engine.process_streams.end()


class _Attempted(NamedTuple):
    """A call, as `run_with_retry` is given it."""

    what: str
    inputs: Inputs
    run: Callable[[Inputs], Any]
    computation: Computation
    eager: Callable[[Inputs], Any] | None


def _draw_beside(state: ArrayState, inputs: Inputs) -> None:
    """Let members without tensors draw on the device of their inputs, as their plain modules do."""
    if state.parameter_arenas or state.buffer_arenas or state.pending:
        return
    device = next((v.device for v in inputs.leaves if isinstance(v, Tensor)), state.generators.device)
    if device.type != state.generators.device.type:
        state.generators.to(device)


def _snapshot(state: ArrayState, key: Any, comparable: bool) -> Snapshot:
    new = key not in state.proven
    # Where gradients are sparse a step must not copy the tables, which known calls leave alone.
    every = new or (comparable and not state.engine.sparse)
    return state.snapshot(every=every, sums=not new and leaves_alone(state))


def _retry_until_done(state: ArrayState, helpers: RetryHelpers, call: _Attempted) -> Any:
    inputs, computation = call.inputs, call.computation
    if state.pending:
        helpers.materialise(inputs)
    warn_of_shared_input(state, inputs)
    before = state.settings.copy()
    key, kind = kinds_of(state, call.what, inputs)
    found: Mismatch | None = None
    new_path, comparable = False, verifiable(state)
    while True:
        restore = _snapshot(state, key, comparable)
        state.engine.process_streams.rewind()
        later = call.eager is not None and may_wait(state, kind, inputs)
        verification = verification_of(state, restore, key, kind, inputs, computation, new_path, later)
        _observe(state, new_path or key not in state.proven, verification is not None, comparable)
        result, given = None, _given_to_members(state, inputs)
        try:
            result = _run_guarding_inputs(state, given, call.run)
            refuse_views(state, restore)
            refuse_writes(state, restore)
            paths, state.engine.paths = state.engine.paths or set(), None
            if verification is None and not state.engine.recording and is_new(state, key, paths):
                new_path = True  # something that the code reads has changed
                _undo(computation, result, restore)
                continue
            stateful = verification is not None and check(verification, result)
        except BaseException as error:
            if verification is not None:
                verification.over()
            if capturing(state.generators.device):
                raise  # a second attempt would be captured after the failed one
            module = state.engine.member_module(state.engine.current)  # where the error may have been raised
            restore()
            if isinstance(error, Mismatch) and verification is not None:
                found = found if _is_preallocated(state) else error
                _undo_gradients(state, computation, result, before, error)
            if _follows(state, helpers, error, inputs, computation, result):
                continue
            if not isinstance(error, Exception) or _is_final(state, helpers, error, inputs, computation):
                _reset_settings(state, before)
                raise
            if not _change_settings(state, error, error is found):
                _run_as_plain(state, before, helpers, error, module, inputs, computation)
        else:
            _note_proven(state, key, paths, restore, comparable)
            _warn_and_resize(state, helpers, found)
            compared = partial(count, state, kind, 1 if stateful else 2)
            if verification is not None and verification.later:
                wait(state, kind)
                call = call._replace(inputs=inputs if given is inputs else inputs.apart())
                _give_back(state, given)
                return verification.in_callers_backward(result, _repeat(state, helpers, call, restore), compared)
            _give_back(state, given)
            if verification is not None:
                compared()
            return result
        finally:
            state.engine.recording = state.engine.watching = False
            state.engine.paths = None


def _repeat(state: ArrayState, helpers: RetryHelpers, call: _Attempted, restore: Callable[[], None]) -> Repeat:
    """Repeats a call in the caller's backward, with gradients compared at once."""
    assert call.eager is not None  # otherwise they are compared at once already
    again = call._replace(run=call.eager, eager=None)
    return Repeat(state, call.inputs, restore, partial(run_with_retry, state, helpers, *again))


def _follows(
    state: ArrayState,
    helpers: RetryHelpers,
    error: BaseException,
    inputs: Inputs,
    computation: Computation,
    result: Any,
) -> bool:
    """True if the call changes what is frozen, and the array now has its parameters so that it can."""
    separated = separates(state, helpers.separate, error, computation, result)
    return separated or freezes(state, helpers.member, error, inputs, computation, result)


def _is_final(
    state: ArrayState, helpers: RetryHelpers, error: Exception, inputs: Inputs, computation: Computation
) -> bool:
    """True if no other settings may help.

    A submodule whose caller gives it functions or objects, or sets its attributes, may fail member by member, though
    the plain module runs. Then what calls it runs member by member.
    """
    if isinstance(error, MemberError) and state.settings.block_size > 1 and error.path is not None:
        return not _runs_alone(state, helpers, error, inputs, computation)
    if isinstance(error, TransformError):
        return state.settings.block_size == 1
    return isinstance(error, HftaError) or out_of_memory(error)


def _runs_alone(
    state: ArrayState, helpers: RetryHelpers, error: MemberError, inputs: Inputs, computation: Computation
) -> bool:
    member = error.member or 0
    return runs_alone(state, helpers.member(member), member, inputs, computation)


def _run_as_plain(
    state: ArrayState,
    before: ExecutionSettings,
    helpers: RetryHelpers,
    error: Exception,
    module: nn.Module,
    inputs: Inputs,
    computation: Computation,
) -> None:
    """Let members run as their plain modules do, where they already run one by one.

    Raises:
        HftaError: that is no way out.
    """
    failed = member_error(error, state.engine.current, module)
    possible = not state.settings.as_plain
    if not possible or not (isinstance(error, Mismatch) or _runs_alone(state, helpers, failed, inputs, computation)):
        raise _refusal(state, before, helpers, failed, inputs, computation) from error
    state.settings.run_as_plain(error)
    if isinstance(error, Mismatch):
        state.settings.differences[""] = str(error)
    install(state)


def _refusal(
    state: ArrayState,
    before: ExecutionSettings,
    helpers: RetryHelpers,
    error: MemberError,
    inputs: Inputs,
    computation: Computation,
) -> HftaError:
    """Restore the settings. Returns the error of a member; another one if its plain module runs."""
    _reset_settings(state, before)
    if not _runs_alone(state, helpers, error, inputs, computation):
        return error
    return FusionError(
        f"{error.what}; the plain module runs",
        where=error.where,
        remedy="no array runs it; where array(x) does not, array.backward may: there, parameters are no views",
    )


def _note_proven(state: ArrayState, key: tuple[Any, ...], paths: set[int], restore: Snapshot, comparable: bool) -> None:
    """Note that such calls run with the current settings, and what this one has changed."""
    if comparable:
        state.note_writes(restore)
    warn_of_changes(state, restore)
    state.proven.add(key)
    state.paths.setdefault(key, set()).update(paths)


def _undo(computation: Computation, result: Any, restore: Callable[[], None]) -> None:
    """Undo a call that has succeeded."""
    if computation.backward:
        result[0].undo()
    restore()


def _observe(state: ArrayState, recording: bool, verifying: bool, verifiable: bool) -> None:
    """Let the engine find out what the next attempt does."""
    engine = state.engine
    engine.recording, engine.watching = recording, recording or verifying
    engine.paths = set() if verifiable else None
    engine.anew = set()
    engine.learning = {}
    engine.process_streams.begin(engine.watching)


def _is_preallocated(state: ArrayState) -> bool:
    return state.engine.architectures is not None and state.engine.architectures.preallocated


def _change_settings(state: ArrayState, error: Exception, differs: bool) -> bool:
    """Change the settings as this error requires; record where a member differs from its plain module.

    Returns:
        False if members already run one by one, and nothing is left to change.
    """
    if state.settings.block_size == 1 and (not isinstance(error, SharedWrite) or state.settings.private):
        return False
    architectures = state.engine.architectures
    if architectures is not None and _is_preallocated(state):  # which may be all that is wrong
        architectures.set_preallocated(None)
        return True
    before = set(state.settings.paths)
    state.settings.react(error, state.skeleton)
    if differs:  # the whole model where it is no submodule
        path = next((path for path in state.settings.paths if path not in before), "")
        state.settings.differences[path] = str(error)
    install(state)
    return True


def _warn_and_resize(state: ArrayState, helpers: RetryHelpers, found: Mismatch | None) -> None:
    """Warn about a difference, and store resized buffers."""
    if found is not None:
        warn(f"{found}; see explain()")
    if state.engine.resized_buffers:
        helpers.resize_buffers()
    keep_gradients(state)


def _undo_gradients(
    state: ArrayState, computation: Computation, result: Any, before: ExecutionSettings, error: Mismatch
) -> None:
    """Undo a call's additions to gradients, in which a member differs from its plain module.

    Raises:
        FusionError: members already run one by one, so there is no other way to run.
    """
    if computation.backward and result is not None:
        result[0].undo()
    if state.settings.as_plain or (state.settings.block_size == 1 and state.engine.architectures is not None):
        _reset_settings(state, before)
        remedy = "the plain module may give another result each time: let it depend on its inputs, its own state and "
        remedy += "the random streams of torch, Python and NumPy alone"
        raise FusionError(str(error), where=type(state.skeleton).__name__, remedy=remedy) from error


def _given_to_members(state: ArrayState, inputs: Inputs) -> Inputs:
    """The inputs of an attempt: members get copies of what they write into, as of objects that a call may change."""
    private = state.settings.private
    if not private and all(isinstance(v, Tensor) for v in inputs.leaves) and inputs.rebuild is positional:
        return inputs
    inputs.objects = GivenObjects(inputs.leaves, containers=state.engine.recording or private)
    return replace(inputs, copies=[]) if private else inputs


def _give_back(state: ArrayState, inputs: Inputs) -> None:
    """Let the caller's tensors and objects have what members have written into their copies."""
    if state.trying:
        return
    if not inputs.give_back():
        warn(
            "members write unlike values into an input or target that they share, or replace its memory; it is left "
            "as it was; to see what each writes, give each its own: hfta.per_member(tensor.repeat(M, ...))"
        )
    if inputs.objects is not None and not inputs.objects.give_back():
        warn(
            "members make unlike values of an object that they are given, or keep tensors in it; it is left as it was; "
            "keep it on the model, self.kept = ..., where each member has its own"
        )
    if inputs.objects is not None and inputs.objects.changed_containers():
        warn(
            "members add to a list or dict that they are given, or replace something in it; the caller's is left as it "
            "was; return it, or keep it on the model, self.kept = ..., where each member has its own"
        )


def _run_guarding_inputs(state: ArrayState, inputs: Inputs, run: Callable[[Inputs], Any]) -> Any:
    """Run; if the model turns out to write into its inputs, raise an error: it must run on copies of them."""
    if not state.engine.recording or state.settings.private:
        return run(inputs)
    # The first call gets copies, whose versions show whether the model writes into them.
    watched = inputs.apart()
    failure: Exception | None = None
    result = None
    try:
        result = run(watched)
    except Exception as error:
        failure = error
    if inputs.written(watched):
        raise SharedWrite("the model writes into its input, or lets it require a gradient") from failure
    if failure is not None:
        raise failure
    return result


def _reset_settings(state: ArrayState, settings: ExecutionSettings) -> None:
    state.settings = settings
    install(state)
