"""slime and Miles: a trainer that sleeps keeps its process groups. `--custom-megatron-init-path amem.slime.install` makes its
destruction and making of process groups a pause and a resume of NCCL's memory.

The rest of the trainer leaves by the distribution torch_memory_saver that comes with amem, which both of them use as it is.
docs/rl-frameworks.md is the manual. Imports neither by itself.
"""
from __future__ import annotations

import importlib
import importlib.metadata
import logging
import os
import sys
from typing import Any

from amem import frameworks as _frameworks
from amem import _rank, _saver
from amem.frameworks.phases import bring, idle, take
from amem.errors import FailedPreconditionError

OLDEST, NEWEST = (0, 3), (0, 3)  # slime's versions that it was tried with, or read for; Miles says none
_NAMES = ("destroy_process_groups", "reload_process_groups")
_logger = logging.getLogger("amem")
_HOW = """give the trainer a group: --train-env-vars '{"AMEM_GROUP": "trainer", "NCCL_CUMEM_ENABLE": "1"}'"""


def install(args: Any = None) -> None:
    """Of each of the trainer's processes, called by slime or Miles when Megatron is ready. FailedPreconditionError or
    UnavailableError: the process, or this version, is not one that amem can serve."""
    name = next((each for each in ("slime", "miles") if f"{each}.backends.megatron_utils.actor" in sys.modules), None)
    if name is None:
        raise FailedPreconditionError("amem.slime.install is for the trainer's processes of slime and Miles, with Megatron")
    groups = importlib.import_module(f"{name}.utils.reloadable_process_group")
    actor = sys.modules[f"{name}.backends.megatron_utils.actor"]
    found = [_frameworks.hook(groups, each) for each in _NAMES]
    for each, function in zip(_NAMES, found):
        if getattr(actor, each, None) is not function:
            raise FailedPreconditionError(
                f"amem needs {each}() of {actor.__name__}, which is not there: this {name} is not known to amem")
    if not isinstance(sys.modules["torch_memory_saver"].torch_memory_saver, _saver.TorchMemorySaver):
        raise FailedPreconditionError(
            f"{name} has imported the original torch_memory_saver: install the distribution of that name that comes with amem")
    _frameworks.check_process(f"{name}'s trainer is to sleep by amem", "start it with --offload-train, and " + _HOW)
    if not (os.environ.get("AMEM_GROUP") or os.environ.get("AMEM_GROUPID")) or not _saver.whole_process():
        raise FailedPreconditionError(
            f"{name}'s trainer is the group {_rank.group()}, of this process alone, so NCCL's memory is not brokered: {_HOW}")
    if name == "slime":
        _frameworks.warn_of_version(_logger, "slime", importlib.metadata.version("slime"), OLDEST, NEWEST, found)
    for each, function in zip(_NAMES, (_paused, _here)):
        setattr(actor, each, function)
        setattr(groups, each, function)


def _paused() -> None:
    """NCCL's memory; what is in the process groups stays usable. Errors as amem.pause(): the trainer does not sleep then."""
    idle()  # no collective still runs
    take(["nccl"])


def _here() -> None:
    """Errors as amem.resume()."""
    bring(["nccl"])
