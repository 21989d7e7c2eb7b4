"""VerlRank: a worker of verl's that holds device memory and knows each byte of it."""
from verl.single_controller.base import Worker
from verl.single_controller.base.decorator import Dispatch, register

from ray_rank import Rank


class VerlRank(Worker):
    def __init__(self, name):
        super().__init__()
        self.memory = Rank(f"{name}{self.rank}")

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def fill(self, step):
        return self.memory.fill(step)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def check(self):
        return self.memory.check()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def about(self):
        return self.memory.about()
