"""Who fits: memory that stays while its group is out, memory of others, groups that cannot come in. Nobody waits in silence, and no switch fails."""
import os
import re

import pytest

from sim_node import MIB, eventually
from sim_node.stage import DOES_NOT_FIT, IS_BEFORE, WAITS_FOR, Tenant, await_look, eventually_turns, explained, let_go, next_broker, stage_of, turns

QUICK = {"policy": "demand", "grace": "50ms", "idle": "300ms", "memory": 64 * MIB}


@pytest.fixture
def space(stage):
    """A stage whose GPU has 64 MiB: 1 is the margin, and each process's context takes 2. At the end, no switch has failed."""
    node = None

    def start(*flags, **settings):
        nonlocal node
        node = stage("--pool-size", "160MiB", *flags, **(QUICK | settings))
        return node

    yield start
    assert stage_of(node)["failed_switches"] == 0, "a switch was begun that had to fail"


def has_turn(node, tenant):
    """REQUIRES: it fits."""
    def runs(said):
        assert DOES_NOT_FIT not in said[tenant.name]["note"], said
        return said[tenant.name]["turn"] == "runs"

    tenant.asks()
    eventually_turns(node, runs, f"{tenant.name} has its turn")
    tenant.has_worked()
    tenant.verify()


def in_turns(node, *tenants):
    """REQUIRES: only one of them fits."""
    for tenant in (*tenants, tenants[0]):
        has_turn(node, tenant)
        assert [each.name for each in tenants if each.turn["turn"] == "runs"] == [tenant.name]


def names(note, group):
    return re.search(rf"\b{group}\b", note)


def cannot_come_in(node, tenant, mib, *others):
    """It asks, and `turns` says that it needs so many MiB of GPU 0, and that these others have what it lacks."""
    tenant.asks()
    said = eventually_turns(node, lambda said: DOES_NOT_FIT in said[tenant.name]["note"], f"{tenant.name} is told that it does not fit")
    note = said[tenant.name]["note"]
    assert said[tenant.name]["turn"] == "waits"
    assert "GPU 0" in note and re.search(rf"\b{mib}(\.\d)? MiB", note), note
    assert all(names(note, other) for other in others), note


def works_in_place(node, tenant, calls=5):
    """It works, and the stage does not switch for it."""
    before = stage_of(node)["switches"]
    for _ in range(calls):
        tenant.works()
        explained(node)
    assert stage_of(node)["switches"] == before and tenant.turn["turn"] == "runs"


# ---- the queue -----------------------------------------------------------------------------------------------------------


def test_a_group_that_cannot_come_in_stops_nobody(space):
    """It had the GPU to itself once. Contexts of others have taken a part of its space since."""
    node = space()
    watch = node.ctl.start("watch")
    large = Tenant(node, "large", 58 * MIB)
    node.ctl("pause", "large")
    middle = Tenant(node, "middle", 50 * MIB)
    node.ctl("pause", "middle")
    small = Tenant(node, "small", 20 * MIB)
    let_go(node, "large", "middle")
    cannot_come_in(node, large, 58)
    in_turns(node, middle, small)
    assert large.turn["turn"] == "waits" and DOES_NOT_FIT in large.turn["note"]
    small.puppet.leave()
    large.has_worked()
    assert large.turn["turn"] == "runs" and DOES_NOT_FIT not in large.turn["note"]
    has_turn(node, middle)

    large.puppet.kill()
    events = []
    while not events or (events[-1]["kind"], events[-1]["group"]) != ("rank_left", "large"):
        events.append(watch.json_line())
    assert [each["group"] for each in events if each["kind"] == "error" and DOES_NOT_FIT in each["text"]] == ["large"], "it is said once"
    with open(node.broker.log_path, encoding="utf-8") as log:
        assert len([line for line in log if DOES_NOT_FIT in line and " debug " not in line]) == 1


def test_each_group_that_waits_is_told_for_whom(space):
    node = space()
    third = Tenant(node, "third", 30 * MIB)
    node.ctl("pause", "third")
    second = Tenant(node, "second", 50 * MIB)
    let_go(node, "third")
    node.ctl("pause", "second")
    busy = Tenant(node, "busy", 20 * MIB)
    let_go(node, "second")
    busy.stays_busy()
    second.asks()
    eventually_turns(node, lambda said: WAITS_FOR in said["second"]["note"] and names(said["second"]["note"], "busy"), "who runs is named")
    # It would fit beside the one that runs, and not beside the one that was first.
    third.asks()
    eventually_turns(node, lambda said: IS_BEFORE in said["third"]["note"] and names(said["third"]["note"], "second"), "who is first is named")
    assert (second.turn["turn"], third.turn["turn"]) == ("waits", "waits")
    busy.puppet.ask("loop off")
    for tenant in (second, third):
        tenant.has_worked()
        tenant.verify()


# ---- memory that stays ---------------------------------------------------------------------------------------------------


def of_a_nic(node):
    """Group `fixed`, of whose 40 MiB a NIC has 24, and what ends that."""
    libraries = ":".join([node.build.sim_libraries, os.path.join(node.build.directory, "lib", "rdma")])
    fixed = Tenant(node, "fixed", 16 * MIB, env={"LD_LIBRARY_PATH": libraries})
    address = fixed.puppet.ask(f"address {fixed.more(24 * MIB)}")["address"]
    region = fixed.puppet.ask(f"nic register {address} {24 * MIB} dlvsym")["id"]
    return fixed, lambda: fixed.puppet.ask(f"nic deregister {region}")


def of_a_guest(node):
    """Group `fixed`, of whose 40 MiB a process of another group has 24 open, and what ends that."""
    fixed = Tenant(node, "fixed", 16 * MIB)
    handle = fixed.puppet.ask(f"share {fixed.more(24 * MIB)}")["handle"]
    guest = node.puppet("guest", group="guest", scope="heap", env={"AMEM_STAGE": None})
    opened = guest.ask(f"open {handle} 1")["id"]
    return fixed, lambda: guest.ask(f"free {opened}")


STAYS = pytest.mark.parametrize("with_memory_that_stays", [of_a_nic, of_a_guest])


@STAYS
def test_memory_that_stays_is_its_groups_own(space, with_memory_that_stays):
    node = space()
    fixed, _ends = with_memory_that_stays(node)
    node.ctl("pause", "fixed")
    train = Tenant(node, "train", 30 * MIB)
    let_go(node, "fixed")
    in_turns(node, train, fixed)
    said = turns(node)["fixed"]
    assert (said["needs_bytes"] // MIB, said["stays_bytes"] // MIB) == (40, 24)
    train.stays_busy()
    fixed.asks()
    eventually_turns(node, lambda said: WAITS_FOR in said["fixed"]["note"] and names(said["fixed"]["note"], "train"), "it is told for whom it waits")
    train.puppet.kill()
    fixed.has_worked()
    fixed.verify()


@STAYS
def test_nobody_leaves_for_a_group_that_lacks_what_stays(space, with_memory_that_stays):
    node = space()
    large = Tenant(node, "large", 50 * MIB)
    node.ctl("pause", "large")
    fixed, ends = with_memory_that_stays(node)
    let_go(node, "large")
    cannot_come_in(node, large, 50, "fixed")
    works_in_place(node, fixed)
    ends()
    large.has_worked()
    large.verify()
    in_turns(node, fixed, large)


@pytest.mark.next_broker
@pytest.mark.parametrize("phase, with_memory_that_stays", [("release", of_a_nic), ("load", of_a_guest)])
def test_amemd_killed_in_a_switch_of_memory_that_stays(space, phase, with_memory_that_stays):
    node = space()
    fixed, _ends = with_memory_that_stays(node)
    node.ctl("pause", "fixed")
    train = Tenant(node, "train", 30 * MIB)
    let_go(node, "fixed")
    if phase == "release":
        has_turn(node, fixed)
    comes = fixed if phase == "load" else train
    fixed.puppet.faults("releaseBegins:1:hold" if phase == "release" else "cuMemcpyHtoDAsync:1:hold")
    comes.asks()
    eventually(lambda: node.ctl.group("fixed")["phase"].endswith(phase), what="the switch is in the middle")
    node.broker.kill()
    fixed.puppet.faults()
    next_broker(node, "--pool-size", "160MiB")
    comes.has_worked(40)
    in_turns(node, fixed, train)


# ---- memory of others ----------------------------------------------------------------------------------------------------


def test_nobody_leaves_for_a_group_that_lacks_what_a_group_apart_has(space):
    """A group that uses a GPU outside the stage takes no turns, so all that it has stays."""
    node = space(gpus=2)
    wide = Tenant(node, "wide", 20 * MIB)
    wide.puppet.ask(f"alloc-on 1 {4 * MIB}")
    large = Tenant(node, "large", 36 * MIB)
    node.ctl("pause", "large")
    small = Tenant(node, "small", 30 * MIB)
    let_go(node, "large")
    eventually(lambda: wide.turn["turn"] == "apart", what="it takes no turns")
    grown = wide.more(3 * MIB)
    cannot_come_in(node, large, 36)
    works_in_place(node, small)
    wide.free(grown)
    large.has_worked()
    in_turns(node, small, large)
    wide.verify()


def test_nobody_leaves_for_a_group_that_lacks_what_a_program_without_amem_has(space):
    node = space()
    large = Tenant(node, "large", 50 * MIB)
    node.ctl("pause", "large")
    small = Tenant(node, "small", 30 * MIB)
    let_go(node, "large")
    foreign = node.puppet("foreign", group=None)
    foreign.ask(f"plain {10 * MIB}")
    await_look()
    cannot_come_in(node, large, 50)
    works_in_place(node, small)
    foreign.leave()
    large.has_worked()
    in_turns(node, small, large)


# ---- deep pauses ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def deep(bare_node, space):
    """Two groups. `deep` has this much memory and is out, with nothing on the GPU. The other one, `train`, runs. Each process's context takes
    8 MiB, and a bit more while it is restored."""
    def start(size, others):
        bare_node.settings |= {"AMEM_SIM_CHECKPOINT": "hang", "AMEM_SIM_CONTEXT_BYTES": "8MiB"}
        node = space("--deep-enabled", "true", "--deep-after", "1s")
        group = Tenant(node, "deep", size)
        node.ctl("pause", "deep")
        train = Tenant(node, "train", others)
        let_go(node, "deep")
        eventually(lambda: node.ctl.group("deep")["deep"], what="nothing of it is on the GPU")
        await_look()
        return node, group, train

    return start


def test_nobody_leaves_for_a_deep_group_that_lacks_what_its_restore_takes(deep):
    """Its memory alone would fit."""
    node, group, train = deep(50 * MIB, 30 * MIB)
    cannot_come_in(node, group, 58)
    assert group.turn["needs_bytes"] >= 58 * MIB
    works_in_place(node, train)
    train.puppet.leave()
    group.has_worked()
    group.verify()
    eventually(lambda: group.turn["needs_bytes"] == 50 * MIB, what="it needs what it has")


def test_a_deep_group_gets_its_turn_where_its_restore_fits(deep):
    node, group, train = deep(40 * MIB, 20 * MIB)
    in_turns(node, group, train)
    assert not node.ctl.group("deep")["deep"]
