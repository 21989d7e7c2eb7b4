"""A trainer that copies its memory to the CPU and back. Here the copies are only counted."""
import os
from collections.abc import Sequence

__version__ = os.environ.get("MADE_UP_VERSION", "1.2.3")
copies = 0


def offload(tensors: Sequence[object], pinned: bool = True) -> None:
    global copies
    copies += 1


def load(tensors: Sequence[object]) -> None:
    global copies
    copies += 1


class Trainer:
    def __init__(self, tensors: Sequence[object]) -> None:
        self.tensors = tensors

    def sleep(self) -> None:
        offload(self.tensors)

    def wake_up(self) -> None:
        load(self.tensors)


if os.environ.get("MADE_UP_MOVED"):
    del load
