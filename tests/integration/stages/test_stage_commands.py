"""Commands that wait for the end of a switch: they are their caller's, and go with it."""
import os

import pytest

from sim_node import MIB, as_user, eventually
from sim_node.ctl import RESOURCES
from sim_node.stage import Tenant, let_go, turns

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user with quotas")

ALICE = 65531
MOST = 6  # calls of hers at a time


@pytest.fixture
def in_a_switch(stage):
    """Her groups `train`, which leaves and does not become quiet before its capture ends, and `rollout`, which comes, and its lease."""
    node = stage("--pool-size", "160MiB", "--quotas-pool", "100%", "--quotas-calls", str(MOST), memory=64 * MIB)
    node.let_others_in()
    alice = as_user(ALICE, "nogroup")
    rollout = Tenant(node, "rollout", 40 * MIB, prefix=alice)
    node.ctl("pause", "rollout")
    train = Tenant(node, "train", 30 * MIB, prefix=alice)
    let_go(node, "rollout")
    train.puppet.ask("capture begin")
    lease = node.ctl.by(alice).start("lease", "rollout", "--timeout", "60s")
    eventually(lambda: turns(node)["train"]["turn"] == "leaves", what="the stage switches")
    yield node, node.ctl.by(alice), train, rollout, lease


def calls(node):
    """Those of hers that are under way."""
    [owner] = [each for each in node.ctl("quotas").json["owners"] if each["uid"] == ALICE]
    [quota] = [each for each in owner["quotas"] if each["resource"] == "calls"]
    return quota["used"]


@pytest.mark.parametrize("command", [["pause", "train"], ["pause", "rollout"], ["resume", "train"], ["swap", "rollout", "train"]])
def test_a_command_goes_with_its_caller(in_a_switch, command):
    node, alice, train, rollout, lease = in_a_switch
    before = len(node.ctl("history").json["operations"])
    for _ in range(2):
        waiting = [alice.start(*command) for _ in range(MOST - 1)]
        eventually(lambda: calls(node) == MOST, what="they wait, and are charged")
        one_more = alice.try_(*command)
        assert one_more.code == RESOURCES and "quotas.calls" in one_more.error, one_more
        for each in waiting:
            each.kill()
        eventually(lambda: calls(node) == 1, what="they have gone")
    train.puppet.ask("capture end")
    assert lease.finish().code == 0
    rollout.verify()
    assert node.ctl.state("train") == "paused" and node.ctl.group("train")["paused_by_stage"]
    assert all(each["stage"] == "night" for each in node.ctl("history").json["operations"][before:])
    alice("lease", "rollout", "--yield")
    alice("lease", "train", "--timeout", "20s")
    train.verify()
