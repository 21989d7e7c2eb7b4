"""Commands of amemctl that ask, and change nothing: what they say is what happens then."""
from sim_node import MIB, Program
from sim_node.ctl import NOT_FOUND

KEEP = 1  # the policy of a region


def test_run_without_a_scope_says_what_stays_on_the_gpu(node):
    said = node.ctl("run", "--group", "train", "--", "true", json_output=False).err
    assert said.count("\n") == 1 and "stays on the GPU; --scope heap frees that, too" in said
    assert node.ctl("run", "--group", "train", "--scope", "nccl", "--", "true", json_output=False).err == ""


def allocate(program, tag, policy, size):
    program.ask(f"region begin {tag} {policy}")
    program.ask(f"alloc 0 {size} 1")
    program.ask("region end")


def test_advice_that_is_taken_is_not_given_again(node):
    assert node.ctl.try_("advise", "train").code == NOT_FOUND
    program = Program(node, scope="regions")
    allocate(program, "kv_cache", KEEP, 72 * MIB)
    [advice] = node.ctl("advise", "train").json["advice"]
    assert advice["check"] == "discard" and advice["bytes"] == 72 * MIB
    assert "`amemctl policy train kv_cache discard`" in node.ctl("advise", "train", json_output=False).out
    node.ctl("policy", "train", "kv_cache", "discard")
    assert node.ctl("advise", "train", json_output=False).out.startswith("train: nothing to advise")
