"""A rank's calls as coroutines."""
from __future__ import annotations

import asyncio

from amem._arguments import Guests, Tags
from amem._background import pause_async, resume_async


async def pause(tags: Tags = None, timeout: float | None = None, *, except_tags: Tags = None, discard: Tags = None,
                guests: Guests | None = None) -> None:
    """Pauses this rank's group, as amem.pause does, while the event loop runs on.

    The call waits on the daemon thread of amem.pause_async(), which carries out one such call after the other. So work
    that the event loop launches on the GPU meanwhile waits for the resume, and the event loop with it. A task that is
    cancelled stops waiting; a pause that has begun is not called off.

    Args:
        tags: As for amem.pause(), like all arguments.
        timeout: Seconds to wait for the other ranks.
        except_tags: All memory except that with these tags.
        discard: Tags whose bytes this pause drops.
        guests: What becomes of memory that other groups have open.

    Raises:
        Error: As amem.pause().
    """
    await asyncio.wrap_future(pause_async(tags, timeout, except_tags=except_tags, discard=discard, guests=guests))


async def resume(tags: Tags = None, timeout: float | None = None, *, except_tags: Tags = None) -> None:
    """Brings the memory of this rank's group back, as amem.resume does, while the event loop runs on; see pause().

    Args:
        tags: As for amem.resume(), like all arguments.
        timeout: Seconds to wait for the other ranks.
        except_tags: All memory except that with these tags.

    Raises:
        Error: As amem.resume().
    """
    await asyncio.wrap_future(resume_async(tags, timeout, except_tags=except_tags))
