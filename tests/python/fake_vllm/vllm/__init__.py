"""As much of vLLM 0.26.0 as amem.vllm meets, with its names and its order of calls, for machines without vLLM. The memory is
the simulated driver's, by ctypes. `FAKE_VLLM_VERSION` is another version; before 0.25 there are no backends."""
import os
import sys
import types

from vllm import _engine, _worker

__version__ = os.environ.get("FAKE_VLLM_VERSION", "0.26.0+fake")
_OLD = tuple(int(each) for each in __version__.split(".")[:2]) < (0, 25)


def _serve():
    from vllm import _server

    return _server.main()


def _module(name, **members):
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
if not _OLD:
    _module("device_allocator.sleep_mode_backend", SleepModeBackendFactory=_worker.SleepModeBackendFactory,
            CuMemBackend=_worker.CuMemBackend)
_module("v1.worker.gpu_worker", Worker=_worker.OldWorker if _OLD else _worker.Worker)
_module("v1.executor.abstract", Executor=_engine.Executor)
_module("v1.engine.core", EngineCore=_engine.EngineCore)
_module("engine.arg_utils", EngineArgs=_engine.EngineArgs)
_module("entrypoints.cli.main", main=_serve)
_module("inputs", TokensPrompt=dict)
_module("plugins", load_general_plugins=_engine.load_general_plugins)

LLM = _engine.LLM
SamplingParams = types.SimpleNamespace
