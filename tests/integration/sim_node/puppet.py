"""Puppet: a process that makes the driver calls that a test tells it (tests/workload/manual.md)."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from sim_node.child import Told

if TYPE_CHECKING:
    from sim_node.node import Node


class Puppet(Told):
    """On its device; its memory is brokered. `group`: None for a process without the shim. `preload`: LD_PRELOAD as the
    command sets it for itself. `prefix`: as_user(), to be another user."""

    def __init__(self, node: Node, name: str, device: int = 0, group: str | None = "train", scope: str = "nccl",
                 env: Mapping[str, str | None] | None = None, preload: str | None = None, prefix: Sequence[str] = ()) -> None:
        build = node.build.for_others() if prefix else node.build
        environment = node.env({"RANK": str(device), "AMEM_LOG": "debug", "AMEM_MODULES": "amem-puppet",
                                "AMEM_SCOPE": scope, **(env or {})}, build)
        launcher = node.launcher(group, build) if group else []
        chosen = ["env", "LD_PRELOAD=" + preload] if preload else []
        argv = [*prefix, *launcher, *chosen, build.program("amem-puppet"), device]
        super().__init__(name, argv, environment, node.log_file(name))

    def loop_runs(self, launches: int = 5) -> None:
        """Returns when the loop has launched so often from now on."""
        first = self.ask("loop status")["launches"]
        while self.ask("loop status")["launches"] < first + launches:
            pass

    def loop_error(self) -> str | None:
        """What the loop ended with; None while it goes on."""
        self.send("loop status")
        error: str | None = self.json_line().get("error")
        return error
