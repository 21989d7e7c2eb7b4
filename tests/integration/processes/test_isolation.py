"""Whatever one peer sends, the broker and the other groups go on: malformed, oversized, foreign, of another user."""
import json
import os
from contextlib import closing

import pytest

from sim_node import NOBODY, as_user, eventually, wire

PHASES = range(2, 10)  # RankPhase, those that a rank answers
OK, INVALID_ARGUMENT, NOT_FOUND, PERMISSION_DENIED, RESOURCE_EXHAUSTED, FAILED_PRECONDITION = 0, 3, 5, 7, 8, 9


@pytest.fixture
def job(node):
    """Another group, which must not notice anything."""
    job = node.job()
    held = node.broker.holding()
    job.ask("loop on")
    yield job
    job.ask("loop off")
    job.check()
    node.ctl("pause", "train")
    node.ctl("resume", "train")
    job.check()
    eventually(lambda: node.broker.holds_at_most(held), what="the broker closed what it got")


def connect(node, group="stranger", **options):
    session = wire.Session(node.runtime_dir)
    if group:
        code, text, _ = session.hello(group, **options)
        assert code == OK, text
    return session


BAD_PACKETS = {
    "no message": b"\xff\xff\xff\xff",
    "text": b"GET / HTTP/1.0\r\n\r\n",
    "empty": wire.encode({}),
    "zeros": bytes(64),
    "cut short": wire.encode({wire.CREATE: {1: 65536, 2: bytes(16), 4: "nccl"}})[:-3],
    "token too long": wire.encode({wire.REDEEM: {1: 1, 2: bytes(40)}}),
    "tag too long": wire.encode({wire.CREATE: {1: 65536, 2: bytes(16), 4: "x" * 500}}),
    "too many devices": wire.encode({wire.CUT_STATUS: {1: 1}})[:-2] + b"\x22\x02\x10\x01" * 300,
    "oversized": wire.encode({wire.HELLO: {3: "g" * 100_000}}),
}


@pytest.mark.parametrize("after_hello", [True, False], ids=["after hello", "at once"])
def test_what_does_not_decode_ends_the_session_that_sent_it(node, job, after_hello):
    for what, packet in BAD_PACKETS.items():
        session = connect(node, "stranger" if after_hello else None)
        session.send_raw(packet)
        assert session.hung_up(), what
        if packet:  # an empty one cannot be told from a peer that hung up
            node.broker.wait_for(f"pid {os.getpid()}) disconnected" if after_hello else f"pid {os.getpid()}")
        session.close()


def test_descriptors_nobody_asked_for_are_closed(node, job):
    session = connect(node)
    for _ in range(20):
        session.send_raw(wire.encode({wire.FREE: {1: 12345}}), [0, 1, 2] * 20)
    code, _, _ = session.ask(wire.REDEEM, {1: 12345, 2: bytes(16)})
    assert code != OK
    session.close()


def test_a_second_hello_ends_the_session(node, job):
    session = connect(node)
    session.send(wire.HELLO, {1: wire.PROTOCOL, 2: "test", 3: "stranger"}, seq=5)
    assert session.hung_up()


def test_another_protocol_is_refused_with_the_reason(node, job):
    session = wire.Session(node.runtime_dir)
    code, text, _ = session.hello("stranger", protocol=999)
    assert code != OK
    assert "999" in text
    assert node.ctl.group("stranger") is None


def test_a_bad_group_name_is_refused(node, job):
    for name in ("", "a b", "../x", "-x", "ü", "x\ny", "x" * 63 + "y"):
        session = wire.Session(node.runtime_dir)
        try:
            code, text, _ = session.hello(name)
            assert code == INVALID_ARGUMENT, (name, text)
        except ConnectionError:
            assert len(name) > 63, name  # does not even decode
        session.close()
    assert [group["name"] for group in node.ctl.status()["groups"]] == ["train"]


def test_messages_before_hello_end_the_session(node, job):
    session = connect(node, None)
    session.send(wire.CREATE, {1: 65536, 2: bytes(16), 4: "nccl"}, seq=1)
    assert session.hung_up()


def device_of(node):
    """A device's 16 bytes."""
    return bytes.fromhex(node.ctl.devices()[0]["uuid"].removeprefix("GPU-").replace("-", ""))


def test_creations_that_make_no_sense(node, job):
    session = connect(node)
    device = device_of(node)
    for fields in ({1: 0, 2: device}, {1: 12345, 2: device}, {1: 65536, 2: bytes(16)},
                   {1: (1 << 64) - 65536, 2: device}, {1: 1 << 50, 2: device}):
        code, text, _ = session.ask(wire.CREATE, {**fields, 4: "nccl"})
        assert code != OK and text, fields
    assert node.ctl.group("stranger")["allocation_count"] == 0
    code, _, reply = session.ask(wire.CREATE, {1: 65536, 2: device, 4: "nccl"})
    assert code == OK
    assert node.ctl.group("stranger")["allocated_bytes"] == 65536
    session.close()


def test_a_ticket_with_a_wrong_token_is_refused(node, job):
    owner = connect(node)
    code, _, reply = owner.ask(wire.CREATE, {1: 65536, 2: device_of(node), 4: "nccl"})
    assert code == OK
    created = wire.decode(reply[11])
    guess = connect(node)
    code, text, _ = guess.ask(wire.REDEEM, {1: created[1], 2: bytes(16)})
    assert code in (PERMISSION_DENIED, NOT_FOUND), text
    assert guess.ask(wire.REDEEM, {1: created[1], 2: created[2]})[0] == OK
    owner.close()
    guess.close()


def test_a_ticket_of_another_group_needs_its_token_too(node, job):
    owner = connect(node, "stranger")
    _, _, reply = owner.ask(wire.CREATE, {1: 65536, 2: device_of(node), 4: "nccl"})
    created = wire.decode(reply[11])
    guest = connect(node, "guests")
    code, text, _ = guest.ask(wire.REDEEM, {1: created[1], 2: bytes(16)})
    assert code == PERMISSION_DENIED, text
    assert guest.ask(wire.REDEEM, {1: created[1], 2: created[2]})[0] == OK
    assert [each["guest"] for each in node.ctl.group("stranger")["guests"]] == ["guests"]
    owner.close()
    guest.close()


def test_answers_to_questions_nobody_asked(node, job):
    session = connect(node)
    for phase in PHASES:
        session.send(wire.PHASE_DONE, {1: 1, 2: phase})
        session.send(wire.PHASE_DONE, {1: (1 << 64) - 1, 2: phase, 3: 13, 4: "no"})
    session.send(wire.CUT_STATUS, {1: 7, 2: 3})
    session.send(wire.FREE, {1: 1})  # another group's, if anybody's
    session.send(wire.PIN, {1: 1})
    assert session.ask(wire.REDEEM, {1: 1, 2: bytes(16)})[0] != OK
    assert node.ctl.state("stranger") == "running"
    assert node.ctl.group("train")["pinned_bytes"] == 0
    session.close()


def test_an_answer_that_no_rank_can_give_ends_the_session(node, job):
    for phase in (0, 1, 10, 99):
        session = connect(node)
        session.send(wire.PHASE_DONE, {1: 1, 2: phase})
        assert session.hung_up(), phase
        session.close()


def test_a_group_request_that_makes_no_sense(node, job):
    session = connect(node)
    code, text, _ = session.ask(wire.GROUP_REQUEST, {1: 9})
    assert code == INVALID_ARGUMENT, text
    session.close()


def test_many_sessions(node, job):
    sessions = [connect(node) for _ in range(100)]
    assert node.ctl.group("stranger")["rank_count"] == 100
    for session in sessions:
        session.close()
    eventually(lambda: node.ctl.group("stranger") is None, what="the sessions are gone")


def test_a_rank_that_reads_nothing_does_not_block_the_broker(node, job):
    deaf = connect(node)
    for _ in range(2000):
        deaf.send(wire.REDEEM, {1: 1, 2: bytes(16)}, seq=1)
    node.ctl("status")
    deaf.close()


ANSWERED = {
    "creations on no device": (wire.CREATE, {1: 65536, 2: bytes(16), 4: "nccl"}),
    "creations of a size that cannot be": (wire.CREATE, {1: 12345, 2: None, 4: "nccl"}),
    "wrong tickets": (wire.REDEEM, {1: 1, 2: bytes(16)}),
    "requests that make no sense": (wire.GROUP_REQUEST, {1: 9}),
    "requests for tags that nobody has": (wire.GROUP_REQUEST, {1: 1, 3: "nothing"}),
    "requests for what is so already": (wire.GROUP_REQUEST, {1: 2}),
    "requests that wait for another rank": (wire.GROUP_REQUEST, {1: 1}),
}
MOST_ANSWERS = 4096  # that the broker keeps for a rank
IN_THE_SOCKET = 4096  # more than the kernel holds beside them


@pytest.mark.parametrize("what", ANSWERED)
def test_a_rank_that_asks_for_ever_and_reads_nothing_is_disconnected(node, job, what):
    body, fields = ANSWERED[what]
    fields = {number: device_of(node) if value is None else value for number, value in fields.items()}
    before = node.broker.peak_bytes()
    asked = 0
    with closing(connect(node)), closing(connect(node)) as deaf:  # the first is whom requests wait for
        with pytest.raises(ConnectionError):
            while asked < 2 * (MOST_ANSWERS + IN_THE_SOCKET):
                deaf.send(body, fields, seq=7)
                asked += 1
    assert asked > MOST_ANSWERS
    node.broker.wait_for(f"disconnected: it does not read: more than {MOST_ANSWERS} answers to its requests")
    assert node.broker.peak_bytes() - before < 80 << 20


# ---- users ----

def in_process_of(uid, work):
    """Runs work() in a child process of that user; what it returns, by way of JSON."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            os.write(writer, json.dumps(work()).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return json.loads(text)


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")


@needs_root
def test_nobody_joins_another_users_group(node, job):
    code, text = in_process_of(NOBODY, lambda: wire.Session(node.runtime_dir).hello("train")[:2])
    assert code == OK, text
    node.broker.wait_for(f"group 'train' has begun. Its owner is uid {NOBODY}")
    eventually(lambda: [group["rank_count"] for group in node.ctl.status()["groups"]] == [2], what="it has gone")


@needs_root
def test_another_user_has_groups_of_its_own(node, job):
    def joined():
        session = wire.Session(node.runtime_dir)
        answer = session.hello("other")[:2]
        session.ask(wire.REDEEM, {1: 1, 2: bytes(16)})
        return answer

    code, text = in_process_of(NOBODY, joined)
    assert code == OK, text


@needs_root
def test_memory_is_not_shared_with_another_user(node, job):
    """With the right token, which is passed on easily."""
    owner = connect(node, "stranger")
    _, _, reply = owner.ask(wire.CREATE, {1: 65536, 2: device_of(node), 4: "nccl"})
    created = wire.decode(reply[11])

    def redeem():
        session = wire.Session(node.runtime_dir)
        session.hello("thieves")
        return session.ask(wire.REDEEM, {1: created[1], 2: created[2]})[:2]

    code, text = in_process_of(NOBODY, redeem)
    assert code == NOT_FOUND
    assert "does not exist" in text and str(os.geteuid()) not in text.split(), "nothing is told of it"
    node.broker.wait_for(f"belongs to uid {os.geteuid()}, but this rank belongs to uid {NOBODY}")
    assert node.ctl.group("stranger")["guests"] == []
    owner.close()


@needs_root
def test_another_user_may_not_steer(node, job):
    refused = node.ctl.by(as_user(NOBODY)).try_("pause", "train")
    assert refused.code == 4, refused
    assert node.ctl.state("train") == "running"


# ---- operators ----

def test_unknown_group(node, job):
    for arguments in (("pause", "nobody"), ("resume", "nobody"), ("swap", "train", "nobody"),
                      ("swap", "nobody", "train"), ("policy", "nobody", "nccl", "keep")):
        answer = node.ctl.try_(*arguments)
        assert answer.code == 4, answer
        assert "nobody" in answer.error
        assert node.ctl.state("train") == "running"


def test_swap_of_a_group_with_itself(node, job):
    assert node.ctl.try_("swap", "train", "train").code in (2, 5)
    assert node.ctl.state("train") == "running"
