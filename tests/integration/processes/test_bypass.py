"""Libraries that reach the driver past the shim, as those do that are loaded with RTLD_DEEPBIND."""
import os

import pytest

from sim_node.child import sanitized

SIZE = 3000000


def library(node, name="deep"):
    return os.path.join(node.build.directory, "lib", f"libpuppet_{name}.so")


def rank(node, **more):
    puppet = node.puppet(**more)
    if sanitized(puppet.pid):
        pytest.skip("sanitizers refuse RTLD_DEEPBIND")
    block = puppet.ask(f"alloc {SIZE}")["id"]
    puppet.ask(f"fill {block} 7")
    return puppet, block


def pauses(node, puppet, block):
    node.ctl("pause", "train")
    node.ctl("resume", "train")
    puppet.ask(f"verify {block} 7")


def refused(node):
    answer = node.ctl.try_("pause", "train")
    assert answer.code != 0, "the group is paused although a library works past the gate"
    assert node.ctl.state("train") == "running"
    return answer.err


@pytest.mark.parametrize("how", ["now", "lazy", "called"])
def test_a_library_with_the_runtime_in_it(node, how):
    """It says which one and what to do; the group runs on; without the library it pauses."""
    puppet, block = rank(node)
    puppet.ask(f"load {library(node)} deep" + (" lazy" if how != "now" else ""))
    if how == "called":
        assert puppet.ask(f"call {library(node)} puppet_find_driver")["result"] == 1
    for _ in range(2):
        said = refused(node)
        assert "libpuppet_deep.so" in said and "RTLD_DEEPBIND" in said and "AMEM_BYPASS_ALLOWED" in said
        assert "quiesce: " in said and f"pid {puppet.pid}" in said
        puppet.ask(f"verify {block} 7")
    puppet.ask(f"unload {library(node)}")
    pauses(node, puppet, block)
    puppet.leave()
    assert f"{library(node)} reaches the CUDA driver past amem: its dlsym" in puppet.output("err")


@pytest.mark.parametrize("how", ["", " lazy"])
def test_the_same_library_loaded_otherwise(node, how):
    puppet, block = rank(node)
    puppet.ask(f"load {library(node)}{how}")
    pauses(node, puppet, block)
    assert puppet.ask(f"call {library(node)} puppet_find_driver")["result"] == 0
    pauses(node, puppet, block)


def test_a_library_that_is_linked_to_the_driver(node):
    puppet, block = rank(node)
    puppet.ask(f"load {library(node, 'module')} deep")
    said = refused(node)
    assert "libpuppet_module.so" in said and "its cuGetProcAddress_v2 is not the shim's" in said
    puppet.ask(f"unload {library(node, 'module')}")
    puppet.ask(f"load {library(node, 'module')}")
    pauses(node, puppet, block)


def test_a_driver_that_is_loaded_by_its_other_name(node):
    """The loader knows it as libcuda.so, without a version: as Numba loads it."""
    driver = os.path.join(node.build.sim_libraries, "libcuda.so")
    shim = os.path.join(node.build.directory, "lib", "libamem_shim.so")
    puppet, block = rank(node, preload=f"{shim}:{driver}")
    puppet.ask(f"load {library(node, 'module')} deep")
    said = refused(node)
    assert "libpuppet_module.so" in said and "its cuGetProcAddress_v2 is not the shim's" in said
    puppet.ask(f"unload {library(node, 'module')}")
    pauses(node, puppet, block)


def test_one_rank_of_two(node):
    (first, one), (second, two) = rank(node, name="first"), rank(node, name="second", device=1)
    second.ask(f"load {library(node)} deep")
    said = refused(node)
    assert "libpuppet_deep.so" in said and f"pid {second.pid}" in said
    first.ask(f"verify {one} 7")
    second.ask(f"unload {library(node)}")
    pauses(node, first, one)
    second.ask(f"verify {two} 7")


def test_a_library_that_the_user_allows(node):
    puppet, block = rank(node, env={"AMEM_BYPASS_ALLOWED": "libother,libpuppet_deep"})
    puppet.ask(f"load {library(node)} deep")
    pauses(node, puppet, block)


def test_deep_binding_can_be_turned_off(node):
    puppet, block = rank(node, env={"AMEM_SHIM_WITHOUT": "deepbind"})
    for how in ("", " lazy"):
        puppet.ask(f"load {library(node)} deep{how}")
        assert puppet.ask(f"call {library(node)} puppet_find_driver")["result"] == 0
        pauses(node, puppet, block)
        puppet.ask(f"unload {library(node)}")


def test_another_library_that_wraps_driver_calls_is_none(node):
    """What it has of the driver it has by way of the shim."""
    shim = os.path.join(node.build.directory, "lib", "libamem_shim.so")
    puppet, block = rank(node, env={"PUPPET_NEXT": "next"}, preload=f"{library(node, 'interposer')}:{shim}")
    assert puppet.ask("lookup-name cuMemAlloc_v2")["library"].endswith("libpuppet_interposer.so")
    pauses(node, puppet, block)
