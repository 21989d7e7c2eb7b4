"""Evaluator: a Python process of a group that evaluates what a test sends it, as a training script that uses the driver."""
from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from sim_node.child import Told

if TYPE_CHECKING:
    from sim_node.node import Node

SCRIPT = r"""
import atexit, ctypes, json, queue, sys, threading, time

cuda = ctypes.CDLL("libcuda.so.1")


def made(name, *arguments):
    "What a call makes."
    value = ctypes.c_uint64()
    result = getattr(cuda, name)(ctypes.byref(value), *arguments)
    assert result == 0, (name, result)
    return value


class Watchdog:
    "Asks about an event and a stream again and again, as PyTorch's thread for NCCL does."
    def __init__(self, event, stream):
        self.asked, self.longest, self.results = 0, 0.0, set()
        self._event, self._stream = event, stream
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self):
        cuda.cuCtxSetCurrent(context)
        while True:
            began = time.monotonic()
            for call, what in ((cuda.cuEventQuery, self._event), (cuda.cuStreamQuery, self._stream),
                               (cuda.cuEventSynchronize, self._event), (cuda.cuStreamSynchronize, self._stream)):
                self.results.add(call(what))
            self.longest = max(self.longest, time.monotonic() - began)
            self.asked += 1
            time.sleep(0.01)

    def told(self):
        return {"asked": self.asked, "longest": self.longest, "results": sorted(self.results)}


class Worker:
    "A thread with the context, which makes calls one after the other."
    def __init__(self):
        self.result, self._calls = None, queue.SimpleQueue()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self):
        cuda.cuCtxSetCurrent(context)
        while True:
            call, arguments = self._calls.get()
            self.result = call(*arguments)

    def make(self, call, *arguments):
        self.result = None
        self._calls.put((call, arguments))


class Last:
    "Makes a call when it is destroyed."
    def __init__(self, call, *arguments):
        self._make = lambda: call(*arguments)

    def __del__(self):
        self._make()


assert cuda.cuInit(0) == 0
device = int(sys.argv[1])
context = made("cuDevicePrimaryCtxRetain", device)
assert cuda.cuCtxSetCurrent(context) == 0
worker = Worker()
names = globals()
print(json.dumps({"ok": True}), flush=True)
for line in sys.stdin:
    try:
        try:
            answer = {"ok": True, "value": eval(line, names)}
        except SyntaxError:
            exec(line, names)
            answer = {"ok": True}
    except (Exception, KeyboardInterrupt) as error:
        answer = {"ok": False, "error": repr(error)}
    print(json.dumps(answer, default=repr), flush=True)
"""


class Evaluator(Told):
    """Its memory of cuMemAlloc is brokered. A line is an expression, whose `value` is the answer, or a statement."""

    def __init__(self, node: Node, name: str = "script", device: int = 0, group: str = "train", env: dict[str, str] | None = None) -> None:
        environment = node.env({"RANK": str(device), "AMEM_LOG": "debug", "AMEM_SCOPE": "heap", **(env or {})})
        argv = [*node.launcher(group), sys.executable, "-B", "-c", SCRIPT, device]
        super().__init__(name, argv, environment, node.log_file(name))
        node.adopt(self)
        self.answer()

    def value(self, expression: str) -> object:
        return self.ask(expression)["value"]
