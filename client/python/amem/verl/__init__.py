"""verl: amem frees and restores the GPU memory that verl's trainers would copy to the CPU and back.

verl's param_offload and optimizer_offload still choose this memory. With
`actor_rollout_ref.model.external_lib=amem.verl.external_lib`, verl calls amem.enable().

docs/rl-frameworks.md is the manual. This module imports neither verl nor torch.
"""
from __future__ import annotations

import importlib
import weakref
from collections.abc import Callable
from typing import Any

from amem import _regions
from amem import megatron as _megatron
from amem.errors import FailedPreconditionError
from amem.frameworks import Framework, hook, replace
from amem.frameworks.phases import State, Tags, bring, idle, take
from amem.frameworks.tensors import parts

__all__ = ["Verl"]

_ENGINES = "verl.workers.engine.{}.transformer_impl"
_HOOKS: dict[str, dict[str, tuple[str, ...]]] = {
    "fsdp": {"offload_fsdp_model_to_cpu": ("model",), "load_fsdp_model_to_gpu": ("model",),
             "offload_fsdp_optimizer": ("optimizer",), "load_fsdp_optimizer": ("optimizer",)},
    "megatron": {"offload_megatron_model_to_cpu": ("models",), "load_megatron_model_to_gpu": ("models", "load_grad"),
                 "offload_megatron_optimizer": ("optimizers",), "load_megatron_optimizer": ("optimizers",)},
}
_TOUCHING = ("step", "state_dict", "load_state_dict")
_tag = Tags("verl")
_nccl_paused = False
_read: weakref.WeakSet[Any] = weakref.WeakSet()  # models whose parameters verl is about to read
_leaving = False  # whether the __exit__() of verl's engine context runs now
_staying: weakref.WeakSet[Any] = weakref.WeakSet()  # models that verl has offloaded, and whose parameters are still on the GPU


def _must_be_missing(engine: str, error: ImportError) -> None:
    """Raises FailedPreconditionError unless an engine's libraries are not installed, such as Megatron: a trainer cannot have this engine."""
    if not isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] == "verl":
        raise FailedPreconditionError(f"{_ENGINES.format(engine)} cannot be imported: {error}") from error


def _model(engine: Any) -> Any:
    """Returns the object that numbers the tag of the engine's parameters: its module, or Megatron's first chunk. None: it has no module."""
    module = getattr(engine, "module", None)
    return module[0] if isinstance(module, list) else module


# ---- in the place of verl's ----
def _offload_model(chunks: list[Any]) -> None:
    if chunks[0] in _read:
        return
    params, grads = _tag("params", chunks[0]), _tag("grads", chunks[0])
    _regions.move(parts(each.data for chunk in chunks for each in chunk.parameters()), params)
    if all(hasattr(chunk, "expert_parallel_buffers") for chunk in chunks):  # of Megatron's DistributedDataParallel
        _regions.move(_megatron.gradients(chunks), grads, keep=False)
    idle()
    if _leaving:
        _staying.add(chunks[0])
        take([grads])
    else:
        _staying.discard(chunks[0])
        take([params, grads])


def _pause_staying(except_model: Any) -> None:
    """Pauses the parameters in _staying, except those of one model. No GPU work that uses them is left: _offload_model() called idle()."""
    models = [each for each in _staying if each is not except_model]
    _staying.difference_update(models)
    take(sorted(_tag("params", each) for each in models))  # in the same order in each rank


def _load_model(chunks: list[Any], grads: bool = True) -> None:
    _pause_staying(except_model=chunks[0])
    _staying.discard(chunks[0])
    _bring_nccl()
    bring([_tag("params", chunks[0])] + ([_tag("grads", chunks[0])] if grads else []))


def _read_parameters(original: Callable[..., Any], engine: Any, *arguments: Any, **options: Any) -> Any:
    """get_per_tensor_param() and get_per_tensor_param_shard() of FSDP: the caller reads the parameters one by one when they have returned.

    verl copies each from where it is, or keeps the GPU's copy alive. A pause would take the memory away. So the parameters return before,
    and leave with the engine's next to("cpu").
    """
    if not engine.is_param_offload_enabled:
        return original(engine, *arguments, **options)
    _load_model([engine.module])
    _read.add(engine.module)
    try:
        return original(engine, *arguments, **options)
    finally:
        _read.discard(engine.module)


def _state_of(optimizer: Any, touching: tuple[str, ...]) -> State:
    if not hasattr(optimizer, "_amem_state"):
        optimizer._amem_state = State([_tag("optimizer", optimizer)], optimizer, touching)
    state: State = optimizer._amem_state
    return state


def _offload_optimizer(optimizer: Any, tensors: list[Any], touching: tuple[str, ...]) -> None:
    state = _state_of(optimizer, touching)
    state.here()
    _regions.move(parts(tensors), _tag("optimizer", optimizer))
    idle()
    state.leave()


def _fsdp_state(optimizer: Any) -> list[Any]:
    return [each for state in optimizer.state.values() for each in state.values()]


def _functions(engine: str) -> list[Callable[..., Any]]:
    """In the order of _HOOKS."""
    if engine == "fsdp":
        return [lambda model, empty_cache=True: _offload_model([model]), lambda model: _load_model([model]),
                lambda optimizer: _offload_optimizer(optimizer, _fsdp_state(optimizer), _TOUCHING),
                lambda optimizer, device_id: _state_of(optimizer, _TOUCHING).come()]
    return [_offload_model, lambda models, load_grad=True, load_frozen_params=True: _load_model(models, load_grad),
            lambda optimizers: _offload_optimizer(optimizers, _megatron.optimizer_state(optimizers), _megatron.TOUCHING),
            lambda optimizers: _state_of(optimizers, _megatron.TOUCHING).come()]


# ---- NCCL's memory: paused from the end of an update of the rollout's weights to the next computation ----
def _bring_nccl() -> None:
    global _nccl_paused
    if _nccl_paused:
        bring(["nccl"])
        _nccl_paused = False


async def _update_weights(original: Callable[..., Any], worker: Any, *arguments: Any, **options: Any) -> Any:
    global _nccl_paused
    _pause_staying(except_model=_model(worker.actor.engine) if worker.actor is not None else None)
    _bring_nccl()
    answer = await original(worker, *arguments, **options)
    _pause_staying(except_model=None)
    if all(each.engine.is_param_offload_enabled for each in (worker.actor, worker.ref) if each is not None):
        idle()
        take(["nccl"])
        _nccl_paused = True
    return answer


def _enter(original: Callable[..., Any], context: Any) -> Any:
    _pause_staying(except_model=_model(context.engine))
    _bring_nccl()
    return original(context)


def _exit(original: Callable[..., Any], context: Any, *error: Any) -> Any:
    """Keeps the parameters on the GPU after a computation, until the rollout engine has them or another model computes.

    verl offloads the parameters when it leaves this context. It needs them again soon: it computes probabilities, runs the
    training step, and calls update_weights(). Between these only the models of this worker use the GPU.
    """
    global _leaving
    _leaving = not any(error)
    try:
        return original(context, *error)
    finally:
        _leaving = False


class Verl(Framework):
    """verl's trainers, with FSDP or Megatron."""

    name, title, distribution = "verl", "verl", "verl"
    modules = ("verl.workers.engine_workers", "verl.workers.engine.base")
    tried = (0, 9), (0, 9)
    purpose = "verl's trainer cannot free its GPU memory by amem"
    how_to_start = "Start the job with `python3 -m amem.ray run`, as docs/rl-frameworks.md says"

    def hooks(self) -> list[Callable[..., Any]]:
        """Finds the functions that amem needs of verl and of its engines that can be imported. It changes nothing.

        Returns:
            The results of hook().

        Raises:
            FailedPreconditionError: A function is missing, or has other parameters.
        """
        from verl.workers import engine_workers
        from verl.workers.engine import base

        found = [hook(engine_workers.ActorRolloutRefWorker, "update_weights", "self", "global_steps"),
                 hook(base.BaseEngineCtx, "__enter__", "self"), hook(base.BaseEngineCtx, "__exit__", "self")]
        others = len(found)
        for engine, hooks in _HOOKS.items():
            try:
                module = importlib.import_module(_ENGINES.format(engine))
            except ImportError as error:
                _must_be_missing(engine, error)
                continue
            found += [hook(module, name, *parameters) for name, parameters in hooks.items()]
            if engine == "fsdp":
                found.append(hook(module.FSDPEngine, "get_per_tensor_param", "self"))
        if len(found) == others:
            raise FailedPreconditionError("verl has no engine here that amem knows, with FSDP or Megatron")
        return found

    def install(self) -> None:
        """Replaces verl's functions that copy parameters, gradients and optimizers by amem's. A second call changes nothing.

        Raises:
            FailedPreconditionError: amem does not support this version, or this process lacks something.
            UnavailableError: There is no broker.
        """
        self.check()  # nothing is changed before all of it has been found
        from verl.workers import engine_workers
        from verl.workers.engine import base

        for engine, hooks in _HOOKS.items():
            try:
                module = importlib.import_module(_ENGINES.format(engine))
            except ImportError:  # hooks() has found the reason
                continue
            for name, function in zip(hooks, _functions(engine)):
                setattr(module, name, function)
            if engine != "fsdp":
                continue
            replace(module.FSDPEngine, "get_per_tensor_param", _read_parameters)
            if hasattr(module.FSDPEngine, "get_per_tensor_param_shard"):  # not every version has it
                replace(module.FSDPEngine, "get_per_tensor_param_shard", _read_parameters)
        replace(engine_workers.ActorRolloutRefWorker, "update_weights", _update_weights)
        replace(base.BaseEngineCtx, "__enter__", _enter)
        replace(base.BaseEngineCtx, "__exit__", _exit)
