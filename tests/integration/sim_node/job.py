"""Job: the ranks of one group, processes of amem-workload under amemctl run."""
import os
import tempfile

from sim_node.child import Told, patience


class Rank(Told):
    """A process that plays one rank of a job, or several."""

    def __init__(self, job, number, argv, env):
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

    def __init__(self, node, name, ranks=2, *, group=None, allocations=8, size="256KiB", shared=0.5, trace=None,
                 scale=8, per_process=1, kernel_timeout=15, arguments=(), env=None, rank_env=None, run=None):
        self.node = node
        self.name = name
        self.group = group or name
        self.per_process = per_process
        rendezvous = tempfile.mkdtemp(dir=node.dir, prefix=name + "-meet-")
        self.rendezvous = rendezvous
        common = ["--ranks", ranks, "--rendezvous", rendezvous, "--kernel-timeout", patience(kernel_timeout),
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

    def ready(self, deadline=30):
        for rank in self.ranks:
            rank.answer(deadline)
        return self

    def send(self, command):
        for rank in self.ranks:
            rank.send(command)

    def answers(self, deadline=20):
        return [rank.answer(deadline) for rank in self.ranks]

    def ask(self, command, deadline=20):
        """Gives every rank the command and returns all answers, by rank."""
        self.send(command)
        return self.answers(deadline)

    def verify(self):
        """Every mapped byte of every rank is as it must be."""
        for rank, answer in zip(self.ranks, self.ask("verify")):
            assert answer["wrong"] == 0 and answer["bytes"] > 0, f"{rank.name}: {answer}"

    def step(self, rounds=3):
        self.ask(f"step {rounds}")

    def check(self):
        """Bytes are right, collectives still work, and leave right bytes behind."""
        self.verify()
        self.step()
        self.verify()

    def addresses(self):
        return [answer["addresses"] for answer in self.ask("addresses")]

    def leave(self):
        for rank in self.ranks:
            rank.send("exit")
        for rank in self.ranks:
            rank.answer()
            status = rank.wait()
            assert status == 0, f"{rank.name} ended with {status}"

    def kill(self):
        for rank in self.ranks:
            rank.kill()
