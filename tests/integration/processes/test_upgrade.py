"""amemctl upgrade: the amemd that is installed takes the place of the one that runs, in the same process."""
import os
import shutil

import pytest

from sim_node import NOBODY, as_user, eventually
from sim_node.ctl import DEADLINE, PERMISSION, WRONG_STATE


def replace(path, script):
    """As a package does: a new file in the place of the old one."""
    with open(path + ".new", "w") as file:
        file.write("#!/bin/sh\n" + script)
    os.chmod(path + ".new", 0o755)
    os.rename(path + ".new", path)


def cycle(node, *jobs):
    for job in jobs:
        node.ctl("pause", job.group)
        node.ctl("resume", job.group)
        job.check()


def test_running_and_paused_groups_stay_as_they_are(bare_node, installed):
    node = bare_node
    running, paused = node.job(), node.job("rollout")
    node.ctl("pause", "rollout")
    running.ask("loop on")
    before = node.ctl.status()
    new = installed + ".copy"
    shutil.copy(installed, new)
    os.rename(new, installed)
    answer = node.ctl("upgrade").json
    assert answer["from_version"] == answer["to_version"] == before["version"] and answer["program"] == installed
    assert node.ctl.status()["pid"] == before["pid"] == node.broker.pid
    running.ask("loop off")
    running.check()
    assert node.ctl.state("rollout") == "paused"
    node.ctl("resume", "rollout")
    paused.check()
    cycle(node, running, paused)
    assert node.broker.terminate() == 0


def test_for_people(bare_node, installed):
    bare_node.job()
    answer = bare_node.ctl("upgrade", json_output=False)
    assert f"({installed}, pid {bare_node.broker.pid})" in answer.out and "2 ranks have reconnected" in answer.out


def test_again_and_again_nothing_is_left_behind(bare_node, installed):
    node = bare_node
    job = node.job()
    node.ctl("upgrade")
    held = node.broker.holding()
    for _ in range(3):
        node.ctl("upgrade")
    eventually(lambda: node.broker.holds_at_most(held), what="it has as many descriptors as after the first")
    cycle(node, job)


def test_the_old_program_serves_on_where_the_new_one_is_gone(bare_node, installed):
    os.unlink(installed)
    answer = bare_node.ctl.try_("upgrade")
    assert answer.code != 0 and installed in answer.error and "continues to serve" in answer.error
    cycle(bare_node, bare_node.job())


@pytest.mark.parametrize(("script", "said"), [
    ('[ $1 != --check-config ] && exec "$0.real" "$@"; echo "amemd.toml:3: pool.typo: no such setting"; exit 2', "pool.typo"),
    ('case $1 in --version) echo amemd 9.0.0;; --speaks) echo session 99;; esac', "speaks session 99"),
    ("echo cannot be loaded; exit 127", "cannot be loaded"),
])
def test_a_program_that_would_not_serve_the_jobs_is_refused_in_its_words(bare_node, installed, script, said):
    node = bare_node
    job = node.job()
    shutil.copy(installed, installed + ".real")
    pid = node.ctl.status()["pid"]
    replace(installed, script)
    answer = node.ctl.try_("upgrade")
    assert answer.code == WRONG_STATE and said in answer.error and "continues to serve" in answer.error
    node.broker.wait_for("the upgrade failed")
    assert node.ctl.status()["pid"] == pid
    cycle(node, job)


def test_it_waits_for_an_operation_that_is_under_way(bare_node, installed):
    node = bare_node
    job = node.job()
    job.ranks[0].ask("capture begin")
    pause = node.ctl.start("pause", "train")
    pause.wait_phase("quiesce")
    answer = node.ctl.try_("upgrade", "--timeout", "300ms")
    assert answer.code != 0 and "'train' is pausing" in answer.error
    upgrade = node.ctl.start("upgrade")
    job.ranks[0].ask("capture end")
    assert pause.finish().code == 0
    assert upgrade.finish().code == 0
    assert node.ctl.state("train") == "paused"
    node.ctl("resume", "train")
    job.check()


def test_without_a_holder_nothing_would_be_left(bare_node):
    bare_node.start_broker("--holder", "off")
    answer = bare_node.ctl.try_("upgrade")
    assert answer.code == WRONG_STATE and "no holder" in answer.error


def test_a_new_one_that_does_not_serve_is_named(bare_node, installed):
    node = bare_node
    shutil.copy(installed, installed + ".real")
    replace(installed, 'case $1 in --version|--speaks|--check-config) exec "$0.real" "$@";; esac; exit 3')
    answer = node.ctl.try_("upgrade", "--timeout", "2s")
    assert answer.code == DEADLINE and installed in answer.error and "does not serve" in answer.error
    assert node.broker.wait() == 3


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")
def test_not_everybody_may(bare_node, installed):
    node = bare_node
    refused = node.ctl.by(as_user(NOBODY)).try_("upgrade")
    assert refused.code == PERMISSION and "access.operators" in refused.error
    node.broker.wait_for("refuses upgrade to")
