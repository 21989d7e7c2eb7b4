"""The same for stage 3."""
import torch
from deepspeed.runtime.zero.stage_1_and_2 import SIZE, DeepSpeedZeroOptimizer


class DeepSpeedZeroOptimizer_Stage3(DeepSpeedZeroOptimizer):
    def __init__(self) -> None:
        super().__init__()
        self.fp32_partitioned_groups_flat = self.single_partition_of_fp32_groups
        self.lp_param_buffer = self.bit16_groups_flat[0]
        self.grad_partitions_flat_buffer = torch.Tensor(SIZE)

    def offload_states(self, include=None, device=None, pin_memory=True, non_blocking=False):  # type: ignore[no-untyped-def]
        super().offload_states(include)

    def reload_states(self, non_blocking: bool = False) -> None:
        super().reload_states()
