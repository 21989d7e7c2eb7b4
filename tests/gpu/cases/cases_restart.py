"""The cases about a broker that dies: what its holder keeps, and kills in the middle of operations."""

import random
import subprocess
import time

from cases import Loop
from harness import Failure, has_torch, tail
from registry import case

SPREAD_S = 0.3  # a kill comes at any instant of an operation, or after it
REST_S = 60
BACK_S = 1.0  # half of all brokers serve again within this


@case(90)
def held_memory(bench):
    """A descriptor in a process without CUDA keeps device memory and its bytes when nobody else has it."""
    report = bench.python_script("held_memory.py", torch=False, shim=False).wait(80).report()
    used, size = report["used_mib"], report["mib"]
    if not report["intact"]:
        raise Failure(f"it holds other bytes, or cannot be imported: {used}")
    if used["held"] - used["before"] < size:
        raise Failure(f"{used} MiB in use: {size} MiB should have been held")
    if used["read"] - used["closed"] < size:
        raise Failure(f"{used} MiB in use: the last to close it should have freed {size} MiB")
    return f"{size} MiB held by a descriptor alone; in use {used} MiB"


def at_rest(broker, loops, ranks):
    """The states of the groups, once every one is there in full and at rest."""
    end, groups = time.monotonic() + REST_S, {}
    while time.monotonic() < end:
        groups = {each["name"]: each for each in broker.status()["groups"]}
        phases = [rank["phase"] for loop in loops if loop.group in groups for rank in broker.ranks(loop.group)]
        if all(loop.group in groups and groups[loop.group]["rank_count"] == ranks and
               groups[loop.group]["state"] in ("GROUP_STATE_RUNNING", "GROUP_STATE_PAUSED") for loop in loops) and not any(phases):
            return {name: group["state"].rpartition("_")[2] for name, group in groups.items()}
        for loop in loops:
            loop.iterations()  # it lives
        time.sleep(0.02)
    raise Failure(f"not at rest after {REST_S} s: {groups}; {phases}")


def any_operation(states):
    """The words of one that can begin now."""
    running = [name for name, state in states.items() if state == "RUNNING"]
    paused = [name for name, state in states.items() if state == "PAUSED"]
    choices = [("pause", name) for name in running] + [("resume", name) for name in paused]
    if running and paused:
        choices += [("swap", running[0], paused[0])]
    return random.choice(choices)


@case(340)
def broker_killed(bench):
    """amemd is killed at random instants of pauses, resumes and swaps of groups in the middle of collectives."""
    broker = bench.broker()
    loops = [Loop(bench, "train", lambda *a, **k: bench.nccl_cycle(
        "--comms", 2, "--no-memory-checks", "--watchdog", 90, *a, **k))]
    if has_torch():
        loops.append(Loop(bench, "rollout", lambda *a, **k: bench.torch_cycle(
            "--groups", 2, "--watchdog", 90, *a, scope="heap", **k)))
    for loop in loops:
        broker.wait_group(loop.group, bench.ranks, programs=[loop.program])
        loop.wait_beyond(4, "at the start", 90)
    states, back, done = at_rest(broker, loops, bench.ranks), [], {}
    for number in range(1, bench.operator_pauses + 1):
        words = any_operation(states)
        operation = broker.start(*words)
        time.sleep(random.uniform(0, SPREAD_S))
        back.append(broker.kill_and_start_again())
        try:
            operation.wait(REST_S)
        except subprocess.TimeoutExpired:
            raise Failure(f"amemctl {' '.join(words)} hung after kill {number}") from None
        done[words[0]] = done.get(words[0], 0) + 1
        states = at_rest(broker, loops, bench.ranks)
        for loop in loops:
            if states[loop.group] == "RUNNING":
                loop.wait_beyond(loop.iterations() + 2, f"after kill {number} ({' '.join(words)})")
    for loop in loops:
        if states[loop.group] == "PAUSED":
            broker.amemctl("resume", loop.group)
    verified = [loop.finish() for loop in loops]
    back.sort()
    if bench.time_limits and back[len(back) // 2] > BACK_S:
        raise Failure(f"amemd served again after {back[len(back) // 2]:.2f} s (median), {BACK_S} is the limit: {tail(broker.log, 20)}")
    return (f"{len(back)} kills ({', '.join(f'{count} in a {verb}' for verb, count in done.items())}); serves again after "
            f"{back[len(back) // 2]:.2f} s (median), {back[-1]:.2f} s (longest); iterations {[r['iterations'] for r in verified]}")
