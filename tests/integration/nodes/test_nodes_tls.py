"""Nodes that reach each other by TCP: whom they talk to."""
import socket

import pytest

from sim_node.authority import Authority
from sim_node.broker import Broker
from sim_node.prometheus import free_port
from spread import Nodes


@pytest.fixture
def far(build, tmp_path):
    """Makes two nodes; `files`: the directory of certificates of each."""
    made = []

    def start(*files):
        ports = [free_port() for _ in files]
        nodes = Nodes(build, tmp_path, len(files), lambda number: (
            "--control-listen", f"127.0.0.1:{ports[number]}", "--control-tls", files[number]))
        made.append(nodes)
        return nodes, ",".join(f"localhost:{port}" for port in ports)

    yield start
    for nodes in made:
        nodes.close()


def test_a_port_of_another_program(bare_node, tmp_path):
    """Which would share it: the kernel would give each of the two some of the connections."""
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", 0))
        other.listen()
        address = f"127.0.0.1:{other.getsockname()[1]}"
        files = Authority(tmp_path / "ca").issue("one")
        broker = bare_node.adopt(Broker(bare_node, ("--control-listen", address, "--control-tls", files)))
        broker.wait_for(f"cannot serve the control API on {address}. Check that the port is free")
        assert broker.wait() != 0


def test_nodes_of_one_authority(far, tmp_path):
    authority = Authority(tmp_path / "ca")
    nodes, addresses = far(authority.issue("one"), authority.issue("two"))
    job = nodes.job("train")
    job.ask("loop on")
    for _ in range(3):
        nodes[0].ctl("pause", "train", "--nodes", addresses)
        assert nodes.states("train") == ["paused"] * 2
        # An operator without a node of its own asks any of them.
        nodes[0].ctl("resume", "train", "--address", addresses.split(",")[1], "--tls", authority.dir + "/one", "--nodes", addresses)
    job.ask("loop off")
    job.check()
    listed = nodes[0].ctl("groups", "--tls", authority.dir + "/one", "--nodes", addresses).lines
    assert [line["node"] for line in listed] == addresses.split(",")
    file = tmp_path / "nodes"
    file.write_text("# the two\n" + addresses.replace(",", "\n") + "\n")
    nodes[0].ctl("pause", "train", "--nodes", f"@{file}")
    assert nodes.states("train") == ["paused"] * 2


@pytest.mark.parametrize("kind", ("another authority's", "one that has run out"))
def test_a_strangers_certificate(far, tmp_path, kind):
    authority, other = Authority(tmp_path / "ca"), Authority(tmp_path / "other")
    strange = other.issue("two") if kind.startswith("another") else authority.issue("two", days=-1)
    nodes, addresses = far(authority.issue("one"), strange)
    job = nodes.job("train")
    for lead in (0, 1):
        answer = nodes[lead].ctl.try_("pause", "train", "--nodes", addresses)
        assert answer.code != 0 and f"node '{addresses.split(',')[1 - lead]}'" in answer.error
        assert nodes.states("train") == ["running"] * 2
    job.check()


@pytest.mark.parametrize("kind", ("another authority's", "one that has run out", "none"))
def test_a_stranger_who_knows_the_node_is_refused_and_logged(far, tmp_path, kind):
    authority, other = Authority(tmp_path / "ca"), Authority(tmp_path / "other")
    nodes, addresses = far(authority.issue("one"))
    if kind == "none":
        with socket.create_connection(("localhost", int(addresses.rpartition(":")[2]))) as plain:
            plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
            plain.recv(100)
    else:
        files = other.issue("who", trusted=authority) if kind.startswith("another") else authority.issue("who", days=-1)
        assert nodes[0].ctl.try_("status", "--address", addresses, "--tls", files).code != 0
    nodes[0].broker.wait_for("gRPC: Handshake failed")


def test_a_node_without_certificates_reaches_none(node):
    puppet = node.puppet("train")
    puppet.ask("alloc 2097152")
    answer = node.ctl.try_("pause", "train", "--nodes", "localhost:1")
    assert answer.code != 0 and "Set control.tls" in answer.error
    answer = node.ctl.try_("pause", "train", "--nodes", "localhost")
    assert answer.code != 0 and "is not a valid address of a node" in answer.error
    assert node.ctl.state("train") == "running"


def test_a_list_that_cannot_be_read(node, tmp_path):
    assert "No such file" in node.ctl.try_("pause", "train", "--nodes", "@/nowhere").err
    (tmp_path / "empty").write_text("# none\n")
    assert "no address is in" in node.ctl.try_("status", "--nodes", f"@{tmp_path}/empty").err
