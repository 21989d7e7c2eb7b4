"""amem.enable(): the one way to switch amem on in a program. Any thread; a second call waits for the first."""
from __future__ import annotations

import dataclasses
import functools
import json
import logging
import os
import sys
import threading

from amem import _endpoint, _imports, _launcher, _shim
from amem._arguments import Scope, group_name, scope_name
from amem._rank import group as group_of_process
from amem._rank import set_group
from amem.errors import Error, FailedPreconditionError, InvalidArgumentError, NotFoundError, UnavailableError
from amem.frameworks import Framework
from amem.frameworks._known import known

SWITCH = "AMEM_ON"
"""The environment variable that calls amem.enable() when a framework loads amem. 1: enable(). require: enable(require=True)."""

_REQUIRE = "require"
_logger = logging.getLogger("amem")


@dataclasses.dataclass(frozen=True)
class Enabled:
    """The result of amem.enable().

    Attributes:
        on: amem is on in this process: it has the shim, a broker, and the group and the scope that the call asked for.
        group: The group of the processes that this process starts. If `on` is true, it is also the group of this process.
        scope: The memory of this process that is brokered: "nccl", "regions" or "heap". "off": none.
        frameworks: The names of the frameworks that are switched on, including frameworks that were imported later.
        text: The line that amem has logged or printed.
    """

    on: bool
    group: str
    scope: str
    frameworks: tuple[str, ...]
    text: str


class _State:
    """The state of this process after the first call of enable()."""

    def __init__(self, required: bool) -> None:
        self.required = required
        self.problem: Error | None = None  # amem is off because of it
        self.refused: dict[str, Error] = {}  # frameworks that are not switched on, by name
        self.on: list[Framework] = []
        self.group, self.scope, self.text = "", "off", ""
        self.is_set = False  # the environment of processes that this one starts


_lock = threading.RLock()
_state: _State | None = None
_imported: list[Framework] = []  # since enable(), and not switched on yet


def _forget_lock() -> None:
    """A thread that does not exist in a child of fork may have held the lock."""
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_forget_lock)


def enable(*, group: str | None = None, scope: Scope | None = None, require: bool = False) -> Enabled:
    """Switches amem on in this process, in the processes that it starts, and in the frameworks that it imports.

    The call sets the variables of environment() for processes that start later. It switches on each framework that amem knows,
    also a framework that the program imports later. amem then frees and restores the GPU memory of this framework. The call
    writes one line that says what it did: to logging.getLogger("amem"), or to standard error if no handler would show the line.
    For a framework that is imported later, amem writes another line.

    If something is missing, the line says what, and the job runs without amem. A process must have the shim from its start. So
    start this process with `amemctl run`, with launch(), or with the variables of environment().

    While amem is on, another call changes nothing and writes nothing. It returns the present state. If amem is off, for example
    because amemd starts later than the job, another call tries again, and writes a line only if the line is a new one.

    Args:
        group: The group of this process and of the processes that it starts. None: the present one.
        scope: The memory that is brokered in the processes that start later: "nccl", "regions" or "heap". The scope of this
            process cannot change after its start. None: the present one.
        require: Raise an error if something is missing. `AMEM_ON=require` in the environment does the same.

    Returns:
        The present state.

    Raises:
        InvalidArgumentError: The name of the group or the scope is not valid.
        FailedPreconditionError: With `require`: the shim is not loaded, the process has another scope or has joined another group,
            or a framework lacks a function that amem needs.
        UnavailableError: With `require`: there is no broker.
    """
    require = require or os.environ.get(SWITCH) == _REQUIRE
    return _enable(group, scope, require)


def enable_for(*names: str) -> None:
    """Calls enable() for a framework that names this function. Requires one of these frameworks, and no other. Raises as enable()."""
    _enable(None, None, os.environ.get(SWITCH) == _REQUIRE, names=names)


def _enable(group: str | None, scope: Scope | None, require: bool, names: tuple[str, ...] = (), loud: bool = True) -> Enabled:
    global _state
    if group is not None and "@" not in group:
        group_name(group)
    if scope is not None:
        scope_name(scope)
    with _lock:
        before = state = _state
        if state is None or state.problem is not None:
            state = _begin(group, scope, require, raises=require or bool(names))
            _state = state
            if state.problem is None:
                for framework in known().values():
                    if _imports.when_imported(framework.modules, functools.partial(_come, framework)):
                        _switch_on(state, framework)
            state.text = _line(state)
    _imports.look()
    _switch_on_imported()
    with _lock:
        error = _missing(state, require, names)
        if error is not None:
            raise error
        if before is not state and (before is None or before.text != state.text):
            say(logging.WARNING if state.problem is not None or state.refused else logging.INFO, state.text, loud)
        return Enabled(state.problem is None, state.group, state.scope, tuple(each.name for each in state.on), state.text)


def _missing(state: _State, require: bool, names: tuple[str, ...]) -> Error | None:
    """The first thing that is required and missing, as an error."""
    if state.problem is not None and (require or names):
        return state.problem
    for name, error in state.refused.items():
        if require or name in names:
            return error
    if names and not any(each.name in names for each in state.on):
        titles = " or ".join(known()[name].title for name in names)
        return FailedPreconditionError(f"this process has not imported {titles}, so amem cannot be switched on for it")
    return None


def called_by(name: str) -> None:
    """A framework's entry point calls this. It calls enable() if AMEM_ON asks for that.

    After an earlier enable(), it switches on the framework. With AMEM_ON=require it raises the errors of enable(). In a process that
    multiprocessing has started, the line goes only to the log, because the parent has already shown it.
    """
    framework = known()[name]
    with _lock:
        if _state is not None:
            if _state.problem is None:
                if _imports.are_imported(framework.modules):
                    _come(framework)
                return
    switch_on()


def switch_on() -> None:
    """Calls enable() if AMEM_ON asks for that. With AMEM_ON=require it raises the errors of enable()."""
    asked = os.environ.get(SWITCH, "")
    if asked in ("", "0"):
        return
    if asked not in ("1", _REQUIRE):
        raise InvalidArgumentError(f"{SWITCH}={asked} is not supported. Use 1 or {_REQUIRE}")
    _enable(None, None, asked == _REQUIRE, loud=not _is_child())


def _is_child() -> bool:
    """Whether multiprocessing has started this process."""
    process = sys.modules.get("multiprocessing.process")
    return process is not None and process.parent_process() is not None


# ---- this process, and those that it starts ----
def _begin(group: str | None, scope: Scope | None, require: bool, raises: bool) -> _State:
    """Raises errors if something is required, and keeps them otherwise."""
    state = _State(require)
    try:
        _prepare(state, group, scope)
    except Error as error:
        if raises:
            raise
        state.problem = error
    state.group = group if state.is_set and group is not None else group_of_process()
    return state


def _prepare(state: _State, group: str | None, scope: Scope | None) -> None:
    own = _own_scope()
    if own == "off":
        raise FailedPreconditionError("AMEM_DISABLE=1 or AMEM_ENABLE=0 turns amem off in this process. Start the process without these")
    _check_broker()
    state.scope = own or "off"
    named = os.environ.get("AMEM_GROUP", "") if group is None else group
    if "@" in named:
        raise InvalidArgumentError(f'"{named}" names a group of another owner, and a process can only join groups of its own user. Remove '
                                   'the owner ("@" and what follows) from the name')
    _set_environment(group, scope, state.required)
    state.is_set = True
    if own is None:
        raise FailedPreconditionError(_shim._NOT_LOADED)
    if scope is not None and scope != own:
        raise FailedPreconditionError(f"this process has the scope {own}, and a scope cannot change after the start. Start the process "
                                      f"with `amemctl run --scope {scope}`, or call amem.enable() without a scope")
    if group is not None and group != group_of_process():
        set_group(group)


def _own_scope() -> str | None:
    """None: this process has no shim."""
    return str(json.loads(_shim.stats_json())["scope"]) if _shim.is_loaded() else None


def _check_broker() -> None:
    directory = _endpoint.default_runtime_dir()
    if not _endpoint.has_broker(directory):
        raise UnavailableError(f"amemd does not run here: there is no socket {directory}/session.sock. Start it with `systemctl start "
                               f"amemd` or `amemd --runtime-dir {directory}`")
    control = os.path.join(directory, "control.sock")
    if os.path.exists(control):  # a container may have the other one alone
        problem = _endpoint.probe(control)
        if problem is not None:
            raise problem


def _set_environment(group: str | None, scope: Scope | None, required: bool) -> None:
    """Sets the environment of processes that start later. What makes this process a rank stays as it is."""
    has_shim = any(map(_launcher.is_shim, _launcher.preloads(os.environ.get("LD_PRELOAD", ""))))
    try:
        variables = _launcher.environment(group or group_of_process(), scope, required=required)
    except NotFoundError:
        if not has_shim:
            raise
        return
    if has_shim:
        del variables["LD_PRELOAD"]
    if group is None and not (os.environ.get("AMEM_GROUP") or os.environ.get("AMEM_GROUPID")):
        del variables["AMEM_GROUP"]  # each chooses its own, as this one has
    os.environ.update(variables)


# ---- frameworks ----
def _switch_on(state: _State, framework: Framework) -> None:
    """Keeps the errors of the framework."""
    try:
        framework.check_process()
        framework.on, framework.required = True, state.required
        framework.install()
        state.on.append(framework)
        return
    except Error as error:
        problem = error
    except Exception as error:  # noqa: BLE001: a version that is not known may raise anything
        problem = FailedPreconditionError(f"{type(error).__name__}: {error}. This is {framework.title} {framework.version()}")
    framework.on = False
    state.refused[framework.name] = problem


def _come(framework: Framework) -> None:
    """Handles an import after enable(). FailedPreconditionError, UnavailableError: something that enable() requires is missing."""
    _imported.append(framework)
    _switch_on_imported()


def _switch_on_imported() -> None:
    """Switches on frameworks that were imported later. Never waits.

    This thread may hold import locks that another thread needs to finish enable(). The other thread calls this function afterwards.
    """
    while _imported and _state is not None and _lock.acquire(blocking=False):
        try:
            while _imported:
                _switch_on_late(_state, _imported.pop(0))
        finally:
            _lock.release()


def _switch_on_late(state: _State, framework: Framework) -> None:
    if framework in state.on or framework.name in state.refused:
        return
    _switch_on(state, framework)
    problem = state.refused.get(framework.name)
    if problem is None:
        say(logging.INFO, f"on for {framework.title}, too", True)
    elif state.required:
        raise problem
    else:
        say(logging.WARNING, _not_switched_on(framework.title, problem), True)


# ---- the line ----
def _line(state: _State) -> str:
    if state.problem is not None:
        text = f"amem is off in this process (pid {os.getpid()}): {state.problem}. The process runs without amem"
        if state.scope != "off":
            text = (f"no framework is switched on: {state.problem}. Memory of the scope {state.scope} is still brokered, in the group "
                    f'"{group_of_process()}"')
        # The problem may be this process's alone.
        return f'{text}. Processes that it starts from now on are in the group "{state.group}"' if state.is_set else text
    names = ", ".join(framework.title for framework in state.on)
    text = f'on: group "{state.group}", scope {state.scope}, '
    if state.on:
        text += f"switched on: {names}"
    elif not state.refused:
        text += "no framework that amem knows is imported yet. Memory of this scope is still brokered"
    else:
        text += "no framework is switched on. Memory of this scope is still brokered"
    refused = ((known()[name].title, error) for name, error in state.refused.items())
    return ". ".join([text, *(_not_switched_on(title, error) for title, error in refused)])


def _not_switched_on(title: str, problem: Error) -> str:
    return f"{title} is not switched on and runs without amem: {problem}"


def say(level: int, text: str, loud: bool = True) -> None:
    """Writes one line: to the log if a handler shows it there, else to standard error."""
    if not loud or _is_shown(level):
        _logger.log(level, "amem: %s", text)
    else:
        print(f"amem: {text}", file=sys.stderr, flush=True)


def _is_shown(level: int) -> bool:
    if not _logger.isEnabledFor(level):
        return False
    logger: logging.Logger | None = _logger
    while logger is not None:
        if any(handler.level <= level and not isinstance(handler, logging.NullHandler) for handler in logger.handlers):
            return True
        logger = logger.parent if logger.propagate else None
    return False
