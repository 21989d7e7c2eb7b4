"""amem.Cluster: real amemds of two simulated nodes."""
import pytest

import amem
from sim_node.node import Node


@pytest.fixture
def nodes(build, tmp_path):
    nodes = []
    for number in range(2):
        (tmp_path / f"node{number}").mkdir()
        nodes.append(Node(build, str(tmp_path / f"node{number}")))
        nodes[-1].start_broker()
    yield nodes
    for node in nodes:
        node.close()


@pytest.fixture
def cluster(nodes):
    with amem.Cluster([f"unix:{node.runtime_dir}/control.sock" for node in nodes], nodes[0].runtime_dir) as cluster:
        yield cluster


def states(nodes, group):
    return [node.ctl.state(group) for node in nodes]


def test_pause_resume_and_swap(nodes, cluster):
    jobs = [node.job(name) for node in nodes for name in ("train", "rollout")]
    seen = []
    last = cluster.pause("rollout", on_progress=seen.append)
    assert len(last) == 2 and all(each.done and each.group == "rollout" for each in last)
    assert len({each.node for each in last}) == 2 and {each.node for each in seen} == {each.node for each in last}
    assert states(nodes, "rollout") == ["paused"] * 2
    assert len(cluster.swap("train", "rollout")) == 4
    assert states(nodes, "train") == ["paused"] * 2 and states(nodes, "rollout") == ["running"] * 2
    cluster.resume("train")
    for job in jobs:
        job.check()


def test_what_one_node_lacks_leaves_the_other_as_it_was(nodes, cluster):
    nodes[0].job("train")
    with pytest.raises(amem.NotFoundError, match="node '"):
        cluster.pause("train")
    assert nodes[0].ctl.state("train") == "running"


@pytest.mark.parametrize("nodes_", ("node1:7070", [], [""], [7]))
def test_what_is_no_list_of_nodes(nodes_):
    with pytest.raises(amem.InvalidArgumentError, match="a list of nodes"):
        amem.Cluster(nodes_)
