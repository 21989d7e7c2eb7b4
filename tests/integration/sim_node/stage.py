"""A stage of one GPU, and two groups. Only one of them fits on it."""
from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from sim_node.child import eventually

if TYPE_CHECKING:
    from sim_node.job import Job
    from sim_node.node import Node

MIB = 1 << 20
MEMORY = 24 * MIB
LARGE: dict[str, Any] = {"ranks": 1, "allocations": 8, "size": "2MiB", "shared": 0.0}  # with its context 18 MiB


def start_stage(node: Node, *flags: str, **settings: str) -> Node:
    """Starts amemd with the stage `night`, with these settings, and with these flags. Groups start at once unless the settings say else."""
    settings = {"policy": "lease", "margin": "1MiB", "min_residency": "0s", "start": "beside", **settings}
    with open(_configuration(node), "w", encoding="utf-8") as file:
        file.write("[stage.night]\ndevices = [0]\n" + "".join(f'{key} = "{value}"\n' for key, value in settings.items()))
    node.settings.update({"AMEM_SIM_MEMORY": str(MEMORY), "AMEM_SIM_DEVICES": "1", "AMEM_SLAB": "0", "AMEM_STAGE": "night"})
    return next_broker(node, *flags)


def next_broker(node: Node, *flags: str) -> Node:
    """Starts an amemd as start_stage() has."""
    node.start_broker("--pool-size", "80MiB", *flags, config=_configuration(node))
    return node


def _configuration(node: Node) -> str:
    return os.path.join(node.dir, "amemd.toml")


def pair(node: Node) -> tuple[Job, Job]:
    """Groups train, which runs, and rollout, which its stage has paused."""
    rollout = node.job("rollout", **LARGE)
    node.ctl("pause", "rollout")
    train = node.job("train", **LARGE)
    answer = node.ctl.try_("resume", "rollout")
    assert answer.code != 0, "there is no space for both"
    assert node.ctl.group("rollout")["paused_by_stage"], "who resumes it lets go of it"
    eventually(lambda: all(each["needs_bytes"] >= 16 * MIB for each in turns(node).values()), what="needs are known")
    return train, rollout


def stage_of(node: Node) -> Any:
    """What `amemctl turns` says of the stage."""
    [stage] = node.ctl("turns").json["stages"]
    return stage


def turns(node: Node) -> dict[str, Any]:
    """The same of each group."""
    return {each["group"]: each for each in stage_of(node)["groups"]}
