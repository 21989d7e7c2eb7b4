"""amemctl bench: a made-up group that is paused and resumed, and gone afterwards."""
import os
import signal
import subprocess

from sim_node import eventually, patience

MIB = 1 << 20


def test_what_it_measures(node):
    told = node.ctl("bench", "--size", "8MiB", "--rounds", "3").json
    assert (told["gpus"], told["bytes"]) == (2, 8 * MIB)
    for name in ("copy_out_us", "pause_us", "copy_in_us", "resume_us"):
        assert len(told[name]) == 3 and all(us > 0 for us in told[name]), told
    past = node.ctl("history").json["operations"]
    assert [each["operation"] for each in past] == ["pause", "resume"] * 3
    assert [each["us"] for each in past[::2]] == told["pause_us"]
    assert all(each["bytes"] >= 16 * MIB for each in past), "both ranks' bytes, none of them left out as zeros"
    eventually(lambda: not node.ctl("groups").json["groups"], what="the group is gone")
    assert node.ctl.status()["pool"]["used_bytes"] == 0


def test_what_people_see(node):
    text = node.ctl("bench", "--size", "4MiB", "--rounds", "1", "--gpus", "1", json_output=False).out.splitlines()
    assert text[0] == "1 GPU, 4.00 MiB, 1 round; all bytes were restored"
    assert [line.split("  ")[0] for line in text[2:]] == ["plain copy out", "pause", "plain copy in", "resume"]
    assert text[3].endswith("%") and "GB/s" in text[3]


def test_what_cannot_be(node):
    for arguments, code, words in (
            (["--gpus", "3"], 2, "requires 3 GPUs, but amemd has 2"),
            (["--size", "1GiB"], 1, "cuMemAlloc"),  # more than a GPU has
            (["--size", "1KiB"], 2, "1MiB to 1TiB")):
        said = node.ctl.try_("bench", *arguments)
        assert said.code == code and words in said.error, said
    eventually(lambda: not node.ctl("groups").json["groups"], what="nothing is left of it")


def test_a_pool_that_is_too_small(bare_node):
    bare_node.start_broker("--pool-size", "16MiB")
    said = bare_node.ctl.try_("bench", "--size", "64MiB")
    assert said.code == 7 and "pool" in said.error, said
    eventually(lambda: not bare_node.ctl("groups").json["groups"], what="nothing is left of it")


def test_a_shim_that_is_turned_off(node):
    node.settings["AMEM_DISABLE"] = "1"
    said = node.ctl.try_("bench", "--size", "4MiB")
    assert said.code == 5 and "AMEM_DISABLE" in said.error, said


def test_without_a_broker(bare_node):
    assert bare_node.ctl.try_("bench").code == 3


def test_an_interrupt_leaves_nothing(node):
    argv = [node.build.program("amemctl"), "--runtime-dir", node.runtime_dir, "bench", "--size", "4MiB", "--rounds", "10000"]
    bench = subprocess.Popen(argv, env=node.env(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    eventually(lambda: len(node.ctl("history").json["operations"]) > 2, what="it is at work")
    os.kill(bench.pid, signal.SIGINT)
    bench.communicate(timeout=patience(20))
    assert bench.returncode == 130
    eventually(lambda: not node.ctl("groups").json["groups"], what="its ranks have ended, and the group with them")


def test_a_rank_that_dies(node):
    argv = [node.build.program("amemctl"), "--runtime-dir", node.runtime_dir, "bench", "--size", "4MiB", "--rounds", "10000"]
    bench = subprocess.Popen(argv, env=node.env(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    eventually(lambda: len(node.ctl("ranks").json["ranks"]) == 2, what="its ranks are up")
    os.kill(node.ctl("ranks").json["ranks"][0]["pid"], signal.SIGKILL)
    _, err = bench.communicate(timeout=patience(20))
    assert bench.returncode != 0 and ("has ended" in err or "ended during" in err or "no longer reads" in err), err
