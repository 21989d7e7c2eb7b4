"""The path of the hook library, and small functions that programs import from here."""
from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

from amem._saver import changed_environment
from amem.errors import NotFoundError


def is_xpu() -> bool:
    """Whether the accelerators are Intel's."""
    torch = sys.modules.get("torch")
    return torch is not None and hasattr(torch, "xpu") and bool(torch.xpu.is_available())


def get_binary_path_from_package(stem: str) -> Path:
    """The hook library whose file name begins with the stem: amem's shim, for every version of CUDA.

    NotFoundError: there is none.
    """
    package = Path(__file__).parent
    for folder in (package, package.parent):
        if found := sorted(folder.glob(f"{stem}*.so")):
            return found[0]
    raise NotFoundError(f"there is no {stem}*.so in {package.parent}. Install the distribution torch_memory_saver that comes with "
                        "amem again")


@contextlib.contextmanager
def change_env(key: str, value: str) -> Iterator[None]:
    """Sets a variable of this process's environment for a while."""
    with changed_environment({key: value}):
        yield
