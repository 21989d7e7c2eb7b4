"""Megatron: gradients, optimizer state and parameters off the GPU while a rollout runs, without `.to("cpu")`.

    with amem.megatron.offloaded(model, optimizer):      # model: DistributedDataParallel, or the list of its chunks
        rollout()
    train_step()                                         # the optimizer's state may still be on its way; step() waits

or, for Megatron's own RL loop, `--rl-amem-offload-during-rollout` by `extra_args_provider=amem.megatron.add_arguments`. Each
of the three is a tag of the group, so a rollout in the same process goes on meanwhile. docs/rl-frameworks.md is the manual.
Imports neither Megatron nor torch by itself.
"""
from __future__ import annotations

import argparse
import contextlib
import functools
import logging
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import Any

from amem import _background
from amem.frameworks import check_process, hook, replace, warn_of_version
from amem.frameworks.phases import State, bring, idle, take
from amem._regions import move
from amem.errors import FailedPreconditionError

__all__ = ["GRADS", "OPTIMIZER", "PARAMS", "add_arguments", "check", "install", "offloaded", "prepare"]

PARAMS, GRADS, OPTIMIZER = "megatron.params", "megatron.grads", "megatron.optimizer"
_KEEP = {PARAMS: True, GRADS: False, OPTIMIZER: True}  # Megatron, too, brings gradients back as zeros
OLDEST, NEWEST = (0, 19), (0, 20)  # megatron-core's versions that it was tried with, or read for
_logger = logging.getLogger("amem")
_HOW_TO_START = "start the trainer with `amemctl run --group NAME --scope regions -- torchrun ...`"
# What of an optimizer touches its state.
_TOUCHING = ("step", "prepare_grads", "step_with_ready_grads", "state_dict", "load_state_dict", "sharded_state_dict",
             "reload_model_params", "save_parameter_state", "load_parameter_state")


@functools.lru_cache(maxsize=1)
def check() -> None:
    """FailedPreconditionError or UnavailableError: this Megatron, or this process, is not one that amem can serve."""
    import megatron.core
    from megatron.core.distributed import DistributedDataParallel
    from megatron.core.optimizer import ChainedOptimizer, MegatronOptimizer

    found = [hook(DistributedDataParallel, "offload_grad_buffers", "self", "synchronize", "empty_cache"),
             hook(DistributedDataParallel, "restore_grad_buffers", "self", "synchronize")]
    for optimizer in (MegatronOptimizer, ChainedOptimizer):
        found += [hook(optimizer, "offload_to_cpu", "self"), hook(optimizer, "restore_from_cpu", "self")]
    warn_of_version(_logger, "megatron-core", megatron.core.__version__, OLDEST, NEWEST, found)
    check_process("Megatron is to offload by amem", _HOW_TO_START)


# ---- which tensors ----
def _chunks(model: Any) -> list[Any]:
    from megatron.core.distributed import DistributedDataParallel

    chunks = list(model) if isinstance(model, (list, tuple)) else [model]
    for each in chunks:
        if not isinstance(each, DistributedDataParallel):
            raise FailedPreconditionError(
                f"amem knows the buffers of Megatron's DistributedDataParallel; the model is a {type(each).__name__}")
    return chunks


def _buffers(model: Any) -> list[Any]:
    buffers = [each for chunk in _chunks(model) for each in chunk.buffers + chunk.expert_parallel_buffers]
    if any(each.nccl_mem_pool is not None for each in buffers):
        raise FailedPreconditionError(
            "Megatron's buffers are registered with NCCL (--use-nccl-ub), so they are NCCL's memory, which the tag nccl takes "
            "off the GPU. Do without --use-nccl-ub, or without params and grads")
    return buffers


def _plain(tensors: Iterable[Any]) -> list[Any]:
    """Without tensors of classes of their own, such as quantized ones, whose memory is elsewhere."""
    torch = sys.modules["torch"]
    return [each for each in tensors if type(each) in (torch.Tensor, torch.nn.Parameter)]


def _others(tensors: Iterable[Any], kept: Iterable[Any]) -> list[Any]:
    """The tensors that share no memory with those to be kept."""
    places = {each.untyped_storage().data_ptr() for each in _plain(kept)}
    return [each for each in _plain(tensors) if each.untyped_storage().data_ptr() not in places]


def _params(model: Any) -> list[Any]:
    _buffers(model)
    return _plain(each.data for chunk in _chunks(model) for each in chunk.module.parameters())


def _grads(model: Any) -> list[Any]:
    buffers = _buffers(model)
    return _others((each for buffer in buffers for each in (buffer.grad_data, *buffer.extra_main_grads)),
                   (buffer.param_data for buffer in buffers))  # one buffer may serve as both


def _state(optimizer: Any) -> list[Any]:
    """Main parameters and moments, but no parameter of the model itself, which an optimizer of fp32 holds, too."""
    found: list[Any] = []
    models: list[Any] = []
    for part in getattr(optimizer, "chained_optimizers", [optimizer]):
        if getattr(part, "optimizer", None) is None:  # this rank has no parameters for it
            continue
        models += [buffer.param_data for buffer in getattr(part, "buffers", ())]
        for each in (each for group in part.optimizer.param_groups for each in group["params"]):
            (models if hasattr(each, "main_grad") else found).append(each.data)
        found += [each for state in part.optimizer.state.values() for each in state.values()]
    return _others(found, models)


def prepare(model: Any = None, optimizer: Any = None, *, params: bool = False, grads: bool = True) -> int:
    """Moves what is given into regions; gives the bytes that have moved. offloaded() does it by itself. Programs that
    capture CUDA graphs call it before, and after the first step, when the optimizer has its state."""
    moved = 0
    if model is not None:
        moved += move(_params(model), PARAMS) if params else 0
        moved += move(_grads(model), GRADS, keep=False) if grads else 0
    if optimizer is not None:
        moved += move(_state(optimizer), OPTIMIZER)
    return moved


def state_of(optimizer: Any) -> State:
    """What keeps count of an optimizer's state."""
    if not hasattr(optimizer, "_amem_state"):
        optimizer._amem_state = State([OPTIMIZER], optimizer, _TOUCHING)
    state: State = optimizer._amem_state
    return state


# ---- paused and back ----
@contextlib.contextmanager
def offloaded(model: Any = None, optimizer: Any = None, *, params: bool = False, grads: bool = True, nccl: bool = False,
              wait: bool = True, late: bool = True, timeout: float | None = None) -> Iterator[Future[None]]:
    """Off the GPU within: the optimizer's state, the gradients, whose bytes are dropped, with `params` the parameters, too,
    and with `nccl` NCCL's memory, if no collective runs meanwhile. Every rank of the group enters and leaves; all else of
    the process goes on.

    `wait` False: enters before the memory is paused. The future that is given ends when it is, or with the error.
    `late`: leaving does not wait for the optimizer's state; the optimizer's own calls do. Nothing else may touch it.
    `timeout`: seconds, as of amem.pause().

    Errors as check(), amem.move(), amem.pause() and amem.resume(). After one of the pause everything is on the GPU.
    """
    check()
    state = None if optimizer is None else state_of(optimizer)
    if state is not None:
        state.here()
    prepare(model, optimizer, params=params, grads=grads)
    tags = [tag for tag, on in ((PARAMS, params and model is not None), (GRADS, grads and model is not None), ("nccl", nccl)) if on]

    def leave() -> None:
        take(tags + [OPTIMIZER] if state is not None else tags, timeout)
        if state is not None:
            state.paused = True

    idle()
    paused = _background.submit(leave)
    try:
        if wait:
            paused.result()
        yield paused
    finally:
        if paused.exception() is None:
            bring(tags, timeout)
            if state is not None:
                state.come(timeout)
                if not late:
                    state.here()


# ---- Megatron's own RL loop ----
def install() -> None:
    """What Megatron's --rl-offload-optimizer-during-inference copies to the CPU leaves by amem from now on: gradients are
    dropped, the optimizer's state is kept and comes back late. Errors as check()."""
    check()
    from megatron.core.distributed import DistributedDataParallel
    from megatron.core.optimizer import ChainedOptimizer, MegatronOptimizer

    def drop(_: Any, self: Any, synchronize: bool = True, empty_cache: bool = True) -> None:
        prepare(self)
        idle()
        take([GRADS])

    def leave(_: Any, self: Any) -> None:
        state_of(self).here()
        prepare(None, self)
        idle()
        state_of(self).leave()

    replace(DistributedDataParallel, "offload_grad_buffers", drop)
    replace(DistributedDataParallel, "restore_grad_buffers", lambda _, self, synchronize=True: bring([GRADS]))
    for optimizer in (MegatronOptimizer, ChainedOptimizer):
        replace(optimizer, "offload_to_cpu", leave)
        replace(optimizer, "restore_from_cpu", lambda _, self: state_of(self).come())


class _Switch(argparse.Action):
    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        install()
        namespace.rl_amem_offload_during_rollout = namespace.rl_offload_optimizer_during_inference = True


def add_arguments(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Megatron's extra_args_provider: adds --rl-amem-offload-during-rollout, which is --rl-offload-optimizer-during-inference
    by amem."""
    parser.add_argument("--rl-amem-offload-during-rollout", action=_Switch, nargs=0, default=False,
                        help="Gradients and the optimizer's state leave the GPU by amem while a rollout runs.")
    return parser
