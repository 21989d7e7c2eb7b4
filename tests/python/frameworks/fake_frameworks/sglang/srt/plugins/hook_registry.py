import enum
import functools
import logging
import pkgutil
from collections.abc import Callable
from typing import Any


class HookType(enum.Enum):
    AROUND = "around"


class HookRegistry:
    _hooks: dict[str, Callable[..., Any]] = {}

    @classmethod
    def register(cls, target: str, hook: Callable[..., Any], hook_type: HookType) -> None:
        cls._hooks[target] = hook

    @classmethod
    def apply_hooks(cls) -> None:
        for target, hook in cls._hooks.items():
            try:
                cls._apply(target, hook)
            except Exception:
                logging.getLogger(__name__).exception("Failed to apply hooks to %s", target)

    @staticmethod
    def _apply(target: str, hook: Callable[..., Any]) -> None:
        path, _, name = target.rpartition(".")
        owner = pkgutil.resolve_name(path)
        original = getattr(owner, name)
        wrapped = functools.wraps(original)(lambda *arguments, **options: hook(original, *arguments, **options))
        setattr(owner, name, staticmethod(wrapped) if isinstance(owner.__dict__[name], staticmethod) else wrapped)
