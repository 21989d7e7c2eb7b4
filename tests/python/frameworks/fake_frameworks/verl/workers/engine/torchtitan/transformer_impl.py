"""Its model has parts. It imports FSDP's functions by name."""
from collections.abc import Iterator
from typing import Any

from verl.workers.engine.fsdp.transformer_impl import (
    CheckpointManager, load_fsdp_model_to_gpu, load_fsdp_optimizer, offload_fsdp_model_to_cpu, offload_fsdp_optimizer, tensors)


class TorchTitanEngine:
    is_param_offload_enabled = True

    def __init__(self, module: list[Any], optimizer: Any) -> None:
        self.module, self.optimizer = module, optimizer

    def to(self, device: str, model: bool = True, optimizer: bool = True, grad: bool = True) -> None:
        for each in self.module:
            if device == "cpu":
                offload_fsdp_model_to_cpu(each)
            else:
                load_fsdp_model_to_gpu(each)
        if optimizer and device == "cpu":
            offload_fsdp_optimizer(self.optimizer)
        elif optimizer:
            load_fsdp_optimizer(self.optimizer, 0)

    def save_checkpoint(self, local_path: str, hdfs_path: str | None = None) -> None:
        CheckpointManager(self).load()

    load_checkpoint = save_checkpoint

    def get_per_tensor_param(self, **kwargs: object) -> tuple[Iterator[int], None]:
        for each in self.module:
            load_fsdp_model_to_gpu(each)
        parameters = [one for each in self.module for one in tensors(each)]
        for each in self.module:
            offload_fsdp_model_to_cpu(each)
        return (each.sum() for each in parameters), None
