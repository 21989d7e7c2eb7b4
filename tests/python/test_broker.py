"""amem.Broker against a real amemd with ranks, on the simulated driver."""
import os
import pathlib
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator

import pytest

import amem
from amem import messages
from amem.broker import GroupState, Policy
from conftest import Python
from sim_node.node import Build, Node


@pytest.fixture
def broker(node: Node) -> Iterator[amem.Broker]:
    with amem.Broker(node.runtime_dir) as connection:
        yield connection


def test_what_there_is(node: Node, broker: amem.Broker) -> None:
    job = node.job()
    status = broker.status()
    assert status.pid == node.broker.pid
    assert [device.ordinal for device in status.devices] == [0, 1]
    assert status.pool.ready_bytes == status.pool.configured_bytes > 0
    [group] = broker.groups()
    assert group.name == broker.status().groups[0].name
    assert (group.name, group.state, group.rank_count) == ("train", GroupState.RUNNING, 2)
    assert {device.uuid for device in group.devices} == {device.uuid for device in status.devices}
    ranks = broker.ranks("train")
    assert sorted(rank.pid for rank in ranks) == sorted(rank.pid for rank in job.ranks)
    allocations = broker.allocations("train")
    assert len(allocations) == group.allocation_count > 0
    assert sum(each.size for each in allocations) == group.allocated_bytes
    assert {each.tag for each in allocations} == {"nccl"}
    assert broker.allocations(tag="nccl") == allocations
    assert broker.allocations(tag="weights") == []
    with pytest.raises(amem.NotFoundError, match="other"):
        broker.ranks("other")


def test_the_same_as_amemctl(node: Node, broker: amem.Broker) -> None:
    node.job()
    theirs = node.ctl("ranks", "train").json["ranks"]
    for ours, other in zip(broker.ranks("train"), theirs):
        assert {name: getattr(ours, name) for name in ("id", "group", "rank", "pid", "owned_bytes")} == {
            name: other[name] for name in ("id", "group", "rank", "pid", "owned_bytes")}


def test_pause_and_resume(node: Node, broker: amem.Broker) -> None:
    job = node.job()
    seen: list[messages.Progress] = []
    last = broker.pause("train", timeout=20, on_progress=seen.append)
    assert seen[-1] == last
    assert last.done and last.group == "train" and last.elapsed_us > 0
    assert {"quiesce", "save", "release"} <= {time.phase for time in last.times}
    assert {each.phase for each in seen} > {"save"}
    [group] = broker.groups()
    assert group.state is GroupState.PAUSED
    assert (group.resident_bytes, group.saved_bytes) == (0, group.allocated_bytes)
    assert not any(each.resident for each in broker.allocations())
    with pytest.raises(amem.FailedPreconditionError, match="train"):
        broker.pause("train")
    phases = [progress.phase for progress in broker.resuming("train")]
    assert "create" in phases
    assert broker.groups()[0].state is GroupState.RUNNING
    job.check()


def test_swap(node: Node, broker: amem.Broker) -> None:
    train, rollout = node.job("train"), node.job("rollout")
    broker.pause("rollout")
    paused, resumed = broker.swap("train", "rollout")
    assert (paused.group, resumed.group) == ("train", "rollout")
    rollout.check()
    amem.swap("rollout", "train", runtime_dir=node.runtime_dir)
    train.check()
    amem.swap_async("train", "rollout", 20, runtime_dir=node.runtime_dir).result(60)
    assert {group.name: group.state for group in broker.groups()} == {
        "train": GroupState.PAUSED, "rollout": GroupState.RUNNING}
    with pytest.raises(amem.InvalidArgumentError, match="twice"):
        broker.swap("train", "train")


def test_upgrade(node: Node, broker: amem.Broker) -> None:
    job = node.job()
    version = broker.status().version
    assert broker.upgrade() == (version, version)
    for rank in job.ranks:
        rank.wait_for("has reconnected to the broker")
    node.ctl("pause", "train")
    assert broker.groups()[0].state is GroupState.PAUSED
    broker.resume("train")
    job.check()


def test_errors_have_codes(node: Node, broker: amem.Broker) -> None:
    with pytest.raises(amem.NotFoundError, match="nothere"):
        broker.pause("nothere")
    with pytest.raises(amem.InvalidArgumentError, match="not a valid group name"):
        broker.pause("../etc")
    with pytest.raises(amem.InvalidArgumentError):
        broker.ranks("a b")
    job = node.job()
    job.ranks[0].ask("capture begin")
    with pytest.raises(amem.DeadlineExceededError, match="rank 0"):
        broker.pause("train", timeout=0.3)
    assert broker.groups()[0].state is GroupState.RUNNING
    job.ranks[0].ask("capture end")


def test_policy(node: Node, broker: amem.Broker) -> None:
    node.job()
    broker.set_policy("train", "weights", "discard")
    broker.set_policy("train", "kv_cache", Policy.DISCARD)
    broker.set_policy("train", "kv_cache", Policy.KEEP)
    policies = {each.tag: each.policy for each in broker.groups()[0].policies}
    assert policies["weights"] is Policy.DISCARD
    assert policies.get("kv_cache", Policy.KEEP) is Policy.KEEP
    with pytest.raises(amem.InvalidArgumentError, match="nccl"):
        broker.set_policy("train", "nccl", "discard")
    for bad in ("drop", Policy.UNSPECIFIED, 7):
        with pytest.raises(amem.InvalidArgumentError, match="not a valid policy"):
            broker.set_policy("train", "weights", bad)  # type: ignore[arg-type]
    broker.set_policy("train", "weights", save="sparse")
    broker.set_policy("train", "other", "keep", save=messages.Form.DENSE)
    now = {each.tag: each for each in broker.groups()[0].policies}
    assert (now["weights"].policy, now["weights"].form) == (Policy.DISCARD, messages.Form.SPARSE)
    assert now["other"].form is messages.Form.DENSE
    for bad in ("zip", messages.Form.UNSPECIFIED, 9):
        with pytest.raises(amem.InvalidArgumentError, match="not a valid form of saved bytes"):
            broker.set_policy("train", "weights", save=bad)  # type: ignore[arg-type]
    with pytest.raises(amem.InvalidArgumentError, match="set policy, save or both"):
        broker.set_policy("train", "weights")


def test_watch(node: Node, broker: amem.Broker) -> None:
    job = node.job()
    with broker.watch("train") as events:
        broker.pause("train")
        states = []
        for event in events:
            if event.kind == "state":
                states.append(event.state)
            if event.state is GroupState.PAUSED:
                break
    assert states == [GroupState.PAUSING, GroupState.PAUSED]
    broker.resume("train")
    job.check()


def test_watch_ends_when_it_is_closed(node: Node, broker: amem.Broker) -> None:
    events = broker.watch()
    threading.Timer(0.1, events.close).start()
    assert list(events) == []


def test_a_watch_of_a_broker_that_does_not_answer(node: Node) -> None:
    node.broker.signal(signal.SIGSTOP)
    try:
        with amem.Broker(runtime_dir=node.runtime_dir, query_timeout=0.3) as broker:
            with pytest.raises(amem.DeadlineExceededError, match="did not answer within 0.3 s"):
                broker.watch()
    finally:
        node.broker.signal(signal.SIGCONT)


def test_waiting_can_be_stopped(node: Node, broker: amem.Broker) -> None:
    job = node.job()
    job.ranks[0].ask("capture begin")
    operation = broker.pausing("train", timeout=20)
    for progress in operation:
        assert progress.phase == "quiesce"
        operation.cancel()
        with pytest.raises(amem.OperationCancelledError, match="continues in the broker"):
            next(operation)
        break
    with pytest.raises(amem.FailedPreconditionError):
        broker.pause("train")  # that one is under way
    job.ranks[0].ask("capture end")

    def raises(progress: messages.Progress) -> None:
        raise ZeroDivisionError

    with broker.watch("train") as events:
        if broker.groups()[0].state is not GroupState.PAUSED:
            for event in events:
                if event.state is GroupState.PAUSED:
                    break
    with pytest.raises(ZeroDivisionError):
        broker.resume("train", on_progress=raises)


def test_a_call_that_is_cancelled_by_the_broker_is_a_lost_connection(node: Node) -> None:
    import grpc
    from amem._connection.calls import Connection, Ending

    class Failure:
        def code(self) -> grpc.StatusCode:
            return grpc.StatusCode.CANCELLED

        def details(self) -> str:
            return "the server shuts down"

    path = os.path.join(node.runtime_dir, "control.sock")
    connection = Connection(path, lambda: None)
    error = Ending(connection, None).error(Failure())
    assert isinstance(error, amem.UnavailableError) and "was lost: the server shuts down" in str(error)
    connection.closed = True
    assert isinstance(Ending(connection, None).error(Failure()), amem.OperationCancelledError)


def test_an_operation_waits_no_longer_for_a_connection_than_a_question(bare_node: Node, build: Build) -> None:
    """Of a broker that ends just before it is connected, or that hangs: somebody listens, and nobody answers."""
    path = os.path.join(bare_node.dir, "control.sock")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        began = time.monotonic()
        with amem.Broker(socket=path, query_timeout=1) as broker, pytest.raises(amem.DeadlineExceededError, match="within 1 s"):
            broker.pause("train")
        ctl = subprocess.run([build.program("amemctl"), "--socket", path, "pause", "train"], capture_output=True, text=True,
                             timeout=60)
        assert ctl.returncode != 0 and "did not answer" in ctl.stderr
        assert time.monotonic() - began < 30


def test_closing_ends_what_is_under_way(node: Node) -> None:
    job = node.job()
    job.ranks[0].ask("capture begin")
    broker = amem.Broker(runtime_dir=node.runtime_dir)
    operation = broker.pausing("train", timeout=20)
    assert next(operation).phase == "quiesce"
    broker.close()
    with pytest.raises(amem.OperationCancelledError, match="continues in the broker"):
        for _ in operation:
            pass
    calls: tuple[Callable[[], object], ...] = (broker.status, broker.watch, broker.allocations, lambda: broker.resume("train"))
    for call in calls:
        with pytest.raises(amem.OperationCancelledError, match="has closed the connection"):
            call()
    job.ranks[0].ask("capture end")


def test_a_broker_that_goes_and_comes_back(node: Node, broker: amem.Broker) -> None:
    events = broker.watch()
    assert node.broker.terminate() == 0
    with pytest.raises(amem.UnavailableError):
        list(events)
    with pytest.raises(amem.UnavailableError, match="control.sock"):
        broker.status()
    node.start_broker(name="amemd-again")
    assert broker.status().pid == node.broker.pid


def test_sockets_that_cannot_be(tmp_path: pathlib.Path) -> None:
    with pytest.raises(amem.InvalidArgumentError, match="the limit for Unix sockets"):
        amem.Broker(str(tmp_path / ("x" * 120)))
    odd = tmp_path / "a b%c"
    odd.mkdir()
    with amem.Broker(socket=str(odd / "control.sock")) as broker, pytest.raises(amem.UnavailableError, match="a b%c"):
        broker.status()


def test_history(node: Node) -> None:
    with amem.Broker(node.runtime_dir) as broker:
        with pytest.raises(amem.NotFoundError, match="no group 'nobody'"):
            broker.history("nobody")
        with pytest.raises(amem.InvalidArgumentError, match="most is -1"):
            broker.history(most=-1)
        node.job("train")
        broker.pause("train")
        broker.resume("train")
        pause, resume = broker.history("train", spans=True)
        assert (pause.operation, resume.operation, pause.code) == ("pause", "resume", 0)
        assert pause.transaction + 1 == resume.transaction and not pause.swap
        assert [span.phase for span in pause.spans][:2] == ["quiesce", "save"]
        [save] = [span for span in pause.spans if span.phase == "save"]
        assert sum(rank.bytes for rank in save.ranks) == pause.bytes > 0
        assert all(call.name in ("copy", "cuMemUnmap") for rank in save.ranks for call in rank.calls)
        assert all(any(call.name == "copy" and call.us > 0 for call in rank.calls) for rank in save.ranks)
        assert broker.history(transaction=resume.transaction, most=1)[0].spans == ()


def test_beside_libamem_client(node: Node, build: Build, python: Python) -> None:
    """Its libprotobuf registers broker.proto for itself, in one process with this package's messages."""
    client = os.path.join(build.directory, "lib", "libamem_client.so")
    script = f"""
        import ctypes, amem
        client = ctypes.CDLL({client!r}, mode=ctypes.RTLD_GLOBAL)
        client.amem_version.restype = ctypes.c_char_p
        with amem.Broker({node.runtime_dir!r}) as broker:
            handle, text = ctypes.c_void_p(), ctypes.c_char_p()
            assert client.amem_open(None, ctypes.byref(handle), None) == 0
            assert client.amem_status(handle, ctypes.byref(text), None) == 0
            assert broker.status().version.encode() == client.amem_version()
            print("good")
    """
    assert python.run(script, {"AMEM_RUNTIME_DIR": node.runtime_dir}) == "good\n"
