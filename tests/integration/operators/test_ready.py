"""GET /ready/GROUP: a router hears what `amemctl ready` says, at that moment."""
import http.client
import random
import re
import signal
import socket
import threading
import urllib.parse

import pytest

from sim_node import eventually
from sim_node.ctl import NOT_FOUND, WRONG_STATE
from sim_node.prometheus import free_port
from sim_node.stage import MIB, Tenant, let_go, start_stage, turns


class Answer:
    def __init__(self, port, path, method="GET"):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        try:
            connection.request(method, path)
            answer = connection.getresponse()
            self.code = answer.status
            self.text = answer.read().decode()
            self.headers = {name.lower(): value for name, value in answer.getheaders()}
        finally:
            connection.close()

    def __repr__(self):
        return f"{self.code} {self.text!r} {self.headers}"


class Ready:
    def __init__(self, port):
        self.port = port

    def __call__(self, name, method="GET"):
        return Answer(self.port, "/ready/" + name, method)


@pytest.fixture
def serving(bare_node):
    """A node whose broker serves metrics, and what asks it whether a group is ready."""
    ready = Ready(free_port())
    bare_node.start_broker("--metrics-listen", str(ready.port))
    yield bare_node, ready
    assert bare_node.broker.alive()


def rank(node, name, number, group="train"):
    """A process with a little memory, so it is a rank."""
    puppet = node.puppet(name, group=group, scope="heap", env={"RANK": number})
    puppet.ask(f"plain {MIB}")
    return puppet


def without_times(text):
    return re.sub(r"since .* \(\d+ s\)", "", text.strip())


def test_it_says_what_amemctl_says(serving):
    node, ready = serving
    train = node.job("train")
    for change, code, status, words in ((None, 200, 0, "group train is ready: running since "),
                                        ("pause", 503, WRONG_STATE, "group train is not ready: paused since "),
                                        ("resume", 200, 0, "group train is ready: running since ")):
        if change:
            node.ctl(change, "train")
        answer = ready("train")
        said = node.ctl.try_("ready", "train", json_output=False)
        assert (answer.code, said.code) == (code, status), (answer, said)
        assert answer.text.startswith(words) and answer.text.count("\n") == 1, answer
        assert without_times(answer.text) == without_times(said.out)
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["content-type"] == "text/plain; charset=utf-8"
        head = ready("train", "HEAD")
        assert (head.code, head.text) == (code, "") and int(head.headers["content-length"]) > len(words)
        assert ready("train?wait").code == code, "it is in no stage"
    train.verify()


def test_a_group_that_pauses_is_not_ready(serving):
    node, ready = serving
    train = node.job("train")
    train.ranks[0].faults("cuMemcpyDtoHAsync:1:hold")
    pause = node.ctl.start("pause", "train")
    pause.wait_phase("save")
    answer = ready("train")
    assert answer.code == 503 and "not ready: pausing (save) since" in answer.text, answer
    train.ranks[0].faults()
    assert pause.finish().code == 0


def test_names(serving):
    node, ready = serving
    node.job("train")
    assert ready("%74rain").code == ready("train%40" + str(node.ctl.group("train")["uid"])).code == 200
    for name, code, words in (("nobody", 404, "there is no group 'nobody'. The groups are 'train'"),
                              ("tr%41in", 404, "there is no group 'trAin'"),
                              ("train%00x", 400, '"train" is not a valid group name'),
                              ("train%0Ax", 400, '"train?x" is not a valid group name'),
                              ("%2e%2e", 400, '".." is not a valid group name'),
                              ("tr%zzain", 400, '"tr%zzain" is not a valid group name'),
                              ("x" * 64, 400, "is not a valid group name"),
                              ("train/x", 400, '"train/x" is not a valid group name'),
                              ("", 400, "which group?"),
                              ("train?x", 400, '"?x" is not known here')):
        answer = ready(name)
        assert answer.code == code and words in answer.text and answer.text.count("\n") == 1, f"{name}: {answer}"
        head = ready(name, "HEAD")
        assert (head.code, head.text) == (code, ""), f"{name}: {head}"
    answer = ready("train", "POST")
    assert answer.code == 405 and answer.headers["allow"] == "GET, HEAD", answer
    assert node.ctl.try_("ready", "nobody").code == NOT_FOUND


def test_a_rank_that_dies(serving):
    """Of a group that runs. The first answer after its death knows it."""
    node, ready = serving
    job = node.job("train")
    for number, each in enumerate(job.ranks):
        assert ready("train").code == 200
        each.kill()
        answer = ready("train")
        assert answer.code == 503 and f"It has lost rank {number} (pid {each.pid})" in answer.text, answer
        assert ready("train?wait").code == 503
        said = node.ctl.try_("ready", "train")
        assert said.code == WRONG_STATE and said.json["lost"].startswith(f"lost rank {number} (pid {each.pid})"), said
        eventually(lambda: "session" not in node.ctl.try_("ready", "train").json["lost"], what="its process has ended")
        rank(node, f"another-{number}", str(7 + number))
        assert ready("train").code == 503, "this is another rank"
        rank(node, f"next-{number}", str(number))
        assert ready("train").code == 200


def test_a_helper_that_ends(serving):
    """It has the launcher's number of the process that has started it, or none."""
    node, ready = serving
    node.job("train")
    for number in ("1", None):
        rank(node, f"helper-{number}", number).kill()
        assert node.ctl.group("train")["rank_count"] == 2
        assert ready("train").code == 200


def test_the_last_rank_dies(serving):
    node, ready = serving
    puppet = rank(node, "rank", "0")
    assert ready("train").code == 200
    puppet.kill()
    answer = ready("train")
    assert answer.code == 404 and "there is no group 'train'" in answer.text, answer


def test_a_rank_that_dies_while_its_group_is_paused(serving):
    """It had no number, and still was a rank: its memory was paused with the others'."""
    node, ready = serving
    ranks = [rank(node, f"rank-{number}", None) for number in range(2)]
    node.ctl("pause", "train")
    ranks[1].kill()
    lost = f"(pid {ranks[1].pid}) while it was paused"
    for state in ("paused", "running"):
        assert node.ctl.state("train") == state
        answer = ready("train")
        assert answer.code == 503 and answer.text.count(lost) == 1, answer
        if state == "paused":
            node.ctl("resume", "train")
    rank(node, "another", None)
    assert ready("train").code == 200


@pytest.mark.next_broker
def test_the_next_amemd_knows_which_ranks_are_missing(bare_node):
    node = bare_node
    port = free_port()
    node.start_broker("--metrics-listen", str(port))
    paused = [rank(node, f"paused-{number}", None, "paused") for number in range(2)]
    node.job("runs").ranks[1].kill()
    node.ctl("pause", "paused")
    paused[1].kill()
    eventually(lambda: node.ctl.group("paused")["rank_count"] == node.ctl.group("runs")["rank_count"] == 1, what="they are gone")
    before = [without_times(Answer(port, f"/ready/{name}").text) for name in ("runs", "paused")]
    node.broker.signal(signal.SIGKILL)
    node.broker.wait()
    port = free_port()
    node.start_broker("--metrics-listen", str(port))
    for name, text in zip(("runs", "paused"), before):
        answer = Answer(port, f"/ready/{name}")
        assert answer.code == 503 and "lost rank" in text and without_times(answer.text) == text, answer
    eventually(lambda: node.ctl.try_("resume", "paused").code == 0, what="its other rank has reconnected")
    assert Answer(port, "/ready/paused").code == 503
    rank(node, "next", "1", "runs")
    rank(node, "another", None, "paused")
    assert Answer(port, "/ready/runs").code == Answer(port, "/ready/paused").code == 200


def test_many_at_once(serving):
    """And clients that never finish their requests, or never read, hold nobody up."""
    node, ready = serving
    node.job("train")
    node.job("rollout")
    node.ctl("pause", "rollout")
    codes = {"train": 200, "rollout": 503, "nobody": 404}
    wrong = []

    def ask(name, method):
        for _ in range(20):
            answer = ready(name, method)
            if answer.code != codes[name]:
                wrong.append(answer)

    with socket.create_connection(("127.0.0.1", ready.port)) as slow:
        slow.sendall(b"GET /ready/train HTTP/1.1\r\n")
        threads = [threading.Thread(target=ask, args=(name, method)) for name in codes for method in ("GET", "HEAD")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
            assert not thread.is_alive()
    assert not wrong
    assert Answer(ready.port, "/metrics").code == 200


# ---- a router ------------------------------------------------------------------------------------------------------------


class Router:
    """Sends requests to servers that `/ready/SERVER?wait` says may get them."""

    def __init__(self, port, servers):
        self.port = port
        self.servers = {server.name: server for server in servers}
        self.sent = {name: 0 for name in self.servers}

    def may_send(self, name):
        return Answer(self.port, f"/ready/{urllib.parse.quote(name)}?wait").code == 200

    def request(self, name):
        """Whether it was sent. It is answered."""
        if not self.may_send(name):
            return False
        self.sent[name] += 1
        self.servers[name].works(60)
        return True


def test_a_router_sends_nothing_to_a_server_whose_rank_has_died(bare_node):
    """Three servers take turns. Those that are whole get all their requests, also while they are paused."""
    node = bare_node
    port = free_port()
    start_stage(node, "--metrics-listen", str(port), policy="demand", grace="100ms", idle="300ms", memory=26 * MIB)
    servers, workers = [], {}
    for name in ("one", "two", "three"):
        servers.append(Tenant(node, name, 12 * MIB, env={"RANK": "0"}))
        if name != "one":
            workers[name] = rank(node, f"{name}-worker", "1", name)
        if name != "three":
            node.ctl("pause", name)
    let_go(node, "one", "two")
    router = Router(port, servers)
    chance = random.Random(7)

    def rounds(alive, count=9):
        """Every server that is whole gets its requests, and no other does."""
        before = dict(router.sent)
        names = list(router.servers)
        waited = 0
        for _ in range(count):
            chance.shuffle(names)
            for name in names:
                paused = Answer(port, f"/ready/{name}").code == 503
                assert router.request(name) == (name in alive), name
                waited += paused and name in alive
        assert all(router.sent[name] - before[name] == (count if name in alive else 0) for name in names)
        assert waited > 0 or len(alive) < 2, "no request has waited for a turn"

    rounds(["one", "two", "three"], 3)
    router.request("one")
    eventually(lambda: turns(node)["two"]["turn"] == "idle", what="two is paused")
    workers["two"].kill()  # while its group is paused
    assert not router.may_send("two")
    rounds(["one", "three"], 3)
    servers[1].works(60)  # somebody else brings it its turn: it runs without its worker
    assert node.ctl.state("two") == "running" and not router.may_send("two")
    router.request("three")
    assert node.ctl.state("three") == "running"
    workers["three"].kill()  # while its group runs
    assert not router.may_send("three")
    rounds(["one"], 3)
    servers[0].puppet.kill()
    assert Answer(port, "/ready/one?wait").code == 404
    rounds([], 1)
