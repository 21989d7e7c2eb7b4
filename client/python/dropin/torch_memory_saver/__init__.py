"""torch_memory_saver over amem: what that package's users import, with its module layout. docs/torch_memory_saver.md of amem
says what differs from the original."""
from torch_memory_saver.entrypoint import TorchMemorySaver
from torch_memory_saver.hooks.mode_preload import configure_subprocess

__all__ = ["TorchMemorySaver", "configure_subprocess", "torch_memory_saver"]

torch_memory_saver = TorchMemorySaver()
