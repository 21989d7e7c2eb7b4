"""A trainer that copies its memory to the CPU and back. Here the copies are only counted."""
import os

__version__ = os.environ.get("MADE_UP_VERSION", "1.2.3")
copies = 0


def offload(tensors, pinned=True):
    global copies
    copies += 1


def load(tensors):
    global copies
    copies += 1


class Trainer:
    def __init__(self, tensors):
        self.tensors = tensors

    def sleep(self):
        offload(self.tensors)

    def wake_up(self):
        load(self.tensors)


if os.environ.get("MADE_UP_MOVED"):
    del load
