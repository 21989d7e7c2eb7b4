"""Megatron: frees the GPU memory of gradients, optimizer state and parameters while a rollout runs, without `.to("cpu")`.

    with amem.megatron.offloaded(model, optimizer):      # model: DistributedDataParallel, or the list of its chunks
        rollout()
    train_step()                                         # the resume of the optimizer's state may still run; step() waits

For Megatron's own RL loop, use amem.enable(). The option `--rl-amem-offload-during-rollout` calls it, if you pass
`extra_args_provider=amem.megatron.add_arguments`. Gradients, optimizer state and parameters have three tags, so a rollout
in the same process runs on meanwhile. docs/rl-frameworks.md is the manual. This module imports neither Megatron nor torch.
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
from amem.frameworks.tensors import left_to, others, plain

__all__ = ["GRADS", "Megatron", "OPTIMIZER", "PARAMS", "READERS", "TOUCHING", "add_arguments", "gradients", "offloaded", "optimizer_state",
           "parameters", "prepare", "state_of", "state_tensors"]

PARAMS, GRADS, OPTIMIZER = "megatron.params", "megatron.grads", "megatron.optimizer"
TOUCHING = ("step", "prepare_grads", "step_with_ready_grads", "state_dict", "load_state_dict", "sharded_state_dict",
            "reload_model_params", "save_parameter_state", "load_parameter_state")
"""The methods of an optimizer that touch its state."""
READERS = ("state_dict", "load_state_dict", "reload_model_params", "save_parameter_state", "load_parameter_state")
"""Those of TOUCHING after which a state that was paused leaves again. The answer of sharded_state_dict() has the memory itself."""


class Megatron(Framework):
    """Megatron. amem frees and restores the GPU memory that --rl-offload-optimizer-during-inference would copy to the CPU.

    amem drops gradients, as Megatron does. It keeps the optimizer's state and restores it late.
    """

    name, title, distribution = "megatron", "megatron-core", "megatron-core"
    modules = ("megatron.core.distributed", "megatron.core.optimizer")
    tried = (0, 19), (0, 20)
    purpose = "Megatron cannot offload by amem"
    how_to_start = "Start the trainer with `amemctl run --group NAME --scope regions -- torchrun ...`"

    def version(self) -> str:
        """Returns the installed version.

        Returns:
            megatron.core's `__version__`.
        """
        import megatron.core

        return str(megatron.core.__version__)

    def hooks(self) -> list[Callable[..., Any]]:
        """Finds the functions of Megatron that amem needs. It changes nothing.

        Returns:
            The results of hook().

        Raises:
            FailedPreconditionError: A function is missing, or has other parameters.
        """
        from megatron.core.distributed import DistributedDataParallel
        from megatron.core.optimizer import ChainedOptimizer, MegatronOptimizer

        found = [hook(DistributedDataParallel, "offload_grad_buffers", "self", "synchronize", "empty_cache"),
                 hook(DistributedDataParallel, "restore_grad_buffers", "self", "synchronize")]
        for optimizer in (MegatronOptimizer, ChainedOptimizer):
            found += [hook(optimizer, "offload_to_cpu", "self"), hook(optimizer, "restore_from_cpu", "self")]
        return found

    def install(self) -> None:
        """Replaces Megatron's functions that offload and restore memory by amem's. A second call changes nothing.

        Raises:
            FailedPreconditionError: amem does not support this version, or this process lacks something.
            UnavailableError: There is no broker.
        """
        self.check()
        from megatron.core.distributed import DistributedDataParallel
        from megatron.core.optimizer import ChainedOptimizer, MegatronOptimizer

        def drop(_: Any, self: Any, synchronize: bool = True, empty_cache: bool = True) -> None:
            prepare(self)
            idle()
            take([GRADS])

        def leave(original: Callable[[Any], None], self: Any) -> None:
            if _is_megatrons(self):
                original(self)
            else:
                state_of(self).leave()

        def come(original: Callable[[Any], None], self: Any) -> None:
            if _is_megatrons(self):
                original(self)
            else:
                state_of(self).come()

        replace(DistributedDataParallel, "offload_grad_buffers", drop)
        replace(DistributedDataParallel, "restore_grad_buffers", lambda _, self, synchronize=True: bring([GRADS]))
        for optimizer in (MegatronOptimizer, ChainedOptimizer):
            replace(optimizer, "offload_to_cpu", leave)
            replace(optimizer, "restore_from_cpu", come)


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
        FailedPreconditionError: The model has another class, or its buffers are registered with NCCL.
    """
    _buffers(model)
    return plain(each.data for chunk in _chunks(model) for each in chunk.module.parameters())


def gradients(model: Any) -> list[Any]:
    """Finds the buffers of a model's gradients.

    Args:
        model: DistributedDataParallel, or the list of its chunks.

    Returns:
        The tensors that can be moved, without buffers that also hold parameters.

    Raises:
        FailedPreconditionError: The model has another class, or its buffers are registered with NCCL.
    """
    buffers = _buffers(model)
    return others((each for buffer in buffers for each in (buffer.grad_data, *buffer.extra_main_grads)),
                  (buffer.param_data for buffer in buffers))  # one buffer may serve as both


def state_tensors(optimizer: Any) -> list[Any]:
    """Finds main parameters and moments, also those that amem cannot move.

    Args:
        optimizer: MegatronOptimizer or ChainedOptimizer.

    Returns:
        The tensors, and other values of the state.
    """
    return _state_and_models(optimizer)[0]


def optimizer_state(optimizer: Any) -> list[Any]:
    """Finds main parameters and moments, without the model's own parameters, which an fp32 optimizer also holds.

    Args:
        optimizer: MegatronOptimizer or ChainedOptimizer.

    Returns:
        The tensors that can be moved.
    """
    return others(*_state_and_models(optimizer))


def _state_and_models(optimizer: Any) -> tuple[list[Any], list[Any]]:
    """The optimizer's own tensors, and those of the model that it holds."""
    found: list[Any] = []
    models: list[Any] = []
    for part in getattr(optimizer, "chained_optimizers", [optimizer]):
        if getattr(part, "optimizer", None) is None:  # this rank has no parameters for it
            continue
        models += [buffer.param_data for buffer in getattr(part, "buffers", ())]
        for each in (each for group in part.optimizer.param_groups for each in group["params"]):
            (models if hasattr(each, "main_grad") else found).append(each.data)
        found += [each for state in part.optimizer.state.values() for each in state.values()]
    return found, models


def _is_megatrons(optimizer: Any) -> bool:
    """Whether Megatron itself moves the optimizer's state, because amem cannot move all of it. That stays so."""
    if not hasattr(optimizer, "_amem_left"):
        optimizer._amem_left = False
    optimizer._amem_left = optimizer._amem_left or left_to("Megatron", OPTIMIZER, state_tensors(optimizer))
    return bool(optimizer._amem_left)


def prepare(model: Any = None, optimizer: Any = None, *, params: bool = False, grads: bool = True) -> int:
    """Moves memory of the model and the optimizer into regions.

    offloaded() calls it automatically. A program that captures CUDA graphs must call it earlier: after the first step, when the
    optimizer has its state, and before the capture.

    Args:
        model: DistributedDataParallel, or the list of its chunks.
        optimizer: MegatronOptimizer or ChainedOptimizer.
        params: Also move the model's parameters.
        grads: Also move the model's gradients.

    Returns:
        The number of bytes that the call has moved.

    Raises:
        FailedPreconditionError: The model has another class, or its buffers are registered with NCCL.
    """
    moved = 0
    if model is not None:
        moved += move(parameters(model), PARAMS) if params else 0
        moved += move(gradients(model), GRADS, keep=False) if grads else 0
    if optimizer is not None:
        moved += move(optimizer_state(optimizer), OPTIMIZER)
    return moved


def state_of(optimizer: Any) -> State:
    """Returns the State object of an optimizer.

    Args:
        optimizer: MegatronOptimizer or ChainedOptimizer.

    Returns:
        The State. Each optimizer has one.
    """
    if not hasattr(optimizer, "_amem_state"):
        optimizer._amem_state = State([OPTIMIZER], optimizer, TOUCHING, READERS, lambda: prepare(None, optimizer))
    state: State = optimizer._amem_state
    return state


# ---- paused and back ----
_checked = False


def _check() -> None:
    """Checks once. The result does not change."""
    global _checked
    if not _checked:
        known()["megatron"].check()
        _checked = True


@contextlib.contextmanager
def offloaded(model: Any = None, optimizer: Any = None, *, params: bool = False, grads: bool = True, nccl: bool = False,
              wait: bool = True, late: bool = True, timeout: float | None = None) -> Iterator[Future[None]]:
    """Pauses memory within the context: the optimizer's state and the gradients, and optionally the parameters and NCCL's memory.

    The pause drops the bytes of the gradients. The rest of the process runs on. Ranks that share some of this memory, such as NCCL's,
    must enter and leave the context together.

    Args:
        model: DistributedDataParallel, or the list of its chunks.
        optimizer: MegatronOptimizer or ChainedOptimizer.
        params: Also pause the parameters.
        grads: Pause the gradients.
        nccl: Also pause NCCL's memory. No collective may run within the context.
        wait: Wait for the pause. False: the context begins before the memory is paused.
        late: The end of the context does not wait for the optimizer's state. The optimizer's own methods do. Nothing else may touch
            the state until then.
        timeout: Timeout in seconds, as for amem.pause().

    Returns:
        A context manager. Its value is a future that ends when the memory is paused, or with the error.

    Raises:
        Error: The errors of Framework.check(), amem.move(), amem.pause() and amem.resume(). If the pause fails, everything is on
            the GPU.
    """
    _check()
    state = None if optimizer is None else state_of(optimizer)
    if state is not None:
        state.here()
    prepare(model, optimizer, params=params, grads=grads)
    tags = [tag for tag, on in ((PARAMS, params and model is not None), (GRADS, grads and model is not None), ("nccl", nccl)) if on]

    def leave() -> None:
        if state is None:
            take(tags, timeout)
            return
        with state.turn:
            take(tags + [OPTIMIZER], timeout)
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
    """Adds --rl-amem-offload-during-rollout. It sets --rl-offload-optimizer-during-inference and calls amem.enable().

    Pass this function to Megatron as extra_args_provider. If amem cannot be switched on for Megatron, the option is an error.

    Args:
        parser: Megatron's parser.

    Returns:
        The same parser.
    """
    parser.add_argument("--rl-amem-offload-during-rollout", action=_Switch, nargs=0, default=False,
                        help="While a rollout runs, amem frees the GPU memory of the gradients and of the optimizer's state.")
    return parser
