"""verl: what its trainers copy to the CPU and back leaves and comes back by amem. `actor_rollout_ref.model.external_lib=amem.verl`
is the switch: importing this module is what that does. verl's param_offload and optimizer_offload say what leaves, as always.

docs/rl-frameworks.md is the manual. Without verl it is an ordinary module, which changes nothing.
"""
from __future__ import annotations

import functools
import importlib
import itertools
import logging
import sys
import weakref
from collections.abc import Callable
from typing import Any

from amem import frameworks as _frameworks
from amem import _regions
from amem import megatron as _megatron
from amem.frameworks.phases import State, bring, idle, take

OLDEST, NEWEST = (0, 9), (0, 9)  # verl's versions that it was tried with, or read for
_ENGINES = "verl.workers.engine.{}.transformer_impl"
_HOOKS: dict[str, dict[str, tuple[str, ...]]] = {
    "fsdp": {"offload_fsdp_model_to_cpu": ("model",), "load_fsdp_model_to_gpu": ("model",),
             "offload_fsdp_optimizer": ("optimizer",), "load_fsdp_optimizer": ("optimizer",)},
    "megatron": {"offload_megatron_model_to_cpu": ("models",), "load_megatron_model_to_gpu": ("models", "load_grad"),
                 "offload_megatron_optimizer": ("optimizers",), "load_megatron_optimizer": ("optimizers",)},
}
_logger = logging.getLogger("amem")
_TOUCHING = ("step", "state_dict", "load_state_dict")
_numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
_next = itertools.count()
_checked = False
_nccl_paused = False


def _tag(what: str, owner: Any) -> str:
    """Of one model: a process may have several, such as the actor and the reference. All ranks make them in one order."""
    if owner not in _numbers:
        _numbers[owner] = next(_next)
    return f"verl.{what}.{_numbers[owner]}"


def _check() -> None:
    """With the first that is to leave, which is before the first step."""
    global _checked
    if not _checked:
        _frameworks.check_process("verl's trainer is to leave the GPU by amem", "set LD_PRELOAD and AMEM_GROUP of its workers by "
                                  "amem.environment(), as docs/rl-frameworks.md says")
        _checked = True


def _locals(tensors: Any) -> list[Any]:
    """Of sharded tensors, this rank's parts."""
    return _megatron._plain(getattr(each, "_local_tensor", each) for each in tensors)


# ---- in the place of verl's ----
def _offload_model(chunks: list[Any]) -> None:
    _check()
    params, grads = _tag("params", chunks[0]), _tag("grads", chunks[0])
    _regions.move(_locals(each.data for chunk in chunks for each in chunk.parameters()), params)
    if all(hasattr(chunk, "expert_parallel_buffers") for chunk in chunks):  # of Megatron's DistributedDataParallel
        _regions.move(_megatron._grads(chunks), grads, keep=False)
    idle()
    take([params, grads])


def _load_model(chunks: list[Any], grads: bool = True) -> None:
    _bring_nccl()
    bring([_tag("params", chunks[0])] + ([_tag("grads", chunks[0])] if grads else []))


def _state_of(optimizer: Any, touching: tuple[str, ...]) -> State:
    if not hasattr(optimizer, "_amem_state"):
        optimizer._amem_state = State([_tag("optimizer", optimizer)], optimizer, touching)
    state: State = optimizer._amem_state
    return state


def _offload_optimizer(optimizer: Any, tensors: list[Any], touching: tuple[str, ...]) -> None:
    _check()
    state = _state_of(optimizer, touching)
    state.here()
    _regions.move(_locals(tensors), _tag("optimizer", optimizer))
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
            lambda optimizers: _offload_optimizer(optimizers, _megatron._state(optimizers), _megatron._TOUCHING),
            lambda optimizers: _state_of(optimizers, _megatron._TOUCHING).come()]


# ---- NCCL's memory: paused from the end of an update of the rollout's weights to the next computation ----
def _bring_nccl() -> None:
    global _nccl_paused
    if _nccl_paused:
        bring(["nccl"])
        _nccl_paused = False


async def _update_weights(original: Callable[..., Any], worker: Any, *arguments: Any, **options: Any) -> Any:
    global _nccl_paused
    _bring_nccl()
    answer = await original(worker, *arguments, **options)
    if all(each.engine.is_param_offload_enabled for each in (worker.actor, worker.ref) if each is not None):
        idle()
        take(["nccl"])
        _nccl_paused = True
    return answer


def _enter(original: Callable[..., Any], context: Any) -> Any:
    _bring_nccl()
    return original(context)


def install() -> None:
    """FailedPreconditionError: this verl has moved what amem replaces."""
    import verl
    from verl.workers import engine_workers
    from verl.workers.engine import base

    found = [_frameworks.hook(engine_workers.ActorRolloutRefWorker, "update_weights", "self", "global_steps"),
             _frameworks.hook(base.BaseEngineCtx, "__enter__", "self")]
    changes = []
    for engine, hooks in _HOOKS.items():
        try:
            module = importlib.import_module(_ENGINES.format(engine))
        except ImportError:  # no Megatron here, for example
            continue
        for (name, parameters), function in zip(hooks.items(), _functions(engine)):
            found.append(_frameworks.hook(module, name, *parameters))
            changes.append(functools.partial(setattr, module, name, function))
    _frameworks.warn_of_version(_logger, "verl", verl.__version__, OLDEST, NEWEST, found)
    for change in changes:  # nothing is changed before all of it has been found
        change()
    _frameworks.replace(engine_workers.ActorRolloutRefWorker, "update_weights", _update_weights)
    _frameworks.replace(base.BaseEngineCtx, "__enter__", _enter)


if "verl" in sys.modules:  # verl imports it as its external_lib
    install()
