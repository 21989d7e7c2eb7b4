"""Rules: which actors of a Ray job are ranks, by the names of their classes. It does not need Ray. Plain data; any thread."""
from __future__ import annotations

import dataclasses
import fnmatch
import re
from collections.abc import Iterable
from typing import cast

from amem._arguments import Scope, group_name, scope_name
from amem.errors import InvalidArgumentError

SEPARATOR = ","
_LONGEST = 63  # of a group's name
_PARTS = re.compile(r"(?P<classes>[\w*?]+)=(?P<group>[^:,]+)(:(?P<scope>[^:,]*))?")
_PLACES = {"name": "the actor's name", "number": "0 for the first of these actors, 1 for the next", "job": "the Ray job"}
PLACES = ", ".join(f"{{{name}}} ({meaning})" for name, meaning in _PLACES.items())
"""What a group may have that each actor fills, for messages."""
_FORM = 'Write CLASS=GROUP:SCOPE, such as "WorkerDict=trainer:regions"'


@dataclasses.dataclass(frozen=True)
class Rule:
    """One rule.

    Attributes:
        classes: The name of an actor class, or a pattern of names with * and ?.
        group: The group of these actors. {name}, {number} and {job} stand for the actor's name, its number and its job.
        scope: The memory of these actors that is brokered.
    """

    classes: str
    group: str
    scope: Scope

    def __str__(self) -> str:
        return f"{self.classes}={self.group}:{self.scope}"

    def matches(self, class_name: str) -> bool:
        return fnmatch.fnmatchcase(class_name, self.classes)

    def has_number(self, actor_name: str | None) -> bool:
        """Whether the actor's number is in its group."""
        return "{number}" in self.group or ("{name}" in self.group and not actor_name)

    def group_of(self, class_name: str, actor_name: str | None, number: int, job: str) -> str:
        """The group of the rule's actor with this number. An actor without a name uses its class and number as the name."""
        name = actor_name or f"{class_name}_{number}"
        filled = self.group.replace("{number}", str(number)).replace("{job}", job).replace("{name}", name)
        # Ray lets actors have any name. The end of a long one is what differs.
        return re.sub(r"[^A-Za-z0-9._-]", "-", filled)[-_LONGEST:].lstrip(".-") or class_name


def parse_rule(text: str) -> Rule:
    """Reads CLASS=GROUP or CLASS=GROUP:SCOPE. The default scope is heap. InvalidArgumentError: the text is not a valid rule."""
    found = _PARTS.fullmatch(text)
    if found is None:
        raise InvalidArgumentError(f'"{text}" does not say which actors are in which group. {_FORM}')
    group = found["group"]
    for place in re.findall(r"{(.*?)}", group):
        if place not in _PLACES:
            raise InvalidArgumentError(f'"{text}" has {{{place}}}. A group can only have {PLACES}')
    try:
        group_name(group.replace("{number}", "0").replace("{name}", "name").replace("{job}", "job"))
        scope = cast(Scope, "heap" if found["scope"] is None else found["scope"])
        scope_name(scope)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f'"{text}": {error.text}') from None
    return Rule(found["classes"], group, scope)


def parse(texts: Iterable[str]) -> tuple[Rule, ...]:
    """Reads all rules of a job. The first that matches counts. InvalidArgumentError: a rule is not valid, or can never count."""
    rules = tuple(map(parse_rule, texts))
    if not rules:
        raise InvalidArgumentError(f"the list of rules is empty. {_FORM}")
    for at, rule in enumerate(rules):
        for earlier in rules[:at]:
            if fnmatch.fnmatchcase(rule.classes, earlier.classes):
                raise InvalidArgumentError(f'"{rule}" never counts, because "{earlier}" comes first and matches the same classes')
    return rules
