"""amem: GPU memory that groups of processes take turns with.

enable() switches amem on in a program and in the frameworks that it uses (amem.frameworks).

In a rank, a process with libamem_shim.so loaded: pause, resume, region, move, unbrokered, stats, set_group, group, is_active,
extend_timeouts, and pause_async, resume_async. To start ranks: launch, environment. For a controller: Broker, Cluster, swap, swap_async; these need
grpcio and protobuf, nothing else here does. amem.compat has torch_memory_saver's names, amem.nccl AMem's NCCL calls.

Errors are raised as amem.Error, which carries a code and a text. Times are seconds and sizes bytes unless a name says
otherwise. Every function may be called from any thread; a region belongs to the thread that entered it.
"""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from amem import _ending
from amem._background import pause_async, resume_async, swap_async
from amem._timeouts import extend_timeouts
from amem._enable import Enabled, enable
from amem._launcher import environment, launch, shim_path, swap
from amem._rank import group, is_active, pause, resume, set_group, set_policy, stats
from amem._regions import move, region, unbrokered
from amem._version import __version__
from amem.errors import (
    AbortedError, CancelledError, Code, DataLossError, DeadlineExceededError, Error, FailedPreconditionError,
    InternalError, InvalidArgumentError, NotFoundError, PermissionDeniedError, ResourceExhaustedError, UnavailableError,
    UnimplementedError)

if TYPE_CHECKING:
    from amem.broker import Broker
    from amem.cluster import Cluster

__all__ = [
    "AbortedError", "Broker", "CancelledError", "Cluster", "Code", "DataLossError", "DeadlineExceededError", "Enabled", "Error",
    "FailedPreconditionError", "InternalError", "InvalidArgumentError", "NotFoundError", "PermissionDeniedError",
    "ResourceExhaustedError", "UnavailableError", "UnimplementedError", "__version__", "enable", "environment", "extend_timeouts", "group", "is_active",
    "launch", "move", "pause", "pause_async", "region", "resume", "resume_async", "set_group", "set_policy", "shim_path", "stats",
    "swap", "swap_async", "unbrokered"]


_ending.register()


def __getattr__(name: str) -> Any:
    # gRPC is imported by those who use it: in a rank it would only start threads.
    if name == "Broker":
        from amem.broker import Broker

        return Broker
    if name == "Cluster":
        from amem.cluster import Cluster

        return Cluster
    raise AttributeError(f"module 'amem' has no attribute {name!r}")
