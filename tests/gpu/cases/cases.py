"""The cases about NCCL's memory, the consistent cut and the broker itself."""

import json
import random
import time

import figures
from harness import Failure, Gpus, MIB, has_torch, marked_processes
from registry import case

RSS_LIMIT_MIB = 60
# For the 2.7 GiB of 2 ranks and 4 communicators, in slabs: twice what the benchmark is held to, for single runs.
PAUSE_LIMIT_MS = 50
RESUME_LIMIT_MS = 60
LAUNCH_LIMIT_NS = 50  # a real launch takes microseconds and varies; tests/bench measures the gate alone
DRIVER_OWN_MIB = 16
# For single driver calls: far more than the benchmark's limits, which a busy machine may miss.
CALL_LIMITS = figures.CallLimits(times=1.25, more_us=1, allocation_times=1.1, allocation_more_us=60)
THERE_LIMIT = 0.2  # share of the calls whose result is there when they return


def times(report):
    parts = []
    for verb in ("pause", "resume"):
        ms = report.get(f"{verb}_ms")
        if ms:
            parts.append(f"{verb} {ms['median']:.0f} ms (first {ms['first']:.0f}, max {ms['max']:.0f})")
    if "comm_init_ms" in report:
        parts.append(f"start-up {report['comm_init_ms']:.0f} ms")
    return ", ".join(parts)


def memory(report):
    """What the first GPU of a report of amem_nccl_cycle says."""
    m = report["device_mib"][0]
    return (f"{m['brokered']:.0f} MiB brokered, {m['freed_min']:.0f} freed, {m['paused_max']:.0f} left, "
            f"{m['after_destroy']:.0f} without communicators, {m['context_only']:.0f} contexts")


def check_times(bench, report):
    if bench.ranks != 2 or not bench.time_limits:
        return
    for verb, limit in (("pause", PAUSE_LIMIT_MS), ("resume", RESUME_LIMIT_MS)):
        if report[f"{verb}_ms"]["median"] > limit:
            raise Failure(f"{verb} took {report[f'{verb}_ms']['median']:.0f} ms, {limit} is the limit")


def warnings(finished):
    return [line for line in finished.err.read_text(errors="replace").splitlines() if line.startswith("amem: ")]


# ---- the broker by itself ---------------------------------------------------------------------------------------


@case(150)
def broker_footprint(bench):
    """A ready broker uses no GPU memory and little of the host's."""
    gpus = Gpus()
    bench.stop_broker()
    before = gpus.used_mib()
    broker = bench.broker()
    after = gpus.used_mib()
    # The driver itself takes a few MiB when a GPU gets its first user; a context would take hundreds.
    if any(b > a + DRIVER_OWN_MIB for a, b in zip(before, after)):
        raise Failure(f"GPU memory in use went from {before} to {after} MiB when amemd started")
    return f"{rss(broker)}, GPU memory in use {before} -> {after} MiB; {check_process_list(bench, broker)}"


def rss(broker):
    kib = broker.memory_kib()
    if kib["VmRSS"] > RSS_LIMIT_MIB << 10:
        raise Failure(f"amemd has {kib['VmRSS'] >> 10} MiB resident, {RSS_LIMIT_MIB} is the limit: {kib}")
    return f"amemd RSS {kib['VmRSS'] / 1024:.1f} MiB"


# ---- a program that amem must not disturb -----------------------------------------------------------------------


@case(90)
def without_shim(bench):
    """The test program by itself: if this fails, nothing below means anything."""
    report = bench.nccl_cycle("--cycles", 2, "--pause", "none", shim=False).wait(80).report()
    return f"{report['verified']} collectives verified, {times(report)}"


@case(90)
def disabled(bench):
    """AMEM_DISABLE=1: nothing is brokered, nothing is said."""
    broker = bench.broker()
    done = bench.nccl_cycle("--cycles", 2, "--pause", "none", "--max-bytes", MIB, preload=True,
                            env={"AMEM_RUNTIME_DIR": str(broker.runtime), "AMEM_DISABLE": "1"}).wait(80)
    if warnings(done):
        raise Failure(f"a disabled shim spoke: {warnings(done)[0]}")
    if broker.group("train") is not None and broker.group("train")["rank_count"] > 0:
        raise Failure("a disabled shim has joined a group")
    return times(done.report())


@case(90)
def broker_absent(bench):
    """No broker: the program runs, with one warning per process."""
    nowhere = bench.folder / "nowhere"
    nowhere.mkdir(exist_ok=True)
    done = bench.nccl_cycle("--cycles", 2, "--pause", "none", "--max-bytes", MIB, preload=True,
                            env={"AMEM_RUNTIME_DIR": str(nowhere)}).wait(80)
    said = warnings(done)
    if not 1 <= len(said) <= bench.ranks:
        raise Failure(f"{len(said)} lines from the shim, 1 to {bench.ranks} are right: {said[:3]}")
    return f"{times(done.report())}; said: {said[0][:100]}"


@case(90)
def broker_required(bench):
    """AMEM_REQUIRED=1 and no broker: an error, at once, that says so."""
    nowhere = bench.folder / "nowhere"
    nowhere.mkdir(exist_ok=True)
    done = bench.nccl_cycle("--cycles", 1, "--pause", "none", "--max-bytes", MIB, preload=True,
                            env={"AMEM_RUNTIME_DIR": str(nowhere), "AMEM_REQUIRED": "1"}).wait_any(80)
    if done.code != 1:
        raise Failure(f"ended with {done.code}; a failed check, 1, is right")
    if not warnings(done):
        raise Failure("the shim did not say why")
    return warnings(done)[0][:100]


# ---- pauses -----------------------------------------------------------------------------------------------------


@case(120)
def inside_process(bench):
    """One process per GPU, 4 communicators, ncclPause in every rank."""
    done = bench.nccl_cycle("--cycles", bench.cycles, "--pause", "inside").wait(115)
    report = done.report()
    check_times(bench, report)
    return f"{times(report)}; {memory(report)}"


@case(120)
def without_cumem(bench):
    """NCCL_CUMEM_ENABLE=0: NCCL's memory is of cudaMalloc, and leaves all the same."""
    done = bench.nccl_cycle("--cycles", bench.cycles, "--pause", "inside", env={"NCCL_CUMEM_ENABLE": "0"}).wait(115)
    report = done.report()
    gpu = report["device_mib"][0]
    least = 20 if bench.shared else 100  # over sockets NCCL's buffers are the host's
    if gpu["brokered"] < least or gpu["freed_min"] < 0.9 * gpu["brokered"]:
        raise Failure(f"a pause must free NCCL's memory: {memory(report)}")
    return f"{times(report)}; {memory(report)}"


@case(60)
def inside_split(bench):
    """Communicators made by ncclCommSplit, also of parts of the ranks."""
    done = bench.nccl_cycle("--cycles", bench.few, "--pause", "inside", "--comms", 2, "--split",
                            "--subsets", "--max-bytes", 16 * MIB).wait(55)
    return f"{times(done.report())}; {memory(done.report())}"


@case(90)
def inside_threads(bench):
    """One process, one thread per GPU; one of them asks."""
    bench.needs_peers()
    done = bench.nccl_cycle("--mode", "threads", "--cycles", bench.cycles, "--pause", "inside",
                            "--max-bytes", 16 * MIB).wait(85)
    return f"{times(done.report())}; {memory(done.report())}"


@case(60)
def inside_all_threads(bench):
    """The same, and every thread asks at once."""
    bench.needs_peers()
    done = bench.nccl_cycle("--mode", "threads", "--cycles", bench.few, "--pause", "inside",
                            "--comms", 1, "--pause-all-threads", "--max-bytes", MIB).wait(55)
    return times(done.report())


@case(90)
def inside_single(bench):
    """One thread drives all GPUs by group calls."""
    bench.needs_peers()
    done = bench.nccl_cycle("--mode", "single", "--cycles", bench.cycles, "--pause", "inside",
                            "--max-bytes", 4 * MIB, "--split").wait(85)
    return f"{times(done.report())}; {memory(done.report())}"


@case(60)
def outside_process(bench):
    """amemctl pauses ranks that are idle."""
    done = bench.nccl_cycle("--cycles", bench.few, "--pause", "outside", "--max-bytes", 16 * MIB).wait(55)
    return f"{times(done.report())}; {memory(done.report())}"


@case(120)
def torch_inside(bench):
    """PyTorch: process groups and a CUDA graph, ncclPause in every rank."""
    report = bench.torch_cycle("--cycles", bench.cycles, "--pause", "inside").wait(115).report()
    check_times(bench, report)
    return f"{times(report)}; NCCL {report['nccl']}, {json.dumps(report['device_mib'])}"


@case(120)
def torch_outside(bench):
    """PyTorch, paused by amemctl."""
    report = bench.torch_cycle("--cycles", bench.cycles, "--pause", "outside").wait(115).report()
    return f"{times(report)}; {json.dumps(report['device_mib'])}"


# ---- the consistent cut -----------------------------------------------------------------------------------------


class Loop:
    """A program that runs collectives without end, and how far it is."""

    def __init__(self, bench, group, start):
        self.group = group
        self.progress = bench.folder / f"{group}.progress"
        self.stop_file = bench.folder / f"{group}.{len(bench.started)}.stop"
        self.program = start("--loop", 600, "--progress", self.progress, "--stop-file", self.stop_file,
                             group=group)

    def iterations(self):
        if not self.program.running():
            raise Failure(f"{self.group} ended with {self.program.process.returncode} in its loop")
        try:
            return int(self.progress.read_text() or 0)
        except FileNotFoundError:
            return 0

    def wait_beyond(self, count, why, limit=45):
        end = time.monotonic() + limit
        while self.iterations() <= count:
            if time.monotonic() > end:
                raise Failure(f"{self.group} does not get on {why}: {self.iterations()} iterations")
            time.sleep(0.005)

    def finish(self):
        self.stop_file.touch()
        return self.program.wait(60).report()


def check_still(broker, loop, why):
    """Paused is paused: nothing resident, no iteration gets done."""
    group = broker.group(loop.group)
    if group["state"] != "GROUP_STATE_PAUSED" or group["resident_bytes"] != 0:
        raise Failure(f"{why}: {loop.group} is {group['state']} with {group['resident_bytes']} B resident")
    time.sleep(0.05)  # a burst that had passed the gate may just be counted
    before = loop.iterations()
    time.sleep(0.1)
    if loop.iterations() != before:
        raise Failure(f"{why}: {loop.group} ran on while paused, {before} -> {loop.iterations()} iterations")
    return before


def pause_and_resume(broker, loop, n, took):
    time.sleep(random.uniform(0, 0.2))
    for verb in ("pause", "resume"):
        begin = time.monotonic()
        broker.amemctl(verb, loop.group)
        took[verb].append((time.monotonic() - begin) * 1000)
        if verb == "pause":
            reached = check_still(broker, loop, f"pause {n}")
    loop.wait_beyond(reached + 2, f"after resume {n}")


def check_process_list(bench, broker):
    """amemd is not among the processes on the GPUs."""
    listed = bench.gpus.processes()
    if listed is None:
        return "no nvidia-smi to list processes"
    if broker.pid in listed:
        raise Failure(f"nvidia-smi lists amemd, process {broker.pid}, as a user of the GPUs")
    ranks = listed & set(marked_processes(bench.marker))
    return f"nvidia-smi lists {len(ranks)} ranks and not amemd"


@case(240)
def operator_cut(bench):
    """An operator pauses and swaps two groups that are in the middle of collectives."""
    broker = bench.broker()
    loops = [Loop(bench, "train", lambda *a, **k: bench.nccl_cycle(
        "--comms", 2, "--no-memory-checks", "--watchdog", 45, *a, **k))]
    if has_torch():
        loops.append(Loop(bench, "rollout", lambda *a, **k: bench.torch_cycle(
            "--groups", 2, "--watchdog", 60, *a, **k)))
    for loop in loops:
        broker.wait_group(loop.group, bench.ranks, programs=[loop.program])
        loop.wait_beyond(4, "at the start", 90)
    listed = check_process_list(bench, broker)
    took = {"pause": [], "resume": []}
    for n in range(1, bench.operator_pauses + 1):
        for loop in loops:
            pause_and_resume(broker, loop, n, took)
    swaps = 0
    if len(loops) == 2:
        swaps = swap_back_and_forth(broker, *loops)
    verified = [loop.finish() for loop in loops]
    for ms in took.values():
        ms.sort()
    shown = ", ".join(f"{verb} median {ms[len(ms) // 2]:.0f} max {ms[-1]:.0f} ms"
                      for verb, ms in took.items())
    return (f"{bench.operator_pauses} pauses of each of {len(loops)} groups, {swaps} swaps, {shown}; "
            f"iterations {[r['iterations'] for r in verified]}; {listed}; {rss(broker)}")


def swap_back_and_forth(broker, train, rollout, rounds=3):
    broker.amemctl("pause", rollout.group)
    for n in range(1, rounds + 1):
        for out, back in ((train, rollout), (rollout, train)):
            why = f"swap {n}, {out.group} out"
            reached = back.iterations()
            broker.amemctl("swap", out.group, back.group)
            check_still(broker, out, why)
            back.wait_beyond(reached + 2, f"after {why}")
    broker.amemctl("resume", rollout.group)
    return 2 * rounds


@case(240)
def operator_sets(bench):
    """Four groups in the middle of collectives: two go out in one operation while the other two come in."""
    broker = bench.broker()
    loops = [Loop(bench, f"engine{n}", lambda *a, **k: bench.nccl_cycle(
        "--comms", 1, "--no-memory-checks", "--watchdog", 45, *a, **k)) for n in range(4)]
    for loop in loops:
        broker.wait_group(loop.group, bench.ranks, programs=[loop.program])
        loop.wait_beyond(4, "at the start", 90)
    here, paused = loops[:2], loops[2:]
    broker.amemctl("pause", *(loop.group for loop in paused))
    times = []
    for n in range(1, 5):
        reached = [loop.iterations() for loop in paused]
        begin = time.monotonic()
        broker.amemctl("swap", *(loop.group for loop in here), "--for", *(loop.group for loop in paused))
        times.append((time.monotonic() - begin) * 1000)
        here, paused = paused, here
        for loop in paused:
            check_still(broker, loop, f"swap {n}, {loop.group} out")
        for loop, before in zip(here, reached):
            loop.wait_beyond(before + 2, f"after swap {n}")
    broker.amemctl("resume", *(loop.group for loop in paused))
    verified = [loop.finish() for loop in loops]
    return (f"{len(times)} swaps of 2 groups for 2, max {max(times):.0f} ms; "
            f"iterations {[r['iterations'] for r in verified]}; {rss(broker)}")


# ---- cost and end -----------------------------------------------------------------------------------------------


@case(60)
def launch_cost(bench):
    """A real kernel launch, with the shim and without."""
    plain = bench.launch_bench(shim=False).wait(25).report()
    gated = bench.launch_bench(shim=True).wait(25).report()
    if plain["wrapped"] or not gated["wrapped"]:
        raise Failure(f"the shim wraps launches only where it is loaded: {plain}, {gated}")
    more = gated["launch_ns"] - gated["direct_ns"]
    noise = plain["launch_ns"] - plain["direct_ns"]
    if more > LAUNCH_LIMIT_NS:
        raise Failure(f"a launch costs {more:.0f} ns more with the shim, {LAUNCH_LIMIT_NS} is the limit")
    return (f"{gated['direct_ns']:.0f} ns past the shim, {gated['launch_ns']:.0f} ns through it ({more:+.0f}); "
            f"the same comparison without a shim {noise:+.0f}")


@case(200)
def calls(bench):
    """Copies, memsets, events, launches and allocations in scope heap, beside the driver's own."""
    driver, bare, amem = bench.call_times(processes=1, runs=100, turns=3, limit=40)
    wrong = figures.otherwise_there(driver, amem, THERE_LIMIT)
    if bench.time_limits:
        wrong += figures.slow_calls(driver, bare, amem, CALL_LIMITS)
    if wrong:
        raise Failure(f"{len(wrong)} calls: {'; '.join(wrong[:6])}")
    shown = [("copy out, 4 B, pinned, side stream", "is there"), ("first launch, then 4 B out", "is there"),
             ("memory, 2 MiB", "allocate")]
    return f"{len(amem)} times; " + ", ".join(
        f"{case} {amem[case, work]['median_us']:.1f} us, without amem {driver[case, work]['median_us']:.1f}"
        for case, work in shown) + f", its driver calls alone {bare[shown[-1]]['median_us']:.1f}"


@case(90)
def fresh_pinned(bench):
    """A new block of pinned memory holds zeros, or old bytes, in scope heap as it does without amem."""
    def run(**how):
        return bench.python_script("fresh_pinned.py", torch=False, **how).wait(40).report()
    alone, amem = run(shim=False), run(scope="heap")
    if alone["brokered_bytes"] or not amem["brokered_bytes"]:
        raise Failure(f"{alone['brokered_bytes']} B brokered without amem, {amem['brokered_bytes']} B with it")
    answers = ["all zero" if report["all_zero"] else f"{report['old_bytes']} old bytes in it" for report in (alone, amem)]
    if alone["all_zero"] != amem["all_zero"]:
        raise Failure(f"a new block of pinned memory: {answers[0]} without amem, {answers[1]} in scope heap")
    return f"a new block of pinned memory: {answers[1]}, with amem and without"


@case(120)
def nic_memory(bench):
    """Memory that a NIC knows stays through a pause with its bytes, and leaves once it is deregistered."""
    report = bench.python_script("nic_memory.py", torch=False, scope="heap").wait(80).report()
    size = report["bytes"]
    if not size <= report["registered"] < 2 * size:
        raise Failure(f"{report['registered']} B stayed in the pause, of which {size} were registered")
    if report["deregistered"]:
        raise Failure(f"{report['deregistered']} B stayed in the pause after they had been deregistered")
    if not report["intact"]:
        raise Failure("the memory has other bytes after the pauses")
    return f"{size >> 20} MiB stayed while a NIC knew them, and left afterwards"


# ---- a small pool -----------------------------------------------------------------------------------------------

CACHE_MIB = 60 << 10
CACHE_SHARE = 0.75  # of a smaller GPU
STEP_S = 100


def wait_for_file(file, program, what):
    end = time.monotonic() + STEP_S
    while not file.exists():
        if not program.running() or time.monotonic() > end:
            raise Failure(what)
        time.sleep(0.05)


def pause_with_pool(bench, pool_mib, cache_mib, weights_mib):
    """The phases of a pause of empty_cache.py, in ms, with a pool of this size; every byte is right after the resume."""
    broker = bench.broker_with(f"{pool_mib}MiB")
    files = bench.folder / f"cache-{pool_mib}"
    program = bench.python_script("empty_cache.py", "--files", files, "--cache-mib", cache_mib, "--weights-mib",
                                  weights_mib, torch=False, scope="heap")
    wait_for_file(files.with_suffix(".ready"), program, "empty_cache.py did not fill its memory")
    done = json.loads(broker.amemctl("pause", "train", "--json").splitlines()[-1])
    saved = broker.group("train")["saved_bytes"] // MIB
    if saved > pool_mib:
        raise Failure(f"{saved} MiB are saved in a pool of {pool_mib} MiB")
    broker.amemctl("resume", "train")
    files.with_suffix(".check").touch()
    program.wait(STEP_S)
    return {each["phase"]: int(each["us"]) / 1000 for each in done["times"]}, saved


@case(340)
def empty_cache(bench):
    """A largely empty cache of 60 GiB and 4 GiB of weights leave through a pool of 12 GiB, and through one for all of them."""
    cache = min(CACHE_MIB, int(bench.gpus.total_mib()[0] * CACHE_SHARE))
    weights, small = cache // 15, cache // 5 // 2 * 2
    large = (cache + weights + 64) // 2 * 2
    try:
        through_small, saved = pause_with_pool(bench, small, cache, weights)
        through_large, _ = pause_with_pool(bench, large, cache, weights)
    finally:
        bench.stop_broker()  # its pool is for this case
    if "measure" not in through_small or "measure" in through_large:
        raise Failure(f"only the small pool is to be measured for: {through_small}, {through_large}")
    return (f"{cache + weights} MiB, {saved} MiB saved; pool of {small} MiB: measure {through_small['measure']:.1f} ms, save "
            f"{through_small['save']:.1f} ms, pause {sum(through_small.values()):.1f} ms; pool of {large} MiB: save "
            f"{through_large['save']:.1f} ms, pause {sum(through_large.values()):.1f} ms")


RESETS = 4


@case(150)
def device_reset(bench):
    """A program resets its device between pauses; the pool is reached again, and every byte is right."""
    broker = bench.broker()
    files = bench.folder / "reset"
    program = bench.python_script("empty_cache.py", "--files", files, "--cache-mib", 64, "--weights-mib", 16, "--resets", RESETS,
                                  torch=False, scope="heap")
    for reset in range(RESETS + 1):
        wait_for_file(files.with_suffix(f".ready{reset or ''}"), program, f"empty_cache.py did not come to its reset {reset}")
        broker.amemctl("pause", "train")
        broker.amemctl("resume", "train")
        files.with_suffix(f".check{reset or ''}").touch()
    report = program.wait(60).report()
    return f"{RESETS} resets, a pool of {broker.status()['pool']['place']}, {report['bytes'] // MIB} MiB compared after each"


@case(60, last=True)
def broker_afterwards(bench):
    """After all that: no memory held, little used, a clean end."""
    broker = bench.broker()
    held = [d["brokered_bytes"] for d in broker.status()["devices"]]
    if any(held):
        raise Failure(f"no rank is left, but the broker holds {held} B")
    detail = rss(broker)
    code = bench.stop_broker()
    if code != 0:
        raise Failure(f"amemd ended with {code} on SIGTERM")
    return f"{detail}, ended with 0"
