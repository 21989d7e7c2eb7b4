"""Broker: a running amemd."""
from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from sim_node.child import Child

if TYPE_CHECKING:
    from sim_node.node import Node


class Broker(Child):
    def __init__(self, node: Node, flags: Sequence[str] = (), config: str | None = None,
                 env: Mapping[str, str | None] | None = None, name: str = "amemd", program: str | None = None) -> None:
        self.node = node
        settings: dict[str, str | None] = {
            "--runtime-dir": node.runtime_dir,
            "--pool-size": "64MiB",
            "--pool-segment": "16MiB",
            "--pool-chunk": "64KiB",
            "--log-level": "debug",
            # A group that every Debian has, so that tests can be users who may open the sockets.
            "--sockets-group": "nogroup" if os.geteuid() == 0 else None,
        }
        argv = [program or node.build.program("amemd"), "--config", config or "/dev/null"]
        settings.update(dict(zip(flags[::2], flags[1::2])))
        for flag, value in settings.items():
            if value is not None:
                argv += [flag, value]
        super().__init__(name, argv, node.env(env), node.log_file(name))

    def ready(self) -> Broker:
        """Returns when it serves and its pool is complete."""
        self.node.await_broker(self)
        return self

    def holding(self) -> tuple[int, int]:
        """The descriptors that stand for memory and peers; gRPC keeps some more of its own, as it likes."""
        counts = self.descriptors()
        return counts["/memfd"], counts["socket"]

    def holds_at_most(self, held: tuple[int, int]) -> bool:
        """What holding() said may have counted what was about to be closed."""
        return all(now <= then for now, then in zip(self.holding(), held))

    def terminate(self) -> int:
        """SIGTERM; the exit status."""
        self.signal(signal.SIGTERM)
        return self.wait()
