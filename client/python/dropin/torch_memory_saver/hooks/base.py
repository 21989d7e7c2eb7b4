"""The names of the hook modes, and the base of their classes."""
from __future__ import annotations

import abc
from typing import Any, Literal

HookMode = Literal["preload", "torch"]


class HookUtilBase(abc.ABC):
    """What the original asks of a hook mode. Programs derive from it, or replace its functions."""

    @staticmethod
    def create(hook_mode: HookMode) -> HookUtilBase:
        from torch_memory_saver.hooks.mode_preload import HookUtilModePreload
        from torch_memory_saver.hooks.mode_torch import HookUtilModeTorch

        return HookUtilModePreload() if hook_mode == "preload" else HookUtilModeTorch()

    def get_path_binary(self) -> str:
        """The path of the hook library."""
        raise NotImplementedError

    def get_allocator(self) -> Any:
        """The allocator for torch's pools. None: torch's own, whose memory the shim sees."""
        return None
