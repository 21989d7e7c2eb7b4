"""Program: a process that uses device memory as a program without NCCL does (amem-workload heap)."""
from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sim_node.child import Told

if TYPE_CHECKING:
    from sim_node.node import Node


class Program(Told):
    """`scope` is AMEM_SCOPE; None: without the shim. `group`:
    another name than its own."""

    def __init__(self, node: Node, name: str = "train", scope: str | None = "heap", rank: int = 0,
                 env: Mapping[str, str | None] | None = None, group: str | None = None) -> None:
        environment = node.env({"RANK": str(rank), "AMEM_LOG": "debug", **(env or {})})
        if scope is not None:
            shim = os.path.join(node.build.directory, "lib", "libamem_shim.so")
            environment.update({"AMEM_SCOPE": scope, "AMEM_GROUP": group or name, "LD_PRELOAD": shim})
        self.node = node
        self.number = rank
        title = f"{name}-heap{rank}"
        super().__init__(title, [node.build.program("amem-workload"), "heap"], environment, node.log_file(title))
        node.adopt(self)
        self.answer(30)

    def verify(self) -> None:
        answer = self.ask("verify", 60)
        assert answer["wrong"] == 0 and answer["checked"] > 0, answer

    def stats(self) -> Any:
        [stats] = self.ask("stats")["stats"]
        return stats

    def brokered(self) -> dict[tuple[str, int], int]:
        """Resident bytes by tag and device."""
        return {(each["tag"], each["device"]): each["resident_bytes"] for each in self.stats()["brokered"]}

    def paused(self) -> dict[tuple[str, int], int]:
        return {(each["tag"], each["device"]): each["paused_bytes"] for each in self.stats()["brokered"]}

    def unbrokered(self) -> dict[tuple[str, int], int]:
        """Bytes by kind and device."""
        return {(each["kind"], each["device"]): each["bytes"] for each in self.stats()["unbrokered"]}
