"""The same for Megatron."""
from collections.abc import Iterator
from typing import Any

import verl.utils.megatron_utils  # noqa: F401
from verl.workers.engine.fsdp.transformer_impl import copied


def offload_megatron_model_to_cpu(models: object) -> None:
    copied.append(models)


def load_megatron_model_to_gpu(models: object, load_grad: bool = True, load_frozen_params: bool = True) -> None:
    copied.append(models)


def offload_megatron_optimizer(optimizers: object) -> None:
    copied.append(optimizers)


def load_megatron_optimizer(optimizers: object) -> None:
    copied.append(optimizers)


class MegatronEngine:
    is_param_offload_enabled = True

    def __init__(self, module: Any, optimizer: Any) -> None:
        self.module, self.optimizer = module, optimizer

    def to(self, device: str, model: bool = True, optimizer: bool = True, grad: bool = True) -> None:
        if device == "cpu":
            offload_megatron_model_to_cpu(self.module)
            if optimizer:
                offload_megatron_optimizer(self.optimizer)
        else:
            load_megatron_model_to_gpu(self.module, load_grad=grad)
            if optimizer:
                load_megatron_optimizer(self.optimizer)

    def save_checkpoint(self, local_path: str, hdfs_path: str | None = None, global_step: int = 0) -> None:
        load_megatron_model_to_gpu(self.module, load_grad=True)
        self.saved = [*(each.sum() for chunk in self.module for each in chunk.parameters()), self.optimizer.state_dict()["main"].sum()]
        offload_megatron_model_to_cpu(self.module)

    def load_checkpoint(self, local_path: str, hdfs_path: str | None = None) -> None:
        self.optimizer.load_state_dict({})
        offload_megatron_optimizer(self.optimizer)

    def get_per_tensor_param(self, base_sync_done: bool = False) -> tuple[Iterator[int], None]:
        load_megatron_model_to_gpu(self.module, load_grad=False)
        return iter(()), None
