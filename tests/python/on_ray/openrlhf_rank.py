"""OpenrlhfRank: an actor of OpenRLHF's that holds device memory and knows each byte of it.

OpenRLHF's groups of actors are its own, unmodified. Its import wants vLLM and flash-attn, of which they use nothing: stood in for.
"""
import sys
from importlib.machinery import ModuleSpec
from typing import Any
from unittest.mock import MagicMock

from transformers.utils import import_utils

# So older versions of transformers do not take it for installed.
getattr(import_utils, "PACKAGE_DISTRIBUTION_MAPPING", {}).setdefault("flash_attn", ["none"])
for name in ("vllm", "vllm.inputs", "vllm.utils", "flash_attn", "flash_attn.bert_padding", "flash_attn.utils",
             "flash_attn.utils.distributed"):
    sys.modules.setdefault(name, MagicMock(__spec__=ModuleSpec(name, None)))

from openrlhf.trainer.ray.launcher import BaseDistributedActor, RayActorGroup  # noqa: E402

from ray_rank import Rank  # noqa: E402

__all__ = ["OpenrlhfRank", "RayActorGroup"]


class OpenrlhfRank(BaseDistributedActor):
    def __init__(self, world_size: int, rank: int, master_addr: str | None, master_port: int | None) -> None:
        super().__init__(world_size, rank, master_addr, master_port)
        self.memory = Rank(f"rank{rank}")

    def fill(self, step: int) -> int:
        return self.memory.fill(step)

    def check(self) -> int:
        return self.memory.check()

    def about(self) -> dict[str, Any]:
        return self.memory.about()
