"""Nodes side by side, and jobs whose ranks are spread over them."""
from sim_node.job import Job
from sim_node.node import Node
from wire import Wire


class Nodes:
    """Each with a broker; the first one is asked, and so leads. `wired`: brokers reach each other by ways that can be cut."""

    def __init__(self, build, logs, count, flags_of=lambda number: (), wired=False):
        self.all, self.wires = [], []
        for number in range(count):
            folder = logs / f"node{number}"
            folder.mkdir()
            node = Node(build, str(folder))
            self.all.append(node)
            node.start_broker(*flags_of(number))
            if wired:
                self.wires.append(Wire(f"{node.runtime_dir}/wire.sock", f"{node.runtime_dir}/control.sock"))

    def __getitem__(self, number):
        return self.all[number]

    def close(self):
        for wire in self.wires:
            wire.close()
        for node in self.all:
            node.close()

    def addresses(self, *numbers):
        paths = [wire.path for wire in self.wires] or [f"{node.runtime_dir}/control.sock" for node in self.all]
        return ",".join(f"unix:{paths[number]}" for number in numbers or range(len(paths)))

    def job(self, name, arguments=(), ranks=1, **options):
        """So many ranks on each node. They share no memory, as ranks of different nodes do not, and wait for each other."""
        first = self.all[0]
        where = {number: {name: self.all[number // ranks].settings[name] for name in ("AMEM_SIM_DIR", "AMEM_RUNTIME_DIR")}
                 for number in range(ranks * len(self.all))}
        run = [first.build.program("amemctl"), "run", "--group", name, "--"]
        return Job(first, name, len(where), shared=0, arguments=["--network", *arguments], rank_env=where, run=run,
                   **options).ready(120)

    def try_(self, *arguments, lead=0, **options):
        """amemctl on one node, about all."""
        return self.all[lead].ctl.try_(*arguments, "--nodes", self.addresses(), **options)

    def __call__(self, *arguments, **options):
        answer = self.try_(*arguments, **options)
        assert answer.code == 0, f"amemctl {arguments}: {answer!r}"
        return answer

    def start(self, *arguments, lead=0):
        return self.all[lead].ctl.start(*arguments, "--nodes", self.addresses())

    def states(self, group):
        return [node.ctl.state(group) for node in self.all]
