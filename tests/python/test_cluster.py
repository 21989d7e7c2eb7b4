"""amem.Cluster: real amemds of two simulated nodes."""
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest

import amem
from sim_node.authority import Authority
from sim_node.node import Build, Node
from sim_node.prometheus import free_port

# Two nodes, their addresses, and an operator's certificates.
Far = tuple[list[Node], list[str], str]


@pytest.fixture
def nodes(build: Build, tmp_path: pathlib.Path) -> Iterator[list[Node]]:
    nodes: list[Node] = []
    for number in range(2):
        (tmp_path / f"node{number}").mkdir()
        nodes.append(Node(build, str(tmp_path / f"node{number}")))
        nodes[-1].start_broker()
    yield nodes
    for node in nodes:
        node.close()


@pytest.fixture
def cluster(nodes: list[Node]) -> Iterator[amem.Cluster]:
    with amem.Cluster([f"unix:{node.runtime_dir}/control.sock" for node in nodes], nodes[0].runtime_dir) as cluster:
        yield cluster


def states(nodes: list[Node], group: str) -> list[str]:
    return [node.ctl.state(group) for node in nodes]


def test_pause_resume_and_swap(nodes: list[Node], cluster: amem.Cluster) -> None:
    jobs = [node.job(name) for node in nodes for name in ("train", "rollout")]
    seen: list[amem.messages.Progress] = []
    last = cluster.pause("rollout", on_progress=seen.append)
    assert len(last) == 2 and all(each.done and each.group == "rollout" for each in last)
    assert len({each.node for each in last}) == 2 and {each.node for each in seen} == {each.node for each in last}
    assert states(nodes, "rollout") == ["paused"] * 2
    assert len(cluster.swap("train", "rollout")) == 4
    assert states(nodes, "train") == ["paused"] * 2 and states(nodes, "rollout") == ["running"] * 2
    cluster.resume("train")
    for job in jobs:
        job.check()


def test_what_one_node_lacks_leaves_the_other_as_it_was(nodes: list[Node], cluster: amem.Cluster) -> None:
    nodes[0].job("train")
    with pytest.raises(amem.NotFoundError, match="node '"):
        cluster.pause("train")
    assert nodes[0].ctl.state("train") == "running"


@pytest.mark.parametrize("nodes_", ("node1:7070", [], [""], [7]))
def test_what_is_no_list_of_nodes(nodes_: Any) -> None:
    with pytest.raises(amem.InvalidArgumentError, match="a list of node addresses"):
        amem.Cluster(nodes_)


# ---- each node's own answers ----


def test_what_each_node_says(nodes: list[Node], cluster: amem.Cluster) -> None:
    nodes[0].job("train")
    assert list(cluster.status()) == list(cluster.nodes)
    assert [len(status.result().devices) for status in cluster.status().values()] == [2, 2]
    assert [[group.name for group in groups.result()] for groups in cluster.groups().values()] == [["train"], []]
    assert [len(ranks.result()) for ranks in cluster.ranks().values()] == [2, 0]
    nodes[1].broker.kill()
    first, second = cluster.groups().values()
    assert [group.name for group in first.value or ()] == ["train"] and first.error is None
    assert isinstance(second.error, amem.UnavailableError) and nodes[1].runtime_dir in second.error.text
    assert isinstance(second, amem.NodeAnswer) and second.value is None
    with pytest.raises(amem.UnavailableError) as caught:
        second.result()
    assert caught.value is second.error


def test_a_file_of_nodes(nodes: list[Node], monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("# both\n" + "".join(f"unix:{node.runtime_dir}/control.sock  # one\n\n" for node in nodes))
    monkeypatch.setenv("AMEM_NODES", f"@{file}")
    for named in (f"@{file}", None):
        with amem.Cluster(named, nodes[0].runtime_dir) as cluster:
            assert len(cluster.status()) == 2
    with pytest.raises(amem.InvalidArgumentError, match="No such file"):
        amem.Cluster("@/nowhere")


# ---- over TCP ----


@pytest.fixture
def far(build: Build, tmp_path: pathlib.Path) -> Iterator[Far]:
    """Two nodes that are reached by mutual TLS: their addresses, and an operator's certificates."""
    authority = Authority(tmp_path / "ca")
    nodes: list[Node] = []
    addresses: list[str] = []
    for number in range(2):
        (tmp_path / f"far{number}").mkdir()
        nodes.append(Node(build, str(tmp_path / f"far{number}")))
        addresses.append(f"localhost:{free_port()}")
        nodes[-1].start_broker("--control-listen", addresses[-1].replace("localhost", "127.0.0.1"),
                               "--control-tls", authority.issue(f"node{number}"))
    yield nodes, addresses, authority.issue("operator")
    for node in nodes:
        node.close()


def test_a_controller_without_a_broker_of_its_own(far: Far, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes, addresses, tls = far
    jobs = [node.job("train") for node in nodes]
    with amem.Cluster(addresses, address=addresses[1], tls=tls) as cluster:
        assert len(cluster.pause("train")) == 2 and states(nodes, "train") == ["paused"] * 2
        assert [len(groups.result()) for groups in cluster.groups().values()] == [1, 1]
        cluster.resume("train")
    monkeypatch.setenv("AMEM_TLS", tls)
    with amem.Broker(address=addresses[0]) as broker:
        assert [group.name for group in broker.groups()] == ["train"]
    for job in jobs:
        job.check()


def test_a_strangers_certificate(far: Far, tmp_path: pathlib.Path) -> None:
    _, addresses, tls = far
    other = Authority(tmp_path / "other").issue("operator")
    with amem.Broker(address=addresses[0], tls=other) as broker, pytest.raises(amem.UnavailableError, match=addresses[0]):
        broker.status()
    with amem.Broker(address="localhost:1", tls=tls) as broker, pytest.raises(amem.UnavailableError, match="localhost:1"):
        broker.status()


def test_what_is_no_address(far: Far, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, addresses, tls = far
    monkeypatch.delenv("AMEM_TLS", raising=False)
    wrong: tuple[tuple[dict[str, Any], str], ...] = (
        ({"address": "localhost", "tls": tls}, "HOST:PORT"), ({"address": addresses[0]}, "mutual TLS"),
        ({"address": addresses[0], "tls": str(tmp_path)}, "ca.crt: No such file"),
        ({"address": addresses[0], "tls": tls, "runtime_dir": "/run/amem"}, "not both"))
    for arguments, said in wrong:
        with pytest.raises(amem.InvalidArgumentError, match=said):
            amem.Broker(**arguments)
