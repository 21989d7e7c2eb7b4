"""Preloads the hook library into processes that this process starts."""
from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from amem import _launcher
from amem._saver import changed_environment
from torch_memory_saver.hooks.base import HookUtilBase
from torch_memory_saver.utils import get_binary_path_from_package


class HookUtilModePreload(HookUtilBase):
    def get_path_binary(self) -> str:
        return str(get_binary_path_from_package("torch_memory_saver_hook_mode_preload"))


@contextlib.contextmanager
def configure_subprocess() -> Iterator[None]:
    """Processes that start within the context have the hook library, first in LD_PRELOAD. AMEM_GROUP names their group. Without it,
    each process is its own group."""
    hook = HookUtilModePreload().get_path_binary()
    variables = {"LD_PRELOAD": _launcher.with_shim(hook, os.environ.get("LD_PRELOAD", ""))}
    if os.environ.get("AMEM_GROUP") and not os.environ.get("NCCL_CUMEM_ENABLE"):
        variables["NCCL_CUMEM_ENABLE"] = "1"  # else NCCL's memory is not known as NCCL's
    with changed_environment(variables):
        yield
