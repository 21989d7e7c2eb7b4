"""A rank's calls and the shim's functions behind them."""
import concurrent.futures
import dataclasses
import json
import pathlib
import pickle
import threading
from collections.abc import Generator

import pytest

import amem
import amem.nccl
from conftest import Python, Shim, fake_shim_path
from sim_node.node import Build


def test_calls_reach_the_shim(shim: Shim) -> None:
    amem.pause()
    amem.pause(["weights", "kv_cache"], timeout=0.25)
    amem.resume("weights")
    assert shim.notes == ["pause [] 0", "pause [weights,kv_cache] 250", "resume [weights] 0"]
    assert amem.is_active()


def test_what_is_excepted_and_discarded(shim: Shim) -> None:
    amem.pause(["weights", "kv_cache"], discard=["kv_cache"])
    amem.resume(except_tags="kv_cache", timeout=1)
    assert shim.notes == ["discard kv_cache", "pause [weights,kv_cache] 0", "except kv_cache", "resume [] 1000"]
    amem.pause(discard=[], except_tags=[])
    assert shim.notes[-1] == "pause [] 0"
    amem.pause(guests="refuse")
    amem.pause_async(guests=amem.GuestPolicy.PIN).result(20)
    assert shim.notes[-4:] == ["guests 2", "pause [] 0", "guests 1", "pause [] 0"]
    amem.pause(deep=True, timeout=1)
    amem.pause_async(deep=True, guests="pin").result(20)
    assert shim.notes[-5:] == ["deep", "pause [] 1000", "deep", "guests 1", "pause [] 0"]
    amem.pause(discard="heap", force=True)
    amem.pause_async(discard="heap", deep=True, force=True).result(20)
    assert shim.notes[-7:] == ["force", "discard heap", "pause [] 0", "force", "deep", "discard heap", "pause [] 0"]
    for call in (amem.pause, amem.pause_async):
        with pytest.raises(amem.InvalidArgumentError):
            call(guests="wait")  # type: ignore[operator]
    with pytest.raises(amem.InvalidArgumentError):
        amem.pause("weights", except_tags="kv_cache")


def test_policies(shim: Shim) -> None:
    amem.set_policy("kv_cache", "discard")
    amem.set_policy("kv_cache", "keep")
    amem.set_policy("kv_cache", amem.Policy.DISCARD)
    assert shim.notes == ["policy kv_cache 2", "policy kv_cache 1", "policy kv_cache 2"]
    amem.set_policy("heap", "discard", force=True)
    amem.set_policy("heap", "keep", force=True)
    assert shim.notes[-2:] == ["policy heap 3", "policy heap 1"]
    for bad in (("kv_cache", "drop"), ("", "keep")):
        with pytest.raises(amem.InvalidArgumentError):
            amem.set_policy(*bad)  # type: ignore[arg-type]
    shim.answer(amem.Code.FAILED_PRECONDITION, "tag 'kv_cache' is paused")
    with pytest.raises(amem.FailedPreconditionError, match="is paused"):
        amem.set_policy("kv_cache", "keep")


def test_its_errors_come_through(shim: Shim) -> None:
    shim.answer(amem.Code.DEADLINE_EXCEEDED, "rank 3 did not come")
    with pytest.raises(amem.DeadlineExceededError, match="rank 3 did not come") as caught:
        amem.pause()
    assert caught.value.code is amem.Code.DEADLINE_EXCEEDED
    shim.answer(amem.Code.NOT_FOUND, "no tag x: nccl, weights")
    with pytest.raises(amem.NotFoundError, match="nccl, weights"):
        amem.resume("x")
    with pytest.raises(amem.NotFoundError):
        amem.set_group("late")


def test_stats_of_any_length(shim: Shim) -> None:
    tags = [{"tag": f"tag{number}", "device": 1, "resident_bytes": number, "paused_bytes": 2, "imported_bytes": 3, "allocations": 4}
            for number in range(300)]
    kinds = [{"kind": "pool", "device": 1, "bytes": 1 << 40, "count": 2, "host": True}]
    shim.stats(json.dumps({"group": "train", "rank_id": 3, "scope": "heap", "brokered": tags, "unbrokered": kinds}))
    stats = amem.stats()
    assert (stats.group, stats.rank_id, stats.scope) == ("train", 3, "heap")
    assert [dataclasses.asdict(each) for each in stats.brokered] == tags
    assert [dataclasses.asdict(each) for each in stats.unbrokered] == kinds
    with pytest.raises(dataclasses.FrozenInstanceError):
        stats.group = "other"  # type: ignore[misc]


def test_stats_of_a_shim_of_another_version(shim: Shim) -> None:
    shim.stats('{"group": "train", "colour": "red", "brokered": [{"tag": "weights", "colour": "red"}]}')
    stats = amem.stats()
    assert stats == amem.Stats(group="train", brokered=stats.brokered)
    assert (stats.brokered[0].tag, stats.brokered[0].resident_bytes) == ("weights", 0)


def test_group(shim: Shim, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AMEM_GROUP", raising=False)
    monkeypatch.delenv("AMEM_GROUPID", raising=False)
    assert amem.group() == "default"
    monkeypatch.setenv("AMEM_GROUPID", "7")
    assert amem.group() == "7"
    monkeypatch.setenv("AMEM_GROUP", "train")
    assert amem.group() == "train"
    monkeypatch.setenv("AMEM_GROUP", "not a name")
    assert amem.group() == "default"
    shim.answer(amem.Code.FAILED_PRECONDITION, "too late")
    with pytest.raises(amem.FailedPreconditionError):
        amem.set_group("rollout")
    assert amem.group() == "default"
    shim.answer(0)
    amem.set_group("rollout")
    assert shim.notes[-1] == "set_group rollout"
    shim.group("rollout")  # whoever has set it: the shim knows
    assert amem.group() == "rollout"


def test_nccl_calls(shim: Shim) -> None:
    nccl = amem.nccl.NCCLLibrary()
    nccl.ncclPause()
    nccl.ncclResume()
    nccl.ncclSetGroupID(3)
    assert nccl.ncclGetGroupID() == 7
    nccl.ncclMemStats()
    assert shim.notes == ["ncclPause NULL", "ncclResume NULL", "ncclSetGroupID 3", "ncclMemStats"]
    shim.answer(5)
    with pytest.raises(amem.nccl.NCCLError, match="ncclPause: invalid usage") as caught:
        nccl.ncclPause()
    assert (caught.value.result, caught.value.code) == (5, amem.Code.FAILED_PRECONDITION)


def test_errors_can_be_pickled() -> None:
    error = pickle.loads(pickle.dumps(amem.nccl.NCCLError("ncclPause", 5)))
    assert (error.result, error.code) == (5, amem.Code.FAILED_PRECONDITION) and "ncclPause" in str(error)
    error = pickle.loads(pickle.dumps(amem.NotFoundError("no such tag")))
    assert error.code is amem.Code.NOT_FOUND and str(error) == "no such tag"


def test_futures_in_the_order_of_the_calls(shim: Shim) -> None:
    with shim.held():
        futures = [amem.pause_async("a"), amem.resume_async(["a"], 1), amem.pause_async()]
        shim.called()
    concurrent.futures.wait(futures, timeout=20)
    assert [each.result() for each in futures] == [None, None, None]
    assert shim.notes == ["pause [a] 0", "resume [a] 1000", "pause [] 0"]


def test_futures_take_what_the_calls_take(shim: Shim) -> None:
    amem.pause_async(["weights", "kv_cache"], discard="kv_cache").result(20)
    amem.resume_async(except_tags="kv_cache").result(20)
    assert shim.notes == ["discard kv_cache", "pause [weights,kv_cache] 0", "except kv_cache", "resume [] 0"]
    with pytest.raises(amem.InvalidArgumentError):
        amem.resume_async("weights", except_tags="kv_cache")  # at once


def test_futures_carry_errors(shim: Shim) -> None:
    shim.answer(amem.Code.ABORTED, "rank 1 died")
    assert isinstance(amem.pause_async().exception(20), amem.AbortedError)
    with pytest.raises(amem.InvalidArgumentError):
        amem.pause_async([])  # at once
    assert isinstance(amem.swap_async("a", "b", runtime_dir="/nowhere").exception(20), amem.UnavailableError)


def test_a_future_whose_turn_has_not_come_can_be_cancelled(shim: Shim) -> None:
    with shim.held():
        first, second = amem.pause_async(), amem.resume_async()
        shim.called()
        assert second.cancel()
    first.result(20)
    amem.pause_async("last").result(20)
    assert shim.notes == ["pause [] 0", "pause [last] 0"]


def test_other_threads_run_during_a_pause(shim: Shim) -> None:
    pausing = threading.Thread(target=amem.pause)
    with shim.held():
        pausing.start()
        shim.called()
        assert shim.notes == [] and pausing.is_alive()
    pausing.join()
    assert shim.notes == ["pause [] 0"]


def test_a_pause_under_way_does_not_keep_the_interpreter(build: Build, python: Python) -> None:
    script = """
        import ctypes, time, amem
        shim = ctypes.CDLL(None)
        shim.fake_hold(1)
        amem.pause_async()
        while not shim.fake_inside():
            time.sleep(0.001)
        print("good")
    """
    assert python.run(script, {"LD_PRELOAD": fake_shim_path(build)}, deadline=20) == "good\n"


def test_futures_in_a_child_of_fork(build: Build, python: Python) -> None:
    script = """
        import os, amem
        amem.pause_async().result(20)
        child = os.fork()
        if child == 0:
            amem.resume_async().result(20)
            os._exit(3)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
        print("good")
    """
    assert python.run(script, {"LD_PRELOAD": fake_shim_path(build)}) == "good\n"


def test_a_region_that_another_thread_ends(shim: Shim, caplog: pytest.LogCaptureFixture) -> None:
    def allocate() -> Generator[None, None, None]:
        with amem.region("weights"):
            yield

    suspended = allocate()
    owner = threading.Thread(target=lambda: next(suspended))
    owner.start()
    owner.join()
    suspended.close()
    [line] = caplog.records
    assert (line.name, line.levelname) == ("amem", "WARNING")
    assert 'a thread that had not entered region "weights" tried to leave it' in line.getMessage()


def test_what_torch_memory_saver_would_do_and_amem_does_not(build: Build, python: Python) -> None:
    script = """
        import io, logging
        said = io.StringIO()
        logging.getLogger("amem").addHandler(logging.StreamHandler(said))
        import amem.compat
        assert "TMS_INIT_ENABLE has no effect in this process" in said.getvalue()
        print("good")
    """
    assert python.run(script, {"LD_PRELOAD": fake_shim_path(build), "TMS_INIT_ENABLE": "1"}) == "good\n"


def test_without_a_shim(python: Python) -> None:
    script = """
        import amem, amem.nccl
        for call in (amem.pause, amem.resume, amem.stats, lambda: amem.set_group("a"), amem.nccl.NCCLLibrary):
            try:
                call()
                raise SystemExit("nothing was raised")
            except amem.FailedPreconditionError as error:
                assert "amemctl run" in str(error), error
        assert not amem.is_active()
        with amem.region("weights"):
            pass
        print(amem.group())
    """
    assert python.run(script) == "default\n"


def test_without_grpcio(python: Python) -> None:
    """What needs it says so, and nothing else needs it."""
    script = """
        import asyncio, inspect, sys
        sys.modules["grpc"] = None
        import importlib.util
        find = importlib.util.find_spec
        importlib.util.find_spec = lambda name, *more: None if name == "grpc" else find(name, *more)
        import amem
        for call in (lambda: amem.Broker, lambda: amem.Cluster, lambda: amem.turn(), lambda: amem.swap("a", "b"), lambda: amem.aio.Broker,
                     lambda: amem.swap_async("a", "b").result(20), lambda: exec("from amem import *", {})):
            try:
                call()
                raise SystemExit("nothing was raised")
            except ModuleNotFoundError as error:
                assert "requires grpcio. Install it: pip install './amem_gpu-….whl[broker]', from a file" in str(error), error
        names = dict(inspect.getmembers(amem))
        assert {"Policy", "aio"} <= set(names) and "Broker" not in names
        inspect.getmembers(amem.aio)
    """
    assert python.run(script) == ""


def test_dir_has_the_names_that_are_imported_later(python: Python) -> None:
    script = """
        import amem, sys
        assert {"Broker", "turn", "Policy", "pause", "aio"} <= set(dir(amem)) and "grpc" not in sys.modules
        assert {"Broker", "swap", "pause"} <= set(dir(amem.aio))
    """
    assert python.run(script) == ""


def test_a_shim_of_another_version(tmp_path: pathlib.Path, python: Python) -> None:
    import subprocess

    source = tmp_path / "old.c"
    # The second had other parameters once, under this name.
    source.write_text("int amem_shim_active(void) { return 1; }\n"
                      "int amem_shim_request(void) { __builtin_trap(); }\n")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", tmp_path / "old.so", source], check=True)
    script = """
        import amem
        for call in (amem.pause, amem.stats, lambda: amem.pause(discard="a"), lambda: amem.region("a").__enter__()):
            try:
                call()
                raise SystemExit("nothing was raised")
            except amem.FailedPreconditionError as error:
                assert "have different versions" in str(error), error
        print("good")
    """
    assert python.run(script, {"LD_PRELOAD": str(tmp_path / "old.so")}) == "good\n"
