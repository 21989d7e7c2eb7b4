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


class FSDPEngine:
    is_param_offload_enabled = True

    def __init__(self, module: Any, optimizer: object, staged: bool = False) -> None:
        """`staged`: as with FSDP 1. With FSDP 2 verl copies each parameter from where it is."""
        self.module, self.optimizer, self.staged = module, optimizer, staged

    def to(self, device: str, model: bool = True, optimizer: bool = True, grad: bool = True) -> None:
        if device == "cpu":
            offload_fsdp_model_to_cpu(self.module)
            if optimizer:
                offload_fsdp_optimizer(self.optimizer)
        else:
            load_fsdp_model_to_gpu(self.module)
            if optimizer:
                load_fsdp_optimizer(self.optimizer, 0)

    def get_per_tensor_param(self, layered_summon: bool = False, base_sync_done: bool = False) -> tuple[Iterator[int], None]:
        if self.staged:
            load_fsdp_model_to_gpu(self.module)
        parameters = [each.data._local_tensor for each in self.module.parameters()]
        if self.staged:
            offload_fsdp_model_to_cpu(self.module)
        return (each.sum() for each in parameters), None
