"""Job: the ranks of one group, processes of amem-workload under amemctl run."""
from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sim_node.child import Told, patience

if TYPE_CHECKING:
    from sim_node.node import Node


class Rank(Told):
    """A process that plays one rank of a job, or several."""

    def __init__(self, job: Job, number: int, argv: Sequence[object], env: dict[str, str]) -> None:
        node = job.node
        self.job = job
        self.number = number
        name = f"{job.name}-rank{number}"
        super().__init__(name, argv, env, node.log_file(name))


class Job:
    """Starts the ranks; `ready()` waits for them.

    `group`: another name than the job's own. `allocations`, `size`, `shared`: a synthetic job; `trace`: a recorded
    one. `rank_env`: by rank number. `run`: the words before the program instead of `amemctl run`.
    """

    def __init__(self, node: Node, name: str, ranks: int = 2, *, group: str | None = None, allocations: int = 8, size: str = "256KiB",
                 shared: float = 0.5, trace: str | None = None, scale: float = 8, per_process: int = 1, kernel_timeout: float = 15,
                 arguments: Sequence[object] = (), env: Mapping[str, str | None] | None = None,
                 rank_env: Mapping[int, Mapping[str, str | None]] | None = None, run: Sequence[str] | None = None) -> None:
        self.node = node
        self.name = name
        self.group = group or name
        self.per_process = per_process
        rendezvous = tempfile.mkdtemp(dir=node.dir, prefix=name + "-meet-")
        self.rendezvous = rendezvous
        common: list[object] = ["--ranks", ranks, "--rendezvous", rendezvous, "--kernel-timeout", patience(kernel_timeout),
                  "--devices-per-process", per_process, *arguments]
        if trace is not None:
            common += ["--trace", trace, "--scale", scale]
        else:
            common += ["--allocations", allocations, "--bytes", size, "--shared", shared]
        self.ranks = []
        for number in range(0, ranks, per_process):
            rank_environment = node.env({"RANK": str(number), "AMEM_LOG": "debug", **(env or {}),
                                         **(rank_env or {}).get(number, {})})
            argv = [node.build.program("amem-workload"), "--rank", number, *common]
            launcher = node.launcher(self.group) if run is None else run
            self.ranks.append(node.adopt(Rank(self, number, [*launcher, *argv], rank_environment)))

    def ready(self, deadline: float = 30) -> Job:
        for rank in self.ranks:
            rank.answer(deadline)
        return self

    def send(self, command: str) -> None:
        for rank in self.ranks:
            rank.send(command)

    def answers(self, deadline: float = 20) -> list[Any]:
        return [rank.answer(deadline) for rank in self.ranks]

    def ask(self, command: str, deadline: float = 20) -> list[Any]:
        """Gives every rank the command and returns all answers, by rank."""
        self.send(command)
        return self.answers(deadline)

    def verify(self) -> None:
        """Every mapped byte of every rank is as it must be."""
        for rank, answer in zip(self.ranks, self.ask("verify")):
            assert answer["wrong"] == 0 and answer["bytes"] > 0, f"{rank.name}: {answer}"

    def step(self, rounds: int = 3) -> None:
        self.ask(f"step {rounds}")

    def check(self) -> None:
        """Bytes are right, collectives still work, and leave right bytes behind."""
        self.verify()
        self.step()
        self.verify()

    def addresses(self) -> list[Any]:
        return [answer["addresses"] for answer in self.ask("addresses")]

    def leave(self) -> None:
        for rank in self.ranks:
            rank.send("exit")
        for rank in self.ranks:
            rank.answer()
            status = rank.wait()
            assert status == 0, f"{rank.name} ended with {status}"

    def kill(self) -> None:
        for rank in self.ranks:
            rank.kill()
