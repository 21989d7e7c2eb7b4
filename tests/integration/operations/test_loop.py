"""An operator's pause while the ranks run collectives without end: the consistent cut."""
import pytest


def pause_often(node, job, times):
    job.ask("loop on")
    rounds = 0
    for _ in range(times):
        node.ctl("pause", job.name)
        assert node.ctl.group(job.name)["resident_bytes"] == 0
        node.ctl("resume", job.name)
        # The loop goes on: not one round is lost or run twice, or the ranks' counts would part for good.
        answers = job.ask("loop status")
        assert all(answer["mismatches"] == 0 for answer in answers)
        assert min(answer["rounds"] for answer in answers) >= rounds
        rounds = min(answer["rounds"] for answer in answers)
    ended = job.ask("loop off")
    assert len({answer["rounds"] for answer in ended}) == 1
    assert ended[0]["rounds"] > rounds or rounds > 0
    job.check()


def test_pauses_in_a_loop_of_collectives(node):
    pause_often(node, node.job(), 20)


def test_two_communicators_launched_from_two_threads(node):
    # Each rank's threads come to the gates in an order of their own: busy devices have to be stepped too.
    pause_often(node, node.job(arguments=["--communicators", 2, "--loop-threads", 2]), 10)


def test_several_communicators_launched_from_one_thread(node):
    pause_often(node, node.job(arguments=["--communicators", 4]), 10)


def test_one_process_with_two_devices(node):
    pause_often(node, node.job(ranks=2, per_process=2), 10)


def test_four_ranks(node):
    pause_often(node, node.job(ranks=4), 10)


def test_two_groups_loop_and_only_one_is_paused(node):
    train = node.job("train")
    rollout = node.job("rollout")
    rollout.ask("loop on")
    pause_often(node, train, 5)
    rollout.ask("loop off")
    rollout.check()


@pytest.mark.parametrize("depth", [1, 32])
def test_launches_far_ahead(node, depth):
    pause_often(node, node.job(arguments=["--depth", depth]), 5)


def test_a_rank_that_launches_its_part_late_is_let_through(node):
    job = node.job()
    job.ranks[0].send("step 1")
    job.ranks[0].stands()
    pause = node.ctl.start("pause", "train")
    pause.wait_phase("quiesce")
    job.ranks[1].send("step 1")
    assert pause.finish().code == 0
    node.ctl("resume", "train")
    job.answers()
    job.check()
