"""Regions: the shim's, and torch's pools where there is torch (here a stub of it)."""
import asyncio
import collections
import contextlib
import sys
import threading
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import pytest

import amem
import stub_torch
from amem import _regions
from conftest import Python, Shim

Enter = Callable[[], contextlib.AbstractContextManager[None]]


@pytest.fixture
def torch(shim: Shim, monkeypatch: pytest.MonkeyPatch) -> stub_torch.Torch:
    module = stub_torch.make(shim.note)
    monkeypatch.setitem(sys.modules, "torch", module)
    monkeypatch.setattr(_regions, "_idle", collections.defaultdict(list))
    for name, value in (("_tags", {}), ("_given_up", set()), ("_observing", False), ("_explained", False)):
        monkeypatch.setattr(_regions, name, value, raising=False)
    return module


def test_free_memory_of_a_tag_goes_back(shim: Shim, torch: stub_torch.Torch) -> None:
    """Of a small pool, too, which the next region would use again."""
    cache = torch.cuda.cache
    with amem.region("weights"):
        used, freed = cache.allocate(20), cache.allocate(5)
    with amem.region("kv_cache"):
        other = cache.allocate(7)
    for each in (freed, other):
        cache.free(each)
    assert _regions.give_back("weights") == 0
    assert cache.segments == [used, other]
    assert _regions.give_back("nobody") == 0
    with amem.region("weights"):
        cache.allocate(3)
    assert shim.notes[-5:] == ["make pool3", "begin weights 1", "use pool3", "leave pool3", "end"], shim.notes


def test_free_memory_that_cannot_go_back_is_counted(shim: Shim, torch: stub_torch.Torch) -> None:
    with amem.region("weights"):
        pass
    torch.cuda.memory_snapshot = lambda: [{"device": 0, "total_size": 20, "active_size": 13, "segment_pool_id": (0, 1),
                                           "is_expandable": False}]
    assert _regions.give_back("weights") == 7


def test_without_torch(shim: Shim) -> None:
    with amem.region("weights"):
        assert shim.notes == ["begin weights 1"]
    with amem.region("kv_cache", keep=False):
        pass
    assert shim.notes == ["begin weights 1", "end", "begin kv_cache 2", "end"]


def test_allocations_come_from_a_pool_of_the_region(shim: Shim, torch: stub_torch.Torch) -> None:
    with amem.region("weights"):
        pass
    assert shim.notes == ["make pool1", "begin weights 1", "use pool1", "leave pool1", "end"]


def test_one_pool_for_each_tag_policy_and_device(shim: Shim, torch: stub_torch.Torch) -> None:
    for _ in range(2):
        for tag, keep, device in [("a", True, 0), ("b", True, 0), ("a", False, 0), ("a", True, 1)]:
            torch.cuda.device = device
            with amem.region(tag, keep):
                pass
    assert [each for each in shim.notes if each.startswith("use")] == [
        "use pool1", "use pool2", "use pool3", "use pool4"] * 2


def test_without_cuda_no_pool(shim: Shim, torch: stub_torch.Torch) -> None:
    torch.cuda.is_available = lambda: False
    with amem.region("a"):
        pass
    assert shim.notes == ["begin a 1", "end"]


def test_an_old_torch_is_refused(shim: Shim, torch: stub_torch.Torch) -> None:
    del torch.cuda.use_mem_pool
    with pytest.raises(amem.FailedPreconditionError, match="2.6"):
        with amem.region("a"):
            raise AssertionError("entered")
    assert shim.notes == []


def test_threads_have_regions_of_their_own(shim: Shim, torch: stub_torch.Torch) -> None:
    entered, leave = threading.Event(), threading.Event()

    def other() -> None:
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


def test_regions_do_not_nest(shim: Shim, torch: stub_torch.Torch) -> None:
    with amem.region("a"):
        with pytest.raises(amem.FailedPreconditionError, match='"b" was entered within region "a"') as caught:
            with amem.region("b"):
                raise AssertionError("entered")
        assert isinstance(caught.value, RuntimeError)
    with amem.region("b"):
        pass
    assert shim.notes.count("end") == 2


def test_the_bodys_error_comes_out_and_everything_is_left(shim: Shim, torch: stub_torch.Torch) -> None:
    with pytest.raises(ZeroDivisionError):
        with amem.region("a"):
            1 / 0
    assert shim.notes[-2:] == ["leave pool1", "end"]
    with amem.region("a"):
        pass
    assert "make pool2" not in shim.notes


def test_a_region_that_the_shim_refuses(shim: Shim, torch: stub_torch.Torch) -> None:
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
def test_bad_tags(shim: Shim, tag: str) -> None:
    with pytest.raises(amem.InvalidArgumentError):
        with amem.region(tag):
            raise AssertionError("entered")
    assert shim.notes == []


def test_what_is_not_brokered_has_a_pool_of_its_own(shim: Shim, torch: stub_torch.Torch) -> None:
    for _ in range(2):
        with amem.unbrokered():
            pass
    assert shim.notes == ["make pool1"] + ["begin unbrokered", "use pool1", "leave pool1", "end unbrokered"] * 2


def test_unbrokered_within_a_region(shim: Shim, torch: stub_torch.Torch) -> None:
    with amem.region("a"):
        with amem.unbrokered():
            assert shim.notes[-4:] == ["end", "make pool2", "begin unbrokered", "use pool2"]
            with amem.unbrokered():
                assert shim.notes[-2:] == ["begin unbrokered", "use pool2"]
            assert shim.notes[-2:] == ["begin unbrokered", "use pool2"]
            with pytest.raises(amem.FailedPreconditionError, match='"b" was entered within an unbrokered stretch'):
                with amem.region("b"):
                    raise AssertionError("entered")
        assert shim.notes[-3:] == ["end unbrokered", "begin a 1", "use pool1"]


# ---- tasks of asyncio -----------------------------------------------------------------------------------------------
class Ready(list[Any]):
    """What is ready in an event loop that is not asyncio's own."""

    def popleft(self) -> Any:
        return self.pop(0)


def in_tasks(*mains: Callable[[], Coroutine[Any, Any, None]], others_first: bool = False) -> list[BaseException | None]:
    """Runs them at the same time. `others_first`: in a loop that runs the tasks that are ready before it calls amem back."""
    async def main() -> list[BaseException | None]:
        return list(await asyncio.gather(*(each() for each in mains), return_exceptions=True))

    loop = asyncio.new_event_loop()
    if others_first:
        setattr(loop, "_ready", Ready())
    try:
        return loop.run_until_complete(main())
    finally:
        loop.close()


@pytest.mark.parametrize("enter", [lambda: amem.region("a"), amem.unbrokered])
@pytest.mark.parametrize("wait", [0, 0.01])
def test_other_tasks_are_not_in_a_region(shim: Shim, torch: stub_torch.Torch, enter: Enter, wait: float) -> None:
    """Whether they are ready already when the task awaits, or later."""
    async def region() -> None:
        with enter():
            shim.note("a allocates")
            await asyncio.sleep(0.05)

    async def other() -> None:
        if wait:
            await asyncio.sleep(wait)
        shim.note("b allocates")

    [error, none] = in_tasks(region, other)
    assert none is None and isinstance(error, amem.FailedPreconditionError)
    assert str(error).startswith("a task of asyncio has awaited within ")
    notes = [each.partition(" ")[0] if "alloc" not in each else each for each in shim.notes]
    assert notes == ["make", "begin", "use", "a allocates", "leave", "end", "b allocates"]


def test_a_region_of_another_task_meanwhile(shim: Shim) -> None:
    async def first() -> None:
        with amem.region("a"):
            await asyncio.sleep(0.02)

    async def second() -> None:
        await asyncio.sleep(0.01)
        with amem.region("b"):
            pass

    [error, none] = in_tasks(first, second)
    assert isinstance(error, amem.FailedPreconditionError) and none is None
    assert shim.notes == ["begin a 1", "end", "begin b 1", "end"]


def test_a_region_of_another_task_in_an_event_loop_that_tells_late(shim: Shim) -> None:
    async def first() -> None:
        with amem.region("a"):
            await asyncio.sleep(0.02)

    async def second() -> None:
        with amem.region("b"):
            pass

    [error, none] = in_tasks(first, second, others_first=True)
    assert isinstance(error, amem.FailedPreconditionError) and none is None
    assert shim.notes == ["begin a 1", "end", "begin b 1", "end"]


def test_a_region_that_is_left_for_a_while_across_an_await(shim: Shim) -> None:
    async def first() -> None:
        with amem.region("a"), _regions.outside():
            await asyncio.sleep(0.01)

    [error] = in_tasks(first)
    assert isinstance(error, amem.FailedPreconditionError)
    assert shim.notes == ["begin a 1", "end"]


def test_a_region_without_an_await_in_a_task(shim: Shim) -> None:
    async def first() -> None:
        with amem.region("a"):
            pass
        with amem.region("b"), amem.unbrokered():
            pass

    assert in_tasks(first, first) == [None, None]
    assert shim.notes == ["begin a 1", "end", "begin b 1", "end", "begin unbrokered", "end unbrokered", "begin b 1", "end"] * 2


def test_the_bodys_error_after_an_await_comes_out(shim: Shim, caplog: pytest.LogCaptureFixture) -> None:
    async def first() -> None:
        with amem.region("a"):
            await asyncio.sleep(0.01)
            raise ZeroDivisionError

    [error] = in_tasks(first)
    assert isinstance(error, ZeroDivisionError) and 'a task of asyncio has awaited within region "a"' in caplog.text


def test_threads_of_an_event_loop_are_not_in_its_region(shim: Shim) -> None:
    """And the region of such a thread is not the loop's."""
    entered, go = threading.Event(), threading.Event()

    def allocate() -> None:
        with amem.region("thread"):
            entered.set()
            go.wait(20)

    async def first() -> None:
        thread = asyncio.ensure_future(asyncio.to_thread(allocate))
        while not entered.is_set():
            await asyncio.sleep(0.001)
        with amem.region("loop"):
            pass
        go.set()
        await thread

    assert in_tasks(first) == [None]
    assert shim.notes == ["begin thread 1", "begin loop 1", "end", "end"]


@pytest.mark.parametrize("enter", [lambda: amem.region("kv_cache", keep=False), amem.unbrokered])
def test_a_stretch_gets_what_the_ordinary_cache_has_free(shim: Shim, torch: stub_torch.Torch, enter: Enter) -> None:
    cache = torch.cuda.cache
    cache.free(cache.allocate(600))
    with enter():
        cache.allocate(600)
    assert shim.notes[0] == "empty_cache"  # before any pool is in use
    cache.free(cache.allocate(300))
    with amem.region("other"):
        with _regions.outside():  # comes back
            assert cache.device_free() == 400
            cache.free(cache.allocate(400))
        cache.allocate(400)


def test_the_cache_is_left_alone_where_it_has_little(shim: Shim, torch: stub_torch.Torch) -> None:
    cache = torch.cuda.cache
    cache.free(cache.allocate(30))
    with amem.region("a"):
        cache.allocate(900)
    assert "empty_cache" not in shim.notes
    with amem.region("a"):  # 30 of 70 are much
        pass
    assert "empty_cache" in shim.notes


def test_what_pools_have_free_does_not_count(shim: Shim, torch: stub_torch.Torch) -> None:
    """It would be too much at each entry, and the ordinary cache would be emptied each time."""
    cache = torch.cuda.cache
    held = cache.allocate(500)
    with amem.region("a"):
        cache.free(cache.allocate(30))
    cache.free(cache.allocate(10))  # 10 of 460 are little
    for _ in range(2):
        with amem.region("a"):
            pass
    assert "empty_cache" not in shim.notes
    cache.free(held)
    with amem.region("a"):
        pass
    assert shim.notes.count("empty_cache") == 1


def segment(**changed: object) -> dict[str, object]:
    return {"device": 0, "total_size": 600, "active_size": 0, "segment_pool_id": (0, 0), "is_expandable": False, **changed}


@pytest.mark.parametrize(("changed", "emptied"), [
    ({}, True), ({"active_size": 10}, False), ({"active_size": 10, "is_expandable": True}, True), ({"device": 1}, False),
    ({"active_size": 595, "is_expandable": True}, False)])
def test_only_what_would_be_given_back_counts(shim: Shim, torch: stub_torch.Torch, changed: Mapping[str, object], emptied: bool) -> None:
    torch.cuda.cache.free(torch.cuda.cache.allocate(600))
    torch.cuda.memory_snapshot = lambda: [segment(**changed)]
    with amem.region("a"):
        pass
    assert ("empty_cache" in shim.notes) == emptied


@pytest.mark.parametrize("lacks", ["segment_pool_id", "is_expandable", "active_size"])
def test_an_older_snapshot_that_says_less(shim: Shim, torch: stub_torch.Torch, lacks: str) -> None:
    torch.cuda.cache.free(torch.cuda.cache.allocate(600))
    torch.cuda.memory_snapshot = lambda: [{key: value for key, value in segment().items() if key != lacks}]
    with amem.region("a"):
        pass
    assert "empty_cache" in shim.notes


@pytest.mark.parametrize("name", ["memory_stats", "mem_get_info", "memory_snapshot"])
@pytest.mark.parametrize("error", [NotImplementedError, RuntimeError])
def test_an_allocator_without_numbers_is_no_obstacle(shim: Shim, torch: stub_torch.Torch, name: str, error: type[Exception]) -> None:
    """As a pluggable one: "does not yet support getDeviceStats"."""
    def refuses(*_: object) -> None:
        raise error("CUDAPluggableAllocator does not yet support getDeviceStats")

    torch.cuda.cache.free(torch.cuda.cache.allocate(600))
    setattr(torch.cuda, name, refuses)
    with amem.region("a"):
        assert shim.notes[-1] == "use pool1"
    assert "empty_cache" not in shim.notes


def test_the_cache_is_left_alone_in_a_capture(shim: Shim, torch: stub_torch.Torch) -> None:
    cache = torch.cuda.cache
    cache.free(cache.allocate(600))
    torch.cuda.capturing = True
    with amem.region("a"):
        pass
    assert "empty_cache" not in shim.notes


def test_a_torch_that_refuses_to_empty_its_cache_is_no_obstacle(shim: Shim, torch: stub_torch.Torch) -> None:
    cache = torch.cuda.cache
    cache.free(cache.allocate(600))
    cache.raises = True
    with amem.region("a"):
        cache.allocate(400)
    assert "empty_cache" in shim.notes


def test_what_a_region_cannot_get_is_explained_once(shim: Shim, torch: stub_torch.Torch, caplog: pytest.LogCaptureFixture) -> None:
    cache = torch.cuda.cache
    held = cache.allocate(600)
    for _ in range(2):
        with amem.region("kv_cache", keep=False):
            cache.free(held)
            with pytest.raises(stub_torch.OutOfMemoryError):
                cache.allocate(500)
        held = cache.allocate(600)
    [record] = caplog.records
    assert 'no space for 500 bytes in region "kv_cache". PyTorch\'s ordinary cache has up to 600 free bytes' in record.getMessage()
    with amem.region("kv_cache", keep=False):
        pass
    assert len(cache.observers) == 1


def test_what_a_region_keeps_from_ordinary_memory_is_explained(
        shim: Shim, torch: stub_torch.Torch, caplog: pytest.LogCaptureFixture) -> None:
    cache = torch.cuda.cache
    with amem.region("kv_cache", keep=False):
        cache.free(cache.allocate(31))
    with pytest.raises(stub_torch.OutOfMemoryError):
        cache.allocate(980)
    [record] = caplog.records
    assert "has not released: kv_cache 31. It" in record.getMessage()


@pytest.mark.parametrize("freed_within", [True, False])
def test_ordinary_memory_gets_what_a_region_has_freed(
        shim: Shim, torch: stub_torch.Torch, caplog: pytest.LogCaptureFixture, freed_within: bool) -> None:
    cache = torch.cuda.cache
    with amem.region("kv_cache", keep=False):
        held = cache.allocate(600)
        if freed_within:
            cache.free(held)
    if not freed_within:
        cache.free(held)
    cache.allocate(900)
    assert not caplog.records


def test_a_region_gets_what_another_one_has_freed(shim: Shim, torch: stub_torch.Torch) -> None:
    cache = torch.cuda.cache
    with amem.region("a"):
        held = cache.allocate(600)
    cache.free(held)
    for tag in ("b", "a"):
        with amem.region(tag):
            cache.free(cache.allocate(900))


def test_a_region_that_is_left_for_a_while_goes_on(shim: Shim, torch: stub_torch.Torch) -> None:
    cache = torch.cuda.cache
    with amem.region("a"):
        held = cache.allocate(600)
        with _regions.outside():
            cache.free(held)
            cache.free(cache.allocate(900))
        cache.allocate(900)


def test_pools_with_little_are_used_again(shim: Shim, torch: stub_torch.Torch) -> None:
    """All together: PyTorch would have to leave the free memory of each where it is."""
    cache = torch.cuda.cache
    for _ in range(3):
        for tag in ("a", "b", "c"):
            with amem.region(tag):
                cache.free(cache.allocate(10))
    assert cache.device_free() == 970 and not cache.released
    with amem.region("d"):
        cache.free(cache.allocate(11))
    assert "release 4 of 0" in shim.notes, "the largest"
    cache.allocate(970)


def test_a_torch_that_does_not_release_pools_is_no_obstacle(shim: Shim, torch: stub_torch.Torch) -> None:
    cache = torch.cuda.cache
    cache.refuses_release = True
    for _ in range(2):
        with amem.region("a"):
            cache.free(cache.allocate(600))
    assert len([each for each in shim.notes if each.startswith("make")]) == 1


def test_a_shortage_of_everything_needs_no_explanation(shim: Shim, torch: stub_torch.Torch, caplog: pytest.LogCaptureFixture) -> None:
    with amem.region("a"):
        with pytest.raises(stub_torch.OutOfMemoryError):
            torch.cuda.cache.allocate(5000)
    with pytest.raises(stub_torch.OutOfMemoryError):
        torch.cuda.cache.allocate(5000)
    assert not caplog.records


def test_an_explanation_that_fails_leaves_torchs_error(shim: Shim, torch: stub_torch.Torch, caplog: pytest.LogCaptureFixture) -> None:
    with amem.region("a"):
        torch.cuda.memory_snapshot = None
        with pytest.raises(stub_torch.OutOfMemoryError):
            torch.cuda.cache.allocate(5000)
    assert not caplog.records


def test_unbrokered_without_a_shim(python: Python) -> None:
    python.run("""
        import amem
        with amem.unbrokered(), amem.unbrokered():
            pass
    """)
