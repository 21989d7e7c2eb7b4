"""amem-llm-d, called with gRPC's Python package as llm-d's orchestrator calls it: a job is a group."""
import contextlib
import grp
import importlib
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys

import pytest

from sim_node import MIB, NOBODY, Child, as_user, eventually
from sim_node.child import processes
from sim_node.prometheus import free_port

grpc = pytest.importorskip("grpc")
pytest.importorskip("google.protobuf")
pytestmark = pytest.mark.skipif(shutil.which("protoc") is None, reason="no protoc here (deploy/deps.sh installs it)")

PROTO = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "proto")
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


class Program(Child):
    """amem-llm-d. `prefix`: makes it another user's, who has a build of their own."""

    def __init__(self, node, *flags, prefix=(), name="amem-llm-d"):
        build = node.build.for_others() if prefix else node.build
        env = node.env(build=build if prefix else None)
        super().__init__(name, [*prefix, build.program("amem-llm-d"), *flags], env, node.log_file(name))
        node.adopt(self)

    def ready(self):
        self.wait_for(" answers llm-d on ")
        return self


@pytest.fixture
def connect(messages):
    """Connects to a place."""
    agents = []

    def connect(target):
        agents.append(Agent(target, messages))
        return agents[-1]

    yield connect
    for agent in agents:
        agent.channel.close()


def place_of(node):
    return f"unix:{node.runtime_dir}/llm-d.sock"


@pytest.fixture
def agent_of(connect):
    """Starts amem-llm-d on a node, and connects to it."""
    def start(node, *flags):
        Program(node, *flags).ready()
        return connect(place_of(node))

    return start


def test_a_job_is_saved_and_restored(node_with, agent_of):
    node = node_with()
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
    node = node_with("--deep-enabled", "true")
    job = node.job("train")
    agent = agent_of(node, "--deep")
    agent.done("Snapshot", "train")
    assert node.ctl.group("train")["deep"] and agent.states() == {"train": "SAVED"}
    agent.done("Restore", "train")
    job.verify()


def test_what_is_refused_and_what_is_done_already(node_with, agent_of):
    node = node_with()
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
    node = node_with()
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


def test_jobs_by_their_names(node_with, agent_of):
    """An address is one; what cannot be a name is refused with what to write."""
    node = node_with()
    node.job("train")
    agent = agent_of(node)
    agent.done("Snapshot", f"train@{os.geteuid()}")
    agent.done("Restore", "train")
    assert "not a valid group name" in refused(grpc.StatusCode.INVALID_ARGUMENT, agent.call, "Snapshot", job_id="../train")
    refused(grpc.StatusCode.INVALID_ARGUMENT, agent.call, "Snapshot", job_id="x" * 5000)


def test_an_operation_of_an_earlier_process_has_failed(node_with, agent_of, connect):
    node = node_with()
    node.job("train")
    first = Program(node).ready()
    agent = connect(place_of(node))
    number = agent.call("Snapshot", job_id="train").operation_id
    agent.wait(number)
    first.signal(signal.SIGTERM)
    assert first.wait() == 0 and not os.path.exists(f"{node.runtime_dir}/llm-d.sock")
    answer = agent_of(node).operation(number)
    assert answer.status == agent.messages.OPERATION_STATUS_FAILED and "restarted" in answer.error


@pytest.mark.parametrize("number", (signal.SIGTERM, signal.SIGINT))
def test_an_end_leaves_what_is_under_way_to_amemd(node_with, connect, number):
    node = node_with()
    job = node.job("train")
    program = Program(node).ready()
    agent = connect(place_of(node))
    job.ranks[0].faults("cuMemUnmap:1:hold")
    agent.call("Snapshot", job_id="train")
    eventually(lambda: agent.states() == {"train": "TRANSITIONING"}, what="the group pauses")
    program.signal(number)
    assert program.wait() == 0
    job.ranks[0].faults()
    eventually(lambda: node.ctl.state("train") == "paused", what="the pause ends")


def test_amemd_is_away(bare_node, agent_of):
    """It says so with what to do, also of an operation under way, and serves again when amemd is back."""
    node = bare_node
    broker = node.start_broker()
    job = node.job("train")
    agent = agent_of(node)
    job.ranks[0].faults("cuMemUnmap:1:hold")
    number = agent.call("Snapshot", job_id="train").operation_id
    eventually(lambda: agent.states() == {"train": "TRANSITIONING"}, what="the group pauses")
    broker.kill()
    for call, fields in (("Status", {}), ("Snapshot", {"job_id": "train"}), ("Restore", {"job_id": "train"})):
        assert "Start it with" in refused(grpc.StatusCode.UNAVAILABLE, agent.call, call, **fields)
    failed = agent.wait(number)
    assert failed.status == agent.messages.OPERATION_STATUS_FAILED and "amemd" in failed.error, failed
    job.ranks[0].faults()
    node.start_broker(name="next amemd")
    eventually(lambda: agent.states().get("train") in ("RUNNING", "SAVED"), what="the next amemd has the job")
    if agent.states()["train"] == "RUNNING":
        agent.done("Snapshot", "train")
    agent.done("Restore", "train")
    job.verify()


def threads_of_calls(program):
    """Two at most wait for calls; each of the others has one."""
    names = []
    for task in os.listdir(f"/proc/{program.pid}/task"):
        with contextlib.suppress(OSError), open(f"/proc/{program.pid}/task/{task}/comm", encoding="utf-8") as file:
            names.append(file.read())
    return sum(name.startswith("grpcpp_sync") for name in names)


def test_an_end_while_amemd_hangs(node_with, connect):
    """It waits for no answer. What a thread has taken up is told what to make of it; gRPC cancels the rest."""
    node = node_with()
    program = Program(node).ready()
    agent = connect(place_of(node))
    assert agent.states() == {}
    node.broker.signal(signal.SIGSTOP)
    try:
        request = agent.messages.StatusRequest()
        call = agent.channel.unary_unary(f"/{SERVICE}/Status", type(request).SerializeToString, bytes)
        wait = [call.future(request, timeout=20) for _ in range(4)]
        eventually(lambda: threads_of_calls(program) >= 4, what="calls wait for amemd")
        program.signal(signal.SIGTERM)
        assert program.wait(4) == 0, "queries take up to 5 s"
        ends = {each.code() for each in wait}
        assert grpc.StatusCode.UNAVAILABLE in ends and ends <= {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}, ends
    finally:
        node.broker.signal(signal.SIGCONT)


def test_tcp_for_the_orchestrator(node_with, connect):
    """It speaks no TLS. Nothing but llm-d's calls and gRPC's health is there."""
    port = free_port()
    node = node_with()
    program = Program(node, "--listen", str(port), "--listen", place_of(node))
    program.wait_for("can pause and resume every group")
    program.ready()
    job = node.job("train")
    agent = connect(f"127.0.0.1:{port}")
    agent.done("Snapshot", "train")
    assert connect(place_of(node)).states() == {"train": "SAVED"}
    agent.done("Restore", "train")
    job.verify()
    other = agent.channel.unary_unary("/amem.v1.Broker/ListGroups", lambda _: b"", bytes)
    refused(grpc.StatusCode.UNIMPLEMENTED, other, None, timeout=20)
    for service in ("", SERVICE):
        health = agent.channel.unary_unary("/grpc.health.v1.Health/Check", lambda name: b"\x0a" + bytes([len(name)]) + name.encode(), bytes)
        assert health(service, timeout=20) == b"\x08\x01"


def ended(connection):
    """The other end has closed the connection."""
    try:
        return connection.recv(1 << 16, socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


def test_more_connections_than_are_served_are_refused(node_with, connect):
    """They use up no more of its descriptors."""
    port = free_port()
    program = Program(node_with(), "--listen", str(port)).ready()
    flood = [socket.create_connection(("127.0.0.1", port)) for _ in range(100)]
    try:
        closed = set()
        eventually(lambda: closed.update(each for each in flood if ended(each)) or len(closed) == 36, what="36 connections are refused")
        program.wait_for(f"refuses a connection of 127.0.0.1:{flood[64].getsockname()[1]} to 127.0.0.1:{port}: 64 connections")
    finally:
        for connection in flood:
            connection.close()
    eventually(lambda: connect(f"127.0.0.1:{port}").states() == {}, what="the orchestrator is served again")


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def literal(text):
    return bytes([len(text)]) + text.encode()


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0) + frame(4, 1, 0)
# Headers of a call whose request never comes.
CALL = frame(1, 4, 1, b"".join(b"\x00" + literal(name) + literal(value) for name, value in (
    (":method", "POST"), (":scheme", "http"), (":path", f"/{SERVICE}/Status"), (":authority", "x"),
    ("content-type", "application/grpc"), ("te", "trailers"))))


@pytest.mark.parametrize("said", (b"", PREFACE[:10], PREFACE, PREFACE + CALL), ids=("nothing", "half", "handshake", "half a call"))
def test_connections_that_say_nothing_end(node_with, connect, said):
    port = free_port()
    program = Program(node_with(), "--listen", str(port), "--silence", "300").ready()
    before = program.descriptors()["socket"]
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(64)]
        for connection in silent:
            connection.sendall(said)
        closed = set()
        # gRPC gives one that does not answer its last ping 20 s more.
        eventually(lambda: closed.update(each for each in silent if ended(each)) or len(closed) == len(silent), deadline=60,
                   what="all have ended")
    eventually(lambda: program.descriptors()["socket"] <= before, what="their descriptors are closed")
    assert connect(f"127.0.0.1:{port}").states() == {}


def test_places_that_cannot_be_listened_on(node_with):
    node = node_with()
    note = os.path.join(node.dir, "note")
    with open(note, "w") as file:
        file.write("kept")
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", 0))
        other.listen()
        # A port that it would share: the kernel would give each of the two some of the connections.
        taken = f"127.0.0.1:{other.getsockname()[1]}"
        for place, status, text in (
                (taken, 1, "Address already in use"), (f"unix:{note}", 1, "is no socket"), (f"unix:{note}/x", 1, "Not a directory"),
                (f"unix:{node.dir}/none/x", 1, "make the directory"), (f"unix:{node.dir}/{'x' * 200}", 2, "characters"), ("unix:", 2, "characters"),
                ("localhost:9001", 2, "no place to listen on"), ("70000", 2, "no place to listen on"), ("0", 2, "no place to listen on"),
                (":9001", 2, "no place to listen on"), ("", 2, "no place to listen on")):
            program = Program(node, "--listen", place, name=f"on {place[:9]}")
            assert program.wait() == status, place
            assert text in program.output() and "cannot serve: --listen: " in program.output(), program.output()
    with open(note) as file:
        assert file.read() == "kept"


def test_one_socket_has_one_process(node_with, connect):
    """Which no other may take, until it has ended: then what it left behind is replaced."""
    node = node_with()
    first = Program(node).ready()
    path = f"{node.runtime_dir}/llm-d.sock"
    assert os.stat(path).st_mode & 0o777 == 0o600
    second = Program(node, name="second")
    assert second.wait() == 1 and f"{path}: another amem-llm-d listens on this socket" in second.output()
    assert connect(place_of(node)).states() == {}
    first.kill()
    assert os.path.exists(path)
    Program(node, name="third").ready()
    assert connect(place_of(node)).states() == {}
    control = Program(node, "--listen", f"unix:{node.runtime_dir}/control.sock", name="fourth")
    assert control.wait() == 1 and "another process listens on this socket" in control.output()
    assert node.ctl.reachable()


def test_amemd_itself_does_not_answer(node_with, connect):
    node = node_with()
    agent = connect(f"unix:{node.runtime_dir}/control.sock")
    refused(grpc.StatusCode.UNIMPLEMENTED, agent.call, "Status")
    assert not os.path.exists(f"{node.runtime_dir}/llm-d.sock")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be other users")
def test_another_users_own_process(node_with, agent_of, connect):
    """It has that user's rights: it neither sees nor steers what is others', and reads no operation on it. Others' sockets are closed to it."""
    node = node_with()
    node.job("train")
    agent = agent_of(node)
    number = agent.call("Snapshot", job_id="train").operation_id
    agent.wait(number)
    folder = os.path.join(node.dir, "nobody")
    os.mkdir(folder)
    os.chown(folder, NOBODY, grp.getgrnam("nogroup").gr_gid)
    prefix = as_user(NOBODY, "nogroup")
    Program(node, "--listen", f"unix:{folder}/llm-d.sock", prefix=prefix, name="nobody's").ready()
    stranger = connect(f"unix:{folder}/llm-d.sock")
    assert stranger.states() == {}
    refused(grpc.StatusCode.NOT_FOUND, stranger.call, "Restore", job_id="train")
    assert "does not know" in stranger.operation(number).error
    opens = subprocess.run([*prefix, "test", "-w", f"{node.runtime_dir}/llm-d.sock"], check=False)
    assert opens.returncode == 1
    here = Program(node, prefix=prefix, name="nobody's here")
    assert here.wait() == 1 and "in which this user may write" in here.output()


# ---- the retired settings llm_d.* of amemd, for one version ----

def started_by(broker):
    """The processes amem-llm-d that amemd has started, and that still run."""
    return [pid for pid, words in processes() if words[0].endswith(b"/amem-llm-d") and str(broker.pid).encode() in words]


def test_amemd_starts_it_while_the_retired_setting_works(bare_node, node_with, connect):
    bare_node.settings["AMEM_SIM_CHECKPOINT"] = "hang"
    port = free_port()
    node = node_with("--llm-d-enabled", "true", "--llm-d-listen", str(port), "--llm-d-deep", "true", "--deep-enabled", "true")
    job = node.job("train")
    agent = connect(f"127.0.0.1:{port}")
    agent.done("Snapshot", "train")
    assert node.ctl.group("train")["deep"]
    agent.done("Restore", "train")
    job.verify()
    assert connect(place_of(node)).states() == {"train": "RUNNING"}
    refused(grpc.StatusCode.UNIMPLEMENTED, connect(f"unix:{node.runtime_dir}/control.sock").call, "Status")
    said = [node.broker.wait_for("llm_d.enabled is set in the command line"), node.broker.wait_for("control.sock does not answer llm-d any more")]
    assert "Run it by systemctl enable --now amem-llm-d" in said[0], said


@pytest.mark.parametrize("number", (signal.SIGTERM, signal.SIGKILL))
def test_it_ends_with_the_amemd_that_has_started_it(bare_node, connect, number):
    broker = bare_node.start_broker("--llm-d-enabled", "true")
    assert connect(place_of(bare_node)).states() == {}
    assert len(started_by(broker)) == 1
    broker.signal(number)
    broker.wait()
    eventually(lambda: not started_by(broker), what="amem-llm-d ends")
    bare_node.start_broker("--llm-d-enabled", "true", name="next amemd")
    assert connect(place_of(bare_node)).states() == {}


def test_an_upgrade_starts_it_again(bare_node, installed, connect):
    bare_node.broker.terminate()
    shutil.copy(bare_node.build.program("amem-llm-d"), os.path.dirname(installed))
    broker = bare_node.start_broker("--llm-d-enabled", "true", program=installed, name="with llm-d")
    [first] = started_by(broker)
    bare_node.ctl("upgrade")
    eventually(lambda: started_by(broker) not in ([], [first]), what="the next amemd has started one")
    assert len(started_by(broker)) == 1
    eventually(lambda: connect(place_of(bare_node)).states() == {}, what="it answers")


def cgroups_alone():
    """Whether amemd can tell owners apart by cgroups here."""
    with open("/proc/self/cgroup", encoding="utf-8") as file:
        return all(line.startswith("0::") for line in file)


@pytest.mark.skipif(not cgroups_alone(), reason="this host has groups of cgroup v1")
def test_no_socket_where_containers_see_it(bare_node, connect):
    """Root in a container is no operator if owners are cgroups, and would be one by it."""
    flags = ("--llm-d-enabled", "true", "--isolation-by", "cgroup")
    broker = bare_node.start_broker(*flags)
    broker.wait_for("in a folder that no job sees")
    assert not started_by(broker) and broker.terminate() == 0
    port = free_port()
    bare_node.start_broker(*flags, "--llm-d-listen", str(port))
    assert connect(f"127.0.0.1:{port}").states() == {}
    assert not os.path.exists(f"{bare_node.runtime_dir}/llm-d.sock")


def test_amemd_serves_on_when_it_cannot_start(bare_node, installed):
    assert bare_node.broker.terminate() == 0
    without = bare_node.start_broker("--llm-d-enabled", "true", program=installed, name="without")
    without.wait_for("Install amem-llm-d and start it")
    assert without.terminate() == 0
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        broker = bare_node.start_broker("--llm-d-enabled", "true", "--llm-d-listen", str(other.getsockname()[1]))
        broker.wait_for("Address already in use")
        broker.wait_for("amem-llm-d has ended with exit status 1")
        assert not started_by(broker) and bare_node.ctl.reachable()
        assert broker.terminate() == 0


# ---- what is installed ----

HERE = os.path.dirname(os.path.abspath(__file__))


def test_the_page_has_every_option(build):
    said = subprocess.run([build.program("amem-llm-d"), "--help"], capture_output=True, text=True, check=True, timeout=20).stdout
    with open(os.path.join(HERE, "..", "amem-llm-d.8.in"), encoding="utf-8") as file:
        page = file.read().replace("\\-", "-")
    options = re.findall(r"(?m)^  (?:-\w,\s*)?(--[a-z-]+)", said)
    assert "--listen" in options and [option for option in options if f"\\fB{option}\\fR" not in page] == []


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")
def test_systemd_understands_the_unit(tmp_path):
    with open(os.path.join(HERE, "..", "amem-llm-d.service.in"), encoding="utf-8") as file:
        text = file.read().replace("@CMAKE_INSTALL_FULL_BINDIR@/amem-llm-d", "/bin/true")
    unit = tmp_path / "amem-llm-d.service"
    unit.write_text(text)
    said = subprocess.run(["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, timeout=60, check=False).stderr
    assert not [line for line in said.splitlines() if "amem-llm-d" in line], said
