"""Megatron: gradients, optimizer state and parameters off the GPU while a rollout runs, without `.to("cpu")`.

    with amem.megatron.offloaded(model, optimizer):      # model: DistributedDataParallel, or the list of its chunks
        rollout()
    train_step()                                         # the optimizer's state may still be on its way; step() waits

or, for Megatron's own RL loop, amem.enable(), which `--rl-amem-offload-during-rollout` calls by
`extra_args_provider=amem.megatron.add_arguments`. Each of the three is a tag of the group, so a rollout in the same process goes
on meanwhile. docs/rl-frameworks.md is the manual. Imports neither Megatron nor torch by itself.
"""
from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

from amem import _background
from amem._enable import enable_for
from amem._regions import move
from amem.errors import FailedPreconditionError
from amem.frameworks import Framework, hook, replace
from amem.frameworks._known import known
from amem.frameworks.phases import State, bring, idle, take
from amem.frameworks.tensors import others, plain

__all__ = ["GRADS", "Megatron", "OPTIMIZER", "PARAMS", "TOUCHING", "add_arguments", "gradients", "offloaded", "optimizer_state",
           "parameters", "prepare", "state_of"]

PARAMS, GRADS, OPTIMIZER = "megatron.params", "megatron.grads", "megatron.optimizer"
TOUCHING = ("step", "prepare_grads", "step_with_ready_grads", "state_dict", "load_state_dict", "sharded_state_dict",
            "reload_model_params", "save_parameter_state", "load_parameter_state")
"""The methods of an optimizer that touch its state."""


class Megatron(Framework):
    """Megatron. What --rl-offload-optimizer-during-inference copies to the CPU leaves by amem.

    Gradients are dropped, as Megatron drops them. The optimizer's state is kept and comes back late.
    """

    name, title, distribution = "megatron", "megatron-core", "megatron-core"
    modules = ("megatron.core.distributed", "megatron.core.optimizer")
    tried = (0, 19), (0, 20)
    purpose = "Megatron cannot offload by amem"
    how_to_start = "Start the trainer with `amemctl run --group NAME --scope regions -- torchrun ...`"

    def version(self) -> str:
        """Says which version is installed.

        Returns:
            megatron.core's `__version__`.
        """
        import megatron.core

        return str(megatron.core.__version__)

    def hooks(self) -> list[Callable[..., Any]]:
        """Finds the functions of Megatron that amem needs. Changes nothing.

        Returns:
            What hook() has returned.

        Raises:
            FailedPreconditionError: A function is not there, or takes other parameters.
        """
        from megatron.core.distributed import DistributedDataParallel
        from megatron.core.optimizer import ChainedOptimizer, MegatronOptimizer

        found = [hook(DistributedDataParallel, "offload_grad_buffers", "self", "synchronize", "empty_cache"),
                 hook(DistributedDataParallel, "restore_grad_buffers", "self", "synchronize")]
        for optimizer in (MegatronOptimizer, ChainedOptimizer):
            found += [hook(optimizer, "offload_to_cpu", "self"), hook(optimizer, "restore_from_cpu", "self")]
        return found

    def install(self) -> None:
        """Puts amem's functions in the place of Megatron's that offload and restore. A second call changes nothing.

        Raises:
            FailedPreconditionError: This version, or this process, is not one that amem can serve.
            UnavailableError: There is no broker.
        """
        self.check()
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


# ---- which tensors ----
def _chunks(model: Any) -> list[Any]:
    from megatron.core.distributed import DistributedDataParallel

    chunks = list(model) if isinstance(model, (list, tuple)) else [model]
    for each in chunks:
        if not isinstance(each, DistributedDataParallel):
            raise FailedPreconditionError(
                f"amem supports models of Megatron's class DistributedDataParallel only. This model is a {type(each).__name__}")
    return chunks


def _buffers(model: Any) -> list[Any]:
    buffers = [each for chunk in _chunks(model) for each in chunk.buffers + chunk.expert_parallel_buffers]
    if any(each.nccl_mem_pool is not None for each in buffers):
        raise FailedPreconditionError(
            "Megatron has registered its buffers with NCCL (--use-nccl-ub), so they are part of NCCL's memory (the tag nccl). "
            "Remove --use-nccl-ub, or do not offload params and grads")
    return buffers


def parameters(model: Any) -> list[Any]:
    """Finds the parameters of a model.

    Args:
        model: DistributedDataParallel, or the list of its chunks.

    Returns:
        The tensors that can be moved.

    Raises:
        FailedPreconditionError: The model is another one, or NCCL has registered its buffers.
    """
    _buffers(model)
    return plain(each.data for chunk in _chunks(model) for each in chunk.module.parameters())


def gradients(model: Any) -> list[Any]:
    """Finds the buffers of a model's gradients.

    Args:
        model: DistributedDataParallel, or the list of its chunks.

    Returns:
        The tensors that can be moved. A buffer that holds parameters, too, is not among them.

    Raises:
        FailedPreconditionError: The model is another one, or NCCL has registered its buffers.
    """
    buffers = _buffers(model)
    return others((each for buffer in buffers for each in (buffer.grad_data, *buffer.extra_main_grads)),
                  (buffer.param_data for buffer in buffers))  # one buffer may serve as both


def optimizer_state(optimizer: Any) -> list[Any]:
    """Finds main parameters and moments, but no parameter of the model itself, which an optimizer of fp32 holds, too.

    Args:
        optimizer: MegatronOptimizer or ChainedOptimizer.

    Returns:
        The tensors that can be moved.
    """
    found: list[Any] = []
    models: list[Any] = []
    for part in getattr(optimizer, "chained_optimizers", [optimizer]):
        if getattr(part, "optimizer", None) is None:  # this rank has no parameters for it
            continue
        models += [buffer.param_data for buffer in getattr(part, "buffers", ())]
        for each in (each for group in part.optimizer.param_groups for each in group["params"]):
            (models if hasattr(each, "main_grad") else found).append(each.data)
        found += [each for state in part.optimizer.state.values() for each in state.values()]
    return others(found, models)


def prepare(model: Any = None, optimizer: Any = None, *, params: bool = False, grads: bool = True) -> int:
    """Moves what is given into regions.

    offloaded() does it by itself. Programs that capture CUDA graphs call it before, and after the first step, when the optimizer
    has its state.

    Args:
        model: DistributedDataParallel, or the list of its chunks.
        optimizer: MegatronOptimizer or ChainedOptimizer.
        params: Also the model's parameters.
        grads: Also its gradients.

    Returns:
        How many bytes have moved.

    Raises:
        FailedPreconditionError: The model is another one, or NCCL has registered its buffers.
    """
    moved = 0
    if model is not None:
        moved += move(parameters(model), PARAMS) if params else 0
        moved += move(gradients(model), GRADS, keep=False) if grads else 0
    if optimizer is not None:
        moved += move(optimizer_state(optimizer), OPTIMIZER)
    return moved


def state_of(optimizer: Any) -> State:
    """Finds what keeps count of an optimizer's state.

    Args:
        optimizer: MegatronOptimizer or ChainedOptimizer.

    Returns:
        The one State of this optimizer.
    """
    if not hasattr(optimizer, "_amem_state"):
        optimizer._amem_state = State([OPTIMIZER], optimizer, TOUCHING)
    state: State = optimizer._amem_state
    return state


# ---- paused and back ----
_checked = False


def _check() -> None:
    """Once is enough: what was found stays."""
    global _checked
    if not _checked:
        known()["megatron"].check()
        _checked = True


@contextlib.contextmanager
def offloaded(model: Any = None, optimizer: Any = None, *, params: bool = False, grads: bool = True, nccl: bool = False,
              wait: bool = True, late: bool = True, timeout: float | None = None) -> Iterator[Future[None]]:
    """Has memory off the GPU within: the optimizer's state, the gradients, whose bytes are dropped, and what is asked for.

    All else of the process goes on. Every rank of the group enters and leaves.

    Args:
        model: DistributedDataParallel, or the list of its chunks.
        optimizer: MegatronOptimizer or ChainedOptimizer.
        params: The parameters, too.
        grads: The gradients.
        nccl: NCCL's memory, too, if no collective runs meanwhile.
        wait: False enters before the memory is paused.
        late: Leaving does not wait for the optimizer's state; the optimizer's own calls do. Nothing else may touch it.
        timeout: Seconds, as of amem.pause().

    Returns:
        A context manager. It gives a future that ends when the memory is paused, or with the error.

    Raises:
        Error: As Framework.check(), amem.move(), amem.pause() and amem.resume(). After one of the pause everything is on the GPU.
    """
    _check()
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
class _Switch(argparse.Action):
    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        import megatron.core.distributed
        import megatron.core.optimizer  # noqa: F401: enable_for() looks for what is imported

        enable_for("megatron")
        namespace.rl_amem_offload_during_rollout = namespace.rl_offload_optimizer_during_inference = True


def add_arguments(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Adds --rl-amem-offload-during-rollout, which is --rl-offload-optimizer-during-inference and amem.enable().

    Megatron takes this function as its extra_args_provider. Where Megatron cannot be switched on, the option is an error.

    Args:
        parser: Megatron's.

    Returns:
        The same one.
    """
    parser.add_argument("--rl-amem-offload-during-rollout", action=_Switch, nargs=0, default=False,
                        help="While a rollout runs, amem frees the GPU memory of the gradients and of the optimizer's state.")
    return parser
