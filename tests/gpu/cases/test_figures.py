"""figures.py decides whether other tests pass, so it is tested itself. Run by pytest, without a GPU."""

import json
import math
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "programs"))

import figures  # noqa: E402

LOG = """\
[2026-11-21 10:00:00.000] [info] group 'train': pause asked for
[2026-11-21 10:00:00.700] [info] group 'train': pause took 640.5 ms (quiesce 1.0, save 600.0, release 30.5, drop 9.0)
[2026-11-21 10:00:00.800] [info] group 'rollout': pause took 1.5 ms (quiesce 1.0, save 0.5)
[2026-11-21 10:00:01.700] [info] group 'train': resume took 350.0 ms (admit 1.0, create 40.0, map+load 260.0, peers 9.0)
[2026-11-21 10:00:02.000] [info] group 'train': pause of weights, kv_cache took 320.0 ms (quiesce 20.0, save 300.0)
[2026-11-21 10:00:03.000] [info] group 'train': resume of weights, kv_cache took 2.0 ms ()
[2026-11-21 10:00:04.000] [error] group 'train': pause: no space in the pool
"""


def test_operations_are_those_of_the_group_in_order():
    found = figures.operations(LOG, "train")
    assert [each["op"] for each in found] == ["pause", "resume", "pause", "resume"]
    assert [each["what"] for each in found] == ["", "", "weights, kv_cache", "weights, kv_cache"]
    assert found[0]["ms"] == 640.5
    assert found[0]["phases"] == {"quiesce": 1.0, "save": 600.0, "release": 30.5, "drop": 9.0}
    assert found[1]["phases"]["map+load"] == 260.0
    assert found[3]["phases"] == {}


def test_no_operations():
    assert figures.operations("", "train") == []
    assert figures.operations(LOG, "nobody") == []


def test_copy_rates_are_per_gpu_and_of_the_bytes_that_the_pause_saved():
    rates = figures.copy_rates(figures.operations(LOG, "train"), [60_000_000_000, 15_000_000_000], 2)
    assert rates["save"] == [50.0, 25.0]
    assert rates["load"] == [100.0]


def test_copy_rates_without_reported_bytes():
    assert figures.copy_rates(figures.operations(LOG, "train"), [], 2) == {"save": [], "load": []}


def test_rate_of_no_time():
    assert figures.rate(1000, 0) == 0.0


def test_too_slow():
    limits = {"save": 50, "load": 50}
    assert figures.too_slow({"save": [51.0, 52.0], "load": [50.0]}, limits) == ""
    assert "no save" in figures.too_slow({"save": [], "load": [60.0]}, limits)
    assert "the first time" in figures.too_slow({"save": [49.0, 60.0, 60.0], "load": [60.0]}, limits)
    assert "later" in figures.too_slow({"save": [60.0, 40.0, 45.0, 60.0], "load": [60.0]}, limits)


def test_one_slow_copy_among_later_ones_is_no_failure():
    limits = {"save": 50, "load": 50}
    assert figures.too_slow({"save": [60.0, 60.0, 10.0, 60.0], "load": [60.0]}, limits) == ""


def test_groups_devices_and_tags():
    group = {"name": "train", "devices": [{"uuid": "GPU-1", "resident_bytes": 7}],
             "tags": [{"tag": "weights", "allocated_bytes": 5}]}
    assert figures.group_of({"groups": [group]}, "train") is group
    assert figures.group_of({"groups": [group]}, "rollout") is None
    assert figures.resident_on(group, "GPU-1") == 7
    assert figures.resident_on(group, "GPU-2") == 0
    assert figures.tag_of(group, "weights")["allocated_bytes"] == 5
    assert figures.tag_of(group, "kv_cache")["resident_bytes"] == 0


def test_fold_depends_on_order_and_sign():
    assert figures.fold(0, [1, 2]) != figures.fold(0, [2, 1])
    assert figures.fold(0, [1]) != figures.fold(0, [-1])
    assert figures.fold(figures.fold(0, [1]), [2]) == figures.fold(0, [1, 2])


def test_distance():
    assert figures.distance([1.0, 2.0], [1.0, 2.5]) == 0.5
    assert figures.distance([], []) == 0.0
    assert figures.distance([1.0], [1.0, 2.0]) == math.inf
    assert figures.distance([math.nan], [math.nan]) == math.inf


def test_within_equal_bit_for_bit():
    assert figures.within([1.0, 2.0], [1.0, 2.0]) == (True, "equal bit for bit")


def test_within_the_spread_of_two_undisturbed_runs():
    right, text = figures.within([1.0, 2.25], [1.0, 2.0], [1.0, 2.5])
    assert right and "0.25 away" in text and "differ by 0.5" in text
    assert not figures.within([1.0, 2.25], [1.0, 2.0], [1.0, 2.0])[0]
    assert not figures.within([1.0, 2.25], [1.0, 2.0])[0]
    assert not figures.within([1.0], [1.0, 2.0], [1.0, 2.5])[0]
    # Two undisturbed runs that are not numbers are infinitely far apart, and say nothing.
    assert not figures.within([math.nan], [math.nan], [math.nan])[0]


def test_kinds_of_gpu_work():
    names = ["ncclSymkDevKernel_AllGather_ST", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "Memcpy DtoD (Device -> Device)",
             "void at::native::vectorized_elementwise_kernel<4>", "cudaMemcpyBatchAsync", "Memset (Device)"]
    assert figures.count_kinds(names) == {"symmetric": 1, "nccl": 1, "copy": 1, "batch": 1}
    assert figures.count_kinds([]) == {"symmetric": 0, "nccl": 0, "copy": 0, "batch": 0}


def test_registrations():
    log = """\
node:1:2 [0] NCCL INFO register comm 0x1 buffer 0x2 size 33554432
node:1:2 [0] NCCL INFO rank 0 - IPC registering buffer 0x2 size 1 (baseAddr 0x2 size 2) to peer 1
node:1:2 [0] NCCL INFO rank 0 - IPC register buffer 0x2 size 1 (baseAddr 0x2 size 2) to peer 1 regAddr 0x3 offsetOut 0
node:1:2 [0] NCCL INFO rank 0 - IPC reuse buffer 0x2 size 1 (baseAddr 0x2 size 2) to peer 1 regAddr 0x3
node:1:2 [0] NCCL INFO rank 0 failed to IPC register userbuff 0x2 buffSize 1 nPeers 1 isLegacyIpc 0 type POSIX_FD
"""
    assert figures.registrations(log) == {"peers": 1, "failed": 1}
    assert figures.registrations("") == {"peers": 0, "failed": 0}


def test_describe():
    assert figures.describe([3.0, 1.0, 2.0]) == {"n": 3, "first": 3.0, "median": 2.0, "min": 1.0, "max": 3.0}


def call_line(case, work, median, there=0.0):
    return json.dumps({"case": case, "work": work, "median_us": median, "min_us": median - 1, "p90_us": median + 1,
                       "max_us": median + 9, "there": there})


COPY, LAUNCH = ("copy out, 4 B", "returns"), ("launch", "is there")
ALLOCATE, FREE = ("memory, 2 MiB", "allocate"), ("memory, 2 MiB", "free")
LIMITS = figures.CallLimits(times=1.5, more_us=1, allocation_times=1, allocation_more_us=30)


def call_times(copy=4.0, launch=10.0, allocate=50.0, free=40.0, there=0.0):
    return figures.calls(["\n".join(["CUDA says something", call_line(*COPY, copy, there), call_line(*LAUNCH, launch, there),
                                     call_line(*ALLOCATE, allocate), call_line(*FREE, free)])])


DRIVER, BARE = call_times(), call_times(allocate=150.0)


def test_calls_of_several_runs_are_taken_together():
    texts = [call_line(*COPY, median, there) for median, there in ((4, 0.0), (9, 1.0), (5, 0.1))]
    assert figures.calls(texts) == {COPY: {"median_us": 5, "min_us": 3, "p90_us": 6, "max_us": 18, "there": 0.1}}
    assert figures.calls([]) == figures.calls(["killed"]) == {}


def test_calls_are_held_to_the_drivers_own():
    assert figures.slow_calls(DRIVER, BARE, call_times(copy=7.0, launch=16.0), LIMITS) == []
    assert figures.slow_calls(DRIVER, BARE, call_times(copy=7.1, launch=16.1), LIMITS) == [
        "copy out, 4 B: returns: 7.1 us, 7.0 is the limit", "launch: is there: 16.1 us, 16.0 is the limit"]


def test_an_allocation_is_held_to_its_driver_calls_and_a_free_to_nothing():
    assert figures.slow_calls(DRIVER, BARE, call_times(allocate=181.0, free=4000.0), LIMITS) == []
    assert figures.slow_calls(DRIVER, BARE, call_times(allocate=181.1), LIMITS) == [
        "memory, 2 MiB: allocate: 181.1 us, 181.0 is the limit"]
    assert figures.slow_calls(DRIVER, BARE, call_times(allocate=185.0), LIMITS._replace(allocation_times=1.1)) == []


def test_a_call_that_one_run_lacks_is_no_pass():
    amem = call_times()
    del amem[COPY]
    with pytest.raises(KeyError):
        figures.otherwise_there(DRIVER, amem, 0.2)
    with pytest.raises(KeyError):
        figures.slow_calls(amem, BARE, DRIVER, LIMITS)


def test_what_is_there_at_the_return_of_a_call():
    assert figures.otherwise_there(DRIVER, call_times(there=0.2), 0.2) == []
    assert figures.otherwise_there(DRIVER, call_times(there=0.3), 0.2) == [
        "copy out, 4 B: the result was there at the return in 30% of the samples, 0% without amem",
        "launch: the result was there at the return in 30% of the samples, 0% without amem"]
    assert len(figures.otherwise_there(call_times(there=1.0), DRIVER, 0.2)) == 2


def first_use_report(finished=60, elapsed_s=20.0, **more):
    return {"started": 66, "finished": finished, "crashed": 4, "killed": 2, "wrong": 0, "texts": [], "uses": 2400,
            "elapsed_s": elapsed_s, "malloc_ms": 1.5, **more}


def test_first_uses_right_and_fast_enough():
    why, shown = figures.first_uses(first_use_report(), first_use_report(finished=44), 0.7)
    assert why == "" and shown.startswith("in scope heap 0.75 x as many got through: without amem 66 processes in 20 s")


def test_first_uses_too_slow():
    assert figures.first_uses(first_use_report(), first_use_report(finished=40), 0.7)[0] == "0.7 x is the least"
    assert figures.first_uses(first_use_report(), first_use_report(elapsed_s=30), 0.7)[0] == "0.7 x is the least"
    assert figures.first_uses(first_use_report(finished=0, crashed=0), first_use_report(), 0.7)[0]


def test_first_uses_with_a_wrong_result_on_either_side():
    wrong = first_use_report(wrong=1, texts=["seed 5: sort: 3 away"])
    died = first_use_report(texts=["a process ended with -11"])
    assert figures.first_uses(first_use_report(), wrong, 0.7)[0] == "in scope heap: seed 5: sort: 3 away"
    assert figures.first_uses(died, first_use_report(), 0.7)[0] == "without amem: a process ended with -11"


def stops(*outcomes, extend=False):
    return {"how": "pause", "extend": extend, "timeout_s": 5, "stop_s": 12.0, "torch": "2.9", "outcomes": list(outcomes)}


def test_what_became_of_a_job_that_was_stopped():
    survived = {"kind": "async", "survived": True}
    ended = {"kind": "barrier", "survived": False, "when": "after the stop", "by": "the NCCL watchdog", "text": "too long"}
    assert figures.watchdog(stops(survived, survived), must_survive=True) == (
        "12 s pauses, limit 5 s: async 2 of 2 survived (PyTorch 2.9)")
    text = figures.watchdog(stops(survived, ended, extend=True))
    assert "with extend_timeouts(), limit" in text and "barrier 0 of 1 survived, ended by the NCCL watchdog" in text
    with pytest.raises(ValueError, match="barrier collectives was ended after the stop by the NCCL watchdog: too long"):
        figures.watchdog(stops(survived, ended), must_survive=True)
    with pytest.raises(ValueError, match="by a CUDA error"):
        figures.watchdog(stops({**ended, "by": "a CUDA error"}))


def test_a_watchdog_that_ends_nothing():
    survived = {"kind": "async", "survived": True}
    ended = {"kind": "async", "survived": False, "when": "after the stop", "by": "the NCCL watchdog", "text": "too long"}
    assert figures.watchdog_ended_none([stops(survived), stops(survived)])
    assert figures.watchdog_ended_none([stops({**ended, "by": "a blocking wait"})])
    assert not figures.watchdog_ended_none([stops(survived), stops(survived, ended)])
