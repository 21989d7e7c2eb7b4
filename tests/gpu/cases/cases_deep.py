"""The cases about deep pauses: the driver checkpoints the processes, and nothing of them stays on the GPUs. They run last: a driver that
does not come back from a checkpoint keeps the GPU."""

import json
import os
import pathlib
import random
import signal
import statistics
import subprocess
import sys
import time

from cases import Loop, check_still
from cases_restart import REST_S, at_rest
from harness import Failure, end_processes, torchrun
from registry import case
import cases_vllm as vllm

PROGRAMS = pathlib.Path(__file__).resolve().parents[1] / "programs"
PLACES = ("host_numa", "memfd")  # of the pool: the first is unmapped before a checkpoint, the second stays mapped
LEFT_MIB = 16
# Of the driver's checkpoint and restore, beyond the pause and the resume of a process with 8 GiB.
MORE_MS = {"pause": 1100, "resume": 700}
VLLM_LIMITS = {"sleep": 2000, "wake": 1500, "left": LEFT_MIB}
GROWTH = 1.25  # of times, between the first and the last cycles
DEEP_PHASES = ("detach", "checkpoint", "restore")
STEPS = ("lock", "checkpoint", "restore", "unlock")


def deep_broker(bench, pool, place=PLACES[0], *arguments):
    return bench.broker_with(bench.pool if bench.one_pool else pool, "--deep-enabled", "true", "--pool-place", place, *arguments)


class Group:
    """A group in the middle of its work, and what it leaves on the GPUs while it is deep."""

    def __init__(self, bench, broker, ranks, start, name="train"):
        self.bench, self.broker = bench, broker
        self.before = bench.gpus.used_mib()
        self.loop = Loop(bench, name, start)
        broker.wait_group(name, ranks, programs=[self.loop.program])
        self.loop.wait_beyond(2, "at the start", 90)
        self.pids = [rank["pid"] for rank in broker.ranks(name)]

    def left_mib(self):
        """On the GPU with most of it, beyond what was in use before the ranks began."""
        return max(now - then for now, then in zip(self.bench.gpus.used_mib(), self.before))

    def descriptors(self):
        return [len(os.listdir(f"/proc/{pid}/fd")) for pid in (self.broker.pid, *self.pids)]

    def resident_mib(self):
        """Of amemd and of all ranks."""
        pages = [int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in (self.broker.pid, *self.pids)]
        return [pages[0] >> 8, sum(pages[1:]) >> 8]

    def timed(self, *words):
        began = time.monotonic()
        self.broker.amemctl(words[0], self.loop.group, *words[1:], limit=90)
        return (time.monotonic() - began) * 1000

    def cycle(self, number, took, deep=True):
        """Returns what was left."""
        time.sleep(random.uniform(0, 0.2))
        took["pause"].append(self.timed("pause", *(["--deep"] if deep else [])))
        left = self.left_mib()
        if deep and left > LEFT_MIB:
            raise Failure(f"deep pause {number}: {left} MiB are left on a GPU, {LEFT_MIB} may be")
        reached = check_still(self.broker, self.loop, f"pause {number}")
        took["resume"].append(self.timed("resume"))
        self.loop.wait_beyond(reached + 1, f"after pause {number}")
        return left


def median(times):
    """Without the first one, which makes what later ones find."""
    return statistics.median(times[1:])


@case(240, last=True)
def deep_heap(bench):
    """One process with 8 GiB: nothing of it stays on the GPU while it is deep."""
    shown = []
    for place in PLACES:
        broker = deep_broker(bench, "10GiB", place)
        group = Group(bench, broker, 1, lambda *a, **k: bench.python_script("deep_memory.py", "--gib", 8, *a, scope="heap", **k))
        plain, deep = ({"pause": [], "resume": []} for _ in range(2))
        plain_left = [group.cycle(number, plain, deep=False) for number in range(bench.few)]
        left = [group.cycle(number, deep) for number in range(bench.few)]
        group.loop.finish()
        more = {verb: median(deep[verb]) - median(plain[verb]) for verb in MORE_MS}
        shown.append(f"{place}: left {max(left)} MiB (plain {max(plain_left)}), " + ", ".join(
            f"{verb} {median(deep[verb]):.0f} ms (+{more[verb]:.0f})" for verb in MORE_MS))
        if bench.given_time_limits and any(more[verb] > limit for verb, limit in MORE_MS.items()):
            raise Failure(f"at most {MORE_MS} ms more: {shown[-1]}")
    return "; ".join(shown)


def visible_sets():
    """What people set of two GPUs."""
    listed = subprocess.run(["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"], capture_output=True, text=True, check=True)
    uuid = listed.stdout.split()[1]
    order = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    return [{"CUDA_VISIBLE_DEVICES": "0"}, {"CUDA_VISIBLE_DEVICES": "1"}, {"CUDA_VISIBLE_DEVICES": uuid}, {"CUDA_VISIBLE_DEVICES": "1,0"}, {},
            {"CUDA_VISIBLE_DEVICES": "1", **order}]


@case(560, last=True)
def deep_visible(bench):
    """Deep pauses of a process with threads that sees some of the GPUs, in an order that it likes."""
    bench.needs_peers()
    cycles, shown = bench.few if bench.few < 6 else 20, []
    broker = bench.broker_with("4GiB", "--deep-enabled", "true")
    for number, seen in enumerate(visible_sets()):
        group = Group(bench, broker, 1, lambda *a, seen=seen, **k: bench.python_script(
            "deep_memory.py", "--gib", 0.7, "--threads", 5, *a, scope="heap", env=seen, **k), name=f"seen{number}")
        took = {"pause": [], "resume": []}
        left = [group.cycle(cycle, took) for cycle in range(cycles)]
        group.loop.finish()
        shown.append(f"{' '.join(seen.values()) or 'all'}: {cycles} cycles, left {max(left)} MiB, pause {median(took['pause']):.0f}, "
                     f"resume {median(took['resume']):.0f} ms")
    return "; ".join(shown)


ONE_EACH = 'CUDA_VISIBLE_DEVICES=$LOCAL_RANK LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 exec "$@"'


@case(300, last=True)
def deep_one_gpu_each(bench):
    """Two ranks that see one GPU each: with NCCL over the host's memory they become deep, with NVLink that is refused."""
    bench.needs_peers()
    shown = []
    for peers, environment in (("host", {"NCCL_P2P_DISABLE": "1", "NCCL_CUMEM_HOST_ENABLE": "0"}), ("NVLink", {})):
        broker = bench.broker_with(bench.pool, "--deep-enabled", "true")

        def start(*arguments, group, environment=environment):
            argv = torchrun(2, "--no-python", "bash", "-c", ONE_EACH, "bash", sys.executable, PROGRAMS / "torch_cycle.py", "--groups", 4, "--graph",
                            "--watchdog", 90, "--no-memory-checks", *arguments)
            return bench.start(argv, group=group, scope="heap", env=environment)

        ranks, took = Group(bench, broker, 2, start), {"pause": [], "resume": []}
        if peers == "host":
            left = [ranks.cycle(number, took) for number in range(bench.few if bench.few < 6 else 20)]
            shown.append(f"{peers}: {len(left)} cycles, left {max(left)} MiB, pause {median(took['pause']):.0f}, "
                         f"resume {median(took['resume']):.0f} ms")
        else:
            refused = ""
            try:
                broker.amemctl("pause", "train", "--deep", limit=90)
            except Failure as failure:
                refused = str(failure)
            if "which it does not see" not in refused:
                raise Failure(f"a deep pause with NVLink: {refused or 'was not refused'}")
            broker.amemctl("resume", "train", limit=90)
            ranks.loop.wait_beyond(ranks.loop.iterations() + 2, "after a deep pause that was refused")
            shown.append(f"{peers}: refused, and the group runs on")
        ranks.loop.finish()
    return "; ".join(shown)


def collectives(bench, broker, name="train", **how):
    """Four communicators and a graph with an all-reduce."""
    return Group(bench, broker, bench.ranks, lambda *a, **k: bench.torch_cycle(
        "--groups", 4, "--graph", "--watchdog", 90, "--no-memory-checks", *a, scope="heap", **how, **k), name)


def check_growth(took, opened, used, resident):
    """Of what each cycle took and left: what the second finds, the last must find too."""
    second = min(1, len(opened) - 1)
    if opened[-1] != opened[second]:
        raise Failure(f"open descriptors of amemd and ranks: {opened[second]} after cycle 2, {opened[-1]} after the last")
    if used[-1] > used[second] + LEFT_MIB:
        raise Failure(f"MiB in use on a GPU while running: {used[second]} after cycle 2, {used[-1]} after the last")
    if len(opened) < 20:
        return
    fifth, half = len(opened) // 5, len(opened) // 2
    for verb, ms in took.items():
        first, last = statistics.median(ms[:fifth]), statistics.median(ms[-fifth:])
        if last > first * GROWTH:
            raise Failure(f"{verb}: {first:.0f} ms in the first {fifth} cycles, {last:.0f} in the last")
    if any(last > middle + LEFT_MIB for last, middle in zip(resident[-1], resident[half])):
        raise Failure(f"MiB resident, amemd's and the ranks': {resident[half]} after half of the cycles, {resident[-1]} at the end")


@case(340, last=True)
def deep_collectives(bench):
    """Deep pauses of NCCL with four communicators and a CUDA graph, in the middle of collectives."""
    bench.needs_peers()
    shown = []
    for place in PLACES:
        broker = deep_broker(bench, bench.pool, place)
        ranks = collectives(bench, broker)
        took, left, opened, used, resident = {"pause": [], "resume": []}, [], [], [], []
        for number in range(1, (bench.operator_pauses if place == PLACES[0] else bench.few) + 1):
            left.append(ranks.cycle(number, took))
            opened.append(ranks.descriptors())
            used.append(ranks.left_mib())
            resident.append(ranks.resident_mib())
        report = ranks.loop.finish()
        check_growth(took, opened, used, resident)
        shown.append(f"{place}: {len(left)} cycles, left at most {max(left)} MiB (running {used[-1]}), amemd and ranks resident "
                     f"{resident[0]} to {resident[-1]} MiB, " + ", ".join(
                         f"{verb} median {statistics.median(ms):.0f}, max {max(ms):.0f} ms" for verb, ms in took.items()) +
                     f", {report['iterations']} iterations")
    return "; ".join(shown)


def wait_for_phase(broker, group, operation):
    """Until the operation is in a phase of a deep pause, or has ended. The phase."""
    while operation.poll() is None:
        phase = broker.group(group)["phase"]
        if phase in DEEP_PHASES:
            return phase
    return ""


# What NCCL can use between two GPUs of a host instead of NVLink, and where it keeps what ranks share in the host's memory.
TRANSPORTS = ({"NCCL_P2P_DISABLE": "1"}, {"NCCL_P2P_DISABLE": "1", "NCCL_CUMEM_HOST_ENABLE": "0"},
              {"NCCL_CUMEM_HOST_ENABLE": "1"}, {"NCCL_CUMEM_HOST_ENABLE": "0"}, {"NCCL_CUMEM_ENABLE": "0"},
              {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"})


@case(340, last=True)
def deep_transports(bench):
    """Deep pauses with each of NCCL's transports between two GPUs: right, or refused with the group paused as usual."""
    bench.needs_peers()
    shown = []
    for environment in TRANSPORTS:
        broker = deep_broker(bench, bench.pool, PLACES[0], "--deadlines-checkpoint", "24s")
        name = " ".join(f"{key.removeprefix('NCCL_')}={value}" for key, value in environment.items())
        ranks = collectives(bench, broker, env=environment)
        took = {"pause": [], "resume": []}
        try:
            left = [ranks.cycle(number, took) for number in range(2)]
        except Failure as failure:
            shown.append(f"{name}: {failure}")
            if "still" in str(failure) or broker.group("train") is None:
                raise Failure("; ".join(shown)) from None
            if broker.group("train")["state"] != "GROUP_STATE_RUNNING":
                broker.amemctl("resume", "train", limit=90)
            ranks.loop.wait_beyond(ranks.loop.iterations() + 2, f"with {name}, after a deep pause that was refused")
        else:
            shown.append(f"{name}: left {max(left)} MiB, pause {took['pause'][1]:.0f}, resume {took['resume'][1]:.0f} ms")
        ranks.loop.finish()
    return "; ".join(shown)


@case(340, last=True)
def deep_broker_killed(bench):
    """amemd is killed at random instants of deep pauses and of their resumes: no process is lost."""
    bench.needs_peers()
    broker = deep_broker(bench, bench.pool)
    ranks = collectives(bench, broker)
    loop, phases = ranks.loop, {}
    for number in range(1, min(20, bench.operator_pauses) + 1):
        states = at_rest(broker, [loop], bench.ranks)
        words = ("pause", loop.group, "--deep") if states[loop.group] == "RUNNING" else ("resume", loop.group)
        operation = broker.start(*words)
        phase = wait_for_phase(broker, loop.group, operation)
        time.sleep(random.uniform(0, 0.5))
        broker.kill_and_start_again()
        try:
            operation.wait(REST_S)
        except subprocess.TimeoutExpired:
            raise Failure(f"amemctl {' '.join(words)} hung after kill {number}") from None
        phases[f"{words[0]}: {phase or 'at rest'}"] = phases.get(f"{words[0]}: {phase or 'at rest'}", 0) + 1
        if at_rest(broker, [loop], bench.ranks)[loop.group] == "RUNNING":
            loop.wait_beyond(loop.iterations() + 2, f"after kill {number} ({' '.join(words)})")
    if at_rest(broker, [loop], bench.ranks)[loop.group] == "PAUSED":
        broker.amemctl("resume", loop.group, limit=90)
    report = loop.finish()
    return f"{sum(phases.values())} kills ({phases}), no process lost; {report['iterations']} iterations"


def callers(step):
    """Pids of the programs that take this step now."""
    found = []
    for folder in pathlib.Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                words = (folder / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if len(words) > 2 and words[0].endswith(b"amem-checkpoint") and words[1] == step.encode():
                found.append(int(folder.name))
    return found


def kill_a_caller(step, operation, after_s):
    """Whether one was killed before its end."""
    while operation.poll() is None:
        if found := callers(step):
            time.sleep(after_s)
            try:
                os.kill(random.choice(found), signal.SIGKILL)
                return True
            except ProcessLookupError:
                return False
    return False


@case(340, last=True)
def deep_caller_killed(bench):
    """The program that takes a step of a checkpoint is killed in it: what becomes of the group, by step."""
    bench.needs_peers()
    broker = deep_broker(bench, bench.pool)
    table, ranks = [], None
    for step in STEPS:
        for after_s in (0.0, 0.1, 0.3):
            if after_s and step in ("lock", "unlock"):
                continue  # they are shorter
            if ranks is None:
                ranks = collectives(bench, broker, f"train{len(table)}")
            group = ranks.loop.group
            words = ("pause", group, "--deep")
            if step in ("restore", "unlock"):
                ranks.timed("pause", "--deep")
                words = ("resume", group)
            operation = subprocess.Popen([str(broker.ctl), *words], env=broker.environment, text=True, stdout=subprocess.PIPE,
                                         stderr=subprocess.PIPE)
            killed = kill_a_caller(step, operation, after_s)
            said = operation.communicate(timeout=90)[1].strip()
            lost = "has lost" in said
            row = {"call": step, "after_ms": round(after_s * 1000), "killed": killed, "status": operation.returncode, "said": said[:300]}
            table.append(row)
            if not lost and broker.group(group)["state"] != "GROUP_STATE_RUNNING":
                again = subprocess.run([str(broker.ctl), "resume", group], env=broker.environment, text=True, capture_output=True,
                                       timeout=90, check=False)
                row["resume"] = again.stderr.strip()[:300] or "ok"
                lost = "has lost" in row["resume"]
            if lost:
                end_processes(bench.marker)
                row["data"] = "a process is lost"
                ranks = None
                continue
            ranks.loop.wait_beyond(ranks.loop.iterations() + 2, f"after the {step}'s caller was killed")
            row["data"] = "right"
    if ranks is not None:
        ranks.loop.finish()
    for row in table:
        print(json.dumps(row), flush=True)
    return f"{sum(row['killed'] for row in table)} of {len(table)} callers killed; data " + ", ".join(
        f"{row['call']}+{row['after_ms']}: {row['data']}" for row in table)


@case(340, last=True)
def vllm_deep(bench):
    """A vLLM engine sleeps deep, up to eight GPUs, with graphs: the same tokens; its own sleep beside it."""
    tp, pool = vllm.tp_of(bench), vllm.pool_of(vllm.tp_of(bench))
    deep_broker(bench, f"{pool}GiB")
    with vllm.node_of(bench, "--tp", tp, "--cache-gib", vllm.CACHE_GIB, pool_gib=pool) as node:
        own = vllm.sleep_and_wake(bench, node, "own")[2]
        node.end_engines()
        node.environment["AMEM_VLLM_SLEEP"] = "deep"
        deep = vllm.sleep_and_wake(bench, node, "amem")[2]
        wrong = [f"{what} {deep[what]:.0f}, {limit} is the limit" for what, limit in VLLM_LIMITS.items() if deep[what] > limit]
    if wrong and bench.time_limits:
        raise Failure(f"{'; '.join(wrong)} (its own: {vllm.shown(own)})")
    return f"deep {vllm.shown(deep)}; its own {vllm.shown(own)}"


def third_engine(node, label):
    """The tokens of KV cache of an engine that gets what is free."""
    device = node.status()["devices"][0]
    free = device["total_bytes"] - device["used_bytes"]
    node.options.cache_gib, node.options.utilization = 0, (free - (1 << 30)) / device["total_bytes"]
    engine, _ = vllm.started(node, label, "none")
    tokens = engine.ask("cache_tokens")[0]
    engine.end()
    node.engines.remove(engine)
    return tokens, free >> 20


@case(340, last=True)
def vllm_deep_neighbours(bench):
    """Three vLLM engines on one GPU: what the third has for its KV cache beside two that are paused, and beside two that are deep."""
    deep_broker(bench, "44GiB")
    with vllm.node_of(bench, "--tp", 1, "--cache-gib", vllm.CACHE_GIB, "--gpu", "0", pool_gib=44) as node:
        engines = []
        for name in ("A", "B"):
            engine, tokens = vllm.started(node, name, "none")
            engines.append((engine, tokens, f"vllm-{name}"))
            bench.broker().amemctl("pause", f"vllm-{name}")
        plain, plain_free = third_engine(node, "C")
        for _, _, group in engines:
            bench.broker().amemctl("pause", group, "--deep", limit=90)
        deep, deep_free = third_engine(node, "D")
        for engine, tokens, group in engines:
            bench.broker().amemctl("resume", group, limit=90)
            vllm.must_give(engine, tokens, "after a deep pause")
    if deep <= plain:
        raise Failure(f"{plain} tokens of cache beside paused engines, {deep} beside deep ones")
    return f"{plain} tokens of KV cache beside two paused engines ({plain_free} MiB free), {deep} beside two deep ones ({deep_free} MiB free)"
