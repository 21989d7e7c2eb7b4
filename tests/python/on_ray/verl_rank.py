"""VerlRank: a worker of verl's that holds device memory and knows each byte of it."""
from typing import Any

from verl.single_controller.base import Worker
from verl.single_controller.base.decorator import Dispatch, register

from ray_rank import Rank


class VerlRank(Worker):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.memory = Rank(f"{name}{self.rank}")

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def fill(self, step: int) -> int:
        return self.memory.fill(step)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def check(self) -> int:
        return self.memory.check()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def about(self) -> dict[str, Any]:
        return self.memory.about()
