"""What amem does about NCCL itself: its own suspend and resume, and what it need not keep of its buffers."""

import itertools
import re
import time

from cases import times
from harness import Failure, MIB, has_torch
from registry import case

REFUSED = "ncclCommSuspend is refused under amem"

ALGORITHMS = ("Ring", "Tree")
PROTOCOLS = ("LL", "LL128", "Simple")
# PyTorch's programs: registered, captured in a graph, windows, symmetric kernels.
KINDS = ("registered", "captured", "window", "symmetric_kernels")
LEAST_MIB = 20  # per pause and rank: two connections' LL128 and Simple
SAID = re.compile(r"AMEM_NCCL_SCRATCH: (\d+) MiB of NCCL's receive buffers need not travel")


def dropped(finished):
    """MiB that each pause of each rank has dropped, by the shims' own word."""
    return [int(mib) for mib in SAID.findall(finished.err.read_text(errors="replace"))]


@case(340)
def nccl_scratch(bench):
    """All collectives, algorithms and protocols, with what is dropped spoilt after each pause."""
    bench.needs_peers()
    pauses = verified = 0
    least = None
    prove = {"AMEM_NCCL_SCRATCH": "prove", "AMEM_LOG": "info"}

    def count(finished, what):
        nonlocal pauses, verified, least
        mib = dropped(finished)
        if not mib or min(mib) < LEAST_MIB:
            raise Failure(f"{what}: {min(mib, default=0)} MiB dropped in a pause, {LEAST_MIB} are there at least: nothing is proven")
        pauses += len(mib)
        least = min(mib) if least is None else min(mib, least)
        verified += finished.report().get("verified", 0)

    for mode, algorithm, protocol in itertools.product(("process", "threads"), ALGORITHMS, PROTOCOLS):
        arguments = ("--mode", mode, "--cycles", bench.cycles, "--pause", "inside", "--max-bytes", 16 * MIB)
        done = bench.nccl_cycle(*arguments, env={**prove, "NCCL_ALGO": algorithm, "NCCL_PROTO": protocol}).wait(120)
        count(done, f"{mode}, {algorithm}, {protocol}")
    for kind in KINDS if has_torch() else ():
        count(bench.torch_script("nccl_kinds.py", kind, "--cycles", bench.cycles, env=prove).wait(120), kind)
    return f"{pauses} pauses of ranks, {least} MiB or more spoilt in each; {verified} collectives verified"


@case(200)
def nccl_suspend(bench):
    """ncclCommSuspend: refused with slabs; without them it works, also beside an operator's pauses."""
    arguments = ("--cycles", bench.cycles, "--pause", "suspend", "--max-bytes", MIB)
    alone = bench.nccl_cycle(*arguments, shim=False).wait(60).report()  # skips itself where NCCL has none
    refused = bench.nccl_cycle(*arguments).wait_any(60)
    if refused.code == 0 or REFUSED not in refused.err.read_text(errors="replace"):
        raise Failure(f"with slabs it ended with {refused.code} and did not say that it is refused")
    broker = bench.broker()
    program = bench.nccl_cycle("--cycles", 10 * bench.cycles, "--away-ms", 20, *arguments[2:], env={"AMEM_SLAB": "0"})
    broker.wait_group("train", bench.ranks, programs=[program])
    pauses = 0
    while program.running():
        try:
            broker.amemctl("pause", "train")
            broker.amemctl("resume", "train")
            pauses += 1
        except Failure:
            time.sleep(1)
            if program.running():  # else it has come to its end meanwhile, and the group with it
                raise
    report = program.wait(60).report()
    if pauses < 3:
        raise Failure(f"only {pauses} pauses beside {10 * bench.cycles} cycles")
    return f"without amem {times(alone)}; under amem {times(report)}, {report['verified']} collectives verified beside {pauses} pauses"
