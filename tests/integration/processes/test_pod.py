"""As in a pod: the holder is started by somebody else and stays, amemd comes and goes, and probes ask amemctl."""
import os
import signal

import pytest

from sim_node import Broker, Child, Died, eventually, has_add_on, patience
from sim_node.ctl import DEADLINE, UNREACHABLE
from sim_node.turns import states


@pytest.fixture
def holder(bare_node):
    """The container of the holder, which makes the folder of the sockets."""
    path = bare_node.holder_socket
    child = bare_node.adopt(Child("holder", [bare_node.build.program("amem-holder"), "--stay", "--socket", path], bare_node.env(),
                                  bare_node.log_file("holder")))
    child.wait_for("serves")
    return child


def start(node, name="amemd"):
    return node.start_broker("--holder", "external", name=name)


def health(node):
    return node.ctl.try_("health")


def test_an_upgrade_of_amemds_container_loses_nothing(bare_node, holder):
    node = bare_node
    first = start(node)
    assert health(node).json == {"serving": True}
    running, paused = node.job(), node.job("rollout")
    node.ctl("pause", "rollout")
    first.kill()
    assert health(node).code == UNREACHABLE
    start(node, "next")
    assert health(node).code == 0
    eventually(lambda: states(node) == ("running", "paused"), what="both groups are back")
    node.ctl("resume", "rollout")
    paused.check()
    running.check()
    assert holder.alive() and node.holder_pid() == holder.pid, "no other holder was started"


def test_the_holder_stays_and_is_empty_when_nobody_is_left(bare_node, holder):
    node = bare_node
    for turn in range(2):
        broker = start(node, f"amemd{turn}")
        job = node.job()
        node.ctl("pause", "train")
        assert holder.descriptors()["/memfd"] > 0
        broker.kill()
        job.kill()
        eventually(lambda: holder.descriptors()["/memfd"] == 0, what="the holder has closed everything")
    assert holder.alive()


def test_a_smaller_pool_shrinks_when_nobody_has_its_segments(bare_node, holder):
    """As with `helm upgrade --set pool.sizeGiB=…`: what jobs have stays until they end, and amemd says so."""
    node = bare_node
    first = node.start_broker("--holder", "external", "--pool-size", "128MiB")
    job = node.job()
    node.ctl("pause", "train")
    first.kill()
    second = node.start_broker("--holder", "external", "--pool-size", "16MiB", name="next")
    second.wait_for("to the host when the processes that may have it mapped end")
    pool = node.ctl.status()["pool"]
    assert pool["configured_bytes"] == 16 << 20 and pool["ready_bytes"] == 32 << 20, "a segment of each rank's"
    assert "32.0 MiB ready, 16.0 MiB configured  shrinks as jobs end" in node.ctl("status", json_output=False).out
    assert not has_add_on("tools") or "pool-larger" in node.ctl.try_("doctor").out
    node.ctl("resume", "train")
    job.check()
    node.ctl("pause", "train")
    node.ctl("resume", "train")
    job.check()
    job.kill()
    second.wait_for("It has shrunk")
    assert node.ctl.status()["pool"]["ready_bytes"] == 16 << 20
    eventually(lambda: holder.descriptors()["/memfd"] == 1 + 1, what="the holder has the record and a segment")
    node.job("later").check()


def test_without_a_holder_it_says_so_and_ends(bare_node):
    broker = bare_node.adopt(Broker(bare_node, ("--holder", "external")))
    assert broker.wait(patience(40)) != 0
    assert f"no amem-holder serves {bare_node.holder_socket}" in broker.output()
    assert 'holder = "external"' in broker.output()
    with pytest.raises(Died, match="there is no holder"):
        bare_node.holder_pid()


def test_it_comes_when_the_holder_has_come(bare_node):
    broker = bare_node.adopt(Broker(bare_node, ("--holder", "external")))
    path = bare_node.holder_socket
    eventually(lambda: os.path.isdir(bare_node.runtime_dir), what="amemd has begun")
    bare_node.adopt(Child("holder", [bare_node.build.program("amem-holder"), "--stay", "--socket", path], bare_node.env(),
                          bare_node.log_file("holder")))
    broker.ready()
    assert health(bare_node).code == 0


def test_a_holder_of_0_1_0_in_the_runtime_directory_is_used_until_another_comes(bare_node):
    """amemd is upgraded first, then the holder."""
    node = bare_node
    command = [node.build.program("amem-holder"), "--stay", "--socket"]
    former = node.adopt(Child("former", [*command, os.path.join(node.runtime_dir, "holder.sock")], node.env(), node.log_file("former")))
    former.wait_for("serves")
    for name in ("first", "second"):
        broker = start(node, name)
        broker.wait_for(f"start it again, so that it listens at {node.holder_socket}")
        if name == "first":
            job = node.job()
            node.ctl("pause", "train")
            broker.kill()
    former.signal(signal.SIGTERM)
    broker.wait_for("has ended. Paused memory is lost if amemd ends")
    another = node.adopt(Child("another", [*command, node.holder_socket], node.env(), node.log_file("another")))
    broker.wait_for("another holder has everything")
    broker.kill()
    start(node, "third")
    assert node.holder_pid() == another.pid
    eventually(lambda: node.ctl.state("train") == "paused", what="both ranks have reconnected")
    node.ctl("resume", "train")
    job.check()


def test_a_broker_that_hangs_is_not_healthy(bare_node, holder):
    broker = start(bare_node)
    assert health(bare_node).code == 0
    broker.signal(signal.SIGSTOP)
    try:
        assert bare_node.ctl.try_("--timeout", "300ms", "health").code == DEADLINE
    finally:
        broker.signal(signal.SIGCONT)
    eventually(lambda: health(bare_node).code == 0, what="it answers again")
