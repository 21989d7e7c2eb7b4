"""Preloading the hook library into processes that this one starts."""
from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from amem import _launcher
from amem._saver import changed_environment
from torch_memory_saver.utils import get_binary_path_from_package


@contextlib.contextmanager
def configure_subprocess() -> Iterator[None]:
    """Processes started within have the hook library, first in LD_PRELOAD. Their group is that of AMEM_GROUP; without it
    each is one by itself."""
    hook = str(get_binary_path_from_package("torch_memory_saver_hook_mode_preload"))
    variables = {"LD_PRELOAD": _launcher.with_shim(hook, os.environ.get("LD_PRELOAD", ""))}
    if os.environ.get("AMEM_GROUP") and not os.environ.get("NCCL_CUMEM_ENABLE"):
        variables["NCCL_CUMEM_ENABLE"] = "1"  # else NCCL's memory is not known as NCCL's
    with changed_environment(variables):
        yield
