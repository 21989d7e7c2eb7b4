"""swap, for programs that swap once."""
from __future__ import annotations

from amem._arguments import Groups, Guests, OnProgress, Tags
from amem.aio._broker import Broker


async def swap(out: Groups, into: Groups, timeout: float | None = None, *, runtime_dir: str | None = None,
               on_progress: OnProgress | None = None, discard: Tags = None, guests: Guests | None = None, deep: bool = False,
               force: bool = False) -> None:
    """Pauses the group `out` and resumes the group `into`, over its own connection. To swap more than once, use a Broker.

    Args:
        out: The group to pause, or a list of groups.
        into: The group to resume, or a list of groups.
        timeout: Timeout in seconds for the pause, and for the resume. None: the broker's setting.
        runtime_dir: The broker's runtime directory. None: AMEM_RUNTIME_DIR, else the default.
        on_progress: As for Broker.swap(). This holds for the following arguments, too.
        discard: Tags of `out` whose bytes the pause drops.
        guests: What the pause does with memory of `out` that other groups have open.
        deep: The groups of `out` become deep after they have left.
        force: `discard` may have "heap".

    Raises:
        Error: The errors of Broker.swap().
    """
    async with Broker(runtime_dir) as broker:
        await broker.swap(out, into, timeout, on_progress, discard=discard, guests=guests, deep=deep, force=force)
