"""The requests of the control API, and how to read the answers. amem.Broker and amem.aio.Broker share them.

A Question asks or sets something, and may be sent twice. A Command begins an operation. Pure functions and values; any thread.
Functions check arguments and raise InvalidArgumentError. A call without arguments is a Question where it is made.
"""
from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from amem._arguments import (
    FormatChoice, FormChoice, Groups, Guests, PolicyChoice, Tags, form_number, format_number, group_address, group_list,
    groups_field, guest_policy, milliseconds, optional_tags, policy_number, selection, tag_name)
from amem.errors import InvalidArgumentError
from amem.messages import AllocationInfo, PastOperation, Progress, RankInfo, StageInfo, from_wire

Answer = TypeVar("Answer")
_Message = TypeVar("_Message")

# Every phase has a deadline in the broker, so this only ends the wait for a broker that hangs.
_CONFIGURED_AT_MOST = _MARGIN = 300.0


@dataclasses.dataclass(frozen=True)
class Question(Generic[Answer]):
    """One call. `read` makes the result from the message that answers it, or from a list of messages if the call streams.

    `wait`: how many seconds the broker may take beyond the timeout of a question. None: any time.
    """

    name: str
    fields: dict[str, Any]
    read: Callable[[Any], Answer]
    wait: float | None = 0.0

    def limit(self, query_timeout: float) -> float | None:
        """The timeout of the call."""
        return None if self.wait is None else query_timeout + self.wait


@dataclasses.dataclass(frozen=True)
class Command:
    """One operation.

    `count`: how many groups report its end, in the order of `groups`. `wait`: the timeout of the call in seconds. It is later than
    each deadline of the broker.
    """

    name: str
    fields: dict[str, Any]
    groups: list[str]
    count: int
    wait: float

    def on(self, nodes: Sequence[str]) -> Command:
        """The same operation on the groups of all these nodes."""
        return dataclasses.replace(self, fields={**self.fields, "nodes": list(nodes)}, count=self.count * len(nodes))

    def ordered(self, last: list[Progress]) -> list[Progress]:
        """The last Progress of each group, in the order of the groups in the call."""
        return sorted(last, key=lambda progress: self.groups.index(progress.group))


def all_of(kind: type[_Message], messages: Any) -> list[_Message]:
    """The messages, which are of one kind."""
    return [from_wire(kind, each) for each in messages]


def _or_all(group: str) -> str:
    return group_address(group) if group else ""


def metrics(metrics_format: FormatChoice) -> Question[str]:
    return Question("GetMetrics", {"format": format_number(metrics_format)}, lambda answer: str(answer.text))


def history(group: str, transaction: int, most: int, spans: bool) -> Question[list[PastOperation]]:
    for name, value in (("transaction", transaction), ("most", most)):
        if value < 0:
            raise InvalidArgumentError(f"{name} is {value}. It must be 0 or more")
    fields = {"group": _or_all(group), "transaction": transaction, "most": most, "spans": spans}
    return Question("ListHistory", fields, lambda answer: all_of(PastOperation, answer.operations))


def upgrade() -> Question[tuple[str, str]]:
    return Question("Upgrade", {}, lambda answer: (str(answer.from_version), str(answer.to_version)))


def ranks(group: str) -> Question[list[RankInfo]]:
    return Question("ListRanks", {"group": _or_all(group)}, lambda answer: all_of(RankInfo, answer.ranks))


def allocations(group: str, tag: str | None) -> Question[list[AllocationInfo]]:
    def read(answer: Any) -> list[AllocationInfo]:
        return [each for each in all_of(AllocationInfo, answer) if tag is None or each.tag == tag]

    return Question("ListAllocations", {"group": _or_all(group)}, read)


def set_policy(group: str, tag: str, policy: PolicyChoice | None, save: FormChoice | None, force: bool) -> Question[None]:
    if policy is None and save is None:
        raise InvalidArgumentError("set policy, save or both")
    fields = {"group": group_address(group), "tag": tag_name(tag), "policy": 0 if policy is None else policy_number(policy),
              "form": 0 if save is None else form_number(save), "force": bool(force)}
    return Question("SetPolicy", fields, lambda answer: None)


def turns(stage: str) -> Question[list[StageInfo]]:
    return Question("Turns", {"stage": stage}, lambda answer: all_of(StageInfo, answer.stages))


def prepare(groups: Groups, timeout: float | None) -> Question[int]:
    fields = {"groups": group_list(groups), "timeout_ms": milliseconds(timeout)}
    return Question("Prepare", fields, lambda answer: int(answer.pinned_bytes), None if timeout is None else timeout)


def lease(group: str, timeout: float | None) -> Question[float]:
    fields = {"group": group_address(group), "timeout_ms": milliseconds(timeout)}
    return Question("Lease", fields, lambda answer: int(answer.waited_us) / 1e6, None if timeout is None else timeout)


def end_lease(group: str) -> Question[None]:
    return Question("Lease", {"group": group_address(group), "yield": True}, lambda answer: None)


def set_turn(group: str, stage: str | None, weight: int | None, priority: int | None,
             longest_wait: float | None, leave_first: Tags = None, return_order: Tags = None) -> Question[None]:
    fields: dict[str, Any] = {"group": group_address(group)}
    if stage is not None:
        fields.update(set_stage=True, stage=stage)
    if weight is not None:
        if not 1 <= weight <= 100:
            raise InvalidArgumentError(f"weight is {weight}. It must be 1 to 100")
        fields.update(weight=weight)
    if priority is not None:
        if not -100 <= priority <= 100:
            raise InvalidArgumentError(f"priority is {priority}. It must be -100 to 100")
        fields.update(set_priority=True, priority=priority)
    if longest_wait is not None:
        if not longest_wait >= 0:
            raise InvalidArgumentError(f"longest_wait is {longest_wait}. It must be 0 or more")
        fields.update(set_longest_wait=True, longest_wait_ms=int(min(longest_wait * 1000, 2**32)))
    if leave_first is not None:
        fields.update(set_leave_first=True, leave_first=optional_tags(leave_first))
    if return_order is not None:
        fields.update(set_return_order=True, return_order=optional_tags(return_order))
    if len(fields) == 1:
        raise InvalidArgumentError("set stage, weight, priority, longest_wait, leave_first or return_order")
    return Question("SetTurn", fields, lambda answer: None)


def pause(group: Groups, tags: Tags, timeout: float | None, except_tags: Tags, discard: Tags, guests: Guests | None,
          deep: bool, force: bool) -> Command:
    names = group_list(group)
    fields = {**groups_field(names), **selection(tags, except_tags), "discard": optional_tags(discard), "guests": guest_policy(guests),
              "deep": bool(deep), "force": bool(force)}
    return _command("Pause", names, 1, timeout, fields)


def resume(group: Groups, tags: Tags, timeout: float | None, except_tags: Tags) -> Command:
    names = group_list(group)
    return _command("Resume", names, 1, timeout, {**groups_field(names), **selection(tags, except_tags)})


def swap(out: Groups, into: Groups, timeout: float | None, discard: Tags, guests: Guests | None, deep: bool,
         force: bool) -> Command:
    going, coming = group_list(out), group_list(into)
    fields = {**groups_field(going, "out", "out_groups"), **groups_field(coming, "in", "in_groups"), "discard": optional_tags(discard),
              "guests": guest_policy(guests), "deep": bool(deep), "force": bool(force)}
    return _command("Swap", group_list(going, coming), 2, timeout, fields)


def watch(group: str) -> dict[str, Any]:
    """The fields of the call."""
    return {"group": _or_all(group)}


def _command(name: str, groups: list[str], parts: int, timeout: float | None, fields: dict[str, Any]) -> Command:
    fields["timeout_ms"] = milliseconds(timeout)
    wait = parts * ((_CONFIGURED_AT_MOST if timeout is None else fields["timeout_ms"] / 1000) + _MARGIN)
    return Command(name, fields, groups, len(groups), wait)
