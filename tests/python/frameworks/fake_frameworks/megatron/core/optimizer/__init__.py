from __future__ import annotations

import types
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:  # amem.enable() looks for what is imported
    from megatron.core.distributed import DistributedDataParallel

MIB = 1 << 20


class MegatronOptimizer:
    def __init__(self, model: DistributedDataParallel | None = None) -> None:
        self.main = torch.Tensor(4 * MIB)
        self.main.fill(3)
        params = [torch.Parameter(self.main)]
        if model is not None:  # one of fp32 holds the model's own, too
            params += model.params
        self.optimizer = types.SimpleNamespace(param_groups=[{"params": params}], state={})
        self.steps = self.copied = 0

    def step(self) -> tuple[bool, int, None]:
        """Reads and writes all that it has; the moments come with the first."""
        if not self.optimizer.state:
            moments = {name: torch.Tensor(4 * MIB) for name in ("exp_avg", "exp_avg_sq")}
            for each in moments.values():
                each.fill(5)
            self.optimizer.state["main"] = moments | {"step": 1}
        self.steps += 1
        for each in (self.main, *list(self.optimizer.state["main"].values())[:2]):
            each.fill(each.sum() + self.steps)
        return True, self.main.sum(), None

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {"main": self.main}

    def load_state_dict(self, state_dict: dict[str, torch.Tensor]) -> None:
        self.main.fill(13)

    def offload_to_cpu(self) -> None:
        self.copied += 1

    def restore_from_cpu(self) -> None:
        self.copied += 1


class ChainedOptimizer(MegatronOptimizer):
    def __init__(self, optimizers: list[MegatronOptimizer]) -> None:
        self.chained_optimizers = optimizers

    def step(self) -> tuple[bool, int, None]:
        return [each.step() for each in self.chained_optimizers][-1]

    def offload_to_cpu(self) -> None:
        for each in self.chained_optimizers:
            each.offload_to_cpu()

    def restore_from_cpu(self) -> None:
        for each in self.chained_optimizers:
            each.restore_from_cpu()
