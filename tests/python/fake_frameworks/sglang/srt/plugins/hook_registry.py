import enum
import functools
import logging
import pkgutil


class HookType(enum.Enum):
    AROUND = "around"


class HookRegistry:
    _hooks = {}

    @classmethod
    def register(cls, target, hook, hook_type):
        cls._hooks[target] = hook

    @classmethod
    def apply_hooks(cls):
        for target, hook in cls._hooks.items():
            try:
                cls._apply(target, hook)
            except Exception:
                logging.getLogger(__name__).exception("Failed to apply hooks to %s", target)

    @staticmethod
    def _apply(target, hook):
        path, _, name = target.rpartition(".")
        owner = pkgutil.resolve_name(path)
        original = getattr(owner, name)
        wrapped = functools.wraps(original)(lambda *arguments, **options: hook(original, *arguments, **options))
        setattr(owner, name, staticmethod(wrapped) if isinstance(owner.__dict__[name], staticmethod) else wrapped)
