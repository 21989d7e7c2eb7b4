"""NCCL's own patterns, replayed from recordings; and recordings of our own."""
import os

import pytest

from sim_node import Job


def cycles(node, job, times):
    before = job.addresses()
    for _ in range(times):
        node.ctl("pause", "train")
        assert all(device["brokered_bytes"] == 0 for device in node.ctl.devices())
        for device in node.ctl.devices():
            assert device["used_bytes"] == node.context_bytes(device["ordinal"], job)
        node.ctl("resume", "train")
        job.check()
    assert job.addresses() == before


@pytest.mark.parametrize("kind, scale", [("symmetric", 8), ("small", 8), ("medium", 64)])
def test_replayed(node, kind, scale):
    job = node.job(trace=node.trace(kind), scale=scale)
    job.check()
    for answer in job.ask("meminfo"):
        assert answer["refused_creates"] == 4
        assert answer["imported_mappings"] > 6
    cycles(node, job, 2)
    job.leave()


def test_replayed_with_all_ranks_in_one_process(node):
    cycles(node, node.job(trace=node.trace("small"), per_process=2), 2)


def test_paused_in_a_loop(node):
    job = node.job(trace=node.trace("small"), arguments=["--communicators", 4])
    job.ask("loop on")
    for _ in range(5):
        node.ctl("pause", "train")
        node.ctl("resume", "train")
    job.ask("loop off")
    job.check()


@pytest.mark.parametrize("paused_before", [False, True])
def test_teardown_gives_everything_back(node, paused_before):
    job = node.job(trace=node.trace("medium"), scale=64)
    count = node.ctl.group("train")["allocation_count"]
    if paused_before:
        node.ctl("pause", "train")
        node.ctl("resume", "train")
    job.step()
    job.ask("teardown")
    left = node.ctl.group("train")["allocation_count"]
    assert left <= 12 < count  # the symmetric memory of the recording was never given back
    cycles_left = job.ask("meminfo")
    assert all(answer["own_mappings"] < 12 for answer in cycles_left)
    node.ctl("pause", "train")
    node.ctl("resume", "train")
    job.verify()


def recorded(node, name):
    return os.path.join(node.dir, f"{name}-rank%r.trace")


@pytest.mark.parametrize("source", ["synthetic", "recording"])
def test_what_the_shim_records_can_be_replayed(node, source):
    path = recorded(node, source)
    options = {"trace": node.trace("small")} if source == "recording" else {}
    first = node.job(rank_env={n: {"AMEM_TRACE": path.replace("%r", str(n))} for n in range(2)}, **options)
    first.check()
    sizes = [sorted((each["bytes"], each["imported"]) for each in addresses) for addresses in first.addresses()]
    first.leave()

    second = Job(node, "again", 2, trace=path, scale=1).ready()
    second.check()
    again = [sorted((each["bytes"], each["imported"]) for each in addresses) for addresses in second.addresses()]
    for was, now in zip(sizes, again):
        # The replay adds a communicator of its own to the recorded one, per rank.
        extra = list(now)
        for each in was:
            extra.remove(each)
        assert sorted(imported for _, imported in extra) == [False, True]
    node.ctl("pause", "again")
    node.ctl("resume", "again")
    second.check()


def test_amemctl_run_records(node):
    path = os.path.join(node.dir, "trace-%p")
    launcher = [*node.launcher("train")[:-1], "--trace", path, "--"]
    job = node.job(run=launcher)
    for rank in job.ranks:
        with open(path.replace("%p", str(rank.pid))) as file:
            lines = file.read().splitlines()
        for verb in ("create libnccl_workload.so", "map", "access", "export", "import", "release"):
            assert any(line.startswith(verb) for line in lines), verb
    job.leave()
