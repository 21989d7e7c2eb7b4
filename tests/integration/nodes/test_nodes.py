"""A job that spans nodes pauses, resumes and swaps as one.

By hand, with nothing said between the nodes for a minute, and for ten:

    AMEM_NODE_QUIET=60,600 python3 -m pytest -s tests/integration/nodes/test_nodes.py --build-dir build/release -k quiet
"""
import json
import os
import signal
import time

import pytest

from sim_node.child import eventually
from sim_node.evaluator import Evaluator
from spread import Nodes


@pytest.fixture
def nodes(build, tmp_path):
    nodes = Nodes(build, tmp_path, 2)
    yield nodes
    nodes.close()


def test_a_pause_of_one_node_alone_stalls_where_another_node_waits(nodes):
    """What the one cut is for."""
    job = nodes.job("train", arguments=["--communicators", 2, "--loop-threads", 2])
    job.ask("loop on")
    for _ in range(3):
        nodes("pause", "train")
        nodes("resume", "train")
    job.ask("loop off")
    job.check()


@pytest.mark.add_on("tools")
def test_a_trace_has_all_nodes(nodes, tmp_path):
    job = nodes.job("train")
    nodes[0].job("other", ranks=1)
    for _ in range(2):  # so that the nodes count differently
        nodes[0].ctl("pause", "other")
        nodes[0].ctl("resume", "other")
    path = str(tmp_path / "trace.json")
    nodes("pause", "train", "--trace", path)
    with open(path, encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    processes = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    names = [name.rpartition(": ") for name in processes.values()]
    assert [name[2] for name in names] == ["amemd", "group train"] * 2
    assert len({name[0] for name in names}) == 2, "the second node has a name of its own"
    pauses = [event for event in events if event["name"] == "pause"]
    assert [processes[event["pid"]].endswith("amemd") for event in pauses] == [True, True]
    assert {event["args"]["transaction"] for event in pauses} != {1}
    saves = [processes[event["pid"]] for event in events if event["name"] == "save" and "rank id" in event["args"]]
    assert len(saves) == 2 and all(name.endswith("group train") for name in saves), "a lane for the rank of each node"
    nodes("resume", "train")
    job.check()


def test_each_node_is_asked(nodes):
    nodes.job("train")
    answers = nodes("groups").lines
    assert [answer["node"] for answer in answers] == nodes.addresses().split(",")
    assert all(answer["answer"]["groups"][0]["name"] == "train" for answer in answers)
    nodes[1].broker.kill()
    lost = nodes.try_("status")
    assert lost.code == 1 and len(lost.lines) == 1 and nodes.addresses(1) in lost.err


# ---- all or none --------------------------------------------------------------------------------------------------


def test_a_group_that_one_node_lacks(nodes):
    job = nodes[0].job("train")
    answer = nodes.try_("pause", "train")
    assert answer.code != 0 and "no group 'train'" in answer.error and "node '" in answer.error
    assert nodes[0].ctl.state("train") == "running"
    job.check()


def test_a_save_that_fails_on_one_node_calls_all_off(nodes):
    job = nodes.job("train")
    job.ranks[1].faults("cuMemcpyDtoHAsync:*", "cuLaunchKernel:*")
    answer = nodes.try_("pause", "train")
    job.ranks[1].faults()
    assert answer.code != 0 and "save" in answer.error and "rank 1" in answer.error
    assert nodes.states("train") == ["running"] * 2
    job.check()


def test_a_load_that_fails_on_one_node_rolls_all_back(nodes):
    job = nodes.job("train")
    nodes("pause", "train")
    job.ranks[0].faults("cuMemMap:1")
    answer = nodes.try_("resume", "train")
    job.ranks[0].faults()
    assert answer.code != 0 and "rank 0" in answer.error
    assert nodes.states("train") == ["paused"] * 2
    nodes("resume", "train")
    job.check()


def test_one_node_by_two_addresses(nodes):
    nodes.job("train")
    same = nodes.addresses(0)
    odd = same.replace("/control.sock", "/../run/control.sock")
    for addresses, said in ((f"{same},{same}", "named twice"), (f"{same},{odd}", "two addresses")):
        answer = nodes[0].ctl.try_("pause", "train", "--nodes", addresses)
        assert answer.code != 0 and said in answer.error
    assert nodes.states("train") == ["running"] * 2


def test_a_node_that_does_not_answer(nodes):
    job = nodes.job("train")
    nodes[1].broker.kill()
    answer = nodes.try_("pause", "train")
    assert answer.code != 0 and nodes.addresses(1) in answer.error
    assert nodes[0].ctl.state("train") == "running"
    job.ranks[0].kill()


def test_it_goes_before_a_ranks_own_pause_that_waits_for_its_device(nodes):
    ranks = [Evaluator(node, f"script{number}") for number, node in enumerate(nodes.all)]
    for rank in ranks:
        rank.ask("m = made('cuMemAlloc_v2', 1 << 20)")
    busy = ranks[0]
    busy.ask("s = made('cuStreamCreate', 0); assert cuda.cuStreamBeginCapture_v2(s, 2) == 0")
    busy.ask("shim, tags, text = ctypes.CDLL(None), (ctypes.c_char_p * 1)(b'heap'), ctypes.create_string_buffer(1000)")
    busy.ask("t = threading.Thread(target=lambda: shim.amem_shim_pause(tags, 1, 20000, text, 1000), daemon=True); t.start()")
    time.sleep(0.3)
    pause = nodes.start("pause", "train")
    pause.wait_phase("quiesce")
    busy.ask("assert cuda.cuStreamEndCapture(s, ctypes.byref(ctypes.c_uint64())) == 0")
    assert pause.finish().code == 0
    assert nodes.states("train") == ["paused"] * 2
    busy.ask("t.join(20)")
    nodes("resume", "train")


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("verb", ["pause", "resume"])
def test_an_address_that_is_none(nodes, verb, first):
    """Wherever it stands, the other nodes hear of it before they wait for anything."""
    job = nodes.job("train")
    if verb == "resume":
        nodes("pause", "train")
    addresses = nodes.addresses().split(",")
    addresses.insert(0 if first else 2, "no-port")
    began = time.monotonic()
    answer = nodes[0].ctl.try_(verb, "train", "--nodes", ",".join(addresses))
    assert answer.code != 0 and "no-port" in answer.error
    assert time.monotonic() - began < 5
    for node in nodes.all:
        eventually(lambda node=node: node.ctl.state("train") == {"pause": "running", "resume": "paused"}[verb], what="it is as before")
        node.ctl("wait", "idle")
    if verb == "resume":
        nodes("resume", "train")
    job.check()


def test_two_leaders_at_once(nodes):
    """One of them wins, or none; never both, and nothing is left between."""
    job = nodes.job("train")
    for _ in range(5):
        operations = [nodes.start("pause", "train", lead=lead) for lead in (0, 1)]
        codes = [operation.finish().code for operation in operations]
        assert 0 in codes or nodes.states("train") == ["running"] * 2, codes
        if nodes.states("train") != ["running"] * 2:
            assert codes.count(0) == 1 and nodes.states("train") == ["paused"] * 2
            nodes("resume", "train")
    job.check()


# ---- a node is lost -----------------------------------------------------------------------------------------------


def pause_held_in_save(nodes, lead, limit_s=60):
    """A job, and a pause of it that waits for the save of node 1, until its rank has no faults any more or `limit_s` have passed."""
    job = nodes.job("train")
    job.ranks[1].faults(f"cuMemcpyDtoHAsync:1:hold={limit_s}", f"cuLaunchKernel:1:hold={limit_s}")
    pause = nodes.start("pause", "train", "--timeout", f"{limit_s + 540}s", lead=lead)
    eventually(lambda: nodes[1].ctl.group("train")["phase"] == "save", what="node 1 saves")
    return job, pause


def test_who_leads_is_not_upgraded_meanwhile(build, tmp_path):
    """Its own groups are at rest, as it is none of the nodes."""
    nodes = Nodes(build, tmp_path, 2)
    (tmp_path / "leader").mkdir()
    leader = Nodes(build, tmp_path / "leader", 1)
    try:
        job = nodes.job("train")
        job.ranks[1].faults("cuMemcpyDtoHAsync:1:hold", "cuLaunchKernel:1:hold")
        pause = leader[0].ctl.start("pause", "train", "--nodes", nodes.addresses())
        eventually(lambda: nodes[1].ctl.group("train")["phase"] == "save", what="node 1 saves")
        answer = leader[0].ctl.try_("upgrade", "--timeout", "1s")
        assert answer.code != 0 and "leads an operation over several" in answer.error
        job.ranks[1].faults()
        assert pause.finish().code == 0
        leader[0].ctl("upgrade")
        eventually(leader[0].ctl.reachable, what="the next amemd serves")
        leader[0].ctl("resume", "train", "--nodes", nodes.addresses())
        job.check()
    finally:
        leader.close()
        nodes.close()


def check_cycle(nodes, job):
    job.check()
    nodes("pause", "train")
    nodes("resume", "train")
    job.check()


def test_a_leader_that_is_lost_before_all_have_saved(nodes):
    """The others run on. Its own part is called off by the next broker."""
    job, pause = pause_held_in_save(nodes, lead=0)
    nodes[0].broker.kill()
    answer = pause.finish()
    assert answer.code != 0
    job.ranks[1].faults()
    nodes[0].start_broker(name="amemd2")
    eventually(lambda: nodes.states("train") == ["running"] * 2, what="both run")
    check_cycle(nodes, job)


@pytest.mark.parametrize("stopped, lead", ((1, 0), (0, 0)))
def test_a_broker_that_is_stopped_is_lost(nodes, stopped, lead):
    """Whoever leads notices after ten seconds, and so do those that are led."""
    job, pause = pause_held_in_save(nodes, lead)
    nodes[stopped].broker.signal(signal.SIGSTOP)
    other = nodes[1 - stopped]
    job.ranks[1].faults()
    eventually(lambda: other.ctl.state("train") == "running", deadline=30, what="the other node runs on")
    nodes[stopped].broker.signal(signal.SIGCONT)
    answer = pause.finish()
    assert answer.code != 0 and "lost" in answer.error
    eventually(lambda: nodes.states("train") == ["running"] * 2, what="both run")
    check_cycle(nodes, job)


@pytest.mark.parametrize("quiet", os.environ.get("AMEM_NODE_QUIET", "27").split(","))
def test_a_node_that_is_stopped_after_a_quiet_time_is_lost(build, tmp_path, quiet):
    """Pings do not end while nobody has anything to say: the leader notices after ten seconds, however long that was."""
    limit_s = int(quiet) + 120
    nodes = Nodes(build, tmp_path, 2, flags_of=lambda number: ("--deadlines-save", f"{limit_s}s"))
    try:
        job, pause = pause_held_in_save(nodes, lead=0, limit_s=limit_s)
        time.sleep(int(quiet))
        assert nodes.states("train") == ["pausing"] * 2
        nodes[1].broker.signal(signal.SIGSTOP)
        began = time.monotonic()
        eventually(lambda: nodes[0].ctl.state("train") == "running", deadline=12, what="the leader's own node runs on")
        print(f"quiet for {quiet} s: noticed after {time.monotonic() - began:.1f} s")
        job.ranks[1].faults()
        nodes[1].broker.signal(signal.SIGCONT)
        answer = pause.finish()
        assert answer.code != 0 and "lost" in answer.error
        eventually(lambda: nodes.states("train") == ["running"] * 2, what="both run")
        check_cycle(nodes, job)
    finally:
        nodes.close()


def test_a_leader_that_is_lost_after_a_node_was_told_to_release(build, tmp_path):
    """The others hear of it from that node. Its own part was told last."""
    nodes = Nodes(build, tmp_path, 3)
    try:
        job = nodes.job("train")
        job.ranks[1].faults("releaseBegins:1:hold")
        pause = nodes.start("pause", "train")
        eventually(lambda: nodes[1].ctl.group("train")["phase"] == "release", what="node 1 releases")
        nodes[0].broker.kill()
        assert pause.finish().code != 0
        job.ranks[1].faults()
        nodes[0].start_broker(name="amemd2")
        eventually(lambda: nodes.states("train")[1:] == ["paused"] * 2, what="those that were told are paused")
        eventually(lambda: nodes.states("train")[0] in ("paused", "running"), what="the leader's node is at rest")
        if nodes.states("train")[0] == "running":
            nodes[0].ctl("pause", "train")
        nodes("resume", "train")
        job.check()
    finally:
        nodes.close()
