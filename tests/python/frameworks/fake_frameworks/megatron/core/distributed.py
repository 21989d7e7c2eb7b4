import os
import types

import torch

MIB = 1 << 20


class DistributedDataParallel:
    """One buffer of parameters, of which they are views, and one of gradients."""

    def __init__(self, seed: int = 1, registered: bool = False) -> None:
        buffer = types.SimpleNamespace(param_data=torch.Tensor(2 * MIB), grad_data=torch.Tensor(4 * MIB), extra_main_grads=[],
                                       nccl_mem_pool="pool" if registered else None)
        buffer.param_data.fill(seed)
        buffer.grad_data.fill(9)
        self.buffers = [buffer]
        self.expert_parallel_buffers: list[types.SimpleNamespace] = []
        self.params = [torch.Parameter(torch.Tensor(storage=buffer.param_data.storage)) for _ in range(2)]
        for each in self.params:
            each.main_grad = buffer.grad_data
        self.module = self
        self.copied = 0

    def parameters(self) -> list[torch.Parameter]:
        return self.params

    def offload_grad_buffers(self, synchronize: bool = True, empty_cache: bool = True) -> None:
        self.copied += 1

    def restore_grad_buffers(self, synchronize: bool = True) -> None:
        self.copied += 1


if os.environ.get("FAKE_MEGATRON_MOVED"):
    setattr(DistributedDataParallel, "drop_grad_buffers", DistributedDataParallel.offload_grad_buffers)
    del DistributedDataParallel.offload_grad_buffers
