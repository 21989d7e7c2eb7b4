"""More nodes than a leader has calls to: some pass on to others, and one of these may die."""
import re

import pytest

from sim_node.child import eventually
from spread import Nodes

COUNT = 18  # five of them pass on, each to two or three
LEADS, HEAD, BEHIND = 0, 4, 9  # the last is behind the one before


@pytest.fixture(scope="module")
def nodes(build, tmp_path_factory):
    nodes = Nodes(build, tmp_path_factory.mktemp("tree"), COUNT)
    yield nodes
    nodes.close()


@pytest.fixture(scope="module")
def job(nodes):
    return nodes.job("train")


def test_pauses_in_a_loop_of_collectives(nodes, job):
    job.ask("loop on")
    for _ in range(3):
        nodes("pause", "train")
        assert nodes.states("train") == ["paused"] * COUNT
        nodes("resume", "train")
    assert all(answer["mismatches"] == 0 for answer in job.ask("loop off"))
    job.check()


@pytest.mark.parametrize("lost", (HEAD, BEHIND))
def test_a_node_that_is_lost_before_all_have_saved(nodes, job, lost):
    """All others run on, also those to which it passes on; each node that could not be told is named."""
    held = job.ranks[COUNT - 1]
    held.faults("cuMemcpyDtoHAsync:1:hold", "cuLaunchKernel:1:hold")
    pause = nodes.start("pause", "train", lead=LEADS)
    eventually(lambda: nodes[COUNT - 1].ctl.group("train")["phase"] == "save", what="a node saves")
    nodes[lost].broker.kill()
    answer = pause.finish()
    held.faults()
    assert answer.code != 0
    named = set(re.findall(r"node '([^']*)': lost", answer.error))
    assert len(named) == (3 if lost == HEAD else 1), answer.error  # with those behind it
    nodes[lost].start_broker(name=f"amemd-{lost}")
    eventually(lambda: nodes.states("train") == ["running"] * COUNT, what="all run")
    job.check()
    nodes("pause", "train")
    nodes("resume", "train")
    job.check()
