"""Names the ranks that a framework calls as one, for the keyword `ranks` of pause and resume. Imports no framework."""
from __future__ import annotations

import os
import sys
import uuid
from typing import Any

from amem import _endpoint


def on_this_node(prefix: str, group: Any, of: str = "") -> tuple[str, int] | None:
    """Asks the ranks of a process group which of them have the broker of this rank. All ranks of the group must call it.

    Args:
        prefix: The name begins with it.
        group: A process group of torch.distributed for CPU memory.
        of: Only ranks that pass the same text count.

    Returns:
        A name that no other ranks have, and the number of these ranks. None: this rank is alone.
    """
    distributed = sys.modules["torch"].distributed
    mine = (of, *_broker())
    everyone: list[Any] = [None] * distributed.get_world_size(group)
    distributed.all_gather_object(everyone, (mine, uuid.uuid4().hex), group=group)
    these = [name for where, name in everyone if where == mine]
    return (f"{prefix}-{these[0]}", len(these)) if len(these) > 1 else None


def _broker() -> tuple[str, int, int]:
    """Containers of one node may share a broker's socket, or have one each."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        boot = file.read().strip()
    try:
        there = os.stat(os.path.join(_endpoint.default_runtime_dir(), "session.sock"))
    except OSError:
        return boot, 0, 0
    return boot, there.st_dev, there.st_ino
