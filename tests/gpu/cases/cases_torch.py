"""The cases about everything else that a PyTorch program holds: its heap, regions and tags, shared tensors."""

import figures
from harness import Failure, Skip
from registry import case

# GB/s per GPU, with 2 GPUs, on a link of 55. Beside the copies, a load has 0.2 ms per handle for making and mapping it.
COPY_LIMITS = {"save": 50, "load": 35}
STATE_GIB = 14  # of the large training step: weights, gradients, AdamW's state
POOL_GIB_PER_GPU = 18  # what such a rank holds in all
FIRST_USE_LEAST = 0.7  # of the processes that get through without amem
EXPANDABLE = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}


def times(report):
    return ", ".join(f"{verb} {report[f'{verb}_ms']['median']:.0f} ms (first {report[f'{verb}_ms']['first']:.0f}, max "
                     f"{report[f'{verb}_ms']['max']:.0f})" for verb in ("pause", "resume") if f"{verb}_ms" in report)


def check_curve(report, undisturbed):
    """The losses of a run with pauses are those of a run without, `undisturbed()`. A second such run says how far two of
    them are apart, and is made only where they are not equal bit for bit."""
    reference = undisturbed()
    right, text = figures.within(report["losses"], reference)
    if not right:
        right, text = figures.within(report["losses"], reference, undisturbed())
    if not right:
        raise Failure(f"losses {text}")
    return f"{len(reference)} losses {text}"


def trained(bench, script, *arguments, limit, env=None, scope="heap"):
    """Runs a training program with pauses, and without for its losses. Returns the report and a line on these."""
    def undisturbed():
        alone = bench.torch_script(script, *arguments, "--pause", "none", env=env, shim=False)
        return alone.wait(limit).report()["losses"]
    try:
        report = bench.torch_script(script, *arguments, env=env, scope=scope).wait(limit).report()
    except Skip as skip:
        not_only_here(skip, undisturbed)
    return report, check_curve(report, undisturbed)


def not_only_here(skip, alone):
    """A program skips itself where NCCL or PyTorch does not do what it is about. When it does without amem, `alone()`, then
    amem is why."""
    alone()
    raise Failure(f"only under amem: {skip}") from None


def check_copies(bench, log, report):
    """How fast bytes were saved and loaded, by the broker's log of these pauses."""
    rates = figures.copy_rates(figures.operations(log, "train"), report["saved_bytes"], bench.ranks)
    slow = figures.too_slow(rates, COPY_LIMITS)
    if slow and bench.time_limits and bench.ranks == 2:
        raise Failure(slow)
    return figures.show_rates(rates)


# ---- the whole heap ---------------------------------------------------------------------------------------------


@case(330)
def heap_step(bench):
    """A training step of 14 GiB of state in a CUDA graph, all of PyTorch's memory brokered."""
    broker = bench.broker(pool_gib=POOL_GIB_PER_GPU * bench.ranks)
    size = broker.log_size()
    report, curve = trained(bench, "heap_step.py", "--state-gib", STATE_GIB, "--cycles", bench.cycles, limit=150,
                            env=EXPANDABLE)
    return (f"{times(report)}; {check_copies(bench, broker.log_since(size), report)}; {curve}; "
            f"{report['unbrokered_mib']} MiB not brokered, {report['device_mib']}")


@case(150)
def heap_malloc(bench):
    """A smaller one with PyTorch's segments from cudaMalloc."""
    report, curve = trained(bench, "heap_step.py", "--state-gib", 2, "--width", 1024, "--cycles", bench.few, limit=70)
    return f"{times(report)}; {curve}; {report['unbrokered_mib']} MiB not brokered, {report['device_mib']}"


@case(180)
def fsdp2_train(bench):
    """FSDP2 training with its staging buffers in symmetric memory."""
    bench.needs_peers()
    report, curve = trained(bench, "fsdp2_train.py", "--cycles", bench.few, limit=80)
    return (f"{times(report)}; {curve}; {report['staged_mib']} MiB of buffers; a step before {report['before']}, "
            f"after {report['after']}")


@case(240)
def exit_paused(bench):
    """PyTorch programs that end while their group is paused."""
    runtime = str(bench.broker().runtime)
    report = bench.python_script("exit_paused.py", "control", shim=False,
                                 env={"AMEM_RUNTIME_DIR": runtime}).wait(235).report()
    return "; ".join(f"{way} {end['paused']['ms']} ms (running {end['running']['ms']}), memory back after "
                     f"{end['paused']['back_ms']} ({end['running']['back_ms']})" for way, end in report["ends"].items())


# ---- regions and tags -------------------------------------------------------------------------------------------


@case(90)
def regions(bench):
    """Regions, tags, policies, and what a program is told that does it wrong."""
    # Each rank compares what its device has free: it has the device to itself.
    report = bench.torch_script("regions.py", ranks=min(bench.ranks, bench.gpus.count()), scope="regions").wait(85).report()
    return f"{len(report['steps'])} steps, {times(report)}; MiB by tag {report['tags_mib']}"


@case(120)
def local_tags(bench):
    """Each rank pauses tags of its own, unequally often, and waits for no other."""
    report = bench.torch_script("local_tags.py", scope="regions").wait(115).report()
    return f"{', '.join(report['steps'])}; ms {report['median_ms']}"


@case(120)
def two_jobs(bench):
    """Two jobs with one group name pause and resume by themselves, and neither waits for the other."""
    jobs = [bench.torch_script("two_jobs.py", "--cycles", cycles, "--between", between, scope="heap") for cycles, between in ((4, 2.0), (9, 0.1))]
    reports = [job.wait(110).report() for job in jobs]
    return "; ".join(f"{each['cycles']} cycles, median {each['median_ms']} ms, longest {each['longest_ms']} ms" for each in reports)


@case(60)
def compat_layer(bench):
    """torch_memory_saver's interface."""
    report = bench.torch_script("compat_layer.py", scope="regions").wait(55).report()
    return f"tags {', '.join(report['tags'])}"


@case(240)
def region_beside_cache(bench):
    """A region gets the 60 % of a GPU that PyTorch's ordinary cache has free."""
    def run(**how):
        return bench.python_script("one_process.py", "beside_cache", **how).wait(70).report()
    alone, regions, heap = run(shim=False), run(scope="regions"), run(scope="heap")
    return (f"{regions['mib']} MiB; PyTorch {regions['torch']}'s own pools find {alone['bare_pool']} without amem, "
            f"{regions['bare_pool']} in scope regions, {heap['bare_pool']} in scope heap; entering a region takes "
            f"{regions['entered_ms']} ms, in scope heap {heap['entered_ms']}")


@case(320)
def cache_beside_region(bench):
    """Ordinary memory gets the 60 % of a GPU that a region has freed, also with expandable segments."""
    def run(**how):
        return bench.python_script("one_process.py", "beside_region", **how).wait(75).report()
    run(shim=False)
    regions, heap, expandable = run(scope="regions"), run(scope="heap"), run(scope="heap", env=EXPANDABLE)
    return (f"{regions['mib']} MiB of PyTorch {regions['torch']}; ms for the allocation that empties the region's pool: "
            f"{regions['allocated_ms']}, in scope heap {heap['allocated_ms']}, with expandable segments "
            f"{expandable['allocated_ms']}")


@case(100)
def touch_paused(bench):
    """A kernel that reads memory which is paused ends its context, and the log says which tag it was."""
    done = bench.python_script("one_process.py", "touch_paused", scope="regions").wait(90)
    said = [line for line in done.err.read_text(errors="replace").splitlines() if "ILLEGAL_ADDRESS" in line and "amem:" in line]
    if len(said) != 1 or "paused: tag 'kv_cache'" not in said[0]:
        raise Failure(f"{len(said)} lines of amem say what was paused: {said[:2]}")
    return f"{done.report()['error'][:60]}; {said[0][:140]}"


# ---- frees while the group is paused ----------------------------------------------------------------------------


@case(220)
def free_while_paused(bench):
    """A process pauses itself, empties PyTorch's cache, deletes tensors, a graph and a stream, and resumes."""
    def run(env=None):
        return bench.python_script("one_process.py", "free_while_paused", scope="heap", env=env).wait(105).report()
    malloc, expandable = run(), run(EXPANDABLE)
    return f"ms for the frees of each pause: {malloc['freed_ms']}, expandable segments {expandable['freed_ms']}"


# ---- driver calls that amem does not know ------------------------------------------------------------------------

# Of CUDA 12.5 to 13.0, so that drivers of today have them, and none of them is needed by PyTorch or NCCL.
FORGOTTEN = ("cuMemcpyBatchAsync", "cuMemcpy3DBatchAsync", "cuMemBatchDecompressAsync", "cuStreamGetDevice", "cuGreenCtxGetId")


@case(240)
def hidden_calls(bench):
    """Five calls of the driver are unknown to amem: programs run as on an older driver, and operators are told."""
    forget = {"AMEM_FORGET_CALLS": ",".join(FORGOTTEN)}
    there = bench.python_script("hidden_calls.py", *FORGOTTEN, "--found", shim=False).wait(60).report()
    done = bench.python_script("hidden_calls.py", *FORGOTTEN, "--cycles", bench.few, scope="heap", env=forget).wait(80)
    said = done.err.read_text(errors="replace")
    missing = [name for name in FORGOTTEN if said.count(f"amem hides the driver call {name}, ") != 1]
    if missing:
        raise Failure(f"the log does not say once each that {', '.join(missing)} are hidden")
    report = done.report()
    cycles = bench.torch_script("torch_cycle.py", "--cycles", bench.few, "--pause", "inside", env=forget).wait(90).report()
    return f"{report['looked']} (without amem {there['looked']}); copies by {report['copies_by']}; NCCL {cycles['nccl']}: {times(cycles)}"


# ---- CUDA IPC ---------------------------------------------------------------------------------------------------


@case(60)
def ipc_tensors(bench):
    """Two processes on one GPU share tensors."""
    report = bench.python_script("ipc_share.py", "tensors", "--cycles", bench.few, scope="heap").wait(55).report()
    return f"{report['tensors']} tensors, {report['checks']} checks, freed {report['freed_mib']} MiB"


@case(180)
def ipc_expandable(bench):
    """Memory of cuMemCreate has no older IPC handle, with amem as without, and is shared by descriptor."""
    def run(*arguments, **how):
        return bench.python_script("ipc_share.py", "expandable", "--cycles", bench.few, *arguments, env=EXPANDABLE,
                                   **how).wait(80).report()
    alone, amem = run("--pause", "none", shim=False), run(scope="heap")
    if alone["handles"] != amem["handles"]:
        raise Failure(f"cudaIpcGetMemHandle gives {amem['handles']} with amem, {alone['handles']} without")
    if 0 in amem["handles"][:2] or amem["handles"][2] != 0:
        raise Failure(f"cudaIpcGetMemHandle gives {amem['handles']}; errors for cuMemCreate's memory and 0 for cudaMalloc's are right")
    return f"cudaIpcGetMemHandle gives {amem['handles']} with amem and without; {amem['checks']} checks of shared tensors"


@case(60)
def ipc_buffers(bench):
    """Each rank reads the buffers of its peers, as custom all-reduces do."""
    report = bench.torch_script("ipc_share.py", "buffers", "--cycles", bench.few, scope="heap").wait(55).report()
    return f"{report['mib']} MiB per rank, {times(report)}"


@case(240)
def guest_tensors(bench):
    """A rank of another group opens tensors a hundred times, between swaps of the two groups."""
    report = bench.python_script("guest_share.py", "control", shim=False,
                                 env={"AMEM_RUNTIME_DIR": str(bench.broker().runtime)}).wait(235).report()
    return (f"{report['tensors']} tensors opened {report['times']} times, {report['swaps']} swaps; {report['stayed_mib']} MiB "
            "stayed while they were open")


# ---- NCCL's other kinds of memory -------------------------------------------------------------------------------


def nccl_kind(bench, kind):
    def run(*arguments, **how):
        return bench.torch_script("nccl_kinds.py", kind, "--cycles", bench.few, *arguments, **how).wait(55).report()
    try:
        report = run()
    except Skip as skip:
        not_only_here(skip, lambda: run("--pause", "none", shim=False))
    return f"{times(report)}; before {report['before']}, after {report['after']}; NCCL {report['nccl']}"


@case(120)
def nccl_registered(bench):
    """ncclMemAlloc and ncclCommRegister."""
    return nccl_kind(bench, "registered")


@case(120)
def nccl_captured(bench):
    """Buffers registered by the capture of a CUDA graph, which is replayed after each cycle."""
    return nccl_kind(bench, "captured")


@case(120)
def nccl_window(bench):
    """Windows (symmetric memory) of NCCL's own interface."""
    bench.needs_peers()
    return nccl_kind(bench, "window")


@case(120)
def nccl_symmetric_kernels(bench):
    """Symmetric kernels are still used after the cycles."""
    bench.needs_peers()
    return nccl_kind(bench, "symmetric_kernels")


@case(120)
def nccl_copy_engines(bench):
    """An all-gather by copy engines is still run by them after the cycles."""
    bench.needs_peers()
    return nccl_kind(bench, "copy_engines")


@case(120)
def torch_symmetric(bench):
    """PyTorch's symmetric memory with the NCCL backend."""
    bench.needs_peers()
    return nccl_kind(bench, "torch_symmetric")


@case(120)
def nccl_changing(bench):
    """Communicators made, split and destroyed between cycles."""
    return nccl_kind(bench, "changing")


@case(120)
def nccl_aborted(bench):
    """ncclCommAbort of a paused communicator."""
    return nccl_kind(bench, "aborted")


# ---- many processes on one GPU ----------------------------------------------------------------------------------


@case(340)
def first_use(bench):
    """Short processes on one GPU use kernels for the first time between allocations, and all results are right."""
    def run(**how):
        program = bench.python_script("first_use.py", "--seconds", bench.first_use_s, **how)
        return program.wait_any(bench.first_use_s + 120).report()
    wrong, shown = figures.first_uses(run(shim=False), run(scope="heap", env={"AMEM_REQUIRED": "1"}),
                                      FIRST_USE_LEAST if bench.time_limits else 0)
    if wrong:
        raise Failure(f"{wrong}; {shown}")
    return shown


# ---- time limits ------------------------------------------------------------------------------------------------


def watchdog_outcomes(bench, limit, *arguments, amem=True):
    """What became of a job that was stopped for longer than the time limit of its process groups."""
    how = ("--how", "pause" if amem else "signal")
    environment = {"AMEM_RUNTIME_DIR": str(bench.broker().runtime)} if amem else {}
    return bench.python_script("limits/torch_watchdog.py", "control", "--ranks", bench.ranks, *how, *arguments, shim=False,
                               env=environment).wait(limit).report()


def judged(report, must_survive=False):
    try:
        return figures.watchdog(report, must_survive)
    except ValueError as wrong:
        raise Failure(str(wrong)) from None


@case(340)
def torch_watchdog(bench):
    """A job whose ranks call amem.extend_timeouts() survives pauses longer than its collectives' time limit."""
    # Coalesced calls need a longer limit; without one this only reports what happened to the job.
    bench.needs_peers()
    times = max(1, bench.cycles // 6)
    coalesced = ("--kinds", "coalesced", "--times", 1)
    said = [judged(watchdog_outcomes(bench, 190, "--extend", "--times", times), must_survive=True),
            judged(watchdog_outcomes(bench, 70, *coalesced, "--timeout", 60), must_survive=True)]
    if times > 1:
        said.append(judged(watchdog_outcomes(bench, 75, "--extend", *coalesced)))
    return "; ".join(said)


@case(340)
def torch_watchdog_plain(bench):
    """Without that call nothing but PyTorch's time limit may end it, which ends a job that a signal stops, too."""
    bench.needs_peers()
    arguments = ("--times", 1, "--kinds", "async", *(["barrier"] if bench.cycles > 6 else []))
    reports = [watchdog_outcomes(bench, 165, *arguments, amem=amem) for amem in (True, False)]
    said = "; ".join(judged(report) for report in reports)
    if figures.watchdog_ended_none(reports):
        raise Failure(f"PyTorch's watchdog ended no job, so that torch_watchdog proves nothing; {said}")
    return said


# ---- an RL loop -------------------------------------------------------------------------------------------------


@case(340)
def rl_loop(bench):
    """Training and generation take turns by swaps, and give what they give without amem."""
    def run(*arguments, **how):
        return bench.python_script("rl_loop.py", "control", "--ranks", bench.ranks, *arguments, shim=False,
                                   **how).wait(95 + 15 * bench.ranks).report()
    # The controller starts its own ranks.
    # Within a swap both groups' bytes are in the pool.
    swapped = run(env={"AMEM_RUNTIME_DIR": str(bench.broker(pool_gib=12 * bench.ranks).runtime)})
    alone = run("--alone")
    for what in ("generated", "losses"):
        for number, (here, there) in enumerate(zip(swapped[what], alone[what], strict=True), 1):
            if here != there:
                raise Failure(f"{what} of iteration {number}: {here} with swaps, {there} without")
    ms = swapped["swap_ms"]
    tokens = sum(each["tokens"] for each in swapped["generated"])
    return (f"{len(swapped['losses'])} iterations, {tokens} tokens and all losses equal; {ms['n']} swaps, median "
            f"{ms['median']:.0f} ms (first {ms['first']:.0f}, max {ms['max']:.0f}); MiB paused {swapped['paused_mib']}, "
            f"cache {swapped['cache_mib']} MiB per rank")
