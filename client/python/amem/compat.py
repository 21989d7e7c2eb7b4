"""torch_memory_saver's interface over amem, for programs that use it but whose distribution torch_memory_saver you cannot replace.

    from amem.compat import torch_memory_saver

If the program or framework imports torch_memory_saver itself, call this before the import:

    import amem.compat
    amem.compat.install()

The distribution torch_memory_saver that comes with amem has the same interface. docs/torch_memory_saver.md lists the differences
from the original.
"""
from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Iterator
from typing import cast

from amem import _saver, _shim
from amem._arguments import Scope
from amem._launcher import environment
from amem._rank import group
from amem.errors import FailedPreconditionError

__all__ = ["TorchMemorySaver", "configure_subprocess", "install", "torch_memory_saver"]


@contextlib.contextmanager
def configure_subprocess() -> Iterator[None]:
    """Makes processes that start within this context ranks of this process's group. Their memory in regions is brokered.

    The context sets the variables of amem.environment() in the environment of this process. All threads of the process see them.
    If AMEM_SCOPE is set, it stays as it is.

    Returns:
        A context manager.

    Raises:
        InvalidArgumentError: AMEM_SCOPE is not a valid scope.
        NotFoundError: The shim does not exist.
    """
    scope = cast(Scope, os.environ.get("AMEM_SCOPE") or "regions")  # environment() refuses any other
    with _saver.changed_environment(environment(group(), scope)):
        yield


class TorchMemorySaver(_saver.TorchMemorySaver):
    """torch_memory_saver's class of that name, over amem. A process has one: torch_memory_saver."""

    configure_subprocess = staticmethod(configure_subprocess)


def install() -> None:
    """From now on, `import torch_memory_saver` imports this module in this process.

    Raises:
        FailedPreconditionError: The process has already imported the original.
    """
    this = sys.modules[__name__]
    if sys.modules.setdefault("torch_memory_saver", this) is not this:
        raise FailedPreconditionError("torch_memory_saver is already imported. Call amem.compat.install() before the import")


if _saver.flag("TMS_INIT_ENABLE") and _shim.is_loaded() and not _saver.whole_process():
    logging.getLogger("amem").warning("amem: TMS_INIT_ENABLE has no effect in this process. To pause all memory of a process, start it "
                                      "with scope heap")

torch_memory_saver = TorchMemorySaver()
