"""As much of vLLM as amem.vllm meets, with its names and its order of calls, for machines without vLLM. The memory is the
simulated driver's, by ctypes. `FAKE_VLLM_VERSION` is the version, else 0.26.0; _shapes.py says what differs.
`FAKE_VLLM_LACKS=module:Class.name` takes a function away, as a version that has moved it."""
import importlib
import os
import sys
import types

from vllm import _engine, _worker
from vllm._shapes import __version__, since


def _serve() -> None:
    from vllm import _server

    return _server.main()


def _module(name: str, **members: object) -> None:
    parent = "vllm"
    for part in name.split("."):
        full = f"{parent}.{part}"
        if full not in sys.modules:
            sys.modules[full] = types.ModuleType(full)
            sys.modules[full].__path__ = []
            setattr(sys.modules[parent], part, sys.modules[full])
        parent = full
    vars(sys.modules[parent]).update(members)


_module("device_allocator.cumem", CuMemAllocator=_worker.CuMemAllocator)
if since(25):
    _module("device_allocator.sleep_mode_backend", SleepModeBackendFactory=_worker.SleepModeBackendFactory,
            CuMemBackend=_worker.CuMemBackend)
_module("v1.worker.gpu_worker", Worker=_worker.Worker, **_worker.connectors())
_module("v1.executor.abstract", Executor=_engine.Executor)
_module("v1.engine.core", EngineCore=_engine.EngineCore)
_module("engine.arg_utils", EngineArgs=_engine.EngineArgs)
_module("entrypoints.cli.main", main=_serve)
_module("inputs", TokensPrompt=dict)
_module("plugins", load_general_plugins=_engine.load_general_plugins)

LLM = _engine.LLM
SamplingParams = types.SimpleNamespace

if "FAKE_VLLM_LACKS" in os.environ:
    _file, _, _place = os.environ["FAKE_VLLM_LACKS"].partition(":")
    _class, _, _function = _place.partition(".")
    delattr(getattr(importlib.import_module(_file), _class), _function)
