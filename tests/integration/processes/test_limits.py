"""What a caller can make grow: each has a limit, somebody's account pays for it, and others are served meanwhile."""
import contextlib
import grp
import os
import resource
import signal
import time
from contextlib import ExitStack, closing

import pytest

from sim_node import MIB, eventually, wire
from sim_node.calls import Calls, effective

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be other users")

ALICE, BOB, CAROL = 65531, 65532, 65533
OK, RESOURCE_EXHAUSTED = 0, 8
PAUSE = 1
SET_POLICY = 21
DISCARD = 2
TRIM = 39
CALLS = 8  # at a time on a connection


def by(uid):
    return effective(uid, grp.getgrnam("nogroup").gr_gid)


@pytest.fixture
def many_files():
    """This process may have as many connections as a test needs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(20000, hard), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def opened():
    """Connections that end with the test."""
    with ExitStack() as stack:
        yield stack


def session_of(node, uid, group, opened, **options):
    with by(uid):
        session = opened.enter_context(closing(wire.Session(node.runtime_dir)))
        code, text, _ = session.hello(group, **options)
    assert code == OK, text
    return session


def callers(node, uid, opened):
    with by(uid):
        return opened.enter_context(closing(Calls(node.runtime_dir)))


def device_of(node, number=0):
    return bytes.fromhex(node.ctl.devices()[number]["uuid"].removeprefix("GPU-").replace("-", ""))


# ---- the control API --------------------------------------------------------------------------------------------------


def test_lists_that_nobody_reads_take_no_memory(node, opened):
    session = session_of(node, ALICE, "train", opened)
    for device in (device_of(node, 0), device_of(node, 1)):
        for _ in range(700):
            assert session.ask(wire.CREATE, {1: 65536, 2: device, 4: "kv"})[0] == OK
    before = node.broker.rss_bytes()
    for _ in range(13):
        unread = callers(node, ALICE, opened)
        calls = [unread.start("ListAllocations") for _ in range(CALLS)]
        unread.await_answers(calls)
        assert not unread.ended
    assert node.broker.rss_bytes() - before < 12 * MIB
    # And nothing is left out of one that is read after all.
    unread.open_window(calls[0])
    unread.await_(lambda: calls[0] in unread.ended, "the end of the list")
    ids = [allocation[1] for allocation in unread.messages(calls[0])]
    assert len(ids) == 1400 and ids == sorted(set(ids))


def test_an_owner_has_so_many_calls_at_a_time(node, opened):
    hers = [callers(node, ALICE, opened) for _ in range(40)]
    taken = refused = 0
    for connection in hers:
        calls = [connection.start("Watch") for _ in range(CALLS)]
        connection.await_answers(calls)
        taken += len(set(calls) - connection.ended)
        refused += len(connection.ended)
    assert (taken, refused) == (256, 64)
    assert b"uid 65531 has 256 of at most 256 (quotas.calls)" in hers[32].headers[1]
    his = callers(node, BOB, opened)
    call = his.start("Watch")
    his.await_answers([call])
    assert call not in his.ended
    used = {quota["resource"]: quota["used"] for owner in node.ctl("quotas").json["owners"] if owner["uid"] == ALICE
            for quota in owner["quotas"]}
    assert used["calls"] == 256
    hers[0].close()  # what has ended is given back
    again = callers(node, ALICE, opened)

    def served():
        call = again.start("GetStatus")
        again.open_window(call)
        again.await_(lambda: call in again.ended, "the status")
        return call in again.data

    eventually(served, what="she is served again")


def test_calls_of_other_nodes_are_for_operators(node, opened):
    """They are not charged. Hers end before they have said anything."""
    hers = callers(node, ALICE, opened)
    calls = [hers.start("Take", service="amem.v1.Fleet", whole=False) for _ in range(CALLS)]
    hers.await_(lambda: set(calls) <= hers.ended, "refusals")
    assert b"only operators of this node" in hers.headers[calls[0]]


def test_answers_that_nobody_reads_are_charged(node, opened):
    """Of unary calls: who does not read gets no more than quotas.queue has space for."""
    node.broker.terminate()
    node.start_broker("--quotas-queue", "100KiB", name="small")
    for number in range(30):
        session_of(node, ALICE, f"group-{number:03}-{'x' * 50}", opened)
    unread = callers(node, ALICE, opened)
    calls = [unread.start("ListGroups") for _ in range(CALLS)]
    unread.await_answers(calls)
    assert 1 <= len(unread.ended) < CALLS
    assert any(b"quotas.queue" in unread.headers[call] for call in unread.ended)


def test_a_watch_that_is_read_late_says_how_many_events_it_has_missed(node, opened):
    watcher = callers(node, ALICE, opened)
    call = watcher.start("Watch")
    watcher.await_answers([call])

    def come_and_go(group):
        """Three events: the group runs, the rank joins, the rank leaves."""
        with ExitStack() as stack:
            session_of(node, ALICE, group, stack)

    for number in range(900):
        come_and_go(f"g{number}")
    eventually(lambda: not node.ctl.status()["groups"], what="all have gone")
    watcher.open_window(call)
    watcher.await_(lambda: watcher.messages(call)[-1:] and watcher.messages(call)[-1].get(2), "what was kept")
    come_and_go("short")
    watcher.await_(lambda: any(event.get(7) for event in watcher.messages(call)), "the first event after")
    events = watcher.messages(call)
    missed = [event[7] for event in events if event.get(7)]
    assert missed and all(event[6] == 1 for event in events if event.get(7))
    watcher.await_(lambda: watcher.messages(call)[-1][3] == b"rank_left" and watcher.messages(call)[-1][2] == b"short", "the last event")
    assert len(watcher.messages(call)) + sum(missed) == 3 * 901


def test_reflection_takes_few_threads(node, opened):
    before = node.broker.threads()
    refused = 0
    for _ in range(8):
        connection = callers(node, ALICE, opened)
        calls = [connection.start("ServerReflectionInfo", service="grpc.reflection.v1alpha.ServerReflection", whole=False)
                 for _ in range(CALLS)]
        with contextlib.suppress(AssertionError):  # those that are served say nothing before they are asked
            connection.await_(lambda: set(calls) <= connection.ended, "refusals", limit=1)
        refused += len(connection.ended)
    assert refused > 40
    assert node.broker.threads() - before < 20
    assert node.ctl.status()["groups"] == []


def test_connections_of_operators_are_not_others(node, opened, many_files):
    for _ in range(1100):
        opened.enter_context(closing(Calls(node.runtime_dir)))
    hers = callers(node, ALICE, opened)
    call = hers.start("Watch")
    hers.await_answers([call])
    assert call not in hers.ended


# ---- sessions ---------------------------------------------------------------------------------------------------------


def test_policies_of_ever_new_tags_end_at_a_limit(node, opened):
    session = session_of(node, ALICE, "train", opened)
    codes = []
    for number in range(2000):
        code, text, _ = session.ask(SET_POLICY, {1: f"kv_{number}", 2: DISCARD})
        codes.append(code)
    assert codes == [OK] * 1024 + [RESOURCE_EXHAUSTED] * 976
    assert "group 'train'" in text and "1024" in text
    assert session.ask(SET_POLICY, {1: "kv_7", 2: 1})[0] == OK, "of a tag that has one"
    session.close()
    eventually(lambda: node.ctl.group("train") is None, what="it has gone")
    again = session_of(node, ALICE, "train", opened)
    assert again.ask(SET_POLICY, {1: "kv_2000", 2: DISCARD})[0] == OK


def test_policies_are_charged_to_the_owner(node, opened):
    node.broker.terminate()
    node.start_broker("--quotas-policies", "250", name="small")
    answers = []
    for group in range(3):
        session = session_of(node, ALICE, f"train{group}", opened)
        answers += [session.ask(SET_POLICY, {1: f"kv_{number}", 2: DISCARD})[:2] for number in range(100)]
    assert [code for code, _ in answers] == [OK] * 250 + [RESOURCE_EXHAUSTED] * 50
    assert "quotas.policies" in answers[-1][1]
    his = session_of(node, BOB, "train", opened)
    assert his.ask(SET_POLICY, {1: "kv", 2: DISCARD})[0] == OK


def test_few_different_requests_of_a_group_wait(node, opened):
    """And a request is answered at once, however many wait."""
    sessions = [session_of(node, ALICE, "train", opened, rank=number) for number in range(4)]
    tags = [f"tag{number}" for number in range(8)]
    for tag in tags:
        assert sessions[0].ask(wire.CREATE, {1: 65536, 2: device_of(node), 4: tag})[0] == OK

    def request(which):
        """A pause that drops a set of tags of its own, for which the last rank never asks."""
        drops = b"".join(wire.encode({5: tag}) for bit, tag in enumerate(tags) if which >> bit & 1)
        return wire.encode({1: PAUSE, 2: 2_000_000_000}) + drops

    for session in sessions[:3]:
        for which in range(256):
            session.send(wire.GROUP_REQUEST, request(which), seq=1000 + which)
        refused = [session.expect(wire.REPLY) for _ in range(256 - 16)]
        assert {reply[1] for reply in refused} == {RESOURCE_EXHAUSTED}
        assert b"group 'train'" in refused[0][2] and b"16 different" in refused[0][2]
    # What waits already takes others that ask for the same.
    sessions[0].send(wire.GROUP_REQUEST, request(3), seq=9)
    with pytest.raises(TimeoutError):
        sessions[0].socket.settimeout(0.5)
        sessions[0].receive()


def sessions_of(node, uid):
    return next((quota["used"] for owner in node.ctl("quotas").json["owners"] if owner["uid"] == uid
                 for quota in owner["quotas"] if quota["resource"] == "sessions"), 0)


def test_a_reload_changes_quotas(node, opened):
    assert node.broker.terminate() == 0
    path = os.path.join(node.dir, "amemd.toml")

    def allow(sessions):
        with open(path, "w") as file:
            file.write(f"quotas.sessions = {sessions}\n")

    allow(1)
    node.start_broker(config=path, name="reloads")
    session_of(node, ALICE, "first", opened)
    for sessions in (1, 2, 1):
        allow(sessions)
        node.broker.signal(signal.SIGHUP)
        node.broker.wait_for("settings reloaded")
        with by(ALICE), closing(wire.Session(node.runtime_dir)) as session:
            assert session.hung_up() if sessions == 1 else session.hello("second")[0] == OK
        eventually(lambda: sessions_of(node, ALICE) == 1, what="the second session has ended")


def test_an_owner_leaves_sessions_to_others(node, opened, many_files):
    node.broker.terminate()
    node.start_broker("--quotas-sessions", "3000", name="roomy")
    with by(ALICE):
        for _ in range(2500):
            opened.enter_context(closing(wire.Session(node.runtime_dir)))
    eventually(lambda: sessions_of(node, ALICE) > 0, what="they are taken")
    assert sessions_of(node, ALICE) <= 2048
    session_of(node, BOB, "train", opened)


def test_a_process_that_comes_again_and_again_has_so_many_sessions(node):
    """Of each it may still have the pool mapped, as long as it lives."""
    node.broker.terminate()
    node.start_broker("--quotas-sessions", "20", name="small")
    refused = 0
    for _ in range(40):
        with ExitStack() as stack:
            try:
                session = session_of(node, ALICE, "train", stack)
                session.ask(wire.CREATE, {1: 65536, 2: device_of(node), 4: "kv"})
            except ConnectionError:
                refused += 1
    assert refused >= 20
    with ExitStack() as stack:
        session_of(node, BOB, "train", stack)


def test_files_that_wait_with_a_request_are_charged(node, opened):
    node.broker.terminate()
    node.start_broker("--quotas-descriptors", "20", name="small")
    session = session_of(node, ALICE, "train", opened)
    session.send_raw(wire.encode({1: 5, wire.CREATE: {1: 65536, 2: device_of(node), 4: "kv", 6: 1}}), [0] * 30)
    reply = session.expect(wire.REPLY)
    assert reply[1] == RESOURCE_EXHAUSTED and b"quotas.descriptors" in reply[2]


def test_memory_of_a_group_has_so_many_tags(node, opened):
    session = session_of(node, ALICE, "train", opened)
    device = device_of(node)
    codes = [session.ask(wire.CREATE, {1: 65536, 2: device, 4: f"kv_{number}"})[:2] for number in range(1025)]
    assert {code for code, _ in codes[:-1]} == {OK}
    assert codes[-1][0] == RESOURCE_EXHAUSTED and "1024 tags" in codes[-1][1]


def test_an_owners_shortage_trims_others_seldom(node, opened):
    hers = session_of(node, ALICE, "train", opened)
    his = session_of(node, BOB, "train", opened)
    device = device_of(node)
    begun = time.monotonic()
    while time.monotonic() - begun < 3:
        assert hers.ask(wire.CREATE, {1: 1 << 40, 2: device, 4: "kv"})[0] == RESOURCE_EXHAUSTED
    lasted = time.monotonic() - begun
    trims = 0
    his.socket.settimeout(1)
    with contextlib.suppress(TimeoutError):
        while True:
            trims += his.receive()[0] == TRIM
    assert 1 <= trims <= lasted + 1


def test_a_process_that_connects_again_and_again_keeps_no_files_of_the_broker(node):
    with ExitStack() as stack:
        session_of(node, ALICE, "train", stack)
    eventually(lambda: node.ctl.group("train") is None, what="it has gone")
    before = sum(node.broker.descriptors().values())
    for _ in range(300):
        with ExitStack() as stack:
            session_of(node, ALICE, "train", stack)
    eventually(lambda: node.ctl.group("train") is None, what="they have gone")
    eventually(lambda: sum(node.broker.descriptors().values()) < before + 50, what="their files are closed")


def test_memory_that_is_opened_is_charged(node, opened):
    first = session_of(node, ALICE, "train", opened)
    created = wire.decode(first.ask(wire.CREATE, {1: 65536, 2: device_of(node), 4: "kv"})[2][11])

    def used():
        return next(quota["used"] for owner in node.ctl("quotas").json["owners"] if owner["uid"] == ALICE
                    for quota in owner["quotas"] if quota["resource"] == "allocations")

    second = session_of(node, ALICE, "train", opened)
    guest = session_of(node, ALICE, "other", opened)
    for number, session in enumerate((second, guest)):
        for _ in range(2):
            assert session.ask(wire.REDEEM, {1: created[1], 2: created[2]})[0] == OK
            assert used() == 2 + number
    guest.send(wire.FREE, {1: created[1]})
    eventually(lambda: used() == 2, what="what it has closed is given back")
    second.send(wire.FREE, {1: created[1]})
    eventually(lambda: used() == 1, what="what has gone is given back")
