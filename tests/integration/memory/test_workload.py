"""The workload itself, without amem: what it is to notice it does notice, or the other tests could not fail."""
import os
import subprocess

import pytest

from sim_node import Job, patience


def lone(node, **options):
    """A job without the shim."""
    return node.job("lone", run=[], **options)


def test_it_works_without_amem(bare_node):
    job = lone(bare_node)
    job.check()
    job.ask("loop on")
    job.ask("loop off")
    job.ask("capture 2")
    job.ask("graph 2")
    job.ask("rewrite")
    job.check()
    job.leave()


@pytest.mark.parametrize("offset", [64, 65536, 262143])
def test_a_flipped_bit_is_noticed_by_owner_and_peer(bare_node, offset):
    job = lone(bare_node)
    job.ranks[1].ask(f"corrupt 2 {offset}")
    job.send("verify")
    for rank in job.ranks:
        error = rank.failure()
        assert "allocation 2 of rank 1" in error
        assert f"byte {offset // 8 * 8}" in error
    job.ranks[1].ask(f"corrupt 2 {offset}")
    job.verify()


def test_a_wrong_stamp_is_noticed_by_the_next_collective(bare_node):
    job = lone(bare_node)
    job.step()
    job.ranks[1].ask("corrupt 3 8")
    job.ranks[0].send("verify")
    assert "stamp is not that of round 3" in job.ranks[0].failure()
    job.send("step 1")
    assert "allocation 3 of rank 1" in job.ranks[0].failure()
    job.ranks[1].answer()


def test_a_wrong_contribution_spreads_and_is_noticed(bare_node):
    job = lone(bare_node)
    job.ranks[1].ask(f"corrupt {1 << 33} 5000")
    job.step()
    job.send("verify")
    for rank in job.ranks:
        assert "wrong result of the collectives" in rank.failure()


def test_a_peer_that_does_not_come_is_named(bare_node):
    job = lone(bare_node, kernel_timeout=1)
    job.ranks[0].send("step 5")
    assert "rank 1 did not come to round 1" in job.ranks[0].failure()
    job.ranks[0].send("step")
    assert "rank 1" in job.ranks[0].failure()
    job.ranks[0].ask("verify")


def test_a_peer_that_dies_in_a_loop_is_named(bare_node):
    job = lone(bare_node, kernel_timeout=1)
    job.ask("loop on")
    job.ranks[1].kill()
    job.ranks[0].send("loop off")
    assert "rank 1 did not come" in job.ranks[0].failure()
    job.ranks[0].ask("verify")


def test_a_peer_that_never_starts_is_an_error(bare_node):
    job = Job(bare_node, "lone", 2, run=[], arguments=["--peer-timeout", "1"],
              rank_env={1: {"AMEM_SIM_FAULTS": "cuInit:1:kill"}})
    assert "rank 1" in job.ranks[0].failure()
    assert job.ranks[0].wait() == 1


@pytest.mark.parametrize("text, said", [
    ("", "holds no memory calls"),
    ("create libnccl.so.2 n=lots loc=1:0 hty=1 rdma=1 rc=0 mine=1\n", ":1: cannot read n=lots"),
    ("map va=1000 n=65536 off=0 vh=1 imported=0 rc=0\n", "line 1"),
    ("create libnccl.so.2 n=65536 loc=1:0 hty=1 rdma=1 rc=2 mine=1\n", "recorded 2, got CUDA_SUCCESS"),
    ("create libnccl.so.2 n=65536 loc=1:0 hty=9 rdma=1 rc=0 mine=1\n", "recorded 0, got CUDA_ERROR_NOT_PERMITTED"),
])
def test_a_trace_that_cannot_be_replayed_is_an_error(bare_node, text, said):
    path = os.path.join(bare_node.dir, "bad.trace")
    with open(path, "w") as file:
        file.write(text)
    job = Job(bare_node, "lone", 1, run=[], trace=path)
    assert said in job.ranks[0].failure()
    assert job.ranks[0].wait() == 1


@pytest.mark.parametrize("kind", ["symmetric", "small"])
def test_a_trace_is_replayed_to_its_end(bare_node, kind):
    job = lone(bare_node, trace=bare_node.trace(kind), arguments=["--teardown"])
    job.check()
    before = [answer["own_mappings"] for answer in job.ask("meminfo")]
    job.send("exit")
    for rank, mappings in zip(job.ranks, before):
        assert rank.answer()["own_mappings"] < mappings
        assert rank.wait() == 0


def test_commands_that_make_no_sense(bare_node):
    job = lone(bare_node, ranks=1)
    [rank] = job.ranks
    for command in ("fly", "step many", "loop", "capture end", "graph", "free 7", "teardown", "ncclPause", "corrupt 99"):
        rank.send(command)
        assert rank.failure(), command
    rank.ask("loop on")
    for command in ("verify", "step", "loop on"):
        rank.send(command)
        assert "loop" in rank.failure()
    rank.ask("loop off")
    job.check()


@pytest.mark.parametrize("arguments", [["--rank", "2", "--ranks", "2"], ["--ranks", "2"], ["--shared", "3"],
                                       ["--trace", "x", "--allocations", "3"], ["--no-such-flag"]])
def test_wrong_usage(bare_node, arguments):
    argv = [bare_node.build.program("amem-workload"), *arguments]
    done = subprocess.run(argv, env=bare_node.env(), capture_output=True, text=True, timeout=patience(20))
    assert done.returncode == 2
    assert done.stderr
