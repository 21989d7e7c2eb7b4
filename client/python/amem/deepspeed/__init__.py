"""DeepSpeed: amem frees and restores the GPU memory that ZeRO's offload_states() would copy to the CPU and back.

The arguments of offload_states() still choose this memory. OpenRLHF calls it with --ds.enable_sleep.

docs/rl-frameworks.md is the manual. This module imports neither DeepSpeed nor torch.
"""
from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from typing import Any

from amem import _regions
from amem.frameworks import Framework, hook, replace
from amem.frameworks.phases import Tags, bring, idle, taking
from amem.frameworks.tensors import plain

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


class _Stage:
    """What takes the place of offload_states() and reload_states() of one stage's class."""

    def __init__(self, kinds: Any, states: _Tensors) -> None:
        """`kinds`: DeepSpeed's OffloadStateTypeEnum."""
        self._kinds = {kinds[name]: tensors for name, tensors in states.items()}
        self._all = list(kinds)

    def _on_gpu(self, zero: Any, kinds: Container[Any]) -> dict[Any, list[Any]]:
        """The tensors of these states that are on the GPU. amem leaves them there when it pauses them, unlike DeepSpeed."""
        found = {kind: _on_gpu(tensors(zero)) for kind, tensors in self._kinds.items() if kind in kinds}
        return {kind: tensors for kind, tensors in found.items() if tensors}

    def offload(self, original: Callable[..., None], zero: Any, include: Container[Any] | None = None, device: Any = None,
                *arguments: Any, **options: Any) -> None:
        target = () if device is None else (device,)
        wanted = [each for each in self._all if include is None or each in include]
        to_cpu = getattr(device, "value", "cpu") == "cpu"
        ours = self._on_gpu(zero, [each for each in wanted if each not in zero.offloaded_states]) if to_cpu else {}
        for kind, tensors in ours.items():
            _regions.move(tensors, _tag(kind.name, zero))
        idle()
        with taking([_tag(kind.name, zero) for kind in ours]):  # DeepSpeed collects garbage meanwhile
            original(zero, [each for each in wanted if each not in ours], *target, *arguments, **options)
        zero.offloaded_states.update(ours)

    def reload(self, original: Callable[..., None], zero: Any, *arguments: Any, **options: Any) -> None:
        ours = self._on_gpu(zero, zero.offloaded_states)
        bring([_tag(kind.name, zero) for kind in ours])
        zero.offloaded_states.difference_update(ours)
        original(zero, *arguments, **options)


class DeepSpeed(Framework):
    """DeepSpeed's ZeRO optimizers, stages 1 to 3."""

    name, title, distribution = "deepspeed", "DeepSpeed", "deepspeed"
    modules = ("deepspeed.runtime.zero.stage_1_and_2",)
    tried = (0, 19), (0, 19)
    purpose = "DeepSpeed's offload_states() cannot free GPU memory by amem"

    def hooks(self) -> list[Callable[..., Any]]:
        """Finds the functions that amem replaces in DeepSpeed's optimizers. It changes nothing.

        Returns:
            The results of hook(). An older version, in which a stage cannot offload its states, has none for that stage.

        Raises:
            FailedPreconditionError: A function is missing, or has other parameters.
        """
        from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3
        from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer

        found = []
        for optimizer in (DeepSpeedZeroOptimizer, DeepSpeedZeroOptimizer_Stage3):
            if hasattr(optimizer, "offload_states"):
                found += [hook(optimizer, "offload_states", "self", "include", "device"), hook(optimizer, "reload_states", "self")]
        return found

    def install(self) -> None:
        """Replaces offload_states() and reload_states() of the optimizers. A second call changes nothing.

        Raises:
            FailedPreconditionError: amem does not support this version, or this process lacks something.
            UnavailableError: There is no broker.
        """
        self.check()
        from deepspeed.runtime.zero import offload_config, stage3, stage_1_and_2

        for owner, states in ((stage_1_and_2.DeepSpeedZeroOptimizer, _STAGE_1_AND_2), (stage3.DeepSpeedZeroOptimizer_Stage3, _STAGE_3)):
            if hasattr(owner, "offload_states"):
                stage = _Stage(offload_config.OffloadStateTypeEnum, states)
                replace(owner, "offload_states", stage.offload)
                replace(owner, "reload_states", stage.reload)
