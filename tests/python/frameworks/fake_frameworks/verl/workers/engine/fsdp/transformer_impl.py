"""An engine whose memory leaves by verl's functions, which copy; here they say so."""
from collections.abc import Iterator
from typing import Any

from verl.workers.engine import BaseEngineCtx as BaseEngineCtx

copied = []


def offload_fsdp_model_to_cpu(model: object, empty_cache: bool = True) -> None:
    copied.append(model)


def load_fsdp_model_to_gpu(model: object) -> None:
    copied.append(model)


def offload_fsdp_optimizer(optimizer: object) -> None:
    copied.append(optimizer)


def load_fsdp_optimizer(optimizer: object, device_id: int) -> None:
    copied.append(optimizer)


class CheckpointManager:
    """`full`: the disk is full."""

    def __init__(self, engine: Any) -> None:
        self.engine, self.full = engine, False
        self.saved: list[int] = []

    def save(self) -> None:
        self.saved = [each.sum() for each in (*tensors(self.engine.module), *moments(self.engine.optimizer.state_dict()))]
        if self.full:
            raise OSError("No space left on device")

    def load(self) -> None:
        self.engine.optimizer.load_state_dict(None)


def tensors(module: Any) -> list[Any]:
    return [getattr(each.data, "_local_tensor", each.data) for each in module.parameters()]


def moments(state: dict[str, dict[str, Any]]) -> list[Any]:
    return [each for part in state.values() for each in part.values() if hasattr(each, "sum")]


class FSDPEngine:
    is_param_offload_enabled = True

    def __init__(self, module: Any, optimizer: object, staged: bool = False) -> None:
        """`staged`: as with FSDP 1. With FSDP 2 verl copies each parameter from where it is."""
        self.module, self.optimizer, self.staged = module, optimizer, staged
        self.checkpoint_manager = CheckpointManager(self)

    def to(self, device: str, model: bool = True, optimizer: bool = True, grad: bool = True) -> None:
        if device == "cpu":
            offload_fsdp_model_to_cpu(self.module)
            if optimizer:
                offload_fsdp_optimizer(self.optimizer)
        else:
            load_fsdp_model_to_gpu(self.module)
            if optimizer:
                load_fsdp_optimizer(self.optimizer, 0)

    def save_checkpoint(self, local_path: str, hdfs_path: str | None = None, global_step: int = 0) -> None:
        """The model alone is loaded, as verl does. The optimizer is saved from the CPU."""
        load_fsdp_model_to_gpu(self.module)
        self.checkpoint_manager.save()
        offload_fsdp_model_to_cpu(self.module)

    def load_checkpoint(self, local_path: str, hdfs_path: str | None = None) -> None:
        load_fsdp_model_to_gpu(self.module)
        self.checkpoint_manager.load()
        offload_fsdp_model_to_cpu(self.module)
        offload_fsdp_optimizer(self.optimizer)

    def get_per_tensor_param(self, layered_summon: bool = False, base_sync_done: bool = False) -> tuple[Iterator[int], None]:
        if self.staged:
            load_fsdp_model_to_gpu(self.module)
        parameters = tensors(self.module)
        if self.staged:
            offload_fsdp_model_to_cpu(self.module)
        return (each.sum() for each in parameters), None
