"""An optimizer whose states DeepSpeed's functions copy; here they say so."""
from collections.abc import Container
from typing import Any

import torch
from deepspeed.runtime.zero.offload_config import OffloadDeviceEnum, OffloadStateTypeEnum

SIZE = 2 << 20


class _Adam:
    """`step` of an optimizer of torch is on the CPU."""

    def __init__(self) -> None:
        self.state: dict[str, dict[str, Any]] = {}

    def step(self) -> None:
        self.state = self.state or {"flat": {"exp_avg": torch.Tensor(SIZE), "exp_avg_sq": torch.Tensor(SIZE), "step": torch.Tensor(storage=torch.OnCpu(b"step"))}}
        for each in ("exp_avg", "exp_avg_sq"):
            self.state["flat"][each].fill(7)


class DeepSpeedZeroOptimizer:
    def __init__(self) -> None:
        self.optimizer = _Adam()
        self.single_partition_of_fp32_groups = [torch.Tensor(SIZE), torch.Tensor(SIZE)]
        self.bit16_groups_flat = [torch.Tensor(SIZE)]
        self.offloaded_states: set[OffloadStateTypeEnum] = set()
        self.copied: list[list[str]] = []

    def step(self) -> None:
        for at, each in enumerate((*self.single_partition_of_fp32_groups, *self.bit16_groups_flat)):
            each.fill(at)
        self.optimizer.step()

    def state_dict(self) -> dict[str, Any]:
        return {"base_optimizer_state": {"state": self.optimizer.state}, "single_partition_of_fp32_groups": self.single_partition_of_fp32_groups,
                "zero_stage": 1}

    def load_state_dict(self, state_dict_list: list[dict[str, Any]], load_optimizer_states: bool = True) -> None:
        """As torch: the moments are new tensors."""
        for mine, saved in zip(self.single_partition_of_fp32_groups, state_dict_list[0]["single_partition_of_fp32_groups"]):
            mine.storage.write(saved.storage.read())
        state = state_dict_list[0]["base_optimizer_state"]["state"]["flat"]
        for name in ("exp_avg", "exp_avg_sq"):
            self.optimizer.state["flat"][name] = torch.Tensor(SIZE)
            self.optimizer.state["flat"][name].storage.write(state[name].storage.read())

    def sums(self) -> list[int]:
        state = [each for each in self.optimizer.state.get("flat", {}).values() if each.storage.device.type == "cuda"]
        return [each.sum() for each in (*self.single_partition_of_fp32_groups, *self.bit16_groups_flat, *state)]

    def offload_states(self, include: Container[OffloadStateTypeEnum] | None = None, device: OffloadDeviceEnum = OffloadDeviceEnum.cpu,
                       pin_memory: bool = True, non_blocking: bool = False) -> None:
        wanted = {each for each in OffloadStateTypeEnum if include is None or each in include}
        self.copied.append(sorted(each.name for each in wanted))
        self.offloaded_states |= wanted

    def reload_states(self, non_blocking: bool = False) -> None:
        self.copied.append(sorted(each.name for each in self.offloaded_states))
        self.offloaded_states.clear()
