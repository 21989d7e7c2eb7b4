"""The cases about the space of a stage: memory that stays on the GPU, memory of others, several owners, groups of unequal size."""

import contextlib
import grp
import json
import os
import random
import statistics
import subprocess
import sys
import time

from cases_turns import START_S, STAGE, STEP_S, Rank, fills, group_mib, note_of, running_in, stage_broker, stage_of, switches_of, the_stage, turn_of, wait_until
from harness import MIB, Failure, Skip
from registry import case

ROUNDS, QUICK_ROUNDS, SIMULATED_ROUNDS = 20, 6, 3
ALICE = 65531  # another user; the account need not exist
MEMBERS = "nogroup"  # that Debian and Ubuntu have
LARGE_PART = 0.92
VERIFY_S = 300  # 130 GiB
DEMAND = {"policy": "demand", "grace": "50ms", "idle": "200ms", "min_residency": "0s"}


def starts_one_after_another(broker, starts, limit=START_S):
    """The programs of groups that start alone. Each has had its first turn, and has its memory."""
    ranks = []
    for start in starts:
        rank = start()
        wait_until(rank.has_started, f"{rank.group} has its memory", limit)
        broker.amemctl("lease", rank.group, "--yield")
        ranks.append(rank)
    return ranks


def explained(stage):
    """True. Each group that waits says why, and no switch has failed: none was begun that must fail."""
    silent = [each["group"] for each in stage["groups"] if each["turn"] == "waits" and not each["note"]]
    if silent:
        raise Failure(f"{' and '.join(silent)} wait, and nothing says why: {stage}")
    if stage["failed_switches"]:
        raise Failure(f"{stage['failed_switches']} switches failed, the last one: {stage['last']}")
    return True


def take_turns(count, look, ranks, between=None):
    """Random groups are asked for a step at the same time, again and again. All get their turn; the longest time that it took.
    `look` gives the stage, and checks it. `between` is called before each round, with its number, when no switch is under way."""
    longest = 0.0
    for number in range(count):
        asked = random.sample(ranks, random.randint(1, len(ranks)))
        began = time.monotonic()
        if between:
            between(number)
        for rank in asked:
            rank.ask()
        wait_until(lambda asked=asked: explained(look()) and not look()["switching"] and all(rank.steps() >= rank.asked for rank in asked), f"all have done a step, round {number}", 2 * STEP_S)
        longest = max(longest, time.monotonic() - began)
    return longest


def rounds(bench):
    return SIMULATED_ROUNDS if bench.one_pool else QUICK_ROUNDS if bench.quick else ROUNDS


def finished(ranks, limit=STEP_S):
    """The steps that they did. Each verifies its bytes."""
    steps = 0
    for rank in ranks:
        rank.stop_file.touch()
        steps += rank.program.wait(limit).report()["iterations"]
    if steps != sum(rank.asked for rank in ranks):
        raise Failure(f"{steps} steps done, {sum(rank.asked for rank in ranks)} asked")
    return steps


def figures(broker):
    took = [each for _, each, _ in switches_of(broker)]
    return f"{len(took)} switches, none failed, median {statistics.median(took):.0f} ms"


@case(340)
def turns_stays(bench):
    """A guest has half a group's memory open, which stays: the others come in beside it, and who does not fit beside it says so and waits."""
    mib = group_mib(bench)
    stays = mib // 2
    handle = bench.folder / "handle"

    def serves(group, size, *shared):
        return lambda: Rank(bench, "serve", group, size, *shared)
    with stage_broker(bench, 6 * mib, mib // 8, **DEMAND) as broker:
        lends, borrows, plain, wide = starts_one_after_another(broker, [
            serves("lends", mib - stays, "--shared-mib", stays, "--lend", handle), serves("borrows", mib, "--shared-mib", stays, "--borrow", handle),
            serves("plain", mib), serves("wide", mib + stays)])
        broker.amemctl("pause", "plain", "wide")
        for rank in (lends, borrows):  # both fit now: one opens what the other one lends
            rank.ask()
            rank.wait_steps(rank.asked, "while there is space")
        with fills_beside(bench, broker, plain, [lends, borrows, wide], mib // 4):  # no two fit, and wide does not fit beside the memory that stays
            wide.ask()
            longest = take_turns(rounds(bench), lambda: stage_of(broker), [lends, borrows, plain])
            note = wait_until(lambda: note_of(broker, "wide", "does not fit"), "wide says that it does not fit")  # while a switch is under way, it says that
            if wide.steps():
                raise Failure(f"wide has done {wide.steps()} steps where it cannot fit; it says: {note}")
        wide.wait_steps(wide.asked, "once there is space for it")
        said = figures(broker)
        steps = finished([borrows, lends, plain, wide])
    return f"{stays} MiB of {mib} stay; {said}; all got their turn within {longest:.1f} s; {steps} steps, all bytes right; who did not fit: \"{note}\""


@case(340)
def turns_contexts(bench):
    """Six groups of a process each, whose contexts stay, take turns while memory of others comes and goes. No switch fails."""
    mib = group_mib(bench)
    with stage_broker(bench, 7 * mib, mib // 8, **DEMAND) as broker:
        ranks = starts_one_after_another(broker, [lambda group=group: Rank(bench, "serve", group, mib) for group in "abcdef"])
        contexts = contexts_mib(bench, broker)
        with contextlib.ExitStack() as others, fills_beside(bench, broker, ranks[0], ranks[1:], mib * 3 // 4):
            def others_change(number):
                if number % 2 == 0:
                    others.enter_context(fills(bench, take_mib=mib // 4))
                else:
                    others.close()
            longest = take_turns(rounds(bench), lambda: stage_of(broker), ranks, others_change)
        said = figures(broker)
        steps = finished(ranks)
    return f"contexts of six processes have {contexts} MiB; {said}; all got their turn within {longest:.1f} s; {steps} steps, all bytes right"


def contexts_mib(bench, broker):
    """What is used beside amem's memory."""
    return bench.gpus.used_mib()[0] - (broker.status()["devices"][0]["brokered_bytes"] >> 20)


@contextlib.contextmanager
def fills_beside(bench, broker, one, others, leave_mib):
    """One group is on the GPU, and the others are paused: what takes the rest of the GPU but for this."""
    for rank in (one, *others):
        if broker.group(rank.group)["state"] != "GROUP_STATE_PAUSED":
            broker.amemctl("pause", rank.group)
    broker.amemctl("resume", one.group)
    with fills(bench, leave_mib):
        for rank in others:
            with contextlib.suppress(Failure):  # it does not fit now, and takes turns again
                broker.amemctl("resume", rank.group)
            if not broker.group(rank.group)["paused_by_stage"]:
                raise Failure(f"{rank.group} fits beside {one.group}")
        yield


@case(560)
def turns_large(bench):
    """One of three groups needs 92 % of the GPU. All take turns, and nobody starves."""
    total = min(bench.gpus.total_mib())
    host = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGESIZE") // MIB
    fits = not bench.quick and host * 7 // 10 > total  # a pool for all of it, and the programs
    whole = total if fits or bench.one_pool else min(total, 48 << 10)
    large = int(whole * LARGE_PART) // 16 * 16
    mib = whole // 10 // 16 * 16  # does not fit beside it
    margin = group_mib(bench) // 8
    with contextlib.ExitStack() as stack:
        if whole < total:
            stack.enter_context(fills(bench, whole))
        with stage_broker(bench, large + 3 * mib, margin, **DEMAND) as broker:
            ranks = starts_one_after_another(broker, [lambda: Rank(bench, "serve", "large", large), *(
                lambda group=group: Rank(bench, "serve", group, mib) for group in ("b", "c"))], VERIFY_S)
            longest = take_turns(min(QUICK_ROUNDS, rounds(bench)), lambda: beside(broker, "large"), ranks)
            said = figures(broker)
            steps = finished(ranks, VERIFY_S)
    return f"{large} of {whole} MiB and twice {mib}; {said}; all got their turn within {longest:.1f} s; {steps} steps, all bytes right"


def beside(broker, large):
    """What turns says, where only this group and another one do not fit together."""
    stage = the_stage(broker)
    if large in running_in(stage) and len(running_in(stage)) > 1:
        raise Failure(f"{' and '.join(running_in(stage))} run at the same time, and do not fit")
    return stage


# ---- two owners -------------------------------------------------------------------------------------------------


def another_user(bench):
    """What starts a command as another user, who may reach what this test has."""
    if os.geteuid() != 0:
        raise Skip("needs root, to be another user")
    prefix = ["setpriv", f"--reuid={ALICE}", f"--regid={ALICE}", "--groups", str(grp.getgrnam(MEMBERS).gr_gid)]
    for folder in (bench.root, bench.folder):
        folder.chmod(0o755)  # the broker's own sockets are for its members
    simulated = os.environ.get("AMEM_SIM_DIR")
    if simulated:
        os.makedirs(simulated, exist_ok=True)
        for path in (simulated, *(os.path.join(simulated, name) for name in os.listdir(simulated))):
            os.chmod(path, 0o777)
    for program in ([sys.executable, "-c", "pass"], [bench.prefix / "bin" / "amemctl", "--version"]):
        if subprocess.run([*prefix, "env", *program], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False).returncode != 0:
            raise Skip(f"another user may not start {program[0]}")
    return prefix


@case(340)
def turns_owners(bench):
    """Groups of two users take turns. Each user sees its own groups, and a first turn that nobody uses does not stop the other user's."""
    mib = group_mib(bench)
    prefix = another_user(bench)
    hers = bench.folder / "hers"
    hers.mkdir()
    hers.chmod(0o777)
    with stage_broker(bench, 4 * mib, mib // 8, "--sockets-group", MEMBERS, "--quotas-pool", "100%", start_limit_shared="2s", **DEMAND) as broker:
        broker.runtime.chmod(0o755)

        def alice():
            return Rank(bench, "serve", "hers", mib, prefix=prefix, folder=hers)
        mine = [lambda group=group: Rank(bench, "serve", group, mib) for group in ("roots-a", "roots-b")]
        # A command of hers that never uses the GPU has the first turn, and root's groups start all the same.
        idle = bench.start([sys.executable, "-c", "import time; time.sleep(3600)"], group="idle", env={"AMEM_STAGE": STAGE}, prefix=prefix)
        wait_until(lambda: first_turn_of(broker, "idle"), "her command has its first turn")
        ranks = starts_one_after_another(broker, mine)
        idle.process.kill()
        ranks += starts_one_after_another(broker, [alice])
        with fills_beside(bench, broker, ranks[0], ranks[1:], mib // 2):
            longest = take_turns(rounds(bench), lambda: stage_of(broker), ranks, lambda _: sees_only(broker, prefix, "hers"))
        said = figures(broker)
        steps = finished(ranks)
    return f"{said}; all got their turn within {longest:.1f} s; {steps} steps, all bytes right"


def first_turn_of(broker, group):
    return any(each["group"].startswith(group) and each["turn"] == "starts" for each in stage_of(broker)["groups"])


def sees_only(broker, prefix, group):
    [stage] = json.loads(broker.amemctl("turns", "--json", prefix=prefix))["stages"]
    seen = [each["group"] for each in stage["groups"]]
    if seen != [group]:
        raise Failure(f"another user sees the groups {seen}, and {group} is the only one of its own")
    [note] = [each["note"] for each in stage["groups"]]
    if "roots" in note:
        raise Failure(f"another user reads the names of groups that it may not see: {note}")
