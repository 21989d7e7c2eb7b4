"""Programs that are linked to libcuda, and so look none of its calls up."""
import os
import pathlib
import re
import subprocess
import sys

import pytest

from sim_node import MIB, eventually, patience
from sim_node.child import sanitized


def shim(build):
    return os.path.join(build.directory, "lib", "libamem_shim.so")


def used(node, device=0):
    return node.ctl.devices()[device]["used_bytes"]


@pytest.mark.parametrize("way", ["linked", "ptsz", "looked-up"])
def test_launches_wait_at_the_gate(node, way):
    puppet = node.puppet(env={"AMEM_GATE": "1s"})
    puppet.ask("alloc 1000000")  # makes it a rank
    puppet.ask(f"loop {way}")
    puppet.loop_runs()
    node.ctl("pause", "train")
    # The next launch waits as long as it may, and fails.
    ended = eventually(puppet.loop_error, what="a launch has waited")
    assert "launch: CUDA_ERROR_TIMEOUT" in ended
    node.ctl("resume", "train")
    puppet.ask(f"loop {way}")
    puppet.loop_runs()
    puppet.ask("loop off")
    puppet.leave()


def test_memory_is_brokered(node):
    puppet = node.puppet()
    ids = [puppet.ask("alloc 3000000")["id"] for _ in range(3)]
    for each in ids:
        puppet.ask(f"fill {each} {each}")
    assert node.ctl.group("train")["resident_bytes"] > 9000000
    assert used(node) > 9000000
    node.ctl("pause", "train")
    assert used(node) == node.CONTEXT_BYTES
    puppet.send(f"verify {ids[0]} {ids[0]}")
    puppet.stands()
    node.ctl("resume", "train")
    puppet.answer()
    for each in ids:
        puppet.ask(f"verify {each} {each}")
        puppet.ask(f"free {each}")
    puppet.leave()


def test_other_modules_memory_is_not(node):
    puppet = node.puppet(env={"AMEM_MODULES": None})
    each = puppet.ask("alloc 1000000")["id"]
    puppet.ask(f"fill {each} 5")
    puppet.ask(f"verify {each} 5")
    assert node.ctl.group("train") is None
    puppet.leave()


@pytest.mark.parametrize("env", [{"AMEM_DISABLE": "1"}, {}])
def test_turned_off_or_alone(bare_node, env):
    puppet = bare_node.puppet(env=env)
    each = puppet.ask(f"alloc {MIB}")["id"]
    puppet.ask(f"fill {each} 1")
    for way in ("linked", "ptsz", "looked-up"):
        puppet.ask(f"loop {way}")
        puppet.loop_runs()
    puppet.ask("loop off")
    puppet.ask(f"verify {each} 1")
    puppet.ask(f"free {each}")
    puppet.leave()


def test_a_thread_that_destroyed_a_context_still_waits(node):
    puppet = node.puppet()
    each = puppet.ask("alloc 65536")["id"]
    puppet.ask("context")
    node.ctl("pause", "train")
    puppet.send(f"fill {each} 1")
    puppet.stands()
    node.ctl("resume", "train")
    assert puppet.answer()["ok"]
    puppet.ask(f"verify {each} 1")


def test_pointers_are_known_while_their_memory_is_paused(node):
    """A launcher looks its pointers up before it launches, and so before it comes to the gate."""
    puppet = node.puppet()
    each = puppet.ask("alloc 65536")["id"]
    attributes = {"memory type": 2, "device pointer": 3, "managed": 8, "ordinal": 9, "mapped": 13}
    here = {name: puppet.ask(f"pointer {each} {number}")["value"] for name, number in attributes.items()}
    assert here["device pointer"] == puppet.ask(f"address {each}")["address"] and here["memory type"] == 2
    node.ctl("pause", "train")
    paused = {name: puppet.ask(f"pointer {each} {number}")["value"] for name, number in attributes.items()}
    assert paused == here
    node.ctl("resume", "train")


def test_access_is_known_while_memory_is_paused(node):
    puppet = node.puppet()
    each = puppet.ask("alloc 65536 whole")["id"]

    def flags():
        return [puppet.ask(f"access {each} {device}")["flags"] for device in (0, 1)]

    assert flags() == [3, 0]
    node.ctl("pause", "train")
    assert flags() == [3, 0]
    puppet.send(f"access {each} 2")
    assert "CUDA_ERROR_INVALID_DEVICE" in puppet.failure()
    node.ctl("resume", "train")
    assert flags() == [3, 0]


@pytest.mark.parametrize("group", [None, "train"])
@pytest.mark.parametrize("size", ["65536", "4194304 whole"])
def test_handle_types_are_those_of_who_made_the_memory(node, group, size):
    """Of imported memory the driver names none, and to it all brokered memory is imported."""
    owner, importer = (node.puppet(name, 0, group=group) for name in ("owner", "importer"))
    mine = owner.ask(f"alloc {size}")["id"]
    owner.ask(f"offer {mine} {node.dir}")
    theirs = importer.ask(f"take {node.dir} {max(65536, int(size.split()[0]))}")["id"]

    def types():
        return [puppet.ask(f"pointer {each} 14")["value"] for puppet, each in ((owner, mine), (importer, theirs))]

    assert types() == [1, 0]
    if group is not None:
        node.ctl("pause", group)
        assert types() == [1, 0]
        node.ctl("resume", group)
        assert types() == [1, 0]


def test_addresses_of_memory_that_is_paused_are_not_freed(node):
    """Else somebody else's memory could come there, and the resume of the whole group would fail."""
    puppet = node.puppet(scope="heap", env={"AMEM_MODULES": "libnccl"})
    each = puppet.ask(f"alloc {4 << 20}")["id"]
    puppet.ask(f"fill {each} 1")
    for operation in (None, "pause", "resume"):
        if operation is not None:
            node.ctl(operation, "train", "--tag", "heap")
        puppet.send(f"free-address {each}")
        assert "cuMemAddressFree: CUDA_ERROR_INVALID_VALUE" in puppet.failure()
    puppet.ask(f"verify {each} 1")
    puppet.ask(f"unmap {each}")
    puppet.ask(f"free-address {each}")


@pytest.mark.parametrize("call, refused", [("upload", "INVALID_VALUE"), ("decompress", "NOT_SUPPORTED"),
                                           ("newer-copy attributes", "INVALID_VALUE"), ("newer-copy fabric", "INVALID_VALUE")])
def test_calls_that_give_the_device_work_come_to_the_gate(node, call, refused):
    puppet = node.puppet(env={"AMEM_GATE": "error", "AMEM_SIM_DRIVER": "13.5"})
    puppet.ask("alloc 65536")
    for operation, error in (("pause", "NOT_READY"), ("resume", refused)):
        node.ctl(operation, "train")
        puppet.send(call)
        assert f"CUDA_ERROR_{error}" in puppet.failure()


def run(node, argv, env):
    return subprocess.run([str(each) for each in argv], env=node.env(env), capture_output=True, text=True,
                          timeout=patience(20), check=True).stdout.strip()


def test_a_program_without_the_driver(bare_node):
    """Lookups find what they find without the shim; a call that gets through says that there is no driver."""
    argv = [bare_node.build.program("amem-unlinked")]
    preload = {"LD_PRELOAD": shim(bare_node.build)}
    assert run(bare_node, argv, {}) == "default 0 error 1 self 0 call -1"
    assert run(bare_node, argv, preload) == "default 0 error 1 self 0 call 3"
    assert run(bare_node, argv, {**preload, "AMEM_DISABLE": "1"}) == "default 0 error 1 self 0 call 3"


@pytest.mark.parametrize("env, library", [({}, "libamem_shim.so"), ({"AMEM_DISABLE": "1"}, "libcuda.so.1")])
def test_a_linked_module_of_a_program_that_is_not(bare_node, env, library):
    module = os.path.join(bare_node.build.directory, "lib", "libpuppet_module.so")
    code = f"""
import ctypes
call = ctypes.CDLL({module!r}).puppet_launches_go_to
call.restype = ctypes.c_char_p
print(call().decode())
"""
    out = run(bare_node, [sys.executable, "-c", code], {"LD_PRELOAD": shim(bare_node.build), **env})
    assert os.path.basename(out) == library


@pytest.mark.parametrize("looked_up", (0, 1))
@pytest.mark.parametrize("version", ("22809", "23203"))
def test_nccl_that_only_its_user_sees(node, looked_up, version):
    """As PyTorch's in Python: the calls of NCCL's that the shim answers go on to it."""
    module = os.path.join(node.build.directory, "lib", "libuses_nccl.so")
    code = f"""
import ctypes
driver, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
assert driver.cuInit(0) == driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == driver.cuCtxSetCurrent(context) == 0
print(ctypes.CDLL({module!r}).uses_nccl_register(0, {looked_up}))
"""
    env = {"LD_PRELOAD": shim(node.build), "WORKLOAD_NCCL_VERSION": version, "AMEM_SHIM_WITHOUT": "slabs"}
    assert run(node, [sys.executable, "-c", code], env) == "0"


def library(answer):
    return os.path.basename(answer["library"])


@pytest.mark.parametrize("way", ["next", "library"])
@pytest.mark.parametrize("first", [True, False])
def test_another_library_that_wraps_driver_calls(node, first, way):
    other = os.path.join(node.build.directory, "lib", "libpuppet_interposer.so")
    order = [other, shim(node.build)] if first else [shim(node.build), other]
    puppet = node.puppet(scope="heap", env={"PUPPET_NEXT": way}, preload=":".join(order))
    before = puppet.ask("plain 3000000")["id"]
    found = library(puppet.ask("lookup-name cuMemAlloc_v2"))
    assert found == ("libpuppet_interposer.so" if first else "libamem_shim.so")
    after = puppet.ask("plain 5000000")["id"]
    assert node.ctl.group("train")["resident_bytes"] > 8000000
    for each in (before, after):
        puppet.ask(f"fill {each} {each}")
    node.ctl("pause", "train")
    assert used(node) == node.CONTEXT_BYTES
    node.ctl("resume", "train")
    for each in (before, after):
        puppet.ask(f"verify {each} {each}")
    puppet.leave()
    said = puppet.output("err")
    assert said.count("interposer: ") == (2 if first else 0)
    assert ("Put it before libamem_shim.so" in said) == (not first)


def test_the_shim_goes_before_what_is_preloaded_already(node):
    other = os.path.join(node.build.directory, "lib", "libpuppet_interposer.so")
    puppet = node.puppet(scope="heap", env={"LD_PRELOAD": f"{other}:{shim(node.build)}"})
    puppet.ask("plain 3000000")
    assert library(puppet.ask("lookup-name cuMemAlloc_v2")) == "libamem_shim.so"
    assert node.ctl.group("train")["resident_bytes"] >= 3000000
    puppet.leave()


def test_another_copy_of_the_driver_is_left_alone(node):
    puppet = node.puppet(scope="heap")
    if sanitized(puppet.pid):
        pytest.skip("a copy of the driver would bring a second copy of the sanitizer, which cannot be")
    assert library(puppet.ask("lookup-elsewhere cuMemAlloc_v2")) == "libcuda.so.1"
    each = puppet.ask("plain 3000000")["id"]
    puppet.ask(f"fill {each} 1")
    assert node.ctl.group("train")["resident_bytes"] > 3000000
    node.ctl("pause", "train")
    node.ctl("resume", "train")
    puppet.ask(f"verify {each} 1")


def test_every_wrapped_call_of_the_table_is_exported(build):
    table = pathlib.Path(__file__).resolve().parents[3] / "shim" / "calls" / "driver_calls.inc"
    symbols = re.findall(r"^(?:GATED|ANSWERED|COUNTED|RETRIED|WATCHED)\(\w+, \d+, \w+, (\w+)\)", table.read_text(encoding="utf-8"),
                         re.MULTILINE)
    assert len(symbols) > 120
    # Not by loading it: there is no space for a sanitizer in a process that began without one.
    listed = subprocess.run(["nm", "--dynamic", "--defined-only", "--format=posix", shim(build)], check=True, capture_output=True, text=True)
    exported = {line.split()[0].partition("@")[0] for line in listed.stdout.splitlines()}
    assert sorted(set(symbols) - exported) == []
