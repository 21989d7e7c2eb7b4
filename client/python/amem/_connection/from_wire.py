"""from_wire: the dataclass for a protobuf message. Plain functions; any thread."""
from __future__ import annotations

import dataclasses
import enum
import functools
import typing
from collections.abc import Callable
from typing import Any, TypeVar

_T = TypeVar("_T")


def from_wire(kind: type[_T], message: Any) -> _T:
    """The dataclass for a protobuf message of the same name."""
    plan = _plans.get(kind)
    if plan is None:
        hints = typing.get_type_hints(kind)
        fields: Any = dataclasses.fields(typing.cast(Any, kind))
        plan = _plans[kind] = [(field.name, _converter(hints[field.name])) for field in fields]
    return kind(**{name: convert(getattr(message, name)) for name, convert in plan})


# How each field of a dataclass is made from the message's.
_plans: dict[type, list[tuple[str, Callable[[Any], Any]]]] = {}


def _converter(hint: Any) -> Callable[[Any], Any]:
    if typing.get_origin(hint) is tuple:
        item = _converter(typing.get_args(hint)[0])
        return lambda values: tuple(map(item, values))
    if dataclasses.is_dataclass(hint):
        return functools.partial(from_wire, typing.cast(Any, hint))
    if issubclass(hint, enum.Enum):
        known = {member.value: member for member in hint}
        return lambda number: known.get(number, known[0])
    return typing.cast(Callable[[Any], Any], hint)  # int, str, bool: the value itself
