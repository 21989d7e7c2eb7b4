"""What amem does about NCCL itself: its own suspend and resume, and what it need not keep of its buffers."""

import itertools
import re
import time

from cases import times
from harness import Failure, MIB, Skip
from registry import case

REFUSED = "ncclCommSuspend is refused under amem"

# NCCL_ALGO; a tree is for all-reduces alone.
ALGORITHMS = {"Ring": "ring", "Tree": "ring;allreduce:tree"}
# Between hosts alone, with one GPU each. What goes by the network NCCL receives in memory of the host.
PAT = "ring;allgather:pat;reducescatter:pat"
PROTOCOLS = ("LL", "LL128", "Simple")
LEAST_MIB = 20  # per pause and rank: two connections' LL128 and Simple
# PyTorch's programs, and what each must drop. Windows and symmetric kernels take no receive buffers: there it is shown that
# nothing of theirs is taken for one.
KINDS = {"registered": LEAST_MIB, "captured": LEAST_MIB, "window": 0, "symmetric_kernels": 0}
SAID = re.compile(r"AMEM_NCCL_SCRATCH: (\d+) MiB of NCCL's receive buffers need not travel")


def dropped(finished):
    """MiB that each pause of each rank has dropped, by the shims' own word."""
    return [int(mib) for mib in SAID.findall(finished.err.read_text(errors="replace"))]


@case(480)
def nccl_scratch(bench):
    """All collectives, algorithms and protocols, with what is dropped spoilt after each pause."""
    bench.needs_peers()
    pauses = verified = 0
    least = None
    prove = {"AMEM_NCCL_SCRATCH": "prove", "AMEM_LOG": "info"}

    def count(finished, what, at_least=LEAST_MIB):
        nonlocal pauses, verified, least
        mib = dropped(finished)
        if not mib or min(mib) < at_least:
            raise Failure(f"{what}: {min(mib, default=0)} MiB dropped in a pause, {at_least} are there at least: nothing is proven")
        pauses += len(mib)
        if at_least > 0:
            least = min(mib if least is None else [*mib, least])
        verified += finished.report().get("verified", 0)
        return max(mib)

    arguments = ("--cycles", bench.cycles, "--pause", "inside", "--max-bytes", 16 * MIB, "--in-place")
    for mode, algorithm, protocol in itertools.product(("process", "threads"), ALGORITHMS, PROTOCOLS):
        env = {**prove, "NCCL_ALGO": ALGORITHMS[algorithm], "NCCL_PROTO": protocol}
        count(bench.nccl_cycle("--mode", mode, *arguments, env=env).wait(120), f"{mode}, {algorithm}, {protocol}")
    pat = count(bench.nccl_cycle("--hosts", *arguments, env={**prove, "NCCL_ALGO": PAT}).wait(120), "PAT", at_least=0)
    kinds = []
    for kind, at_least in KINDS.items():
        try:
            count(bench.torch_script("nccl_kinds.py", kind, "--cycles", bench.cycles, env=prove).wait(120), kind, at_least)
        except Skip:  # PyTorch does not start with this NCCL, or NCCL has no such kind
            continue
        kinds.append(kind)
    return (f"{pauses} pauses of ranks, {least} MiB or more spoilt in each (PAT, one GPU a host: {pat} MiB); "
            f"{verified} collectives verified; PyTorch's: {', '.join(kinds) or 'none'}")


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
