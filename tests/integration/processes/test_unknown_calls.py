"""Driver calls that amem does not know, on a driver that is newer than its table (docs/decisions/unknown-driver-calls.md)."""
import os
import shutil
import subprocess
import sys

import pytest

from sim_node import eventually, has_add_on
from sim_node.child import sanitized

MADE_UP = {"AMEM_SIM_DRIVER": "14.0"}
LOOKUPS = ["dlsym", "v1", "v2", "v2-by-dlsym"]  # libcudart's own lookup: the GPU case hidden_calls
SIZE = 3000000
NOT_FOUND, SYMBOL_NOT_FOUND = 500, 1  # CUDA_ERROR_NOT_FOUND, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND
UNICAST, HANDLE_TYPES = 153, 158  # device attributes of logical endpoints


def library(node):
    return os.path.join(node.build.directory, "lib", "libpuppet_newer.so")


def own_shim(node, text=None, mode=0o644, name="own"):
    """A copy of the shim with a list beside it."""
    folder = os.path.join(node.dir, name)
    os.makedirs(folder)
    shim = shutil.copy(os.path.join(node.build.directory, "lib", "libamem_shim.so"), folder)
    if text is not None:
        path = os.path.join(folder, "amem_driver_calls.txt")
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(path, mode)
    return shim


def told(node, group="train"):
    """What the ranks of the group have told the broker: {call: fate}."""
    return {call["name"]: call["fate"] for rank in node.ctl.ranks(group) for call in rank.get("unknown_calls", [])}


@pytest.mark.parametrize("way", LOOKUPS)
def test_a_copy_is_hidden_reported_and_a_pause_beside_it_loses_nothing(node, way):
    puppet = node.puppet(env=MADE_UP)
    one, other = (puppet.ask(f"alloc {SIZE}")["id"] for _ in range(2))
    puppet.ask(f"fill {one} 7")
    answer = puppet.ask(f"copies {way} {one} {other} cuTeleportAsync")
    assert answer["found"] == 0, "the program has a call that passes no gate"
    eventually(lambda: puppet.ask("copies status")["copies"] > 3, what="it copies in another way")
    for _ in range(3):
        node.ctl("pause", "train")
        node.ctl("resume", "train")
        puppet.ask(f"verify {one} 7")
    puppet.ask("copies off")
    puppet.ask(f"verify {other} 7")
    eventually(lambda: told(node) == {"cuTeleportAsync": "hidden"}, what="the broker hears of it")
    puppet.leave()
    assert puppet.output("err").count("amem hides the driver call cuTeleportAsync") == 1, "said once"


@pytest.mark.parametrize("way, answer", [
    ("v1", {"result": NOT_FOUND}), ("v2", {"result": 0, "status": SYMBOL_NOT_FOUND}),
    ("v2-by-dlsym", {"result": 0, "status": SYMBOL_NOT_FOUND}), ("dlsym", {})])
def test_the_answer_is_that_of_a_driver_without_the_call(node, way, answer):
    """Also before the process is a rank, and of calls that are known and hidden; and as the 13.1 driver says it."""
    older, puppet = node.puppet("older", group=None, env={"AMEM_SIM_DRIVER": "13.1"}), node.puppet(env=MADE_UP)
    for call in ("cuTeleportAsync", "cuLogicalEndpointIdReserve", "cuDeviceGetCliqueCount", "cuThereIsNoSuchCall"):
        missing = older.ask(f"find {call} {way} 13010")
        for version in (13010, 14000):
            hidden = puppet.ask(f"find {call} {way} {version}")
            assert hidden["found"] == missing["found"] == 0
            for name, value in answer.items():
                assert hidden[name] == missing[name] == value
            if way == "dlsym":
                assert f"undefined symbol: {call}" in hidden["error"] and f"undefined symbol: {call}" in missing["error"]


def test_device_attributes_agree(node):
    """Of a driver that has logical endpoints the program is told that it has none; what is newer than the table is not there."""
    for driver in ("13.5", "14.0"):
        plain = node.puppet(f"plain-{driver}", group=None, env={"AMEM_SIM_DRIVER": driver})
        puppet = node.puppet(f"puppet-{driver}", env={"AMEM_SIM_DRIVER": driver})
        for attribute in (UNICAST, UNICAST + 1, UNICAST + 2, UNICAST + 3, HANDLE_TYPES):
            assert plain.ask(f"attribute {attribute}")["value"] == 1
            assert puppet.ask(f"attribute {attribute}")["value"] == 0
        assert plain.ask("find cuLogicalEndpointIdReserve v2 13030")["found"] == 1
        assert puppet.ask("find cuLogicalEndpointIdReserve v2 13030")["found"] == 0
        assert puppet.ask("attribute 161")["value"] == plain.ask("attribute 161")["value"]
    assert plain.ask("attribute 165")["value"] == 0, "the made-up driver knows it"
    puppet.send("attribute 165")
    assert "CUDA_ERROR_INVALID_VALUE" in puppet.failure()


@pytest.mark.parametrize("driver, calls", [("13.1", 0), ("13.2", 1), ("13.5", 1)])
def test_calls_of_the_table_are_found_where_the_driver_has_them(node, driver, calls):
    puppet = node.puppet(env={"AMEM_SIM_DRIVER": driver})
    for way in LOOKUPS:
        assert puppet.ask(f"find cuMemcpyWithAttributesAsync {way} {13010 if calls == 0 else 13020}")["found"] == calls
    puppet.leave()
    assert "does not know" not in puppet.output("err")


def test_a_newer_version_of_a_known_call(node):
    """Its parameters are other ones. Where the driver has the same function for it as for the table's version, it is known."""
    puppet = node.puppet(env=MADE_UP)
    assert puppet.ask("find cuEventCreate v2 13050")["found"] == 1
    assert puppet.ask("find cuEventCreate v2 14000")["found"] == 0
    assert puppet.ask("find cuEventCreate_v2 dlsym 0")["found"] == 0
    assert puppet.ask("find cuMemcpyAsync v2 14000")["found"] == 1
    library = puppet.ask("lookup cuMemcpyAsync 14000")["library"]
    assert os.path.basename(library) == "libamem_shim.so"


LOOK_UP = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])  # by RTLD_LOCAL: nobody else sees its libcuda
library.puppet_look_up.restype = ctypes.c_void_p
for name in (b"cuInit", b"cuTeleportAsync"):
    print(int(library.puppet_look_up(name, int(sys.argv[2])) is not None))
"""


@pytest.mark.parametrize("way", ["RTLD_DEFAULT", "RTLD_NEXT"])
def test_a_library_that_alone_sees_libcuda(node, way):
    if sanitized(node.broker.pid):
        pytest.skip("Python is not made with the sanitizer")
    found = subprocess.run(
        [sys.executable, "-c", LOOK_UP, os.path.join(node.build.directory, "lib", "libpuppet_local.so"), str(int(way == "RTLD_NEXT"))],
        env=node.env({**MADE_UP, "AMEM_GROUP": "train", "LD_PRELOAD": os.path.join(node.build.directory, "lib", "libamem_shim.so")}),
        check=True, capture_output=True, text=True, timeout=60)
    assert found.stdout.split() == ["1", "0"], found.stderr
    assert found.stderr.count("amem hides the driver call cuTeleportAsync") == 1


def test_a_library_that_is_linked_to_one(node):
    """Nothing of amem's can be before its call. The pause fails and names it, also before the call is first made."""
    puppet = node.puppet(env=MADE_UP)
    if sanitized(puppet.pid):
        pytest.skip("sanitizers bind every call when a library is loaded")
    one, other = (puppet.ask(f"alloc {SIZE}")["id"] for _ in range(2))
    puppet.ask(f"fill {one} 7")
    puppet.ask(f"load {library(node)} lazy")

    def refused():
        answer = node.ctl.try_("pause", "train")
        assert answer.code != 0, "the group is paused although a library is linked to a call that passes no gate"
        assert "libpuppet_newer.so is linked to the driver call cuTeleportAsync" in answer.err and "amem_driver_calls.txt" in answer.err
        assert node.ctl.state("train") == "running"

    refused()
    puppet.ask(f"copies {library(node)} {one} {other} cuTeleportAsync")
    eventually(lambda: puppet.ask("copies status")["copies"] > 3, what="it copies by that call")
    refused()
    puppet.ask("copies off")
    for block in (one, other):
        puppet.ask(f"verify {block} 7")
    eventually(lambda: told(node) == {"cuTeleportAsync": "linked"}, what="the broker hears of it")
    puppet.ask(f"unload {library(node)}")
    node.ctl("pause", "train")
    node.ctl("resume", "train")
    eventually(lambda: told(node) == {"cuTeleportAsync": "hidden"}, what="the broker hears that nothing is linked to it any more")
    puppet.ask(f"verify {one} 7")


def test_the_list_lets_a_harmless_one_through(node):
    """By every way, also by a link. What says itself that it is about memory is hidden whatever the list says."""
    shim = own_shim(node, "# signed off\ncuDeviceGetTeleportCount 14000 pass\ncuMemTeleportAsync 14000 pass\n"
                          "cuTeleportAsync 14000 pass\ncuEventCreate 14000 pass\nCU_DEVICE_ATTRIBUTE_165 14000 pass\nend\n")
    puppet = node.puppet(env={**MADE_UP, "AMEM_SHIM": shim})
    for way in LOOKUPS:
        assert puppet.ask(f"find cuDeviceGetTeleportCount {way} 14000")["found"] == 1
        assert puppet.ask(f"find cuMemTeleportAsync {way} 14000")["found"] == 0
    assert puppet.ask("find cuEventCreate v2 14000")["found"] == 1
    assert puppet.ask("find cuDeviceGetTeleportCount v2 13050")["found"] == 0, "older than the call"
    assert puppet.ask("attribute 165")["value"] == 0
    puppet.send("attribute 166")
    assert "CUDA_ERROR_INVALID_VALUE" in puppet.failure()
    puppet.ask(f"alloc {SIZE}")
    puppet.ask(f"load {library(node)}")
    node.ctl("pause", "train")
    node.ctl("resume", "train")
    eventually(lambda: told(node) == {"cuDeviceGetTeleportCount": "listed", "cuMemTeleportAsync": "hidden", "cuEventCreate": "listed",
                                      "CU_DEVICE_ATTRIBUTE_165": "listed", "CU_DEVICE_ATTRIBUTE_166": "hidden"},
               what="the broker hears of them")


def test_the_list_is_about_the_function_that_was_read(node):
    """Another version of the same name is another function, which nobody has read."""
    puppet = node.puppet(env={**MADE_UP, "AMEM_SHIM": own_shim(node, "cuEventCreate 13050 pass\nend\n")})
    assert puppet.ask("find cuEventCreate v2 13050")["found"] == 1
    assert puppet.ask("find cuEventCreate v2 14000")["found"] == 0


@pytest.mark.parametrize("text, mode, why", [
    ("cuDeviceGetTeleportCount 14000 pass\nen", 0o644, "incomplete"), ("cuDeviceGetTeleportCount 14000 pass\n", 0o644, "incomplete"),
    ("cuDeviceGetTeleportCount 14000 gate\nend\n", 0o644, "line 1"),
    ("cuDeviceGetTeleportCount 14000 pass\nend\n", 0o666, "users other than its owner may write to it")])
def test_a_bad_list_lets_nothing_through(node, text, mode, why):
    puppet = node.puppet(env={**MADE_UP, "AMEM_SHIM": own_shim(node, text, mode)})
    for way in LOOKUPS:
        assert puppet.ask(f"find cuDeviceGetTeleportCount {way} 14000")["found"] == 0
    puppet.leave()
    said = [line for line in puppet.output("err").splitlines() if "allows no driver calls" in line]
    assert len(said) == 1 and why in said[0] and "amem_driver_calls.txt" in said[0]


def test_without_amem_the_driver_is_unchanged(node):
    for name, options in (("off", {"env": {**MADE_UP, "AMEM_DISABLE": "1"}}), ("none", {"env": MADE_UP, "group": None})):
        puppet = node.puppet(name, **options)
        for call in ("cuTeleportAsync", "cuLogicalEndpointIdReserve", "cuEventCreate"):
            for way in LOOKUPS:
                assert puppet.ask(f"find {call} {way} 14000")["found"] == 1
        assert puppet.ask(f"attribute {UNICAST}")["value"] == 1
        assert puppet.ask("attribute 165")["value"] == 0


def test_a_process_without_a_broker_sees_the_same(bare_node):
    puppet = bare_node.puppet(env=MADE_UP, group=None, preload=os.path.join(bare_node.build.directory, "lib", "libamem_shim.so"))
    assert [puppet.ask(f"find cuTeleportAsync {way} 14000")["found"] for way in LOOKUPS] == [0] * len(LOOKUPS)


def test_operators_are_shown_it(node):
    puppet = node.puppet(env=MADE_UP)
    puppet.ask(f"alloc {SIZE}")
    puppet.ask("find cuTeleportAsync v2 14000")
    eventually(lambda: told(node), what="the broker hears of it")
    table = node.ctl("ranks", "train", json_output=False).out
    assert "UNKNOWN DRIVER CALL" in table and "cuTeleportAsync" in table and "hidden" in table
    assert "driver calls that amem does not know: 1 (amemctl ranks train)" in node.ctl("pause", "train", json_output=False).out
    node.ctl("resume", "train")
    if has_add_on("tools"):
        said = node.ctl.try_("doctor", json_output=False)
        assert "warning" in said.out and "cuTeleportAsync" in said.out
    puppet.leave()
    assert "the driver supports CUDA 14.0, but this amem knows driver calls only up to CUDA 13.5" in puppet.output("err")


def test_a_program_that_is_newer_than_the_driver(node):
    puppet = node.puppet(env={"AMEM_SIM_DRIVER": "13.0"})
    for version in (13000, 13050, 13050):
        puppet.ask(f"find cuInit v2 {version}")
    puppet.leave()
    assert puppet.output("err").count("requests driver calls of CUDA 13.5, but the driver supports CUDA up to 13.0") == 1


@pytest.mark.next_broker
def test_the_next_broker_hears_of_it_too(node):
    puppet = node.puppet(env=MADE_UP)
    puppet.ask(f"alloc {SIZE}")
    puppet.ask("find cuTeleportAsync v2 14000")
    eventually(lambda: told(node), what="the broker hears of it")
    node.broker.kill()
    node.start_broker()
    eventually(lambda: told(node) == {"cuTeleportAsync": "hidden"}, what="the next broker hears of it")


def test_rows_can_be_forgotten_for_a_test(node):
    """As on a driver that is newer than the table: what tests on GPUs do with calls that their driver has."""
    forgotten = ("cuMemcpyAsync", "cuStreamGetId")  # a call that the shim wraps, and one that it lets through
    puppet = node.puppet(env={"AMEM_FORGET_CALLS": ",".join(forgotten), "AMEM_SIM_DRIVER": "13.1"})
    if puppet.ask("find cuStreamGetPriority v2 12080")["found"] != 1:
        pytest.fail("what is not named is known")
    for call in forgotten:
        for way in LOOKUPS:
            assert puppet.ask(f"find {call} {way} 12080")["found"] == 0
    puppet.leave()
    for call in forgotten:
        assert f"amem hides the driver call {call}, " in puppet.output("err")
