"""Modules that are imported when they are first used, because they need what not every installation has. Any thread."""
from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from typing import Any

_EXTRAS = {"grpc": "broker", "google": "broker", "ray": "ray", "cryptography": "ray"}
_PACKAGES = {"grpc": "grpcio", "google": "protobuf"}  # that provide the module, where their name is another


def attribute(package: str, name: str, modules: Mapping[str, str]) -> Any:
    """The attribute of a package. `modules`: which module has it. ModuleNotFoundError: what it needs is not installed."""
    if name not in modules:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(modules[name]), name)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in _EXTRAS:
            raise
        raise ModuleNotFoundError(f"{package}.{name} requires {_PACKAGES.get(missing, missing)}. Install it: pip install "
                                  f"'./amem_gpu-….whl[{_EXTRAS[missing]}]', from a file", name=error.name) from error


def has_grpc() -> bool:
    """Whether what needs grpcio can be used."""
    return importlib.util.find_spec("grpc") is not None
