"""amem.aio: amem's calls as coroutines, for programs on asyncio.

    async with amem.aio.Broker() as broker:
        await broker.pause("train")
        async for progress in broker.swapping("rollout", "train"):
            print(progress.group, progress.phase)

    await amem.aio.pause()  # in a rank

Broker, Cluster and swap are for controllers and require grpcio and protobuf. pause and resume are for ranks. They have the errors,
results and choices of amem. An object belongs to the event loop that used it first.
"""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from amem import _later
from amem.aio._rank import pause, resume

if TYPE_CHECKING:
    from amem.aio._broker import Broker
    from amem.aio._calls import Operation, Watch
    from amem.aio._cluster import Cluster
    from amem.aio._swap import swap

__all__ = ["Broker", "Cluster", "Operation", "Watch", "pause", "resume", "swap"]

_LATER = {"Broker": "amem.aio._broker", "Cluster": "amem.aio._cluster", "Operation": "amem.aio._calls", "Watch": "amem.aio._calls",
          "swap": "amem.aio._swap"}


def __getattr__(name: str) -> Any:
    # gRPC is imported by those who use it: a rank pauses itself without it.
    return _later.attribute("amem.aio", name, _LATER)


def __dir__() -> list[str]:
    return sorted({*globals(), *(_LATER if _later.has_grpc() else ())})
