"""The calls of a rank as coroutines."""
from __future__ import annotations

import asyncio

from amem._arguments import Guests, Tags
from amem._background import pause_async, resume_async


async def pause(tags: Tags = None, timeout: float | None = None, *, except_tags: Tags = None, discard: Tags = None,
                guests: Guests | None = None, deep: bool = False, force: bool = False) -> None:
    """Pauses this rank's group as amem.pause does, while the event loop runs on.

    The daemon thread of amem.pause_async() runs the call. It runs one call after the other. If the event loop launches GPU
    work after the pause, the event loop waits for the resume. A cancelled task stops waiting, but a pause that has begun
    continues.

    Args:
        tags: As for amem.pause(). This holds for all arguments.
        timeout: Timeout in seconds for the other ranks to call.
        except_tags: All memory except memory with these tags.
        discard: Tags whose bytes this pause drops.
        guests: What the pause does with memory that other groups have open.
        deep: Nothing of the processes stays on the GPUs.
        force: `discard` may have "heap".

    Raises:
        Error: The errors of amem.pause().
    """
    await asyncio.wrap_future(pause_async(tags, timeout, except_tags=except_tags, discard=discard, guests=guests, deep=deep,
                                          force=force))


async def resume(tags: Tags = None, timeout: float | None = None, *, except_tags: Tags = None) -> None:
    """Resumes this rank's group as amem.resume does, while the event loop runs on. See pause().

    Args:
        tags: As for amem.resume(). This holds for all arguments.
        timeout: Timeout in seconds for the other ranks to call.
        except_tags: All memory except memory with these tags.

    Raises:
        Error: The errors of amem.resume().
    """
    await asyncio.wrap_future(resume_async(tags, timeout, except_tags=except_tags))
