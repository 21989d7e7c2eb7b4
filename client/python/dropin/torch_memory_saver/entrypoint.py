"""The class of the package's only object."""
from __future__ import annotations

import sys

from amem import _saver
from torch_memory_saver.hooks.mode_preload import configure_subprocess
from torch_memory_saver.utils import is_xpu


class TorchMemorySaver(_saver.TorchMemorySaver):
    configure_subprocess = staticmethod(configure_subprocess)

    def _check_backend(self, backup: bool, backend: str | None) -> None:
        super()._check_backend(backup, backend)
        torch = sys.modules.get("torch")
        if backend is not None and is_xpu():
            raise ValueError("cpu_backup_backend is not supported on XPU, and neither is amem")
        if backend == "mmap" and torch is not None and torch.version.hip:
            raise ValueError("cpu_backup_backend='mmap' is not supported on ROCm, and neither is amem")
