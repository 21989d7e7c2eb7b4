"""DeepSpeed: amem frees and restores the GPU memory that ZeRO's offload_states() would copy to the CPU and back.

The arguments of offload_states() still choose this memory. OpenRLHF calls it with --ds.enable_sleep.

docs/rl-frameworks.md is the manual. This module imports neither DeepSpeed nor torch.
"""
from __future__ import annotations

import contextlib
from collections.abc import Callable, Container, Iterable
from typing import Any

from amem import _regions
from amem.frameworks import Framework, hook, replace
from amem.frameworks.phases import State, Tags, bring, idle, reads, taking
from amem.frameworks.tensors import left_to, plain

__all__ = ["DeepSpeed"]

_tag = Tags("deepspeed")


def _on_gpu(tensors: Iterable[Any]) -> list[Any]:
    return [each for each in plain(tensors) if each.untyped_storage().device.type == "cuda"]


def _optimizer_state(zero: Any) -> Iterable[Any]:
    return [each for state in zero.optimizer.state.values() for each in state.values()]


# The states that amem pauses: OffloadStateTypeEnum's name, and where the memory is. DeepSpeed does the rest itself, and what is not on the
# GPU: stage 3 drops its bucket, and stages 1 and 2 have no gradients between steps.
_Tensors = dict[str, Callable[[Any], Any]]
_STAGE_1_AND_2: _Tensors = {
    "hp_params": lambda zero: zero.single_partition_of_fp32_groups,
    "lp_params": lambda zero: zero.bit16_groups_flat,
    "optim_states": _optimizer_state,
}
_STAGE_3: _Tensors = {
    "hp_params": lambda zero: zero.fp32_partitioned_groups_flat,
    "lp_params": lambda zero: [zero.lp_param_buffer],
    "lp_grads": lambda zero: [zero.grad_partitions_flat_buffer],
    "optim_states": _optimizer_state,
}


_States = dict[Any, State]  # by OffloadStateTypeEnum's value
_Borrowed = list[contextlib.AbstractContextManager[bool]]


def _states(zero: Any) -> _States:
    """Of an optimizer that has offloaded some. Of another object: none."""
    found: _States = getattr(zero, "_amem_states", {})
    return found


def _of_zero(zero: Any, *_: Any, **__: Any) -> _Borrowed:
    return [each.borrowed() for each in _states(zero).values()]


def _of_engine(engine: Any, *_: Any, **__: Any) -> _Borrowed:
    return _of_zero(engine.optimizer)


def _params_of_engine(engine: Any, *_: Any, **__: Any) -> _Borrowed:
    return [each.borrowed() for kind, each in _states(engine.optimizer).items() if kind.name == "lp_params"]


# What reads or writes states that may be offloaded, and the states.
_ZERO_READERS = {"state_dict": ("self",), "load_state_dict": ("self", "state_dict_list")}
_ENGINE_READERS = {"save_checkpoint": (_of_engine, ("self", "save_dir")), "load_checkpoint": (_of_engine, ("self", "load_dir")),
                   "module_state_dict": (_params_of_engine, ("self",)), "save_16bit_model": (_params_of_engine, ("self", "save_dir"))}


class _Stage:
    """What takes the place of offload_states(), reload_states() and step() of one stage's class."""

    def __init__(self, kinds: Any, states: _Tensors) -> None:
        """`kinds`: DeepSpeed's OffloadStateTypeEnum."""
        self._kinds = {kinds[name]: tensors for name, tensors in states.items()}
        self._all = list(kinds)

    def _ours(self, zero: Any, kinds: Container[Any]) -> _States:
        """The states that have tensors on the GPU and that amem can move."""
        if not hasattr(zero, "_amem_states"):
            zero._amem_states = {}
        for kind, tensors in self._kinds.items():
            tag = _tag(kind.name, zero)
            if kind in kinds and not left_to("DeepSpeed", tag, tensors(zero)) and _on_gpu(tensors(zero)):
                zero._amem_states.setdefault(kind, State([tag], prepare=lambda tensors=tensors, tag=tag: _regions.move(  # type: ignore[misc]
                    _on_gpu(tensors(zero)), tag)))
        return {kind: state for kind, state in _states(zero).items() if kind in kinds and _on_gpu(self._kinds[kind](zero))}

    def offload(self, original: Callable[..., None], zero: Any, include: Container[Any] | None = None, device: Any = None,
                *arguments: Any, **options: Any) -> None:
        target = () if device is None else (device,)
        wanted = [each for each in self._all if include is None or each in include]
        to_cpu = getattr(device, "value", "cpu") == "cpu"
        stay = {kind for kind, state in _states(zero).items() if not state.paused}  # or could not leave again after a read
        ours = self._ours(zero, [each for each in wanted if each in stay or each not in zero.offloaded_states]) if to_cpu else {}
        with contextlib.ExitStack() as turns:
            for state in ours.values():
                turns.enter_context(state.turn)
                state.prepare()
            idle()
            with taking([tag for state in ours.values() for tag in state.tags]):  # DeepSpeed collects garbage meanwhile
                original(zero, [each for each in wanted if each not in ours], *target, *arguments, **options)
            for state in ours.values():
                state.paused = True
        zero.offloaded_states.update(ours)

    def _here(self, zero: Any) -> None:
        states = _states(zero)
        with contextlib.ExitStack() as turns:
            for state in states.values():
                turns.enter_context(state.turn)
            paused = {kind: state for kind, state in states.items() if state.paused}
            bring([tag for state in paused.values() for tag in state.tags])
            for state in paused.values():
                state.paused = False
        zero.offloaded_states.difference_update(paused)

    def reload(self, original: Callable[..., None], zero: Any, *arguments: Any, **options: Any) -> None:
        self._here(zero)
        original(zero, *arguments, **options)

    def step(self, original: Callable[..., Any], zero: Any, *arguments: Any, **options: Any) -> Any:
        self._here(zero)  # with states on the CPU DeepSpeed's step fails, but on paused memory it would lose the GPU's context
        return original(zero, *arguments, **options)


class DeepSpeed(Framework):
    """DeepSpeed's ZeRO optimizers, stages 1 to 3."""

    name, title, distribution = "deepspeed", "DeepSpeed", "deepspeed"
    modules = ("deepspeed.runtime.zero.stage_1_and_2", "deepspeed.runtime.engine")
    tried = (0, 19), (0, 19)
    purpose = "DeepSpeed's offload_states() cannot free GPU memory by amem"

    def hooks(self) -> list[Callable[..., Any]]:
        """Finds the functions that amem replaces in DeepSpeed's optimizers. It changes nothing.

        Returns:
            The results of hook(). An older version, in which a stage cannot offload its states, has none for that stage.

        Raises:
            FailedPreconditionError: A function is missing, or has other parameters.
        """
        from deepspeed.runtime.engine import DeepSpeedEngine
        from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3
        from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer

        found = [hook(DeepSpeedEngine, name, *parameters) for name, (_, parameters) in _ENGINE_READERS.items()]
        for optimizer in (DeepSpeedZeroOptimizer, DeepSpeedZeroOptimizer_Stage3):
            if hasattr(optimizer, "offload_states"):
                found += [hook(optimizer, "offload_states", "self", "include", "device"), hook(optimizer, "reload_states", "self"),
                          hook(optimizer, "step", "self")]
                found += [hook(optimizer, name, *parameters) for name, parameters in _ZERO_READERS.items()]
        return found

    def install(self) -> None:
        """Replaces functions of the optimizers and of the engine that offload, reload, read or write states. A second call changes nothing.

        Raises:
            FailedPreconditionError: amem does not support this version, or this process lacks something.
            UnavailableError: There is no broker.
        """
        self.check()
        from deepspeed.runtime.engine import DeepSpeedEngine
        from deepspeed.runtime.zero import offload_config, stage3, stage_1_and_2

        for owner, states in ((stage_1_and_2.DeepSpeedZeroOptimizer, _STAGE_1_AND_2), (stage3.DeepSpeedZeroOptimizer_Stage3, _STAGE_3)):
            if hasattr(owner, "offload_states"):
                stage = _Stage(offload_config.OffloadStateTypeEnum, states)
                replace(owner, "offload_states", stage.offload)
                replace(owner, "reload_states", stage.reload)
                replace(owner, "step", stage.step)
                for name in _ZERO_READERS:
                    reads(owner, name, _of_zero)
        for name, (states_of, _) in _ENGINE_READERS.items():
            reads(DeepSpeedEngine, name, states_of)
