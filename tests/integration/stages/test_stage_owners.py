"""A stage of several users: who may use it, what one of them can take from the others, and what the others are told."""
import os
import re
import time

import pytest

from sim_node import MIB, as_user, eventually, patience
from sim_node.calls import Calls, effective
from sim_node.ctl import NOT_FOUND, PERMISSION
from sim_node.stage import DOES_NOT_FIT, HAS_FAILED, WAITS_FOR, Lazy, Tenant, await_look, eventually_turns, let_go, turns

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be other users")

ALICE, BOB = 65531, 65532
MEMBERS, TEAM = "nogroup", "daemon"  # that every Debian has
ALONE = {"policy": "demand", "start": "alone", "start_idle": "500ms", "idle": "300ms", "grace": "50ms"}
BESIDE = {"policy": "demand", "start": "beside", "idle": "300ms", "grace": "50ms"}


def member(uid, *more):
    return as_user(uid, MEMBERS, *more)


@pytest.fixture
def shared(stage):
    """A stage of root's broker, whose GPU has 64 MiB, for everybody in a group."""
    def start(**settings):
        node = stage("--pool-size", "256MiB", "--quotas-pool", "100%", **{"memory": 64 * MIB, **settings})
        node.let_others_in()
        return node

    return start


def seen_by(node, uid):
    """What `amemctl turns` says to this user of each group."""
    [stage] = node.ctl.by(member(uid))("turns").json["stages"]
    return {each["group"]: each for each in stage["groups"]}


# ---- who may use it ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{"users": [str(ALICE)]}, {"users": ["nobody", ALICE]}, {"groups": [TEAM]}, {"users": ["nobody"], "groups": [TEAM]}])
def test_only_its_users_may_use_a_stage(shared, settings):
    node = shared(**ALONE, **settings)
    Lazy(node, "hers", prefix=member(ALICE, *settings.get("groups", []))).is_at("starts")

    bob = node.ctl.by(member(BOB))
    starts = bob.try_("run", "--group", "his", "--required", "--timeout", "10s", "--", "true")
    assert starts.code == PERMISSION and "stage 'night'" in starts.error, starts
    his = node.puppet("his", group="his", scope="heap", prefix=member(BOB))
    assert his.ask(f"plain {MIB}")["id"], "a group outside the stage waits for nobody"
    joins = bob.try_("stage", "his", "night")
    assert joins.code == PERMISSION and "stage 'night'" in joins.error, joins
    assert list(turns(node)) == ["hers"] and node.ctl.group("his")["stage"] == ""


# ---- first turns that nobody uses ----------------------------------------------------------------------------------------


def train_and_stranger(node):
    """Root's group `train`, and a program of another user, who has no GPU, in its first turn."""
    train = Tenant(node, "train", 20 * MIB)
    eventually(lambda: train.turn["turn"] == "runs", what="its first turn has ended")
    stranger = Lazy(node, "stranger", prefix=member(ALICE)).is_at("starts")
    assert train.turn["turn"] == "idle"
    return train, stranger


def test_a_first_turn_without_a_rank_ends_soon_if_another_owner_waits(shared):
    """If only its own owner's groups do, there is more time."""
    node = shared(**ALONE, start_limit="1h", start_limit_shared="1s")
    train, stranger = train_and_stranger(node)
    Lazy(node, "another", prefix=member(ALICE)).is_at("waits")
    time.sleep(patience(1.5))
    assert stranger.turn["turn"] == "starts"
    train.works()
    stranger.go()
    assert stranger.ask(f"plain {MIB}", 40)["id"], "it gets another first turn"


@pytest.mark.parametrize("command", [["pause", "stranger@{}"], ["lease", "stranger@{}", "--yield"]])
def test_an_operator_ends_a_first_turn_of_anybody(shared, command):
    node = shared(**ALONE)
    train, stranger = train_and_stranger(node)
    command = [word.format(ALICE) for word in command]
    train.asks()
    said = eventually_turns(node, lambda said: WAITS_FOR in (note := said["train"]["note"]) and "stranger" in note, "the operator sees for whom it waits")
    assert said["stranger"]["pids"] == [stranger.pid]
    assert str(stranger.pid) in node.ctl("turns", json_output=False).out
    assert node.ctl.by(member(BOB)).try_(*command).code == NOT_FOUND
    assert stranger.turn["turn"] == "starts"
    node.ctl(*command)
    train.has_worked()


def test_a_group_that_only_starts_is_its_owners(shared):
    node = shared(**ALONE)
    hers = Lazy(node, "hers", prefix=member(ALICE)).is_at("starts")
    bob, alice = node.ctl.by(member(BOB)), node.ctl.by(member(ALICE))
    address = f"hers@{ALICE}"
    for command in (["pause", address], ["ready", address], ["lease", address, "--yield"],
                    ["stage", address, "none"], ["stage", address, "night", "--priority", "3"]):
        assert bob.try_(*command).code == NOT_FOUND, command
    assert bob("groups").json["groups"] == [] and seen_by(node, BOB) == {}
    assert [group["name"] for group in alice("groups").json["groups"]] == ["hers"]
    assert seen_by(node, ALICE)["hers"]["pids"] == [hers.pid]
    alice("lease", "hers", "--yield")
    hers.is_at("idle")


def test_many_starts_of_one_user_refuse_no_other_ones(shared):
    node = shared(**ALONE, start_limit="1h", start_limit_shared="1s")
    with effective(ALICE, 65534):
        callers = [Calls(node.runtime_dir) for _ in range(38)]
    calls = [(caller, caller.start("Start", {1: f"start{i}-{j}", 2: "night"})) for i, caller in enumerate(callers) for j in range(8)]
    assert len(calls) > 300
    eventually(lambda: len(turns(node)) >= 100, what="many of them wait")
    his = Lazy(node, "his", prefix=member(BOB), flags=["--required"])
    eventually(lambda: his.turn["turn"] in ("waits", "starts"), what="he has a place")
    for caller in callers:
        caller.close()
    his.is_at("starts").go()
    assert his.ask(f"plain {MIB}")["id"]


def test_who_starts_many_groups_waits_for_others_in_between(shared):
    node = shared(**ALONE, start_limit="1h", start_limit_shared="1s")
    hers = [Lazy(node, f"hers{i}", prefix=member(ALICE)).is_at("waits" if i else "starts") for i in range(5)]
    Lazy(node, "his", prefix=member(BOB)).is_at("starts").go()
    assert [each.turn["turn"] for each in hers].count("waits") >= 3


# ---- what an owner sets --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["its owner", "an operator"])
@pytest.mark.parametrize("wish", [["--priority", "100"], ["--longest-wait", "10m"]])
def test_who_comes_first(shared, wish, by):
    """What an owner sets moves the owner's groups alone. (One group may come before those with a longest wait: `first`.)"""
    node = shared(policy="lease", max_hold="1m")
    ctl = {"first": node.ctl.by(member(BOB)), "his": node.ctl.by(member(BOB)), "hers": node.ctl.by(member(ALICE))}
    for name in ctl:
        Tenant(node, name, 40 * MIB, prefix=member(ALICE if name == "hers" else BOB))
        node.ctl("pause", name)
    Tenant(node, "train", 40 * MIB)
    let_go(node, *ctl)
    (ctl["hers"] if by == "its owner" else node.ctl)("stage", "hers", *wish)
    node.ctl("lease", "train")
    leases = []
    for name in ctl:
        leases.append(ctl[name].start("lease", name, "--timeout", "30s"))
        eventually(lambda name=name: turns(node)[name]["turn"] == "waits", what=f"{name} waits")
    order, runs = [], "train"
    while len(order) < len(ctl):
        node.ctl("lease", runs, "--yield")
        [runs] = eventually(lambda: [name for name in ctl if name not in order and turns(node)[name]["turn"] == "runs"], what="the next one has its turn")
        order.append(runs)
    assert all(lease.finish().code == 0 for lease in leases)
    assert (order.index("hers") < order.index("his")) == (by == "an operator"), order


def test_a_weight_of_its_owner_takes_no_time_of_others(shared):
    node = shared(policy="slice", slice="1s", idle="1s")
    hers = Tenant(node, "hers", 40 * MIB, prefix=member(ALICE))
    node.ctl("pause", "hers")
    his = Tenant(node, "his", 40 * MIB, prefix=member(BOB))
    let_go(node, "hers")
    node.ctl.by(member(ALICE))("stage", "hers", "--weight", "100")
    hers.works()
    hers.stays_busy()
    his.works()  # else after 100 s


def test_a_longest_wait_of_its_owner_refuses_nobody_elses_start(shared):
    node = shared(**(ALONE | {"policy": "slice", "slice": "10s"}))
    secret = Tenant(node, "secret", 20 * MIB, prefix=member(ALICE))
    eventually(lambda: secret.turn["turn"] == "runs", what="its first turn has ended")
    node.ctl.by(member(ALICE))("stage", "secret", "--longest-wait", "1s")
    his = Lazy(node, "his", prefix=member(BOB), flags=["--required"]).is_at("starts")
    his.go()
    assert his.ask(f"plain {50 * MIB}")["id"]


# ---- what is told to whom ------------------------------------------------------------------------------------------------


def test_texts_name_no_group_of_another_owner(shared):
    """Except to operators."""
    node = shared(**BESIDE)
    his = Tenant(node, "his", 40 * MIB, prefix=member(BOB))
    node.ctl("pause", "his")
    secret = Tenant(node, "secret", 30 * MIB, prefix=member(ALICE))
    let_go(node, "his")
    secret.stays_busy()
    bob = node.ctl.by(member(BOB))
    watch = bob.start("watch")
    his.asks()
    said = []

    def hears(reason):
        seen = eventually(lambda: (mine := seen_by(node, BOB)["his"]) and reason in mine["note"] and mine, what=f"he is told: {reason}")
        for json_output in (True, False):
            said.extend(bob.try_(*command, json_output=json_output) for command in (
                ["turns"], ["groups"], ["history"], ["ready", "his"], ["resume", "his"], ["stage", "his", "--longest-wait", "1s"]))
        return seen

    assert hears(WAITS_FOR)["turn"] == "waits"
    eventually(lambda: "secret" in turns(node)["his"]["note"], what="an operator sees who runs")
    node.puppet("hidden", group="hidden", scope="heap", prefix=member(ALICE), env={"AMEM_STAGE": None}).ask(f"plain {20 * MIB}")
    await_look()
    assert hears(DOES_NOT_FIT)["turn"] == "waits"
    secret.puppet.kill()  # he is not told of that either
    his.puppet.kill()
    while (event := watch.json_line())["kind"] != "rank_left":
        pass
    watch.kill()
    said.append(watch.output("out"))
    assert all(word not in str(each) for word in ("secret", "hidden") for each in said)


def test_the_error_of_a_switch_is_for_those_who_may_see_its_groups(shared):
    """Also once one of these has ended."""
    node = shared(**BESIDE)
    his = Tenant(node, "his", 40 * MIB, prefix=member(BOB))
    node.ctl("pause", "his")
    secret = Tenant(node, "secret", 30 * MIB)
    let_go(node, "his")
    secret.puppet.lose_device()
    his.asks()
    eventually(lambda: his.turn["failures"] >= 2, what="the switch has failed twice")
    assert "secret" in his.turn["note"], "an operator sees why"
    roots = re.compile(rf"secret|\b{secret.puppet.pid}\b")

    def reads():
        note = seen_by(node, BOB)["his"]["note"]
        assert not roots.search(note), note
        return note

    assert HAS_FAILED in reads()
    secret.puppet.kill()
    eventually(lambda: list(turns(node)) == ["his"], what="root's group has ended")
    assert HAS_FAILED in reads()
    eventually(lambda: not reads(), what="his group comes in")
