"""amem lets groups of processes take turns with GPU memory.

enable() switches amem on in a program and in the frameworks that it uses (amem.frameworks).

- In a rank, which is a process with libamem_shim.so: pause, resume, region, move, unbrokered, stats, set_group, group, is_active,
  set_policy, extend_timeouts, pause_async, resume_async, turn.
- To start ranks: launch, environment.
- In a controller: Broker, Cluster, swap, swap_async. Only these and turn require grpcio and protobuf.
- In a notebook: `%load_ext amem` gives it the magic %amem.
- amem.aio has the calls as coroutines, amem.compat the names of torch_memory_saver, and amem.nccl AMem's NCCL calls.

Warnings go to the logger "amem". Calls raise amem.Error, which has a code and a text. Times are seconds and sizes are bytes unless
a name says otherwise. You may call every function in any thread. A region belongs to the thread that entered it.
"""
from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from amem import _ending, _later
from amem._background import pause_async, resume_async, swap_async
from amem._timeouts import extend_timeouts
from amem._enable import Enabled, enable
from amem._launcher import environment, launch, shim_path, swap
from amem._rank import group, is_active, pause, resume, set_group, set_policy, stats
from amem._regions import move, region, unbrokered
from amem._stats import Brokered, Stats, Unbrokered
from amem._version import __version__
from amem.errors import (
    AbortedError, Code, DataLossError, DeadlineExceededError, Error, FailedPreconditionError, InternalError,
    InvalidArgumentError, NotFoundError, OperationCancelledError, PermissionDeniedError, ResourceExhaustedError,
    UnavailableError, UnimplementedError)

if TYPE_CHECKING:
    from amem import aio as aio
    from amem._nodes import NodeAnswer
    from amem._turns import turn
    from amem.broker import Broker
    from amem.cluster import Cluster
    from amem.messages import Form, GuestPolicy, MetricsFormat, Policy

__all__ = [
    "AbortedError", "Broker", "Brokered", "Cluster", "Code", "DataLossError", "DeadlineExceededError", "Enabled", "Error",
    "FailedPreconditionError", "Form", "GuestPolicy", "InternalError", "InvalidArgumentError", "MetricsFormat",
    "NodeAnswer", "NotFoundError", "OperationCancelledError", "PermissionDeniedError", "Policy", "ResourceExhaustedError",
    "Stats", "UnavailableError", "Unbrokered", "UnimplementedError", "__version__", "enable", "environment", "extend_timeouts",
    "group", "is_active", "launch", "move", "pause", "pause_async", "region", "resume", "resume_async", "set_group", "set_policy",
    "shim_path", "stats", "swap", "swap_async", "turn", "unbrokered"]

_LATER = {
    "Broker": "amem.broker", "Cluster": "amem.cluster", "Form": "amem.messages", "GuestPolicy": "amem.messages",
    "MetricsFormat": "amem.messages", "NodeAnswer": "amem._nodes", "Policy": "amem.messages",
    "turn": "amem._turns"}
_WITH_GRPC = ("amem.broker", "amem.cluster", "amem._nodes", "amem._turns")

_ending.register()


def __getattr__(name: str) -> Any:
    # gRPC is imported by those who use it: in a rank it would only start threads. A rank rarely needs the messages, either.
    if name == "aio":  # a rank rarely needs asyncio, either
        return importlib.import_module("amem.aio")
    return _later.attribute("amem", name, _LATER)


def load_ipython_extension(ipython: Any) -> None:
    """Gives a notebook the magic %amem. IPython calls this for `%load_ext amem`.

    Args:
        ipython: The shell of the kernel.
    """
    from amem import _notebook

    _notebook.load(ipython)


def unload_ipython_extension(ipython: Any) -> None:
    """Takes the magic away. IPython calls this for `%unload_ext amem`.

    Args:
        ipython: The shell of the kernel.
    """
    from amem import _notebook

    _notebook.unload(ipython)


def __dir__() -> list[str]:
    names = {*globals(), "aio", *(name for name, module in _LATER.items() if module not in _WITH_GRPC or _later.has_grpc())}
    return sorted(names)
