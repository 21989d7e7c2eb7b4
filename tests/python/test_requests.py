"""What amem.Broker asks for, seen by a service in this process that answers as it is told."""
import asyncio
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest

import amem
from amem.broker import GroupState
from fake_broker import FakeBroker


@pytest.fixture
def fake(tmp_path: pathlib.Path) -> Iterator[FakeBroker]:
    fake = FakeBroker(tmp_path / "control.sock")
    yield fake
    fake.server.stop(0).wait()


@pytest.fixture
def broker(fake: FakeBroker, tmp_path: pathlib.Path) -> Iterator[amem.Broker]:
    with amem.Broker(str(tmp_path), query_timeout=20) as connection:
        yield connection


def test_tags_and_times(fake: FakeBroker, broker: amem.Broker) -> None:
    done = [{"group": "train", "done": True}]
    fake.answers = {"Pause": done, "Resume": done}
    broker.pause("train", ["weights", "kv_cache"], 2.5)
    broker.resume("train", "weights")
    broker.pause("train")
    assert [(name, request.group, list(request.tags), request.timeout_ms) for name, request in fake.asked] == [
        ("Pause", "train", ["weights", "kv_cache"], 2500), ("Resume", "train", ["weights"], 0),
        ("Pause", "train", [], 0)]
    wrong: tuple[list[str], ...] = ([], [""], [str(n) for n in range(65)])
    for bad in wrong:
        with pytest.raises(amem.InvalidArgumentError):
            broker.pause("train", bad)
    assert len(fake.asked) == 3


def test_what_is_excepted_and_discarded(fake: FakeBroker, broker: amem.Broker) -> None:
    done = [{"group": "train", "done": True, "dropped_bytes": 7}]
    fake.answers = {"Pause": done, "Resume": done, "Swap": done + [{"group": "rollout", "done": True}]}
    assert broker.pause("train", discard=["kv_cache"]).dropped_bytes == 7
    broker.pause("train", except_tags="weights", discard=[])
    broker.resume("train", except_tags=["kv_cache"])
    broker.swap("train", "rollout", discard="kv_cache")
    assert [(name, list(request.except_tags)) for name, request in fake.asked[:3]] == [
        ("Pause", []), ("Pause", ["weights"]), ("Resume", ["kv_cache"])]
    assert [list(fake.asked[at][1].discard) for at in (0, 1, 3)] == [["kv_cache"], [], ["kv_cache"]]
    assert not any(fake.asked[at][1].force for at in (0, 1, 3))
    with pytest.raises(amem.InvalidArgumentError):
        broker.pause("train", "weights", except_tags="kv_cache")
    with pytest.raises(amem.InvalidArgumentError):
        broker.pause("train", discard=[""])
    assert len(fake.asked) == 4
    broker.pause("train", discard="heap", force=True)
    broker.swap("train", "rollout", discard="heap", force=True)
    broker.set_policy("train", "heap", "discard", force=True)
    assert [request.force for _, request in fake.asked[4:]] == [True, True, True]


def test_sets_of_groups(fake: FakeBroker, broker: amem.Broker) -> None:
    def done(*groups: str) -> list[dict[str, object]]:
        return [{"group": name, "done": True} for name in groups]

    fake.answers = {"Pause": done("b", "a"), "Resume": done("a"), "Swap": done("b", "a", "c")}
    assert [progress.group for progress in broker.pause(["a", "b"])] == ["a", "b"], "in their order"
    assert [progress.group for progress in broker.resume(["a"])] == ["a"]
    assert broker.resume("a").group == "a"
    assert [progress.group for progress in broker.swap(["a", "b"], "c", discard="kv")] == ["a", "b", "c"]
    asked = [request for _, request in fake.asked]
    assert [(each.group, list(each.groups)) for each in asked[:3]] == [("", ["a", "b"]), ("a", []), ("a", [])]
    assert (asked[3].out, list(asked[3].out_groups), getattr(asked[3], "in"), list(asked[3].in_groups)) == (
        "", ["a", "b"], "c", [])
    wrong: tuple[list[str], ...] = ([], ["a", "a"], ["a", ""])
    for bad in wrong:
        with pytest.raises(amem.InvalidArgumentError):
            broker.pause(bad)
    both: tuple[tuple[str | list[str], str | list[str]], ...] = (("a", "a"), (["a", "b"], ["b"]), ([], ["a"]))
    for out, into in both:
        with pytest.raises(amem.InvalidArgumentError):
            broker.swap(out, into)
    with pytest.raises(amem.InternalError):
        broker.resume(["a", "b"])
    assert len(fake.asked) == 5


def test_guests(fake: FakeBroker, broker: amem.Broker) -> None:
    guest = {"owner": "train", "guest": "rollout", "rank_id": 9, "rank": 3, "pid": 77, "tag": "weights",
             "allocation_count": 2, "bytes": 1 << 40, "paused": True}
    done = [{"group": "train", "done": True, "guests": [guest]}]
    fake.answers = {"Pause": done, "Swap": done * 2,
                    "ListGroups": {"groups": [{"name": "train", "guests": [guest], "opened": []}]}}
    [named] = broker.pause("train", guests="pin").guests
    assert (named.owner, named.guest, named.rank_id, named.rank, named.pid, named.tag, named.allocation_count, named.bytes,
            named.paused) == tuple(guest.values())
    assert broker.groups()[0].guests == (named,)
    broker.pause("train")
    broker.swap("train", "rollout", guests="refuse")
    assert [request.guests for name, request in fake.asked if name in ("Pause", "Swap")] == [1, 0, 2]
    with pytest.raises(amem.InvalidArgumentError):
        broker.pause("train", guests="wait")  # type: ignore[call-overload]


def test_deep(fake: FakeBroker, broker: amem.Broker) -> None:
    done = [{"group": "train", "done": True}]
    fake.answers = {"Pause": done, "Swap": done * 2,
                    "ListHistory": {"operations": [{"group": "train", "operation": "pause", "deep": True, "by_broker": True}]}}
    broker.pause("train", deep=True)
    broker.swap("train", "rollout", deep=True)
    broker.swapping("train", "rollout", deep=True).result()
    broker.swap("train", "rollout")
    assert [request.deep for name, request in fake.asked if name in ("Pause", "Swap")] == [True, True, True, False]
    [past] = broker.history()
    assert past.deep and past.by_broker


def test_tags_and_unbrokered_memory_in_the_answers(fake: FakeBroker, broker: amem.Broker) -> None:
    fake.answers = {
        "ListGroups": {"groups": [{"name": "train", "state": 3, "unbrokered_bytes": 5, "tags": [
            {"tag": "weights", "allocated_bytes": 1 << 40, "discard_bytes": 7}]}]},
        "ListRanks": {"ranks": [{"id": 3, "unbrokered": [{"uuid": "GPU-1", "kind": "pool", "bytes": 9, "count": 2}]}]},
    }
    [group] = broker.groups()
    assert (group.state, group.unbrokered_bytes) == (GroupState.PAUSED, 5)
    assert (group.tags[0].tag, group.tags[0].allocated_bytes, group.tags[0].discard_bytes) == ("weights", 1 << 40, 7)
    [rank] = broker.ranks()
    assert (rank.unbrokered[0].kind, rank.unbrokered[0].bytes, rank.unbrokered[0].count) == ("pool", 9, 2)


def test_a_state_of_a_newer_broker(fake: FakeBroker, broker: amem.Broker) -> None:
    fake.answers = {"ListGroups": {"groups": [{"name": "train", "state": 77}]}}
    assert broker.groups()[0].state is GroupState.UNSPECIFIED


@pytest.mark.parametrize("status, error", [
    (grpc.StatusCode.RESOURCE_EXHAUSTED, amem.ResourceExhaustedError),
    (grpc.StatusCode.DEADLINE_EXCEEDED, amem.DeadlineExceededError),
    (grpc.StatusCode.ABORTED, amem.AbortedError),
    (grpc.StatusCode.UNAUTHENTICATED, amem.PermissionDeniedError),
])
def test_errors_come_through(fake: FakeBroker, broker: amem.Broker, status: grpc.StatusCode, error: type[Exception]) -> None:
    fake.end = (status, "need 3 GiB, pool has 1 GiB")
    calls: tuple[Callable[[], object], ...] = (lambda: broker.pause("train"), broker.status, broker.allocations)
    for call in calls:
        with pytest.raises(error, match="need 3 GiB, pool has 1 GiB"):
            call()


def test_an_older_broker(fake: FakeBroker, broker: amem.Broker) -> None:
    fake.end = (grpc.StatusCode.UNIMPLEMENTED, "")
    with pytest.raises(amem.UnimplementedError, match="older"):
        broker.ranks()


def test_a_path_with_odd_characters(tmp_path: pathlib.Path) -> None:
    odd = tmp_path / "r%41 n"
    odd.mkdir()
    fake = FakeBroker(odd / "control.sock")
    fake.answers = {"GetStatus": {"version": "9.8.7"}}
    with amem.Broker(str(odd)) as broker:
        assert broker.status().version == "9.8.7"
    fake.server.stop(0).wait()


def test_an_operation_without_a_result(fake: FakeBroker, broker: amem.Broker) -> None:
    fake.answers = {"Swap": [{"group": "train", "done": True}]}
    with pytest.raises(amem.InternalError, match="without a result"):
        broker.swap("train", "rollout")


def test_turns(fake: FakeBroker, broker: amem.Broker, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    fake.answers = {"Turns": {"stages": [{"name": "night", "policy": "lease", "groups": [{"group": "train", "turn": "runs", "priority": -3}]}]},
                    "Lease": {"waited_us": 1_500_000}}
    [stage] = broker.turns("night")
    assert (stage.name, stage.groups[0].turn, stage.groups[0].priority, stage.last.out_groups if stage.last else ()) == ("night", "runs", -3, ())
    assert broker.lease("train", 20) == 1.5
    broker.end_lease("train")
    broker.set_turn("train", stage="", priority=0, longest_wait=2.5)
    broker.set_turn("train", weight=7)
    broker.set_turn("train", leave_first=["kv", "workspace"], return_order=())
    [_, lease, end, turn, weight, order] = [request for _, request in fake.asked]
    assert (order.set_leave_first, list(order.leave_first), order.set_return_order, list(order.return_order)) == (
        True, ["kv", "workspace"], True, [])
    assert (lease.group, lease.timeout_ms, getattr(lease, "yield")) == ("train", 20_000, False)
    assert getattr(end, "yield")
    assert (turn.set_stage, turn.stage, turn.set_priority, turn.priority, turn.set_longest_wait, turn.longest_wait_ms, turn.weight) == (
        True, "", True, 0, True, 2500, 0)
    assert (weight.weight, weight.set_stage, weight.set_priority, weight.set_longest_wait) == (7, False, False, False)
    assert not weight.set_leave_first and not weight.set_return_order
    bad: list[dict[str, Any]] = [{}, {"weight": 0}, {"priority": 101}, {"longest_wait": -1}]
    for wrong in bad:
        with pytest.raises(amem.InvalidArgumentError):
            broker.set_turn("train", **wrong)
    fake.asked.clear()
    monkeypatch.setenv("AMEM_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("AMEM_GROUP", "rollout")
    with amem.turn(timeout=5) as mine:
        assert mine.waited == 1.5
    with pytest.raises(ZeroDivisionError), amem.turn("train"):
        raise ZeroDivisionError
    assert [(request.group, request.timeout_ms, getattr(request, "yield")) for _, request in fake.asked] == [
        ("rollout", 5000, False), ("rollout", 0, True), ("train", 0, False), ("train", 0, True)]


def test_swaps_over_a_connection_of_their_own(fake: FakeBroker, tmp_path: pathlib.Path) -> None:
    """They take what Broker.swap() takes."""
    fake.answers["Swap"] = [{"group": name, "done": True} for name in ("a", "b", "c")]
    steps: list[str] = []
    options: dict[str, Any] = {"runtime_dir": str(tmp_path), "on_progress": lambda progress: steps.append(progress.group), "discard": "kv",
                               "guests": "refuse", "deep": True, "force": True}
    amem.swap(["a", "b"], "c", 2, **options)
    amem.swap_async(["a", "b"], "c", 2, **options).result(20)
    asyncio.run(amem.aio.swap(["a", "b"], "c", 2, **options))
    first, *others = [request for _, request in fake.asked]
    assert len(others) == 2 and all(each == first for each in others) and steps == ["a", "b", "c"] * 3
    assert list(first.out_groups) == ["a", "b"] and list(first.discard) == ["kv"] and first.deep and first.force
    for wrong in ({"out": "a b", "into": "c"}, {"out": "a", "into": "a"}, {"out": "a", "into": "b", "guests": "all"}):
        with pytest.raises(amem.InvalidArgumentError):
            amem.swap_async(**wrong)  # type: ignore[arg-type]  # at once
