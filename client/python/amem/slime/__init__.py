"""slime and Miles: a trainer that sleeps keeps its process groups.

Where slime destroys and makes process groups, amem pauses and resumes NCCL's memory instead. With
`--custom-megatron-init-path amem.slime.megatron_init`, slime and Miles call amem.enable().

amem's distribution torch_memory_saver, which both of them use, frees the rest of the trainer's GPU memory. docs/rl-frameworks.md is the
manual. This module imports neither slime nor Miles.
"""
from __future__ import annotations

import abc
import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

from amem import _rank, _saver
from amem._enable import enable_for
from amem.errors import FailedPreconditionError
from amem.frameworks import Framework, hook
from amem.frameworks.phases import bring, idle, take

__all__ = ["Miles", "Slime", "megatron_init"]

_NAMES = ("destroy_process_groups", "reload_process_groups")
_HOW = """Give the trainer a group: --train-env-vars '{"AMEM_GROUP": "trainer", "NCCL_CUMEM_ENABLE": "1"}'"""


def _found(name: str) -> list[Callable[..., Any]]:
    groups = importlib.import_module(f"{name}.utils.reloadable_process_group")
    actor = importlib.import_module(f"{name}.backends.megatron_utils.actor")
    found = [hook(groups, each) for each in _NAMES]
    for each, function in zip(_NAMES, found):
        if getattr(actor, each, None) is not function:
            raise FailedPreconditionError(
                f"{actor.__name__} has no {each}() of {groups.__name__}, which amem needs. amem does not support this version of {name}")
    return found


def _change(name: str) -> None:
    groups = importlib.import_module(f"{name}.utils.reloadable_process_group")
    actor = importlib.import_module(f"{name}.backends.megatron_utils.actor")
    for each, function in zip(_NAMES, (_paused, _here)):
        setattr(actor, each, function)
        setattr(groups, each, function)


class _Trainer(Framework):
    how_to_start = "Start it with --offload-train. " + _HOW
    _installed = False

    def check(self) -> None:
        """Checks that amem supports this version of the trainer in this process. It changes nothing.

        Raises:
            FailedPreconditionError: The errors of Framework.check(). Or the memory saver is the original one. Or the group has only
                this process, so NCCL's memory is not brokered.
            UnavailableError: There is no broker.
        """
        super().check()
        if not isinstance(sys.modules["torch_memory_saver"].torch_memory_saver, _saver.TorchMemorySaver):
            raise FailedPreconditionError(
                f"{self.name} has imported the original torch_memory_saver. Install the distribution of that name that comes with amem")
        if not (os.environ.get("AMEM_GROUP") or os.environ.get("AMEM_GROUPID")) or not _saver.whole_process():
            raise FailedPreconditionError(
                f"NCCL's memory is not brokered, because {self.name}'s trainer has no group of several processes. {_HOW}")

    def install(self) -> None:
        """Replaces the trainer's functions that destroy and make process groups by amem's. A second call changes nothing.

        Raises:
            FailedPreconditionError: amem does not support this version, or this process lacks something.
            UnavailableError: There is no broker.
        """
        if not self._installed:
            self.check()
            self._put()
            self._installed = True

    @abc.abstractmethod
    def _put(self) -> None:
        """Replaces the trainer's functions by amem's."""


class Slime(_Trainer):
    """slime, in a trainer's process with Megatron."""

    name, title, distribution = "slime", "slime", "slime"
    modules = ("slime.backends.megatron_utils.actor", "slime.utils.reloadable_process_group")
    tried = (0, 3), (0, 3)
    purpose = "slime's trainer cannot sleep by amem"

    def hooks(self) -> list[Callable[..., Any]]:
        """Finds the functions of slime that amem needs. It changes nothing.

        Returns:
            The results of hook().

        Raises:
            FailedPreconditionError: A function is missing, or has other parameters.
        """
        return _found("slime")

    def _put(self) -> None:
        _change("slime")


class Miles(_Trainer):
    """Miles, which began as a copy of slime. It has no version number."""

    name, title, distribution = "miles", "Miles", "miles"
    modules = ("miles.backends.megatron_utils.actor", "miles.utils.reloadable_process_group")
    purpose = "Miles' trainer cannot sleep by amem"

    def hooks(self) -> list[Callable[..., Any]]:
        """Finds the functions of Miles that amem needs. It changes nothing.

        Returns:
            The results of hook().

        Raises:
            FailedPreconditionError: A function is missing, or has other parameters.
        """
        return _found("miles")

    def _put(self) -> None:
        _change("miles")


def megatron_init(args: Any = None) -> None:
    """Calls amem.enable() in each of the trainer's processes, and requires slime or Miles.

    Name this function in `--custom-megatron-init-path` of slime or Miles.

    Args:
        args: The options that slime or Miles passes. Not used.

    Raises:
        Error: The errors of amem.enable(require=True), for slime or Miles.
    """
    enable_for("slime", "miles")


def _paused() -> None:
    """Pauses NCCL's memory. The process groups stay valid. Raises the errors of amem.pause(), and then the trainer does not sleep."""
    idle()  # no collective still runs
    take(["nccl"])


def _here() -> None:
    """Resumes NCCL's memory. Raises the errors of amem.resume()."""
    bring(["nccl"])
