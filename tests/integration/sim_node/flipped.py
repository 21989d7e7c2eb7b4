"""Memory of a puppet's heap, of which a test changes single bytes and knows which."""
from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sim_node.node import Node

AT_A_TIME = 100  # offsets in one command


class FlippedMemory:
    """Blocks of these sizes, by their ids. A byte that is flipped becomes its complement; flipped twice, it is as before."""

    def __init__(self, node: Node, *sizes: int, name: str = "puppet", env: Mapping[str, str] | None = None, **options: Any) -> None:
        self.puppet = node.puppet(name, scope="heap", env={"AMEM_MODULES": "none", **(env or {})}, **options)
        self.blocks = {self.puppet.ask(f"plain {size}")["id"]: size for size in sizes}
        self.flipped: dict[int, set[int]] = {block: set() for block in self.blocks}
        for block in self.blocks:
            self.puppet.ask(f"fill {block} {block}")

    def _flip(self, block: int, offsets: list[int]) -> None:
        for begin in range(0, len(offsets), AT_A_TIME):
            self.puppet.ask(f"flip {block} {' '.join(map(str, offsets[begin:begin + AT_A_TIME]))}")

    def flip(self, block: int, *offsets: int) -> None:
        self._flip(block, list(offsets))
        self.flipped[block] ^= set(offsets)

    def verify(self) -> None:
        """Compares all bytes: those that were flipped are flipped back meanwhile, so that the block is as it was filled."""
        for block, offsets in self.flipped.items():
            self._flip(block, sorted(offsets))
            self.puppet.ask(f"verify {block} {block}")
            self._flip(block, sorted(offsets))
