"""Memory that the program registers with a NIC, by the stand-ins of tests/workload/rdma."""
import os
import subprocess
import sys

import pytest

from sim_node import MIB, chosen, eventually, patience

SIZE = 3 * MIB
WAYS = ["dlsym", "dlvsym", "iova2", "linked", "umem", "gdr", "file", "file-linked"]
FAILURES = {"gdr": "Invalid argument", "file": "cuFileBufRegister: 5036", "file-linked": "cuFileBufRegister: 5036"}
EXPORTS = {"ibv_reg_mr@IBVERBS_1.1", "ibv_reg_mr_iova@IBVERBS_1.7", "ibv_reg_mr_iova2@IBVERBS_1.8",
           "ibv_reg_dmabuf_mr@IBVERBS_1.12", "ibv_rereg_mr@IBVERBS_1.1", "ibv_dereg_mr@IBVERBS_1.1",
           "mlx5dv_reg_dmabuf_mr@MLX5_1.25", "mlx5dv_devx_umem_reg@MLX5_1.7", "mlx5dv_devx_umem_reg_ex@MLX5_1.19",
           "mlx5dv_devx_umem_dereg@MLX5_1.7"}


def libraries(node):
    directory = os.path.join(node.build.directory, "lib")
    return ":".join([node.build.sim_libraries, os.path.join(directory, "rdma"), directory])


def rank(node, **more):
    env = {"LD_LIBRARY_PATH": libraries(node), **more.pop("env", {})}
    return node.puppet(env=env, **more)


def pinned(node):
    group = node.ctl.group("train")
    return group["pinned_bytes"] if group else 0


def stays(node, device=0):
    return node.ctl.devices()[device]["used_bytes"] - node.CONTEXT_BYTES


def block(puppet, seed, kind="alloc", size=SIZE):
    """A block with its address."""
    mine = puppet.ask(f"{kind} {size}")["id"]
    puppet.ask(f"fill {mine} {seed}")
    return mine, puppet.ask(f"address {mine}")["address"]


def register(puppet, address, way="dlvsym", size=SIZE):
    return puppet.ask(f"nic register {address} {size} {way}")["id"]


@pytest.mark.parametrize("way", WAYS)
def test_registered_memory_stays_and_leaves_afterwards(node, way):
    puppet = rank(node, scope="heap")
    mine, address = block(puppet, 1, "plain")
    other, _ = block(puppet, 2, "plain")
    region = register(puppet, address, way)
    assert pinned(node) >= SIZE
    for seed in (3, 4):
        node.ctl("pause", "train")
        assert SIZE <= stays(node) < 2 * SIZE
        if way != "gdr":
            puppet.ask(f"nic fill {region} {seed}")  # the NIC goes on while the group is paused
        node.ctl("resume", "train")
        puppet.ask(f"verify {mine} {seed if way != 'gdr' else 1}")
        puppet.ask(f"verify {other} 2")
    puppet.ask(f"nic deregister {region}")
    eventually(lambda: pinned(node) == 0, what="it is unpinned")
    node.ctl("pause", "train")
    assert stays(node) == 0
    node.ctl("resume", "train")
    puppet.ask(f"verify {mine} {4 if way != 'gdr' else 1}")
    puppet.leave()
    said = puppet.output("err")
    assert said.count("the program registers brokered memory") == 1


def test_status_says_why(node):
    puppet = rank(node, scope="heap")
    _, address = block(puppet, 1, "plain")
    register(puppet, address)
    register(puppet, address, "gdr")
    [allocation] = [each for each in node.ctl("allocations").lines if each["pinned"]]
    assert sorted(each["reason"] for each in allocation["pinners"]) == ["GDRCopy", "NIC"]
    assert "device, pinned (NIC of " in node.ctl("allocations", json_output=False).out


def test_each_registration_counts(node):
    puppet = rank(node, scope="heap")
    _, address = block(puppet, 1, "plain")
    regions = [register(puppet, address, way) for way in ("dlsym", "linked", "umem")]
    for region in regions:
        assert pinned(node) >= SIZE
        puppet.ask(f"nic deregister {region}")
    eventually(lambda: pinned(node) == 0, what="it is unpinned")


def test_closing_gdrcopy_unpins_what_is_left(node):
    puppet = rank(node, scope="heap")
    _, address = block(puppet, 1, "plain")
    for _ in range(2):
        register(puppet, address, "gdr")
    puppet.ask("nic close-gdr")
    eventually(lambda: pinned(node) == 0, what="it is unpinned")


@pytest.mark.parametrize("way", WAYS)
def test_a_registration_that_fails_pins_nothing(node, way):
    puppet = rank(node, scope="heap")
    _, address = block(puppet, 1, "plain")
    puppet.send(f"nic register {address} {SIZE} {way} fails")
    assert FAILURES.get(way, "Cannot allocate memory") in puppet.failure()
    eventually(lambda: pinned(node) == 0, what="nothing is pinned")
    node.ctl("pause", "train")
    assert stays(node) == 0
    node.ctl("resume", "train")


def test_a_region_that_changes(node):
    puppet = rank(node, scope="heap")
    (first, address), (second, elsewhere) = block(puppet, 1, "plain"), block(puppet, 2, "plain")
    region = register(puppet, address)
    puppet.send(f"nic change {region} {elsewhere} {SIZE} fails")
    assert "ibv_rereg_mr: -1" in puppet.failure()
    node.ctl("pause", "train")
    puppet.ask(f"nic fill {region} 3")
    node.ctl("resume", "train")
    puppet.ask(f"verify {first} 3")
    puppet.ask(f"nic change {region} {elsewhere} {SIZE}")
    node.ctl("pause", "train")
    assert SIZE <= stays(node) < 2 * SIZE
    puppet.ask(f"nic fill {region} 4")
    node.ctl("resume", "train")
    puppet.ask(f"verify {first} 3")
    puppet.ask(f"verify {second} 4")
    puppet.ask(f"nic deregister {region}")
    eventually(lambda: pinned(node) == 0, what="it is unpinned")


def test_a_range_of_several_allocations(node):
    puppet = rank(node, env={"AMEM_SHIM_WITHOUT": "slabs"})
    address = puppet.ask(f"nic row {MIB} 4")["address"]
    region = register(puppet, address + MIB + 4096, size=MIB)
    assert pinned(node) == 2 * MIB
    node.ctl("pause", "train")
    assert stays(node) == 2 * MIB
    puppet.ask(f"nic fill {region} 1")
    node.ctl("resume", "train")
    puppet.ask(f"nic deregister {region}")
    eventually(lambda: pinned(node) == 0, what="it is unpinned")


def test_a_slab_that_a_nic_knows_gets_nothing_more(node):
    puppet = rank(node)
    mine, address = block(puppet, 1, size=8192)
    before = node.ctl.group("train")["allocation_count"]
    region = register(puppet, address, size=8192)
    slab = pinned(node)
    assert slab > 0
    other, _ = block(puppet, 2, size=8192)
    assert node.ctl.group("train")["allocation_count"] == before + (0 if chosen().get("AMEM_SHIM_WITHOUT") == "slabs" else 1)
    node.ctl("pause", "train")
    assert stays(node) == slab
    puppet.ask(f"nic fill {region} 3")
    node.ctl("resume", "train")
    puppet.ask(f"verify {mine} 3")
    puppet.ask(f"verify {other} 2")
    puppet.ask(f"nic deregister {region}")
    node.ctl("pause", "train")
    assert stays(node) == 0
    node.ctl("resume", "train")
    puppet.ask(f"verify {mine} 3")


def test_what_is_not_brokered_is_left_alone(node):
    puppet = rank(node, env={"AMEM_MODULES": None})
    mine, address = block(puppet, 1)
    once = [way for way in WAYS if way != "file-linked"]  # libcufile registers an address once
    regions = [register(puppet, address)] + [puppet.ask(f"nic host {way}")["id"] for way in once]
    assert node.ctl.group("train") is None
    for region in regions:
        puppet.ask(f"nic deregister {region}")
    puppet.leave()
    assert "registers brokered memory" not in puppet.output("err")


@pytest.mark.parametrize("env", [{"AMEM_DISABLE": "1"}, {}])
def test_turned_off_or_alone(bare_node, env):
    puppet = rank(bare_node, scope="heap", env=env)
    mine, address = block(puppet, 1, "plain")
    for way in WAYS:
        puppet.ask(f"nic deregister {register(puppet, address, way)}")
    puppet.leave()


def test_a_registration_waits_while_the_group_is_paused(node):
    puppet = rank(node, scope="heap")
    mine, address = block(puppet, 1, "plain")
    host = puppet.ask("nic host dlsym")["id"]
    node.ctl("pause", "train")
    puppet.ask(f"nic deregister {host}")  # host memory waits for nobody
    puppet.ask(f"nic deregister {puppet.ask('nic host linked')['id']}")
    puppet.send(f"nic register {address} {SIZE} dlvsym")
    puppet.stands()
    node.ctl("resume", "train")
    region = puppet.answer()["id"]
    assert pinned(node) >= SIZE
    node.ctl("pause", "train")
    puppet.ask(f"nic fill {region} 5")
    # A deregistration does not wait, and what the pause has found pinned stays to its end.
    puppet.ask(f"nic deregister {region}")
    assert stays(node) >= SIZE
    node.ctl("resume", "train")
    puppet.ask(f"verify {mine} 5")
    eventually(lambda: pinned(node) == 0, what="it is unpinned")
    node.ctl("pause", "train")
    assert stays(node) == 0
    node.ctl("resume", "train")
    puppet.ask(f"verify {mine} 5")


@pytest.mark.parametrize("env, error", [({"AMEM_GATE": "error"}, "temporarily unavailable"),
                                        ({"AMEM_GATE": "1s"}, "timed out")])
def test_a_registration_that_may_not_wait(node, env, error):
    puppet = rank(node, scope="heap", env=env)
    _, address = block(puppet, 1, "plain")
    node.ctl("pause", "train")
    for way in ("dlsym", "gdr", "file"):
        puppet.send(f"nic register {address} {SIZE} {way}")
        assert (FAILURES["file"] if way == "file" else error) in puppet.failure()
    node.ctl("resume", "train")
    assert pinned(node) == 0
    puppet.leave()
    assert "its group is not running" in puppet.output("err")


def test_memory_that_is_paused_with_its_tag(node):
    puppet = rank(node, scope="heap", env={"AMEM_MODULES": None})
    mine, address = block(puppet, 1, "plain")
    node.ctl("pause", "train", "--tag", "heap")
    for way, error in (("dlvsym", "Bad address"), ("file", "cuFileBufRegister: 5012")):
        puppet.send(f"nic register {address} {SIZE} {way}")
        assert error in puppet.failure()
    node.ctl("resume", "train")
    region = register(puppet, address)
    puppet.ask(f"verify {mine} 1")
    puppet.ask(f"nic deregister {region}")
    puppet.leave()
    assert "is paused with its tag 'heap'. Resume this tag first" in puppet.output("err")


def test_freed_memory_is_forgotten(node):
    puppet = rank(node, scope="heap")
    mine, address = block(puppet, 1, "plain")
    region = register(puppet, address)
    puppet.ask(f"free {mine}")
    eventually(lambda: pinned(node) == 0, what="it is freed")
    puppet.ask(f"nic deregister {region}")
    again, address = block(puppet, 2, "plain")
    region = register(puppet, address)
    node.ctl("pause", "train")
    puppet.ask(f"nic fill {region} 3")
    node.ctl("resume", "train")
    puppet.ask(f"verify {again} 3")


def test_a_rank_that_dies_takes_its_pins_along(node):
    puppets = [rank(node, name=f"puppet{i}", device=i, scope="heap") for i in range(2)]
    blocks = [block(each, 1 + i, "plain") for i, each in enumerate(puppets)]
    for puppet, (_, address) in zip(puppets, blocks):
        register(puppet, address)
    node.ctl("pause", "train")
    puppets[0].kill()
    eventually(lambda: node.ctl.group("train")["rank_count"] == 1)
    assert stays(node, 1) >= SIZE
    node.ctl("resume", "train")
    puppets[1].ask(f"verify {blocks[1][0]} 2")


# ---- programs without RDMA ----

def run(node, argv, env):
    return subprocess.run([str(each) for each in argv], env=node.env(env), capture_output=True, text=True,
                          timeout=patience(20), check=True).stdout.strip()


def shim(node):
    return os.path.join(node.build.directory, "lib", "libamem_shim.so")


@pytest.mark.parametrize("env", [{}, {"AMEM_DISABLE": "1"}])
def test_a_program_without_the_library_sees_none(bare_node, env):
    """Neither by a weak reference nor by a lookup; and nothing loads the library."""
    argv = [bare_node.build.program("amem-unregistered")]
    nothing = "weak 0 default 0 error 1 versioned 0 error 1 self 0 loaded 0"
    assert run(bare_node, argv, {}) == nothing
    there = {"LD_PRELOAD": shim(bare_node), "LD_LIBRARY_PATH": libraries(bare_node), **env}
    assert run(bare_node, argv, there) == nothing


def test_a_program_that_finds_the_library_by_itself(bare_node):
    """What the whole process has is found as without the shim."""
    argv = [bare_node.build.program("amem-unregistered")]
    library = os.path.join(bare_node.build.directory, "lib", "rdma", "libibverbs.so.1")
    everything = "weak 1 default 1 error 0 versioned 1 error 0 self 1 loaded 1"
    for preload in (library, f"{shim(bare_node)}:{library}", f"{library}:{shim(bare_node)}"):
        env = {"LD_PRELOAD": preload, "LD_LIBRARY_PATH": libraries(bare_node)}
        assert run(bare_node, argv, env) == everything


def test_versioned_lookups_of_others_are_the_c_librarys(bare_node):
    code = """
import ctypes
libc = ctypes.CDLL(None)
libc.dlvsym.restype = ctypes.c_void_p
libc.dlvsym.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p]
print([bool(libc.dlvsym(None, name, version)) for name, version in (
    (b"memcpy", b"GLIBC_2.14"), (b"memcpy", b"GLIBC_9.9"), (b"no_such_call", b"GLIBC_2.2.5"), (b"dlvsym", b"GLIBC_2.2.5"))])
"""
    for env in ({}, {"LD_PRELOAD": shim(bare_node)}):
        assert run(bare_node, [sys.executable, "-c", code], env) == "[True, False, False, True]"


def test_the_shim_shows_nothing_else(build):
    out = subprocess.run(["nm", "-D", "--defined-only", os.path.join(build.directory, "lib", "libamem_shim.so")],
                         capture_output=True, text=True, timeout=patience(20), check=True).stdout
    shown = {line.split()[-1] for line in out.splitlines() if line.split()[-2] != "A"}
    others = {each for each in shown if not each.startswith(("cu", "amem_shim_"))}
    assert others == EXPORTS | {"dlopen", "dlsym", "dlvsym", "ncclPause", "ncclResume", "ncclSetGroupID", "ncclGetGroupID",
                                "ncclCommSuspend", "ncclCommWindowRegister", "ncclMemStats", "tms_pause", "tms_resume"}
