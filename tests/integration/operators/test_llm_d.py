"""llm-d's SnapshotAgentService, called with gRPC's Python package: a job is a group."""
import grp
import importlib
import os
import shutil
import socket
import subprocess
import sys

import pytest

from sim_node import MIB, NOBODY, eventually
from sim_node.broker import Broker
from sim_node.calls import effective
from sim_node.prometheus import free_port

grpc = pytest.importorskip("grpc")
pytest.importorskip("google.protobuf")
pytestmark = pytest.mark.skipif(shutil.which("protoc") is None, reason="no protoc here (deploy/deps.sh installs it)")

PROTO = os.path.join(os.path.dirname(os.path.abspath(__file__)), *[".."] * 3, "proto")
SERVICE = "snapshot_agent.v1alpha1.SnapshotAgentService"


@pytest.fixture(scope="module")
def messages(tmp_path_factory):
    """The module that protoc makes of the interface file."""
    out = str(tmp_path_factory.mktemp("generated"))
    subprocess.run(["protoc", "-I", PROTO, f"--python_out={out}", os.path.join(PROTO, "llm_d", "snapshot_agent.proto")], check=True)
    sys.path.insert(0, out)
    try:
        return importlib.import_module("llm_d.snapshot_agent_pb2")
    finally:
        sys.path.remove(out)


class Agent:
    """What llm-d's orchestrator calls, and how."""

    def __init__(self, target, messages):
        self.messages = messages
        # A connection of its own: another channel's would have its user.
        self.channel = grpc.insecure_channel(target, options=[("grpc.use_local_subchannel_pool", 1)])
        grpc.channel_ready_future(self.channel).result(20)

    def call(self, method, **fields):
        request = getattr(self.messages, method + "Request")(**fields)
        answer = getattr(self.messages, method + "Response")
        return self.channel.unary_unary(f"/{SERVICE}/{method}", type(request).SerializeToString, answer.FromString)(request, timeout=20)

    def states(self):
        return {job.job_id: self.messages.JobState.Name(job.state)[len("JOB_STATE_"):] for job in self.call("Status").job_statuses}

    def operation(self, number):
        return self.call("GetOperation", operation_id=number)

    def wait(self, number):
        """Its answer, once it has ended."""
        def ended():
            return self.operation(number).status != self.messages.OPERATION_STATUS_PENDING

        eventually(ended, what=f"{number} has ended")
        return self.operation(number)

    def done(self, method, job):
        """The same, of one that succeeds."""
        answer = self.wait(self.call(method, job_id=job, group="llm-d's own").operation_id)
        assert answer.status == self.messages.OPERATION_STATUS_COMPLETE, answer
        return answer


def refused(code, call, *args, **fields):
    with pytest.raises(grpc.RpcError) as error:
        call(*args, **fields)
    assert error.value.code() == code, error.value
    return error.value.details()


@pytest.fixture
def agent_of(messages):
    """Connects to a node's control.sock, or to an address."""
    agents = []

    def connect(node, address=None):
        agents.append(Agent(address or f"unix:{node.runtime_dir}/control.sock", messages))
        return agents[-1]

    yield connect
    for agent in agents:
        agent.channel.close()


def test_a_job_is_saved_and_restored(node_with, agent_of):
    node = node_with("--llm-d-enabled", "true")
    job = node.job("train", allocations=4, size="2MiB")
    agent = agent_of(node)
    assert agent.states() == {"train": "RUNNING"}
    used = [device.memory_used_bytes for device in agent.call("Status").accelerator_statuses]
    assert len(used) == 2 and all(used)

    saved = agent.done("Snapshot", "train")
    assert saved.snapshot_device_bytes >= 8 * MIB and saved.storage_bytes > 0 and not saved.error
    assert agent.states() == {"train": "SAVED"} and node.ctl.state("train") == "paused"
    after = agent.call("Status").accelerator_statuses
    assert sum(used) - sum(device.memory_used_bytes for device in after) >= 8 * MIB
    assert all(device.id.startswith("GPU-") and device.memory_total_bytes == 96 * MIB for device in after)

    agent.done("Restore", "train")
    assert agent.states() == {"train": "RUNNING"}
    job.verify()


def test_deep_snapshots(bare_node, node_with, agent_of):
    bare_node.settings["AMEM_SIM_CHECKPOINT"] = "hang"
    node = node_with("--llm-d-enabled", "true", "--llm-d-deep", "true", "--deep-enabled", "true")
    job = node.job("train")
    agent = agent_of(node)
    agent.done("Snapshot", "train")
    assert node.ctl.group("train")["deep"] and agent.states() == {"train": "SAVED"}
    agent.done("Restore", "train")
    job.verify()


def test_what_is_refused_and_what_is_done_already(node_with, agent_of):
    node = node_with("--llm-d-enabled", "true")
    node.job("train")
    agent = agent_of(node)
    assert agent.call("Restore", job_id="train").operation_id == "already-running"
    assert agent.operation("already-running").status == agent.messages.OPERATION_STATUS_COMPLETE
    agent.done("Snapshot", "train")
    assert "already paused" in refused(grpc.StatusCode.FAILED_PRECONDITION, agent.call, "Snapshot", job_id="train")
    assert "rollout" in refused(grpc.StatusCode.NOT_FOUND, agent.call, "Restore", job_id="rollout")
    refused(grpc.StatusCode.INVALID_ARGUMENT, agent.call, "Snapshot")
    channel = agent.messages.BackendConfig(app_channel={})
    refused(grpc.StatusCode.UNIMPLEMENTED, agent.call, "Restore", job_id="train", backend_config=channel)
    refused(grpc.StatusCode.NOT_FOUND, agent.operation, "6ba7b810-9dad-11d1-80b4-00c04fd430c8")
    assert agent.states() == {"train": "SAVED"}


def test_a_job_in_transition(node_with, agent_of):
    """Its operation is pending, another is refused, and one that fails says why and leaves the job as it was."""
    node = node_with("--llm-d-enabled", "true")
    job = node.job("train")
    agent = agent_of(node)
    job.ranks[0].faults("cuMemUnmap:1:hold")
    number = agent.call("Snapshot", job_id="train").operation_id
    eventually(lambda: agent.states() == {"train": "TRANSITIONING"}, what="the group pauses")
    assert agent.operation(number).status == agent.messages.OPERATION_STATUS_PENDING
    for method in ("Snapshot", "Restore"):
        refused(grpc.StatusCode.ABORTED, agent.call, method, job_id="train")
    job.ranks[0].faults()
    assert agent.wait(number).status == agent.messages.OPERATION_STATUS_COMPLETE

    job.ranks[0].faults("cuMemMap:1:999")
    failed = agent.wait(agent.call("Restore", job_id="train").operation_id)
    assert failed.status == agent.messages.OPERATION_STATUS_FAILED and failed.error, failed
    assert agent.states() == {"train": "SAVED"}, "not faulted: it may be tried again"
    job.ranks[0].faults()
    agent.done("Restore", "train")
    job.verify()


def test_an_operation_of_an_earlier_amemd_has_failed(node_with, agent_of):
    node = node_with("--llm-d-enabled", "true")
    node.job("train")
    agent = agent_of(node)
    number = agent.call("Snapshot", job_id="train").operation_id
    agent.wait(number)
    other = number[:-3] + ("0" if number[-3] != "0" else "1") + number[-2:]
    answer = agent.operation(other)
    assert answer.status == agent.messages.OPERATION_STATUS_FAILED and "restarted" in answer.error


def test_tcp_for_the_orchestrator(node_with, agent_of):
    """It speaks no TLS. Nothing but llm-d's calls is there."""
    port = free_port()
    node = node_with("--llm-d-enabled", "true", "--llm-d-listen", str(port))
    job = node.job("train")
    agent = agent_of(node, f"127.0.0.1:{port}")
    agent.done("Snapshot", "train")
    agent.done("Restore", "train")
    job.verify()
    other = agent.channel.unary_unary("/amem.v1.Broker/ListGroups", lambda _: b"", bytes)
    refused(grpc.StatusCode.UNIMPLEMENTED, other, None, timeout=20)
    node.broker.wait_for("can pause and resume every group")


def test_more_connections_than_amemd_serves_are_refused(node_with, agent_of):
    """They use up no more of its descriptors."""
    port = free_port()
    node = node_with("--llm-d-enabled", "true", "--llm-d-listen", str(port))

    def refused_now(connection):
        try:
            return connection.recv(1, socket.MSG_DONTWAIT | socket.MSG_PEEK) == b""
        except BlockingIOError:
            return False
        except ConnectionResetError:
            return True

    flood = [socket.create_connection(("127.0.0.1", port)) for _ in range(100)]
    try:
        eventually(lambda: sum(map(refused_now, flood)) == 36, what="36 connections are refused")
        node.broker.wait_for(f"refuses a connection of llm-d at 127.0.0.1:{flood[64].getsockname()[1]} to 127.0.0.1:{port}: 64 connections")
    finally:
        for connection in flood:
            connection.close()
    eventually(lambda: agent_of(node, f"127.0.0.1:{port}").states() == {}, what="the orchestrator is served again")


def test_a_port_of_another_program(bare_node):
    """Which would share it: the kernel would give each of the two some of the connections."""
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", 0))
        other.listen()
        address = f"127.0.0.1:{other.getsockname()[1]}"
        broker = bare_node.adopt(Broker(bare_node, ("--llm-d-enabled", "true", "--llm-d-listen", address)))
        assert "Address already in use" in broker.wait_for(f"bind {address}: ") and broker.wait() != 0


def test_off_by_default(node_with, agent_of):
    agent = agent_of(node_with())
    refused(grpc.StatusCode.UNIMPLEMENTED, agent.call, "Status")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be other users")
def test_other_users_jobs(node_with, agent_of):
    """By control.sock's rules: who does not operate neither sees nor steers them, and reads no operation on them."""
    node = node_with("--llm-d-enabled", "true")
    node.job("train")
    number = agent_of(node).call("Snapshot", job_id="train").operation_id
    with effective(NOBODY, grp.getgrnam("nogroup").gr_gid):
        stranger = agent_of(node)
    assert stranger.states() == {}
    refused(grpc.StatusCode.NOT_FOUND, stranger.call, "Restore", job_id="train")
    assert "does not know" in stranger.operation(number).error
