"""Regions: the shim's, and torch's pools where there is torch (here a stub of it)."""
import sys
import threading

import pytest

import amem
import stub_torch
from amem import _regions


@pytest.fixture
def torch(shim, monkeypatch):
    module = stub_torch.make(shim.note)
    monkeypatch.setitem(sys.modules, "torch", module)
    monkeypatch.setattr(_regions, "_idle", type(_regions._idle)(list))
    return module


def test_without_torch(shim):
    with amem.region("weights"):
        assert shim.notes == ["begin weights 1"]
    with amem.region("kv_cache", keep=False):
        pass
    assert shim.notes == ["begin weights 1", "end", "begin kv_cache 2", "end"]


def test_allocations_come_from_a_pool_of_the_region(shim, torch):
    with amem.region("weights"):
        pass
    assert shim.notes == ["make pool1", "begin weights 1", "use pool1", "leave pool1", "end"]


def test_one_pool_for_each_tag_policy_and_device(shim, torch):
    for _ in range(2):
        for tag, keep, device in [("a", True, 0), ("b", True, 0), ("a", False, 0), ("a", True, 1)]:
            torch.cuda.device = device
            with amem.region(tag, keep):
                pass
    assert [each for each in shim.notes if each.startswith("use")] == [
        "use pool1", "use pool2", "use pool3", "use pool4"] * 2


def test_without_cuda_no_pool(shim, torch):
    torch.cuda.is_available = lambda: False
    with amem.region("a"):
        pass
    assert shim.notes == ["begin a 1", "end"]


def test_an_old_torch_is_refused(shim, torch):
    del torch.cuda.use_mem_pool
    with pytest.raises(amem.FailedPreconditionError, match="2.6"):
        with amem.region("a"):
            raise AssertionError("entered")
    assert shim.notes == []


def test_threads_have_regions_of_their_own(shim, torch):
    entered, leave = threading.Event(), threading.Event()

    def other():
        with amem.region("a"):
            entered.set()
            leave.wait(20)

    thread = threading.Thread(target=other)
    thread.start()
    entered.wait(20)
    with amem.region("a"):  # a pool that is in use is not shared
        leave.set()
        thread.join()
    assert sorted(each for each in shim.notes if each.startswith("make")) == ["make pool1", "make pool2"]
    with amem.region("a"):
        pass
    assert len([each for each in shim.notes if each.startswith("make")]) == 2


def test_regions_do_not_nest(shim, torch):
    with amem.region("a"):
        with pytest.raises(amem.FailedPreconditionError, match='"b" within region "a"') as caught:
            with amem.region("b"):
                raise AssertionError("entered")
        assert isinstance(caught.value, RuntimeError)
    with amem.region("b"):
        pass
    assert shim.notes.count("end") == 2


def test_the_bodys_error_comes_out_and_everything_is_left(shim, torch):
    with pytest.raises(ZeroDivisionError):
        with amem.region("a"):
            1 / 0
    assert shim.notes[-2:] == ["leave pool1", "end"]
    with amem.region("a"):
        pass
    assert "make pool2" not in shim.notes


def test_a_region_that_the_shim_refuses(shim, torch):
    shim.answer(amem.Code.INVALID_ARGUMENT, "no")
    with pytest.raises(amem.InvalidArgumentError):
        with amem.region("a"):
            raise AssertionError("entered")
    assert shim.notes == ["make pool1", "begin a 1"]
    shim.answer(0)
    with amem.region("a"):
        pass
    assert "make pool2" not in shim.notes


@pytest.mark.parametrize("tag", ["", "x" * 32, "a\0b"])
def test_bad_tags(shim, tag):
    with pytest.raises(amem.InvalidArgumentError):
        with amem.region(tag):
            raise AssertionError("entered")
    assert shim.notes == []


def test_what_is_not_brokered_has_a_pool_of_its_own(shim, torch):
    for _ in range(2):
        with amem.unbrokered():
            pass
    assert shim.notes == ["make pool1"] + ["begin unbrokered", "use pool1", "leave pool1", "end unbrokered"] * 2


def test_unbrokered_within_a_region(shim, torch):
    with amem.region("a"):
        with amem.unbrokered():
            assert shim.notes[-4:] == ["end", "make pool2", "begin unbrokered", "use pool2"]
            with amem.unbrokered():
                assert shim.notes[-2:] == ["begin unbrokered", "use pool2"]
            assert shim.notes[-2:] == ["begin unbrokered", "use pool2"]
            with pytest.raises(amem.FailedPreconditionError, match='"b" within an unbrokered stretch'):
                with amem.region("b"):
                    raise AssertionError("entered")
        assert shim.notes[-3:] == ["end unbrokered", "begin a 1", "use pool1"]


def test_unbrokered_without_a_shim(python):
    python.run("""
        import amem
        with amem.unbrokered(), amem.unbrokered():
            pass
    """)
