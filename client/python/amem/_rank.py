"""The calls of a rank: pause and resume its own group, name its group, read its figures."""
from __future__ import annotations

import os

from amem import _shim, _stats
from amem._arguments import (
    Guests, PolicyChoice, Tags, group_name, guest_policy, milliseconds, optional_tags, policy_number, rank_set, selection,
    tag_name)
from amem._stats import Stats
from amem.errors import InvalidArgumentError


def is_active() -> bool:
    """Tells whether this process is a rank: the shim is loaded and has a session with the broker.

    The first call opens the session if the process has none yet. Call it after the program has initialised CUDA.

    Returns:
        False without a shim, and with an inactive shim: with AMEM_DISABLE=1, without a broker, or in a child of fork.
    """
    return _shim.is_active()


def group() -> str:
    """Returns the group of this process.

    Returns:
        With a shim: the shim's group. Without one: the group of a rank that this process would start, which is AMEM_GROUP of
        the environment, else AMEM_GROUPID, else "default".
    """
    if name := _shim.group():
        return name
    name = os.environ.get("AMEM_GROUP") or os.environ.get("AMEM_GROUPID") or ""
    try:
        return group_name(name)
    except InvalidArgumentError:
        return "default"


def set_group(name: str) -> None:
    """Sets the group of this process. It overrides AMEM_GROUP. Call it before the first brokered allocation.

    Args:
        name: The group's name.

    Raises:
        InvalidArgumentError: The name is not valid.
        FailedPreconditionError: The process has already joined its group, or it has no shim.
    """
    _shim.call("amem_shim_set_group", group_name(name).encode())


def pause(tags: Tags = None, timeout: float | None = None, *, except_tags: Tags = None,
          discard: Tags = None, guests: Guests | None = None, deep: bool = False, force: bool = False,
          ranks: tuple[str, int] | None = None) -> None:
    """Pauses this rank's group, or some memory of this rank: frees the GPU memory and keeps every address.

    A pause of everything begins when every rank of the group has called pause(). A pause of tags is of this rank, and of the
    ranks that share some of this memory with it: these must call it, too. All others run on. The call returns when the memory
    has left, and returns at once if it is already paused. After a pause of everything, threads of this process that launch
    GPU work wait until resume() has returned. Any thread may call pause(). Other threads run on while it waits.

    Args:
        tags: One tag, or at most 64. The pause takes only memory with these tags, and the group runs on. The program must not
            let the GPU touch that memory before the resume. None: everything.
        timeout: Timeout in seconds for the other ranks to call, and of tags also for the devices of these ranks to become idle.
            None: AMEM_TIMEOUT of the environment, else 60, and 1800 for tags.
        except_tags: Instead of `tags`: all memory except memory with these tags.
        discard: Tags whose bytes this pause drops, whatever their policy. A resume provides zeros for them. Not "nccl", and
            "heap" only with `force`.
        guests: What the pause does with memory that ranks of other groups still have open after the broker has waited for them
            (500 ms). "pin": the memory stays on its device. "refuse": the call raises FailedPreconditionError,
            which names these ranks, and the group runs on. None: the broker's setting.
        deep: The driver then checkpoints the processes of all ranks, so that nothing of them stays on the GPUs. Until resume(),
            which restores them, each CUDA call of these processes waits. Also for a group that is paused already. Every rank
            must pass it. Only where the broker allows it (`deep.enabled`), and not with tags.
        force: `discard` may have "heap": all memory that no region names, such as weights and optimizer state.
        ranks: A name and a number, with tags. The call is one operation, all or none, with the calls of so many ranks that pass
            the same name, such as the ranks of one engine.

    Raises:
        FailedPreconditionError: This process has no shim, or the broker does not allow deep pauses.
        UnavailableError: There is no broker.
        InvalidArgumentError: A tag, the timeout or the choice for guests is not valid, or "heap" would be lost without `force`.
        DeadlineExceededError: Some ranks did not call pause() in time. The group runs on.
        NotFoundError: The group has no memory with a tag. The group runs on.
        ResourceExhaustedError: The host pool has too little space for the bytes. The group runs on.
        AbortedError: A rank died or failed. The group runs on. If the pause had already freed memory, the group is paused and
            its bytes are safe.
    """
    chosen = selection(tags, except_tags)
    _shim.operate("amem_shim_pause", chosen["tags"], chosen["except_tags"], optional_tags(discard),
                  guest_policy(guests), milliseconds(timeout), bool(deep), bool(force), rank_set(ranks))


def resume(tags: Tags = None, timeout: float | None = None, *, except_tags: Tags = None,
           ranks: tuple[str, int] | None = None) -> None:
    """Resumes this rank's group, or some memory of this rank: restores the memory at the same addresses.

    As with pause(), every rank must call a resume of everything. While the group runs, a resume of tags is of this rank and of
    the ranks that share some of this memory. If it fails, everything stays as it was and the bytes are safe.

    Args:
        tags: One tag, or at most 64. The resume restores only memory with these tags. The group runs afterwards, but must not
            touch memory that is still paused. None: everything.
        timeout: Timeout in seconds for the other ranks to call. None: AMEM_TIMEOUT of the environment, else 60, and 1800 for
            tags.
        except_tags: Instead of `tags`: all memory except memory with these tags.
        ranks: As of pause().

    Raises:
        ResourceExhaustedError: A device has too little free memory. The text has both sizes.
        DataLossError: With AMEM_VERIFY=1: restored bytes differ from the saved ones.
        Error: The other errors of pause().
    """
    chosen = selection(tags, except_tags)
    _shim.operate("amem_shim_resume", chosen["tags"], chosen["except_tags"], [], 0, milliseconds(timeout),
                  ranks=rank_set(ranks))


def set_policy(tag: str, policy: PolicyChoice, *, force: bool = False) -> None:
    """Sets what a pause does from now on with the bytes of a tag of this rank's group.

    One rank needs to call it. The policy overrides the policies of regions. A policy that an operator sets overrides both.

    Args:
        tag: The tag. It need not have memory yet.
        policy: Policy.KEEP or "keep", Policy.DISCARD or "discard".
        force: The policy of "heap" may be "discard". Each pause then loses all memory that no region names.

    Raises:
        InvalidArgumentError: The tag or the policy is not valid, or the policy of "nccl", or of "heap" without `force`, is
            "discard".
        FailedPreconditionError: This process has no shim, the group is not running, or some memory with the tag is paused.
    """
    number = policy_number(policy)
    forced = force and number == policy_number("discard")
    _shim.call("amem_shim_set_policy", tag_name(tag).encode(), _shim.DISCARD_FORCED if forced else number)


def stats() -> Stats:
    """Returns how much GPU memory this process holds. The shim counts it and does not ask the broker.

    Returns:
        The figures at the time of the call, in bytes.

    Raises:
        FailedPreconditionError: This process has no shim.
    """
    return _stats.read(_shim.stats_json())
