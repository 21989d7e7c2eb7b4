"""A stage, and groups that take turns in it: two of which one fits on the GPU, and others of any size."""
from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sim_node.child import Told, eventually, patience

if TYPE_CHECKING:
    from sim_node.job import Job
    from sim_node.node import Node

MIB = 1 << 20
MEMORY = 24 * MIB
LARGE: dict[str, Any] = {"ranks": 1, "allocations": 8, "size": "2MiB", "shared": 0.0}  # with its context 18 MiB


# What a group that waits is told in its note: why it does.
DOES_NOT_FIT, HAS_FAILED, WAITS_FOR, IS_BEFORE = "does not fit", "has failed", "waits for", "is before it"


def start_stage(node: Node, *flags: str, memory: int = MEMORY, gpus: int = 1, **settings: Any) -> Node:
    """Starts amemd with the stage `night`, with these settings, and with these flags. Groups start at once unless the settings say else.
    The node has so many GPUs, each with so much memory. The first one is the stage's."""
    settings = {"devices": [0], "policy": "lease", "margin": "1MiB", "min_residency": "0s", "start": "beside", **settings}
    with open(_configuration(node), "w", encoding="utf-8") as file:  # TOML has JSON's strings, and its lists of strings and numbers
        file.write("[stage.night]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items()))
    node.settings.update({"AMEM_SIM_MEMORY": str(memory), "AMEM_SIM_DEVICES": str(gpus), "AMEM_SHIM_WITHOUT": "slabs", "AMEM_STAGE": "night"})
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
    """The same of each group, by its name without the owner's."""
    return {each["group"].partition("@")[0]: each for each in stage_of(node)["groups"]}


class Tenant:
    """A process with a block of device memory, alone in its group unless the options name another one."""

    def __init__(self, node: Node, name: str, size: int, device: int = 0, **options: Any) -> None:
        self.node = node
        self.name = name
        self.puppet = node.puppet(name, device, scope="heap", **{"group": name, **options})
        self._seeds: dict[int, int] = {}
        self.block = self.more(size)

    def more(self, size: int) -> int:
        """Another block: its id."""
        block: int = self.puppet.ask(f"plain {size}")["id"]
        self._seeds[block] = 1 + len(self._seeds)
        self.puppet.ask(f"fill {block} {self._seeds[block]}")
        return block

    def free(self, block: int) -> None:
        self.puppet.ask(f"free {block}")
        del self._seeds[block]

    def asks(self) -> None:
        """Begins a call that needs its first block."""
        self.puppet.send(f"verify {self.block} {self._seeds[self.block]}")

    def has_worked(self, deadline: float = 20) -> None:
        """The call that was begun returns, and every byte was right."""
        self.puppet.answer(deadline)

    def works(self, deadline: float = 20) -> None:
        self.asks()
        self.has_worked(deadline)

    def stays_busy(self) -> None:
        """From now on it always has work, and amemd knows that."""
        self.puppet.ask("loop linked")
        time.sleep(patience(2))  # amemd hears of its work within a second

    def verify(self) -> None:
        """All bytes of all blocks are right. REQUIRES: it runs, or gets its turn."""
        for block, seed in self._seeds.items():
            self.puppet.ask(f"verify {block} {seed}")

    @property
    def turn(self) -> Any:
        """What `amemctl turns` says of its group; of none: an empty turn and note."""
        return turns(self.node).get(self.name, {"turn": "", "note": ""})


class Lazy(Told):
    """A program that `amemctl run` has started in a stage, or is to start there. It uses no GPU before go(); then it is a puppet.
    `prefix`: as_user(), to be another user's."""

    def __init__(self, node: Node, name: str, device: int = 0, env: Mapping[str, str | None] | None = None,
                 prefix: Sequence[str] = (), flags: Sequence[str] = ()) -> None:
        build = node.build.for_others() if prefix else node.build
        *run, end = node.launcher(name, build)
        argv = [*prefix, *run, *flags, end, "sh", "-c", 'read go; exec "$0" "$@"', build.program("amem-puppet"), device]
        super().__init__(name, argv, node.env({"AMEM_SCOPE": "heap", "AMEM_LOG": "debug", **(env or {})}, build), node.log_file(name))
        self.node = node
        node.adopt(self)

    @property
    def turn(self) -> Any:
        """As a Tenant's."""
        return turns(self.node).get(self.name, {"turn": "", "note": ""})

    def is_at(self, turn: str) -> Lazy:
        eventually(lambda: bool(self.turn["turn"] == turn), what=f"{self.name} is at {turn}")
        return self

    def go(self) -> None:
        """Becomes the puppet, which has a context then, and no memory."""
        self.send("go")
        self.answer(30)


def await_look() -> None:
    """amemd looks once a second at what contexts and programs without amem have."""
    time.sleep(patience(1.5))


def let_go(node: Node, *names: str) -> None:
    """Groups that were paused, and do not fit now, take turns again."""
    await_look()
    for name in names:
        assert node.ctl.try_("resume", name).code != 0, f"there is space for {name}"
        assert node.ctl.group(name)["paused_by_stage"], "who resumes it lets go of it"


def explained(node: Node) -> Any:
    """What turns() says, once each group that waits was found to say why."""
    said = turns(node)
    for name, each in said.items():
        if each["turn"] == "waits":
            assert any(reason in each["note"] for reason in (DOES_NOT_FIT, HAS_FAILED, WAITS_FOR, IS_BEFORE)), f"{name} waits in silence: {each}"
    return said


def eventually_turns(node: Node, condition: Callable[[Any], Any], what: str, deadline: float = 20) -> Any:
    """Until condition(turns) is true, no group waits in silence."""
    def holds() -> Any:
        said = explained(node)
        return said if condition(said) else None

    return eventually(holds, deadline=deadline, what=what)
