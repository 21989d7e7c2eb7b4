"""Swaps of many nodes with several ranks each: all bytes, and how much longer all of them take than the slowest one. By hand:

    AMEM_NODES=64 AMEM_NODE_RANKS=4 AMEM_NODE_SWAPS=100 python3 -m pytest -s tests/integration/nodes/test_many_nodes.py \
        --build-dir build/release
"""
import os
import statistics

from spread import Nodes

NODES = int(os.environ.get("AMEM_NODES", "4"))
RANKS = int(os.environ.get("AMEM_NODE_RANKS", "2"))  # of each of the two groups on each node
SWAPS = int(os.environ.get("AMEM_NODE_SWAPS", "4"))
LIMIT_MS = float(os.environ.get("AMEM_NODE_LIMIT_MS", "0"))  # at the 99th percentile; 0: only told
WAITS = ("agree", "turn")  # for other nodes


def own_ms(done):
    """What this group's part on this node took, beyond waiting for others."""
    return sum(int(time["us"]) for time in done["times"] if time["phase"] not in WAITS) / 1000


def cpu_ms(broker):
    """Of all its threads, so far."""
    tasks = f"/proc/{broker.pid}/task"
    return sum(int(open(f"{tasks}/{task}/schedstat").read().split()[0]) for task in os.listdir(tasks)) / 1e6


def percentile(values, part):
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]


def test_swaps_of_many_nodes(build, tmp_path):
    nodes = Nodes(build, tmp_path, NODES)
    whole, slowest, beyond = [], [], []
    try:
        into, out = (nodes.job(name, ranks=RANKS, allocations=4, size="64KiB") for name in ("train", "rollout"))
        nodes("pause", "rollout", deadline=120)
        used = [-cpu_ms(node.broker) for node in nodes.all]
        for _ in range(SWAPS):
            out, into = into, out
            answer = nodes("--json", "swap", out.name, into.name, deadline=120)
            done = [message for message in answer.lines if message["done"]]
            assert len({message["node"] for message in done}) == NODES
            whole.append(max(int(message["swap_us"]) for message in done) / 1000)
            slowest.append(max(map(own_ms, done)))
            beyond.append(whole[-1] - slowest[-1])
            assert set(nodes.states(out.name)) == {"paused"} and set(nodes.states(into.name)) == {"running"}
        leads, *follow = ((before + cpu_ms(node.broker)) / SWAPS for before, node in zip(used, nodes.all))
        into.check()
    finally:
        nodes.close()
    for what, values in (("all", whole), ("the slowest node's own", slowest), ("beyond that", beyond)):
        print(f"{what}: median {statistics.median(values):.1f}, 99 % {percentile(values, 0.99):.1f}, at most {max(values):.1f} ms")
    print(f"CPU time a swap: the leader {leads:.2f}, another broker {statistics.mean(follow):.2f} ms")
    assert not LIMIT_MS or percentile(beyond, 0.99) <= LIMIT_MS
