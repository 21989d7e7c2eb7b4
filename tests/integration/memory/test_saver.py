"""The shim under the name of torch_memory_saver's hook library, as that package's launchers preload it: nothing says a group."""
import os
import re
import shutil

import pytest

from sim_node import MIB, Program

KEEP, DISCARD = 1, 2
HOOK = "torch_memory_saver_hook_mode_preload.abi3.so"


def shim(node):
    return os.path.join(node.build.directory, "lib", "libamem_shim.so")


@pytest.fixture
def hook(node, tmp_path):
    path = tmp_path / HOOK
    path.symlink_to(shim(node))
    return str(path)


def program(node, preload, rank=0, **variables):
    return Program(node, scope=None, rank=rank, env={"LD_PRELOAD": preload, **variables})


def group_of(process):
    return process.stats()["group"]


def test_each_process_is_a_group_by_itself(node, hook):
    first, second = program(node, hook), program(node, hook, rank=1)
    for each in (first, second):
        each.ask("alloc 0 5000")
        each.ask(f"region begin kv {KEEP}")
        each.ask("alloc 0 5000")
        each.ask("region end")
        each.ask(f"nccl 0 {2 * MIB}")
        assert each.stats()["scope"] == "regions"
        assert each.brokered() == {("kv", 0): 2 * MIB}
        # What NCCL shares with processes that are groups by themselves is the driver's own.
        assert each.unbrokered() == {("device", 0): 5000, ("vmm", 0): 2 * MIB}
        assert re.fullmatch(rf"tms-{each.pid}-[0-9a-f]{{8}}", group_of(each))
    first.ask("saver pause")
    assert first.paused() == {("kv", 0): 2 * MIB}
    assert second.paused() == {("kv", 0): 0}
    second.verify()
    first.ask("saver pause")  # again
    first.ask("saver resume")
    first.verify()
    first.ask("saver pause nothing-has-this-tag")


@pytest.mark.parametrize("backup", ["0", "1"])
def test_a_whole_process(node, hook, backup):
    process = program(node, hook, TMS_INIT_ENABLE="1", TMS_INIT_ENABLE_CPU_BACKUP=backup)
    process.ask(f"region begin weights {KEEP}")
    process.ask("alloc 0 5000")
    process.ask("region end")
    process.ask(f"nccl 0 {2 * MIB}")
    process.ask("unbrokered begin")
    process.ask("alloc 0 5000")
    process.ask("unbrokered end")
    process.ask(f"region begin heap {DISCARD}")  # as the package has it: "default" is the heap
    process.ask("region end")
    process.ask(f"alloc 0 {3 * MIB}")
    assert process.brokered() == {("weights", 0): 2 * MIB, ("heap", 0): 3 * MIB}
    group = group_of(process)
    process.ask("saver pause default")
    assert process.paused() == {("weights", 0): 0, ("heap", 0): 3 * MIB}
    assert node.ctl.group(group)["dropped_bytes"] == (0 if backup == "1" else 3 * MIB)
    process.ask("saver pause")
    assert process.paused() == {("weights", 0): 2 * MIB, ("heap", 0): 3 * MIB}
    assert node.ctl.state(group) == "running"
    process.ask("saver resume")
    assert process.paused() == {("weights", 0): 0, ("heap", 0): 0}
    if backup == "1":
        process.verify()


def test_ranks_of_a_named_group_wait_for_each_other(node, hook):
    first, second = (program(node, hook, rank=rank, AMEM_GROUP="train") for rank in (0, 1))
    for each in (first, second):
        each.ask(f"region begin kv {KEEP}")
        each.ask("alloc 0 5000")
        each.ask("region end")
        each.ask(f"nccl 0 {2 * MIB}")
        assert each.brokered() == {("kv", 0): 2 * MIB, ("nccl", 0): 2 * MIB}
    first.send("saver pause")
    second.ask("saver pause")
    first.answer()
    assert first.paused() == second.paused() == {("kv", 0): 2 * MIB, ("nccl", 0): 0}


def test_a_margin_of_memory(node, hook):
    total = node.ctl.devices()[0]["total_bytes"]
    process = program(node, hook, TMS_MEMORY_MARGIN_BYTES=str(total // 2))
    process.ask(f"region begin kv {KEEP}")
    process.send(f"alloc 0 {total * 5 // 8}")
    assert "OUT_OF_MEMORY" in process.failure()
    process.send(f"expand 0 {total * 5 // 8} 1")
    assert "OUT_OF_MEMORY" in process.failure()
    process.ask(f"nccl 0 {2 * MIB}")
    process.ask(f"alloc 0 {total // 4}")
    process.ask("saver margin 0")
    process.ask(f"alloc 0 {total // 2}")
    process.verify()


def test_a_disk_is_not_used_and_nothing_is_lost(node, hook):
    process = program(node, hook, TMS_INIT_ENABLE="1", TMS_INIT_ENABLE_DISK_BACKUP="1")
    assert "keeps the bytes" in process.wait_for("TMS_INIT_ENABLE_DISK_BACKUP")
    process.ask("alloc 0 5000")
    process.ask("saver pause")
    process.ask("saver resume")
    process.verify()


@pytest.mark.parametrize("hook_is_first", [True, False])
def test_a_second_shim_under_another_name_does_nothing(node, tmp_path, hook_is_first):
    copy = tmp_path / HOOK
    shutil.copy(shim(node), copy)
    preload = [str(copy), shim(node)] if hook_is_first else [shim(node), str(copy)]
    process = program(node, ":".join(preload), AMEM_GROUP="train", AMEM_SCOPE="heap")
    process.ask("alloc 0 5000 3")
    process.ask(f"expand 0 {2 * MIB} 2")
    process.ask(f"nccl 0 {2 * MIB}")
    assert process.brokered() == {("heap", 0): 6 * MIB, ("nccl", 0): 2 * MIB}
    assert process.unbrokered() == {}
    assert len(node.ctl.ranks("train")) == 1
    node.ctl("pause", "train")
    node.ctl("resume", "train")
    process.verify()
    assert not any("warning" in line for line in process.rest())
