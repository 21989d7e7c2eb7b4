"""The made-up trainer's memory leaves and comes back by amem instead of by copies."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import amem
from amem.frameworks import Framework, hook, replace
from amem.frameworks.phases import bring, idle, take
from amem.frameworks.tensors import plain


class MadeUp(Framework):
    """The made-up trainer, version 1."""

    name, title, distribution = "made_up", "the made-up trainer", "made-up"
    modules = ("made_up",)
    tried = (1, 0), (1, 2)
    purpose = "the made-up trainer cannot sleep by amem"

    def hooks(self) -> list[Callable[..., Any]]:
        """As Framework.hooks()."""
        import made_up

        return [hook(made_up, "offload", "tensors"), hook(made_up, "load", "tensors")]

    def install(self) -> None:
        """As Framework.install()."""
        self.check()
        import made_up

        replace(made_up, "offload", _offload)
        replace(made_up, "load", _load)


def _offload(original: Callable[..., Any], tensors: Any, pinned: bool = True) -> None:
    amem.move(plain(tensors), "made_up")
    idle()
    take(["made_up"])


def _load(original: Callable[..., Any], tensors: Any) -> None:
    bring(["made_up"])
