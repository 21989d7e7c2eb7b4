"""Memory of one group that ranks of another have opened, by interprocess handle and by descriptor, while both run."""
import pytest

from sim_node import eventually
from sim_node.ctl import WRONG_STATE
from sim_node.footprint import Footprint

LAZY = 1  # CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
SIZE = 3000000
ROUNDED = 3014656  # a multiple of the devices' granularity

LONG = ("--deadlines-guests", "60s")
SHORT = ("--deadlines-guests", "100ms")


def two(node, scope="heap", guest_scope=None, device=0):
    """A rank of train and one of rollout. With one scope for both their memory is the program's; else it is NCCL's."""
    env = {} if guest_scope else {"AMEM_MODULES": "libnccl"}
    return (node.puppet("owner", 0, scope=scope, env=env),
            node.puppet("guest", device, group="rollout", scope=guest_scope or scope, env=env))


def open_ipc(owner, guest, block):
    return guest.ask(f"open {owner.ask(f'share {block}')['handle']} {LAZY}")["id"]


def open_descriptor(node, owner, guest, block):
    owner.ask(f"offer {block} {node.dir}")
    return guest.ask(f"take {node.dir} {ROUNDED}")["id"]


def block(owner, seed, kind="plain"):
    mine = owner.ask(f"{kind} {ROUNDED}")["id"]
    owner.ask(f"fill {mine} {seed}")
    return mine


def used(node, device=0):
    return node.ctl.devices()[device]["used_bytes"]


def swap(node, out, into, *options):
    return node.ctl("swap", out, into, *options)


@pytest.mark.parametrize("way", ["ipc", "descriptor"])
def test_a_hundred_times_between_swaps(node_with, way):
    """As a trainer hands weights to an engine: opened, read and closed, then the groups take turns."""
    node = node_with(*LONG)
    owner, guest = two(node)
    weights = block(owner, 1, "plain" if way == "ipc" else "alloc")
    cache = block(guest, 2)
    other = block(owner, 3)
    node.ctl("pause", "rollout")
    node.ctl("resume", "rollout")
    before = {device["uuid"]: device["used_bytes"] for device in node.ctl.devices()}
    footprints = [Footprint(node.broker)]
    for cycle in range(1, 101):
        theirs = open_ipc(owner, guest, weights) if way == "ipc" else open_descriptor(node, owner, guest, weights)
        guest.ask(f"verify {theirs} {cycle}")
        guest.ask(f"fill {theirs} {cycle + 1}")
        guest.ask(f"free {theirs}")
        owner.ask(f"verify {weights} {cycle + 1}")
        if cycle % 5 == 0:
            node.ctl("pause", "rollout")
            swap(node, "train", "rollout")
            guest.ask(f"verify {cache} 2")
            swap(node, "rollout", "train")
            owner.ask(f"verify {weights} {cycle + 1}")
            owner.ask(f"verify {other} 3")
            node.ctl("resume", "rollout")
        if cycle == 10:
            footprints += [Footprint(owner), Footprint(guest)]
    for footprint in footprints:
        footprint.check()
    assert {device["uuid"]: device["used_bytes"] for device in node.ctl.devices()} == before
    assert node.ctl.group("train")["guests"] == [] and node.ctl.group("rollout")["opened"] == []


@pytest.mark.parametrize("way", ["ipc", "descriptor"])
@pytest.mark.parametrize("scopes", [("heap", "nccl"), ("nccl", "heap"), ("heap", "regions")], ids=" to ".join)
def test_a_pause_of_each_while_it_is_open(node_with, scopes, way):
    node = node_with(*SHORT)
    owner, guest = two(node, *scopes, device=1)
    kind = "plain" if way == "ipc" else "alloc"
    weights = block(owner, 1, kind)
    if way == "ipc":
        theirs = open_ipc(owner, guest, weights)
    else:
        owner.ask(f"offer {weights} {node.dir}")
        theirs = guest.ask(f"take {node.dir} {ROUNDED}")["id"]
    at = guest.ask(f"address {theirs}")["address"]
    contexts = [node.CONTEXT_BYTES] * 2
    for cycle in range(2):
        answer = node.ctl("pause", "rollout")
        assert answer.json["guests"] == []
        owner.ask(f"fill {weights} {10 + cycle}")  # while the guest is paused
        answer = node.ctl("pause", "train")
        assert [(each["guest"], each["pid"], each["paused"]) for each in answer.json["guests"]] == [
            ("rollout", guest.pid, True)]
        assert used(node, 0) == contexts[0] + ROUNDED or scopes[0] == "nccl"
        node.ctl("resume", "rollout")
        assert guest.ask(f"address {theirs}")["address"] == at
        guest.ask(f"verify {theirs} {10 + cycle}")  # while its owner is paused
        guest.ask(f"fill {theirs} {20 + cycle}")
        node.ctl("resume", "train")
        owner.ask(f"verify {weights} {20 + cycle}")
    guest.ask(f"free {theirs}")
    eventually(lambda: node.ctl.group("train")["guests"] == [])
    node.ctl("pause", "train")
    node.ctl("pause", "rollout")
    assert [used(node, device) for device in (0, 1)] == contexts
    node.ctl("resume", "train")
    owner.ask(f"verify {weights} 21")


def test_a_pause_waits_while_the_owner_runs(node_with):
    node = node_with(*LONG)
    owner, guest = two(node)
    weights = block(owner, 1)
    theirs = open_ipc(owner, guest, weights)
    pause = node.ctl.start("pause", "train")
    pause.wait_phase("guests")
    owner.ask(f"fill {weights} 2")  # its gate is open, or this would wait
    guest.ask(f"verify {theirs} 2")
    guest.ask(f"free {theirs}")
    assert pause.finish().code == 0
    assert used(node) == 2 * node.CONTEXT_BYTES
    node.ctl("resume", "train")
    owner.ask(f"verify {weights} 2")


def test_refused(node_with):
    node = node_with(*SHORT)
    owner, guest = two(node)
    weights = block(owner, 1)
    theirs = open_ipc(owner, guest, weights)
    for arguments in (("pause", "train", "--guests", "refuse"), ("swap", "train", "rollout", "--guests", "refuse")):
        if arguments[0] == "swap":
            node.ctl("pause", "rollout")
        refused = node.ctl.try_(*arguments)
        assert refused.code == WRONG_STATE
        for part in (f"(pid {guest.pid})", "group 'rollout'", "2.9 MiB of tag 'heap' open", "the group is running"):
            assert part in refused.error, refused
        assert node.ctl.state("train") == "running"
    node.ctl("resume", "rollout")
    guest.ask(f"verify {theirs} 1")
    owner.ask(f"verify {weights} 1")


def test_what_people_are_shown(node_with):
    node = node_with(*SHORT)
    owner, guest = two(node)
    theirs = open_ipc(owner, guest, block(owner, 1))
    for command in ("groups", "status"):
        text = node.ctl(command, json_output=False).out
        line = next(line for line in text.splitlines() if line.startswith("rollout") and "train" in line)
        assert str(guest.pid) in line and "2.88 MiB" in line and "heap" in line, text
    answer = node.ctl("pause", "train", json_output=False)
    assert f"still on the devices: 2.88 MiB open in group 'rollout' (rank 0, pid {guest.pid}, tag heap)" in answer.out
    owner.kill()
    eventually(lambda: node.ctl.group("train") is None)
    assert "(freed by its group)" in node.ctl("groups", json_output=False).out
    guest.ask(f"verify {theirs} 1")


def test_the_heap_is_left_out_of_pauses_of_tags(node_with):
    """A guest's mapping has the tag of its owner, which the guest has memory of too."""
    node = node_with(*SHORT)
    owner, guest = two(node)
    weights = block(owner, 1)
    own = block(guest, 2)
    theirs = open_ipc(owner, guest, weights)
    node.ctl("pause", "rollout", "--tag", "heap")
    guest.ask(f"verify {theirs} 1")
    node.ctl("resume", "rollout", "--tag", "heap")
    guest.ask(f"verify {own} 2")
    node.ctl("pause", "train", "--tag", "heap")
    guest.ask(f"verify {theirs} 1")
    node.ctl("resume", "train")
    owner.ask(f"verify {weights} 1")


def test_small_blocks_share_what_stays(node_with):
    node = node_with(*SHORT)
    owner, guest = two(node)
    mine = [owner.ask("plain 5000")["id"] for _ in range(2)]
    for seed, each in enumerate(mine):
        owner.ask(f"fill {each} {seed}")
    theirs = open_ipc(owner, guest, mine[0])
    again = open_ipc(owner, guest, mine[0])
    neighbour = open_ipc(owner, guest, mine[1])
    answer = node.ctl("pause", "train")
    assert [(each["allocation_count"], each["bytes"]) for each in answer.json["guests"]] == [(1, 2 << 20)]
    node.ctl("pause", "rollout")
    node.ctl("resume", "rollout")
    node.ctl("resume", "train")
    for seed, each in ((0, theirs), (0, again), (1, neighbour)):
        guest.ask(f"verify {each} {seed}")
        guest.ask(f"free {each}")
    eventually(lambda: node.ctl.group("train")["guests"] == [])


@pytest.mark.parametrize("phase", ["guests", "save", "release"])
def test_a_guest_dies(node_with, phase):
    node = node_with(*(LONG if phase == "guests" else SHORT))
    owner, guest = two(node)
    weights, other = block(owner, 1), block(owner, 2)
    open_ipc(owner, guest, weights)
    if phase != "guests":
        owner.faults({"save": "cuMemcpyDtoHAsync:1:hold", "release": "releaseBegins:1:hold"}[phase])
    pause = node.ctl.start("pause", "train")
    pause.wait_phase(phase)
    guest.kill()
    eventually(lambda: node.ctl.group("rollout") is None)
    if phase != "guests":
        owner.faults()
    assert pause.finish().code == 0
    stays = 0 if phase == "guests" else ROUNDED
    assert used(node) == node.CONTEXT_BYTES + stays
    node.ctl("resume", "train")
    owner.ask(f"verify {weights} 1")
    owner.ask(f"verify {other} 2")
    node.ctl("pause", "train")
    assert used(node) == node.CONTEXT_BYTES


@pytest.mark.parametrize("end", ["kill", "free"])
def test_the_owner_goes_first(node_with, end):
    node = node_with(*SHORT)
    owner, guest = two(node)
    weights, own = block(owner, 1), block(guest, 2)
    theirs = open_ipc(owner, guest, weights)
    if end == "kill":
        owner.kill()
        eventually(lambda: node.ctl.group("train") is None)
    else:
        owner.ask(f"free {weights}")
        eventually(lambda: node.ctl.group("train")["allocation_count"] == 0)
    for _ in range(2):
        guest.ask(f"verify {theirs} 1")
        node.ctl("pause", "rollout")
        node.ctl("resume", "rollout")
    guest.ask(f"verify {theirs} 1")
    guest.ask(f"verify {own} 2")
    guest.ask(f"free {theirs}")
    contexts = node.CONTEXT_BYTES * (1 if end == "kill" else 2)
    eventually(lambda: used(node) == contexts + ROUNDED)
    if end == "free":
        node.ctl("pause", "train")
        node.ctl("resume", "train")


def test_a_resume_that_fails_takes_a_guests_mapping_away_again(node_with):
    node = node_with(*SHORT)
    owner, guest = two(node)
    weights, own = block(owner, 1), block(guest, 2)
    theirs = open_ipc(owner, guest, weights)
    node.ctl("pause", "rollout")
    guest.faults("cuMemSetAccess:*:999")
    assert node.ctl.try_("resume", "rollout").code != 0
    assert node.ctl.state("rollout") == "paused"
    owner.ask(f"fill {weights} 5")
    guest.faults()
    node.ctl("resume", "rollout")
    guest.ask(f"verify {theirs} 5")
    guest.ask(f"verify {own} 2")


def test_while_the_owner_is_paused_nobody_opens_what_has_left(node_with):
    node = node_with(*SHORT)
    owner, guest = two(node)
    weights = block(owner, 1)
    handle = owner.ask(f"share {weights}")["handle"]
    node.ctl("pause", "train")
    guest.send(f"open {handle} {LAZY}")
    assert "CUDA_ERROR_SYSTEM_NOT_READY" in guest.failure()
    guest.wait_for("is paused with its tag 'heap'. Resume this tag first")
    node.ctl("resume", "train")
    guest.ask(f"verify {guest.ask(f'open {handle} {LAZY}')['id']} 1")


def test_a_buffer_of_a_slab(node_with):
    """As NCCL passes it on: a rank imports what a rank of another group gave to its peers."""
    node = node_with(*LONG)
    job, other = node.job("train"), node.job("rollout")
    other.ranks[0].ask(f"import {job.rendezvous} 0 1")
    eventually(lambda: node.ctl.group("train")["guests"] == [])
    for name in ("train", "rollout"):
        node.ctl("pause", name)
        node.ctl("resume", name)
    job.check()
    other.check()


def test_a_wrong_token(node_with):
    node = node_with(*SHORT)
    owner, guest = two(node)
    handle = owner.ask(f"share {block(owner, 1)}")["handle"]
    guest.send(f"open {handle[:80] + '00' * 16 + handle[112:]} {LAZY}")
    assert "CUDA_ERROR_SYSTEM_NOT_READY" in guest.failure()
    guest.wait_for("is not the ticket that its owner got")
    assert node.ctl.group("train")["guests"] == []


def test_waves(bare_node, node_with):
    """No space for both groups: what a guest has open stays through the waves of its owner, and its mapping goes with
    those of its own group."""
    bare_node.settings["AMEM_SIM_MEMORY"] = str(24 << 20)
    bare_node.settings["AMEM_POOL_SAVE"] = "dense"
    node = node_with(*SHORT, "--swap-wave", "2MiB")
    owner, guest = two(node)
    weights = block(owner, 1)
    mine = [block(owner, 10 + i) for i in range(3)]
    theirs = open_ipc(owner, guest, weights)
    node.ctl("pause", "train")
    own = [block(guest, 20 + i) for i in range(3)]
    for _ in range(3):
        answer = swap(node, "rollout", "train")
        assert sum(line["phase"] == "drop" for line in answer.lines) > 2, answer
        owner.ask(f"verify {weights} 1")
        for i, each in enumerate(mine):
            owner.ask(f"verify {each} {10 + i}")
        swap(node, "train", "rollout")
        guest.ask(f"verify {theirs} 1")
        for i, each in enumerate(own):
            guest.ask(f"verify {each} {20 + i}")


def test_what_is_closed_during_a_capture_goes_at_its_end(node_with):
    """A wait for the context would break the capture. So the memory is unmapped when the last one has ended."""
    node = node_with(*LONG)
    owner, guest = two(node)
    mine = block(owner, 1)
    theirs = open_ipc(owner, guest, mine)
    guest.ask("capture begin")
    guest.ask(f"free {theirs}")
    guest.ask("capture end")
    eventually(lambda: node.ctl.group("train")["guests"] == [], what="the guest has closed it")
    node.ctl("pause", "train")
    assert used(node) == 2 * node.CONTEXT_BYTES, "nothing of it stays for a guest that has closed it"
    node.ctl("resume", "train")
    owner.ask(f"verify {mine} 1")
