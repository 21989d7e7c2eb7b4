"""Users who share a node: real processes of three uids beside root's broker, its two sockets and TCP."""
import contextlib
import inspect
import os
import re
import socket
import subprocess

import pytest

from sim_node import as_user, patience, wire
from sim_node.authority import Authority
from sim_node.broker import Broker
from sim_node.child import eventually
from sim_node.ctl import NOT_FOUND, OK, PERMISSION, RESOURCES, UNREACHABLE, USAGE
from sim_node.node import Build, CopiedBuild
from sim_node.prometheus import free_port
from sim_node.user import PYTHON

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be other users")

ALICE, BOB, STRANGER = 65531, 65532, 65533
MEMBERS, OPERATORS = "nogroup", "daemon"  # that every Debian has
MIB = 1 << 20


def member(uid, *more):
    return as_user(uid, MEMBERS, *more)


@pytest.fixture
def shared(bare_node):
    """A broker for everybody in a group, with quotas that tests can reach."""
    def start(*flags, **options):
        bare_node.start_broker("--quotas-sessions", "4", "--quotas-log-lines", "20", *flags,
                               **options)
        bare_node.let_others_in()
        return bare_node

    yield start
    if bare_node.has_broker:
        for child in bare_node.children:
            if child is not bare_node.broker and child.alive():
                child.kill()
        assert bare_node.broker.terminate() == 0


def lines(broker, *words):
    """Its log as far as it has been read, once some line there has all of these words: the reader is another thread."""
    def read():
        with open(broker.log_path) as log:
            return [line for line in log if line.startswith("err: ")]
    if words:
        eventually(lambda: any(all(word in line for word in words) for line in read()), what=f"a line with {words}")
    return read()


def test_each_user_has_groups_of_their_own(shared):
    node = shared()
    hers = node.puppet("alice", 0, prefix=member(ALICE))
    his = node.puppet("bob", 1, prefix=member(BOB))
    hers.ask("alloc 4194304")
    his.ask("alloc 2097152")
    alice = node.ctl.by(member(ALICE))
    assert [group["name"] for group in alice.status()["groups"]] == ["train"]
    alice("pause", "train")
    states = {group["address"]: group["state"] for group in node.ctl.status()["groups"]}
    assert states == {f"train@{ALICE}": "GROUP_STATE_PAUSED", f"train@{BOB}": "GROUP_STATE_RUNNING"}
    assert alice.try_("pause", f"train@{BOB}").code == NOT_FOUND
    which = node.ctl.try_("resume", "train")
    assert which.code == USAGE or which.code == FAILED
    assert f"train@{ALICE}" in which.error and f"train@{BOB}" in which.error
    node.ctl("resume", f"train@{ALICE}")
    assert node.ctl.group(f"train@{ALICE}")["state"] == "GROUP_STATE_RUNNING"
    assert [row["uid"] for row in alice("quotas").json["owners"]] == [ALICE]
    assert {ALICE, BOB} <= {row["uid"] for row in node.ctl("quotas").json["owners"]}
    assert f"uid {ALICE}" in node.ctl("quotas", json_output=False).out


def test_a_build_that_only_root_may_enter(shared, bare_node):
    """As below root's home. What another user runs is a copy: else these tests would depend on where the checkout is."""
    with contextlib.closing(CopiedBuild(bare_node.build)) as private:
        for name in ("amemd", "amem-holder", "amemctl", "amem-puppet"):
            private.program(name)
        os.chmod(private.directory, 0o700)
        with contextlib.closing(Build(private.directory)) as bare_node.build:
            bare_node.settings["LD_LIBRARY_PATH"] = bare_node.build.sim_libraries
            node = shared()
            hers = node.puppet("alice", 0, prefix=member(ALICE))
            hers.ask("alloc 4194304")
            node.ctl.by(member(ALICE))("pause", "train")
            assert node.ctl.group("train")["owner"] == f"uid {ALICE}"
            hers.kill()


def test_who_is_in_no_group_opens_neither_socket(shared):
    node = shared()
    stranger = node.ctl.by(as_user(STRANGER))
    refused = stranger.try_("status")
    assert refused.code == PERMISSION
    assert "control.sock" in refused.error
    code = "import socket,sys; s=socket.socket(socket.AF_UNIX,socket.SOCK_SEQPACKET); s.connect(sys.argv[1])"
    tried = subprocess.run([*as_user(STRANGER), PYTHON, "-c", code, node.runtime_dir + "/session.sock"],
                           capture_output=True, text=True)
    assert "PermissionError" in tried.stderr
    assert os.stat(node.runtime_dir + "/session.sock").st_mode & 0o777 == 0o660


def test_the_operators_group_steers_everybodys_groups(shared):
    node = shared("--access-operators", OPERATORS)
    node.puppet("alice", 0, prefix=member(ALICE)).ask("alloc 2097152")
    bob = node.ctl.by(member(BOB))
    assert bob.try_("pause", "train").code == NOT_FOUND
    operator = node.ctl.by(member(BOB, OPERATORS))
    operator("pause", "train")
    operator("resume", f"train@{ALICE}")
    refused = [line for line in lines(node.broker, "refuses pause to pid") if "refuses pause to pid" in line]
    assert len(refused) == 1 and f"uid {BOB}" in refused[0]


@pytest.mark.add_on("tools")
def test_a_dry_run_counts_segments_by_owner(shared):
    """The pause then does what it said; and its error names others only to operators."""
    node = shared("--pool-size", "64MiB", "--pool-segment", "64MiB")
    for name, device, uid in (("one", 0, ALICE), ("two", 1, BOB)):
        puppet = node.puppet(name, device, group=name, prefix=member(uid))
        block = puppet.ask(f"alloc {6 * MIB}")["id"]
        puppet.ask(f"fill {block} 7")
    bob = node.ctl.by(member(BOB))
    forecast = node.ctl.try_("pause", "one", "--dry-run")
    assert forecast.code == OK and forecast.json["free_bytes"] == 64 * MIB, forecast
    for ctl, keeper in ((node.ctl, f"uid {ALICE} keeps 64"), (bob, "other owners keep 64")):
        forecast = ctl.try_("pause", "two", "--dry-run", json_output=False)
        assert forecast.code == RESOURCES, forecast
        assert "may not fit: the pool has 0 B free" in forecast.out and f"Of the pool, {keeper}.0 MiB" in forecast.out, forecast
        refused = ctl.try_("pause", "two")
        assert refused.code == RESOURCES, refused
        assert f"{keeper} MiB" in refused.error and "pool.size of 128MiB or more" in refused.error, refused
        assert (str(ALICE) in forecast.out + refused.error) == (ctl is node.ctl), refused
    node.ctl("pause", "one")


@pytest.mark.next_broker
def test_the_pool_size_of_an_error_is_enough(shared):
    """Also where another owner takes new segments first, because it has too few."""
    flags = ("--pool-segment", "64MiB", "--quotas-pool", "100%", "--pool-size")
    node = shared(*flags, "64MiB")
    for name, device, uid, mib in (("one", 0, ALICE, 90), ("two", 1, BOB, 6)):
        puppet = node.puppet(name, device, group=name, prefix=member(uid))
        block = puppet.ask(f"alloc {mib * MIB}")["id"]
        puppet.ask(f"fill {block} 7")
    error = node.ctl.try_("pause", "two").error
    [size] = re.findall(r"a pool\.size of (\w+) or more", error)
    node.broker.terminate()
    shared(*flags, size)
    eventually(lambda: {group["name"] for group in node.ctl.status()["groups"]} == {"one", "two"}, what="both groups are back")
    node.ctl("pause", "two")
    node.ctl("pause", "one")


def test_where_everybody_sees_only_owners_steer(shared):
    node = shared("--access-see-all", "true")
    node.puppet("alice", 0, prefix=member(ALICE)).ask("alloc 2097152")
    bob = node.ctl.by(member(BOB))
    assert [group["name"] for group in bob.status()["groups"]] == ["train"]
    refused = bob.try_("pause", "train")
    assert refused.code == PERMISSION
    assert f"belongs to uid {ALICE}" in refused.error


def test_an_unknown_operators_group_ends_the_broker_at_once(bare_node):
    broker = bare_node.adopt(Broker(bare_node, ("--access-operators", "no-such-group")))
    assert broker.wait() == 1
    assert "access.operators: there is no group 'no-such-group'" in broker.output("err")


FLOOD = """
import os, socket, sys, time
kind, path, count = getattr(socket, sys.argv[1]), sys.argv[2], int(sys.argv[3])
open_ = []
for _ in range(count):
    s = socket.socket(socket.AF_UNIX, kind)
    s.connect(path)
    s.settimeout(5)
    open_.append(s)
time.sleep(0.5)
ended = 0
for s in open_:
    s.setblocking(False)
    try:
        ended += not s.recv(100)
    except BlockingIOError:
        pass
    except ConnectionError:
        ended += 1
print(ended, flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("kind, name, most", [("SOCK_SEQPACKET", "session.sock", 4), ("SOCK_STREAM", "control.sock", 320)])
def test_a_flood_of_connections_ends_at_its_senders_quota(shared, kind, name, most):
    node = shared()
    flood = subprocess.Popen([*member(ALICE), PYTHON, "-c", FLOOD, kind, f"{node.runtime_dir}/{name}", "600"],
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert int(flood.stdout.readline()) == 600 - most
        his = node.puppet("bob", 1, prefix=member(BOB))
        his.ask("alloc 2097152")
        node.ctl.by(member(BOB))("pause", "train")
        node.ctl.by(member(BOB))("resume", "train")
        said = [line for line in lines(node.broker, str(ALICE), "refuses") if str(ALICE) in line and "refuses" in line]
        assert 1 <= len(said) <= 20, "each owner's lines are limited"
    finally:
        flood.stdin.close()
        flood.wait(timeout=patience(10))


def test_a_flood_of_refused_requests_does_not_flood_the_log(shared):
    node = shared()
    # With the module's text, as she may not reach its file.
    code = inspect.getsource(wire) + """
import sys
s = Session(sys.argv[1]); s.hello('bad')
for i in range(3000): s.ask(REDEEM, {1: 12345, 2: bytes(16)})
"""
    subprocess.run([*member(ALICE), PYTHON, "-c", code, node.runtime_dir], check=True, timeout=patience(60))
    assert len([line for line in lines(node.broker) if " debug " not in line and str(ALICE) in line or "12345" in line]) <= 21
    his = node.puppet("bob", 1, prefix=member(BOB))
    his.ask("alloc 2097152")
    node.broker.wait_for(f"Its owner is uid {BOB}")  # whose lines are counted apart


def test_devices_are_for_those_who_may_open_their_nodes(shared, bare_node):
    nodes = os.path.join(bare_node.dir, "dev")
    os.mkdir(nodes)
    os.chmod(nodes, 0o755)  # whatever the umask is
    for number, (device, mode) in enumerate([((1, 3), 0o666), ((1, 5), 0o600)]):
        path = f"{nodes}/nvidia{number}"
        try:
            os.mknod(path, 0o020000 | mode, os.makedev(*device))
        except PermissionError:
            pytest.skip("may make no device nodes here")
        os.chmod(path, mode)
        try:
            os.close(os.open(path, os.O_RDWR))
        except PermissionError:
            pytest.skip("device nodes cannot be opened on this file system")
    bare_node.settings["AMEM_SIM_DEV_DIR"] = nodes
    node = shared("--isolation-device-nodes", nodes)
    alice = node.puppet("alice", 0, prefix=member(ALICE))
    alice.ask("alloc 2097152")
    bob = node.puppet("bob", 1, prefix=member(BOB))
    bob.send("alloc 2097152")
    assert bob.failure()
    assert lines(node.broker, "nvidia1", f"uid {BOB}")
    root = node.puppet("root", 1, group="roots")
    root.ask("alloc 2097152")
    # She may open the node of a device that her second process does not use.
    os.chmod(f"{nodes}/nvidia1", 0o666)
    hers = node.puppet("hers", 1, prefix=member(ALICE))
    block = hers.ask("plain 2097152")["id"]
    opener = node.puppet("opener", 0, prefix=member(ALICE))
    opener.ask(f"open {hers.ask(f'share {block}')['handle']} 1")
    os.chmod(f"{nodes}/nvidia1", 0o600)
    late = node.puppet("late", 0, prefix=member(ALICE))
    late.send(f"open {hers.ask(f'share {block}')['handle']} 1")
    assert late.failure()
    assert lines(node.broker, "has not shown that it may open", "nvidia1", f"uid {ALICE}")


def test_sockets_for_every_user_are_refused(bare_node):
    broker = bare_node.adopt(Broker(bare_node, ("--sockets-session-mode", "0666")))
    assert broker.wait() == 2
    assert "opens the socket to every user" in broker.output("err")


# ---- TCP --------------------------------------------------------------------------------------------------------------


def test_operators_elsewhere_need_a_certificate_of_the_nodes_authority(shared, tmp_path):
    authority, other = Authority(tmp_path / "ca"), Authority(tmp_path / "other")
    address = f"localhost:{free_port()}"
    node = shared("--control-listen", address, "--control-tls", authority.issue("node"))
    node.puppet("alice", 0, prefix=member(ALICE)).ask("alloc 2097152")

    def try_(tls, *arguments):
        return node.ctl.try_("--address", address, "--tls", tls, "--timeout", "20s", *arguments)

    operator = authority.issue("operator")
    assert [group["name"] for group in try_(operator, "status").json["groups"]] == ["train"]
    assert try_(operator, "pause", "train").code == OK
    assert try_(operator, "resume", "train").code == OK
    strangers = {"another authority's": other.issue("operator", trusted=authority), "that has run out": authority.issue("old", days=-1)}
    for what, tls in strangers.items():
        refused = try_(tls, "pause", "train")
        assert refused.code == UNREACHABLE, what
        assert "certificates" in refused.error, what
    # Nor does an operator talk to a node that another authority vouches for.
    assert try_(other.issue("misled"), "status").code == UNREACHABLE
    with socket.create_connection(("localhost", int(address.split(":")[1])), timeout=5) as plain:
        plain.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9))
        try:
            while data := plain.recv(100):
                assert data[:1] == b"\x15", "nothing but a TLS alert"
        except ConnectionError:
            pass
    assert node.ctl.state("train") == "running"


def test_tcp_without_certificates_is_refused_at_start(bare_node, tmp_path):
    broker = bare_node.adopt(Broker(bare_node, ("--control-listen", "127.0.0.1:0")))
    assert broker.wait() == 2
    assert "only with mutual TLS" in broker.output("err")
    broker = bare_node.adopt(Broker(bare_node, ("--control-listen", "127.0.0.1:0", "--control-tls", str(tmp_path)), name="again"))
    assert broker.wait() == 1
    assert "ca.crt cannot be read" in broker.output("err")
