"""Several nodes on one machine: a broker and GPUs of its own each, and NCCL over sockets between them."""

import json
import statistics
import time

from cases import Loop, check_still
from harness import Broker, Failure
from registry import case

# Beyond the collective that is under way when it begins.
QUIESCE_MS = 50


class Nodes:
    """The first one leads. Two where the ranks can be halved, so that NCCL also does within a node what it does there."""

    def __init__(self, bench):
        self.bench = bench
        count = 2 if bench.ranks % 2 == 0 else bench.ranks
        self.ranks_each = bench.ranks // count
        self.brokers = [Broker(bench.prefix, bench.folder / f"node{number}", bench.pool_of(self.ranks_each), bench.environment)
                        for number in range(count)]
        self.addresses = ",".join(f"unix:{broker.runtime}/control.sock" for broker in self.brokers)
        for broker in self.brokers:
            broker.wait_ready()

    def start(self, *arguments, group):
        """Ranks on as many hosts to NCCL as there are nodes, with their nodes' brokers."""
        bench = self.bench
        argv = [bench.prefix / "bin" / "amem_nccl_cycle", "--gpus", bench.ranks, "--hosts", len(self.brokers), "--comms", 2,
                "--no-memory-checks", "--watchdog", 60, *(["--nccl", bench.nccl] if bench.nccl else []), *(["--share"] if bench.shared else [])]
        for broker in self.brokers:
            argv += ["--runtime-dir", broker.runtime]
        return bench.start([*argv, *arguments], group=group, preload=True)

    def wait_group(self, loop):
        for broker in self.brokers:
            broker.wait_group(loop.group, self.ranks_each, programs=[loop.program])
        loop.wait_beyond(4, "at the start", 90)

    def operate(self, *arguments):
        """The longest quiesce of a node, in milliseconds."""
        said = self.brokers[0].amemctl("--json", *arguments, "--nodes", self.addresses)
        done = [message for message in map(json.loads, said.splitlines()) if message.get("done")]
        return max([int(time["us"]) / 1000 for message in done for time in message["times"] if time["phase"] == "quiesce"] or [0])

    def check_still(self, loop, why):
        for broker in self.brokers:
            reached = check_still(broker, loop, why)
        return reached

    def network(self, group):
        """What NCCL has for its way to the other node beside what leaves in a pause: of the first node's ranks, by kind."""
        said = self.brokers[0].amemctl("--json", "ranks", group)
        ranks = [rank for line in map(json.loads, said.splitlines()) for rank in line.get("ranks", [line])]
        kinds = [f"{each['kind']} {int(each['bytes']) / 1e6:.1f} MB in {each['count']}"
                 for rank in ranks for each in rank.get("unbrokered", []) if each.get("host")]
        pinned = sum(int(tag.get("pinned_bytes", 0)) for rank in ranks for tag in rank.get("tags", []))
        return f"page-locked memory of the host: {', '.join(kinds) or 'none'}; known to a NIC: {pinned / 1e6:.1f} MB"

    def stop(self):
        for broker in self.brokers:
            broker.stop()


@case(330)
def two_nodes(bench):
    """A job over several nodes is paused, resumed and swapped as one, in the middle of collectives."""
    nodes = Nodes(bench)
    try:
        train, rollout = (Loop(bench, group, nodes.start) for group in ("train", "rollout"))
        for loop in (train, rollout):
            nodes.wait_group(loop)
        quiesce, swaps = [], []
        network = nodes.network("train")
        for number in range(bench.operator_pauses):
            quiesce.append(nodes.operate("pause", "train"))
            reached = nodes.check_still(train, f"pause {number}")
            nodes.operate("resume", "train")
            train.wait_beyond(reached, f"after resume {number}")
        nodes.operate("pause", "rollout")
        for number in range(bench.operator_pauses):
            out, into = (train, rollout) if number % 2 == 0 else (rollout, train)
            reached = into.iterations()
            began = time.monotonic()
            quiesce.append(nodes.operate("swap", out.group, into.group))
            swaps.append((time.monotonic() - began) * 1000)
            nodes.check_still(out, f"swap {number}")
            into.wait_beyond(reached, f"after swap {number}")
        nodes.operate("resume", (rollout if bench.operator_pauses % 2 == 0 else train).group)
        verified = [loop.finish() for loop in (train, rollout)]
    finally:
        nodes.stop()
    median = statistics.median(quiesce)
    if bench.time_limits and median > QUIESCE_MS:
        raise Failure(f"quiesce took {median:.1f} ms in the median, {QUIESCE_MS} are right: {sorted(quiesce)}")
    return (f"{bench.operator_pauses} pauses and {bench.operator_pauses} swaps of {len(nodes.brokers)} nodes, "
            f"{bench.ranks} ranks in all, quiesce median {median:.1f} max {max(quiesce):.1f} ms, swap median {statistics.median(swaps):.0f} max "
            f"{max(swaps):.0f} ms; iterations {[report['iterations'] for report in verified]}; the first node's of one group have {network}")
