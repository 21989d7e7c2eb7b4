"""torch_memory_saver's interface, with a stub of torch."""
import os
import sys

import pytest

import amem
import amem.compat
import stub_torch
from amem import _regions
from amem.compat import TorchMemorySaver, configure_subprocess, torch_memory_saver


@pytest.fixture(autouse=True)
def torch(shim, monkeypatch):
    module = stub_torch.make(shim.note)
    monkeypatch.setitem(sys.modules, "torch", module)
    monkeypatch.setattr(_regions, "_idle", type(_regions._idle)(list))
    monkeypatch.setattr(TorchMemorySaver, "_tags", set())
    return module


def shim_calls(shim):
    return [each for each in shim.notes if each.split()[0] in ("begin", "end", "pause", "resume")]


def test_backup_decides_what_a_pause_does(shim):
    with torch_memory_saver.region():
        pass
    with torch_memory_saver.region("weights", enable_cpu_backup=True):
        pass
    assert shim_calls(shim) == ["begin default 2", "end", "begin weights 1", "end"]


def test_one_tag(shim):
    torch_memory_saver.pause("weights")
    torch_memory_saver.resume(tag="weights")
    assert shim_calls(shim) == ["pause [weights] 0", "resume [weights] 0"]


def test_without_a_tag_what_was_used_in_regions(shim):
    torch_memory_saver.pause()
    assert shim.notes == []
    for tag in ("weights", "kv_cache"):
        with torch_memory_saver.region(tag):
            pass
    TorchMemorySaver().pause()
    torch_memory_saver.resume()
    assert shim_calls(shim)[-2:] == ["pause [kv_cache,weights] 0", "resume [kv_cache,weights] 0"]


def test_many_tags(shim):
    names = [f"{number:02}" for number in range(66)]
    for name in names:
        with torch_memory_saver.region(name):
            pass
    torch_memory_saver.pause()
    assert shim_calls(shim)[-2:] == [f"pause [{','.join(names[:64])}] 0", "pause [64,65] 0"]


def test_a_region_without_memory_is_no_obstacle(shim):
    for tag in ("empty", "weights"):
        with torch_memory_saver.region(tag):
            pass
    shim.answer(amem.Code.NOT_FOUND, "no memory", for_tag="empty")
    torch_memory_saver.pause()
    assert shim_calls(shim)[-2:] == ["pause [empty] 0", "pause [weights] 0"]
    torch_memory_saver.pause("empty")  # as there
    shim.answer(amem.Code.FAILED_PRECONDITION, "in transition")
    with pytest.raises(amem.FailedPreconditionError):
        torch_memory_saver.pause("weights")


def test_regions_within_regions(shim):
    with torch_memory_saver.region("weights"):
        with torch_memory_saver.region("kv_cache"):
            pass
        shim.note("body")
    begins = [each for each in shim.notes if each.split()[0] in ("begin", "end", "body")]
    assert begins == ["begin weights 2", "end", "begin kv_cache 2", "end", "begin weights 2", "body", "end"]


def test_graphs_allocate_from_their_own_pool(shim):
    with torch_memory_saver.cuda_graph("g", pool="p", stream="s", capture_error_mode="relaxed", tag="graph"):
        pass
    assert shim.notes == ["graph g p s relaxed", "begin graph 2", "end", "graph ends"]


def test_disable_leaves_the_region_for_a_while(shim):
    with torch_memory_saver.disable():  # outside of any
        assert shim.notes == []
    with torch_memory_saver.region("weights", enable_cpu_backup=True):
        with torch_memory_saver.disable():
            assert shim.notes == ["make pool1", "begin weights 1", "use pool1", "leave pool1", "end"]
            shim.note("body")
    assert shim.notes[5:] == ["body", "begin weights 1", "use pool1", "leave pool1", "end"]


def test_disable_within_disable(shim):
    with torch_memory_saver.region("weights"):
        with torch_memory_saver.disable():
            with torch_memory_saver.disable():
                pass
            assert shim_calls(shim) == ["begin weights 2", "end"], "still outside"
            with torch_memory_saver.region("other"):
                pass
    assert shim_calls(shim)[2:] == ["begin other 2", "end", "begin weights 2", "end"]


def test_attributes(shim):
    assert torch_memory_saver.enabled
    for mode in ("preload", "torch"):
        torch_memory_saver.hook_mode = mode
    assert torch_memory_saver.hook_mode == "preload"
    with pytest.raises(amem.InvalidArgumentError):
        torch_memory_saver.hook_mode = "other"
    torch_memory_saver.retain_cpu_backup = False
    assert torch_memory_saver.retain_cpu_backup
    torch_memory_saver.memory_margin_bytes = 0
    with pytest.warns(RuntimeWarning):
        torch_memory_saver.memory_margin_bytes = 1 << 30
    assert torch_memory_saver.memory_margin_bytes == 0
    with pytest.raises(amem.UnimplementedError):
        torch_memory_saver.get_cpu_backup(None)


def test_configure_subprocess(monkeypatch):
    for name in ("AMEM_GROUP", "AMEM_GROUPID", "AMEM_SCOPE", "AMEM_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LD_PRELOAD", "/lib/other.so")
    monkeypatch.setenv("AMEM_GROUP", "train")
    before = dict(os.environ)
    with configure_subprocess():
        assert os.environ["AMEM_GROUP"] == "train"
        assert os.environ["AMEM_SCOPE"] == "regions"
        assert os.environ["LD_PRELOAD"] == amem.shim_path() + ":/lib/other.so"
    assert dict(os.environ) == before
    monkeypatch.setenv("AMEM_SCOPE", "heap")
    with torch_memory_saver.configure_subprocess():
        assert os.environ["AMEM_SCOPE"] == "heap"


def test_install(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch_memory_saver", raising=False)
    amem.compat.install()
    amem.compat.install()
    import torch_memory_saver as imported

    assert imported.torch_memory_saver is torch_memory_saver
    monkeypatch.setitem(sys.modules, "torch_memory_saver", object())
    with pytest.raises(amem.FailedPreconditionError):
        amem.compat.install()
