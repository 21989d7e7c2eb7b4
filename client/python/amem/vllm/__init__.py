"""vLLM's sleep mode by amem: amem.enable(), or vLLM's own option `--sleep-mode-backend amem`.

vLLM loads register() in each of its processes, by the entry point in its group vllm.general_plugins. It changes only the
help text for a vLLM that does not use amem. This module imports neither vLLM nor torch. docs/frameworks.md is the manual.
"""
from __future__ import annotations

import argparse
import contextlib
import functools
import inspect
import logging
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

from amem import _imports, _shim
from amem._enable import called_by
from amem.errors import Error, FailedPreconditionError, InvalidArgumentError
from amem.frameworks import Framework, hook
from amem.frameworks._known import known

__all__ = ["BACKEND", "DEFERRABLE", "OPTIONAL_WORKER", "OptionalWorker", "Vllm", "WORKER", "Worker", "check_allocator", "check_sleep_mode",
           "only_tags", "register", "sleeps_deep"]

BACKEND = "amem"
WORKER = "amem.vllm.Worker"
"""The name of amem's worker class in vLLM."""
OPTIONAL_WORKER = "amem.vllm.OptionalWorker"
"""The name of the class whose workers sleep without amem where amem cannot serve them."""
DEFERRABLE = ("weights", "kv_cache")
"""The tags that a wake of vLLM can choose. A wake always resumes all other tags."""
_LEVELS = (0, 1, 2)
_METHOD = "VLLM_WORKER_MULTIPROC_METHOD"
_SLEEP, _WAYS = "AMEM_VLLM_SLEEP", ("all", "deep", "tags")  # what leaves; the last leaves the rest of the process alone
_ALLOCATOR = "vllm.device_allocator.cumem"
_BACKENDS = "vllm.device_allocator.sleep_mode_backend"
_OF_VLLM = ("vllm", "contextlib", "torch", "amem")  # packages whose functions vLLM's own allocator may consist of
_TO_RAY = "VLLM_RAY_EXTRA_ENV_VAR_PREFIXES_TO_COPY"
_TRAINERS = ("trl",)  # libraries that run an engine in their own process, which has to run on while the engine sleeps
_extended: set[Any] = set()  # vLLM's classes that have what is added below


def __getattr__(name: str) -> Any:
    if name in ("OptionalWorker", "Worker"):  # vLLM and torch come with them, so only a worker imports them
        from amem.vllm import _worker

        return getattr(_worker, name)
    raise AttributeError(f"module 'amem.vllm' has no attribute {name!r}")


class Vllm(Framework):
    """vLLM. Engines whose sleep mode is on sleep by amem. amem does not change other engines."""

    name, title, distribution = "vllm", "vLLM", "vllm"
    modules = ("vllm.engine.arg_utils",)
    tried = (0, 20), (0, 33)
    purpose = "vLLM cannot sleep by amem"
    how_to_start = "Start vLLM with `amemctl run --group NAME --scope heap -- vllm serve ...`"
    logger = logging.getLogger("vllm.amem")  # below vLLM's, so that it is shown where vLLM's lines are

    def hooks(self) -> list[Callable[..., Any]]:
        """Finds the functions of vLLM's engine that amem needs. Workers have their own. It changes nothing.

        Returns:
            The results of hook().

        Raises:
            FailedPreconditionError: A function is missing, or has other parameters.
        """
        from vllm.engine.arg_utils import EngineArgs

        return [hook(EngineArgs, "create_engine_config", "self"), *_engine_hooks()]

    def install(self) -> None:
        """Adds amem's worker to vLLM's options and engine. A second call changes nothing.

        The checks run when vLLM makes an engine that sleeps by amem, before it loads a model.

        Raises:
            FailedPreconditionError: The engine of this vLLM lacks a function that amem needs.
        """
        arguments = sys.modules.get("vllm.engine.arg_utils")
        if arguments is not None:  # where options are read
            _extend_arguments(arguments.EngineArgs)
        if "vllm.v1.engine.core" in sys.modules:  # in an engine's own process, too
            _engine_hooks()
            _extend_engine()


def _engine_hooks() -> list[Callable[..., Any]]:
    from vllm.v1.engine.core import EngineCore
    from vllm.v1.executor.abstract import Executor

    return [hook(EngineCore, "sleep", "self", "level", "mode"), hook(EngineCore, "is_sleeping", "self"),
            hook(EngineCore, "resume_scheduler", "self"), hook(Executor, "sleep", "self", "level"),
            hook(Executor, "wake_up", "self", "tags"), hook(Executor, "collective_rpc", "self", "method", "timeout", "args", "kwargs")]


def register() -> None:
    """The entry point for vLLM. It must not end a vLLM that does not use amem.

    Raises:
        Error: With AMEM_ON=require: the errors of amem.enable().
    """
    try:
        known()["vllm"].install()
        if _imports.when_imported((_BACKENDS,), _register_backend):
            _register_backend()
    except Exception as error:  # noqa: BLE001: whatever another vLLM has changed. Who asks for amem gets the error later
        Vllm.logger.debug("amem: this vLLM does not support sleep mode by amem: %s: %s", type(error).__name__, error)
    called_by("vllm")


def _register_backend() -> None:
    """Registers the backend `amem` of vLLM 0.25 and later. A second call changes nothing."""
    factory = sys.modules[_BACKENDS].SleepModeBackendFactory
    if BACKEND not in factory._registry:
        factory.register_backend(BACKEND, "amem.vllm._backend", "Backend")


def check_sleep_mode(enabled: bool) -> None:
    """Checks that the sleep mode of an engine is on.

    Args:
        enabled: Whether the engine's sleep mode is on.

    Raises:
        InvalidArgumentError: It is off.
    """
    if not enabled:
        raise InvalidArgumentError("vLLM cannot sleep by amem: its sleep mode is off. Add --enable-sleep-mode")


def check_allocator(allocator: Any) -> None:
    """Checks that nobody else has replaced functions of vLLM's allocator, as Unsloth does.

    Args:
        allocator: vLLM's CuMemAllocator.

    Raises:
        FailedPreconditionError: A function is not vLLM's.
    """
    for name in ("get_instance", "use_memory_pool", "sleep", "wake_up"):
        function = inspect.getattr_static(allocator, name, None)
        while function is not None:
            function = getattr(function, "__func__", function)  # of a static method
            home = getattr(function, "__globals__", {}).get("__name__", "vllm")
            if home.partition(".")[0] not in _OF_VLLM:
                raise FailedPreconditionError(f"vLLM cannot sleep by amem: {home} has replaced CuMemAllocator.{name}() of vLLM, and "
                                              "amem leaves that as it is. `amemctl pause` and `swap` work")
            function = getattr(function, "__wrapped__", None)


def only_tags() -> bool:
    """Tells whether a sleep pauses only the engine's tags. Then the rest of the process, such as a trainer, runs on.

    Returns:
        Whether AMEM_VLLM_SLEEP is "tags".

    Raises:
        InvalidArgumentError: AMEM_VLLM_SLEEP is neither "all" nor "deep" nor "tags".
    """
    return _way() == "tags"


def sleeps_deep() -> bool:
    """Tells whether a sleep leaves nothing of the processes on the GPUs.

    Returns:
        Whether AMEM_VLLM_SLEEP is "deep".

    Raises:
        InvalidArgumentError: AMEM_VLLM_SLEEP is neither "all" nor "deep" nor "tags".
    """
    return _way() == "deep"


def _way() -> str:
    way = os.environ.get(_SLEEP, "")
    if way and way not in _WAYS:
        raise InvalidArgumentError(f"{_SLEEP}={way} is not supported. Use {', '.join(_WAYS[:-1])} or {_WAYS[-1]}")
    return way


# ---- options ----
def _prepare(arguments: Any, worker: str) -> None:
    """Checks and sets the options of an engine that sleeps by amem. It raises errors before any change."""
    framework = known()["vllm"]
    framework.check_version()
    check_sleep_mode(arguments.enable_sleep_mode)
    only_tags()
    other = getattr(arguments, "sleep_mode_backend", None)
    if other not in (None, "cumem", BACKEND):  # cumem is what vLLM has where nothing is said
        raise InvalidArgumentError(
            f"two sleep-mode backends are chosen: --sleep-mode-backend {other}, and amem (amem.enable() or --worker-cls {WORKER}). Choose "
            "one")
    if arguments.worker_cls not in ("auto", WORKER, OPTIONAL_WORKER):
        raise InvalidArgumentError(
            f"vLLM cannot sleep by amem with the worker class {arguments.worker_cls}, which amem leaves as it is. If --worker-cls sets it, "
            "you can remove this option. `amemctl pause` and `swap` work with any worker class")
    if _ALLOCATOR in sys.modules:
        check_allocator(sys.modules[_ALLOCATOR].CuMemAllocator)
    if arguments.distributed_executor_backend != "ray":  # Ray's workers have an environment of their own
        framework.check_process()
    else:
        os.environ[_TO_RAY] = ",".join(dict.fromkeys([*filter(None, os.environ.get(_TO_RAY, "").split(",")), "AMEM_VLLM_"]))
    _extend_engine()
    arguments.worker_cls = worker
    if os.environ.get(_METHOD) != "spawn":
        # A child of fork has no session with the broker.
        Vllm.logger.info("amem: vLLM spawns its workers from now on: amem sets %s, which was %s, to spawn", _METHOD,
                         os.environ.get(_METHOD, "unset"))
        os.environ[_METHOD] = "spawn"


def _choose(arguments: Any) -> None:
    """Makes an engine sleep by amem, if its options or amem.enable() ask for that."""
    framework = known()["vllm"]
    chosen = getattr(arguments, "sleep_mode_backend", None) == BACKEND or arguments.worker_cls == WORKER
    if chosen or framework.on:
        _check_snapshot()
    if chosen:
        _prepare(arguments, WORKER)
        return
    if not framework.on or not arguments.enable_sleep_mode:
        return
    try:
        _prepare(arguments, WORKER if framework.required else OPTIONAL_WORKER)
    except Error as error:
        if framework.required:
            raise
        Vllm.logger.warning("amem: this engine sleeps without amem: %s", error)
        return
    if any(each in sys.modules for each in _TRAINERS):
        os.environ.setdefault(_SLEEP, "tags")  # workers are to know it, too


def _check_snapshot() -> None:
    """FailedPreconditionError: `vllm snapshot` has started this process, and it has the shim."""
    started = getattr(getattr(sys.modules.get("__main__"), "__spec__", None), "name", "")
    if started.startswith("vllm.snapshot.") and _shim.is_loaded():
        raise FailedPreconditionError("`vllm snapshot` cannot save a process that has a session with amemd. Start it without `amemctl run`, "
                                      "or with AMEM_DISABLE=1")


def _extend_arguments(engine_args: Any) -> None:
    """Adds --sleep-mode-backend to a vLLM without this option, and its effect."""
    if engine_args in _extended:
        return
    _extended.add(engine_args)
    add, read = engine_args.add_cli_args, engine_args.from_cli_args.__func__
    create = engine_args.create_engine_config

    @functools.wraps(add)
    def add_cli_args(parser: Any) -> Any:
        parser = add(parser)
        with contextlib.suppress(argparse.ArgumentError):  # vLLM has it by now
            parser.add_argument("--sleep-mode-backend", choices=["cumem", BACKEND], default=None,
                                help="What frees and restores GPU memory in sleep mode: vLLM's allocator, or amem's broker.")
        return parser

    @functools.wraps(read)
    def from_cli_args(cls: Any, args: argparse.Namespace) -> Any:
        made = read(cls, args)
        if getattr(args, "sleep_mode_backend", None) is not None:
            made.sleep_mode_backend = args.sleep_mode_backend
        return made

    @functools.wraps(create)
    def create_engine_config(self: Any, *args: Any, **options: Any) -> Any:
        _choose(self)
        return create(self, *args, **options)

    engine_args.add_cli_args = staticmethod(add_cli_args)
    engine_args.from_cli_args = classmethod(from_cli_args)
    engine_args.create_engine_config = create_engine_config


# ---- the engine: what a failed sleep or wake leaves behind ----
def _extend_engine() -> None:
    """Lets an engine with amem's workers continue after a failed sleep. The caller gets the error.

    vLLM's own executor stops reading its workers' answers at the first failure, and takes the rest for answers of the next call. Its
    engine stops scheduling if a sleep fails.
    """
    from vllm.v1.engine.core import EngineCore
    from vllm.v1.executor.abstract import Executor

    if Executor in _extended:
        return
    _extended.add(Executor)
    executor_sleep, executor_wake_up, engine_sleep = Executor.sleep, Executor.wake_up, EngineCore.sleep
    executor_discard: Any = getattr(Executor, "discard", None)  # since 0.31

    def come_back(self: Any) -> None:
        """Restores whatever has left: the engine is awake, for itself and for its callers."""
        try:
            self.collective_rpc("amem_come_back", kwargs={})
        except Exception as error:  # noqa: BLE001: the sleep's own error says more
            Vllm.logger.warning("amem: not all workers are awake after a sleep that failed: %s", error)

    @functools.wraps(executor_sleep)
    def sleep(self: Any, level: int = 1) -> Any:
        if not _is_ours(self.vllm_config):
            return executor_sleep(self, level)
        with _all_answers(self):
            try:
                return executor_sleep(self, level)
            except Exception:
                come_back(self)
                raise

    @functools.wraps(executor_wake_up)
    def wake_up(self: Any, tags: list[str] | None = None) -> Any:
        if not _is_ours(self.vllm_config):
            return executor_wake_up(self, tags)
        unknown = sorted(set(tags or ()) - set(DEFERRABLE))
        if unknown:
            raise InvalidArgumentError(f"vLLM cannot wake the tag {', '.join(unknown)}. The tags are {', '.join(DEFERRABLE)}")
        with _all_answers(self):
            return executor_wake_up(self, tags)

    def discard(self: Any, tags: tuple[str, ...]) -> None:
        if not _is_ours(self.vllm_config):
            executor_discard(self, tags)
            return
        asleep = set(self.sleeping_tags)
        with _all_answers(self):
            try:
                executor_discard(self, tags)
            except Exception:
                come_back(self)
                self.sleeping_tags = asleep  # vLLM takes them for asleep, whatever has happened
                raise

    @functools.wraps(engine_sleep)
    def sleep_engine(self: Any, level: int = 1, mode: str = "abort") -> Any:
        if not _is_ours(self.vllm_config):
            return engine_sleep(self, level, mode)
        if level not in _LEVELS:
            raise InvalidArgumentError(f"{level} is not a valid sleep level. The levels are 0, 1 and 2")
        awake = not self.is_sleeping()

        def go_on() -> None:
            if awake:
                try:
                    self.resume_scheduler()
                except Exception as error:  # noqa: BLE001: the sleep's own error says more
                    Vllm.logger.warning("amem: the scheduler does not go on after a sleep that failed: %s", error)

        try:
            answer = engine_sleep(self, level, mode)
        except Exception:
            go_on()
            raise
        if hasattr(answer, "add_done_callback"):  # it sleeps when its requests have ended
            answer.add_done_callback(lambda done: go_on() if done.exception() else None)
        return answer

    Executor.sleep, Executor.wake_up, EngineCore.sleep = sleep, wake_up, sleep_engine
    if executor_discard is not None:
        Executor.discard = functools.wraps(executor_discard)(discard)


def _is_ours(config: Any) -> bool:
    return config.parallel_config.worker_cls in (WORKER, OPTIONAL_WORKER)


@contextlib.contextmanager
def _all_answers(executor: Any) -> Iterator[None]:
    """Within the context, calls of workers go to Worker.amem_call, which returns a text where vLLM's call would raise."""
    call = executor.collective_rpc

    def collective_rpc(method: str, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> list[Any]:
        answers: list[Any] = call("amem_call", args=(method, args, kwargs or {}))
        failed = sorted({each for each in answers if each})
        if failed:
            raise RuntimeError("; ".join(failed))
        return answers

    executor.collective_rpc = collective_rpc
    try:
        yield
    finally:
        del executor.collective_rpc
