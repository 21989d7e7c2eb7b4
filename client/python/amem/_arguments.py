"""The arguments of this package's calls: groups, tags, timeouts, choices. Pure functions; any thread."""
from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Literal, Union

from amem.errors import InvalidArgumentError

if TYPE_CHECKING:  # a rank that names its choices by text need not load the messages
    from amem.messages import Form, GuestPolicy, MetricsFormat, Policy, Progress

Tags = Union[str, Iterable[str], None]
"""One tag, several tags (at most 64), or None for all memory."""

Several = Union["list[str]", "tuple[str, ...]"]
Groups = Union[str, Several]
"""One group, or several."""

Scope = Literal["nccl", "regions", "heap"]
"""The memory of a rank that is brokered. Each choice includes the one before it."""

Guests = Union["GuestPolicy", Literal["pin", "refuse"]]
"""What a pause does with memory that guests still have open."""

PolicyChoice = Union["Policy", Literal["keep", "discard"]]
"""What a pause does with the bytes of a tag."""

FormChoice = Union["Form", Literal["auto", "dense", "sparse"]]
"""How a pause copies what it keeps."""

FormatChoice = Union["MetricsFormat", Literal["openmetrics", "prometheus"]]
"""The format of the metrics."""

OnProgress = Callable[["Progress"], object]
"""A function that is called for each step of an operation."""

MAX_TAGS = 64  # broker.proto: PauseRequest.tags
_LONGEST_MS = (1 << 32) - 1
_GROUP = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,62}")
_OWNER = re.compile(r"[!-~]{1,300}")


def group_name(name: str) -> str:
    """Returns the name. InvalidArgumentError: it is not a valid group name."""
    if not _GROUP.fullmatch(name):
        raise InvalidArgumentError(
            f'"{name}" is not a valid group name. Use 1 to 63 characters of [A-Za-z0-9._-], and do not begin with "." or "-"')
    return name


def group_address(address: str) -> str:
    """Returns the address: a name, NAME:JOB of a launcher's job, or NAME@UID of another user. InvalidArgumentError: it is none of them."""
    whole, at, owner = address.partition("@")
    name, colon, job = whole.partition(":")
    group_name(name)
    if colon:
        group_name(job)
    if at and not _OWNER.fullmatch(owner):
        raise InvalidArgumentError(f'"{address}" does not name the owner of the group. Write NAME@UID')
    return address


def group_list(*groups: Groups) -> list[str]:
    """All names in one list. InvalidArgumentError: the list is empty, or a name is in it twice."""
    names = [name for each in groups for name in ([each] if isinstance(each, str) else list(each))]
    if not names:
        raise InvalidArgumentError("the list of groups is empty. Name at least one group")
    for name in names:
        if names.count(group_address(name)) > 1:
            raise InvalidArgumentError(f'group "{name}" is named twice')
    return names


def groups_field(names: list[str], one: str = "group", several: str = "groups") -> dict[str, object]:
    """The fields of broker.proto. An older broker knows only the field for one group, and refuses the other field."""
    return {one: names[0]} if len(names) == 1 else {several: names}


def tag_list(tags: Tags) -> list[str]:
    """The tags as a list, empty for all memory."""
    if tags is None:
        return []
    names = [tags] if isinstance(tags, str) else list(tags)
    if not names:
        # An empty selection must not turn into everything.
        raise InvalidArgumentError("the list of tags is empty. Name at least one tag, or pass None for all memory")
    if len(names) > MAX_TAGS:
        raise InvalidArgumentError(f"the list has {len(names)} tags. One call can pause or resume at most {MAX_TAGS}")
    for name in names:
        tag_name(name)
    return names


def selection(tags: Tags, except_tags: Tags) -> dict[str, list[str]]:
    """Both as lists, with the names of broker.proto. InvalidArgumentError: both are given."""
    if tags is not None and except_tags:
        raise InvalidArgumentError("tags and except_tags exclude each other. Pass one of them")
    return {"tags": tag_list(tags), "except_tags": optional_tags(except_tags)}


def optional_tags(tags: Tags) -> list[str]:
    """As tag_list(), but None and an empty list both mean no tags."""
    names = [tags] if isinstance(tags, str) else list(tags or ())
    return tag_list(names) if names else []


def _number(chosen: object, numbers: dict[str, int], what: str) -> int:
    """The number of a choice in the protocols. The choice is a member of its enum, or the member's name in lower case."""
    name = chosen.name.lower() if isinstance(chosen, enum.Enum) else chosen
    if not isinstance(name, str) or name not in numbers:
        names = list(numbers)
        raise InvalidArgumentError(f"{chosen!r} is not a valid {what}. Use {', '.join(names[:-1])} or {names[-1]}")
    return numbers[name]


def guest_policy(guests: Guests | None) -> int:
    """The number in the protocols. None is 0: the broker's setting."""
    return 0 if guests is None else _number(guests, {"pin": 1, "refuse": 2}, "choice for guests")


def policy_number(policy: PolicyChoice) -> int:
    """The number in the protocols."""
    return _number(policy, {"keep": 1, "discard": 2}, "policy")


def form_number(form: FormChoice) -> int:
    """The number in the protocols."""
    return _number(form, {"auto": 1, "dense": 2, "sparse": 3}, "form of saved bytes")


def format_number(metrics_format: FormatChoice) -> int:
    """The number in the protocols."""
    return _number(metrics_format, {"openmetrics": 1, "prometheus": 2}, "metrics format")


def scope_name(scope: Scope) -> str:
    """Returns the scope. InvalidArgumentError: it is not a valid scope."""
    if scope not in ("nccl", "regions", "heap"):
        raise InvalidArgumentError(f'"{scope}" is not a valid scope. Use nccl, regions or heap')
    return scope


def tag_name(tag: str) -> str:
    """Returns the tag. InvalidArgumentError: it is not a valid tag."""
    if not 1 <= len(tag.encode()) <= 31 or "\0" in tag:
        raise InvalidArgumentError(f'"{tag}" is not a valid tag. Use 1 to 31 bytes')
    return tag


def milliseconds(timeout: float | None) -> int:
    """Converts seconds for the protocols. None is 0: the default."""
    if timeout is None:
        return 0
    if not timeout >= 0:
        raise InvalidArgumentError(f"the timeout {timeout} s is not valid. It must be 0 or more")
    return int(min(max(1.0, timeout * 1000), _LONGEST_MS))


def rank_set(ranks: tuple[str, int] | None) -> tuple[str, int] | None:
    """Checks the name and the number of ranks of a set."""
    if ranks is None:
        return None
    name, count = ranks
    if not 1 <= len(name.encode()) <= 63 or not name.isprintable():
        raise InvalidArgumentError(f"the set {name!r} of ranks needs a name of 1 to 63 printable characters")
    if not 1 <= count <= 0xFFFFFFFF:
        raise InvalidArgumentError(f"the set {name!r} needs at least one rank, not {count}")
    return name, count
