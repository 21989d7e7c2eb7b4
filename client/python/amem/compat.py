"""torch_memory_saver's interface over amem, for programs that are written for it where its distribution cannot be replaced.

    from amem.compat import torch_memory_saver

or, for a program or framework that imports torch_memory_saver itself, before it does so:

    import amem.compat
    amem.compat.install()

The distribution torch_memory_saver that comes with amem is the same by that name. docs/torch_memory_saver.md says what differs
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
    """Makes processes that are started within ranks of this process's group; what they allocate in regions is brokered.

    It sets the variables of amem.environment() in this process's environment, which is shared by its threads, for a while.
    AMEM_SCOPE stays as it is when it is set.

    Returns:
        A context manager.

    Raises:
        InvalidArgumentError: AMEM_SCOPE is no scope.
        NotFoundError: There is no shim.
    """
    scope = cast(Scope, os.environ.get("AMEM_SCOPE") or "regions")  # environment() refuses any other
    with _saver.changed_environment(environment(group(), scope)):
        yield


class TorchMemorySaver(_saver.TorchMemorySaver):
    """torch_memory_saver's class of that name, over amem. A process has one: torch_memory_saver."""

    configure_subprocess = staticmethod(configure_subprocess)


def install() -> None:
    """Makes this module what `import torch_memory_saver` gives in this process.

    Raises:
        FailedPreconditionError: The original has been imported already.
    """
    this = sys.modules[__name__]
    if sys.modules.setdefault("torch_memory_saver", this) is not this:
        raise FailedPreconditionError("torch_memory_saver is already imported. Call amem.compat.install() before the import")


if _saver.flag("TMS_INIT_ENABLE") and _shim.is_loaded() and not _saver.whole_process():
    logging.getLogger("amem").warning("amem: TMS_INIT_ENABLE has no effect in this process. To pause all memory of a process, start it with scope heap")

torch_memory_saver = TorchMemorySaver()
