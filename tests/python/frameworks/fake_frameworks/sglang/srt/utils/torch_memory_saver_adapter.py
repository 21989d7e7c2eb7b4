from typing import Any
import torch_memory_saver

_memory_saver = torch_memory_saver.torch_memory_saver


class TorchMemorySaverAdapter:
    @staticmethod
    def create(enable: bool) -> Any:
        return _memory_saver if enable else None
