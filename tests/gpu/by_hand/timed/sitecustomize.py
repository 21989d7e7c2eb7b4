"""Times functions of the frameworks, for frameworks.py. Each Python process that has this folder in its path imports it at its start.

A call appends a line to the file FRAMEWORKS_TIMES: a JSON object with `name`, `pid`, `at` (when it began, seconds since 1970) and
`seconds`. It waits for the GPU before and after the function, so that the time is the function's own, but never while an engine is
asleep. While a call of one kind runs, further calls of that kind do not count, in any thread. It changes modules after their import, also
when something else, such as amem, waits for the same modules.
"""

import functools
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import sys
import threading
import time

FILE = os.environ.get("FRAMEWORKS_TIMES", "")


def _where(engine, device, *arguments, **options):
    """verl: engine.to(device)"""
    return "leave" if device == "cpu" else "return"


# Module: {function: name, or a function that tells it from the arguments}. What the trainer does with its own memory is leave and return.
FUNCTIONS = {
    "vllm.v1.executor.abstract": {"Executor.sleep": "sleep", "Executor.wake_up": "wake"},
    "trl.generation.vllm_generation": {"VLLMGeneration.sync_weights": "update"},
    "verl.workers.engine.fsdp.transformer_impl": {"FSDPEngine.to": _where},
    "openrlhf.utils.deepspeed.deepspeed_utils": {"offload_deepspeed_states": "leave", "reload_deepspeed_states": "return"},
    "amem.frameworks.phases": {"take": "leave", "bring": "return", "State.here": "return"},
}
_kinds = set()  # the kinds of the calls that are running
_lock = threading.Lock()  # of _kinds
_open = threading.local()  # the modules that this thread looks for


def _wait():
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "cuda") and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def timed(function, name):
    @functools.wraps(function)
    def call(*arguments, **options):
        called = name if isinstance(name, str) else name(*arguments, **options)
        kind = "trainer" if called in ("leave", "return") else called
        with _lock:
            within = kind in _kinds
            _kinds.add(kind)
        if within:
            return function(*arguments, **options)
        try:
            if called != "wake":
                _wait()
            at, began = time.time(), time.perf_counter()
            answer = function(*arguments, **options)
            if called != "sleep":
                _wait()
        finally:
            with _lock:
                _kinds.remove(kind)
        line = json.dumps({"name": called, "pid": os.getpid(), "at": at, "seconds": time.perf_counter() - began}) + "\n"
        file = os.open(FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            os.write(file, line.encode())
        finally:
            os.close(file)
        return answer
    return call


def change(module):
    for path, name in FUNCTIONS[module.__name__].items():
        *owners, last = path.split(".")
        owner = functools.reduce(getattr, owners, module)
        setattr(owner, last, timed(getattr(owner, last), name))


class Finder(importlib.abc.MetaPathFinder):
    """Lets the later finders find a module, and changes it when its loader has run it."""

    def find_spec(self, name, path=None, target=None):
        if name not in FUNCTIONS or name in vars(_open).setdefault("found", []):
            return None
        _open.found.append(name)  # another finder of this sort asks all finders, too
        try:
            finds = [getattr(finder, "find_spec", None) for finder in sys.meta_path[sys.meta_path.index(self) + 1:]]
            spec = next(filter(None, (find(name, path, target) for find in finds if find)), None)
        finally:
            _open.found.remove(name)
        if spec is None:
            return None
        run = getattr(spec.loader, "exec_module", None)
        if run is not None:
            def exec_module(module):
                run(module)
                change(module)
            vars(spec.loader)["exec_module"] = exec_module
        return spec


def _import_the_next():
    """The sitecustomize that this one hides."""
    here = os.path.dirname(os.path.abspath(__file__))
    others = [each for each in sys.path if os.path.abspath(each) != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if FILE:
    sys.meta_path.insert(0, Finder())
_import_the_next()
