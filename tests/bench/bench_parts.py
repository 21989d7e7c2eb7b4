"""The parts of the benchmarks. A part is a function that takes a Machine and yields rows (results.py); it raises Skip or
Failure like a GPU test. Limits and repetitions are of the machine's options."""

import json
import pathlib

import figures
from harness import Failure, Skip
from results import from_report, row

GIB = 1 << 30
PARTS = []


def part(gpus, limit):
    """Registers a part that needs so many GPUs, with its time limit in seconds."""
    def register(function):
        PARTS.append((function.__name__, function, gpus, limit))
        return function
    return register


# ---- without a GPU ----------------------------------------------------------------------------------------------


@part(gpus=0, limit=600)
def control(machine):
    """The broker itself: CPU time per allocation and phase, 1 to 64 ranks, 10 to 2000 allocations each."""
    program = machine.program("amem_control_bench")
    driver = machine.prefix / "lib" / "amem_number_driver.so"
    out = machine.folder / "control.json"
    ranks = "1,16,64" if machine.quick else "1,4,16,64"
    allocations = "10,500,2000" if machine.quick else "10,100,500,2000"
    machine.run([program, "--amemd", machine.program("amemd"), "--driver", driver, "--ranks", ranks, "--allocations",
                 allocations, "--cycles", machine.runs, "--json", out])
    points = json.loads(out.read_text())
    machine.keep["control"] = points
    for point in points:
        size = f"{point['ranks']} x {point['allocations_per_rank']}"
        for work in ("pause", "resume"):
            phases = point[work]["us_per_allocation"]
            dearest = max(phases, key=lambda phase: phases[phase]["median"])
            yield from_report("control plane", f"{work}, broker's dearest phase", size, phases[dearest],
                              unit="us/allocation", note=dearest)
            yield from_report("control plane", f"{work}, whole", size, point[work]["wall_ms"])


@part(gpus=0, limit=60)
def gate(machine):
    """A call through the gate, with a driver that does nothing."""
    program = machine.prefix / "bin" / "amem_gate_bench"
    if not program.exists():
        raise Skip("amem_gate_bench was not built: it needs Google Benchmark")
    costs = []
    for _ in range(machine.runs):
        text = machine.run([program, "--check-limit-ns=1000000"])
        costs.append(float(text.split("the gate costs ")[1].split(" ns")[0]))
    yield row("gate", "a call through the gate", "amem", costs, unit="ns")


def host_memory():
    """Bytes that programs may still have."""
    for line in pathlib.Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    raise Failure("/proc/meminfo has no MemAvailable")


def ceiling(machine, name, gpus, size, works):
    """Plain copies of the same bytes by the same number of GPUs, at once; of fewer, where the host's memory does not hold them
    twice, as copies both ways need them. `works`: what they are the ceiling of, and the way."""
    machine.bench.stop_broker()  # its pool is the host's memory, too
    copied = min(size, host_memory() * 3 // 4 // (2 * gpus) >> 20 << 20)
    text = machine.run([machine.program("amem_memory_bench"), "copy", "--bytes", copied, "--gpus", gpus, "--runs", machine.runs])
    report = json.loads([line for line in text.splitlines() if line.startswith("{")][-1])
    note = f"{size >> 20} MiB per GPU" + (f", reckoned from {copied >> 20}" if copied < size else "")
    for work, way in works.items():
        figure = {each: value if each == "n" else value * size / copied for each, value in report[f"{way}_ms"].items()}
        yield from_report(name, work, "plain copy, page-locked", figure, note=note)


# ---- NCCL -------------------------------------------------------------------------------------------------------


def run_cycle(machine, gpus, comms, *arguments, limit=110, max_bytes=64 << 20, **how):
    nccl = ["--nccl", machine.bench.nccl] if machine.bench.nccl else []
    argv = [machine.program("amem_nccl_cycle"), "--gpus", gpus, "--comms", comms, "--bench", *nccl,
            "--max-bytes", min(max_bytes, machine.max_bytes), "--check-bytes", machine.check_bytes(comms), "--watchdog", 100,
            *arguments]
    return machine.bench.start(argv, **how).wait(limit)


def cycle(*arguments, **how):
    return run_cycle(*arguments, **how).report()


def nccl_rows(machine, name, who, report):
    for work in ("pause", "resume"):
        times = report.get(f"{work}_ms")
        if times:
            yield from_report(name, work, who, {**times, "n": times["n"]}, note=f"first {times['first']:.1f}")
    memory = report["device_mib"]
    yield row(name, "device memory of NCCL (with its kernels)", who,
              [m["running"] - m["context_only"] for m in memory], unit="MiB", note="per GPU")
    if any(m["paused"] for m in memory):
        yield row(name, "of that left while paused", who, [m["paused"] - m["context_only"] for m in memory], unit="MiB",
                  note="per GPU")


# It may fail by itself, which is noted: with many communicators amemd may have too few open files for it.
UNPACKED = "amem, AMEM_SHIM_WITHOUT=slabs"
DROPPED = "amem, AMEM_NCCL_SCRATCH=drop"


def in_short(machine, comms):
    """Only amem and NCCL alone: the rest takes longest with many communicators."""
    return machine.quick and comms > 8


def start_ups(machine, gpus, comms, name):
    """From the first ncclCommInitRank to the first verified collectives, in turns; NCCL's memory without amem."""
    whos = {"amem": {}, UNPACKED: {"env": {"AMEM_SHIM_WITHOUT": "slabs"}}, "without amem": {"shim": False}}
    if in_short(machine, comms):
        del whos[UNPACKED]
    reports = {who: [] for who in whos}
    for _ in range(machine.start_runs(comms)):
        for who, how in list(whos.items()):
            try:
                reports[who].append(cycle(machine, gpus, comms, "--pause", "none", "--cycles", 0, **how))
            except Failure as why:
                if who != UNPACKED:
                    raise
                machine.note(f"{name}: start-up, {who}: {why}")
                del whos[who]
    for who in whos:
        yield row(name, "start-up to the first verified collectives", who,
                  [report["startup_ms"] for report in reports[who]])
    yield from nccl_rows(machine, name, "without amem", reports["without amem"][-1])


def nccl(machine, gpus, comms):
    """One warm-up cycle is in amem's times: the first one is in the note."""
    name = f"NCCL, {gpus} ranks x {comms} communicators"
    # All of NCCL's memory, which grows with the square of the ranks, as far as the host has as much: a smaller pool is first
    # measured for.
    pool = min(max(72, 9 * gpus * gpus) if comms > 8 else max(16, 2 * gpus * gpus), host_memory() * 3 // 4 // GIB)
    broker = machine.bench.broker(pool_gib=machine.pool_gib(pool))
    cycles = ["--cycles", machine.runs + 1]
    held = 0
    for who, env in (("amem", {}), (DROPPED, {"AMEM_NCCL_SCRATCH": "drop"}), (UNPACKED, {"AMEM_SHIM_WITHOUT": "slabs"})):
        if who == UNPACKED and in_short(machine, comms):
            continue
        log = broker.log_size()
        try:
            done = run_cycle(machine, gpus, comms, "--pause", "inside", *cycles, env=env)
        except Failure as why:
            if who != UNPACKED:
                raise
            machine.note(f"{name}: {who}: {why}")
            continue
        if who == DROPPED and "nobody has proven" in done.err.read_text(errors="replace"):
            machine.note(f"{name}: {who}: not proven for this NCCL, so nothing is dropped")
            continue
        report = done.report()
        yield from nccl_rows(machine, name, who, report)
        held = max(held, freed_per_gpu(report))
        machine.keep.setdefault("logs", {})[f"{name}, {who}"] = [
            line for line in broker.log_since(log).splitlines() if " took " in line]
    yield from start_ups(machine, gpus, comms, name)
    if held > 0 and not in_short(machine, comms):
        yield from ceiling(machine, name, gpus, held << 20, {"pause": "out", "resume": "in"})
    peers = ("suspend", "recreate") if comms <= 8 else () if in_short(machine, comms) else ("recreate", "suspend")
    for who in peers:
        try:
            report = cycle(machine, gpus, comms, "--pause", who, "--cycles", machine.peer_runs(comms), shim=False,
                           limit=machine.peer_limit)
            names = {"suspend": "ncclCommSuspend/Resume", "recreate": "destroy and recreate"}
            yield from nccl_rows(machine, name, names[who], report)
        except (Failure, Skip) as why:
            machine.note(f"{name}: {who}: {why}")


def freed_per_gpu(report):
    """MiB that a pause gives back on the GPU with the most of it."""
    return int(max(m["running"] - m["paused"] for m in report["device_mib"]))


@part(gpus=2, limit=115)
def nccl_2x4(machine):
    """Pause and resume, start-up and memory: 2 ranks, 4 communicators."""
    yield from nccl(machine, 2, 4)


@part(gpus=2, limit=300)
def nccl_2x20(machine):
    """The same: 2 ranks, 20 communicators."""
    yield from nccl(machine, 2, 20)


@part(gpus=4, limit=170)
def nccl_4x4(machine):
    """The same: 4 ranks, 4 communicators."""
    yield from nccl(machine, 4, 4)


@part(gpus=4, limit=400)
def nccl_4x20(machine):
    """The same: 4 ranks, 20 communicators."""
    yield from nccl(machine, 4, 20)


@part(gpus=8, limit=500)
def nccl_8x4(machine):
    """The same: 8 ranks, 4 communicators."""
    yield from nccl(machine, 8, 4)


@part(gpus=8, limit=590)
def nccl_8x20(machine):
    """The same: 8 ranks, 20 communicators."""
    yield from nccl(machine, 8, 20)


@part(gpus=2, limit=260)
def collectives(machine):
    """All-reduces of 8 B to 256 MiB: NCCL alone, with amem, with slabs and without, before a cycle and after each.

    Small ones, and a kernel that does nothing, also in a CUDA graph: launched one by one they take as long as the host does,
    which varies far more."""
    name = f"all-reduce, {machine.gpus} ranks"
    # What comes after a cycle is to be compared with NCCL alone after its communicators were made anew: the same work went
    # before it, and its buffers lie elsewhere than they did, too.
    alone = "communicators made anew", {"shim": False}, ["--pause", "recreate"]
    amem = "after a cycle", {}, ["--pause", "inside"]
    # With a second communicator NCCL alone runs as many kernels on streams of its own as make all others of the context take
    # longer (the part `context`); with one only a pause adds what is missing.
    whos = (("NCCL alone", 1, *alone), ("NCCL alone, two communicators", 2, *alone),
            (UNPACKED, 1, "after a cycle", {"env": {"AMEM_SHIM_WITHOUT": "slabs"}}, ["--pause", "inside"]),
            ("amem", 1, *amem), ("amem, two communicators", 2, *amem))
    machine.bench.broker(pool_gib=machine.pool_gib(4 * machine.gpus))
    times = {}
    for turn in range(3 if machine.quick else machine.runs):  # in turns: what the machine does meanwhile falls on all
        for who, comms, later, how, arguments in whos[turn % len(whos):] + whos[:turn % len(whos)]:
            report = cycle(machine, machine.gpus, comms, "--time-collectives", "--capture", "--cycles", 4, *arguments,
                           max_bytes=256 << 20, **how)
            machine.keep.setdefault("all-reduces", []).append({"who": who, "us": report["timed"]})
            for each in report["timed"]:
                what = each["bytes"], each["captured"]
                times.setdefault((*what, who), []).append(each["first_us"])
                times.setdefault((*what, f"{who}, {later}"), []).extend(each["after_us"])
    for (size, captured, who), values in sorted(times.items()):
        what = f"{size} bytes" if size > 0 else "an empty kernel"
        yield row(name, what + (", in a graph" if captured else ""), who, values, unit="us", note="each a median of its own")


# ---- single calls ------------------------------------------------------------------------------------------------


@part(gpus=1, limit=60)
def handles(machine):
    """What the driver takes for memory in handles of one size, by size."""
    text = machine.run([machine.program("amem_handle_bench"), 4096, machine.runs])
    for line in text.splitlines():
        report = json.loads(line)
        who = f"{report['handle_bytes'] >> 20} MiB, {'of a peer' if report['peer'] else 'own device'}"
        for work, figure in report["ms_per_gib"].items():
            yield from_report("the driver, by size of a handle", work, who, figure, unit="ms/GiB")


@part(gpus=1, limit=400)
def pool(machine):
    """How fast the driver makes the pool's memory, by one thread and by one for each NUMA node, or by two on one node."""
    machine.bench.stop_broker()  # its pool is the host's memory, too
    size = min(machine.swap_bytes, host_memory() * 3 // 4) >> 20
    text = machine.run([machine.program("amem_handle_bench"), "pool", size, machine.runs, min(1024, size // 4)])
    report = json.loads(text)
    for who, figure in report["gib_per_s"].items():
        yield from_report("pool", f"{size} MiB of pinned host memory", who, figure, unit="GiB/s",
                          note=f"on {report['numa_nodes']} NUMA nodes" if report["numa_nodes"] > 1 else "on one NUMA node")


@part(gpus=1, limit=60)
def context(machine):
    """How long a kernel takes before and after things that a pause does in a context, on other streams than the kernel's."""
    for step in json.loads(machine.run([machine.program("amem_context_bench")]))["steps"]:
        name = f"an empty kernel in a graph, {step['kernels_before']} kernels on other streams before"
        yield row(name, step["what"], "after", [step["after_us"]], unit="us", note=f"before {step['before_us']:.3f}")


@part(gpus=1, limit=60)
def launch(machine):
    """A real kernel launch, through the gate and past it."""
    machine.bench.broker(pool_gib=1)
    report = machine.bench.start([machine.program("amem_launch_bench")]).wait(50).report()
    yield row("gate", "a launch of an empty kernel", "amem", [report["launch_ns"]], unit="ns")
    yield row("gate", "a launch of an empty kernel", "the driver's entry point, same process", [report["direct_ns"]], unit="ns")


CALL_LIMITS = figures.CallLimits(times=1.05, more_us=0, allocation_times=1, allocation_more_us=30)


def in_the_table(case):
    """Of 24 kinds of copies two: the smallest, which show best what a call itself takes. All are judged and kept."""
    return not case.startswith("copy") or case.endswith("waits") or (", 4 B, " in case and case.endswith("side stream"))


@part(gpus=1, limit=600)
def calls(machine):
    """Allocations, small copies, events and launches: without amem, by the driver calls alone, and in scope heap."""
    machine.bench.broker(pool_gib=machine.pool_gib(16))
    for processes, runs in ((1, 200), (11, 60)):
        name = f"driver calls, {processes} at a time on one GPU" if processes > 1 else "driver calls"
        turns = 1 if machine.quick else 3
        driver, bare, amem = machine.bench.call_times(processes, runs, turns, limit=150)
        whos = {"without amem": driver, "the driver calls alone, two processes": bare, "amem, scope heap": amem}
        machine.keep.setdefault("calls", {})[name] = {
            who: {": ".join(key): figure for key, figure in times.items()} for who, times in whos.items()}
        for key in filter(lambda key: in_the_table(key[0]), driver):
            limit = figures.call_limit(key, driver, bare, CALL_LIMITS)
            for who, times in whos.items():
                if key not in times:
                    continue
                note = f"p90 {times[key]['p90_us']:.1f}"
                if times is amem and limit is not None:
                    note += f"; at most {limit:.1f}"
                figure = {each: times[key][f"{each}_us"] for each in ("median", "min", "max")}
                yield from_report(name, ": ".join(key), who, {**figure, "n": processes * runs * turns}, unit="us", note=note)
        for line in figures.slow_calls(driver, bare, amem, CALL_LIMITS) + figures.otherwise_there(driver, amem, 0.2):
            machine.note(f"{name}: {line}")
