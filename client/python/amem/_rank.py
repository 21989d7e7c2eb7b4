"""A rank's calls: pause and resume of its own group from inside, its group, its figures."""
from __future__ import annotations

import os

from amem import _shim, _stats
from amem._arguments import (
    Guests, PolicyChoice, Tags, group_name, guest_policy, milliseconds, optional_tags, policy_number, selection, tag_name)
from amem._stats import Stats
from amem.errors import InvalidArgumentError


def is_active() -> bool:
    """Says whether this process is a rank: the shim is loaded and has a session with the broker.

    The first call opens the session if nothing has yet. Call it when the program has initialised CUDA.

    Returns:
        False without a shim, and with one that is inert: AMEM_DISABLE=1, no broker, or a child of fork.
    """
    return _shim.is_active()


def group() -> str:
    """Says which group this process belongs to.

    Returns:
        The shim's group, where there is a shim; else the one that a rank started from here would have: AMEM_GROUP of the
        environment, else AMEM_GROUPID, else "default".
    """
    if name := _shim.group():
        return name
    name = os.environ.get("AMEM_GROUP") or os.environ.get("AMEM_GROUPID") or ""
    try:
        return group_name(name)
    except InvalidArgumentError:
        return "default"


def set_group(name: str) -> None:
    """Moves this process to another group; only before its first brokered allocation. Goes before AMEM_GROUP.

    Args:
        name: The group's name.

    Raises:
        InvalidArgumentError: No group can have this name.
        FailedPreconditionError: The process has joined its group already, or it has no shim.
    """
    _shim.call("amem_shim_set_group", group_name(name).encode())


def pause(tags: Tags = None, timeout: float | None = None, *, except_tags: Tags = None,
          discard: Tags = None, guests: Guests | None = None) -> None:
    """Pauses this rank's group: releases its GPU memory and keeps every address.

    Takes effect when every rank of the group has called it; returns when the group is paused. Returns at once when it is
    paused already. After a pause of everything, threads of this process that launch GPU work wait until resume() has
    returned. Any thread may call it; other threads run on while it waits.

    Args:
        tags: One tag or at most 64. Only memory of these leaves, every rank asks for the same ones, and the group runs
            on: the program must not let the GPU touch that memory until it has been resumed. None: everything.
        timeout: Seconds to wait for the other ranks; None: AMEM_TIMEOUT of the environment, else 60.
        except_tags: Instead of `tags`: all memory except that with these tags.
        discard: Tags whose bytes this pause drops, whatever their policy; they come back zeroed. Not "nccl".
        guests: What becomes of memory that ranks of other groups have open still when the broker has waited for them
            (`deadlines.guests`). "pin": it stays on its device. "refuse": FailedPreconditionError names them, and the
            group runs on. None: as the broker is configured.

    Raises:
        FailedPreconditionError: There is no shim in this process.
        UnavailableError: There is no broker.
        InvalidArgumentError: A tag, a time or a way with guests cannot be.
        DeadlineExceededError: Some ranks did not ask in time; the group runs on.
        NotFoundError: The group has no memory of a tag; the group runs on.
        ResourceExhaustedError: The host pool cannot hold the bytes; the group runs on.
        AbortedError: A rank died or failed. The group runs on or, when something had been released already, is paused
            with its bytes safe.
    """
    chosen = selection(tags, except_tags)
    _shim.operate("amem_shim_pause", chosen["tags"], chosen["except_tags"], optional_tags(discard),
                  guest_policy(guests), milliseconds(timeout))


def resume(tags: Tags = None, timeout: float | None = None, *, except_tags: Tags = None) -> None:
    """Brings the memory of this rank's group back, at the same addresses. As pause() otherwise.

    When it fails the group stays as it was and its bytes are safe.

    Args:
        tags: One tag or at most 64. The group runs afterwards, and must not touch what is still paused. None: everything.
        timeout: Seconds to wait for the other ranks; None: AMEM_TIMEOUT of the environment, else 60.
        except_tags: Instead of `tags`: all memory except that with these tags.

    Raises:
        ResourceExhaustedError: A device has too little free memory; the text has both numbers.
        DataLossError: With AMEM_VERIFY=1, bytes did not come back as they were saved.
        Error: The other errors of pause().
    """
    chosen = selection(tags, except_tags)
    _shim.operate("amem_shim_resume", chosen["tags"], chosen["except_tags"], [], 0, milliseconds(timeout))


def set_policy(tag: str, policy: PolicyChoice) -> None:
    """Says what a pause does from now on with the bytes of a tag of this rank's group.

    One rank's call is enough. It goes before what regions say; what an operator has set goes before it.

    Args:
        tag: The tag, which need not have memory yet.
        policy: Policy.KEEP or "keep", Policy.DISCARD or "discard".

    Raises:
        InvalidArgumentError: The tag or the policy cannot be; or "discard" is given for "nccl".
        FailedPreconditionError: There is no shim in this process, the group is not running, or some memory of the tag is
            paused.
    """
    _shim.call("amem_shim_set_policy", tag_name(tag).encode(), policy_number(policy))


def stats() -> Stats:
    """Says what this process holds, as the shim counts it without asking the broker.

    Returns:
        The figures at the time of the call, in bytes.

    Raises:
        FailedPreconditionError: There is no shim in this process.
    """
    return _stats.read(_shim.stats_json())
