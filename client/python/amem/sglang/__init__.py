"""SGLang's --enable-memory-saver by amem.

amem's distribution torch_memory_saver pauses and resumes SGLang's tags. When everything else of the engine is paused, amem also
pauses NCCL's memory.

SGLang loads register() in each of its processes, by the entry point in its group sglang.srt.plugins. It changes nothing for an SGLang
that does not use amem. This module imports neither SGLang nor torch. docs/frameworks.md is the manual.
"""
from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable
from typing import Any

from amem import _saver, _shim, _together
from amem._enable import called_by
from amem.errors import Error, FailedPreconditionError
from amem.frameworks import Framework, check_broker, hook
from amem.frameworks._known import known
from amem.frameworks.phases import bring, idle, take

__all__ = ["Sglang", "register"]

_ADAPTER = "sglang.srt.utils.torch_memory_saver_adapter.TorchMemorySaverAdapter"
_MANAGER = "sglang.srt.managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager"
_ENGINE = frozenset(("kv_cache", "weights"))  # with these paused no collective runs
_paused = False  # NCCL's memory, of this process
_stage: tuple[tuple[str, int] | None, bool] | None = None  # _stage_of()


class Sglang(Framework):
    """SGLang. amem wraps functions of SGLang. The wrappers have an effect only if its memory saver is amem's."""

    name, title, distribution = "sglang", "SGLang", "sglang"
    modules = ("sglang.srt.plugins.hook_registry",)
    tried = (0, 5, 15), (0, 5, 23)
    purpose = "SGLang cannot release its memory by amem"
    how_to_start = "Start SGLang with `amemctl run --group NAME --scope regions -- python -m sglang.launch_server ...`"
    logger = logging.getLogger("sglang.srt.amem")  # below SGLang's, so that it is shown where SGLang's lines are
    _installed = False

    def version(self) -> str:
        """Returns the installed version.

        Returns:
            sglang.version's `__version__`.
        """
        import sglang.version

        return str(sglang.version.__version__)

    def hooks(self) -> list[Callable[..., Any]]:
        """Finds the functions of SGLang that amem needs. It changes nothing.

        Returns:
            The results of hook().

        Raises:
            FailedPreconditionError: A function is missing, or has other parameters.
        """
        from sglang.srt.managers.scheduler_components import weight_updater

        manager = weight_updater.SchedulerWeightUpdaterManager
        return [hook(manager, name, "self", "recv_req") for name in ("release_memory_occupation", "resume_memory_occupation")]

    def check_process(self) -> None:
        """Checks that amem supports this process. The process need not have the shim, because its child processes get one.

        Raises:
            FailedPreconditionError: The process has the shim, but the memory is not in its scope.
            UnavailableError: There is no broker.
        """
        if _shim.is_loaded():
            super().check_process()
        else:
            check_broker(self.purpose)

    def install(self) -> None:
        """Wraps SGLang's functions. A second call changes nothing.

        The checks run when SGLang asks for its memory saver.
        """
        from sglang.srt.plugins.hook_registry import HookRegistry, HookType

        if self._installed:
            return
        self._installed = True
        HookRegistry.register(f"{_ADAPTER}.create", _create, HookType.AROUND)
        HookRegistry.register(f"{_MANAGER}.release_memory_occupation", _release, HookType.AROUND)
        HookRegistry.register(f"{_MANAGER}.resume_memory_occupation", _resume, HookType.AROUND)


def register() -> None:
    """The entry point for SGLang.

    Raises:
        Error: With AMEM_ON=require: the errors of amem.enable().
    """
    known()["sglang"].install()
    called_by("sglang")


def _create(original: Callable[..., Any], enable: bool) -> Any:
    """Wraps the function by which SGLang asks for its memory saver, in the first process and in each process that it starts."""
    if enable and _chosen():
        known()["sglang"].check()
    return original(enable)


def _chosen() -> bool:
    """Whether SGLang's memory saver is amem's. FailedPreconditionError: it is another one, and amem is required."""
    module = sys.modules.get("torch_memory_saver")
    if module is None:
        return False
    if isinstance(module.torch_memory_saver, _saver.TorchMemorySaver):
        return True
    if _shim.is_loaded():
        _refuse_original()
    return False


@functools.lru_cache(maxsize=None)
def _refuse_original() -> None:
    text = ("SGLang's torch_memory_saver is the original, and amem leaves it as it is. To release memory by amem, install the distribution "
            "torch_memory_saver that comes with amem. `amemctl pause` and `swap` work")
    if known()["sglang"].required:
        raise FailedPreconditionError(text)
    Sglang.logger.warning("amem: %s", text)


def _stage_of(manager: Any) -> tuple[tuple[str, int] | None, bool]:
    """The ranks of this engine and pipeline stage, which SGLang calls as one, and whether the engine has other stages.

    A stage sends a request on when it has carried it out. So it must not wait for the next stage. The first call asks the other ranks.
    """
    global _stage
    if _stage is None:
        group, stages = getattr(manager, "tp_cpu_group", None), False
        ranks = None
        if group is not None:
            distributed = sys.modules["torch"].distributed
            stages = distributed.get_world_size() > distributed.get_world_size(group)
            ranks = _together.on_this_node("sglang", group)
        _stage = ranks, stages
        if stages:
            Sglang.logger.info("amem: NCCL's memory stays on the GPU, because this engine has several pipeline stages, which release their "
                               "memory one after the other")
    return _stage


def _release(original: Callable[..., Any], manager: Any, request: Any) -> Any:
    """Pauses NCCL's memory with the rest. Every rank of a pipeline stage gets the same request at the same time."""
    global _paused
    if not _chosen():
        return original(manager, request)
    ranks, stages = _stage_of(manager)
    with _saver.together(ranks):
        answer = original(manager, request)
    if not _paused and not stages and _ENGINE <= manager.offload_tags:
        try:
            idle()
            take(["nccl"])  # nothing, where NCCL's memory is the driver's own
            _paused = True
        except Error as error:  # the rest is paused, as SGLang was told
            Sglang.logger.warning("amem: NCCL's memory stays on the GPU: %s", error)
    return answer


def _resume(original: Callable[..., Any], manager: Any, request: Any) -> Any:
    """Resumes NCCL's memory first, because new weights may arrive by NCCL. Raises as amem.resume(), and then the engine sleeps on."""
    global _paused
    if not _chosen():
        return original(manager, request)
    if _paused:
        bring(["nccl"])
        _paused = False
    with _saver.together(_stage_of(manager)[0]):
        return original(manager, request)
