"""RankClass: an actor class for frameworks, which make the actors."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from amem.errors import InvalidArgumentError

# Of a bundle's number, or None, and the env_vars so far.
_Environment = Callable[[int | None, Mapping[str, str]], dict[str, Any]]


def option(actor_class: Any, given: Mapping[str, Any], name: str) -> Any:
    """The option of the call, else the option of the class, as in Ray. None: neither has it."""
    of_call = given.get(name)
    return getattr(actor_class, "_default_options", {}).get(name) if of_call is None else of_call


class RankClass:
    """Replaces an actor class, and gives each actor the environment of a rank.

    The scheduling strategy of the call names the bundle. All other options of the call and the class stay, including the rest of the
    runtime_env.
    """

    def __init__(self, actor_class: Any, environment: _Environment,
                 number: Callable[[Any, int], int | None]) -> None:
        """`number`: returns the cluster's number of a placement group's bundle, or None."""
        if not hasattr(actor_class, "options") or not hasattr(actor_class, "remote"):
            raise InvalidArgumentError(f"{actor_class!r} is not an actor class. ray.remote() makes one")
        self._actor_class = actor_class
        self._environment = environment
        self._number = number

    def options(self, **given: Any) -> Any:
        strategy = given.get("scheduling_strategy")
        bundle = None
        if isinstance(strategy, PlacementGroupSchedulingStrategy):
            bundle = self._number(strategy.placement_group, strategy.placement_group_bundle_index)
        so_far = option(self._actor_class, given, "runtime_env") or {}
        variables = self._environment(bundle, so_far.get("env_vars") or {})
        return self._actor_class.options(**{**given, "runtime_env": {**so_far, **variables}})

    def remote(self, *arguments: Any, **named: Any) -> Any:
        return self.options().remote(*arguments, **named)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._actor_class, name)

    def __dir__(self) -> list[str]:
        return dir(self._actor_class)  # verl looks for the methods of the class there
