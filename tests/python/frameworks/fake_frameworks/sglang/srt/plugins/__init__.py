"""load_plugins() with the entry point that amem's distribution has."""
import importlib
import logging

from sglang.srt.plugins.hook_registry import HookRegistry


def load_plugins() -> None:
    try:
        importlib.import_module("amem.sglang").register()
    except Exception:
        logging.getLogger(__name__).exception("Failed to execute general plugin: amem")
    HookRegistry.apply_hooks()
