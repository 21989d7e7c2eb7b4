"""The original's mode for processes without its hook library in LD_PRELOAD. amem has none: without the shim regions do nothing."""
from __future__ import annotations

from amem import _saver
from torch_memory_saver.hooks.base import HookUtilBase
from torch_memory_saver.utils import get_binary_path_from_package


class HookUtilModeTorch(HookUtilBase):
    def __init__(self) -> None:
        _saver.check_torch_mode()

    def get_path_binary(self) -> str:
        return str(get_binary_path_from_package("torch_memory_saver_hook_mode_torch"))
